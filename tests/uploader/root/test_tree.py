"""Finding fragments through snapshots: as few reads as needed, in bounded memory, damage always told."""

from __future__ import annotations

import asyncio
import dataclasses
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.uploader.documents import fragment, fragments, manifest_of, snapshot_of
from uploader.format.entries import Entry, Fragment, Snapshot, SnapshotPointer
from uploader.format.manifest import Manifest
from uploader.format.rollup import Replacement, RollUpSettings, fold, is_ripe, plan
from uploader.format.setsum import Setsum
from uploader.root.tree import MEMORY_FACTOR, ManifestTree
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore, faults
from uploader.testing.faults import fail, timeout
from walstore.core.runtime.threads import Worker
from walstore.errors import CorruptionError, OffsetTrimmedError, StorageUnavailableError

Make = Callable[..., ManifestTree]


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
async def make(store: FaultyStore):
    """Make trees over the store."""
    worker = Worker("test", threads=2)

    def found(**options) -> ManifestTree:
        return ManifestTree(store, worker, **options)

    yield found
    worker.close()


@pytest.fixture
def tree(make: Make) -> ManifestTree:
    return make()


async def put(store: FaultyStore, *snapshots: Snapshot) -> None:
    for snapshot in snapshots:
        await store.inner.put_if_absent(snapshot.path, snapshot.serialise())


async def grown(store: FaultyStore, count: int, fragments: int = 2, snapshots: int = 2) -> Manifest:
    """Put a whole tree over so many fragments of ten records, and return its manifest."""
    settings = RollUpSettings(fragments_per_snapshot=fragments, snapshots_per_snapshot=snapshots)
    manifest = manifest_of(*[10] * count)
    while is_ripe(manifest, settings):
        made = plan(manifest, settings)
        await put(store, *made)
        found = [Replacement(one.snapshots or one.fragments, one.pointer()) for one in made]
        manifest = fold(manifest, found)
    manifest.scrub()
    return manifest


def numbers(found: Sequence[Fragment]) -> list[int]:
    return [entry.seq_no for entry in found]


async def by_hand(store: FaultyStore, *sizes: int) -> Manifest:
    """Move the oldest fragments of ten into snapshots, these into one of depth 2."""
    manifest = manifest_of(*[10] * 10)
    rest, children = list(manifest.fragments), []
    for size in sizes:
        children.append(snapshot_of(rest[:size]))
        rest = rest[size:]
    top = snapshot_of([child.pointer() for child in children])
    await put(store, *children, top)
    return dataclasses.replace(manifest, snapshots=(top.pointer(),), fragments=tuple(rest))


# -- intervals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "limit", "found"),
    [
        (0, 51, [1, 2, 3, 4, 5]),
        (1, 2, [1]),
        (10, 11, [1]),
        (11, 12, [2]),
        (10, 12, [1, 2]),
        (20, 41, [2, 3, 4]),
        (50, 99, [5]),
        (51, 99, []),
        (0, 1, []),
        (7, 7, []),
        (9, 3, []),
    ],
)
async def test_a_manifest_without_snapshots(store, tree, start, limit, found) -> None:
    manifest = manifest_of(*[10] * 5)
    assert numbers(await tree.entries(manifest, start, limit)) == found
    assert store.requests == 0


@pytest.mark.parametrize(
    ("start", "limit", "found", "requests"),
    [
        (0, 101, list(range(1, 11)), 4),
        (1, 11, [1], 2),
        (35, 36, [4], 2),
        (30, 32, [3, 4], 3),
        (61, 101, [7, 8, 9, 10], 0),
        (60, 62, [6, 7], 2),
    ],
)
async def test_snapshots_are_followed_as_far_as_needed(
    store, tree, start, limit, found, requests
) -> None:
    manifest = await by_hand(store, 2, 1, 3)
    manifest.scrub()
    for _ in range(2):  # the second time from memory
        assert numbers(await tree.entries(manifest, start, limit)) == found
        assert store.count("get").requests == requests


async def test_the_end_of_the_manifest_is_the_limit(store, tree) -> None:
    manifest = await grown(store, 23)
    assert numbers(await tree.entries(manifest)) == list(range(1, 24))
    assert numbers(await tree.entries(manifest, 95)) == list(range(10, 24))


