"""FrameStream: checks the bytes of one segment as they pass; and what is built on it for copies of a log.

Bytes that go from one copy to another are read from files that may be damaged. Every frame is checked here
before its first byte leaves, and by whoever takes it, with the chain of CRCs. Blocking, but for the class.
"""

from __future__ import annotations

import contextlib
import errno
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from crc32c import crc32c

from walstore.core.files.segment_file import read_header
from walstore.core.format import frame, segment
from walstore.core.format.frame import FrameHeader
from walstore.core.format.frame_scan import FrameScan
from walstore.core.format.segment import HEADER_BYTES, SegmentHeader
from walstore.core.ports import Buffer, File, FileSystem
from walstore.errors import CorruptionError

_CHUNK_BYTES: Final = 1 << 20
_MOST_STREAMS: Final = 32
_MAGIC_BYTES: Final = len(segment.FOOTER_MAGIC)
UNREADABLE: Final = frozenset(
    (errno.EIO, errno.ENODATA, errno.EILSEQ, errno.EBADMSG, errno.EUCLEAN)
)
"""What the system says of bytes that the disk does not read any more, or has not as they were written."""


class FrameStream:
    """The bytes of one segment, in order, in pieces of any size. Uses memory for a header and a footer."""

    def __init__(self, path: Path | str, start: int) -> None:
        """Begin with a file's first byte. ``path`` is for errors, ``start`` the segment's first offset."""
        self._path, self._start = str(path), start
        self._salt = 0
        self._crc: int | None = None
        self._next: int | None = None
        self._header: FrameHeader | None = None
        self._header_bytes = b""
        self._has_begun = self._is_footer = False
        self._held = bytearray()
        self._body_crc = self._left = 0
        self._last = b""
        self.position = 0
        """Behind the last byte."""
        self.boundary = 0
        """End of the last whole frame."""

    @classmethod
    def behind(
        cls, path: Path | str, start: int, salt: int | None, position: int, crc: int | None = None
    ) -> FrameStream:
        """Begin where a frame ends: ``crc`` is that frame's; None if nobody knows it."""
        found = cls(path, start)
        found._has_begun = True
        found._salt, found._crc = salt or 0, crc
        found.position = found.boundary = position
        return found

    @property
    def is_inside(self) -> bool:
        """Whether the last byte is within the segment's header, a frame or the footer."""
        return self.position != self.boundary

    def feed(self, data: Buffer) -> None:
        """Take the next bytes. CorruptionError, at the begin of a frame that is not whole or in its place."""
        view = memoryview(data)
        while view:
            view = view[self._take(view) :]

    @property
    def missing(self) -> int:
        """How many bytes are needed to see whether what was begun is whole; of a footer, any number."""
        if self._header is not None:
            return self._left
        if self._is_footer:
            return _CHUNK_BYTES
        if not self._has_begun:
            return HEADER_BYTES - len(self._held)
        is_short = len(self._held) < _MAGIC_BYTES
        return (_MAGIC_BYTES if is_short else frame.HEADER_BYTES) - len(self._held)

    def finish(self) -> None:
        """Take note that a sealed segment ends here. CorruptionError unless it does, with its footer."""
        try:
            summary, _ = segment.decode_footer(bytes(self._held), self._start, self._path)
        except CorruptionError:
            raise self._damage("no whole batch or footer") from None
        is_right = self._is_footer and summary.data_bytes == self.boundary
        if not is_right or self._crc not in (None, summary.last_crc):
            raise self._damage("the footer is of other frames")
        self.boundary = self.position

    def _take(self, view: memoryview) -> int:
        """Take some of the bytes, and return how many."""
        if self._header is not None:
            return self._take_body(view)
        wanted = self.missing
        taken = view[:wanted]
        self._held += taken
        self.position += len(taken)
        if self._is_footer or len(taken) < wanted:
            return len(taken)
        if not self._has_begun:
            header = segment.decode_header(bytes(self._held), self._path)
            if header.start != self._start:
                raise self._damage("the header of another segment")
            self._has_begun, self._salt = True, header.salt or 0
            self._crc, self._next = header.previous_crc, header.start
            self._end()
        elif len(self._held) == _MAGIC_BYTES:
            self._is_footer = self._held == segment.FOOTER_MAGIC
        else:
            self._begin()
        return len(taken)

    def _begin(self) -> None:
        """Begin a frame, whose header is there."""
        header = frame.parse_header(memoryview(self._held), 0)
        if header is None:
            raise self._damage("no batch where one was written")
        if self._crc not in (None, header.previous_crc) or self._next not in (None, header.start):
            raise self._damage("batch does not continue the log")
        self._header, self._header_bytes = header, bytes(self._held)
        self._body_crc, self._last = 0, b""
        self._left = header.length - len(self._held)
        self._held.clear()

    def _take_body(self, view: memoryview) -> int:
        header = self._header
        assert header is not None
        taken = view[: self._left]
        self._body_crc = crc32c(taken, self._body_crc)
        self._last = (self._last + bytes(taken[-frame.TRAILER.size :]))[-frame.TRAILER.size :]
        self._left -= len(taken)
        self.position += len(taken)
        if not self._left:
            crc = crc32c(memoryview(self._header_bytes)[frame.CRC_FROM :], self._body_crc)
            if header.version != frame.UNPLACED_VERSION:
                crc = crc32c(frame.place(self._salt, self.boundary), crc)
            ending = frame.TRAILER.unpack(self._last)
            if crc != header.crc or ending != (header.length, frame.TRAILER_MAGIC):
                raise self._damage("batch is damaged")
            self._crc, self._next, self._header = header.crc, header.limit, None
            self._end()
        return len(taken)

    def _end(self) -> None:
        self._held.clear()
        self.boundary = self.position

    def _damage(self, text: str) -> CorruptionError:
        return CorruptionError(text, path=self._path, position=self.boundary)


