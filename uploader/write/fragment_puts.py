"""FragmentPuts: puts built fragments, and reads fragments that no manifest names.

Owns the requests. Its callers judge what it means that a number is taken: the uploader of a local log
(``fragment_writer.py``) and writers without one (``cloud_writer.py``). It overwrites only an object that its
caller names, and what can never be published. Never touches the manifest.

Where wal3's programs may write, too, one fragment is put at a time unless the caller wants otherwise: the
next one only once the one before is known to be there. Then whatever a crash leaves continues the log, and
any program may link it; ``orphan_recovery.py`` says what else could happen.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest, is_blocker
from uploader.fragments.fragment import (
    fragment_closings,
    fragment_maker,
    fragment_timestamp,
    inspect_fragment,
)
from uploader.fragments.fragment_builder import EncodedFragment
from uploader.root import cas
from uploader.root.orphan_recovery import VOID, Orphan, can_follow
from uploader.root.root import Root
from uploader.root.stored_document import read_object
from uploader.runtime.task_groups import task_group
from uploader.stores.errors import ObjectNotFoundError
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.write.encoding import Building, Records
from uploader.write.put_window import PutWindow, WindowedStore
from uploader.write.stall_guard import StallGuard
from walstore.errors import ContentionError, LogSealedError, OutcomeUnknownError
from walstore.runtime.threads import Worker

logger = logging.getLogger("walstore")

MayVoid = Callable[[Orphan], Awaitable[bool]]
"""Returns whether a fragment of another writer may be voided."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Another object is where a fragment was to go."""

    key: str
    data: bytes = field(repr=False)
    etag: str


def puts_at_once(root: Root, *, most: int, is_parallel: bool) -> int:
    """Return how many fragments of a log may be put at once: ``most``, or one where wal3 may write.

    ``is_parallel`` says that no other program opens the log for writing.
    """
    return most if is_parallel or not _is_numbered(root) else 1


def _is_numbered(root: Root) -> bool:
    """Return whether the key of a fragment is its number: wal3 takes any object there for it."""
    return root.early_key(layout.FIRST_SEQ_NO) is not None


@dataclass(frozen=True, slots=True)
class _FragmentAhead:
    """A fragment behind the log's end, and the ETag of its object."""

    orphan: Orphan
    etag: str


