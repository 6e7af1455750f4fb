"""Streams are logs of a store: created, appended to, closed, forked, deleted, also across restarts."""

from __future__ import annotations

import asyncio
import errno
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.walstore.http.conftest import QUICK, Served, serving
from walstore import Wal, WalStore
from walstore.errors import DiskFullError
from walstore.http import HttpServer, HttpSettings
from walstore.http.protocol import ProducerMark, RefusedError
from walstore.http.stream import Stream, StreamConfig
from walstore.http.streams import Streams
from walstore.testing import FaultyFileSystem, ManualClock

TEXT = {"Content_Type": "text/plain"}
JSON = {"Content_Type": "application/json"}


async def test_a_stream_is_a_log(served: Served) -> None:
    status, headers, _ = await served.send("PUT", "eu/orders", b"[1, 2]", **JSON)
    assert status == 201
    assert headers["Location"] == served.url("eu/orders")
    assert await served.status("POST", "eu/orders", b'{"a": 3}', **JSON) == 204
    wal = await served.store.wal("eu/orders")
    assert [record.value async for record in wal.reader(follow=False)] == [b"1", b"2", b'{"a": 3}']
    await wal.append(b"4")
    assert json.loads(await served.content("eu/orders")) == [1, 2, {"a": 3}, 4]


async def test_a_stream_that_is_opened_as_the_server_stops_lets_its_readers_go(
    tmp_path: Path,
) -> None:
    async with WalStore.open(tmp_path) as store:
        streams = Streams(store.catalog, ManualClock())
        config = StreamConfig(content_type="text/plain")
        await streams.create("old", config, [], is_closed=False)
        again = Streams(store.catalog, ManualClock())
        again.end_all()
        assert (await again.find("old")).has_ended
        new, _ = await again.create("new", config, [], is_closed=False)
        assert new.has_ended


async def test_a_log_is_a_stream(served: Served) -> None:
    wal = await served.store.wal("made elsewhere")
    await wal.append_many([b"a", b"b"])
    status, headers, body = await served.send("GET", "made%20elsewhere")
    assert (status, body) == (200, b"ab")
    assert headers["Content-Type"] == "application/octet-stream"
    assert await served.status("PUT", "made%20elsewhere", **TEXT) == 409
    assert await served.status("PUT", "made%20elsewhere") == 200
    await wal.trim(2)
    assert await served.content("made%20elsewhere") == b"b"


async def test_what_was_trimmed_is_gone(served: Served) -> None:
    await served.send("PUT", "s", b"a", **TEXT)
    await served.send("POST", "s", b"b", **TEXT)
    await (await served.store.wal("s")).trim(2)
    status, _, body = await served.send("GET", "s", query=f"?offset={1:016d}_{0:016d}")
    assert status == 410
    assert b"begins at" in body or b"head=2" in body


async def test_everything_is_the_same_after_a_restart(tmp_path: Path) -> None:
    producer = {"Producer_Id": "p", "Producer_Epoch": 3, "Producer_Seq": 0}
    async with serving(tmp_path) as served:
        await served.send("PUT", "s", b"a", Stream_TTL=1000, **TEXT)
        assert await served.status("POST", "s", b"b", **TEXT, **producer, Stream_Seq="x") == 200
        await served.send("PUT", "f", Stream_Forked_From="/v1/stream/s")
        await served.send("POST", "f", b"c", **TEXT)
        await served.send("POST", "s", b"!", Stream_Closed="true", **TEXT)
        await served.send("DELETE", "s")
    async with serving(tmp_path) as served:
        assert await served.content("f") == b"abc"
        assert await served.status("GET", "s") == 410
        assert await served.status("DELETE", "f") == 204
        assert await served.status("GET", "s") == 404
        assert await served.store.logs() == []
    async with serving(tmp_path) as served:
        await served.send("PUT", "t", **TEXT)
        assert await served.status("POST", "t", b"b", **TEXT, **producer, Stream_Seq="x") == 200
        await served.send("POST", "t", Stream_Closed="true")
    async with serving(tmp_path) as served:
        assert (
            await served.status("POST", "t", b"b", **TEXT, **producer) == 409
        )  # another one closed it
        assert await served.status("POST", "t", b"c", **TEXT, Stream_Seq="y") == 409
        headers = (await served.send("GET", "t", query="?offset=now"))[1]
        assert headers["Stream-Closed"] == "true"


