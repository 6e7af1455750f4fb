"""Reading: times, holds, leases, and what happens while a controller works."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random

import pyarrow as pa
import pytest

from tests.uploader.versioned.collections import HOUR, SCHEMA, Site, content, rows
from uploader.stores.port import PreconditionFailedError
from uploader.testing.faults import Request, Says, call, fail, report, timeout
from uploader.versioned import batch_file, updates
from uploader.versioned.batch_file import TAIL_BYTES
from uploader.versioned.head import MOST_COMMITS
from walstore.errors import (
    CorruptionError,
    ExpectationError,
    InvalidSettingsError,
    LeaseExpiredError,
    LimitExceededError,
    SinceViolationError,
    StorageUnavailableError,
    WalClosedError,
)

A, B, C = rows((1, "a")), rows((1, "b")), rows((2, "c"))
LONG_TEXT = random.Random(1).randbytes(TAIL_BYTES).hex()
LONG = rows((1, LONG_TEXT))
"""A batch that is longer than what is read for its footer."""


async def test_the_content_as_of_each_time_is_the_same_before_and_after_compaction():
    site = Site("upsert")
    async with site.program().opened() as collection, site.program().controller() as keeper:
        writer = collection.writer()
        for lower, table in enumerate((A, C, B, rows((1, "b"), _deleted=[True]), A)):
            await writer.append(table, lower=10 * lower, upper=10 * lower + 10)
        expected = [
            [(1, "a")],
            [(1, "a"), (2, "c")],
            [(1, "b"), (2, "c")],
            [(2, "c")],
            [(1, "a"), (2, "c")],
        ]
        async with await collection.reader() as reader:
            for _ in range(2):
                for number, wanted in enumerate(expected):
                    for as_of in (10 * number, 10 * number + 9):
                        assert content(await reader.snapshot(as_of=as_of)) == wanted
                await keeper.compact(full=True)


async def test_a_reader_registers_although_others_changed_the_head_very_often():
    """The handle begins with a head that is not old, and more changes came than a head remembers."""
    site = Site()
    async with site.program().opened() as collection, site.program().opened() as other:
        await (await collection.reader()).aclose()
        for _ in range(MOST_COMMITS // 2 + 1):  # each registers, and leaves
            await (await other.reader()).aclose()
        await (await collection.reader()).aclose()


async def test_a_snapshot_waits_for_its_time():
    site = Site()
    async with site.program().opened() as collection, await collection.reader() as reader:
        waiting = asyncio.create_task(reader.snapshot(as_of=15))
        await collection.writer().append(A, lower=0, upper=10)
        await asyncio.sleep(0)
        assert not waiting.done()
        await collection.writer().append(A, lower=10, upper=16)
        assert content(await waiting) == [(1, "a", 2)]


async def test_a_snapshot_waits_no_longer_than_it_may():
    site = Site()
    async with site.program().opened() as collection, await collection.reader() as reader:
        with pytest.raises(TimeoutError):
            await reader.snapshot(as_of=5, max_wait_seconds=0.01)


async def test_a_new_collection_is_empty():
    site = Site()
    async with site.program().opened() as collection, await collection.reader() as reader:
        assert content(await reader.snapshot()) == []
        assert await reader.upper() == 0


async def test_no_reader_can_go_back_behind_since():
    site = Site()
    async with site.program().opened() as collection, await collection.reader("r") as reader:
        await collection.writer().append(A, lower=0, upper=20)
        await reader.downgrade_since(10)
        with pytest.raises(SinceViolationError) as error:
            await reader.snapshot(as_of=9)
        assert (error.value.as_of, error.value.since) == (9, 10)
        await reader.downgrade_since(5)
        assert reader.frontier == 10
        with pytest.raises(SinceViolationError):
            await collection.reader("new", since=9)
        async with await collection.reader("new") as other:
            assert other.frontier == 10
        with pytest.raises(SinceViolationError):
            await anext(reader.listen(after=8))


async def test_listening_yields_each_update_once_whatever_is_compacted_meanwhile():
    site = Site()
    async with site.program().opened() as collection, site.program().controller() as keeper:
        writer = collection.writer()
        for lower in range(6):
            await writer.append(rows((lower, "a")), lower=lower, upper=lower + 1)
        seen = []
        async with await collection.reader(lease_seconds=900) as reader:
            async with contextlib.aclosing(reader.listen(after=0)) as steps:
                async for table, frontier in steps:
                    seen += [(row["k"], row["_t"], row["_d"]) for row in table.to_pylist()]
                    await keeper.compact(full=True)
                    await site.clock.advance(300)
                    if frontier == 6:
                        break
            assert seen == [(key, key, 1) for key in range(1, 6)]
            assert reader.frontier >= 3, "it has given up what it has seen"


async def test_subscribing_begins_with_the_content():
    site = Site("upsert")
    async with site.program().opened() as collection, await collection.reader() as reader:
        await collection.writer().append(A, lower=0, upper=10)
        await collection.writer().append(B, lower=10, upper=20)
        async with contextlib.aclosing(reader.subscribe(as_of=5)) as steps:
            first, frontier = await anext(steps)
            assert (first.to_pylist(), frontier) == (
                [{"k": 1, "v": "a", "_t": 5, "_deleted": False}],
                6,
            )
            second, frontier = await anext(steps)
            assert second.to_pylist() == []
            assert frontier == 10
            third, frontier = await anext(steps)
            assert (third.to_pylist()[0]["v"], frontier) == ("b", 20)


async def test_a_listener_follows_the_chain_with_one_request_a_batch():
    site = Site()
    program = site.program()
    async with program.opened() as collection, await collection.reader() as reader:
        writer = collection.writer()
        await writer.append(A, lower=0, upper=1)
        async with contextlib.aclosing(reader.listen(after=-1)) as steps:
            await anext(steps)
            for lower in range(1, 5):
                await writer.append(A, lower=lower, upper=lower + 1)
                before = program.store.requests
                assert (await anext(steps))[1] == lower + 1
                assert program.store.requests - before == 1


async def test_a_listener_changes_the_shard_when_its_own_falls_behind():
    site = Site()
    async with site.program().opened() as collection, await collection.reader() as reader:
        one, two = collection.writer("one"), collection.writer("two")
        await one.publish(A, lower=0, upper=4)
        await two.publish(A, lower=0, upper=3)
        async with contextlib.aclosing(reader.listen(after=-1)) as steps:
            assert (await anext(steps))[1] == 4
            late = rows((7, "late"), at=8)
            await two.publish(late, lower=3, upper=9)
            table, frontier = await anext(steps)
            assert (content(table), frontier) == ([(7, "late", 8, 1)], 9)


async def test_a_listener_misses_nothing_that_was_merged_from_another_shard():
    site = Site()
    async with site.program().opened() as collection, await collection.reader() as reader:
        one, two = collection.writer("one"), collection.writer("two")
        await two.append(A, lower=0, upper=5)
        async with contextlib.aclosing(reader.listen(after=-1)) as steps:
            assert (await anext(steps))[1] == 5
            await one.append(A, lower=0, upper=5)
            await one.append(B, lower=5, upper=10)
            async with site.program().controller() as keeper:
                await keeper.compact()
            # It has the key at which the listener looks, and begins later.
            await collection.writer("two").append(C, lower=10, upper=15)
            seen = [await anext(steps), await anext(steps)]
            assert [(content(table), end) for table, end in seen] == [
                ([(1, "b", 5, 1)], 10),
                ([(2, "c", 10, 1)], 15),
            ]


async def test_a_reader_that_stood_still_for_too_long_is_told():
    site = Site()
    async with site.program().opened() as collection, site.program().controller() as keeper:
        await collection.writer().append(A, lower=0, upper=20)
        reader = await collection.reader("r", lease_seconds=900)
        site.clock.seconds += 1000  # nothing of the program runs
        await keeper.compact()
        for read in (
            reader.upper(),
            reader.snapshot(as_of=5),
            reader.downgrade_since(7),
            reader.clone(),
        ):
            with pytest.raises(LeaseExpiredError) as error:
                await read
            assert error.value.reader == "r"
        await reader.aclose()


@pytest.mark.parametrize("is_clone", [True, False])
async def test_a_registration_whose_answer_came_after_its_lease(is_clone: bool):
    site = Site()
    program = site.program()
    async with program.opened() as collection, site.program().controller() as keeper:
        source = await collection.critical("source")

        async def outlived(request: Request[object]) -> object:
            await request()
            site.clock.seconds += 1000
            await keeper.compact()
            raise timeout()

        program.store.on("put_if_match", outlived)
        with pytest.raises(LeaseExpiredError):
            await (source.clone("r") if is_clone else collection.reader("r"))
        assert (await collection.status()).readers.keys() == {"source"}


async def test_a_lease_is_renewed_as_long_as_the_program_runs():
    site = Site()
    async with site.program().opened() as collection, site.program().controller() as keeper:
        await collection.writer().append(A, lower=0, upper=20)
        async with await collection.reader("r", lease_seconds=900) as reader:
            for _ in range(20):
                await site.clock.advance(226)
                await keeper.compact()
            assert content(await reader.snapshot(as_of=5)) == [(1, "a", 1)]
            assert reader.version == 1


async def test_a_renewal_that_fails_is_repeated(caplog: pytest.LogCaptureFixture):
    site = Site()
    program = site.program()
    async with (
        program.opened() as collection,
        await collection.reader("r", lease_seconds=900) as reader,
    ):
        program.store.on("get", fail(timeout()), key_prefix="head")
        await site.clock.advance(226)
        assert "was not renewed" in caplog.text
        await site.clock.advance(226)
        assert (await collection.status()).readers[
            "r"
        ].expires_us == site.clock.now_us() + 900_000_000
        await reader.upper()


async def test_the_newest_handle_of_a_name_has_it():
    site = Site()
    async with site.program().opened() as one, site.program().opened() as other:
        await one.writer().append(A, lower=0, upper=20)
        old = await one.reader("r")
        await old.downgrade_since(7)
        async with await other.reader("r") as new:
            assert new.frontier == 7
            with pytest.raises(LeaseExpiredError, match="another handle"):
                await old.snapshot()
            await old.aclose()
            assert content(await new.snapshot()) == [(1, "a", 1)]


async def test_a_clone_holds_what_its_source_held():
    site = Site()
    async with site.program().opened() as collection, site.program().controller() as keeper:
        await collection.writer().append(A, lower=0, upper=10)
        await collection.writer().append(A, lower=10, upper=20)
        async with await collection.reader("r") as reader:
            copy = await reader.clone()
            await reader.downgrade_since(15)
            await keeper.compact(full=True)
            assert content(await copy.snapshot(as_of=5)) == [(1, "a", 1)]
            await copy.aclose()
            assert (await collection.status()).since == 15
            with pytest.raises(InvalidSettingsError, match="already"):
                await reader.clone("r")


async def test_a_critical_reader_holds_without_a_lease_and_swaps_its_token():
    site = Site()
    async with site.program().opened() as collection, site.program().controller() as keeper:
        await collection.writer().append(A, lower=0, upper=20)
        spark = await collection.critical("spark")
        await spark.compare_and_downgrade("", "epoch 1", 5)
        await spark.aclose()
        await site.clock.advance(100 * HOUR)
        await keeper.compact()
        again = await collection.critical("spark")
        assert (again.frontier, again.token, again.version) == (5, "epoch 1", None)
        assert content(await again.snapshot(as_of=5)) == [(1, "a", 1)]
        with pytest.raises(ExpectationError) as error:
            await again.compare_and_downgrade("epoch 0", "epoch 2", 7)
        assert error.value.actual == "epoch 1"
        with pytest.raises(InvalidSettingsError, match="critical"):
            await collection.reader("spark")
        await again.release()
        assert (await collection.status()).readers == {}


@pytest.mark.parametrize("says", ["412", "timeout"])
async def test_a_change_that_another_one_followed_is_recognised_whatever_was_reported(says: Says):
    """A proxy puts twice and tells of the second put; another program changed what the first had made."""
    site = Site()
    program = site.program()
    async with program.opened() as collection, site.program().opened() as other:
        await other.writer().append(A, lower=0, upper=20)
        spark = await collection.critical("spark")

        async def followed(request: Request[object]) -> object:
            await request()
            await other.critical(f"after {len((await other.status()).readers)}".replace(" ", "-"))
            return await report(says, happens=False)(request)

        program.store.on("put_if_match", followed)
        await spark.compare_and_downgrade("", "epoch 1", 5)
        assert spark.token == "epoch 1"
        program.store.on("put_if_match", followed)
        async with await spark.clone("copy") as copy:
            assert copy.frontier == 5
        assert (await other.status()).readers.keys() == {"spark", "after-1", "after-3"}


async def test_an_object_that_is_gone_is_named():
    site = Site()
    program = site.program()
    async with program.opened() as collection, program.controller() as keeper:
        await collection.writer().append(A, lower=0, upper=20)
        await keeper.compact()
        (key,) = await site.keys("merged/")
        await site.objects.delete([key])
        async with await collection.reader() as reader:
            with pytest.raises(CorruptionError, match=key):
                await reader.snapshot()


async def test_a_critical_reader_that_was_removed_is_told_so():
    site = Site()
    async with site.program().opened() as collection, site.program().controller() as keeper:
        leased, critical = await collection.reader("leased"), await collection.critical("spark")
        for name in ("leased", "spark"):
            assert await keeper.expire(name)
        with pytest.raises(LeaseExpiredError, match="critical reader spark was removed"):
            await critical.compare_and_downgrade("", "mine", 0)
        with pytest.raises(LeaseExpiredError, match="critical reader spark was removed"):
            await critical.snapshot()
        with pytest.raises(LeaseExpiredError, match="its lease expired, or it was removed"):
            await leased.snapshot()


async def test_a_read_that_is_overtaken_by_a_collection_begins_again():
    site = Site()
    program = site.program()
    async with program.opened() as collection, site.program().controller() as keeper:
        await collection.writer().append(A, lower=0, upper=5)
        await keeper.compact()
        reader = await collection.critical("c")

        async def overtake() -> None:
            await collection.writer("other").publish(B, lower=5, upper=9)
            await keeper.compact(full=True)
            await site.clock.advance(2 * HOUR)
            await keeper.gc()

        program.store.on("get", call(overtake), key_prefix="merged/")
        assert content(await reader.snapshot(as_of=4)) == [(1, "a", 1)]
        await reader.release()


async def test_a_batch_in_a_newer_schema_is_read_with_that_schema():
    """Columns are added, and a batch with them is published, between a reader's head and its listing."""
    site = Site()
    program = site.program()
    note = pa.field("note", pa.string())
    async with program.opened() as collection, site.program().opened() as other:
        await other.writer().append(A, lower=0, upper=1)
        async with await collection.reader() as reader:

            async def evolve(request):
                await other.evolve(SCHEMA.append(note))
                await other.writer().append(A.append_column(note, [["x"]]), lower=1, upper=2)
                return await request()

            program.store.on("list", evolve)
            assert content(await reader.snapshot(as_of=1)) == [(1, "a", "x", 1), (1, "a", None, 1)]
        await collection.writer().append(B, lower=2, upper=3)
        await other.writer().append(B, lower=2, upper=3)


