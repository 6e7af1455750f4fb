"""FragmentPuts: puts built fragments, and reads fragments that no manifest names.

Owns the requests. Its callers judge what it means that a number is taken: for a local log
:class:`FragmentWriter`, for writers without one ``shared_tail.py``. It overwrites only an object that its
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

from uploader.chain.inline import InlineStore
from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest, is_blocker
from uploader.fragments.fragment import fragment_closings, inspect_fragment
from uploader.fragments.fragment_builder import (
    Building,
    EncodedFragment,
    Encoders,
    Records,
    setsum_of,
)
from uploader.fragments.fragment_file import fragment_maker, fragment_timestamp
from uploader.root import cas
from uploader.root.orphan_recovery import VOID, Orphan, can_follow
from uploader.root.ownership import is_outdated, is_overtaken
from uploader.root.root import Root
from uploader.root.stored_document import read_object
from uploader.runtime.task_groups import task_group
from uploader.stores.port import ObjectNotFoundError
from uploader.write.stall_guard import PutWindow, WindowedStore, WriteContext
from walstore.core.batches.batch import Batch
from walstore.core.runtime.error_mapping import copy_error
from walstore.core.tier_port import LocalRecords
from walstore.errors import (
    ContentionError,
    FencedError,
    LogSealedError,
    OutcomeUnknownError,
    WalError,
)

logger = logging.getLogger("walstore.upload")

MayVoid = Callable[[Orphan], Awaitable[bool]]
"""Returns whether a fragment of another writer may be voided."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Another object is where a fragment was to go."""

    key: str
    data: bytes = field(repr=False)
    etag: str


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
        context: WriteContext,
        *,
        max_in_flight: int = 1,
        is_parallel: bool = False,
        may_inline: bool = False,
    ) -> None:
        """Put up to ``max_in_flight`` fragments at once, or one where wal3 may write; callers must respect
        :attr:`max_at_once`. ``is_parallel`` says that no other program opens the log for writing.
        ``may_inline``: fragments are published next, so the root may take them (``Root.take_content``)."""
        self._root = context.root
        self._may_inline = may_inline
        self._stall_guard = context.stall_guard
        self._retry = context.retry
        self._worker = context.worker
        self.max_at_once = max_in_flight if is_parallel or not _is_numbered(self._root) else 1
        """How many fragments may be made at the same time."""
        window = PutWindow(self.max_at_once, context.retry.clock)
        # Puts are read back here: a manifest's copy of a fragment is no proof that its object is there.
        self._store = WindowedStore(context.store, window)
        self._readable = InlineStore(context.store, context.worker, context.clock)
        # By number: fragments of others, behind the log's end.
        self._ahead: dict[int, _FragmentAhead] = {}
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
        self._root.begin_inline()
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
        """Void what :meth:`orphans` found last and what can never follow a log that continues there.

        The log is certain to continue with ``seq_no`` and ``offset``.
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
        stored = await read_object(self._readable, key)
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
        is_refused: Callable[[], None] = lambda: None,
    ) -> tuple[EncodedFragment, Fragment | Taken]:
        """Complete a fragment by its last records and put it, as :meth:`create`; return it, too.

        It is hashed while it is being put, unless its key contains its sum. ``is_built`` is called just
        before the request, ``is_refused`` if the store says that it put nothing, before its error is raised.
        """
        key = self._root.early_key(seq_no)
        if key is None:
            built = await building.finish(records)
            is_built()
            return built, await self.create(built, seq_no, is_refused)
        file = await building.write(records)
        is_built()
        async with task_group() as tasks:
            summing = tasks.create_task(building.sum())
            taken = await self._create(key, file.data, is_refused)
            built = file.summed(await summing)
        return built, taken or await self._is_put(self.entry(built, seq_no))

    async def create(
        self, built: EncodedFragment, seq_no: int, is_refused: Callable[[], None] = lambda: None
    ) -> Fragment | Taken:
        """Put a fragment, once, however often the store has to be asked, and return its entry.

        Returns the other object if there is one already. Cancelled, it may have been put all the
        same, or be put later.
        """
        entry = self.entry(built, seq_no)
        taken = await self._create(entry.path, built.data, is_refused)
        return taken or await self._is_put(entry)

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
        size_bytes = len(built.data)
        return Fragment(
            key, seq_no, built.start, built.limit, size_bytes, built.setsum, is_ours=True
        )

    # -- inside ------------------------------------------------------------------------------

    async def _create(self, key: str, data: bytes, is_refused: Callable[[], None]) -> Taken | None:
        if self._may_inline and self._root.take_content(key, data, self._store):
            self._count(data)
            return None
        try:
            result = await self._decided(partial(cas.fill, nothing=VOID), key, data)
        except WalError as error:
            if error.outcome == "not_written":
                is_refused()
            raise
        if result.outcome is not cas.PutOutcome.LOST:
            self._count(data)
            return None
        assert result.data is not None
        assert result.etag is not None
        return Taken(key, result.data, result.etag)

    async def _is_put(self, entry: Fragment) -> Fragment:
        """A fragment of ours is there. Before it is published, void what cannot follow it then.

        Only where the log is certain to continue with it, since everything before it is there, too.
        """
        if self._ahead and self.max_at_once == 1:
            await self.void_misfits(entry.seq_no + 1, entry.limit)
        return entry

    async def _decided(
        self, put: Callable[..., Awaitable[cas.PutResult]], key: str, data: bytes
    ) -> cas.PutResult:
        """Put until it is decided. After a put whose answer was lost, an error's outcome is unknown."""
        is_open = False

        async def attempt() -> cas.PutResult:
            nonlocal is_open
            result = await put(self._store, key, data, retry=self._retry)
            if result.outcome is cas.PutOutcome.UNKNOWN:
                is_open = True
                raise OutcomeUnknownError(
                    f"{self._store.url} did not say whether {key} was put"
                ) from result.cause
            return result

        try:
            return await self._stall_guard.call(attempt)
        except WalError as error:
            if not is_open:
                raise
            unknown = copy_error(error)
            unknown.outcome = "unknown"
            raise unknown from error

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


