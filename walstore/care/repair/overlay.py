"""Overlays: a future segment, made of pieces of the damaged file and of staged bytes. Blocking."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from tempfile import SpooledTemporaryFile
from typing import IO, Final, NoReturn

from walstore.core.ports import Buffer, File

_MEMORY_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class OverlayBytes:
    """Bytes of a segment that is to be made."""

    position: int
    """Where they begin in that segment."""
    size: int
    is_staged: bool
    """Whether they are among the staged bytes; else they are in the damaged file."""
    at: int
    """Where they begin there."""


class Staging:
    """Bytes that a repair adds, in memory or in a temporary file."""

    def __init__(self) -> None:
        self._file: IO[bytes] = SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115
        self.size_bytes = 0

    def add(self, data: Buffer) -> int:
        """Return where the bytes are now."""
        at = self.size_bytes
        self._file.seek(at)
        self._file.write(data)
        self.size_bytes += len(data)
        return at

    def pread(self, size: int, position: int) -> bytes:
        """Return up to ``size`` bytes."""
        self._file.seek(position)
        return self._file.read(size)

    def close(self) -> None:
        """Release the memory; twice is allowed."""
        self._file.close()


class Overlay:
    """The file that some extents make; implements :class:`walstore.core.ports.File` for reading."""

    def __init__(
        self, extents: Sequence[OverlayBytes], source: File | None, staged: File | Staging | None
    ) -> None:
        """``extents`` are contiguous and begin at byte 0."""
        self._extents = extents
        self._starts = [one.position for one in extents]
        self._source = source
        self._staged = staged

    def pread(self, size: int, position: int) -> bytes:
        """Read up to ``size`` bytes; fewer only at the end, or where a file became shorter."""
        pieces = []
        size = min(size, self.size() - position)
        while size > 0:
            one = self._extents[bisect_right(self._starts, position) - 1]
            file = self._staged if one.is_staged else self._source
            assert file is not None
            skipped = position - one.position
            data = file.pread(min(size, one.size - skipped), one.at + skipped)
            if not data:
                break
            pieces.append(data)
            position += len(data)
            size -= len(data)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def size(self) -> int:
        """Return the length in bytes."""
        last = self._extents[-1]
        return last.position + last.size

    def is_alone(self, *, names: int = 1) -> bool:
        """False: it is no file."""
        return False

    def close(self) -> None:
        """Do nothing: the caller owns the files."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise io.UnsupportedOperation("an overlay is only read")

    pwrite = datasync = allocate = truncate = _refuse


class ExtentList:
    """Extents while they are gathered."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self.extents: list[OverlayBytes] = []
        self.size_bytes = 0

    @property
    def is_changed(self) -> bool:
        """Whether it contains new bytes."""
        return any(one.is_staged for one in self.extents)

    def take(self, at: int, limit: int) -> None:
        """Add bytes ``[at, limit)`` of the damaged file; nothing if there are none."""
        if limit > at:
            self._add(at, limit - at, is_staged=False)

    def add(self, extents: Iterable[OverlayBytes], limit: int) -> None:
        """Add other extents, up to byte ``limit`` of the segment that they make."""
        for one in extents:
            size = min(one.size, limit - one.position)
            if size > 0:
                self._add(one.at, size, is_staged=one.is_staged)

    def stage(self, pieces: Iterable[Buffer]) -> None:
        """Add new bytes."""
        for data in pieces:
            self._add(self._staging.add(data), len(data), is_staged=True)

    def _add(self, at: int, size: int, *, is_staged: bool) -> None:
        last = self.extents[-1] if self.extents else None
        if last is not None and (last.is_staged, last.at + last.size) == (is_staged, at):
            self.extents[-1] = replace(last, size=last.size + size)
        else:
            self.extents.append(OverlayBytes(self.size_bytes, size, is_staged, at))
        self.size_bytes += size