@pytest.mark.slow
@given(
    st.integers(1, 60),
    st.integers(1, 5),
    st.integers(2, 5),
    st.integers(0, 620),
    st.integers(0, 620),
)
def test_any_interval_of_any_tree(count: int, low: int, high: int, start: int, limit: int) -> None:
    async def check() -> None:
        store, worker = FaultyStore(MemoryStore()), Worker("test")
        manifest = await grown(store, count, low, high)
        everything = manifest_of(*[10] * count).fragments
        tree = ManifestTree(store, worker, cache_bytes=0, parallel=3)
        wanted = [one for one in everything if one.start < limit and one.limit > start]
        assert await tree.entries(manifest, start, limit) == (wanted if start < limit else [])
        found = await tree.locate(manifest, start)
        assert found == next((one for one in everything if one.start <= start < one.limit), None)
        worker.close()

    asyncio.run(check())


async def test_an_offset_costs_one_snapshot_on_each_level(store, make) -> None:
    manifest = await grown(store, 1000, 10, 10)
    assert [pointer.depth for pointer in manifest.snapshots] == [2] * 9 + [1] * 9
    for offset, requests in ((1, 2), (5000, 2), (9000, 2), (9001, 1), (9900, 1), (9901, 0)):
        before = store.requests
        found = await make().locate(manifest, offset)
        assert found is not None
        assert found.start <= offset < found.limit
        assert store.requests - before == requests


@pytest.mark.parametrize("offset", [0, 1001, 5000])
async def test_no_fragment_holds_an_offset_outside(store, tree, offset: int) -> None:
    manifest = await grown(store, 100)
    assert await tree.locate(manifest, offset) is None
    assert store.requests == 0


# -- memory and speed ------------------------------------------------------------------------


async def test_reading_ahead_begins_slowly(store, make) -> None:
    """Who wants the first fragment pays for one snapshot; who goes on reads several at once."""
    manifest = await grown(store, 101, 2, 60)
    tree = make(parallel=4)
    requests = []
    async with aclosing(tree.runs(manifest)) as runs:
        async for run in runs:
            requests.append(store.count("get").requests)
            assert len(run) <= 2
    assert requests[:12] == [1, 3, 3, 7, 7, 7, 7, 11, 11, 11, 11, 15]
    assert requests[-1] == 50


async def test_siblings_are_read_at_the_same_time(store, make) -> None:
    """Three wait for answers at once, none of which comes before all were asked for."""
    manifest = await grown(store, 9, 1, 10)
    tree = make(parallel=3)
    release, asked = asyncio.Event(), [asyncio.Event() for _ in range(3)]
    for reached in asked:
        store.on("get", faults.hang(release, reached), nth=4)
    reading = asyncio.create_task(tree.entries(manifest))
    for reached in asked:
        await reached.wait()
    release.set()
    assert len(await reading) == 9


async def test_snapshots_are_kept_up_to_a_budget(store, make) -> None:
    manifest = await grown(store, 101, 1, 200)
    sizes = [len(data) for data in await contents(store, manifest)]
    budget = MEMORY_FACTOR * sum(sizes[-10:])
    tree = make(cache_bytes=budget)
    for _ in range(2):
        assert len(await tree.entries(manifest)) == 101
        assert 0 < tree.cached_bytes <= budget
    assert store.count("get").requests == 200
    assert len(await tree.entries(manifest, 911)) == 10
    assert store.count("get").requests == 200, "the newest look is remembered"


async def contents(store: FaultyStore, manifest: Manifest) -> list[bytes]:
    paths = [pointer.path_to_snapshot for pointer in manifest.snapshots]
    return [(await store.inner.get(path)).data for path in paths]


async def test_a_snapshot_larger_than_the_budget_is_not_kept(store, make) -> None:
    manifest = await grown(store, 101, 100, 2)
    tree = make(cache_bytes=1000)
    assert len(await tree.entries(manifest)) == 101
    assert tree.cached_bytes == 0


async def test_the_estimate_of_memory_is_no_understatement() -> None:
    """What a snapshot takes in memory, measured, beside what the cache counts for it."""
    data = snapshot_of(fragments(*[1000] * 500)).serialise()
    Snapshot.parse(data, path="p")
    tracemalloc.start()
    try:
        snapshot = Snapshot.parse(data, path="p")
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(snapshot.fragments) == 500
    assert 0.5 < taken / (MEMORY_FACTOR * len(data)) <= 1


async def test_tasks_that_want_the_same_snapshot_read_it_once(store, tree) -> None:
    manifest = await grown(store, 30, 10, 10)
    found = await asyncio.gather(*(tree.locate(manifest, 5) for _ in range(20)))
    assert set(found) == {manifest_of(10).fragments[0]}
    assert store.count("get").requests == 1


