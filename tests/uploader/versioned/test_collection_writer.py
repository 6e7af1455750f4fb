"""Appending to a shard: what became of a batch, whatever the store says of its put."""

from __future__ import annotations

import asyncio
import math

import pyarrow as pa
import pytest

from tests.uploader.versioned.collections import HOUR, SCHEMA, Site, content, rows
from uploader import Collection
from uploader.stores.port import PreconditionFailedError
from uploader.testing import FaultyStore
from uploader.testing.faults import (
    SAYS,
    Says,
    call,
    fail,
    hang,
    happen_then_fail,
    outlive_caller,
    report,
    timeout,
)
from uploader.versioned import batch_file, head
from walstore.errors import (
    CollectionNotFoundError,
    IndefiniteError,
    InvalidSettingsError,
    OutcomeUnknownError,
    StorageUnavailableError,
    UpperMismatchError,
)

A, B = rows((1, "a")), rows((1, "b"))


async def now(collection: Collection) -> list[tuple[object, ...]]:
    """Return the content."""
    async with await collection.reader() as reader:
        return content(await reader.snapshot())


async def test_a_batch_is_one_put():
    site = Site()
    program = site.program()
    async with program.opened() as collection:
        writer = collection.writer()
        await writer.append(A, lower=0, upper=3)
        before = program.store.requests
        await writer.append(B, lower=3, upper=7)
        assert program.store.requests - before == 1
        assert await now(collection) == [(1, "a", 1), (1, "b", 1)]
        assert await writer.upper() == 7


async def test_of_two_programs_one_wins_and_the_other_learns_where_the_shard_ends():
    site = Site()
    async with site.program().opened() as one, site.program().opened() as other:
        ours, theirs = one.writer(), other.writer()
        assert await ours.upper() == await theirs.upper() == 0
        results = await asyncio.gather(
            ours.append(A, lower=0, upper=5),
            theirs.append(B, lower=0, upper=9),
            return_exceptions=True,
        )
        (error,) = [result for result in results if result is not None]
        assert isinstance(error, UpperMismatchError)
        assert (error.expected, error.outcome) == (0, "not_written")
        assert error.actual == await ours.upper() in {5, 9}
        assert len(await now(one)) == 1


async def test_the_same_batch_again_succeeds_without_effect():
    site = Site()
    async with site.program().opened() as one, site.program().opened() as other:
        await one.writer().append(A, lower=0, upper=5)
        await one.writer().append(B, lower=5, upper=6)
        await other.writer().append(A, lower=0, upper=5)
        with pytest.raises(UpperMismatchError):
            await other.writer().append(B, lower=0, upper=5)
        with pytest.raises(UpperMismatchError):
            await other.writer().append(A, lower=0, upper=4)
        assert await now(one) == [(1, "a", 1), (1, "b", 1)]


@pytest.mark.parametrize("happens", [True, False])
@pytest.mark.parametrize("says", SAYS)
async def test_whatever_the_store_says_of_a_put_it_is_told_right(says: Says, happens: bool):
    if (says, happens) in {("ok", False), ("409", True)}:
        pytest.skip("no protocol survives a store that lies")
    site = Site()
    program = site.program()
    async with program.opened() as collection:
        writer = collection.writer()
        await writer.append(A, lower=0, upper=1)
        program.store.on("put_if_absent", report(says, happens=happens), times=2)
        outcome = None
        try:
            await writer.append(B, lower=1, upper=2)
        except (OutcomeUnknownError, StorageUnavailableError, PreconditionFailedError) as error:
            outcome = error.outcome
        if outcome == "not_written":
            assert (await now(collection)) == [(1, "a", 1)]
        if outcome is not None:
            await writer.append(B, lower=1, upper=2)
        assert await now(collection) == [(1, "a", 1), (1, "b", 1)]


