"""Interleavings of collections that went wrong elsewhere, each scheduled at the call where it hurts.

===============================================================  =============================
what comes between                                               tests
===============================================================  =============================
a reader registers between a compaction's plan and its commit    here
a reader registers or is cloned between a collector's calls      here
a controller is taken over between a version's put and the swap  ``test_controller.py``
a swap is refused because of its own repeated request            ``test_collection_reader.py``
a store answers each call in each way                            ``test_reported.py``
a pending batch arrives after its key was collected              ``test_collection_writer.py``
a lease ends between a look at the head and the reads            here
a critical reader registers after a compaction chose ``since``   here
one compaction replaces the inputs of another                    here
a collector lists the objects of a commit under way              here
an append follows a deletion                                     ``test_collection_writer.py``
the head changes and changes back                                here
a writer dies, and its shard falls behind                        ``test_pending.py``
an expired reader wakes up and renews                            here
outputs are deleted after an unclear commit (persist)            ``test_controller.py``
a listener gives up its hold too early (persist)                 here
===============================================================  =============================
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.uploader.versioned.collections import HOUR, Site, content, rows
from uploader import Controller
from uploader.testing.faults import call, hang
from walstore.errors import FencedError, LeaseExpiredError

A, B, C = rows((1, "a")), rows((1, "b")), rows((2, "c"))


async def filled(site: Site) -> None:
    """Append at times 0, 10 and 20; the shard ends at 30."""
    async with site.program().opened() as collection:
        for number, table in enumerate((A, B, C)):
            await collection.writer().append(table, lower=10 * number, upper=10 * number + 10)


@pytest.mark.parametrize("method", ["reader", "critical"])
@pytest.mark.parametrize("kind", ["put_if_absent", "put_if_match"])
async def test_a_reader_that_registers_during_a_compaction_reads_what_it_holds(method, kind):
    """The compaction has chosen ``since`` before; the reader's frontier is not below it."""
    site = Site("upsert")
    await filled(site)
    async with site.program().opened() as collection:
        leaving = await collection.reader("leaving")
        await leaving.downgrade_since(12)
        readers = []

        async def register() -> None:
            readers.append(await getattr(collection, method)("new"))
            await leaving.downgrade_since(25)

        program = site.program()
        async with program.controller() as keeper:
            program.store.on(kind, call(register), nth=2)
            await keeper.compact(full=True)
            (new,) = readers
            assert new.frontier == 12
            assert content(await new.snapshot(as_of=12)) == [(1, "b")]
            await keeper.compact(full=True)
            assert content(await new.snapshot(as_of=12)) == [(1, "b")]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["reader", "clone"])
async def test_a_reader_that_registers_during_a_collection_reads_what_it_holds(method):
    """At every call of the collector: it comes before the floor, or begins with a newer version."""
    nth = 1
    while True:
        site = Site()
        await filled(site)
        program, other = site.program(), site.program()
        async with other.opened() as collection, program.controller() as keeper:
            source = await collection.critical("source")
            await keeper.compact()
            await site.clock.advance(2 * HOUR)
            made = []

            async def register(collection=collection, source=source, made=made) -> None:
                made.append(
                    await (source.clone() if method == "clone" else collection.reader("new"))
                )

            program.store.on("any", call(register), nth=nth)
            with contextlib.suppress(Exception):
                await keeper.gc()
            if not made:
                assert nth > 4
                return
            await keeper.gc()
            assert content(await made[0].snapshot(as_of=15)) == [(1, "a", 1), (1, "b", 1)]
        nth += 1


async def test_a_lease_that_ends_between_the_head_and_the_objects_is_no_wrong_answer():
    site = Site()
    await filled(site)
    program = site.program()
    async with program.opened() as collection, site.program().controller() as keeper:
        await keeper.compact()
        reader = await collection.reader("r", lease_seconds=100)

        async def outlive() -> None:
            site.clock.seconds += 3 * HOUR
            await filled_again(site)
            await keeper.compact(full=True)
            site.clock.seconds += 3 * HOUR
            await keeper.gc()

        program.store.on("get", call(outlive), key_prefix="merged/")
        with pytest.raises(LeaseExpiredError):
            await reader.snapshot(as_of=15)


