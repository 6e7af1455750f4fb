"""Groups of stored logs: members that leave or enter at the wrong moment, damaged groups, wrong arguments."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.cases import case
from tests.uploader.cloud_streams import put_log
from tests.uploader.positions.groups.conftest import KEY, opened
from uploader import CloudWriter, CollectorSettings, GarbageCollector
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore
from uploader.testing.faults import happen_then_hang
from walstore.errors import (
    CorruptionError,
    FormatVersionError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    WalClosedError,
    WrongLoopError,
)


async def rewrite(store: FaultyStore, **changes: Any) -> None:
    """Change the fields of the group's object, as another program might."""
    found = await store.get(KEY)
    document = {**json.loads(found.data), **changes}
    await store.put_if_match(KEY, json.dumps(document).encode(), found.etag)


# -- entering and leaving --------------------------------------------------------------------


async def test_a_fetch_whose_swap_is_under_way_takes_nothing_either(store) -> None:
    await put_log(store, 1, lambda _: None, records=1)
    release, reached = asyncio.Event(), asyncio.Event()
    async with opened(store) as log:
        member = log.group("g")
        await member.__aenter__()
        inner: Any = log._store
        inner.on("put_if_match", happen_then_hang(release, reached), key_prefix=KEY)
        waiting = asyncio.ensure_future(member.fetch())
        await reached.wait()
        leaving = asyncio.ensure_future(member.__aexit__(None, None, None))
        await asyncio.sleep(0)
        release.set()
        await leaving
        with pytest.raises(WalClosedError, match="left"):
            await waiting
        async with log.group("g") as other:
            (job,) = await other.fetch()
            assert job.deliveries == 1  # nobody learned of the other delivery


@pytest.mark.parametrize("key", [KEY, "cursor/"])
@pytest.mark.parametrize("is_own", [True, False])
async def test_a_group_that_is_deleted_while_it_is_made_leaves_nothing(
    store, key: str, is_own: bool
) -> None:
    """At the put of the group, and at that of its cursor: by this program and by another one."""
    await put_log(store, 1, lambda _: None)
    release, reached = asyncio.Event(), asyncio.Event()
    async with opened(store) as log, opened(store) as other:
        inner: Any = log._store
        inner.on("put_if_absent", happen_then_hang(release, reached), key_prefix=key)
        entering = asyncio.ensure_future(log.group("g").__aenter__())
        await reached.wait()
        deleting = asyncio.ensure_future((log if is_own else other).delete_group("g"))
        if not is_own:
            await deleting
        release.set()
        await asyncio.gather(entering, deleting, return_exceptions=True)
        names = [info.name for info in await log.groups()]
        assert len(await log.cursors.list()) == len(names)
        if is_own:
            assert names == []
        await log.delete_group("g")
        assert await log.cursors.list() == []


@pytest.mark.parametrize("key", [KEY, "cursor/"])
async def test_closing_ends_a_member_that_enters(store, key: str) -> None:
    await put_log(store, 1, lambda _: None)
    release, reached = asyncio.Event(), asyncio.Event()
    async with opened(store) as log:
        inner: Any = log._store
        inner.on("put_if_absent", happen_then_hang(release, reached), key_prefix=key)
        entering = asyncio.ensure_future(log.group("g").__aenter__())
        await reached.wait()
        closing = asyncio.ensure_future(log.aclose())
        await asyncio.sleep(0)
        release.set()
        await closing
        with pytest.raises(WalClosedError, match="closed"):
            await entering
    assert not [task for task in asyncio.all_tasks() if "group" in task.get_name()]


async def test_a_log_is_closed_where_it_was_opened(store) -> None:
    await put_log(store, 1, lambda _: None)
    async with opened(store) as log, log.group("g") as group:
        with pytest.raises(WrongLoopError):
            await asyncio.to_thread(asyncio.run, log.aclose())
        assert len(await group.fetch(1)) == 1