async def test_a_put_that_arrives_after_its_key_was_collected_is_not_believed():
    """The key is free again: a put-if-absent succeeds, and the batch would be lost. Trap T1."""
    site = Site()
    slow = site.program()
    async with (
        slow.opened() as late,
        site.program().opened() as other,
        site.program().controller() as keeper,
    ):
        writer = late.writer()
        assert await writer.upper() == 0
        release = asyncio.Event()
        slow.store.on("put_if_absent", hang(release), key_prefix="pending/")
        appending = asyncio.create_task(writer.append(B, lower=0, upper=5))
        await asyncio.sleep(0)
        await other.writer().append(A, lower=0, upper=5)
        await keeper.compact()
        site.clock.seconds += 2 * HOUR
        await keeper.compact()
        assert (await keeper.gc()).pending == 1
        assert await site.keys("pending/") == []
        release.set()
        with pytest.raises(UpperMismatchError):
            await appending
        assert await site.keys("pending/") != [], "it arrived, and counts for nothing"
        assert await now(other) == [(1, "a", 1)]
        await other.writer().append(A, lower=5, upper=6)
        assert await now(other) == [(1, "a", 2)]
        site.clock.seconds += 2 * HOUR
        await keeper.gc()
        assert len(await site.keys("pending/")) == 1, "it is removed with the next collection"


async def test_the_same_batch_that_arrives_late_is_known_to_be_merged():
    site = Site()
    program = site.program()
    async with program.opened() as collection, site.program().controller() as keeper:
        writer = collection.writer()
        program.store.on(
            "put_if_absent", happen_then_fail(timeout()), key_prefix="pending/", times=2
        )
        program.store.on("get", report("timeout", happens=False), key_prefix="pending/", times=2)
        with pytest.raises(OutcomeUnknownError):
            await writer.append(A, lower=0, upper=5)
        await keeper.compact()
        site.clock.seconds += 2 * HOUR
        await keeper.gc()
        await writer.append(A, lower=0, upper=5)
        assert await now(collection) == [(1, "a", 1)]


@pytest.mark.slow
async def test_more_merges_than_are_remembered_leave_the_outcome_unknown():
    site = Site()
    program = site.program()
    async with program.opened() as collection, site.program().controller() as keeper:
        writer, slow = collection.writer(), site.program()
        release = asyncio.Event()
        async with slow.opened() as late:
            waiting = late.writer()
            await waiting.upper()
            slow.store.on("put_if_absent", hang(release), key_prefix="pending/")
            appending = asyncio.create_task(waiting.append(A, lower=0, upper=1))
            await asyncio.sleep(0)
            for lower in range(70):
                await writer.append(A, lower=lower, upper=lower + 1)
            await keeper.compact()
            site.clock.seconds += 2 * HOUR
            await keeper.gc()
            release.set()
            with pytest.raises(OutcomeUnknownError, match="no longer known"):
                await appending


async def test_a_cancelled_append_may_arrive_and_is_taken_up_again():
    site = Site()
    program = site.program()
    async with program.opened() as collection:
        writer = collection.writer()
        await writer.append(A, lower=0, upper=1)
        reached = asyncio.Event()
        program.store.on("put_if_absent", outlive_caller(program.store.late, reached))
        appending = asyncio.create_task(writer.append(B, lower=1, upper=2))
        await reached.wait()
        appending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await appending
        await program.store.deliver()
        await writer.append(B, lower=1, upper=2)
        assert await now(collection) == [(1, "a", 1), (1, "b", 1)]


@pytest.mark.parametrize("method", ["append", "publish"])
async def test_a_call_that_was_cancelled_when_it_had_lost_can_be_repeated(method: str):
    """Whichever request it was at, the repeated call learns that another batch came first."""
    for nth in range(1, 20):
        site = Site()
        program = site.program()
        async with program.opened() as collection, site.program().opened() as other:
            writer = collection.writer()
            await writer.append(A, lower=0, upper=1)
            await other.writer().append(B, lower=1, upper=2)
            reached = asyncio.Event()
            program.store.on("any", hang(asyncio.Event(), reached), nth=nth)
            calling = asyncio.create_task(getattr(writer, method)(B, lower=1, upper=3))
            waiting = asyncio.create_task(reached.wait())
            await asyncio.wait([calling, waiting], return_when=asyncio.FIRST_COMPLETED)
            is_over = not reached.is_set()
            for task in (calling, waiting):
                task.cancel()
                await asyncio.wait([task])
            assert is_over or calling.cancelled()
            if is_over:
                assert nth > 2
                assert method == "publish" or isinstance(calling.exception(), UpperMismatchError)
                return
            if method == "append":
                with pytest.raises(UpperMismatchError) as error:
                    await writer.append(B, lower=1, upper=3)
                assert error.value.actual == 2
            else:
                assert await writer.publish(B, lower=1, upper=3) == 3
            assert await now(other) == [(1, "a", 1), (1, "b", 1)]
    pytest.fail("it never ended")