async def filled_again(site: Site) -> None:
    async with site.program().opened() as other:
        await other.writer().append(A, lower=30, upper=40)


async def test_a_compaction_whose_inputs_were_replaced_is_given_up():
    """It removes nothing: what the other one made of the inputs stays."""
    site = Site()
    await filled(site)
    program = site.program()
    slow = await Controller.open("memory://here", **program.options())
    release, reached = asyncio.Event(), asyncio.Event()
    program.store.on("put_if_absent", hang(release, reached), key_prefix="merged/")
    compacting = asyncio.create_task(slow.compact())
    await reached.wait()
    async with site.program().controller(take_over=True) as quick:
        await quick.compact()
        release.set()
        with pytest.raises(FencedError):
            await compacting
        await slow.aclose()
        async with site.program().opened() as collection, await collection.reader() as reader:
            assert len(content(await reader.snapshot())) == 3
            await site.clock.advance(2 * HOUR)
            await quick.gc()
            assert len(content(await reader.snapshot())) == 3


async def test_a_collector_leaves_the_objects_of_a_commit_that_lasts_for_hours():
    """A collection has one controller: the commit of the one before is fenced, whatever it has put."""
    site = Site()
    await filled(site)
    program = site.program()
    slow = await Controller.open("memory://here", **program.options())
    release, reached = asyncio.Event(), asyncio.Event()
    program.store.on("put_if_match", hang(release, reached), nth=2)
    compacting = asyncio.create_task(slow.compact())
    await reached.wait()
    site.clock.seconds += 5 * HOUR
    async with site.program().controller() as keeper:
        await keeper.gc()
        release.set()
        with pytest.raises(FencedError):
            await compacting
        await slow.aclose()
        await keeper.compact()
        async with site.program().opened() as collection, await collection.reader() as reader:
            assert len(content(await reader.snapshot())) == 3


async def test_a_head_that_changes_and_changes_back_is_another_head():
    """A reader comes and goes while another program is about to swap: its swap is refused and repeated."""
    site = Site()
    await filled(site)
    program = site.program()
    async with program.opened() as collection, site.program().opened() as other:
        reader = await collection.reader("mine")

        async def come_and_go() -> None:
            await (await other.reader("guest")).aclose()

        program.store.on("put_if_match", call(come_and_go))
        await reader.downgrade_since(7)
        status = await other.status()
        assert list(status.readers) == ["mine"]
        assert status.since == 7


async def test_a_reader_that_expired_is_not_revived_by_its_late_renewal():
    site = Site()
    await filled(site)
    program = site.program()
    async with program.opened() as collection, site.program().controller() as keeper:
        reader = await collection.reader("r", lease_seconds=100)

        async def expire() -> None:
            site.clock.seconds += HOUR
            await keeper.compact()

        program.store.on("put_if_match", call(expire))
        with pytest.raises(LeaseExpiredError):
            await reader.downgrade_since(7)
        assert (await collection.status()).readers == {}


async def test_a_listener_holds_what_it_reads_until_its_caller_has_it():
    """The compaction of persist's regression: it advances times as far as it may, between two steps."""
    site = Site()
    await filled(site)
    async with (
        site.program().opened() as collection,
        site.program().controller() as keeper,
        await collection.reader() as reader,
        contextlib.aclosing(reader.listen(after=-1)) as steps,
    ):
        times = []
        for _ in range(3):
            table, frontier = await anext(steps)
            times += table["_t"].to_pylist()
            await reader.downgrade_since(0)  # a renewal gives up what the listener has passed
            await keeper.compact(full=True)
            assert (await collection.status()).since <= max(frontier - 1, 0)
            if frontier == 30:
                break
        assert times == [0, 10, 20]
