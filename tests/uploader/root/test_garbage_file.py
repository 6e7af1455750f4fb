"""Writers that publish all the time drop what a collector has announced, with their own next manifest."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator

import pytest

from tests.uploader.documents import snapshot_of
from uploader.care.gc.garbage_plan import plan_garbage
from uploader.format import layout as layouts
from uploader.format.cloud_cursor import CloudCursor
from uploader.format.entries import Fragment
from uploader.format.garbage import Garbage
from uploader.format.layout import MANIFEST_PREFIX
from uploader.format.setsum import Setsum
from uploader.layouts.log_session import find_root
from uploader.root.garbage_file import LOOK_SECONDS, TRUSTED_SECONDS
from uploader.root.root import Root
from uploader.stores import MemoryStore, RetryPolicy
from uploader.testing import FaultyStore
from uploader.testing.faults import happen_then_fail, timeout
from walstore.core.runtime.threads import Worker
from walstore.testing import ManualClock

MANIFESTS = {
    "swap": ("put_if_match", layouts.MANIFEST),
    "chain": ("put_if_absent", MANIFEST_PREFIX),
}


class Writing:
    """A log that is published to every second or so, as steadily as a test moves the clock."""

    def __init__(self, store: FaultyStore, root: Root, clock: ManualClock, layout: str) -> None:
        self.store = store
        self.root = root
        self.clock = clock
        self.layout = layout
        self.setsum = Setsum()

    async def publish(self, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        manifest = self.root.manifest
        seq_no, start = manifest.next_seq_no, manifest.next_offset
        setsum = Setsum.of_items([b"%d" % seq_no])
        key = self.root.fragment_key(seq_no, start=start, limit=start + 1, setsum=setsum)
        await self.root.publish([Fragment(key, seq_no, start, start + 1, 100, setsum)], "writer")
        await self.root.settle()
        self.setsum += setsum

    async def look(self) -> None:
        """Publish for so long that it looks for an announcement."""
        for _ in range(int(LOOK_SECONDS) + 1):
            await self.publish()

    async def announce(self, cutoff: int, *, cursors_checked: bool = True) -> Garbage:
        cut = plan_garbage(self.root.manifest, cutoff, {})
        assert cut is not None
        garbage = dataclasses.replace(cut.garbage, cursors_checked=cursors_checked)
        await self.store.inner.put_if_absent(layouts.GARBAGE, garbage.serialise())
        await self.stand(cutoff)
        return garbage

    async def stand(self, position: int, name: str = "reader") -> None:
        """Put a cursor, as a program does that looks for nothing."""
        cursor = CloudCursor(name=name, position=position, epoch_us=1, writer="w")
        key = layouts.cursor_path(name)
        await self.store.inner.put_if_absent(key, cursor.serialise())

    @property
    def looks(self) -> int:
        return self.store.count("get").requests

    def check(self, head: int) -> None:
        manifest = self.root.manifest
        manifest.scrub()
        assert manifest.oldest_offset == head
        assert manifest.setsum == self.setsum
        assert manifest.writer == "writer"


@pytest.fixture(params=["swap", "chain"])
async def writing(request) -> AsyncIterator[Writing]:
    store, clock, worker = FaultyStore(MemoryStore()), ManualClock(), Worker("test")
    retry = RetryPolicy(clock=clock, attempts=1)
    root = await find_root(store, retry=retry, worker=worker, layout=request.param)
    await root.load_or_create("writer")
    made = Writing(store, root, clock, request.param)
    for _ in range(4):
        await made.publish(0.0)
    yield made
    await root.aclose()
    worker.close()


async def test_it_is_dropped_with_the_next_manifest(writing):
    garbage = await writing.announce(3)
    await writing.look()
    writing.check(3)
    assert writing.root.manifest.initial_seq_no == garbage.limit_seq_no
    await writing.look()
    writing.check(3)


async def test_nothing_that_no_collector_vouches_for(writing):
    """Its cursors were not looked at since it was announced; wal3's never are."""
    await writing.announce(3, cursors_checked=False)
    await writing.look()
    await writing.look()
    writing.check(1)


