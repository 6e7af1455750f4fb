"""Live reading: long polls and streams of events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.cases import case
from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.http.conftest import Served, serving
from tests.walstore.http.test_bodies import slow
from tests.walstore.http.test_content import read_event
from walstore import Settings, StorageUnavailableError, Wal
from walstore.http import HttpSettings
from walstore.http.stream import Stream
from walstore.testing import ManualClock

TEXT = {"Content_Type": "text/plain"}


class Events:
    """The events of one live reader."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def next(self) -> tuple[str, Any] | None:
        """Return the next event, None at the end."""
        lines = b""
        async for line in self.answer.content:
            lines += line
            if line == b"\n":
                name, data = read_event(lines)
                return name, json.loads(data) if name == "control" else data
        return None

    async def until_caught_up(self) -> tuple[list[str], dict[str, Any]]:
        """Return the data up to the next control event that says that this is all."""
        data = []
        while event := await self.next():
            if event[0] == "data":
                data.append(event[1])
            elif event[1].get("upToDate") or event[1].get("streamClosed"):
                return data, event[1]
        raise AssertionError("it ended")


@asynccontextmanager
async def events(served: Served, name: str, query: str = "offset=-1") -> AsyncIterator[Events]:
    async with served.session.get(f"{served.url(name)}?{query}&live=sse") as answer:
        assert answer.status == 200
        yield Events(answer)


async def test_events_follow_appends_and_the_end(served: Served) -> None:
    await served.send("PUT", "s", b"a", **TEXT)
    async with events(served, "s") as reader:
        assert (await reader.until_caught_up())[0] == ["a"]
        for text in (b"b", b"c\nd"):
            await served.send("POST", "s", text, **TEXT)
            data, control = await reader.until_caught_up()
            assert "".join(data).encode() == text
        await served.send("POST", "s", b"last", Stream_Closed="true", **TEXT)
        data, control = await reader.until_caught_up()
        if "streamClosed" not in control:
            more, control = await reader.until_caught_up()
            data += more
        assert (data, control["streamClosed"]) == (["last"], True)
        assert "streamCursor" not in control
        assert await reader.next() is None


async def test_closing_alone_ends_readers_that_wait(served: Served) -> None:
    await served.send("PUT", "s", b"a", **TEXT)
    polling = asyncio.ensure_future(served.send("GET", "s", query="?offset=now&live=long-poll"))
    async with events(served, "s", "offset=now") as reader:
        assert await reader.until_caught_up()
        await served.send("POST", "s", Stream_Closed="true")
        assert (await reader.until_caught_up())[1]["streamClosed"]
    status, headers, body = await polling
    assert (status, headers["Stream-Closed"], body) == (204, "true", b"")


async def test_a_stream_that_ends_twice_lets_its_readers_go(tmp_path: Path) -> None:
    """At any moment, also as the time of a reader is up: the server that stops, a close and a deletion."""
    async with Wal.open(tmp_path / "log") as wal:
        for seconds in (0, 60):
            for turns in range(8):
                stream = Stream("s", wal, None)
                readers = [asyncio.ensure_future(stream.wait(1, seconds)) for _ in range(3)]
                for _ in range(turns):
                    await asyncio.sleep(0)
                for _ in range(3):
                    stream.end()
                    await asyncio.sleep(0)
                await asyncio.gather(*readers)


async def test_closing_a_stream_many_times_at_once(served: Served) -> None:
    for number in range(5):
        name = f"s{number}"
        await served.send("PUT", name, b"a", **TEXT)
        query = "?offset=now&live=long-poll"
        polls = [asyncio.ensure_future(served.send("GET", name, query=query)) for _ in range(3)]
        await until(lambda: served.server.requests == 3)
        closes = [served.status("POST", name, Stream_Closed="true") for _ in range(4)]
        assert await asyncio.gather(*closes) == [204] * 4
        assert [status for status, _, _ in await asyncio.gather(*polls)] == [204] * 3


async def test_deleting_ends_readers_that_wait(served: Served) -> None:
    await served.send("PUT", "s", b"a", **TEXT)
    async with events(served, "s") as reader:
        await reader.until_caught_up()
        await served.send("DELETE", "s")
        with pytest.raises((AssertionError, aiohttp.ClientError)):
            await reader.until_caught_up()