_READ_BYTES = 1 << 20

Turn = Callable[[], Awaitable[None]]
"""Returns when all fragments before one's own are published."""


class LateFragmentError(ContentionError):
    """An earlier put of ours arrived where another cut was to go: plan again and adopt it."""


class FragmentWriter:
    """Builds and puts fragments of a local log, and finds out whose the existing ones are.

    A number may be taken when its fragment is put: by an attempt of ours that was given up and arrived late,
    or by another writer. Ours are known by their content: the setsum over the same local records. Nothing is
    overwritten that any manifest could name, now or later. No manifest can name the fragments of a directory
    from which the log was taken over (``ownership.py``). Any number of tasks may call it.
    """

    def __init__(
        self, context: WriteContext, puts: FragmentPuts, encoders: Encoders | None = None
    ) -> None:
        self._context = context
        self._encoders = encoders
        self.puts = puts
        self.adopted_fragments = 0
        self.maker: str | None = None
        """The claim under which fragments are put; their footers contain it."""

    def begin(self) -> Building:
        """Return a fragment to be built, with the present time."""
        context = self._context
        return Building(
            context.worker,
            timestamp_us=context.clock.now_us(),
            writer=self.maker,
            encoders=self._encoders,
        )

    async def put(
        self,
        source: LocalRecords,
        seq_no: int,
        building: Building,
        batches: list[Batch],
        *,
        my_turn: Turn,
    ) -> Fragment:
        """Complete a fragment by its last batches and put it, once, however often the store has to be asked.

        Raises LateFragmentError and ContentionError if its number is taken. If cancelled, it
        may still have been put, or be put later.
        """
        built, found = await self.puts.build(building, lambda: batches, seq_no)
        while isinstance(found, Taken):
            orphan = await self.puts.examine(found.data, found.key)
            self.check_not_overtaken(orphan)
            is_dead = is_outdated(orphan.maker, self.puts.manifest)
            if not is_dead:
                await self._contest(source, orphan, built)
                if (orphan.entry.start, orphan.entry.limit) == (built.start, built.limit):
                    self.adopted_fragments += 1
                    return orphan.entry
            await my_turn()
            try:
                found = await self.puts.replace(found, built, seq_no)
            except ContentionError:
                if not is_dead:
                    raise
                found = await self.puts.create(built, seq_no)
        return found

    def check_not_overtaken(self, orphan: Orphan) -> None:
        """Raise FencedError if whoever put a fragment has taken the log over from this one."""
        if self.maker is not None and is_overtaken(orphan.maker, self.maker):
            raise FencedError(
                f"{self._context.url} was taken over by another directory of its log, which put "
                f"{orphan.entry.path}"
            )

    async def adopt(self, source: LocalRecords, orphan: Orphan) -> Fragment:
        """Return an orphan's entry after proving that it holds our records; see :meth:`prove`."""
        await self.prove(source, orphan)
        self.adopted_fragments += 1
        return orphan.entry

    async def prove(self, source: LocalRecords, orphan: Orphan) -> None:
        """Raise ContentionError unless a fragment holds exactly our records, and these are here."""
        if not await self.is_ours(source, orphan):
            raise ContentionError(
                f"{orphan.entry.path} in {self._context.url} holds other records than this log; "
                "another writer put it"
            )

    async def is_ours(self, source: LocalRecords, orphan: Orphan) -> bool:
        """Return whether a fragment holds exactly our records; False also if these are no longer here."""
        entry = orphan.entry
        if entry.start < source.head or entry.limit > source.durable_limit:
            return False
        batches = await gather(source, entry.start, entry.limit, most_bytes=None)
        setsum = await self._context.worker.run(setsum_of, batches, orphan.timestamp_us)
        return setsum == entry.setsum

    # -- inside ------------------------------------------------------------------------------

    async def _contest(self, source: LocalRecords, orphan: Orphan, built: EncodedFragment) -> None:
        """Raise unless the object in our way is ours, and either equivalent or of no use.

        It is of no use if it does not begin where the fragment before it ends: no manifest can ever
        name it once that one is published. Otherwise one could, so it must be adopted.
        """
        await self.prove(source, orphan)
        if orphan.entry.start == built.start and orphan.entry.limit != built.limit:
            raise LateFragmentError(f"an earlier put of {orphan.entry.path} arrived late")


async def gather(
    source: LocalRecords, position: int, limit: int, *, most_bytes: int | None
) -> list[Batch]:
    """Return local batches of ``[position, limit)``.

    All of it, or with ``most_bytes`` as many as reach that size, the last one whole.
    """
    batches: list[Batch] = []
    size = 0
    while position < limit and (most_bytes is None or size < most_bytes):
        missing = _READ_BYTES if most_bytes is None else most_bytes - size
        for batch in await source.read_local(position, limit, missing):
            batches.append(batch)
            size += batch.nbytes
            position = batch.limit
    return batches