async def test_who_is_cancelled_does_not_disturb_the_others(store, tree) -> None:
    manifest = await grown(store, 30, 10, 10)
    release, reached = asyncio.Event(), asyncio.Event()
    store.on("get", faults.hang(release, reached))
    first = asyncio.create_task(tree.locate(manifest, 5))
    await reached.wait()
    second = asyncio.create_task(tree.locate(manifest, 5))
    first.cancel()
    await asyncio.wait((first,))
    assert await second == manifest_of(10).fragments[0]
    assert store.count("get").requests == 2


async def test_an_iteration_that_is_given_up_leaves_nothing_behind(store, tree) -> None:
    manifest = await grown(store, 101, 2, 3)
    async with aclosing(tree.fragments(manifest)) as found:
        async for entry in found:
            if entry.seq_no == 20:
                break
    before = store.requests
    assert len(asyncio.all_tasks()) == 1
    assert numbers(await tree.entries(manifest, 150, 200)) == list(range(15, 21))
    assert store.requests == before


# -- searching -------------------------------------------------------------------------------


def reaching(offset: int, looks: list[Fragment]) -> Callable[[Fragment], Awaitable[bool]]:
    async def reaches(found: Fragment) -> bool:
        looks.append(found)
        return found.limit > offset

    return reaches


@pytest.mark.slow
@given(st.integers(1, 60), st.integers(1, 5), st.integers(2, 5), st.integers(-5, 620))
def test_the_first_that_reaches_is_found_in_any_tree(
    count: int, low: int, high: int, offset: int
) -> None:
    async def check() -> None:
        store, worker = FaultyStore(MemoryStore()), Worker("test")
        manifest = await grown(store, count, low, high)
        everything = manifest_of(*[10] * count).fragments
        found = await ManifestTree(store, worker).first(manifest, reaching(offset, []))
        assert found == next((one for one in everything if one.limit > offset), None)
        worker.close()

    asyncio.run(check())


@pytest.mark.parametrize("wanted", [(2, 2), (10, 10), (1, 5)])
async def test_a_search_looks_at_few_fragments_and_snapshots(store, make, wanted) -> None:
    """On each level the logarithm of its entries, each at the end of a path through the tree."""
    manifest = await grown(store, 1000, *wanted)
    depth = max(pointer.depth for pointer in manifest.snapshots)
    top = len(manifest.snapshots) + len(manifest.fragments)
    most_looks = top.bit_length() + depth * max(wanted).bit_length()
    for offset in (1, 77, 5000, 9999, 10_000):
        before, looks = store.requests, list[Fragment]()
        found = await make().first(manifest, reaching(offset, looks))
        assert found is not None
        assert found.start <= offset < found.limit
        assert len(looks) <= most_looks
        assert store.requests - before <= depth * len(looks)
    assert await make().first(manifest, reaching(10_001, [])) is None


async def test_searching_a_log_of_nothing(tree) -> None:
    assert await tree.first(Manifest.initial("w"), reaching(1, [])) is None


# -- damage ----------------------------------------------------------------------------------


async def test_a_missing_snapshot(store, tree) -> None:
    manifest = await by_hand(store, 2, 3)
    (pointer,) = manifest.snapshots
    await store.inner.delete([pointer.path_to_snapshot])
    for call in (
        tree.entries(manifest, 1, 2),
        tree.locate(manifest, 1),
        tree.first(manifest, reaching(1, [])),
        tree.snapshot(pointer),
    ):
        with pytest.raises(CorruptionError, match="snapshot is missing") as told:
            await call
        assert told.value.path == pointer.path_to_snapshot
    assert await tree.entries(manifest, 61, 62)


@pytest.mark.parametrize("data", [b"", b"{}", b'{"path":1}'])
async def test_a_damaged_snapshot(store, tree, data) -> None:
    manifest = await by_hand(store, 2, 3)
    path = manifest.snapshots[0].path_to_snapshot
    await store.inner.delete([path])
    await store.inner.put_if_absent(path, data)
    with pytest.raises(CorruptionError) as told:
        await tree.entries(manifest, 1, 2)
    assert told.value.path == path


@pytest.mark.parametrize("changes", [{"limit": 52}, {"start": 2}, {"depth": 1}])
async def test_a_snapshot_that_is_not_what_is_said_of_it(store, tree, changes) -> None:
    manifest = await by_hand(store, 2, 3)
    pointer = dataclasses.replace(manifest.snapshots[0], **changes)
    manifest = dataclasses.replace(manifest, snapshots=(pointer,))
    with pytest.raises(CorruptionError, match="not what is said of it") as told:
        await tree.entries(manifest, 3, 4)
    assert told.value.path == pointer.path_to_snapshot


