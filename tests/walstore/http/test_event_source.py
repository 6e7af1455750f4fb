"""A browser's EventSource: it comes back by itself, and gets each event once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.event_source import Event, EventSource
from tests.walstore.http.conftest import Served, serving
from walstore.http import HttpSettings

TEXT = {"Content_Type": "text/plain"}
SHORT = HttpSettings(event_seconds=0.1)
"""The server ends each answer so soon that the client comes back many times."""


async def after_asking(
    source: EventSource, events: AsyncIterator[Event], times: int
) -> list[Event]:
    """Return what comes until the source has asked so often."""
    found: list[Event] = []
    while source.requests < times:
        found.append(await anext(events))
    return found


@pytest.mark.parametrize("offset", ["-1", "now"])
async def test_each_event_comes_once_across_time_outs(tmp_path: Path, offset: str) -> None:
    async with serving(tmp_path, settings=SHORT) as served:
        await served.send("PUT", "s", b"old", **TEXT)
        source = EventSource(served.session, f"{served.url('s')}?offset={offset}&live=sse")
        events = source.events()
        found = [await anext(events)]
        for number in range(5):
            found += await after_asking(source, events, 2 * number + 2)  # once with nothing new
            await served.send("POST", "s", b"new %d" % number, **TEXT)
            found += await after_asking(source, events, 2 * number + 3)
        await served.send("POST", "s", b"last", Stream_Closed="true", **TEXT)
        found += [event async for event in events]  # it is told that nothing will come
        assert source.status == 204
    data = [event.data for event in found if event.kind == "data"]
    old = ["old"] if offset == "-1" else []
    assert data == [*old, *(f"new {number}" for number in range(5)), "last"]
    for event in found:
        if event.kind == "control":
            assert event.last_id == json.loads(event.data)["streamNextOffset"]


async def test_bytes_and_json_have_ids_too(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=SHORT) as served:
        for name, kind, body in (
            ("b", "image/png", b"\x00\xff"),
            ("j", "application/json", b"[1,2]"),
        ):
            await served.send("PUT", name, body, Content_Type=kind, Stream_Closed="true")
            source = EventSource(served.session, f"{served.url(name)}?offset=-1&live=sse")
            found = [event async for event in source.events()]
            assert [event.kind for event in found] == ["data", "control"]
            assert found[0].last_id == found[1].last_id
            assert (source.requests, source.status) == (2, 204)


async def test_the_last_event_counts_more_than_the_offset_asked_for(served: Served) -> None:
    await served.send("PUT", "s", b"a", **TEXT)
    at = (await served.send("HEAD", "s"))[1]["Stream-Next-Offset"]
    await served.send("POST", "s", b"b", Stream_Closed="true", **TEXT)
    for last, expected in ((at, b"data:b"), ("", b"data:ab")):
        query = "?offset=-1&live=sse"
        status, _, body = await served.send("GET", "s", query=query, Last_Event_ID=last)
        assert status == 200
        assert expected in body
    # Reads that are no event streams know nothing of events.
    assert (await served.send("GET", "s", Last_Event_ID=at))[2] == b"ab"
    for wrong in ("x", "-1", "now", f"{99:016d}_{0:016d}"):
        status, _, _ = await served.send("GET", "s", query=query, Last_Event_ID=wrong)
        assert status == 400, wrong


async def test_records_that_were_trimmed_meanwhile_end_it(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=SHORT) as served:
        await served.send("PUT", "s", b"a", **TEXT)
        source = EventSource(served.session, f"{served.url('s')}?offset=-1&live=sse")
        source.last_id = f"{1:016d}_{0:016d}"
        await served.send("POST", "s", b"b", **TEXT)
        await (await served.store.wal("s")).trim(2)
        assert [event async for event in source.events()] == []
        assert source.status == 410
