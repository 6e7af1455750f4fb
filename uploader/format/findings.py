"""Findings: faults and oddities of a log, and what to do about them. Pure values.

Owns the checks of documents and fragments that return all faults, not just the first. They check the same
as a document's own ``scrub``, which runs last, so nothing it finds is
missed here. Never does I/O: ``scrubber.py`` fetches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from uploader.format import layout
from uploader.format.entries import (
    Entry,
    Fragment,
    Snapshot,
    SnapshotPointer,
    scrub_fragments,
    scrub_run,
)
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


def check_manifest(manifest: Manifest, *, path: str = layout.MANIFEST) -> list[Finding]:
    """Return all faults inside a manifest; snapshots and fragments are not read."""
    entries: tuple[Entry, ...] = (*manifest.snapshots, *manifest.fragments)
    found = [*_check_children(entries, path)]
    for pointer in manifest.snapshots:
        expected = layout.snapshot_path(pointer.setsum)
        if pointer.path_to_snapshot != expected:
            what = "a snapshot's key is not its setsum"
            found.append(_error(path, what, expected, pointer.path_to_snapshot))
    live = Setsum.total(entry.setsum for entry in entries)
    if manifest.setsum != live + manifest.collected:
        what = "the setsums of what is left and what was collected do not add up"
        sums = manifest.setsum.hexdigest(), (live + manifest.collected).hexdigest()
        found.append(_error(path, what, *sums))
    held = min(sum(entry.num_bytes for entry in entries), layout.MAX_U64)
    if manifest.acc_bytes < held:
        what = "more bytes are held than were ever added"
        found.append(_error(path, what, f"at least {held}", manifest.acc_bytes))
    if manifest.initial_offset is not None and manifest.initial_offset != manifest.oldest_offset:
        what = "the log does not begin at its initial offset"
        found.append(_error(path, what, manifest.initial_offset, manifest.oldest_offset))
    return _and_the_rest(found, manifest.scrub)


def check_snapshot(snapshot: Snapshot, pointer: SnapshotPointer) -> list[Finding]:
    """Return all faults inside a snapshot, and all its differences from its pointer."""
    path = pointer.path_to_snapshot
    children: Sequence[Entry] = snapshot.snapshots or snapshot.fragments
    found = [*_check_children(children, path)]
    total = Setsum.total(child.setsum for child in children)
    if snapshot.setsum != total:
        what = "the setsums of the parts do not add up"
        found.append(_error(path, what, snapshot.setsum.hexdigest(), total.hexdigest()))
    if snapshot.path != path:
        found.append(_error(path, "it says that it has another key", path, snapshot.path))
    if not children:
        return _and_the_rest(found, snapshot.scrub)
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
    return _and_the_rest(found, snapshot.scrub)


def check_order(before: Fragment | None, entry: Fragment, path: str) -> list[Finding]:
    """Return what is wrong with the number of a fragment that comes right behind another one."""
    if before is None or entry.seq_no == before.seq_no + 1:
        return []
    what = f"fragment {entry.seq_no} stands where {before.seq_no + 1} belongs"
    return [_error(path, what, before.seq_no + 1, entry.seq_no)]


def _check_children(entries: Sequence[Entry], path: str) -> Iterable[Finding]:
    """Check that entries hold records and abut, and that the numbers of fragments go up by one."""
    found: list[Finding] = []
    for entry in entries:
        found += _collect(lambda entry=entry: scrub_run([entry], path=path))  # type: ignore[misc]
    for low, high in pairwise(entries):
        if low.limit != high.start:
            what = f"records from {low.limit} to {high.start} are missing or named twice"
            found.append(_error(path, what, low.limit, high.start))
    fragments = [entry for entry in entries if isinstance(entry, Fragment)]
    for one in fragments:
        found += _collect(lambda one=one: scrub_fragments([one], path=path))  # type: ignore[misc]
    for before, after in pairwise(fragments):
        found += check_order(before, after, path)
    return found


def _and_the_rest(found: list[Finding], scrub: Callable[[], None]) -> list[Finding]:
    """Return the findings; if there are none, those of the document's own check."""
    return found or _collect(scrub)


def _collect(check: Callable[[], None]) -> list[Finding]:
    try:
        check()
    except CorruptionError as error:
        return [of_error(error)]
    return []


def _error(path: str, what: str, expected: object, found: object) -> Finding:
    return Finding(Severity.ERROR, path, what, RESTORE, expected, found)


def _shown(value: object) -> object:
    return value.hexdigest() if isinstance(value, Setsum) else value