async def test_what_fails_half_way_is_cut_off(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never a second answer in the middle of the first."""

    async def fail(*_: object) -> None:
        raise StorageUnavailableError("the disk is gone")

    monkeypatch.setattr(Stream, "wait", fail)
    await served.send("PUT", "s", b"a", **TEXT)
    host, port = served.server.addresses[0].removeprefix("http://").rsplit(":", 1)
    stream, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /v1/stream/s?offset=-1&live=sse HTTP/1.1\r\nHost: localhost\r\n\r\n")
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while part := await stream.read(1000):
            got += part
    writer.close()
    assert got.count(b"HTTP/1.1") <= 1
    assert not got.endswith(b"0\r\n\r\n")  # what ends a whole answer


async def test_a_reader_continues_where_it_was(served: Served) -> None:
    await served.send("PUT", "s", b"a", **TEXT)
    async with events(served, "s") as reader:
        offset = (await reader.until_caught_up())[1]["streamNextOffset"]
    await served.send("POST", "s", b"b", **TEXT)
    async with events(served, "s", f"offset={offset}") as reader:
        assert (await reader.until_caught_up())[0] == ["b"]


async def test_events_end_for_the_client_to_come_back(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=HttpSettings(event_seconds=0.1)) as served:
        await served.send("PUT", "s", b"a", **TEXT)
        async with events(served, "s") as reader:
            await reader.until_caught_up()
            assert await reader.next() is None


async def test_a_long_poll_waits_for_the_next_append(served: Served) -> None:
    await served.send("PUT", "s", b"a", **TEXT)
    offset = (await served.send("HEAD", "s"))[1]["Stream-Next-Offset"]
    query = f"?offset={offset}&live=long-poll"
    status, headers, _ = await served.send("GET", "s", query=query)
    assert (status, headers["Stream-Next-Offset"], headers["Stream-Up-To-Date"]) == (
        204,
        offset,
        "true",
    )
    answers = [asyncio.ensure_future(served.send("GET", "s", query=query)) for _ in range(5)]
    await served.send("POST", "s", b"b", **TEXT)
    assert [(status, body) for status, _, body in await asyncio.gather(*answers)] == [
        (200, b"b")
    ] * 5


async def test_a_reader_of_a_fork_hears_only_the_fork(served: Served) -> None:
    await served.send("PUT", "s", b"a", **TEXT)
    await served.send("PUT", "f", Stream_Forked_From="/v1/stream/s")
    async with events(served, "f") as reader:
        assert (await reader.until_caught_up())[0] == ["a"]
        await served.send("POST", "s", b"!", **TEXT)
        await served.send("POST", "f", b"b", **TEXT)
        assert (await reader.until_caught_up())[0] == ["b"]


async def test_a_client_that_goes_leaves_nothing(served: Served) -> None:
    await served.send("PUT", "s", b"a", **TEXT)
    async with events(served, "s") as reader:
        await reader.until_caught_up()
        assert served.server.requests == 1
    await until(lambda: not served.server.requests)


LONG = HttpSettings(poll_seconds=3600, event_seconds=86_400, drain_seconds=86_400)
"""A test under these limits ends in time only if nothing waits for readers."""


async def test_stopping_ends_live_readers(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=LONG) as served:
        await served.send("PUT", "s", b"a", **TEXT)
        polling = asyncio.ensure_future(served.send("GET", "s", query="?offset=now&live=long-poll"))
        async with events(served, "s") as reader:
            await reader.until_caught_up()
            await until(lambda: served.server.requests == 2)
            async with asyncio.timeout(30):
                await served.server.aclose()
                assert await reader.next() is None
                assert (await polling)[0] == 204


async def test_stopping_ends_readers_that_are_far_behind(tmp_path: Path) -> None:
    """They have the place at which they continue, and would keep the server for as long as they read."""
    settings = replace(LONG, read_bytes=1 << 16)
    async with serving(tmp_path, settings=settings, logs=Settings()) as served:
        await served.send("PUT", "s", **TEXT)
        wal = await served.store.wal("s")
        for _ in range(300):
            await wal.append(b"x" * (1 << 16), durability="memory")
        await wal.flush()
        got = []
        async with events(served, "s") as reader:
            got.append(await reader.next())
            closing = asyncio.ensure_future(served.server.aclose())
            async with asyncio.timeout(30):
                while event := await reader.next():
                    got.append(event)
                await closing
    assert len(got) < 300
    assert got[-1] is not None
    assert got[-1][0] == "control"


async def test_stopping_waits_once_for_readers_that_take_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path, settings=LONG, logs=Settings(), clock=clock) as served:
        await served.send("PUT", "s", **TEXT)
        await (await served.store.wal("s")).append(bytes(8 << 20))
        async with slow(served.server, 2) as clients:
            for client, query in zip(clients, (b"", b"?offset=-1&live=sse"), strict=True):
                client.writer.transport.pause_reading()
                client.send(b"GET /v1/stream/s%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % query)
            await until(lambda: served.server.requests == 2)
            await clock.wait_for_sleepers(2)
            async with asyncio.timeout(30):
                closing = asyncio.ensure_future(served.server.aclose())
                await until(lambda: clock.sleepers == 1)  # the sweeps have ended: it is the drain
                assert served.server.requests == 2
                clock.advance(LONG.drain_seconds)
                await closing
    assert served.server.requests == 0


async def test_what_a_client_does_not_take_is_one_line_of_the_log_at_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether its time is up, it goes, or the server stops while something is sent."""
    caplog.set_level("DEBUG")
    for end, seconds in (("time", RUNS_OUT_SECONDS), ("client", 60), ("server", 60)):
        settings = HttpSettings(body_seconds=seconds, drain_seconds=0)
        with case(end):
            async with serving(tmp_path / end, settings=settings, logs=Settings()) as served:
                await served.send("PUT", "s", **TEXT)
                await (await served.store.wal("s")).append_many([bytes(1 << 20)] * 20)
                caplog.clear()
                async with slow(served.server, 1) as (client,):
                    client.writer.transport.pause_reading()
                    client.send(LIVE)
                    await until(lambda: served.server.outgoing.used_bytes > 0)
                    if end == "client":
                        client.writer.transport.abort()
                    if end == "server":
                        await served.server.aclose()
                    await until(lambda: not served.server.requests)
            others = {"asyncio", "walstore.audit", "walstore.log"}
            told = [one for one in caplog.records if one.name not in others]
            assert [one for one in told if one.exc_info is not None] == []
            assert len(told) <= 1


async def test_what_fails_half_way_is_one_line_of_the_log(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise StorageUnavailableError("the disk is gone")

    monkeypatch.setattr(Stream, "wait", fail)
    await served.send("PUT", "s", b"a", **TEXT)
    async with slow(served.server, 1) as (client,):
        client.send(LIVE)
        with contextlib.suppress(ConnectionResetError):
            await client.reader.read()
        await until(lambda: not served.server.requests)
    told = [one for one in caplog.records if one.name != "asyncio"]
    assert [one.exc_info for one in told] == [None]
    assert "the disk is gone" in told[0].getMessage()


LIVE = b"GET /v1/stream/s?offset=-1&live=sse HTTP/1.1\r\nHost: localhost\r\n\r\n"


TAILS = """
import asyncio, resource, sys
from walstore import WalStore
from walstore.http import HttpServer

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

async def main():
    async with WalStore.open(sys.argv[1]) as store:
        async with HttpServer.open(store, "127.0.0.1:0") as server:
            print(server.addresses[0], flush=True)
            loop = asyncio.get_running_loop()
            while await loop.run_in_executor(None, sys.stdin.readline):
                print(server.requests, resident_bytes(), flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc")
@pytest.mark.timeout(240)
async def test_a_thousand_tails_of_one_log_take_60_mib(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", TAILS, str(tmp_path),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None

    async def ask() -> list[int]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        return [int(word) for word in (await process.stdout.readline()).split()]

    url = (await process.stdout.readline()).decode().strip() + "/v1/stream/s"
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        asyncio.timeout(200),
    ):
        headers = {"Content-Type": "text/plain"}
        async with session.put(url, data=b"first", headers=headers):
            pass
        before = (await ask())[1]
        tails = [Events(await session.get(f"{url}?offset=-1&live=sse")) for _ in range(1000)]
        for tail in tails:
            assert (await tail.until_caught_up())[0] == ["first"]
        for number in range(8):
            async with session.post(url, data=b"%d" % number * 200, headers=headers):
                pass
            got = await asyncio.gather(*(tail.until_caught_up() for tail in tails))
            assert {"".join(data) for data, _ in got} == {str(number) * 200}
        requests, after = await ask()
        assert requests == 1000
        assert after - before < 60 << 20, f"{(after - before) / (1 << 20):.1f} MiB"
        for tail in tails:
            tail.answer.close()
    process.stdin.close()
    await process.wait()
