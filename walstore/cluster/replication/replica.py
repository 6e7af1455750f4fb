"""Replica: the copy of a log on a machine that does not write it. Blocking; one call at a time.

The bytes of segment files arrive in order and are written as they are. What a replica said is durable, and
its promise, survive a crash of its machine; it then cuts what was torn off, as the log itself does.

Invariants (tests/walstore/cluster/replication/test_replica.py)
  P1  A promise is durable before it is given, and nothing of an earlier primary is taken after it.
  P2  Bytes continue what is there, to the byte. So a segment before the last one that is missing, cut short
      or damaged was whole once: the last one says where the copy ends, and what it lacks is put back in
      place from another copy. Nothing is cut or begun again for it.
  P3  What :meth:`sync` reported is there after a crash.
  P4  The checkpoint and cell of a time as primary are gone, durably, before anything is changed: they speak
      of what this machine wrote, and of an epoch that may have come to nothing. A checkpoint that the
      primary sent is kept only while everything that it describes is here, durably: it is gone first.
  P5  After a write or sync that failed nothing is taken, and nothing called durable, before the files have
      been looked at again: what the system keeps in memory is not what the disk has.
  P6  After each sync the copy notes, in the file SYNCED, the end of the last frame that is durable. A copy
      that ends before that is damaged, and obeys nobody: it may lack what it acknowledged. The note is gone,
      durably, before frames that it speaks of are cut or begun again.
  P7  What the copy knows to be replicated is not cut, and not begun again (``files/floor.py``).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, Self

from walstore.cluster.replication.copy_hints import CopyHints
from walstore.cluster.replication.position import NOTHING, CopyEnd, Place, SegmentExtent
from walstore.cluster.replication.promise import Promise, keep_promise, load_promise
from walstore.cluster.replication.synced_note import SyncedNote
from walstore.core.files.directory import (
    LOCK_NAME,
    PROMISE_NAME,
    REMAKE,
    pick_segments,
    read_segment_header,
)
from walstore.core.files.directory_scan import has_segment, look_again
from walstore.core.files.floor import limit_at, two_histories
from walstore.core.files.frame_stream import (
    CheckedReads,
    FrameStream,
    check_segment,
    unreadable_is_damage,
)
from walstore.core.files.frame_walk import frames_of
from walstore.core.files.locks import this_process
from walstore.core.files.mended_segment import drop_unfinished, mend_segment, segment_salt
from walstore.core.files.open_files import ActiveFile
from walstore.core.files.segment_file import Segment, load_summary, seal_of
from walstore.core.files.unlinked_file import OPEN_AT_ONCE, UnlinkedFile, unlink
from walstore.core.format import segment
from walstore.core.format.segment import HEADER_BYTES, SegmentHeader
from walstore.core.ports import Buffer, FileSystem
from walstore.errors import ContentionError, CorruptionError, StorageUnavailableError
from walstore.log.entered import enter_log
from walstore.log.log_end import recover_end

logger = logging.getLogger("walstore.replication")

_RESERVED_BYTES: Final = 64 << 20
"""Blocks are reserved ahead up to this size of a segment."""


class Replica:
    """One log's files, locked by this process."""

    @classmethod
    def open(cls, fs: FileSystem, directory: Path) -> Self:
        """Lock and recover the copy in a directory, or make an empty one. As :func:`enter_log` raises."""
        entered = enter_log(directory, fs=fs, owner=this_process())
        try:
            return cls(entered.fs, entered.directory, entered.release)
        except BaseException:
            entered.release()
            raise

    def __init__(self, fs: FileSystem, directory: Path, release: Callable[[], None]) -> None:
        """Take the copy in a directory that is locked until ``release`` is called."""
        self._fs, self._directory = fs, directory
        self.release = release
        """Unlocks the directory; twice is allowed."""
        self.promise = load_promise(self._fs, self._directory)
        """Whom it obeys."""
        self._file: ActiveFile | None = None
        self._header: SegmentHeader | None = None
        self._is_sealed = False
        self._has_failed = self._has_written = False
        """Whether a write or sync failed since the files were looked at."""
        self.note = SyncedNote(self._fs, self._directory)
        """What it knows of itself: how far it was synced, and is replicated."""
        self._reads = CheckedReads(self._fs)
        self._stream: FrameStream | None = None
        """Checks what another copy read from its files."""
        self._sound: dict[int, SegmentExtent] = {}
        """Sealed segments that were found to be whole since this process has the copy."""
        self.damaged: Mapping[int, str] = {}
        """Segments before the last one that are missing, or have a damaged header or footer, as far as the
        last look showed; as of :func:`find_damaged`."""
        self._trimmed = 0
        """Below which head its primary had segments removed."""
        drop_unfinished(self._fs, self._directory)
        self._hints = CopyHints(self._fs, self._directory)
        self.end = self._recover()
        """Where it ends; its epoch and limit are those of the last look."""

    # -- whom it obeys -----------------------------------------------------------------------

    def obey(
        self,
        epoch: int,
        primary: str,
        *,
        generation: int = 0,
        joined: int = 0,
        is_elected: bool = False,
    ) -> CopyEnd:
        """Promise to obey a primary, durably, and return where the copy ends.

        ``joined`` is the generation of the list of copies in which this one came into it. If it had a promise
        before that, it was out of the list meanwhile, and is not whole any more: it may lack what the others
        acknowledged. A primary that knows this copy to have had more asks again, as if it came only now.
        FencedError if a later primary, or another one of that epoch, has its promise; see
        :meth:`Promise.check`.
        """
        self.promise.check(epoch, primary, generation=generation, is_elected=is_elected)
        known = self.promise
        is_whole = known.is_whole and known.generation >= joined
        if (epoch, primary) != known.author:
            self._trimmed = 0  # what this one's log has is not to be removed
            self._keep(Promise(epoch, primary, is_whole, generation))
            self._has_failed |= self._has_written  # another primary: trust nothing but the files
        elif is_whole != known.is_whole:
            logger.warning(
                "%s was put back from an older state, and is made again", self._directory
            )
            self._keep(known._replace(is_whole=is_whole))
        if self._has_failed:
            self.end = self._recover()
        self.sync()  # what is reported as present counts as durable
        if self._has_written:
            start, _, position = self.end.place
            limit = limit_at(self._fs, self._path(start), start, position)
            self.end = self.end._replace(limit=limit)
        return self.end

    def make_whole(self) -> None:
        """Let what this copy says count from now on, durably."""
        if not self.promise.is_whole:
            self._keep(self.promise._replace(is_whole=True))

    def _keep(self, promise: Promise) -> None:
        keep_promise(self._fs, self._directory, promise)
        self.promise = promise

    # -- what it has -------------------------------------------------------------------------

    def extents(self) -> list[SegmentExtent]:
        """Return its segments, oldest first, but for damaged ones before the last, as far as is known."""
        *inner, last = pick_segments(self._directory, self._fs.list(self._directory)) or [0]
        found = []
        for start in inner:
            with contextlib.suppress(CorruptionError), unreadable_is_damage(self._path(start)):
                extent = self._extent(start)
                if extent.is_sealed and start not in self.damaged:
                    found.append(extent)
        return [*found, self._extent(last)] if last else []

    def _extent(self, start: int) -> SegmentExtent:
        header = read_segment_header(self._fs, self._directory, start)
        if self._header is not None and start == self._header.start:
            size, is_sealed = self.end.place.position, self._is_sealed
        else:
            with contextlib.closing(self._fs.open(self._path(start), "r")) as file:
                size, is_sealed = file.size(), seal_of(file) is not None
        return SegmentExtent(start, header.salt or 0, header.created_us, size, is_sealed)

    def frames(self, start: int, begin: int = 0) -> list[tuple[int, int]]:
        """Return the ends of a segment's frames from byte ``begin`` on, and their CRCs."""
        return frames_of(self._fs, self._path(start), begin)

    def read(self, place: Place, size: int) -> bytes:
        """Return bytes of a segment: those that are there. As :meth:`CheckedReads.read` raises."""
        start, created_us, position = place
        end = self.end.place
        if start == end.segment:
            size = max(0, min(size, end.position - position))
        return self._reads.read(self._path(start), start, created_us, position, size)

    # -- changing it -------------------------------------------------------------------------

    def write(
        self,
        place: Place,
        pieces: Sequence[Buffer],
        *,
        seals: bool = False,
        checks: bool = False,
    ) -> None:
        """Write bytes at a place, which is the end; at byte 0 they begin a segment, with its header.

        With ``seals`` they end with its footer. ContentionError if they do not continue the copy, or an
        earlier write or sync failed: then :meth:`obey` finds out what is there. OSError.

        With ``checks`` somebody read them from a file: CorruptionError for a frame that is not whole, before
        its last byte is written. The first such call for a segment has to begin where a frame does.
        """
        self._check_sound()
        if checks:
            self._check_pieces(place, pieces, seals=seals)
        else:
            self._stream = None
        self._has_written = True
        with self._noting_failure():
            self._write(place, pieces, seals=seals)

    def _write(self, place: Place, pieces: Sequence[Buffer], *, seals: bool) -> None:
        if not place.position:
            self._begin(place, pieces, seals=seals)
            return
        if place != self.end.place or self._is_sealed or self._file is None:
            raise ContentionError(
                f"the bytes at {place} do not continue the copy at {self.end.place}"
            )
        if self._hints.are_own:
            self._hints.forget()
        size = self._file.write(pieces)
        self.end = self.end._replace(place=place._replace(position=place.position + size))
        if seals:
            self._file.sync()
            self._file.trim()
            self._is_sealed = True

    def _check_pieces(self, place: Place, pieces: Sequence[Buffer], *, seals: bool) -> None:
        stream, self._stream = self._stream, None
        path, header = self._path(place.segment), self._header
        if not place.position:
            self._check_follows(place.segment)
            stream = FrameStream(path, place.segment)
        elif place != self.end.place or header is None:
            return  # they are refused
        elif stream is None or stream.position != place.position:
            stream = FrameStream.behind(path, place.segment, header.salt, place.position)
        for piece in pieces:
            stream.feed(piece)
        if seals:
            stream.finish()
        self._stream = stream

    def _check_follows(self, start: int) -> None:
        """CorruptionError if segments are missing between the last one, which is sealed, and a new one."""
        last = self._header
        if last is None or start <= last.start or not self._is_sealed:
            return
        limit = load_summary(self._fs, Segment(self._path(last.start), last.start)).limit
        if start != limit:
            raise CorruptionError(
                "a segment is missing in the copy that this one is made of",
                path=str(self._directory),
                expected=segment.file_name(limit),
                found=segment.file_name(start),
            )

    def sync(self) -> Place:
        """Make all that was written durable; return how far that is. Raises as :meth:`write`."""
        self._check_sound()
        with self._noting_failure():
            if self._file is not None and self._file.has_unsynced:
                self._file.sync()
            if self._file is not None and self._header is not None:
                self.note.store(self._file, self._header, self.end.place)
        return self.end.place

    def note_floor(self, floor: int) -> None:
        """Raise the floor, with a sync unless a write or sync failed. OSError."""
        if floor > self.note.floor:
            self.note.raise_floor(floor)
            if not self._has_failed:
                self.sync()

    def keep_hint(self, place: Place, data: bytes) -> None:
        """Keep a checkpoint of the primary, of the log up to a place, if all of that is here. OSError.

        It bounds what the next look at the files, and opening the log here, have to read.
        """
        if self._has_failed or self._header is None or self.sync() < place:
            return
        self._hints.keep(place, data, self._header.log_id)

    def cut(
        self, start: int, position: int, *, agreed: tuple[int, int] | None = None, first: int = 0
    ) -> None:
        """Remove everything behind a byte of a segment, durably; with ``position`` 0 the segment, too.

        The primary has what is here up to ``agreed``, a segment and a byte, or up to the cut, and nothing
        below the offset ``first``. CorruptionError, with nothing changed, if this copy knows more to be
        replicated.
        """
        self._check_floor(*(agreed or (start, position)), first)
        self._has_failed = True  # until it was looked at again
        self.note.differs_from = 0
        self._hints.forget()
        self.note.forget()
        self._close_file()
        self._sound = {at: one for at, one in self._sound.items() if at < start}
        starts = pick_segments(self._directory, self._fs.list(self._directory))
        for at in reversed(starts):
            if at > start or (at == start and not position):
                self._fs.remove(self._path(at))
                self._fs.sync_directory(self._directory)
        if position and start in starts:
            with contextlib.closing(self._fs.open(self._path(start), "r+")) as file:
                file.truncate(max(min(position, file.size()), HEADER_BYTES))  # it never grows
                file.datasync()
        self.end = self._recover()

    def trim(self, head: int) -> list[UnlinkedFile]:
        """Remove the segments wholly below the head, and return files with blocks to be freed.

        If these are :data:`OPEN_AT_ONCE`, call it again once they are freed: there may be more.
        """
        self._trimmed = max(self._trimmed, head)
        unlinked: list[UnlinkedFile] = []
        starts = pick_segments(self._directory, self._fs.list(self._directory))
        try:
            for start, following in pairwise(starts):
                if following > head or len(unlinked) == OPEN_AT_ONCE:
                    break
                self._hints.forget()  # the checkpoint may say that the segment is there
                found = unlink(self._fs, self._path(start))
                if found is not None:
                    unlinked.append(found)
                self._fs.sync_directory(self._directory)
                self.end = self.end._replace(first=following)
        except BaseException:
            for file in unlinked:
                file.close()
            raise
        return unlinked

    def check(self, start: int, begin: int = 0, most_bytes: int | None = None) -> int:
        """Check the frames of a segment, or some of them, as :func:`check_segment`; return up to where.

        A whole segment, without ``most_bytes``, is read once: a new copy counts when all of it was checked,
        and its primary may change meanwhile. CorruptionError at ``begin`` for one that is missing.
        """
        path = self._path(start)
        try:
            with unreadable_is_damage(path):
                extent = self._extent(start)
        except FileNotFoundError:
            if not self._is_lost(start):
                raise
            text = "the segment's file is missing"
            raise CorruptionError(text, path=str(path), position=begin) from None
        is_sealed = extent.is_sealed or start != self.end.place.segment
        is_all = most_bytes is None and not begin and is_sealed
        if is_all and self._sound.get(start) == extent:
            return extent.size
        sound = extent if is_all else self._sound.get(start)
        self._sound.pop(start, None)
        reached = check_segment(
            self._fs,
            path,
            start,
            extent.created_us,
            extent.size,
            is_sealed=is_sealed,
            begin=begin,
            most_bytes=most_bytes,
        )
        if sound is not None:
            self._sound[start] = sound
        return reached

    def _is_lost(self, start: int) -> bool:
        """Return whether a segment that its primary has should be there: it had nothing removed there."""
        return min(self.end.first, self._trimmed) <= start < self.end.place.segment

    def mend(self, place: Place, data: bytes) -> int:
        """Put whole frames, or a footer, where a segment is damaged, durably; return how many bytes changed.

        Of segments older than all that are here the newest comes first, so that there is no gap between them.
        CorruptionError if they are damaged themselves, ContentionError if they go beyond the end. OSError.
        """
        start, created_us, position = place
        end, path = self.end.place, self._path(start)
        if (start, position + len(data)) > (end.segment, end.position):
            raise ContentionError(f"frames at {place} behind the end, {end}")
        stream = FrameStream(path, start)
        if position:
            salt = segment_salt(self._fs, path)
            stream = FrameStream.behind(path, start, salt, position)
        stream.feed(data)
        if stream.is_inside:
            stream.finish()
        if not self._is_lost(start) and path.name not in self._fs.list(self._directory):
            raise ContentionError(f"segment {start} was removed")
        self._sound.pop(start, None)
        is_complete = start < self.end.first and self._completes(place, data)
        if is_complete:
            self._hints.forget()  # the checkpoint may say that the log begins later
        try:
            count = mend_segment(self._fs, path, created_us, position, data)
        finally:
            # Also after an error: it may be there all the same.
            if is_complete and has_segment(self._fs, self._directory, start):
                self.end = self.end._replace(first=start)
        is_end = not position or segment.parse_seal(data[-segment.SEAL.size :]) is not None
        if self.damaged and is_end:
            self._look_again(start)
        return count

    def check_inside(self) -> None:
        """CorruptionError if segments before the last one are missing or damaged, as far as is known.

        StorageUnavailableError if the disk does not read some of them, now neither, and the others are whole.
        """
        for start in [start for start, why in self.damaged.items() if why]:
            self._look_again(start)
        lost = [start for start, why in self.damaged.items() if not why]
        if lost:
            raise CorruptionError(
                "the segment is missing or damaged, and no copy that answers has it whole; nothing was cut. "
                f"Start more of the machines with copies, or, if another one leads, {REMAKE}",
                path=str(self._path(min(lost))),
            )
        for start, why in self.damaged.items():
            raise StorageUnavailableError(
                f"the disk does not read {self._path(start)} ({why}), and no copy that answers has it whole; "
                "nothing was cut. Open the log again; if that does not help, start more of the machines with "
                f"copies, or, if another one leads, {REMAKE}"
            )

    def _look_again(self, start: int) -> None:
        """Look at one segment before the last one again; OSError."""
        if self._header is not None and start < self._header.start:
            self.damaged = look_again(self._fs, self._directory, self.damaged, start, self._header)

    def _completes(self, place: Place, data: bytes) -> bool:
        """Return whether a segment older than all others is complete with these bytes.

        ContentionError if the oldest one here is not the one that follows it.
        """
        footer = segment.parse_seal(data[-segment.SEAL.size :])
        if footer is None:
            return False
        path = str(self._path(place.segment))
        summary, _ = segment.decode_footer(data[footer - place.position :], place.segment, path)
        if summary.limit != self.end.first:
            raise ContentionError(f"segments are missing behind {path}: they come first")
        return True

    def close(self) -> None:
        """Make all durable and close the files; OSError. The directory stays locked."""
        try:
            if not self._has_failed:
                self.sync()
        finally:
            self._close_file()
            self.note.close()

    def forget_if_emptied(self) -> None:
        """Remove what was noted since the directory was emptied: it is about files that are gone. OSError."""
        names = self._fs.list(self._directory)
        if LOCK_NAME not in names and PROMISE_NAME not in names:
            self._hints.are_own = True
            self._hints.forget()
            self.note.floor = 0
            self.note.forget()

    # -- inside ------------------------------------------------------------------------------

    def _path(self, start: int) -> Path:
        return self._directory / segment.file_name(start)

    def _check_sound(self) -> None:
        if self._has_failed:
            raise ContentionError(
                "a write of the copy failed; it is looked at again when its primary asks"
            )

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._has_failed = True
            self._sound.clear()
            raise

    def _recover(self) -> CopyEnd:
        """Look at the files; what is found is durable, whatever failed before."""
        self._has_failed, self._has_written = True, False
        self._stream = None
        self._close_file()
        found = recover_end(self._fs, self._directory)
        if found is None:
            self._header, self._is_sealed, self._has_failed = None, False, False
            self.damaged = {}
            return NOTHING
        self.damaged = found.damaged
        header = self._header = found.header
        path = self._path(header.start)
        file = self._fs.open(path, "r+")
        self._is_sealed = found.is_sealed
        position = file.size() if found.is_sealed else found.position
        self._file = ActiveFile(self._fs, path, file, position, _RESERVED_BYTES)
        place = Place(header.start, header.created_us, position)
        self._has_failed = False
        self.note.frames_end = found.position
        return CopyEnd(found.epoch, place, found.limit, found.log_id, self._first())

    def _begin(self, place: Place, pieces: Sequence[Buffer], *, seals: bool) -> None:
        """Begin a segment behind the last one, or in its place if it is begun again."""
        data = b"".join(pieces)
        header = segment.decode_header(data[:HEADER_BYTES], str(self._path(place.segment)))
        last = self._header
        if (header.start, header.created_us) != place[:2]:
            raise ContentionError(f"the header of another segment at {place}")
        if last is not None and header.log_id != last.log_id:
            raise CorruptionError(
                "the copy belongs to another log; remove its directory, or give the log another name",
                path=str(self._directory),
                expected=last.log_id.hex(),
                found=header.log_id.hex(),
            )
        if last is not None and place <= self.end.place:
            raise ContentionError(f"a segment at {place} before the end, {self.end.place}")
        if last is not None and header.start > last.start and not self._is_sealed:
            raise ContentionError(f"a segment at {place} behind one that is not sealed")
        is_new = last is None or header.start == last.start
        if last is not None and is_new:
            self._check_floor(header.start, 0, 0)
        self.sync()
        if self._hints.are_own or is_new:
            self._hints.forget()
        if is_new:
            self.note.forget()  # of a segment that is gone, or is begun again
        self._close_file()
        path = self._path(header.start)
        self._file = ActiveFile.create(self._fs, path, [data], _RESERVED_BYTES)
        self._header, self._is_sealed = header, seals
        self.note.frames_end = HEADER_BYTES
        self.end = CopyEnd(
            max(self.end.epoch, header.epoch),
            place._replace(position=len(data)),
            max(self.end.limit, header.start),
            header.log_id,
            self.end.first or header.start,
        )

    def _first(self) -> int:
        return pick_segments(self._directory, self._fs.list(self._directory))[0]

    def _check_floor(self, start: int, position: int, first: int) -> None:
        """Raise CorruptionError if more is known to be replicated than what is before a byte of a segment."""
        if self.note.floor <= max(start, first, 1):
            return
        kept = 0
        if start in pick_segments(self._directory, self._fs.list(self._directory)):
            kept = limit_at(self._fs, self._path(start), start, position)
        if kept < self.note.floor:
            self.note.differs_from = max(kept, self.end.first, 1)
            if not self._has_failed:
                self.sync()
            raise two_histories(self._directory, self.note.differs_from, self.end.limit)

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