async def test_publishing_leaves_out_what_is_there_and_refuses_what_differs():
    site = Site()
    async with site.program().opened() as one, site.program().opened() as other:
        assert await one.writer("w").publish(A, lower=0, upper=5) == 5
        assert await other.writer("w").publish(A, lower=0, upper=9) == 9
        assert await one.writer("w").publish(A, lower=0, upper=4) == 9
        with pytest.raises(UpperMismatchError) as gap:
            await one.writer("w").publish(A, lower=11, upper=12)
        assert gap.value.actual == 9
        fresh = one.writer("w")
        assert await fresh.upper() == 9
        stale = other.writer("w")
        await stale.upper()
        await fresh.publish(A, lower=9, upper=12)
        with pytest.raises(IndefiniteError):
            await stale.publish(B, lower=9, upper=10)
        assert await now(one) == [(1, "a", 2)]


async def test_what_was_published_before_is_compared_by_a_new_process_too():
    site = Site()
    async with site.program().opened() as one, site.program().opened() as other:
        await one.writer("w").publish(A, lower=0, upper=5)
        for upper in (3, 5, 9):
            with pytest.raises(IndefiniteError):
                await other.writer("w").publish(B, lower=0, upper=upper)
        assert await other.writer("w").publish(A, lower=0, upper=3) == 5


async def test_a_deletion_that_was_interrupted_can_be_finished():
    site = Site()
    program = site.program()
    async with program.opened() as one:
        await one.writer().append(A, lower=0, upper=5)
        with pytest.raises(InvalidSettingsError, match="not deleted"):
            await Collection.finish_deletion("memory://here", **program.options())
        program.store.on("delete", fail(timeout()))
        with pytest.raises(StorageUnavailableError):
            await one.delete()
    assert await Collection.finish_deletion("memory://here", **program.options()) == 1


async def test_a_collection_needs_a_prefix_of_its_own():
    site = Site()
    await site.objects.put_if_absent("manifest/MANIFEST", b"{}")
    with pytest.raises(InvalidSettingsError, match="there is a log"):
        async with site.program().opened():
            pass


async def test_a_second_shard_may_begin_where_the_first_can_be_read():
    site = Site()
    async with site.program().opened() as collection:
        await collection.writer("one").publish(A, lower=0, upper=10)
        with pytest.raises(UpperMismatchError):
            await collection.writer("two").publish(A, lower=11, upper=12)
        assert await collection.writer("two").publish(None, lower=7, upper=20) == 20
        async with await collection.reader() as reader:
            assert await reader.upper() == 20


async def test_a_batch_never_covers_times_before_its_own():
    """Two processes begin one shard at once; the other's batch ends before ours begins."""
    site = Site()
    program = site.program()
    async with program.opened() as one, site.program().opened() as other:
        table = rows((1, "a"), (6, "f"), _t=pa.array([1, 6], pa.uint64()))
        await one.writer("one").publish(table, lower=0, upper=10)

        async def overtake() -> None:
            await other.writer("two").publish(rows((1, "a"), at=1), lower=0, upper=5)

        program.store.on("put_if_absent", call(overtake))
        table = rows((8, "h"), at=12)
        assert await one.writer("two").publish(table, lower=10, upper=20) == 20
        *_, key = await site.keys("pending/two/")
        footer, _ = batch_file.decode((await site.objects.get(key)).data, path=key)
        assert (footer.lower, footer.upper) == (10, 20)
        async with await one.reader() as reader:
            found = content(await reader.snapshot(as_of=19))
            assert found == [(1, "a", 1), (6, "f", 1), (8, "h", 1)]


async def test_an_append_after_the_deletion_fails():
    site = Site()
    async with site.program().opened() as one, site.program().opened() as other:
        known, new = one.writer("known"), one.writer("new")
        await known.append(A, lower=0, upper=5)
        assert await new.upper() == 0
        assert await other.delete() == 1
        for writer, lower in ((known, 5), (new, 0)):
            with pytest.raises(CollectionNotFoundError, match="deleted"):
                await writer.append(A, lower=lower, upper=lower + 1)
        assert await other.delete() == 1, "what the new shard put, and nobody acknowledged"
        assert {key.partition("/")[0] for key in await site.keys()} == {"head", "pending"}


