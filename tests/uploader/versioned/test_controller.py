"""The controller: compaction and collection, killed at every call, fenced, beside readers and writers."""

from __future__ import annotations

import asyncio
import itertools
import random

import pyarrow as pa
import pytest

from tests.effort import first_seed
from tests.uploader.versioned.collections import HOUR, SCHEMA, Program, Site, content, rows
from uploader import Collection, Controller, ControllerSettings
from uploader.testing.faults import (
    StoreKilled,
    call,
    happen_then_fail,
    happen_then_kill,
    kill,
    report,
    timeout,
)
from uploader.versioned import compaction
from uploader.versioned.collection_session import CollectionSession
from uploader.versioned.head import parse_head
from walstore.errors import (
    CollectionNotFoundError,
    CorruptionError,
    FencedError,
    IndefiniteError,
    InvalidSettingsError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalClosedError,
    WalLockedError,
    WrongLoopError,
)

A, B = rows((1, "a")), rows((1, "b"))


async def fill(site: Site, batches: int, *, start: int = 0) -> None:
    """Append so many batches of one time each."""
    async with site.program().opened() as collection:
        writer = collection.writer()
        for lower in range(start, start + batches):
            await writer.append(rows((lower % 7, str(lower % 3))), lower=lower, upper=lower + 1)


async def everything(site: Site) -> list[list[tuple[object, ...]]]:
    """Return the content as of each time that can be read."""
    async with site.program().opened() as collection, await collection.reader() as reader:
        return [
            content(await reader.snapshot(as_of=as_of))
            for as_of in range(reader.frontier, await reader.upper())
        ]


async def test_what_is_pending_becomes_part_of_a_version():
    site = Site()
    await fill(site, 10)
    before = await everything(site)
    async with site.program().controller() as keeper:
        plan = await keeper.plan()
        assert (plan.lower, plan.upper, plan.rows, len(plan.parts)) == (0, 10, 10, 10)
        done = await keeper.compact()
        assert (done.passes, done.rows_read, done.rows_written, done.upper) == (1, 10, 10, 10)
        assert await keeper.plan() is None
    assert await everything(site) == before


@pytest.mark.slow
async def test_batches_stay_few_and_old_updates_are_rewritten_rarely():
    site = Site()
    written = 0
    await fill(site, 0)
    async with site.program().controller() as keeper:
        for start in range(0, 128, 4):
            await fill(site, 4, start=start)
            written += (await keeper.compact()).rows_written
            head = parse_head((await site.objects.get("head")).data)
            layers = [batch.layer for batch in head.version.batches]
            assert layers == sorted(set(layers), reverse=True), (
                "each layer at most once, the oldest highest"
            )
    assert written <= 128 * 7, "each update once a layer"


async def test_a_full_compaction_drops_what_no_reader_can_see():
    site = Site("upsert")
    async with site.program().opened() as collection, site.program().controller() as keeper:
        writer = collection.writer()
        for lower in range(20):
            await writer.append(rows((lower % 2, str(lower))), lower=lower, upper=lower + 1)
        await writer.append(rows((0, ""), _deleted=[True]), lower=20, upper=21)
        await keeper.compact()
        async with await collection.reader() as reader:
            await reader.downgrade_since(20)
            assert (await keeper.compact(full=True)).rows_written == 1
            assert content(await reader.snapshot(as_of=20)) == [(1, "19")]
        assert (await keeper.compact(full=True)).passes == 0, "once for each since"


async def test_without_readers_nothing_is_given_up():
    site = Site()
    await fill(site, 10)
    before = await everything(site)
    async with site.program().controller() as keeper:
        await keeper.compact(full=True)
        await site.clock.advance(100 * HOUR)
        await keeper.gc()
    assert await everything(site) == before


async def test_garbage_goes_an_hour_after_it_was_replaced_and_not_before():
    site = Site()
    await fill(site, 5)
    async with site.program().controller() as keeper:
        await keeper.compact()
        await fill(site, 5, start=5)
        await keeper.compact(full=True)
        nothing = await keeper.gc(dry_run=True)
        assert (nothing.pending, nothing.merged, nothing.versions) == (0, 0, 0)
        await keeper.gc()
        assert len(await site.keys()) == 1 + 10 + 2 + 2
        await site.clock.advance(HOUR + 1)
        plan = await keeper.gc(dry_run=True)
        assert (plan.pending, plan.merged, plan.versions) == (10, 1, 1)
        assert len(await site.keys()) == 1 + 10 + 2 + 2
        assert await keeper.gc() == plan
        assert len(await site.keys()) == 3


