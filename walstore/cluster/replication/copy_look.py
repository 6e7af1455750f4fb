"""CopyLook: what a machine has of a log, found in its files without a lock, for operators who decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from walstore.cluster.replication.promise import load_promise
from walstore.core.files.directory import PROMISE_NAME
from walstore.core.files.log_bounds import read_bounds
from walstore.core.ports import FileSystem
from walstore.errors import LogNotFoundError, StorageUnavailableError

LOOK: Final = "look"
"""The call of a node that returns one, packed."""


class CopyLook(NamedTuple):
    """What was there at one moment."""

    log_id: bytes
    """Identity of the log; empty if there is nothing of it yet."""
    epoch: int
    """Of what it has last."""
    first: int
    """First offset of its oldest segment; 0 if there is none."""
    limit: int
    """Offset after its last record, replicated or not."""
    is_whole: bool
    """Whether the copy counts: it is neither new nor put back from an older state."""
    generation: int
    """Of the newest list of copies that it knows."""

    def pack(self) -> list[Any]:
        """Return it as values of msgpack."""
        return list(self)

    @classmethod
    def unpack(cls, packed: Any) -> CopyLook | None:
        """Return what was packed, None for no copy; StorageUnavailableError if it is malformed."""
        match packed:
            case None:
                return None
            case [
                bytes(log_id),
                int(epoch),
                int(first),
                int(limit),
                bool(is_whole),
                int(generation),
            ]:
                return cls(log_id, epoch, first, limit, is_whole, generation)
        raise StorageUnavailableError("the machine does not say what its copy has")


def look_at_copy(fs: FileSystem, directory: Path) -> CopyLook | None:
    """Look at the copy in a directory, which may be in use; None if there is none. Blocking.

    OSError, CorruptionError and the like if its files cannot be read.
    """
    try:
        names = fs.list(directory)
    except (FileNotFoundError, NotADirectoryError):
        return None
    promise = load_promise(fs, directory)
    try:
        found = read_bounds(fs, directory)
    except LogNotFoundError:
        if PROMISE_NAME not in names:
            return None
        return CopyLook(b"", 0, 0, 0, promise.is_whole, promise.generation)
    return CopyLook(
        found.log_id,
        found.epoch,
        found.starts[0],
        found.written_limit,
        promise.is_whole,
        promise.generation,
    )
