"""Copies of a log as asyncio sees them: one in this process, or one at another node.

``catch_up`` makes a copy agree with another one and continue it. It is used in both directions: by a
primary for its replicas, and once, at a takeover, by the new primary for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from walstore.cluster.replication.position import (
    NOTHING,
    CopyEnd,
    Place,
    SegmentExtent,
    common_frames,
    newest_common,
)
from walstore.cluster.replication.promise import Promise
from walstore.cluster.replication.replica import Replica
from walstore.core.files.directory import REMAKE
from walstore.core.files.unlinked_file import OPEN_AT_ONCE, free_at_once, free_blocks
from walstore.core.format.segment import HEADER_BYTES
from walstore.core.ports import Buffer
from walstore.core.runtime.error_mapping import copy_error, is_full, to_wal_error
from walstore.core.runtime.threads import Lane
from walstore.errors import CorruptionError, StorageUnavailableError, WalClosedError, WalError

_T = TypeVar("_T")
_COMPARED_BYTES: Final = (16 << 10, 256 << 10)
"""Of the end of a segment, before all of it."""
READ_BYTES: Final = 1 << 20
"""What one message carries at most."""


class SourceCopy(Protocol):
    """A copy that others are made of."""

    async def extents(self) -> Sequence[SegmentExtent]:
        """Return its segments, oldest first."""

    async def frames(self, start: int, begin: int = 0) -> Sequence[Sequence[int]]:
        """Return the ends of a segment's frames from byte ``begin`` on, and their CRCs."""

    async def read(self, place: Place, size: int) -> bytes:
        """Return bytes of a segment's file, if it is still the one that was made at that time.

        CorruptionError if a frame that one of them belongs to is not whole."""


class TargetCopy(SourceCopy, Protocol):
    """A copy that is made of another one."""

    async def write(self, place: Place, pieces: Sequence[Buffer], *, seals: bool) -> Place:
        """Write bytes of files at its end, and return up to where it is durable. CorruptionError if a frame
        is not whole."""

    async def cut(
        self, start: int, position: int, *, agreed: tuple[int, int] | None = None, first: int = 0
    ) -> None:
        """Remove what is behind a byte of a segment; as :meth:`Replica.cut`."""


class _QueuedWrite(NamedTuple):
    """A write that waits for its turn."""

    place: Place
    pieces: Sequence[Buffer]
    seals: bool
    checks: bool
    by: Promise | None
    floor: int
    future: asyncio.Future[Place]


