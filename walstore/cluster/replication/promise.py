"""Promise: the last primary that a copy has promised to obey. A file in the log's directory.

``PROMISE`` is JSON: ``version`` (1), ``epoch``, ``primary`` (16 hex digits, of one opening of the log),
``whole``, ``generation``, and ``crc`` (CRC-32C of the other four, as ``{epoch} {primary} {0 or 1}
{generation}``). It is durable before anybody learns of the promise. From then on the copy takes nothing from
a primary of an earlier epoch, of another with the same, or with an older list of copies (*generation*): a
quorum of that may have nothing in common with one of the newer list.

A copy that is not *whole* is new, or its disk is: it does not know what it promised and acknowledged
before, so nothing that it says counts. It becomes whole when it has all that was acknowledged, and those
that count still obey its primary.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from walstore.core.files.directory import PROMISE_NAME, REMAKE, write_durably
from walstore.core.ports import FileSystem
from walstore.errors import CorruptionError, FencedError, FormatVersionError

_VERSION: Final = 1


class Promise(NamedTuple):
    """Whom a copy obeys."""

    epoch: int = 0
    primary: str = ""
    is_whole: bool = False
    """Whether what the copy says counts."""
    generation: int = 0
    """Of the list of copies that its primary had."""

    @property
    def author(self) -> tuple[int, str]:
        """Whom it obeys."""
        return self.epoch, self.primary

    def check(
        self, epoch: int, primary: str, *, generation: int = 0, is_elected: bool = False
    ) -> None:
        """Raise FencedError if a primary is not the one of the promise, nor a later one.

        One that was elected has the promises of most copies for its epoch, so no other one of that epoch
        is: the promise that this copy gave to that is void.
        """
        is_other = (epoch, primary) != self.author
        if is_other and generation < self.generation:
            raise self._fenced(
                f"the list of copies is out of date: it has generation {generation}, and this copy knows "
                f"{self.generation}"
            )
        if is_other and (epoch < self.epoch or (epoch == self.epoch and not is_elected)):
            raise self._fenced(
                f"epoch {epoch} is over: a copy of the log follows the primary of epoch {self.epoch}"
            )

    def check_same(self, epoch: int, primary: str) -> None:
        """Raise FencedError if a primary is not the one of the promise."""
        if (epoch, primary) != self.author:
            raise self._fenced(
                f"the primary of epoch {epoch} has no promise of this copy, which follows epoch {self.epoch}"
            )

    def _fenced(self, message: str) -> FencedError:
        error = FencedError(message, outcome="not_written")
        error.epoch = self.epoch
        return error


def load_promise(fs: FileSystem, directory: Path) -> Promise:
    """Return the promise of a copy; the first one if there is none yet. Blocking.

    CorruptionError if it is damaged: then nobody knows whom this copy obeys. FormatVersionError, OSError.
    """
    path = directory / PROMISE_NAME
    try:
        data = fs.read(path)
    except FileNotFoundError:
        return Promise()
    try:
        match json.loads(data):
            case {
                "version": 1,
                "epoch": int(epoch),
                "primary": str(primary),
                "whole": bool(is_whole),
                "generation": int(generation),
                "crc": int(crc),
            }:
                found = Promise(epoch, primary, is_whole, generation)
                if crc == _crc(found):
                    return found
            case {"version": int(version)} if version != _VERSION:
                raise FormatVersionError(
                    "the promise is newer", path=str(path), found=version, supported=_VERSION
                )
    except (ValueError, RecursionError):
        pass
    raise CorruptionError(f"the promise of this copy is damaged; {REMAKE}", path=str(path))


def keep_promise(fs: FileSystem, directory: Path, promise: Promise) -> None:
    """Make a promise durable. Blocking; OSError, and then the old one or this one holds."""
    data = {
        "version": _VERSION,
        "epoch": promise.epoch,
        "primary": promise.primary,
        "whole": promise.is_whole,
        "generation": promise.generation,
        "crc": _crc(promise),
    }
    write_durably(fs, directory / PROMISE_NAME, json.dumps(data).encode())


def _crc(promise: Promise) -> int:
    text = f"{promise.epoch} {promise.primary} {int(promise.is_whole)} {promise.generation}"
    return int(crc32c(text.encode()))
