"""Streams of a log that is written straight to the store, while nothing fails; the rest is in scenarios."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cloud import FAST, URL, cloud_log
from uploader import CloudWriter, apply_rebuild, destroy, fork, plan_rebuild, rebuild, restore, seal
from uploader.format import layout, stream_table
from uploader.format.stream_table import closings_in
from uploader.stores.memory import MemoryStore
from uploader.stores.wrapper import StoreWrapper
from uploader.testing import FaultyStore
from uploader.testing.faults import happen_then_fail, timeout
from walstore import (
    LimitExceededError,
    LogNotFoundError,
    LogSealedError,
    StreamClosedError,
    StreamInfo,
    UnsupportedStoreError,
    Wal,
    WalClosedError,
)
from walstore.core.batches import conditions

LAYOUTS = ["swap", "chain"]
OTHER = "memory://other"


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


def writer(store, kind: str | None = None, **options) -> CloudWriter:
    return CloudWriter.open(URL, store=store, retry=FAST, layout=kind, **options)


async def listed(store) -> dict[str, StreamInfo]:
    async with cloud_log(store) as log:
        await log.verify()
        return await log.streams()


async def values(store, stream: str | None = None) -> list[bytes]:
    async with cloud_log(store) as log:
        return [record.value async for record in log.reader(stream=stream)]


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_opened_with_metadata_or_by_its_first_record(store, kind) -> None:
    async with writer(store, kind) as log:
        await log.open_stream("eu", metadata={"region": "eu-west"})
        await log.append(b"1")
        await log.append_many([b"2", b"3"], stream="us")
        expected = {
            "eu": StreamInfo(is_open=True, metadata={"region": "eu-west"}, opened_at=1),
            "us": StreamInfo(is_open=True, metadata={}, opened_at=2),
        }
        assert await log.streams() == expected
    assert await listed(store.inner) == expected
    assert await values(store.inner, "us") == [b"2", b"3"]


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_a_closed_stream_takes_no_more_records_from_anybody(store, kind) -> None:
    """Neither from who closed it, nor from who was open meanwhile, nor from who opens later."""
    async with writer(store, kind) as log, writer(store) as other:
        await log.append(b"1", stream="eu")
        await other.append(b"2", stream="eu")
        await log.close_stream("eu")
        async with writer(store) as late:
            for refusing in (log, other, late):
                for call in (
                    lambda log=refusing: log.append(b"x", stream="eu"),
                    lambda log=refusing: log.append_many([b"x"], stream="eu"),
                    lambda log=refusing: log.append(b"x", stream="eu", expect_offset=3),
                ):
                    with pytest.raises(StreamClosedError, match="'eu' is closed") as caught:
                        await call()
                    assert (caught.value.stream, caught.value.outcome) == ("eu", "not_written")
            assert await other.append(b"3", stream="us") == 3
            assert await late.append(b"4") == 4
    assert await values(store.inner) == [b"1", b"2", b"3", b"4"]
    found = await listed(store.inner)
    assert {name: info.is_open for name, info in found.items()} == {"eu": False, "us": True}


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_it_can_be_opened_again(store, kind) -> None:
    async with writer(store, kind) as log, writer(store) as other:
        await log.append(b"1", stream="eu")
        await log.close_stream("eu")
        await other.open_stream("eu", metadata={"since": "again"})
        assert [await log.append(b"2", stream="eu"), await other.append(b"3", stream="eu")] == [
            2,
            3,
        ]
        assert await log.streams() == {"eu": StreamInfo(True, {"since": "again"}, 1)}
    assert await values(store.inner, "eu") == [b"1", b"2", b"3"]


async def test_closing_twice_is_allowed_and_closing_none_is_not(store) -> None:
    async with writer(store) as log:
        await log.open_stream("eu")
        await log.close_stream("eu")
        await log.close_stream("eu")
        with pytest.raises(StreamClosedError, match="no stream 'us'") as caught:
            await log.close_stream("us")
        assert caught.value.outcome == "not_written"


@pytest.mark.parametrize(
    ("name", "metadata", "error"),
    [
        ("", {}, ValueError),
        (7, {}, TypeError),
        ("x" * 257, {}, ValueError),
        ("\ud800", {}, ValueError),
        ("x", {"a": 1}, TypeError),
        ("x", {"a": "b" * 5000}, ValueError),
    ],
)
async def test_bad_streams(store, name, metadata, error) -> None:
    async with writer(store) as log:
        with pytest.raises(error):
            await log.open_stream(name, metadata=metadata)
        assert await log.streams() == {}


async def test_there_is_a_limit(store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of streams, and of the bytes that all of them take."""
    monkeypatch.setattr(conditions, "MAX_STREAMS", 2)
    async with writer(store) as log:
        told = await asyncio.gather(
            *(log.append(name.encode(), stream=name) for name in "abcd"), return_exceptions=True
        )
        assert [type(item) for item in told] == [int, int, LimitExceededError, LimitExceededError]
        with pytest.raises(LimitExceededError):
            await log.open_stream("e")
        await log.open_stream("a", metadata={"again": "yes"})
        monkeypatch.setattr(stream_table, "MAX_LEDGER_BYTES", 500)
        with pytest.raises(LimitExceededError, match="nothing was written") as caught:
            await log.open_stream("b", metadata={"m": "x" * 500})
        assert caught.value.outcome == "not_written"
        assert await log.append(b"", stream="b") == 3
        assert list(await log.streams()) == ["a", "b"]