async def test_an_idle_writer_asks_whether_the_collection_is_still_there():
    site = Site()
    async with site.program().opened() as one, site.program().opened() as other:
        async with site.program().controller() as keeper:
            writer = one.writer()
            await writer.append(A, lower=0, upper=5)
            await keeper.compact()
            site.clock.seconds += 2 * HOUR
            await one.status()
            await keeper.gc()
        await other.delete()
        with pytest.raises(CollectionNotFoundError):
            await writer.append(A, lower=5, upper=6)


@pytest.mark.parametrize(("lower", "upper"), [(1, 1), (2, 1), (-1, 1), (0, 1 << 64)])
async def test_bad_intervals(lower: int, upper: int):
    site = Site()
    async with site.program().opened() as collection:
        with pytest.raises(InvalidSettingsError, match="lower < upper"):
            await collection.writer().append(A, lower=lower, upper=upper)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "x" * 65, "ä"])
async def test_bad_names(name: str):
    site = Site()
    async with site.program().opened() as collection:
        with pytest.raises(InvalidSettingsError, match="the name of a writer"):
            collection.writer(name)


async def test_columns_that_another_program_added_are_known_at_the_first_use():
    site = Site()
    async with site.program().opened() as one, site.program().opened() as other:
        await other.evolve(SCHEMA.append(_field()))
        more = rows((1, "a")).append_column(_field(), [["note"]])
        await one.writer().append(more, lower=0, upper=1)
        assert await now(other) == [(1, "a", "note", 1)]


def _field():
    return pa.field("note", pa.string())


async def test_a_shard_may_end_for_ever():
    site = Site()
    async with site.program().opened() as collection:
        writer = collection.writer()
        await writer.append(A, lower=0, upper=(1 << 64) - 1)
        assert await now(collection) == [(1, "a", 1)]
        with pytest.raises(InvalidSettingsError):
            await writer.append(A, lower=(1 << 64) - 1, upper=(1 << 64) - 1)
        async with await collection.reader() as reader:
            steps = [frontier async for _, frontier in reader.listen(after=-1)]
        assert steps == [(1 << 64) - 1]
        assert isinstance(site.program().store, FaultyStore)


@pytest.mark.parametrize("name", ["two", "new"])
async def test_a_batch_that_is_published_while_garbage_is_looked_for_is_not_lost(name: str):
    """It begins where the shard ends, which may be far behind the merged area: where keys are purged."""
    site = Site()
    keeping = site.program()
    async with site.program().opened() as collection, keeping.controller() as keeper:
        await collection.writer("two").append(A, lower=0, upper=50)
        await collection.writer("one").append(A, lower=0, upper=100)
        await keeper.compact()
        site.clock.seconds += 2 * HOUR

        async def publish() -> None:
            async with site.program().opened() as other:
                await other.writer(name).append(B, lower=100, upper=110)

        keeping.store.on("list", call(publish), key_prefix="versions/")
        await keeper.gc()
        assert await now(collection) == [(1, "a", 1), (1, "b", 1)]


@pytest.mark.parametrize("is_seen_first", [False, True])
async def test_a_batch_that_arrives_between_the_last_look_and_the_purge_stops_it(
    is_seen_first: bool,
):
    site = Site()
    keeping = site.program()
    async with site.program().opened() as collection, keeping.controller() as keeper:
        await collection.writer("two").append(A, lower=0, upper=50)
        await collection.writer("one").append(A, lower=0, upper=100)
        await keeper.compact()
        site.clock.seconds += 2 * HOUR

        async def publish() -> None:
            async with site.program().opened() as other:
                if not is_seen_first:
                    await other.writer("two").append(B, lower=100, upper=110)
                    return
                # It dies before it can ask whether the batch counts; a reader sees the batch.
                dying = site.program()
                async with dying.opened() as one:
                    writer = one.writer("two")
                    await writer.upper()
                    dying.store.on("get", fail(timeout()), key_prefix="head", times=9)
                    with pytest.raises(OutcomeUnknownError):
                        await writer.append(B, lower=100, upper=110)
                    assert await now(other) == [(1, "a", 1), (1, "b", 1)]

        keeping.store.on("put_if_match", call(publish), nth=3)
        assert (await keeper.gc()).purged <= 50
        assert await now(collection) == [(1, "a", 1), (1, "b", 1)]
        await collection.writer("two").append(B, lower=100, upper=110)