async def test_who_looks_for_a_stream_while_it_is_deleted_finds_none(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the server does with all streams when it begins."""
    await served.send("PUT", "s", **TEXT)
    streams = Streams(served.store.catalog, ManualClock())
    await streams.find("s")
    delete = served.store.delete

    async def looked_at(name: str) -> None:
        await delete(name)
        with pytest.raises(RefusedError, match="no such stream"):
            await streams.find(name)

    monkeypatch.setattr(served.store, "delete", looked_at)
    await streams.delete("s")
    assert await served.store.logs() == []


async def test_an_append_whose_answer_was_lost_is_in_the_stream_once(served: Served) -> None:
    await served.send("PUT", "s", **TEXT)
    stream = await Streams(served.store.catalog, ManualClock()).find("s")
    for number in range(20):
        mark = ProducerMark("p", 0, number)

        async def send(mark: ProducerMark = mark, number: int = number) -> Any:
            return await stream.append(
                [b"%d," % number], sequence=None, producer=mark, is_last=False, is_empty=False,
                durability=None,
            )  # fmt: skip

        sending = asyncio.ensure_future(send())
        for _ in range(number):  # cancelled at each turn of the loop that it takes
            await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait([sending])
        await send()
    assert await served.content("s") == b"".join(b"%d," % number for number in range(20))


async def test_a_producer_without_room_for_its_register_is_refused(served: Served) -> None:
    """A program has taken all registers of the log for itself; the streams' own are among them."""
    marks = {**TEXT, "Producer_Id": "p", "Producer_Epoch": 0}
    await served.send("PUT", "s", **TEXT)
    assert await served.status("POST", "s", b"1", **marks, Producer_Seq=0) == 200
    wal = await served.store.wal("s")
    names = [f"mine {number}" for number in range(1024 - len(wal.registers))]
    async with wal.transaction(update=dict.fromkeys(names, "")):
        pass
    assert await served.status("POST", "s", b"2", **marks, Producer_Seq=1) == 200
    other = {**marks, "Producer_Id": "other"}
    assert await served.status("POST", "s", b"3", **other, Producer_Seq=0) == 413
    assert await served.status("POST", "s", b"4", **TEXT) == 204
    assert await served.content("s") == b"124"


async def test_producers_at_once(served: Served) -> None:
    await served.send("PUT", "s", **TEXT)

    async def produce(name: str) -> None:
        for number in range(20):
            marks = {"Producer_Id": name, "Producer_Epoch": 0, "Producer_Seq": number}
            answers = await asyncio.gather(
                *(
                    served.status("POST", "s", f"{name}{number},".encode(), **TEXT, **marks)
                    for _ in range(2)
                )
            )
            assert sorted(answers) == [200, 204]

    await asyncio.gather(*map(produce, "abcd"))
    lines = (await served.content("s")).decode().split(",")[:-1]
    for name in "abcd":
        assert [line for line in lines if line[0] == name] == [
            f"{name}{number}" for number in range(20)
        ]


async def test_closing_beside_appends_takes_all_or_refuses(served: Served) -> None:
    await served.send("PUT", "s", **TEXT)
    appends = [served.send("POST", "s", b"%d," % number, **TEXT) for number in range(50)]
    closes = [served.send("POST", "s", Stream_Closed="true") for _ in range(3)]
    answers = await asyncio.gather(*appends[:25], *closes, *appends[25:])
    taken = sum(status == 204 for status, headers, _ in answers if "Stream-Closed" not in headers)
    content = (await served.content("s")).decode().split(",")[:-1]
    assert len(content) == taken
    for status, headers, _ in answers:
        assert status == 204 or (status, headers["Stream-Closed"]) == (409, "true")


async def test_a_deleted_stream_and_its_successor(served: Served) -> None:
    await served.send("PUT", "s", b"old", **TEXT)
    tag = (await served.send("GET", "s"))[1]["ETag"]
    assert await served.status("DELETE", "s") == 204
    assert await served.status("GET", "s") == 404
    assert await served.status("POST", "s", b"x", **TEXT) == 404
    assert await served.status("DELETE", "s") == 404
    assert await served.status("PUT", "s", b"new", **TEXT) == 201
    status, _, body = await served.send("GET", "s", If_None_Match=tag)
    assert (status, body) == (200, b"new")


async def test_creating_and_deleting_at_once(served: Served) -> None:
    """Whatever comes first, no request fails for another reason than the protocol knows."""
    for round_ in range(10):
        answers = await asyncio.gather(
            *(served.status("PUT", "s", b"x", **TEXT) for _ in range(3)),
            served.status("PUT", "f", Stream_Forked_From="/v1/stream/s"),
            served.status("DELETE", "s"),
            served.status("POST", "s", b"y", **TEXT),
            served.status("GET", "f"),
            served.status("DELETE", "f"),
        )
        assert set(answers) <= {200, 201, 204, 404, 409, 410, 503}, (round_, answers)
        await served.send("DELETE", "f")
        await served.send("DELETE", "s")
        assert await served.store.logs() == [], round_


async def test_forks_of_each_other_do_not_wait_for_each_other(served: Served) -> None:
    async with asyncio.timeout(60):
        answers = await asyncio.gather(
            served.status("PUT", "a", Stream_Forked_From="/v1/stream/b"),
            served.status("PUT", "b", Stream_Forked_From="/v1/stream/a"),
            served.status("PUT", "c", Stream_Forked_From="/v1/stream/c"),
        )
    assert answers == [404, 404, 404]


# -- crashes ---------------------------------------------------------------------------------


async def test_a_creation_that_was_interrupted_is_begun_again(tmp_path: Path) -> None:
    async with WalStore.open(tmp_path) as store:
        await store.wal("s")  # it died here
        await store.wal("f")
    async with serving(tmp_path) as served:
        assert await served.status("PUT", "s", b"a", **JSON) == 400  # no JSON
        assert await served.status("PUT", "s", b"a", **TEXT) == 201
        assert await served.content("s") == b"a"
        # Of a fork only the note at its source is there.
        source = await served.store.wal("s")
        fork = await served.store.wal("f")
        async with source.transaction(update={"http.fork.f": fork.log_id}):
            pass
        assert await served.status("DELETE", "s") == 204
        assert await served.status("GET", "s") == 404  # nothing keeps it


async def test_a_source_whose_last_fork_went_before_a_crash_goes_at_the_start(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served:
        await served.send("PUT", "s", b"a", **TEXT)
        await served.send("PUT", "f", Stream_Forked_From="/v1/stream/s")
        assert await served.status("DELETE", "s") == 204
        assert await served.status("GET", "f") == 200
    async with WalStore.open(tmp_path) as store:
        await store.delete("f")  # and it died before it looked at the source
    async with WalStore.open(tmp_path) as store:
        await Streams(store.catalog, ManualClock()).load()
        assert await store.logs() == []


async def test_a_fork_whose_source_was_removed_by_another_program_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.send("PUT", "s", b"a", **TEXT)
        await served.send("PUT", "f", b"b", Stream_Forked_From="/v1/stream/s", **TEXT)
        await served.store.delete("s")
        assert await served.status("GET", "f") == 410
        await served.send("PUT", "s", b"another", **TEXT)
        assert await served.status("GET", "f") == 410


async def test_a_full_disk(tmp_path: Path) -> None:
    faulty = FaultyFileSystem()
    async with WalStore.open(tmp_path, fs=faulty) as store:
        streams = Streams(store.catalog, ManualClock())
        stream, _ = await streams.create(
            "s", StreamConfig(content_type="text/plain"), [], is_closed=False
        )
        mark = ProducerMark("p", 0, 0)
        faulty.fail("pwrite", errno.ENOSPC)

        async def send(stream: Stream) -> Any:
            return await stream.append(
                [b"v"], sequence=None, producer=mark, is_last=False, is_empty=False, durability=None
            )

        with pytest.raises(DiskFullError):
            await send(stream)
        faulty.heal()
        stream = await streams.find("s")
        assert (await send(stream)).is_new
        assert not (await send(stream)).is_new
        assert list((await stream.read(1, 100)).values) == [b"v"]


# -- lifetimes -------------------------------------------------------------------------------


async def test_a_stream_lives_while_it_is_used(tmp_path: Path) -> None:
    clock = ManualClock()
    async with WalStore.open(tmp_path) as store:
        streams = Streams(store.catalog, clock)
        await streams.create("s", StreamConfig(ttl_seconds=10), [b"v"], is_closed=False)
        for _ in range(5):
            clock.advance(9)
            await streams.find("s")
        clock.advance(9)
        await streams.find("s", is_use=False)
        clock.advance(1)
        with pytest.raises(RefusedError):
            await streams.find("s")
        assert await store.logs() == []


async def test_streams_that_nobody_asks_for_are_removed(tmp_path: Path) -> None:
    clock = ManualClock()
    at = (datetime.fromtimestamp(clock.now_us() / 1e6, UTC) + timedelta(seconds=30)).isoformat()
    async with WalStore.open(tmp_path) as store:
        streams = Streams(store.catalog, clock)
        await streams.create("idle", StreamConfig(ttl_seconds=10), [], is_closed=False)
        await streams.create("dated", StreamConfig(expires_at=at), [], is_closed=False)
        await streams.create("kept", StreamConfig(), [], is_closed=False)
        clock.advance(11)
        await streams.expire()
        assert await store.logs() == ["dated", "kept"]
    async with WalStore.open(tmp_path) as store:
        streams = Streams(store.catalog, clock)
        await streams.load()
        clock.advance(20)
        await streams.expire()
        assert await store.logs() == ["kept"]


async def test_an_expired_stream_makes_room_for_another(tmp_path: Path) -> None:
    clock = ManualClock()
    async with WalStore.open(tmp_path) as store:
        streams = Streams(store.catalog, clock)
        await streams.create("s", StreamConfig(ttl_seconds=1), [b"old"], is_closed=False)
        clock.advance(2)
        made = await asyncio.gather(
            *(streams.create("s", StreamConfig(), [b"new"], is_closed=False) for _ in range(4)),
            *(streams.find("s") for _ in range(4)),
            return_exceptions=True,
        )
        stream = await streams.find("s")
        assert list((await stream.read(1, 100)).values) == [b"new"]
        assert [one[1] for one in made if isinstance(one, tuple)].count(True) == 1


# -- one log ---------------------------------------------------------------------------------


async def test_a_single_log_is_one_stream(tmp_path: Path) -> None:
    async with (
        Wal.open(tmp_path / "orders") as wal,
        HttpServer.open(wal, "127.0.0.1:0", settings=QUICK) as server,
        _client() as session,
    ):
        url = f"{server.addresses[0]}/v1/stream/"
        async with session.post(
            url + "orders", data=b"a", headers={"Content-Type": "application/octet-stream"}
        ) as answer:
            assert answer.status == 204
        assert wal.tail == 2
        for method, name, status in (
            ("PUT", "orders", 405), ("DELETE", "orders", 405), ("GET", "other", 404), ("GET", "orders", 200),
        ):  # fmt: skip
            async with session.request(method, url + name) as answer:
                assert answer.status == status, (method, name)


def _client() -> Any:
    import aiohttp

    return aiohttp.ClientSession()


async def test_an_append_chooses_its_durability(served: Served) -> None:
    await served.send("PUT", "s", **TEXT)
    for level, status in (("memory", 204), ("disk", 204), ("safe", 400), ("cloud", 400)):
        assert await served.status("POST", "s", b"x", Stream_Durability=level, **TEXT) == status, (
            level
        )


async def test_large_messages_and_long_reads(tmp_path: Path) -> None:
    settings = HttpSettings(read_bytes=1024, body_bytes=100_000)
    async with serving(tmp_path, settings=settings) as served:
        await served.send("PUT", "s", **TEXT)
        parts = [bytes([65 + number]) * 600 for number in range(6)]
        for part in parts:
            await served.send("POST", "s", part, **TEXT)
        whole, query, rounds = b"", "", 0
        while True:
            _, headers, body = await served.send("GET", "s", query=query)
            whole, rounds = whole + body, rounds + 1
            query = f"?offset={headers['Stream-Next-Offset']}"
            if "Stream-Up-To-Date" in headers:
                break
        assert (whole, rounds) == (b"".join(parts), 3)
        assert await served.status("POST", "s", b"x" * 100_001, **TEXT) == 413
        assert await served.status("POST", "s", b"x" * 99_999, **TEXT) in {204, 413}