async def test_a_fetch_ends_in_time_though_others_always_come_first(store, clock) -> None:
    await put_log(store, 1, lambda _: None)
    async with (
        opened(store, clock=clock) as log,
        opened(store) as other,
        log.group("g") as group,
        other.group("g") as rival,
    ):
        inner: Any = log._store

        async def come_first(request: Any) -> object:
            (job,) = await rival.fetch()
            await job.nak()
            clock.advance(0.1)
            return await request()

        inner.on("put_if_match", come_first, key_prefix=KEY, times=1000)
        before = clock.monotonic()
        assert await group.fetch(1, max_wait_seconds=0.2) == []
        assert clock.monotonic() - before < 1.0


# -- damaged groups --------------------------------------------------------------------------


async def test_a_damaged_group_is_listed_and_can_be_deleted(store) -> None:
    await put_log(store, 1, lambda _: None)
    async with opened(store) as log, log.group("well"), log.group("g"), log.group("g_g"):
        pass
    async with opened(store) as log:
        await store.put_if_match(KEY, b"{", (await store.get(KEY)).etag)
        damaged, other, well = await log.groups()
        assert (damaged.name, damaged.floor) == ("g", None)
        assert isinstance(damaged.problem, CorruptionError)
        assert (other.name, well.name, well.problem) == ("g_g", "well", None)
        with pytest.raises(CorruptionError, match=r"delete_group\(\)"):
            await log.group("g").__aenter__()
        assert await log.delete_group("g")
        assert not await log.delete_group("g")
        assert sorted(one.name.rsplit("_", 1)[0] for one in await log.cursors.list()) == [
            "group_g_g",
            "group_well",
        ]
        async with log.group("g") as again:
            assert len(await again.fetch(2)) == 2


async def test_a_group_of_a_newer_version_stays(store) -> None:
    await put_log(store, 1, lambda _: None)
    async with opened(store) as log:
        async with log.group("g"):
            pass
        await rewrite(store, version=9)
        (info,) = await log.groups()
        assert isinstance(info.problem, FormatVersionError)
        with pytest.raises(FormatVersionError):
            await log.delete_group("g")


async def test_a_group_that_has_seen_more_than_there_is_is_refused(store) -> None:
    await put_log(store, 1, lambda _: None)
    async with opened(store) as log:
        async with log.group("g"):
            pass
        await rewrite(store, position={"offset": 1000})
    async with opened(store) as log:
        with pytest.raises(OffsetNotWrittenError, match=r"delete_group\(\)"):
            await log.group("g").__aenter__()


async def test_jobs_that_were_removed_end_the_group_with_advice(store) -> None:
    await put_log(store, 3, lambda _: None)
    async with opened(store) as log:
        async with log.group("g") as group:
            await group.fetch(5)
        (cursor,) = await log.cursors.list()
        await log.cursors.commit(cursor.name, 25, seen=cursor)
        settings = CollectorSettings(interval_seconds=0.0)
        async with GarbageCollector.open(
            "memory://g", store=FaultyStore(store), settings=settings
        ) as collector:
            await collector.collect()
    async with opened(store) as log, log.group("g") as group:
        with pytest.raises(OffsetTrimmedError, match=r"delete_group\(\)"):
            await group.fetch(5)


# -- arguments -------------------------------------------------------------------------------


async def test_letters_go_to_an_open_log(store) -> None:
    await put_log(store, 1, lambda _: None)
    async with opened(store) as log:
        writer = await CloudWriter.open("memory://letters", store=MemoryStore())
        await writer.aclose()
        for wrong in ("letters", [], log, object(), CloudWriter, CloudWriter.open("memory://x")):
            with case(wrong), pytest.raises(TypeError, match="letters is where"):
                log.group("g", max_deliver=1, letters=wrong)  # type: ignore[arg-type]
        with pytest.raises(WalClosedError, match="letters= is closed"):
            log.group("g", max_deliver=1, letters=writer)
        for wrong in ("", "x" * 100_000, 7):
            with case(wrong), pytest.raises((ValueError, TypeError)):
                log.group("g", stream=wrong)  # type: ignore[arg-type]