async def test_a_reader_holds_its_version_and_is_named():
    site = Site()
    await fill(site, 5)
    program = site.program()
    async with program.opened() as collection, site.program().controller() as keeper:
        await keeper.compact()
        async with await collection.reader("slow", lease_seconds=100 * HOUR):
            await fill(site, 5, start=5)
            await keeper.compact(full=True)
            site.clock.seconds += 2 * HOUR
            swept = await keeper.gc()
            assert (swept.held_by, swept.gc_floor, swept.merged) == ("slow", 1, 0)
        assert (await keeper.gc()).merged == 1


async def test_a_straddling_batch_stays_as_long_as_a_part_of_it_may_be_read():
    site = Site()
    async with site.program().opened() as collection, site.program().controller() as keeper:
        await collection.writer("long").publish(A, lower=0, upper=100)
        await collection.writer("short").publish(A, lower=0, upper=10)
        head = (await collection.status()).merged_upper
        assert head == 0
        done = await keeper.compact()
        assert done.upper == 100
        await site.clock.advance(2 * HOUR)
        assert (await keeper.gc()).pending == 2


async def test_two_writers_that_disagree_are_found_before_anything_is_merged():
    site = Site()
    async with site.program().opened() as collection, site.program().controller() as keeper:
        await collection.writer("one").publish(A, lower=0, upper=10)
        await collection.writer("two").publish(B, lower=0, upper=10)
        for attempt in (keeper.plan, keeper.compact):
            with pytest.raises(IndefiniteError) as error:
                await attempt()
            assert error.value.writers == ("one", "two")
        assert (await collection.status()).version == 0


async def test_the_newest_controller_fences_the_others():
    site = Site()
    await fill(site, 5)
    async with site.program().controller(name="first") as first:
        with pytest.raises(WalLockedError, match="first"):
            await Controller.open("memory://here", **site.program().options())
        async with site.program().controller(take_over=True) as second:
            assert second.epoch == first.epoch + 1
            for attempt in (first.plan, first.compact, first.gc):
                with pytest.raises(FencedError):
                    await attempt()
            await second.compact()
    async with site.program().controller():
        pass  # the second one has given up its lease


async def test_a_lease_that_ended_need_not_be_taken_over():
    site = Site()
    await fill(site, 1)
    await Controller.open("memory://here", **site.program().options())
    await site.clock.advance(61)
    async with site.program().controller():
        pass


async def test_a_compaction_that_is_taken_over_changes_nothing():
    site = Site()
    await fill(site, 5)
    before = await everything(site)
    program = site.program()
    first = await Controller.open("memory://here", **program.options())

    async def take_over(request: object) -> object:
        async with site.program().controller(take_over=True) as second:
            await second.compact()
        return await request()  # type: ignore[operator]

    program.store.on("put_if_absent", take_over, key_prefix="versions/")
    with pytest.raises(FencedError):
        await first.compact()
    await first.aclose()
    assert await everything(site) == before
    async with site.program().controller() as keeper:
        await site.clock.advance(2 * HOUR)
        await keeper.gc()
        assert len(await site.keys("merged/")) == len(await site.keys("versions/")) == 1


async def with_old_versions() -> tuple[Site, Program]:
    """Return a collection with versions that may be removed, and a program that looks at it."""
    site = Site()
    for start in range(0, 16, 4):
        await fill(site, 4, start=start)
        async with site.program().controller() as keeper:
            await keeper.compact()
    await site.clock.advance(2 * HOUR)
    return site, site.program()


async def test_what_another_controller_removed_meanwhile_is_no_damage():
    site, program = await with_old_versions()

    async def collect() -> None:
        async with site.program().controller(take_over=True) as other:
            assert (await other.gc()).versions == 3

    async with program.controller() as keeper:
        program.store.on("get", call(collect), key_prefix="versions/")
        with pytest.raises(FencedError):
            await keeper.gc()


async def test_a_dry_run_may_look_while_the_controller_works():
    site, program = await with_old_versions()
    async with site.program().controller() as keeper:
        session = CollectionSession("memory://here", **program.options())
        await session.head.load()
        watching = Controller(session, keeper.epoch, ControllerSettings())
        program.store.on("get", call(keeper.gc), key_prefix="versions/")
        assert (await watching.gc(dry_run=True)).versions == 0
        await session.aclose()


