"""Codec: optional zstd compression of a batch's columns. Bytes in, bytes out; the format is RFC 8878.

It uses Python's own ``compression.zstd`` (3.14), or else the package ``zstandard`` (extra ``zstd``).
The core runs without either: only a log with compressed batches needs one. Contexts of the library are
made once per thread, since they are costly to make and must not be shared.

A stored body contains its length in two places, the frame's header and zstd's own; both must agree
before memory is allocated, and no more than that is allocated. So a few bytes cannot unpack to
gigabytes unnoticed.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, Protocol

from walstore.core.format.packed import MalformedError
from walstore.errors import InvalidSettingsError

NONE: Final = 0
ZSTD: Final = 1
KNOWN: Final = frozenset((NONE, ZSTD))
"""Codecs of a frame; numbers are part of the format."""
LEAST_BYTES: Final = 256
"""Smaller batches are stored uncompressed."""
MOST_BYTES: Final = 1 << 31
"""Larger bodies are neither compressed nor accepted as compressed: twice the maximum of a channel."""
LEVEL: Final = 1
"""Every commit waits for its compression, so speed comes before size: level 3 costs a third more time and
saves a tenth of the bytes."""

_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_WINDOW_LEAST_BYTES: Final = 1 << 10
_BLOCK_LEAST_BYTES: Final = 4
_BLOCK_MOST_BYTES: Final = 128 << 10
"""Minimum size of a zstd block, and the maximum content of one."""
_CONTENT_SIZE_BYTES: Final = (0, 2, 4, 8)
_DICTIONARY_BYTES: Final = (0, 1, 2, 4)
_NEEDS: Final = "Python 3.14 or the package zstandard: pip install 'walstore[zstd]'"


class BodyError(MalformedError):
    """Compressed bytes do not match their frame."""


class _Library(Protocol):
    """One of the two libraries, in one thread."""

    def compress(self, data: bytes, level: int) -> bytes: ...

    def decompress(self, data: memoryview, size: int) -> bytes: ...


def require() -> None:
    """Raise InvalidSettingsError if there is no library that can compress. Imports it: may block."""
    if _find() is None:
        raise InvalidSettingsError(f"compression 'zstd' needs {_NEEDS}")


def compress(pieces: Sequence[bytes | bytearray | memoryview], level: int = LEVEL) -> bytes:
    """Return the concatenated pieces as one zstd frame if that is smaller, else uncompressed.

    So the result is compressed if, and only if, it is shorter than the pieces. ``level`` is 1 (fast) to
    19 (small). Any thread may call; the GIL is released meanwhile.
    """
    data = b"".join(pieces)
    if not LEAST_BYTES <= len(data) <= MOST_BYTES:
        return data
    library = _library()
    if library is None:
        raise InvalidSettingsError(f"compression 'zstd' needs {_NEEDS}")
    packed = library.compress(data, level)
    return packed if len(packed) < len(data) else data


def decompress(data: memoryview, size: int) -> memoryview:
    """Return the ``size`` bytes that were compressed to ``data``.

    BodyError if they are not exactly that many, ValueError if no library is installed. Never allocates
    more than ``size`` bytes, nor more than :data:`MOST_BYTES`.
    """
    _check_size(data, size)
    library = _library()
    if library is None:
        raise ValueError(f"codec zstd, which needs {_NEEDS}")
    return memoryview(library.decompress(data, size))


def _check_size(data: memoryview, size: int) -> None:
    """Read the header of a zstd frame; BodyError unless it contains ``size`` bytes with sane parameters."""
    if size > MOST_BYTES:
        raise BodyError(f"a compressed body claims {size} bytes; the maximum is {MOST_BYTES}")
    if size > len(data) // _BLOCK_LEAST_BYTES * _BLOCK_MOST_BYTES:
        raise BodyError(f"a compressed body of {len(data)} bytes claims {size} bytes")
    if len(data) < 6 or bytes(data[:4]) != _MAGIC:
        raise BodyError("a compressed body is not a zstd frame")
    descriptor = data[4]
    is_single = bool(descriptor & 0x20)
    at = 5 + (not is_single) + _DICTIONARY_BYTES[descriptor & 3]
    length = _CONTENT_SIZE_BYTES[descriptor >> 6] or int(is_single)
    claimed = int.from_bytes(data[at : at + length], "little") + (256 if length == 2 else 0)
    if not length or len(data) < at + length or claimed != size:
        raise BodyError(f"a compressed body holds {claimed} bytes instead of {size}")
    if descriptor & 3:
        raise BodyError("a compressed body needs a dictionary")
    if not is_single:
        base = 1 << (10 + (data[5] >> 3))
        window = base + (base >> 3) * (data[5] & 7)
        if window > max(2 * size, _WINDOW_LEAST_BYTES):
            raise BodyError(f"a compressed body of {size} bytes needs {window} bytes of memory")


class _Standard:
    """``compression.zstd`` of Python 3.14."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._compressors: dict[int, Any] = {}

    def compress(self, data: bytes, level: int) -> bytes:
        """Return one frame that says its size."""
        compressor = self._compressors.get(level)
        if compressor is None:
            compressor = self._compressors[level] = self._module.ZstdCompressor(level=level)
        packed: bytes = compressor.compress(data, mode=compressor.FLUSH_FRAME)
        return packed

    def decompress(self, data: memoryview, size: int) -> bytes:
        """Return exactly ``size`` bytes."""
        decompressor = self._module.ZstdDecompressor()
        try:
            found: bytes = decompressor.decompress(data, max_length=size + 1)
        except self._module.ZstdError as error:
            raise BodyError(f"a compressed body is damaged: {error}") from error
        if len(found) != size or not decompressor.eof or decompressor.unused_data:
            raise BodyError(f"a compressed body is not one frame of {size} bytes")
        return found


class _Package:
    """The package ``zstandard``."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._compressors: dict[int, Any] = {}
        self._decompressor = module.ZstdDecompressor()

    def compress(self, data: bytes, level: int) -> bytes:
        """Return one frame that says its size."""
        compressor = self._compressors.get(level)
        if compressor is None:
            compressor = self._module.ZstdCompressor(level=level, write_content_size=True)
            self._compressors[level] = compressor
        packed: bytes = compressor.compress(data)
        return packed

    def decompress(self, data: memoryview, size: int) -> bytes:
        """Return exactly ``size`` bytes."""
        try:
            found: bytes = self._decompressor.decompress(
                data, max_output_size=size, allow_extra_data=False
            )
        except self._module.ZstdError as error:
            raise BodyError(f"a compressed body is damaged: {error}") from error
        if len(found) != size:
            raise BodyError(f"a compressed body holds {len(found)} bytes instead of {size}")
        return found


@cache
def _find() -> tuple[type[_Standard | _Package], Any] | None:
    """Return the library to use, imported once."""
    kinds: tuple[tuple[type[_Standard | _Package], str], ...] = (
        (_Standard, "compression.zstd"),
        (_Package, "zstandard"),
    )
    for kind, name in kinds:
        try:
            return kind, importlib.import_module(name)
        except ImportError:
            continue
    return None


_of_thread = threading.local()


def _library() -> _Library | None:
    """Return this thread's own contexts, or None if no library is installed."""
    library: _Library | None = getattr(_of_thread, "library", None)
    if library is None:
        found = _find()
        if found is None:
            return None
        kind, module = found
        library = _of_thread.library = kind(module)
    return library