async def test_closing_the_collection_releases_all_readers_also_clones():
    site = Site()
    async with site.program().opened() as other:
        async with site.program().opened() as collection:
            reader = await collection.reader("r")
            await reader.clone("copy")
            await collection.critical("stays")
            assert (await other.status()).readers.keys() == {"r", "copy", "stays"}
        assert (await other.status()).readers.keys() == {"stays"}


async def test_a_closed_reader_says_so():
    site = Site()
    async with site.program().opened() as collection:
        reader = await collection.reader("r")
        await reader.aclose()
        await reader.aclose()
        with pytest.raises(WalClosedError):
            await reader.snapshot()
        assert (await collection.status()).readers == {}


async def test_a_head_takes_a_hundred_readers():
    site = Site()
    async with site.program().opened() as collection:
        for number in range(100):
            await collection.critical(f"r{number}")
        with pytest.raises(LimitExceededError):
            await collection.critical("more")
        assert (await site.objects.head("head")).size_bytes < 24_000


@pytest.mark.parametrize("method", ["reader", "critical", "clone"])
async def test_readers_whose_lease_has_ended_make_room(method: str):
    site = Site()
    async with site.program().opened() as collection:
        for number in range(99):
            await collection.reader(f"dead-{number}", lease_seconds=100)
        last = await collection.critical("last")
        site.clock.seconds += 101  # nothing of the program runs
        if method == "clone":
            await last.clone("new")
        else:
            await getattr(collection, method)("new")
        assert set((await collection.status()).readers) == {"last", "new"}