async def test_a_controller_never_has_the_epoch_of_the_one_that_followed():
    """It was not told that it had begun, and another one took over before it looked."""
    site = Site()
    await fill(site, 4)
    program = site.program()

    async def followed(request):
        await request()
        async with site.program().controller(take_over=True) as second:
            assert second.epoch == 2
        raise timeout()

    program.store.on("put_if_match", followed)
    async with program.controller() as first:
        assert first.epoch == 1
        with pytest.raises(FencedError):
            await first.compact()


async def test_a_missing_version_is_named():
    site = Site()
    await fill(site, 4)
    async with site.program().controller() as keeper:
        await keeper.compact()
        await fill(site, 4, start=4)
        await keeper.compact()
        first, _ = await site.keys("versions/")
        await site.objects.delete([first])
    async with site.program().controller() as keeper:
        with pytest.raises(CorruptionError, match=first):
            await keeper.gc()


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fault", [kill, happen_then_kill])
@pytest.mark.slow
async def test_compaction_and_collection_killed_at_every_call(fault, step: int):
    """Whatever a controller did before it died, the content is the same, and the next one cleans up."""
    for nth in range(1, 200, step):
        site = Site()
        await fill(site, 3)
        async with site.program().controller() as keeper:
            await keeper.compact()
            await fill(site, 3, start=3)
            before = await everything(site)
            await keeper.compact(full=True)
            await site.clock.advance(2 * HOUR)
            await fill(site, 2, start=6)
        before += (await everything(site))[6:]
        program = site.program()
        program.store.on("any", fault(), nth=nth)
        is_dead = False
        try:
            await _compact_and_collect(program)
        except StoreKilled:
            is_dead = True
        assert await everything(site) == before, nth
        await site.clock.advance(2 * HOUR)
        async with site.program().controller(take_over=True) as keeper:
            await keeper.compact(full=True)
            await site.clock.advance(2 * HOUR)
            await keeper.gc()
        assert await everything(site) == before, nth
        assert len(await site.keys()) == 3, f"killed at call {nth}, left are {await site.keys()}"
        if not is_dead:
            assert nth > 15
            return
    pytest.fail("it never ended")


async def _compact_and_collect(program: Program) -> None:
    keeper = await Controller.open("memory://here", **program.options())
    await keeper.compact()
    await keeper.gc()
    await keeper.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("happens", [True, False])
@pytest.mark.parametrize("says", ["timeout", "412", "500"])
async def test_whatever_the_store_says_of_a_commit_no_object_of_a_version_is_missing(says, happens):
    for nth in range(1, 12):
        site = Site()
        await fill(site, 4)
        before = await everything(site)
        program = site.program()
        async with site.program().opened():
            keeper = await Controller.open("memory://here", **program.options())
            for kind in ("put_if_absent", "put_if_match"):
                program.store.on(kind, report(says, happens=happens), nth=nth)
            for _ in range(3):
                try:
                    await keeper.compact(full=True)
                    await site.clock.advance(2 * HOUR)
                    await keeper.gc()
                except (StorageUnavailableError, OutcomeUnknownError):
                    continue
            await keeper.aclose()
            assert await everything(site) == before


async def test_an_unclear_commit_is_recognised():
    site = Site()
    await fill(site, 4)
    program = site.program()
    async with program.controller() as keeper:
        program.store.on("put_if_match", happen_then_fail(timeout()), times=2)
        assert (await keeper.compact()).version == 1


async def test_a_damaged_input_stops_a_compaction():
    site = Site()
    await fill(site, 4)
    (*_, last) = await site.keys("pending/")
    data = bytearray((await site.objects.get(last)).data)
    data[8:120] = bytes(112)
    await site.objects.delete([last])
    await site.objects.put_if_absent(last, bytes(data))
    async with site.program().controller() as keeper:
        with pytest.raises(CorruptionError, match=last):
            await keeper.compact()
        assert parse_head((await site.objects.get("head")).data).version.n == 0


async def test_it_expires_readers():
    site = Site()
    await fill(site, 4)
    async with site.program().opened() as collection, site.program().controller() as keeper:
        await collection.critical("lost")
        assert await keeper.expire("lost") is True
        assert await keeper.expire("lost") is False


@pytest.mark.slow
async def test_a_pass_takes_no_more_than_it_may():
    site = Site()
    await fill(site, 20)
    before = await everything(site)
    async with site.program().controller(settings=ControllerSettings(most_rows=5)) as keeper:
        done = await keeper.compact()
        assert done.passes >= 4
        assert done.upper == 20
    assert await everything(site) == before


