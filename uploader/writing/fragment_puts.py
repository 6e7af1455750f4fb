"""FragmentPuts: puts built fragments, and looks at what lies in the store beside the manifest.

Owns the requests. What it means that a number is taken is for its callers to judge: the uploader of a
local log (``fragment_writer.py``) and writers without one (``cloud_writer.py``). Nothing is overwritten
but an object that its caller names. Never touches the manifest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from uploader import cas
from uploader.fragments.fragment import fragment_maker, fragment_timestamp, inspect_fragment
from uploader.fragments.fragment_builder import EncodedFragment
from uploader.manifests.entries import Fragment
from uploader.manifests.manifest import Manifest
from uploader.manifests.root import Root
from uploader.manifests.sealing import is_blocker
from uploader.stores.errors import ObjectNotFoundError
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.together import together
from uploader.writing.adoption import Orphan
from uploader.writing.building import Building, Records
from uploader.writing.patience import Patience
from walstore.errors import ContentionError, LogSealedError, OutcomeUnknownError
from walstore.threads import Worker


@dataclass(frozen=True, slots=True)
class Taken:
    """Another object lies where a fragment was to go."""

    key: str
    data: bytes = field(repr=False)
    etag: str


class FragmentPuts:
    """Puts fragments of one log. Any number of tasks may call it."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        root: Root,
        patience: Patience,
        retry: RetryPolicy,
        worker: Worker,
    ) -> None:
        self._store = store
        self._root = root
        self._patience = patience
        self._retry = retry
        self._worker = worker
        self.put_fragments = 0
        self.put_bytes = 0

    @property
    def manifest(self) -> Manifest:
        """The newest manifest known."""
        return self._root.manifest

    async def orphans(self) -> list[Orphan]:
        """Return the fragments behind the manifest's end, by number; reads each of them.

        CorruptionError for an object that is none.
        """
        found = []
        async for listed in self._root.unpublished():
            with contextlib.suppress(ObjectNotFoundError):  # somebody cleaned up meanwhile
                found.append(await self.inspect(listed.key))
        return found

    async def inspect(self, key: str) -> Orphan:
        """Return what the object at ``key`` holds, from nothing but its bytes."""
        stored = await self._store.get(key)
        return await self.examine(stored.data, key)

    async def examine(self, data: bytes, key: str) -> Orphan:
        """Return what an object found at ``key`` holds; CorruptionError if it is no fragment.

        LogSealedError if it is what a seal put there.
        """
        return await self._worker.run(_examine, data, key)

    async def build(
        self,
        building: Building,
        records: Records,
        seq_no: int,
        *,
        is_built: Callable[[], None] = lambda: None,
    ) -> tuple[EncodedFragment, Fragment | Taken]:
        """Complete a fragment by its last records and put it, as :meth:`create`; return it, too.

        It is hashed while it is being put, unless its key says its sum. ``is_built`` is called just before
        the store is asked.
        """
        key = self._root.early_key(seq_no)
        if key is None:
            built = await building.finish(records)
            is_built()
            return built, await self.create(built, seq_no)
        file = await building.write(records)
        is_built()
        async with together() as tasks:
            summing = tasks.create_task(building.sum())
            taken = await self._create(key, file.data)
            built = file.summed(await summing)
        return built, taken or self.entry(built, seq_no)

    async def create(self, built: EncodedFragment, seq_no: int) -> Fragment | Taken:
        """Put a fragment, once, however often the store has to be asked, and return its entry.

        Returns what lies there instead if another object does. Cancelled, it may have been put all the
        same, or be put later.
        """
        entry = self.entry(built, seq_no)
        return await self._create(entry.path, built.data) or entry

    async def replace(self, taken: Taken, built: EncodedFragment, seq_no: int) -> Fragment:
        """Put a fragment in the place of what is of no use to anybody; ContentionError if another
        replaced it first."""
        entry = self.entry(built, seq_no)
        result = await self._decided(partial(cas.swap, etag=taken.etag), taken.key, built.data)
        if result.outcome is cas.Outcome.LOST:
            raise ContentionError(
                f"another writer put {taken.key} in {self._store.url}; only one log may ship to a prefix"
            )
        self._count(built.data)
        return entry

    def entry(self, built: EncodedFragment, seq_no: int) -> Fragment:
        """Return the manifest's entry of a built fragment, as the one with that number."""
        key = self._root.fragment_key(
            seq_no, start=built.start, limit=built.limit, setsum=built.setsum
        )
        return Fragment(key, seq_no, built.start, built.limit, len(built.data), built.setsum)

    # -- inside ------------------------------------------------------------------------------

    async def _create(self, key: str, data: bytes) -> Taken | None:
        result = await self._decided(cas.create, key, data)
        if result.outcome is not cas.Outcome.LOST:
            self._count(data)
            return None
        assert result.data is not None
        assert result.etag is not None
        return Taken(key, result.data, result.etag)

    async def _decided(
        self, put: Callable[..., Awaitable[cas.PutResult]], key: str, data: bytes
    ) -> cas.PutResult:
        async def attempt() -> cas.PutResult:
            result = await put(self._store, key, data, retry=self._retry)
            if result.outcome is cas.Outcome.UNKNOWN:
                raise OutcomeUnknownError(
                    f"{self._store.url} did not say whether {key} was put"
                ) from result.cause
            return result

        return await self._patience.call(attempt)

    def _count(self, data: bytes) -> None:
        self.put_fragments += 1
        self.put_bytes += len(data)


def _examine(data: bytes, key: str) -> Orphan:
    if is_blocker(data):
        raise LogSealedError("the log is sealed; begin another one", location=key)
    return Orphan(
        inspect_fragment(data, key),
        fragment_timestamp(data, path=key),
        fragment_maker(data, path=key),
    )