class FragmentPuts:
    """Puts fragments of one log. Any number of tasks may call it."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        root: Root,
        stall_guard: StallGuard,
        retry: RetryPolicy,
        worker: Worker,
        max_at_once: int = 1,
    ) -> None:
        """``max_at_once`` bounds the puts under way, see :func:`puts_at_once`; callers must respect it."""
        self._store = WindowedStore(store, PutWindow(max_at_once, retry.clock))
        self._root = root
        self._stall_guard = stall_guard
        self._retry = retry
        self._worker = worker
        self.max_at_once = max_at_once
        """How many fragments may be made at the same time."""
        self._ahead: dict[
            int, _FragmentAhead
        ] = {}  # by number: fragments of others, behind the log's end
        self.may_void: MayVoid = _always
        """Whether a fragment that can never be published may be voided."""
        self.put_fragments = 0
        self.put_bytes = 0

    @property
    def manifest(self) -> Manifest:
        """The newest manifest known."""
        return self._root.manifest

    async def orphans(self) -> list[Orphan]:
        """Return the fragments behind the manifest's end, by number; reads each of them.

        CorruptionError for an object that is not a fragment, unless :meth:`void_misfits` put it.
        """
        found = []
        self._ahead.clear()
        async for listed in self._root.unpublished():
            with contextlib.suppress(ObjectNotFoundError):  # it was cleaned up meanwhile
                stored = await read_object(self._store, listed.key)
                if stored.data == VOID:
                    continue
                orphan = await self.examine(stored.data, listed.key)
                found.append(orphan)
                if _is_numbered(self._root):
                    self._ahead[orphan.entry.seq_no] = _FragmentAhead(orphan, stored.etag)
        return found

    async def void_misfits(self, seq_no: int, offset: int) -> None:
        """Void what :meth:`orphans` found last and what can never follow a log that goes on there.

        The log is certain to go on with ``seq_no`` and ``offset``.
        """
        for ahead in list(self._ahead.values()):
            entry = ahead.orphan.entry
            if can_follow(entry, seq_no, offset):
                continue
            self._ahead.pop(entry.seq_no, None)
            if entry.seq_no >= seq_no and await self.may_void(ahead.orphan):
                await self._decided(partial(cas.swap, etag=ahead.etag), entry.path, VOID)
                logger.warning("%s: %s can never be part of the log", self._store.url, entry.path)

    async def void(self, entry: Fragment, data: bytes | None = None) -> None:
        """Void a fragment that no later manifest can name, unless the known one does.

        Where its key is not its number it is in no one's way. Only if it has the bytes ``data``; None: those
        that :meth:`orphans` found last.
        """
        if not _is_numbered(self._root) or entry.seq_no < self._root.manifest.next_seq_no:
            return
        if data is None:
            etag = self._ahead.pop(entry.seq_no).etag
        else:
            try:
                stored = await self._stall_guard.call(partial(read_object, self._store, entry.path))
            except ObjectNotFoundError:
                return
            if stored.data != data:
                return
            etag = stored.etag
        await self._decided(partial(cas.swap, etag=etag), entry.path, VOID)

    async def inspect(self, key: str) -> Orphan:
        """Return what the object at ``key`` holds, from its bytes alone."""
        stored = await read_object(self._store, key)
        return await self.examine(stored.data, key)

    async def examine(self, data: bytes, key: str) -> Orphan:
        """Return what an object found at ``key`` holds; CorruptionError if it is not a fragment.

        LogSealedError if a seal put it there.
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

        It is hashed while it is being put, unless its key contains its sum. ``is_built`` is called just
        before the request.
        """
        key = self._root.early_key(seq_no)
        if key is None:
            built = await building.finish(records)
            is_built()
            return built, await self.create(built, seq_no)
        file = await building.write(records)
        is_built()
        async with task_group() as tasks:
            summing = tasks.create_task(building.sum())
            taken = await self._create(key, file.data)
            built = file.summed(await summing)
        return built, taken or await self._is_put(self.entry(built, seq_no))

    async def create(self, built: EncodedFragment, seq_no: int) -> Fragment | Taken:
        """Put a fragment, once, however often the store has to be asked, and return its entry.

        Returns the other object if there is one already. Cancelled, it may have been put all the
        same, or be put later.
        """
        entry = self.entry(built, seq_no)
        return await self._create(entry.path, built.data) or await self._is_put(entry)

    async def replace(self, taken: Taken, built: EncodedFragment, seq_no: int) -> Fragment:
        """Put a fragment in the place of an object that is of no use; ContentionError if another writer
        replaced it first."""
        entry = self.entry(built, seq_no)
        result = await self._decided(partial(cas.swap, etag=taken.etag), taken.key, built.data)
        if result.outcome is cas.PutOutcome.LOST:
            raise ContentionError(
                f"another writer put {taken.key} in {self._store.url}; only one log may ship to a prefix"
            )
        self._count(built.data)
        return await self._is_put(entry)

    def entry(self, built: EncodedFragment, seq_no: int) -> Fragment:
        """Return the manifest's entry of a built fragment, as the one with that number."""
        key = self._root.fragment_key(
            seq_no, start=built.start, limit=built.limit, setsum=built.setsum
        )
        return Fragment(key, seq_no, built.start, built.limit, len(built.data), built.setsum)

    # -- inside ------------------------------------------------------------------------------

    async def _create(self, key: str, data: bytes) -> Taken | None:
        result = await self._decided(partial(cas.fill, nothing=VOID), key, data)
        if result.outcome is not cas.PutOutcome.LOST:
            self._count(data)
            return None
        assert result.data is not None
        assert result.etag is not None
        return Taken(key, result.data, result.etag)

    async def _is_put(self, entry: Fragment) -> Fragment:
        """A fragment of ours is there. Before it is published, void what cannot follow it then.

        Only where the log is certain to go on with it, since everything before it is there, too.
        """
        if self._ahead and self.max_at_once == 1:
            await self.void_misfits(entry.seq_no + 1, entry.limit)
        return entry

    async def _decided(
        self, put: Callable[..., Awaitable[cas.PutResult]], key: str, data: bytes
    ) -> cas.PutResult:
        async def attempt() -> cas.PutResult:
            result = await put(self._store, key, data, retry=self._retry)
            if result.outcome is cas.PutOutcome.UNKNOWN:
                raise OutcomeUnknownError(
                    f"{self._store.url} did not say whether {key} was put"
                ) from result.cause
            return result

        return await self._stall_guard.call(attempt)

    def _count(self, data: bytes) -> None:
        self.put_fragments += 1
        self.put_bytes += len(data)


async def _always(_: Orphan) -> bool:
    return True


def _examine(data: bytes, key: str) -> Orphan:
    if is_blocker(data):
        raise LogSealedError("the log is sealed; begin another one", location=key)
    entry = inspect_fragment(data, key)
    closings, streams = fragment_closings(data, path=key) or (None, frozenset())
    return Orphan(
        entry,
        fragment_timestamp(data, path=key),
        fragment_maker(data, path=key),
        closings,
        streams,
    )
