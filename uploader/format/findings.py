"""Findings: faults and oddities of a log, and what to do about them. Pure values.

Owns the checks of documents that return all faults, not just the first, as a document's own ``scrub`` does.
Never does I/O: ``scrubber.py`` fetches.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from uploader.format.entries import Fragment, Snapshot, SnapshotPointer
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from walstore.errors import CorruptionError, FormatVersionError, StorageUnavailableError

RESTORE = "restore the object from a copy of the bucket, or rebuild the log from what is left of it"


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """Records are lost or damaged, or may be."""
    WARNING = "warning"
    """Nothing is lost, but something does not work as it should, or could not be checked."""
    NOTE = "note"
    """Left over, or in progress; it costs space at most."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a log, or odd about it."""

    severity: Severity
    """How bad it is."""
    key: str
    """The object, by its key below the log's prefix."""
    what: str
    """What is wrong, in words."""
    advice: str
    """What to do about it."""
    expected: object = None
    """What should be there, if known."""
    found: object = None
    """What is there."""

    def __str__(self) -> str:
        return f"{self.severity}: {self.key}: {self.what}; {self.advice}"


def of_error(error: CorruptionError | FormatVersionError, *, advice: str = RESTORE) -> Finding:
    """Return the finding for an error."""
    what = str(error.args[0]).partition(f": {error.path}")[0]
    if isinstance(error, FormatVersionError):
        return Finding(
            Severity.WARNING,
            error.path,
            what,
            "scrub with the version that wrote it",
            error.supported,
            error.found,
        )
    return Finding(Severity.ERROR, error.path, what, advice, error.expected, error.found)


def of_unavailable(key: str, error: StorageUnavailableError) -> Finding:
    """Return the finding that the store did not return an object, or a listing."""
    what = f"it could not be looked at: {error}"
    return Finding(Severity.WARNING, key, what, "see to the store, then scrub from here again")


def check_manifest(manifest: Manifest) -> list[Finding]:
    """Return all faults inside a manifest; snapshots and fragments are not read."""
    return [of_error(fault) for fault in manifest.faults()]


def check_snapshot(snapshot: Snapshot, pointer: SnapshotPointer) -> list[Finding]:
    """Return all faults inside a snapshot, and all its differences from its pointer."""
    path = pointer.path_to_snapshot
    found = [of_error(fault) for fault in snapshot.faults(path=path)]
    if snapshot.path != path:
        found.append(_error(path, "it says that it has another key", path, snapshot.path))
    if not snapshot.children:
        return found
    own = snapshot.pointer()
    for name in ("setsum", "start", "limit"):
        stated, held = getattr(pointer, name), getattr(own, name)
        if stated != held:
            what = f"its {name} is not what is said of it"
            found.append(_error(path, what, _shown(stated), _shown(held)))
    if own.depth > pointer.depth:
        found.append(_error(path, "it is deeper than what is said of it", pointer.depth, own.depth))
    if own.num_bytes != pointer.num_bytes:
        found.append(
            Finding(
                Severity.WARNING,
                path,
                "its num_bytes is not what is said of it",
                "nothing is lost; sizes that are shown are wrong",
                pointer.num_bytes,
                own.num_bytes,
            )
        )
    return found


def check_order(before: Fragment | None, entry: Fragment, path: str) -> list[Finding]:
    """Return what is wrong with the number of a fragment that comes right behind another one."""
    if before is None or entry.seq_no == before.seq_no + 1:
        return []
    what = f"fragment {entry.seq_no} stands where {before.seq_no + 1} belongs"
    return [_error(path, what, before.seq_no + 1, entry.seq_no)]


def _error(path: str, what: str, expected: object, found: object) -> Finding:
    return Finding(Severity.ERROR, path, what, RESTORE, expected, found)


def _shown(value: object) -> object:
    return value.hexdigest() if isinstance(value, Setsum) else value