async def test_a_batch_that_is_too_large_for_a_pass_stays_as_it_is():
    site = Site()
    await fill(site, 20)
    async with site.program().controller(settings=ControllerSettings(most_rows=30)) as keeper:
        await keeper.compact()
        await fill(site, 20, start=20)
        for is_full in (False, True):
            await keeper.compact(full=is_full)
            head = parse_head((await site.objects.get("head")).data)
            assert [batch.rows for batch in head.version.batches] == [20, 20]


async def test_a_compaction_ends_while_a_writer_is_faster():
    site = Site()
    await fill(site, 3)
    program = site.program()

    async def append(request):
        program.store.on("put_if_match", append)
        await fill(site, 1, start=len(await site.keys("pending/")))
        return await request()

    async with program.controller() as keeper:
        program.store.on("put_if_match", append)
        assert (await keeper.compact()).upper == 4, "what was there when the first pass was planned"


@pytest.mark.slow
async def test_random_collections_agree_with_a_model():
    chance = random.Random(first_seed("collections and a model"))
    site = Site()
    counts: list[dict[tuple[int, str], int]] = []
    async with site.program().opened() as collection, site.program().controller() as keeper:
        writer, reader = collection.writer(), await collection.reader("r", lease_seconds=100 * HOUR)
        for lower in range(60):
            changes = [
                (chance.randrange(4), chance.choice("ab"), chance.choice([-1, 1, 2]))
                for _ in range(chance.randrange(4))
            ]
            table = rows(
                *((key, value) for key, value, _ in changes),
                _d=pa.array([diff for *_, diff in changes], pa.int64()),
            )
            await writer.append(table, lower=lower, upper=lower + 1)
            now = dict(counts[-1]) if counts else {}
            for key, value, diff in changes:
                now[key, value] = now.get((key, value), 0) + diff
            counts.append(now)
            if chance.random() < 0.3:
                await keeper.compact(full=chance.random() < 0.3)
            if chance.random() < 0.2:
                await reader.downgrade_since(chance.randint(reader.frontier, lower))
            if chance.random() < 0.2:
                await site.clock.advance(2 * HOUR)
                await keeper.gc()
            as_of = chance.randint(reader.frontier, lower)
            expected = sorted((*row, count) for row, count in counts[as_of].items() if count)
            assert content(await reader.snapshot(as_of=as_of)) == expected
        await reader.aclose()


async def test_a_closed_controller_says_so():
    site = Site()
    await fill(site, 1)
    async with site.program().controller() as keeper:
        pass
    await keeper.aclose()
    with pytest.raises(WalClosedError):
        await keeper.compact()
    with pytest.raises(InvalidSettingsError):
        ControllerSettings(delete_after_seconds=60)
    with pytest.raises(CollectionNotFoundError):
        await Controller.open("memory://nowhere-at-all")
    with pytest.raises(InvalidSettingsError, match="engine"):
        async with site.program().controller() as other:
            await other.compact(engine="spark")  # type: ignore[arg-type]


@pytest.mark.slow
async def test_a_cancelled_compaction_leaves_the_collection_whole():
    for steps in range(0, 60, 7):
        site = Site()
        await fill(site, 4)
        before = await everything(site)
        async with site.program().controller() as keeper:
            work = asyncio.create_task(keeper.compact(full=True))
            for _ in range(steps):
                await asyncio.sleep(0)
            work.cancel()
            await asyncio.wait([work])
            assert await everything(site) == before
            await keeper.compact(full=True)
        assert await everything(site) == before


async def test_columns_that_were_added_later_are_null_in_older_rows():
    site = Site()
    async with site.program().opened() as collection, site.program().controller() as keeper:
        await collection.writer().append(A, lower=0, upper=1)
        note = pa.field("note", pa.string())
        wider = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.large_string()), note])
        assert (await collection.evolve(wider)).id == 1
        await collection.writer().append(A.append_column(note, [["x"]]), lower=1, upper=2)
        for _ in range(2):
            async with await collection.reader() as reader:
                assert content(await reader.snapshot()) == [(1, "a", "x", 1), (1, "a", None, 1)]
            await keeper.compact(full=True)
        with pytest.raises(InvalidSettingsError, match="'v'"):
            await collection.evolve(SCHEMA)


async def test_opening_checks_what_it_is_told():
    site = Site()
    options = site.program().options()
    with pytest.raises(CollectionNotFoundError, match="create=True"):
        await Collection.open("memory://here", **options)
    with pytest.raises(InvalidSettingsError, match="schema"):
        await Collection.open("memory://here", create=True, **options)
    async with site.program().opened():
        with pytest.raises(InvalidSettingsError, match="kind"):
            await Collection.open(
                "memory://here", schema=SCHEMA, key=("k",), kind="upsert", **options
            )
        with pytest.raises(InvalidSettingsError, match=r"it has k int64, given were k string$"):
            await Collection.open(
                "memory://here",
                schema=SCHEMA.set(0, pa.field("k", pa.string())),
                key=("k",),
                **options,
            )
        with pytest.raises(InvalidSettingsError, match="columns"):
            await Collection.open(
                "memory://here",
                schema=SCHEMA.append(pa.field("x", pa.int8())),
                key=("k",),
                **options,
            )


