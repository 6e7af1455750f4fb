"""A log in a store, with cursors of two programs on it."""

from __future__ import annotations

from tests.uploader.documents import manifest_of
from uploader.care.gc.garbage_plan import plan_garbage
from uploader.format import layout
from uploader.format.garbage import Garbage, apply_garbage
from uploader.format.manifest import Manifest
from uploader.positions.cursors.cloud_cursors import CloudCursors
from uploader.stores.memory import MemoryStore
from uploader.stores.retry import RetryPolicy
from uploader.testing import FaultyStore
from walstore.testing import ManualClock

LOG = manifest_of(10, 10, 10)

PATH = "cursor/billing.json"


class Place:
    """A store with a log of offsets 1 to 30, and cursors on it."""

    def __init__(self, retry: RetryPolicy) -> None:
        self.inner = MemoryStore()
        self.store = FaultyStore(self.inner)
        self.clock = ManualClock()
        self.cursors = CloudCursors(
            self.store, newest=self.newest, retry=retry, clock=self.clock, writer="me"
        )
        self.other = CloudCursors(
            self.inner, newest=self.newest, retry=retry, clock=self.clock, writer="other"
        )
        self.manifest = LOG

    async def newest(self) -> Manifest:
        return self.manifest

    async def announce(self, first_to_keep: int) -> Garbage:
        """Say that a collection is about to drop what lies below."""
        cut = plan_garbage(self.manifest, first_to_keep, {})
        assert cut is not None
        await self.inner.put_if_absent(layout.GARBAGE, cut.garbage.serialise())
        return cut.garbage

    def drop(self, first_to_keep: int) -> None:
        cut = plan_garbage(self.manifest, first_to_keep, {})
        assert cut is not None
        after = apply_garbage(self.manifest, cut.garbage)
        assert after is not None
        self.manifest = after