class LocalCopy:
    """A copy in this process. Its calls run one after the other, and writes share syncs."""

    def __init__(self, replica: Replica, lane: Lane) -> None:
        """``lane`` is the replica's own."""
        self._replica = replica
        self._lane = lane
        self._writes: list[_QueuedWrite] = []
        self._writing: asyncio.Future[list[Place | WalError]] | None = None
        self._is_closed = False
        self.had = NOTHING
        """Where it ended before its primary began to replace all of it."""

    async def obey(
        self,
        epoch: int,
        primary: str,
        *,
        generation: int = 0,
        joined: int = 0,
        is_elected: bool = False,
    ) -> CopyEnd:
        """Promise to obey a primary; as :meth:`Replica.obey`."""
        await self.settled()
        obey = partial(
            self._replica.obey,
            epoch,
            primary,
            generation=generation,
            joined=joined,
            is_elected=is_elected,
        )
        return await self._run(obey)

    @property
    def is_whole(self) -> bool:
        """Whether what it says counts."""
        return self._replica.promise.is_whole

    async def make_whole(self, *, by: Promise | None = None) -> None:
        """Let what it says count from now on, durably."""
        await self.settled()
        await self._run(self._for, by, self._replica.make_whole)

    async def extents(self) -> Sequence[SegmentExtent]:
        """As of :class:`SourceCopy`."""
        return await self._run(self._replica.extents)

    async def frames(self, start: int, begin: int = 0) -> Sequence[Sequence[int]]:
        """As of :class:`SourceCopy`."""
        return await self._run(self._replica.frames, start, begin)

    async def read(self, place: Place, size: int) -> bytes:
        """As of :class:`SourceCopy`."""
        return await self._run(self._replica.read, place, size)

    async def cut(
        self,
        start: int,
        position: int,
        *,
        agreed: tuple[int, int] | None = None,
        first: int = 0,
        by: Promise | None = None,
    ) -> None:
        """As of :class:`TargetCopy`."""
        await self.settled()
        cut = partial(self._replica.cut, start, position, agreed=agreed, first=first)
        await self._run(self._for, by, cut)

    async def note_floor(self, floor: int, *, by: Promise) -> None:
        """As :meth:`Replica.note_floor`."""
        if floor > self._replica.note.floor:
            await self._run(self._for, by, self._replica.note_floor, floor)

    @property
    def end(self) -> CopyEnd:
        """Where it ends, as of the last call."""
        return self._replica.end

    @property
    def damaged(self) -> Mapping[int, str]:
        """As :attr:`Replica.damaged`."""
        return self._replica.damaged

    async def check_inside(self) -> None:
        """As :meth:`Replica.check_inside`."""
        await self._run(self._replica.check_inside)

    async def check(self, start: int, begin: int = 0, most_bytes: int | None = None) -> int:
        """As :meth:`Replica.check`."""
        return await self._run(self._replica.check, start, begin, most_bytes)

    async def mend(self, place: Place, data: bytes, *, by: Promise | None = None) -> int:
        """As :meth:`Replica.mend`."""
        return await self._run(self._for, by, self._replica.mend, place, data)

    async def trim(self, head: int, *, by: Promise | None = None) -> None:
        """Remove the segments wholly below the head, and free their blocks between other calls."""
        while True:
            unlinked = await self._run(self._for, by, self._replica.trim, head)
            try:
                for file in unlinked:
                    await free_blocks(file, self._lane)
            finally:
                free_at_once(unlinked, self._lane)
            if len(unlinked) < OPEN_AT_ONCE:
                return

    async def keep_hint(self, place: Place, data: bytes, *, by: Promise | None = None) -> None:
        """Keep a checkpoint of the primary, if everything that it describes is here."""
        await self._run(self._for, by, self._replica.keep_hint, place, data)

    async def write(
        self, place: Place, pieces: Sequence[Buffer], *, seals: bool, by: Promise | None = None
    ) -> Place:
        """As of :class:`TargetCopy`; see :meth:`begin_write`."""
        return await self.begin_write(place, pieces, seals=seals, checks=True, by=by)

    def begin_write(
        self,
        place: Place,
        pieces: Sequence[Buffer],
        *,
        seals: bool,
        checks: bool = False,
        by: Promise | None = None,
        floor: int = 0,
    ) -> asyncio.Future[Place]:
        """Begin a write, or queue it behind the one that has begun.

        ``checks``: they were read from a file; see :meth:`Replica.write`.
        Writes are done in the order of the calls, also of those whose futures are cancelled. ``by`` is the
        primary that asks, if it is another machine: checked when its turn has come; ``floor`` is what it says
        is replicated.
        """
        self._check_open()
        future: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._writes.append(_QueuedWrite(place, pieces, seals, checks, by, floor, future))
        if self._writing is None:
            self._write_queued()
        return future

    async def settled(self) -> None:
        """Return when no write is under way."""
        while self._writing is not None:
            await asyncio.wait((self._writing,))

    async def aclose(self) -> None:
        """Finish the calls that have begun, and close the files. Later ones raise WalClosedError."""
        await self.settled()
        self._is_closed = True  # nothing opens a file again once the directory is unlocked
        await _storing(self._lane.run_through(self._replica.close))

    def _write_queued(self) -> None:
        """Begin to write what waits, all of it with one sync."""
        writes, self._writes = self._writes, []
        call = partial(self._write_some, writes)
        try:
            self._writing = self._lane.begin_through(call, then=partial(self._written, writes))
        except WalError as error:
            self._written(writes, [error] * len(writes))

    def _written(self, writes: Sequence[_QueuedWrite], answers: Sequence[Place | WalError]) -> None:
        """Answer writes, after the next ones have begun."""
        self._writing = None
        if self._writes:
            self._write_queued()
        for write, answer in zip(writes, answers, strict=True):
            if write.future.done():
                continue
            if isinstance(answer, WalError):
                write.future.set_exception(copy_error(answer))
                write.future.exception()
            else:
                write.future.set_result(answer)

    def _write_some(self, writes: Sequence[_QueuedWrite]) -> list[Place | WalError]:
        """Write all that can be, and return what became of each: some may be of another primary."""
        try:
            answers = [self._write_one(write) for write in writes]
            durable = self._replica.sync()
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            return [_unstored(error) for _ in writes]
        return [error or durable for error in answers]

    def _write_one(self, write: _QueuedWrite) -> WalError | None:
        try:
            if write.by is not None:
                self._replica.promise.check_same(*write.by.author)
            self._replica.write(write.place, write.pieces, seals=write.seals, checks=write.checks)
            self._replica.note.raise_floor(write.floor)
        except WalError as error:
            return error
        return None

    def _for(self, by: Promise | None, call: Callable[..., _T], *args: object) -> _T:
        """Do what a primary asks for, if the copy still obeys it."""
        if by is not None:
            self._replica.promise.check_same(*by.author)
        return call(*args)

    async def _run(self, call: Callable[..., _T], *args: object) -> _T:
        self._check_open()
        return await _storing(self._lane.run_through(call, *args))

    def _check_open(self) -> None:
        if self._is_closed:
            raise WalClosedError("this machine keeps the copy no longer, or leads the log now")


async def _storing(call: Awaitable[_T]) -> _T:
    """Return what a call on the files returns; StorageUnavailableError if they cannot be used."""
    try:
        return await call
    except OSError as error:
        raise _unstored(error) from error


def _unstored(error: Exception) -> WalError:
    """Return the error for a call on the files that raised one."""
    if not isinstance(error, OSError):
        return to_wal_error(error, "unknown")
    text = "no space for the copy" if is_full(error) else "the copy cannot be read or written"
    return StorageUnavailableError(f"{text}: {error}", outcome="unknown")


