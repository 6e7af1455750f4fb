"""Cursor files: the layout of the small file of one named cursor. Pure: no I/O.

The layout is in docs/consumers.md. ``cursors/directory.py`` reads and writes the files.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, replace
from typing import Final

from crc32c import crc32c

from walstore.errors import CorruptionError, FormatVersionError
from walstore.format.packed import MOST_OFFSET, MOST_TIMESTAMP_US
from walstore.validation.arguments import as_text

MAGIC: Final = b"WALCUR\r\n"
VERSION: Final = 1
HEADER: Final = struct.Struct("<8sIHHQQ8sQQQ")
TAG_BYTES: Final = 8
MOST_OWNER_BYTES: Final = 256
NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")
_CRC_END: Final = 12


@dataclass(frozen=True, slots=True)
class CursorState:
    """The content of a cursor's file."""

    position: int
    """Offset of the next record to read; 1 or more."""
    revision: int
    """Counts the commits, from 1."""
    writer: bytes
    """Eight bytes that name the handle that made this revision; no two handles have the same."""
    updated_us: int
    """When the file was written."""
    lease_us: int
    """How long a commit or renewal keeps the cursor's pin; 0: without end."""
    deadline_us: int
    """When the lease ends; 0 without one."""
    owner: str
    """The writer of the file, for operators."""

    @property
    def tag(self) -> tuple[int, bytes]:
        """The value that a compare-and-swap compares: unique to one commit."""
        return self.revision, self.writer

    def is_expired(self, now_us: int) -> bool:
        """Whether the lease has ended, so that the cursor pins nothing."""
        return 0 < self.deadline_us <= now_us

    def renewed(self, now_us: int, owner: str, lease_us: int | None = None) -> CursorState:
        """Return the state with its lease extended from now, if it has one or gets one."""
        lease_us = self.lease_us if lease_us is None else lease_us
        return replace(
            self,
            updated_us=now_us,
            lease_us=lease_us,
            deadline_us=now_us + lease_us if lease_us else 0,
            owner=owner,
        )


def check_name(name: str) -> str:
    """Return ``name`` if it is valid for a cursor; TypeError or ValueError otherwise."""
    name = as_text(name, "a cursor's name")
    if not NAME.fullmatch(name):
        raise ValueError(
            "a cursor's name has 1 to 128 of the characters A-Z a-z 0-9 _ . - "
            f"and does not begin with a dot, unlike {name!r}"
        )
    return name


def encode_cursor(state: CursorState) -> bytes:
    """Return the content of a cursor's file; an owner of more than 256 bytes is cut."""
    owner = state.owner.encode()[:MOST_OWNER_BYTES]
    packed = HEADER.pack(
        MAGIC,
        0,
        VERSION,
        len(owner),
        state.position,
        state.revision,
        state.writer,
        state.updated_us,
        state.lease_us,
        state.deadline_us,
    )
    body = packed[_CRC_END:] + owner
    return MAGIC + struct.pack("<I", crc32c(body)) + body


def decode_cursor(data: bytes, path: str) -> CursorState:
    """Parse a cursor's file; CorruptionError if it is damaged, FormatVersionError if it is newer."""
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise CorruptionError("this is not a cursor; move it away or delete it", path=path)
    _, crc, version, owner_bytes, *fields = HEADER.unpack_from(data)
    found = crc32c(data[_CRC_END:])
    if found != crc:
        raise CorruptionError(
            "cursor is damaged; delete it and make it again",
            path=path,
            position=len(MAGIC),
            expected=crc,
            found=found,
        )
    if version > VERSION:
        raise FormatVersionError(
            "cursor was written by a newer version", path=path, found=version, supported=VERSION
        )
    owner = data[HEADER.size :]
    if len(owner) != owner_bytes or owner_bytes > MOST_OWNER_BYTES:
        raise CorruptionError(
            "cursor has a wrong length; delete it and make it again",
            path=path,
            position=HEADER.size,
            expected=owner_bytes,
            found=len(owner),
        )
    state = CursorState(*fields, owner.decode("utf-8", "replace"))  # type: ignore[call-arg]
    if not _is_possible(state):
        raise CorruptionError(
            "cursor contains impossible values; delete it and make it again",
            path=path,
            position=HEADER.size - 40,
            found=state,
        )
    return state


def _is_possible(state: CursorState) -> bool:
    """Return whether a correct program could have written these numbers."""
    return (
        state.position >= 1
        and 1 <= state.revision <= MOST_OFFSET
        and max(state.updated_us, state.lease_us, state.deadline_us) <= MOST_TIMESTAMP_US
    )