class CheckedReads:
    """Reads bytes of segments for other copies. Its calls may overlap on two threads."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._streams: OrderedDict[tuple[int, int, int], FrameStream] = OrderedDict()
        """By first offset, time of making, and the byte that is read next."""

    def read(self, path: Path, start: int, created_us: int, position: int, size: int) -> bytes:
        """Return bytes of a segment, less only where the file ends. OSError, also if it is not the one that
        was made at that time.

        CorruptionError if a frame, a header or a footer that any of the bytes belongs to is not as it was
        written, or cannot be read: then nothing of it is returned. The bytes must have been written as whole
        frames.
        """
        with (
            unreadable_is_damage(path) as place,
            contextlib.closing(self._fs.open(path, "r")) as file,
        ):
            header = check_same(file, path, created_us)
            stream = self._streams.pop((start, created_us, position), None)
            if stream is None:
                stream = _stream_at(file, path, header, position)
            place.stream = stream
            _feed_file(stream, file, position)
            data = file.pread(size, position)
            end = position + len(data)
            if stream.position < end:
                stream.feed(memoryview(data)[stream.position - position :])
            while stream.is_inside and _feed_file(stream, file, stream.position + stream.missing):
                pass
            if stream.is_inside:
                stream.finish()
            self._streams[start, created_us, end] = stream
            with contextlib.suppress(KeyError):  # another thread was faster
                while len(self._streams) > _MOST_STREAMS:
                    self._streams.popitem(last=False)
            return data


def check_segment(
    fs: FileSystem,
    path: Path,
    start: int,
    created_us: int,
    size: int,
    *,
    is_sealed: bool,
    begin: int = 0,
    most_bytes: int | None = None,
) -> int:
    """CorruptionError, at the first frame that is not whole, unless a segment of ``size`` bytes is whole.

    Looks from ``begin``, 0 or the end of a frame, at ``most_bytes``, and at the rest of the last frame.
    Returns up to where: the begin of the next look, or ``size``. What cannot be read is damaged. OSError,
    also if it is not the segment that was made at that time.
    """
    end = size if most_bytes is None else min(size, begin + most_bytes)
    with unreadable_is_damage(path) as place, contextlib.closing(fs.open(path, "r")) as file:
        if begin:
            header = check_same(file, path, created_us)
            stream = FrameStream.behind(path, start, header.salt, begin)
        else:
            stream = FrameStream(path, start)
        place.stream = stream
        _feed_file(stream, file, end)
        while stream.is_inside and stream.position < size:
            if not _feed_file(stream, file, min(size, stream.position + stream.missing)):
                break
        if stream.is_inside or (is_sealed and stream.position >= size):
            stream.finish()
        if stream.position < end:
            raise CorruptionError(
                "the segment ends early", path=str(path), position=stream.boundary
            )
        return stream.position


class _ReadPlace:
    """How far a file was read."""

    stream: FrameStream | None = None


@contextlib.contextmanager
def unreadable_is_damage(path: Path) -> Iterator[_ReadPlace]:
    """Raise CorruptionError, behind the last whole frame, for an error of the disk in the block."""
    place = _ReadPlace()
    try:
        yield place
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        position = 0 if place.stream is None else place.stream.boundary
        text = f"the segment cannot be read ({error.strerror})"
        raise CorruptionError(text, path=str(path), position=position) from error


def check_same(file: File, path: Path, created_us: int) -> SegmentHeader:
    """Return the header of a segment; OSError if it is not the one that was made at that time."""
    header = read_header(file, path)
    if header.created_us != created_us:
        raise OSError(errno.ESTALE, "the segment was begun anew")
    return header


def _stream_at(file: File, path: Path, header: SegmentHeader, position: int) -> FrameStream:
    """Return a stream that begins at the frame or footer that a byte belongs to; CorruptionError."""
    at, size = HEADER_BYTES, file.size()
    if position < at:
        return FrameStream(path, header.start)
    seal = segment.parse_seal(file.pread(segment.SEAL.size, max(0, size - segment.SEAL.size)))
    scan = FrameScan(file.pread, size, header.salt, ahead_bytes=frame.HEADER_BYTES)
    if seal == position or scan.whole_at(position) is not None:
        at = position
    else:
        at = scan.claimed_limit(at, position)  # what is damaged ends the walk too early
    return FrameStream.behind(path, header.start, header.salt, at)


def _feed_file(stream: FrameStream, file: File, end: int) -> int:
    """Feed the bytes of a file up to byte ``end``, as far as there are some; return how many."""
    begin = stream.position
    while stream.position < end:
        data = file.pread(min(_CHUNK_BYTES, end - stream.position), stream.position)
        if not data:
            break
        stream.feed(data)
    return stream.position - begin