@pytest.mark.parametrize("idle_seconds", [0.0, 400.0, 700.0])
async def test_a_head_that_cannot_be_read_after_the_put_never_says_that_nothing_was_written(
    idle_seconds: float,
):
    site = Site()
    program = site.program()
    async with program.opened() as collection:
        writer = collection.writer()
        if idle_seconds:
            await writer.append(A, lower=0, upper=1)
            site.clock.seconds += idle_seconds
        lower = await writer.upper() if not idle_seconds else 1
        program.store.on("get", fail(timeout("not_written")), key_prefix="head", times=9)
        outcome = "durable"
        try:
            await writer.append(B, lower=lower, upper=lower + 1)
        except OutcomeUnknownError as error:
            outcome = error.outcome
        assert outcome == ("durable" if idle_seconds == 400.0 else "unknown")
    async with site.program().opened() as other:
        await other.writer().append(B, lower=lower, upper=lower + 1)
        assert (1, "b", 1) in await now(other)


async def test_a_batch_with_nan_is_known_again():
    site = Site()
    options = site.program().options()
    schema = pa.schema([("x", pa.float64())])
    table = pa.table({"x": [math.nan]})
    for _ in range(2):
        async with Collection.open("memory://x", create=True, schema=schema, **options) as one:
            await one.writer().append(table, lower=0, upper=1)
            assert await one.writer().publish(table, lower=0, upper=1) == 1


@pytest.mark.parametrize("junk", [b"", b"no batch at all", b"x" * 5000])
async def test_a_damaged_collection_can_be_deleted(junk: bytes):
    site = Site()
    async with site.program().opened() as collection:
        await collection.writer().append(A, lower=0, upper=5)
        await collection.writer("other").append(A, lower=0, upper=5)
        (key,) = await site.keys("pending/main/")
        await site.objects.delete([key])
        await site.objects.put_if_absent(key, junk)
    async with site.program().opened() as collection:
        assert await collection.delete() == 2
        assert len(await site.keys("pending/")) == 1, "the mark of the other shard"


async def test_a_deleted_collection_with_a_long_version_is_known_to_be_deleted(monkeypatch):
    monkeypatch.setattr(head, "MOST_INLINE_BYTES", 10)
    site = Site()
    program = site.program()
    async with program.opened() as collection, program.controller() as keeper:
        await collection.writer().append(A, lower=0, upper=1)
        await keeper.compact()
        assert b'"version":null' in (await site.objects.get("head")).data
        assert await collection.delete() == 3
    with pytest.raises(CollectionNotFoundError, match="deleted"):
        async with site.program().opened():
            pass
    assert await Collection.finish_deletion("memory://here", **program.options()) == 0


async def test_objects_of_other_programs_neither_go_nor_stop_a_deletion():
    site = Site()
    strange = ["merged/notes.txt", "pending/main/part-0.parquet", "versions/1"]
    async with site.program().opened() as collection:
        await collection.writer().append(A, lower=0, upper=5)
        for key in strange:
            await site.objects.put_if_absent(key, b"not ours")
        assert await collection.delete() == 1
    assert set(strange) < set(await site.keys())


@pytest.mark.slow
async def test_an_append_is_remembered_until_64_others_were_merged_and_an_hour_has_passed():
    site = Site()
    async with site.program().opened() as collection, site.program().controller() as keeper:
        await collection.writer().append(A, lower=0, upper=1)
        for at in range(1, 65):
            await collection.writer().append(B, lower=at, upper=at + 1)
        await keeper.compact()
        async with site.program().opened() as other:
            await other.writer().append(A, lower=0, upper=1)
        site.clock.seconds += 2 * HOUR
        await keeper.gc()
        async with site.program().opened() as other:
            await other.writer().append(B, lower=1, upper=2)
            with pytest.raises(UpperMismatchError) as caught:
                await other.writer().append(A, lower=0, upper=1)
            assert caught.value.actual == 65
        assert await now(collection) == [(1, "a", 1), (1, "b", 64)]