async def test_one_damaged_sibling_of_several(store, make) -> None:
    """The others are read at the same time, and the error is told all the same."""
    manifest = await grown(store, 9, 1, 10)
    path = manifest.snapshots[6].path_to_snapshot
    await store.inner.delete([path])
    with pytest.raises(CorruptionError) as told:
        await make(parallel=8).entries(manifest)
    assert told.value.path == path


async def test_the_stores_errors_are_passed_on(store, tree) -> None:
    manifest = await by_hand(store, 2, 3)
    store.on("get", fail(timeout("not_written")), nth=2)
    with pytest.raises(StorageUnavailableError):
        await tree.entries(manifest)
    assert len(await tree.entries(manifest)) == 10


async def test_snapshots_of_the_same_sum_share_an_object(store, tree) -> None:
    """wal3 names them by their sum, so one that holds only another is never stored itself."""
    manifest = manifest_of(*[10] * 5)
    inner = snapshot_of(manifest.fragments[:2])
    outer = snapshot_of([inner.pointer()])
    assert outer.path == inner.path
    await put(store, inner)
    manifest = dataclasses.replace(
        manifest, snapshots=(outer.pointer(),), fragments=manifest.fragments[2:]
    )
    assert len(await tree.entries(manifest, 1, 51)) == 5
    assert await tree.first(manifest, reaching(15, [])) == manifest_of(*[10] * 5).fragments[1]


async def test_a_snapshot_that_holds_itself_is_no_trap(store, tree) -> None:
    """The outer one was stored under the shared name: reading ends all the same."""
    manifest = manifest_of(*[10] * 5)
    inner = snapshot_of(manifest.fragments[:2])
    outer = snapshot_of([inner.pointer()])
    await put(store, outer)
    manifest = dataclasses.replace(
        manifest, snapshots=(outer.pointer(),), fragments=manifest.fragments[2:]
    )
    with pytest.raises(CorruptionError, match="not what is said of it"):
        await tree.entries(manifest, 1, 51)
    with pytest.raises(CorruptionError, match="not what is said of it"):
        await tree.first(manifest, reaching(15, []))


async def test_a_tree_of_255_levels(store, tree) -> None:
    """As deep as wal3 allows, though no writer makes such."""
    manifest = manifest_of(*[10] * 300)
    entry: Entry = snapshot_of(manifest.fragments[:1]).pointer()
    await put(store, snapshot_of(manifest.fragments[:1]))
    for at in range(1, 128):
        leaf = snapshot_of([manifest.fragments[at]])
        assert isinstance(entry, SnapshotPointer)
        upper = snapshot_of([entry, leaf.pointer()], depth=min(entry.depth + 2, 255))
        await put(store, leaf, upper)
        entry = upper.pointer()
    assert isinstance(entry, SnapshotPointer)
    assert entry.depth == 255
    manifest = dataclasses.replace(manifest, snapshots=(entry,), fragments=manifest.fragments[128:])
    manifest.scrub()
    assert len(await tree.entries(manifest)) == 300
    found = await tree.first(manifest, reaching(1, []))
    assert found is not None
    assert found.seq_no == 1


# -- collection beside readers ---------------------------------------------------------------


async def collect(store: FaultyStore, manifest: Manifest, gone: int) -> Manifest:
    """Take away the oldest entries of a manifest, and their snapshots; return what is left."""
    entries: list[Entry] = [*manifest.snapshots, *manifest.fragments]
    doomed, kept = entries[:gone], entries[gone:]
    pointers = [entry for entry in doomed if isinstance(entry, SnapshotPointer)]
    await store.inner.delete([pointer.path_to_snapshot for pointer in pointers])
    left = dataclasses.replace(
        manifest,
        collected=Setsum.total(entry.setsum for entry in doomed),
        snapshots=tuple(entry for entry in kept if isinstance(entry, SnapshotPointer)),
        fragments=tuple(entry for entry in kept if isinstance(entry, Fragment)),
        initial_offset=kept[0].start,
    )
    left.scrub()
    return left


async def test_what_was_collected_meanwhile_is_told(store, make) -> None:
    manifest = await grown(store, 10, 2, 10)
    left = await collect(store, manifest, 2)

    async def newest() -> Manifest:
        return left

    tree = make(newest=newest)
    for call in (tree.entries(manifest), tree.locate(manifest, 5), tree.entries(manifest, 15, 35)):
        with pytest.raises(OffsetTrimmedError, match="was collected") as told:
            await call
        assert told.value.head == 41
        assert told.value.tail == 101
    assert told.value.requested == 15