async def catch_up(
    source: SourceCopy,
    target: TargetCopy,
    end: CopyEnd,
    *,
    log_id: bytes,
    replaces: bool = False,
) -> Place:
    """Make a copy agree with its source, cut what the source does not have, and copy the rest.

    Returns where the target ends, durably: where the source ended when this was called. ``end`` is where
    the target ends before, ``log_id`` the source's identity. CorruptionError if the target knows more to be
    replicated than the source has, or belongs to
    another log: nothing of that is removed, unless the copy ``replaces`` it. That is for a copy that
    counts: it may be of the same log when its making failed, before anything was acknowledged. Also for
    damage in the source: nothing of that is copied, and nothing cut for it.
    StorageUnavailableError if the source changed meanwhile: call again.
    """
    if end.log_id and end.log_id != log_id:
        if not replaces:
            raise CorruptionError(
                "a copy of another log has this one's name; give the log another name, or remove that copy",
                path="replication",
                expected=log_id.hex(),
                found=end.log_id.hex(),
            )
        await target.cut(0, 0)
        end = NOTHING
    extents = list(await source.extents())
    place = await _agree(source, target, extents, end, counts=replaces)
    for extent in extents:
        if place.segment and extent.start < place.segment:
            continue
        is_begun = extent.start == place.segment
        at = place if is_begun else Place(extent.start, extent.created_us, 0)
        place = await _copy(source, target, at, extent.size, is_sealed=extent.is_sealed)
    return place


async def _agree(
    source: SourceCopy,
    target: TargetCopy,
    extents: Sequence[SegmentExtent],
    end: CopyEnd,
    *,
    counts: bool,
) -> Place:
    """Cut off the target what its source does not have; return where it ends then."""
    nowhere = Place(0, 0, 0)
    if not end.log_id or not extents:
        return nowhere
    theirs = list(await target.extents())
    own = newest_common(extents, theirs)
    if own is None:  # all of it is older than the source, or none of it is the source's
        _check_no_gap(end.first, theirs[0].start)
        await target.cut(0, 0, first=extents[0].start)
        return nowhere
    # Also of sealed ones: two primaries may have sealed one segment, with other frames of the same size.
    agreed, is_end = await _agreed(source, target, own, extents)
    if agreed < min(own.size, next(one.size for one in extents if one.start == own.start)):
        # Frames differ there, or are damaged: then the target may have what the source has not.
        await source.read(Place(own.start, own.created_us, agreed), 1)
        agreed, is_end = await _agreed(source, target, own, extents)  # reading may have repaired it
    if not counts and end.first > extents[0].start:  # the rest of a copy
        await target.cut(0, 0, agreed=(own.start, agreed))
        return nowhere
    if agreed < own.size or theirs[-1].start != own.start:
        if is_end:
            _check_no_gap(_behind(own, extents), _behind(own, theirs))
        await target.cut(own.start, agreed)
    return Place(own.start, own.created_us, agreed)


def _behind(own: SegmentExtent, extents: Sequence[SegmentExtent]) -> int:
    """Return where the segment after one begins; 0 if there is none."""
    return next((one.start for one in extents if one.start > own.start), 0)


def _check_no_gap(expected: int, found: int) -> None:
    """Raise CorruptionError if a target lacks what it should have before what would be cut.

    It may have been replicated, and what is cut would take away that it was there.
    """
    if expected and found and expected != found:
        raise CorruptionError(
            f"the copy has a gap, or damage, before offset {found}, and differs from the log behind it, so "
            f"that they cannot be compared; nothing was cut. There, {REMAKE}",
            path="replication",
            expected=expected,
            found=found,
        )


async def _agreed(
    source: SourceCopy, target: TargetCopy, own: SegmentExtent, extents: Sequence[SegmentExtent]
) -> tuple[int, bool]:
    """Return up to which byte two copies of a segment agree, and whether neither has frames behind it.

    Normally they differ at the end only, and one frame in common proves all before it. So the last frames
    are compared first: a segment may have half a million.
    """
    size = min(extent.size for extent in (own, *extents) if extent.start == own.start)
    for begin in (*(max(0, size - compared) for compared in _COMPARED_BYTES), 0):
        ours = await source.frames(own.start, begin)
        theirs = await target.frames(own.start, begin)
        agreed = common_frames(ours, theirs)
        if agreed > HEADER_BYTES or begin == 0:
            return agreed, all(not one or one[-1][0] == agreed for one in (ours, theirs))
    raise AssertionError("the last comparison is whole")


async def _copy(
    source: SourceCopy, target: TargetCopy, at: Place, limit: int, *, is_sealed: bool
) -> Place:
    """Copy one segment from a place on."""
    place = at
    while at.position < limit:
        data = await source.read(at, min(READ_BYTES, limit - at.position))
        if not data:
            raise StorageUnavailableError("the log that is copied changed; it is copied again")
        end = at._replace(position=at.position + len(data))
        seals = is_sealed and end.position == limit
        place = await target.write(at, [data], seals=seals)
        at = end
    return max(place, at)