@pytest.mark.parametrize("as_of", [-1, 1 << 64, (1 << 64) - 1])
async def test_bad_times(as_of: int):
    site = Site()
    async with site.program().opened() as collection, await collection.reader() as reader:
        with pytest.raises(InvalidSettingsError, match="as_of"):
            await reader.snapshot(as_of=as_of)
        for seconds in (-1, 0, 0.5):
            with pytest.raises(InvalidSettingsError):
                await collection.reader(lease_seconds=seconds)
        for register in (collection.reader, collection.critical):
            with pytest.raises(InvalidSettingsError, match="since"):
                await register("r", since=as_of)
        assert (await collection.status()).since == 0


async def test_the_content_that_a_subscription_begins_with_has_the_schema_that_it_was_read_in():
    """Columns are added, and a renewal reads the head, while the objects are read."""
    site = Site()
    program = site.program()
    async with program.opened() as collection, site.program().opened() as other:
        await other.writer().append(LONG, lower=0, upper=1)
        async with await collection.reader() as reader:

            async def evolve() -> None:
                await other.evolve(SCHEMA.append(pa.field("note", pa.string())))
                await collection.status()

            program.store.on("get_range", call(evolve), nth=2, key_prefix="pending/")
            async with contextlib.aclosing(reader.subscribe()) as steps:
                assert content((await anext(steps))[0]) == [(1, LONG_TEXT, 0, 1)]
            assert (await collection.status()).schema.id == 1


