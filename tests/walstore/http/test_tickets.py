"""Tickets: reading a stream of a server with a token without sending it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.event_source import EventSource
from tests.walstore.http.conftest import Served, serving
from walstore.http.http_settings import HttpSettings
from walstore.http.protocol import RefusedError
from walstore.http.tickets import MOST_TICKETS, TICKET_SECONDS, Tickets
from walstore.testing import ManualClock

TOKEN = {"Authorization": "Bearer secret"}
TEXT = {"Content_Type": "text/plain"}


async def ticket_of(served: Served, name: str = "s") -> str:
    url = served.url(name).replace("/v1/stream/", "/v1/ticket/")
    async with served.session.post(url, headers=TOKEN) as answer:
        assert answer.status == 200
        assert answer.headers["Cache-Control"] == "no-store"
        found = await answer.json()
    assert found["seconds"] == TICKET_SECONDS
    return str(found["ticket"])


async def test_a_ticket_reads_one_stream_and_does_nothing_else(tmp_path: Path) -> None:
    async with serving(tmp_path, token="secret") as served:
        for name in ("s", "a/b ü", "other"):
            await served.send("PUT", name, b"content", **TEXT, **TOKEN)
        for name in ("s", "a%2Fb%20%C3%BC"):
            query = f"?ticket={await ticket_of(served, name)}"
            assert await served.content(name, query) == b"content"
            assert (await served.send("HEAD", name, query=query))[0] == 200
            for method in ("PUT", "POST", "DELETE", "OPTIONS"):
                found = (await served.send(method, name, b"x", query=query, **TEXT))[0]
                assert found == (204 if method == "OPTIONS" else 401)
            assert (await served.send("GET", "other", query=query))[0] == 401
            for path in ("look/", "records/", "ticket/"):
                url = served.url(name).replace("stream/", path) + query
                for method in ("GET", "POST"):
                    async with served.session.request(method, url) as answer:
                        assert answer.status == 401, path


async def test_what_is_no_ticket_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, token="secret") as served:
        await served.send("PUT", "s", **TEXT, **TOKEN)
        ticket = await ticket_of(served)
        name, _, secret = ticket.partition(".")
        for wrong in (
            "", ".", name, f"{name}.", f"{name}.{secret[:-1]}", f"{name}.{secret}x", f".{secret}",
            f"x{ticket}", "%00", "%ED%A0%80", "secret", ticket.lower(),
        ):  # fmt: skip
            assert (await served.send("GET", "s", query=f"?ticket={wrong}"))[0] == 401, wrong
        assert (await served.send("POST", "s", **TEXT))[0] == 401
        url = served.url("s").replace("stream", "ticket")
        async with served.session.post(url) as answer:
            assert answer.status == 401


async def test_an_event_source_reads_with_a_ticket(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with serving(
        tmp_path, token="secret", settings=HttpSettings(event_seconds=0.1)
    ) as served:
        await served.send("PUT", "s", b"a", **TEXT, **TOKEN)
        ticket = await ticket_of(served)
        source = EventSource(
            served.session, f"{served.url('s')}?offset=-1&live=sse&ticket={ticket}"
        )
        events = source.events()
        assert (await anext(events)).data == "a"
        while source.requests < 3:
            await anext(events)
        await served.send("POST", "s", b"b", Stream_Closed="true", **TEXT, **TOKEN)
        data = [event.data async for event in events if event.kind == "data"]
        assert (data, source.status) == (["b"], 204)
    assert ticket.partition(".")[2] not in caplog.text


async def test_without_a_token_a_ticket_is_given_and_not_needed(served: Served) -> None:
    await served.send("PUT", "s", b"a", **TEXT)
    assert await served.content("s", f"?ticket={await ticket_of(served)}") == b"a"
    assert await served.content("s", "?ticket=x") == b"a"
    url = served.url("s").replace("stream", "ticket")
    async with served.session.post(url, headers={"Origin": "https://evil.example"}) as answer:
        assert (answer.status, "ticket" in json.loads(await answer.text())) == (403, False)


def test_a_ticket_ends_after_its_time() -> None:
    clock = ManualClock()
    tickets = Tickets(clock)
    first = tickets.give("s")
    clock.advance(TICKET_SECONDS / 2)
    second = tickets.give("s")
    assert tickets.find(first, "s")
    assert tickets.find(first, "s")  # also again
    clock.advance(TICKET_SECONDS / 2)
    assert not tickets.find(first, "s")
    assert tickets.find(second, "s")
    assert not tickets.find(second, "t")


def test_tickets_are_bounded() -> None:
    clock = ManualClock()
    tickets = Tickets(clock)
    given = [tickets.give("s") for _ in range(MOST_TICKETS)]
    assert len(set(given)) == MOST_TICKETS
    with pytest.raises(RefusedError) as refused:
        tickets.give("s")
    assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "1"})
    assert tickets.find(given[0], "s")  # nobody's is taken away
    clock.advance(TICKET_SECONDS)
    assert tickets.find(tickets.give("s"), "s")