async def test_a_deleted_collection_stays_deleted():
    site = Site()
    async with site.program().opened() as collection:
        await collection.writer().append(A, lower=0, upper=1)
        await collection.delete()
        await collection.delete()
    with pytest.raises(CollectionNotFoundError, match="deleted"):
        async with site.program().opened():
            pass


@pytest.mark.parametrize("name", ["", "x" * 201, "\ud800", 5])
async def test_a_bad_name_never_comes_into_the_head(name):
    site = Site()
    async with site.program().opened() as collection:
        with pytest.raises((TypeError, ValueError), match="the name of a controller"):
            async with site.program().controller(name=name):
                pass
        assert (await collection.status()).epoch == 0


async def test_objects_of_a_batch_that_are_exchanged_are_noticed(monkeypatch):
    monkeypatch.setattr(compaction, "MOST_OBJECT_ROWS", 2)
    site = Site()
    async with site.program().opened() as collection, site.program().controller() as keeper:
        await collection.writer().append(rows(*((n, "a") for n in range(4))), lower=0, upper=1)
        await keeper.compact()
        one, other = (await collection.status()).batches[0].keys
        data = (await site.objects.get(other)).data
        await site.objects.delete([one])
        await site.objects.put_if_absent(one, data)
        async with await collection.reader() as reader:
            with pytest.raises(CorruptionError, match="not those of its version"):
                await reader.snapshot()


async def test_handles_of_a_deleted_collection_are_closed_without_an_error():
    site = Site()
    async with (
        site.program().opened() as collection,
        site.program().controller(),
        await collection.reader("r"),
        await collection.critical("c") as critical,
    ):
        await collection.delete()
        await critical.release()


async def test_nothing_is_closed_from_another_event_loop():
    site = Site()
    async with (
        site.program().opened() as collection,
        site.program().controller() as keeper,
        await collection.reader("r") as reader,
    ):

        def close_all() -> None:
            for close in (reader.aclose, reader.release, keeper.aclose, collection.aclose):
                with pytest.raises(WrongLoopError):
                    asyncio.run(close())

        await asyncio.to_thread(close_all)
        assert (await collection.status()).readers.keys() == {"r"}
        assert await reader.upper() == 0
        await keeper.compact()


async def test_a_long_pass_keeps_the_lease():
    """The store takes minutes to accept what was merged; a second controller has to wait meanwhile."""
    site = Site()
    program = site.program()

    async def minutes() -> None:
        for _ in range(12):
            await site.clock.advance(20)
            with pytest.raises(WalLockedError):
                async with site.program().controller():
                    pass

    async with site.program().opened() as collection, program.controller() as keeper:
        await collection.writer().append(rows((1, "a")), lower=0, upper=1)
        program.store.on("put_if_absent", call(minutes), key_prefix="merged/")
        assert (await keeper.compact()).passes == 1


async def test_a_long_pass_that_lost_its_collection_ends():
    """Another controller takes over while the store accepts what was merged; nothing is committed."""
    site = Site()
    program = site.program()

    async def lose() -> None:
        async with site.program().controller(take_over=True):
            await site.clock.advance(20)
        await asyncio.Event().wait()

    async with site.program().opened() as collection:
        await collection.writer().append(rows((1, "a")), lower=0, upper=1)
        async with program.controller() as keeper:
            program.store.on("put_if_absent", call(lose), key_prefix="merged/")
            with pytest.raises(FencedError):
                await keeper.compact()
        assert (await collection.status()).version == 0


async def test_a_collection_of_garbage_beside_shards_that_always_arrive():
    site = Site()
    program = site.program()
    async with site.program().opened() as collection, program.controller() as keeper:
        await collection.writer("one").append(A, lower=0, upper=1000)
        await keeper.compact()
        await site.clock.advance(2 * HOUR)
        numbers = itertools.count()

        async def publish() -> None:
            writer = collection.writer(f"w{next(numbers)}")
            await writer.append(B, lower=1000, upper=1001)

        program.store.on("list", call(publish), key_prefix="versions/", times=100)
        assert (await keeper.gc()).pending == 0
        assert next(numbers) == 2