async def test_a_batch_that_came_late_is_not_read_in_the_place_of_another():
    """The reader stood still, its batch was removed, and another put to the same key arrived."""
    site = Site()
    program = site.program()
    async with program.opened() as collection, site.program().controller() as keeper:
        await collection.writer().append(LONG, lower=0, upper=5)
        reader = await collection.reader("r", lease_seconds=60)
        (key,) = await site.keys("pending/")
        schema = (await collection.status()).schema
        footer, _ = batch_file.decode((await site.objects.get(key)).data, path=key)
        table = updates.conform(B, schema, lower=0, upper=5)
        footer = dataclasses.replace(footer, digest=updates.digest(table))

        async def stand_still() -> None:
            await keeper.compact()
            site.clock.seconds += 2 * HOUR
            await keeper.compact()
            await keeper.gc()
            assert await site.keys("pending/") == []
            late = batch_file.encode(table, footer, schema=schema)
            await site.objects.put_if_absent(key, late)

        program.store.on("get_range", call(stand_still), key_prefix="pending/")
        with pytest.raises(LeaseExpiredError):
            await reader.snapshot(as_of=4)


async def test_all_readers_are_closed_also_if_one_cannot_be_released():
    site = Site()
    program = site.program()
    async with site.program().opened() as other:
        with pytest.raises(StorageUnavailableError):
            async with program.opened() as collection:
                for name in "abc":
                    await collection.reader(name)
                program.store.on("put_if_match", fail(timeout("not_written")), times=2)
        assert len((await other.status()).readers) == 1
        assert len(asyncio.all_tasks()) == 1


async def test_a_change_that_was_refused_but_happened_is_recognised_after_the_next_one():
    """The client sent the request twice, and another program changed the head before it is read back."""
    site = Site()
    program = site.program()
    async with (
        program.opened() as collection,
        site.program().opened() as other,
        await collection.critical("c") as reader,
    ):

        async def refuse(request):
            await request()
            await other.critical("d")
            raise PreconditionFailedError("refused", key="head")

        program.store.on("put_if_match", refuse)
        await reader.compare_and_downgrade("", "mine", 0)
        assert reader.token == "mine"


async def test_who_is_idle_makes_no_request_but_for_leases():
    """A reader of 900 seconds renews every 225; writers and controllers that do nothing ask for nothing."""
    site = Site()
    programs = [site.program() for _ in range(3)]
    async with (
        programs[0].opened() as reading,
        await reading.reader("r", lease_seconds=900),
        programs[1].opened() as writing,
        programs[2].controller(),
    ):
        await writing.writer().append(A, lower=0, upper=1)
        before = [program.store.requests for program in programs]
        for _ in range(16):
            await site.clock.advance(225)
        made = [
            program.store.requests - start for program, start in zip(programs, before, strict=True)
        ]
    assert made == [16 * 2, 0, 0]