async def test_what_a_cursor_holds_whatever_is_said(writing):
    """The word of the document is not enough: anybody may have put it."""
    await writing.announce(3)
    await writing.stand(2, "late")
    await writing.look()
    await writing.look()
    writing.check(1)


async def test_nothing_goes_without_a_cursor(writing):
    await writing.announce(3)
    await writing.store.inner.delete([layouts.cursor_path("reader")])
    await writing.look()
    await writing.look()
    writing.check(1)


async def test_a_rest_that_is_not_there(writing):
    """No manifest comes to name a snapshot that nobody has put."""
    garbage = await writing.announce(3)
    rest = snapshot_of(writing.root.manifest.fragments[1:2]).pointer()
    balanced = dataclasses.replace(
        garbage,
        snapshot_for_root=rest,
        first_to_keep=2,
        setsum_to_discard=garbage.setsum_to_discard - rest.setsum,
    )
    etag = (await writing.store.inner.get(layouts.GARBAGE)).etag
    await writing.store.inner.put_if_match(layouts.GARBAGE, balanced.serialise(), etag)
    await writing.look()
    await writing.look()
    writing.check(1)


async def test_what_was_seen_long_ago_is_not_dropped(writing):
    """It may have been given up since."""
    for _ in range(int(LOOK_SECONDS)):
        await writing.publish()
    await writing.announce(3)
    await writing.publish(0.5)
    writing.check(1)
    await writing.publish(TRUSTED_SECONDS)
    writing.check(1)


async def test_a_collection_that_is_given_up_is_forgotten(writing):
    await writing.announce(3)
    for _ in range(int(LOOK_SECONDS) - 1):
        await writing.publish()
    await writing.store.inner.delete([layouts.GARBAGE])
    await writing.look()
    writing.check(1)


async def test_who_publishes_now_and_then_does_not_look(writing):
    await writing.publish()
    before = writing.looks
    for _ in range(10):
        await writing.publish(LOOK_SECONDS)
    assert writing.looks == before


async def test_looks_are_rare(writing):
    before = writing.looks
    for _ in range(100):
        await writing.publish(0.1)
    assert writing.looks - before <= 10 / LOOK_SECONDS + 1


@pytest.mark.parametrize("data", [b"{", b"{}", Garbage(fragment_keys=("x",)).serialise()])
async def test_what_cannot_be_read_disturbs_nobody(writing, data):
    await writing.store.inner.put_if_absent(layouts.GARBAGE, data)
    await writing.look()
    await writing.look()
    writing.check(1)


async def test_a_look_that_fails_disturbs_nobody(writing):
    await writing.announce(3)
    plan = writing.store
    plan.on("get", happen_then_fail(timeout()), key_prefix=layouts.GARBAGE)
    await writing.look()
    writing.check(1)
    await writing.look()
    writing.check(3)


async def test_garbage_that_does_not_fit_any_more(writing):
    """What it takes was rolled up meanwhile, or somebody forged it: the writer goes on without."""
    garbage = await writing.announce(3)
    etag = (await writing.store.inner.get(layouts.GARBAGE)).etag
    wrong = dataclasses.replace(garbage, setsum_to_discard=Setsum.of_items([b"x"]))
    await writing.store.inner.put_if_match(layouts.GARBAGE, wrong.serialise(), etag)
    await writing.look()
    await writing.look()
    writing.check(1)


async def test_the_answer_to_the_manifest_that_drops_it_is_lost(writing):
    """The fragments are published once, called again with them."""
    await writing.announce(3)
    kind, prefix = MANIFESTS[writing.layout]
    for _ in range(int(LOOK_SECONDS)):
        await writing.publish()
    before = writing.root.manifest.next_seq_no
    writing.store.on(kind, happen_then_fail(timeout()), key_prefix=prefix, times=2)
    await writing.publish(0.5)
    await writing.publish(0.5)
    assert writing.root.manifest.next_seq_no == before + 2
    writing.check(3)
