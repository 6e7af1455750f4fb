"""Promise: the last primary that a copy has promised to obey. A file in the log's directory.

``PROMISE`` is JSON: ``version`` (1), ``epoch``, ``primary`` (16 hex digits, of one opening of the log),
``crc`` (CRC-32C of the other two as ``{epoch} {primary}``). It is durable before anybody learns of the
promise. From then on the copy takes nothing from a primary of an earlier epoch, or of another one with the
same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from walstore.errors import CorruptionError, FencedError, FormatVersionError
from walstore.files.directory import write_durably
from walstore.ports import FileSystem

FILE_NAME: Final = "PROMISE"
_VERSION: Final = 1


class Promise(NamedTuple):
    """Whom a copy obeys."""

    epoch: int = 0
    primary: str = ""

    def check(self, epoch: int, primary: str) -> None:
        """Raise FencedError if a primary is not the one of the promise, nor a later one."""
        if (epoch, primary) != self and epoch <= self.epoch:
            raise FencedError(
                f"epoch {epoch} is over: a copy of the log follows the primary of epoch {self.epoch}",
                outcome="not_written",
            )

    def check_same(self, epoch: int, primary: str) -> None:
        """Raise FencedError if a primary is not the one of the promise."""
        if (epoch, primary) != self:
            raise FencedError(
                f"the primary of epoch {epoch} has no promise of this copy, which follows epoch {self.epoch}",
                outcome="not_written",
            )


def load_promise(fs: FileSystem, directory: Path) -> Promise:
    """Return the promise of a copy; the first one if there is none yet. Blocking.

    CorruptionError if it is damaged: then nobody knows whom this copy obeys. FormatVersionError, OSError.
    """
    path = directory / FILE_NAME
    try:
        data = fs.read(path)
    except FileNotFoundError:
        return Promise()
    try:
        match json.loads(data):
            case {"version": 1, "epoch": int(epoch), "primary": str(primary), "crc": int(crc)}:
                if crc == _crc(epoch, primary):
                    return Promise(epoch, primary)
            case {"version": int(version)} if version != _VERSION:
                raise FormatVersionError(
                    "the promise is newer", path=str(path), found=version, supported=_VERSION
                )
    except ValueError:
        pass
    raise CorruptionError(
        "the promise of this copy is damaged; remove the log's directory, and the copy is made anew",
        path=str(path),
    )


def keep_promise(fs: FileSystem, directory: Path, promise: Promise) -> None:
    """Make a promise durable. Blocking; OSError, and then the old one or this one holds."""
    data = {"version": _VERSION, **promise._asdict(), "crc": _crc(*promise)}
    write_durably(fs, directory / FILE_NAME, json.dumps(data).encode())


def _crc(epoch: int, primary: str) -> int:
    return int(crc32c(f"{epoch} {primary}".encode()))