async def test_appends_keep_their_order_though_some_open_streams(store) -> None:
    async with writer(store) as log:
        streams = [None, "a", None, "b", "a", None, "c"]
        told = await asyncio.gather(
            *(log.append(b"%d" % at, stream=name) for at, name in enumerate(streams))
        )
        assert told == list(range(1, 8))
        tables = store.count("put_if_match").requests
        assert await log.append(b"7", stream="a") == 8
        assert store.count("put_if_match").requests == tables + 1  # the manifest alone


async def test_a_writer_without_streams_asks_nothing_of_them(store) -> None:
    async with writer(store) as log:
        await log.append(b"1")
    assert not [key for key in await keys(store.inner) if key.startswith("streams/")]


async def keys(store) -> list[str]:
    return [found.key async for found in store.list("")]


async def test_a_closed_writer_opens_and_closes_nothing(store) -> None:
    log = await writer(store)
    await log.append(b"1", stream="eu")
    waiting = [asyncio.ensure_future(log.append(b"x", stream=f"s{at}")) for at in range(3)]
    await log.aclose()
    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(item) for item in told} <= {int, WalClosedError}
    for call in (lambda: log.open_stream("eu"), lambda: log.close_stream("eu"), log.streams):
        with pytest.raises(WalClosedError):
            await call()


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_of_a_log_that_takes_no_more_records(store, kind) -> None:
    """A sealed one: nothing is opened, and closing is done since nobody appends. A destroyed one is gone."""
    async with writer(store, kind) as log:
        await log.append(b"1", stream="eu")
        await seal(URL, store=store)
        with pytest.raises(LogSealedError):
            await log.open_stream("us")
        await log.close_stream("eu")
        assert not (await listed(store.inner))["eu"].is_open
        await destroy(URL, store=store)
        with pytest.raises((LogNotFoundError, LogSealedError)):
            await log.open_stream("us")
    assert not [key for key in await keys(store.inner) if key.startswith("streams/")]


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_a_fork_keeps_them(store, kind) -> None:
    """As they are, but for those that were opened later. Each goes its own way from then on."""
    async with writer(store, kind) as log:
        await log.open_stream("eu", metadata={"a": "b"})
        await log.append(b"1", stream="us")
        await log.append(b"2", stream="eu")
        await log.close_stream("eu")
        await log.append(b"3", stream="asia")
        before = await log.streams()
        target = MemoryStore()
        await fork(URL, OTHER, stop=2, source_store=store, target_store=target)
        whole = MemoryStore()
        await fork(URL, OTHER, source_store=store, target_store=whole)
        await log.open_stream("eu")
    assert await listed(whole) == before
    assert list(await listed(target)) == ["eu", "us"]
    async with writer(whole) as forked:
        with pytest.raises(StreamClosedError):
            await forked.append(b"x", stream="eu")
        await forked.open_stream("eu")
        assert await forked.append(b"4", stream="eu") == 4
        await forked.close_stream("asia")
    assert (await listed(store.inner))["asia"].is_open
    found = await listed(whole)
    assert {name: info.is_open for name, info in found.items()} == {
        "eu": True,
        "us": True,
        "asia": False,
    }