async def test_an_iteration_goes_on_over_what_was_rearranged(store, make) -> None:
    """Collection makes what is left of a snapshot into another one, and removes the old one."""
    manifest = await grown(store, 11, 5, 10)
    first = fragments(*[10] * 5)
    rest = snapshot_of(first[3:])
    await put(store, rest)
    left = dataclasses.replace(
        manifest,
        collected=Setsum.total(entry.setsum for entry in first[:3]),
        snapshots=(rest.pointer(), *manifest.snapshots[1:]),
        initial_offset=31,
    )
    left.scrub()
    await store.inner.delete([manifest.snapshots[0].path_to_snapshot])
    asked = []

    async def newest() -> Manifest:
        asked.append(1)
        return left

    tree = make(newest=newest)
    assert numbers(await tree.entries(manifest, 35)) == list(range(4, 12))
    assert await tree.locate(manifest, 49) == first[4]
    found = await tree.first(manifest, reaching(45, []))
    assert found == first[4]
    assert len(asked) == 3
    with pytest.raises(OffsetTrimmedError):
        await tree.locate(manifest, 30)


async def test_a_long_iteration_survives_many_collections(store, make) -> None:
    """The reader is always just ahead of the collector, which rearranges what lies before it."""
    current = await grown(store, 65, 4, 4)

    async def newest() -> Manifest:
        return current

    tree = make(newest=newest, cache_bytes=0, parallel=1)
    manifest, seen = current, []
    async with aclosing(tree.fragments(manifest)) as found:
        async for entry in found:
            seen.append(entry.seq_no)
            if entry.seq_no % 8 == 0 and entry.seq_no < 64:
                current = await rearranged(store, entry.limit, manifest)
    assert seen == list(range(1, 66))


async def rearranged(store: FaultyStore, start: int, manifest: Manifest) -> Manifest:
    """Collect all below an offset and put the rest into flat snapshots; remove all others."""
    everything = fragments(*[10] * 65)
    kept = [entry for entry in everything if entry.start >= start]
    leaves = [snapshot_of(kept[low : low + 3]) for low in range(0, len(kept) - 1, 3)]
    doomed = [listed.key async for listed in store.inner.list("snapshot/")]
    await store.inner.delete(doomed)
    used = sum(len(leaf.fragments) for leaf in leaves)
    if used == len(kept):
        used -= len(leaves.pop().fragments)
    await put(store, *leaves)
    left = dataclasses.replace(
        manifest,
        collected=Setsum.total(entry.setsum for entry in everything if entry.start < start),
        snapshots=tuple(leaf.pointer() for leaf in leaves),
        fragments=tuple(kept[used:]),
        initial_offset=start,
    )
    left.scrub()
    return left


async def test_damage_is_not_taken_for_collection(store, make) -> None:
    """The newest manifest names all that was there before."""
    manifest = await grown(store, 10, 2, 10)
    await store.inner.delete([manifest.snapshots[1].path_to_snapshot])
    later = manifest.apply_fragments([fragment(11, 101, 103)], "w")

    async def newest() -> Manifest:
        return later

    with pytest.raises(CorruptionError, match="snapshot is missing"):
        await make(newest=newest).entries(manifest)


# -- ends of older manifests -----------------------------------------------------------------


@pytest.mark.parametrize("known", range(1, 20))
async def test_the_end_of_an_older_manifest_is_found_on_the_way(store, make, known: int) -> None:
    """It lies in a snapshot that is read anyway; a sum that is another one shows there."""
    manifest = await grown(store, 20)
    end = 10 * known + 1
    await make().entries(manifest, end)
    requests = store.requests
    tree = make()
    tree.expect(end, manifest_of(*[10] * known).setsum)
    assert numbers(await tree.entries(manifest, end)) == list(range(known + 1, 21))
    assert store.requests == 2 * requests
    tree.expect(end, Setsum.of_items([b"other"]))
    if end in manifest.bounds:
        await tree.entries(manifest, end)  # told by the manifests alone
        return
    for start in (0, end):
        with pytest.raises(CorruptionError, match=f"before offset {end} are not those"):
            await tree.entries(manifest, start)


async def test_an_end_inside_a_fragment_is_none(store, tree) -> None:
    manifest = await grown(store, 20)
    tree.expect(15, manifest_of(10, 4).setsum)
    with pytest.raises(CorruptionError, match="before offset 15"):
        await tree.entries(manifest, 15)


async def test_ends_of_older_manifests_are_bounded(store, tree) -> None:
    manifest = await grown(store, 20)
    tree.expect(11, Setsum.of_items([b"other"]))
    for number in range(64):
        tree.expect(1000 + number, Setsum())
    await tree.entries(manifest)
