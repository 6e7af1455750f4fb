"""The pending area: which batches count, how a reader covers times with them, and who disagrees."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pyarrow as pa
import pytest

from tests.uploader.versioned.collections import HOUR, Site, content, rows
from uploader.stores.retry import RetryPolicy
from uploader.testing.faults import Fault, Request, call
from uploader.versioned.batch_file import BatchFooter
from uploader.versioned.collection_head import CollectionHead
from uploader.versioned.names import pending_key
from uploader.versioned.pending import PendingArea, cover, disagreement
from uploader.versioned.pending_batch import PendingBatch
from uploader.versioned.pending_files import PLUG
from walstore.core.runtime.threads import Worker
from walstore.errors import (
    CorruptionError,
    IndefiniteError,
    UpperMismatchError,
)


def batch(writer: str, lower: int, upper: int, digest: int = 0) -> PendingBatch:
    footer = BatchFooter(
        collection="c",
        writer=writer,
        lower=lower,
        upper=upper,
        since=0,
        rows=1,
        digest=digest,
        schema_id=0,
    )
    return PendingBatch(writer=writer, position=lower, footer=footer, size_bytes=9)


def spans(batches: list[PendingBatch], start: int, **options: object) -> list[tuple[str, int, int]]:
    return [
        (part.batch.writer, part.start, part.limit) for part in cover(batches, start, **options)
    ]  # type: ignore[arg-type]


def test_a_chain_is_followed_to_its_end() -> None:
    chain = [batch("w", 0, 5), batch("w", 5, 9), batch("w", 10, 12)]
    assert spans(chain, 0) == [("w", 0, 5), ("w", 5, 9)]
    assert spans(chain, 3) == [("w", 3, 5), ("w", 5, 9)]
    assert spans(chain, 9) == []
    assert spans(chain, 0, limit=7) == [("w", 0, 5), ("w", 5, 7)]


def test_a_reader_stays_in_its_shard_and_changes_it_when_that_ends() -> None:
    both = [batch("a", 0, 5), batch("a", 5, 9), batch("b", 0, 7), batch("b", 7, 20)]
    assert spans(both, 0) == [("b", 0, 7), ("b", 7, 20)]
    assert spans(both, 0, prefer="a") == [("a", 0, 5), ("a", 5, 9), ("b", 9, 20)]
    assert spans(both, 6, prefer="a") == [("a", 6, 9), ("b", 9, 20)]


def test_shards_are_compared_where_both_have_a_frontier() -> None:
    one = [batch("a", 0, 5, 1), batch("a", 5, 9, 2)]
    assert disagreement([*one, batch("b", 0, 9, 3)]) is None
    assert disagreement([*one, batch("b", 0, 8, 7)]) is None, "no frontier in common but the first"
    found = disagreement([*one, batch("b", 0, 9, 4)])
    assert found is not None
    assert [item.upper for item in found] == [9, 9]
    assert disagreement([*one, batch("b", 5, 9, 1)]) is not None
    assert disagreement([batch("a", 0, 5, 1), batch("a", 7, 9, 2), batch("b", 0, 9, 0)]) is None, (
        "a gap"
    )


async def area(site: Site) -> tuple[PendingArea, CollectionHead]:
    retry = RetryPolicy(clock=site.clock)
    head = CollectionHead(site.objects, retry=retry, clock=site.clock)
    await head.load()
    return PendingArea(site.objects, head=head, worker=Worker("t", threads=1)), head


async def test_what_does_not_belong_there_is_left_out_or_refused() -> None:
    site = Site()
    async with site.program().opened() as collection:
        await collection.writer().append(rows((1, "a")), lower=0, upper=5)
        pending, head = await area(site)
        for key in ("pending/x", "pending/main/5.parquet", "pending/a b/0000000000000000.parquet"):
            await site.objects.put_if_absent(key, b"what")
        assert [one.upper for one in await pending.survey(head.seen.head)] == [5]
        data = (await site.objects.get(f"pending/main/{0:016x}.parquet")).data
        await site.objects.put_if_absent(f"pending/other/{3:016x}.parquet", data)
        with pytest.raises(CorruptionError, match="pending/other"):
            await pending.survey(head.seen.head)
        await site.objects.delete([f"pending/other/{3:016x}.parquet"])
        await site.objects.put_if_absent(f"pending/main/{5:016x}.parquet", PLUG)
        assert [one.upper for one in await pending.survey(head.seen.head)] == [5]


async def test_a_batch_below_the_purged_time_counts_for_nothing() -> None:
    site = Site()
    async with site.program().opened() as collection:
        await collection.writer().append(rows((1, "a")), lower=0, upper=5)
        await collection.writer().append(rows((1, "a")), lower=5, upper=9)
        pending, head = await area(site)
        seen = dataclasses.replace(head.seen.head, purged=5)
        assert [one.lower for one in await pending.survey(seen)] == [5]


async def test_only_what_is_not_merged_is_read():
    site = Site()
    async with site.program().opened() as collection, site.program().controller() as keeper:
        for lower in range(5):
            await collection.writer().append(rows((1, "a")), lower=lower, upper=lower + 1)
        await keeper.compact()
        key = f"pending/main/{2:016x}.parquet"
        await site.objects.delete([key])
        await site.objects.put_if_absent(key, b"damaged")
        program = site.program()
        async with program.opened() as fresh:
            before = program.store.requests
            assert (await fresh.status()).pending_batches == 0
            assert program.store.requests - before == 3, "head, listing, and the last footer"


async def test_a_shard_that_fell_behind_continues_its_chain():
    site = Site()
    async with site.program().opened() as collection, site.program().controller() as keeper:
        slow, fast = collection.writer("slow"), collection.writer("fast")
        await slow.publish(rows((1, "a"), at=1), lower=0, upper=5)
        await fast.publish(rows((1, "a"), at=1), lower=0, upper=20)
        await keeper.compact()
        again = collection.writer("slow")
        assert await again.publish(rows((2, "b"), at=22), lower=5, upper=30) == 30
        places = [pending_key("slow", position) for position in (0, 5)]
        assert await site.keys("pending/slow") == places
        async with await collection.reader() as reader:
            assert (await reader.snapshot(as_of=29)).num_rows == 2
        assert (await keeper.compact()).upper == 30
        await site.clock.advance(7200)
        await keeper.compact()
        assert (await keeper.gc()).pending == 3
        assert await again.publish(None, lower=30, upper=31) == 31
        assert await slow.publish(None, lower=30, upper=32) == 32


async def fallen_behind(site: Site) -> None:
    """Publish to two shards of which one ends before the merged area, and let an hour pass."""
    async with site.program().opened() as collection, site.program().controller() as keeper:
        await collection.writer("slow").publish(rows((1, "a"), at=1), lower=0, upper=5)
        table = rows((1, "a"), at=1, _d=[1])
        await collection.writer("fast").publish(
            pa.concat_tables([table, rows((7, "late"), at=7, _d=[1])]), lower=0, upper=20
        )
        await keeper.compact()
    await site.clock.advance(7200)


@pytest.mark.parametrize("lower", [5, 10, 20])
async def test_a_collector_that_looked_before_takes_nothing_of_a_shard_that_catches_up(lower: int):
    """It has listed the pending area; the shard goes on from behind the merged area; then it removes."""
    site = Site()
    await fallen_behind(site)
    program = site.program()
    async with site.program().opened() as collection, program.controller() as keeper:

        async def catch_up() -> None:
            table = rows((2, "b"), at=22)
            assert await collection.writer("slow").publish(table, lower=lower, upper=30) == 30

        program.store.on("list", call(catch_up), key_prefix="merged/")
        assert (await keeper.gc()).purged <= 5
        async with await collection.reader() as reader:
            assert content(await reader.snapshot(as_of=29)) == [
                (1, "a", 1), (2, "b", 1), (7, "late", 1),
            ]  # fmt: skip


async def test_a_listener_goes_through_the_merged_area_where_its_shard_fell_behind():
    site = Site()
    async with (
        site.program().opened() as collection,
        await collection.reader() as reader,
        contextlib.aclosing(reader.listen(after=-1)) as steps,
    ):
        await collection.writer("slow").publish(rows((1, "a"), at=1), lower=0, upper=5)
        assert (await anext(steps))[1] == 5
        async with site.program().opened() as other, site.program().controller() as keeper:
            table = rows((1, "a"), (7, "late"), _t=pa.array([1, 7], pa.uint64()))
            await other.writer("fast").publish(table, lower=0, upper=20)
            await keeper.compact()
            await other.writer("slow").publish(rows((2, "b"), at=22), lower=20, upper=30)
        seen = []
        while not seen or seen[-1] != 30:
            table, frontier = await anext(steps)
            seen += [*table["k"].to_pylist(), frontier]
        assert seen == [7, 20, 2, 30]


async def test_two_processes_of_a_shard_that_fell_behind_join_it_once():
    site = Site()
    await fallen_behind(site)
    async with site.program().opened() as one, site.program().opened() as other:
        ours, theirs = one.writer("slow"), other.writer("slow")
        assert await ours.upper() == await theirs.upper() == 20
        await ours.append(rows((2, "b"), at=22), lower=20, upper=30)
        with pytest.raises(UpperMismatchError) as error:
            await theirs.append(rows((2, "c"), at=22), lower=20, upper=30)
        assert error.value.actual == 30
        await theirs.append(rows((2, "b"), at=22), lower=20, upper=30)
        with pytest.raises(UpperMismatchError):
            await theirs.append(rows((2, "b"), at=5), lower=5, upper=7)
        with pytest.raises(IndefiniteError):
            await theirs.publish(rows((2, "c"), at=22), lower=5, upper=40)


async def test_footers_are_read_once() -> None:
    site = Site()
    program = site.program()
    async with program.opened() as collection:
        for lower in range(5):
            await collection.writer().append(rows((1, "a")), lower=lower, upper=lower + 1)
        await collection.status()
        before = program.store.requests
        await collection.status()
        assert program.store.requests - before == 2, "the head and the listing"


def test_thousands_of_batches_are_covered_in_one_walk() -> None:
    """It runs on the event loop, so its time may not grow with the square of their number."""
    asked = 0

    class Counted(PendingBatch):
        @property
        def upper(self) -> int:
            nonlocal asked
            asked += 1
            return super().upper

    batches = [
        Counted(writer="w", position=at, footer=batch("w", at, at + 1).footer, size_bytes=9)
        for at in range(2000)
    ]
    assert len(cover(batches, 0)) == 2000
    assert asked < 10 * 2000


@pytest.mark.parametrize("method", ["publish", "append"])
async def test_of_two_that_catch_up_the_one_that_was_first_counts(method: str):
    """The other process has seen a later end of the merged area."""
    site = Site()
    await fallen_behind(site)
    program = site.program()
    async with program.opened() as one, site.program().opened() as other:
        ours = one.writer("slow")
        assert await ours.upper() == 20

        async def overtake() -> None:
            await other.writer("fast").publish(rows((2, "b"), at=22), lower=20, upper=30)
            async with site.program().controller() as keeper:
                await keeper.compact()
            await other.writer("slow").publish(rows((3, "c"), at=33), lower=30, upper=34)

        program.store.on("put_if_absent", call(overtake))
        table = rows((2, "b"), (3, "c"), _t=pa.array([22, 33], pa.uint64()))
        if method == "publish":
            assert await ours.publish(table, lower=20, upper=40) == 40
        else:
            with pytest.raises(UpperMismatchError) as error:
                await ours.append(table, lower=20, upper=40)
            assert error.value.actual == 34
        async with await one.reader() as reader:
            found = content(await reader.snapshot())
            assert found == [(1, "a", 1), (2, "b", 1), (3, "c", 1), (7, "late", 1)]


async def test_a_batch_that_is_missing_in_the_middle_is_damage_and_not_waited_for():
    site = Site()
    async with site.program().opened() as collection:
        writer = collection.writer()
        for at in range(4):
            await writer.append(rows((at, "a")), lower=at, upper=at + 1)
        await site.objects.delete([pending_key("main", 1)])
        async with await collection.reader() as reader:
            with pytest.raises(CorruptionError, match="missing") as caught:
                await reader.snapshot(as_of=3)
        assert caught.value.path == pending_key("main", 1)
        async with site.program().controller() as keeper:
            with pytest.raises(CorruptionError, match="missing"):
                await keeper.compact()


async def test_batches_that_arrive_or_go_while_the_store_lists_are_no_damage():
    site = Site()
    program = site.program()
    async with program.opened() as collection, site.program().controller() as keeper:
        writer = collection.writer()
        for at in range(3):
            await writer.append(rows((at, "a")), lower=at, upper=at + 1)
        async with await collection.reader() as reader:
            # A page of the listing is from before the second batch was put, the next from after the third.
            program.store.on("list", without(pending_key("main", 1)), key_prefix="pending/")
            with contextlib.suppress(TimeoutError):
                await reader.snapshot(as_of=2, max_wait_seconds=0.0)
            assert len(content(await reader.snapshot(as_of=2))) == 3
            # One is from before a collection of garbage, the next from after it.
            await keeper.compact()
            await reader.upper()
            await site.clock.advance(2 * HOUR)
            await collection.writer().append(rows((3, "a")), lower=3, upper=9)

            async def purge() -> None:
                await keeper.compact()
                assert (await keeper.gc()).pending == 3

            program.store.on("list", call(purge), key_prefix="pending/")
            assert len(content(await reader.snapshot(as_of=5))) == 4


def without(key: str) -> Fault:
    """A listing that misses an object."""

    async def fault(request: Request[Any]) -> object:
        return [listed for listed in await request() if listed.key != key]

    return fault