@pytest.mark.parametrize("has_records", [True, False])
async def test_a_restored_log_keeps_them(store, tmp_path: Path, *, has_records: bool) -> None:
    async with writer(store) as log:
        await log.open_stream("eu", metadata={"a": "b"})
        await log.open_stream("us")
        if has_records:
            await log.append_many([b"1", b"2"], stream="us")
            await log.append(b"3", stream="asia")
        await log.close_stream("eu")
        before = await log.streams()
    made = await restore(URL, tmp_path / "log", store=store)
    assert made.streams == len(before)
    for _ in range(2):
        async with Wal.open(tmp_path / "log") as wal:
            assert wal.streams() == before
            with pytest.raises(StreamClosedError):
                await wal.append(b"x", stream="eu")
            await wal.append(b"x", stream="us")


@pytest.mark.slow
async def test_of_a_log_without_a_table(store, tmp_path: Path) -> None:
    """What a local log ships, or an earlier version wrote: the fragments tell."""
    async with writer(store) as log:
        await log.append(b"1")
        await log.append(b"2", stream="old")
        await log.append_many([b"x"], stream="older")
        for number in range(40):  # too many for the footer to list
            await log.append(b"x", stream=f"s{number:02}")
        await log.flush()
    old = await copy_without_table(store.inner)
    names = {"old", "older", *(f"s{number:02}" for number in range(40))}
    found = await listed(old)
    assert set(found) == names
    assert found["old"] == StreamInfo(is_open=True, metadata={}, opened_at=2)
    async with writer(old) as log:
        await log.append(b"3", stream="new")
        await log.append(b"4", stream="old")
        await log.close_stream("old")
    found = await listed(old)
    assert set(found) == {*names, "new"}
    assert [name for name, info in found.items() if not info.is_open] == ["old"]
    assert found["old"].opened_at <= 2


async def copy_without_table(store: MemoryStore) -> MemoryStore:
    twin = MemoryStore()
    for key in await keys(store):
        if key != layout.STREAMS:
            await twin.put_if_absent(key, (await store.get(key)).data)
    return twin


class Unconditional(StoreWrapper):
    """A store whose swaps take place whatever lies there."""

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        found = await self.inner.head(key)
        return await self.inner.put_if_match(key, data, found.etag if found else etag)


async def test_in_a_store_without_swaps() -> None:
    """Which a chain can do without: appends to streams work as before, and nothing else does."""
    store = Unconditional(MemoryStore())
    async with writer(store, "chain") as log:
        told = await asyncio.gather(*(log.append(b"%d" % at, stream="eu") for at in range(3)))
        assert told == [1, 2, 3]
        assert await log.append(b"3", stream="us") == 4
        for call in (lambda: log.open_stream("eu"), lambda: log.close_stream("eu")):
            with pytest.raises((UnsupportedStoreError, StreamClosedError)):
                await call()
        assert await log.streams() == {}
    assert list(await listed(store)) == ["eu", "us"]  # the fragments tell
    assert await values(store, "eu") == [b"0", b"1", b"2"]


async def test_a_lost_answer_changes_nothing(store) -> None:
    async with writer(store) as log:
        for kind in ("put_if_absent", "put_if_match"):
            store.on(kind, happen_then_fail(timeout()), key_prefix="streams/")
        await log.open_stream("eu", metadata={"a": "b"})
        await log.append(b"1", stream="us")
        for prefix in ("streams/", "manifest/"):
            store.on("put_if_match", happen_then_fail(timeout()), key_prefix=prefix)
        await log.close_stream("eu")
        store.on("get", happen_then_fail(timeout()), key_prefix="streams/", times=3)
        assert {name: info.is_open for name, info in (await log.streams()).items()} == {
            "eu": False,
            "us": True,
        }
    assert closings_in((await manifest(store.inner)).writer) == 1


async def manifest(store):
    async with cloud_log(store) as log:
        return log.manifest


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_closed_streams_stay_closed_in_a_rebuilt_log(store, kind: str) -> None:
    """The manifest that knew of the closings is lost; the table and the fragments are left."""
    async with writer(store, kind) as log:
        for name in "ab":
            await log.open_stream(name)
            await log.append(b"1", stream=name)
        await log.close_stream("a")
    await store.inner.delete([one.key async for one in store.inner.list("manifest/")])
    if kind == "swap":
        await apply_rebuild(await plan_rebuild(URL, store=store), store=store)
    else:
        await rebuild(store, "walstore rebuild", write=True)
    assert {name: one.is_open for name, one in (await listed(store)).items()} == {
        "a": False,
        "b": True,
    }
    async with writer(store, kind) as log:
        with pytest.raises(StreamClosedError):
            await log.append(b"2", stream="a")
        await log.append(b"2", stream="b")
