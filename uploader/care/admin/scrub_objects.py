"""ScrubObjects: checks all objects under a log's prefix other than those its manifest leads to.

Owns the checks of cursors, of a pending collection, and of the listing: leftover fragments and snapshots, and
objects that are not part of a log. The log may change meanwhile, so each object is compared with a manifest
read after it or before it, whichever cannot cause a false alarm:

  * a cursor may be below the log's head only because the head moved later, so cursors are read after the
    manifest; it may be above the end only because the end is stale, so the manifest is read again;
  * a fragment after the end, or a snapshot that nothing names, is looked up in a manifest read later. A
    writer may be about to publish it, so these are notes, not errors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from uploader.format import layout
from uploader.format.cloud_cursor import CloudCursor
from uploader.format.document import MOST_SMALL_BYTES
from uploader.format.entries import Snapshot, SnapshotPointer
from uploader.format.findings import Finding, Severity, of_error
from uploader.format.garbage import Garbage, first_seq_no
from uploader.format.inventory import FOLDERS, Part, fragment_number, part_of
from uploader.format.layout import FragmentName
from uploader.format.manifest import Manifest
from uploader.format.tree_walk import named_snapshots
from uploader.fragments.fragment import inspect_fragment
from uploader.root.orphan_recovery import VOID
from uploader.root.stored_document import find_stored, read_object, read_stored
from uploader.root.tree import ManifestTree
from uploader.stores.port import ObjectNotFoundError, ObjectStore
from walstore.core.ports import Clock
from walstore.core.runtime.threads import Worker
from walstore.errors import CorruptionError, FormatVersionError, OffsetTrimmedError

MOST_LISTED: Final = 1000
"""Maximum number of objects of one kind that are listed individually; above it only their count is
reported."""
_MOST_SUSPECTS: Final = 100 * MOST_LISTED


class ScrubObjects:
    """One check of all these objects. Belongs to one task."""

    def __init__(
        self,
        store: ObjectStore,
        worker: Worker,
        *,
        newest: Callable[[], Awaitable[Manifest]],
        report: Callable[[Finding], None],
        clock: Clock,
    ) -> None:
        """``newest`` reads the manifest again; ``report`` receives findings; ``clock`` decides which pins
        expired."""
        self._store = store
        self._worker = worker
        self._newest = newest
        self._report = report
        self._clock = clock
        self._tree = ManifestTree(store, worker)
        self._counts: Counter[str] = Counter()

    async def check(self) -> None:
        """Check everything once."""
        await self._check_cursors()
        await self._check_garbage()
        await self._check_listing()
        for what, count in self._counts.items():
            if count > MOST_LISTED:
                total = f"{count} objects in all: {what}"
                self._report(Finding(Severity.NOTE, "", total, "the first thousand are listed"))

    # -- cursors and collections -------------------------------------------------------------

    async def _check_cursors(self) -> None:
        async for listed in self._store.list(layout.CURSOR_FOLDER):
            try:
                name = layout.parse_cursor_path(listed.key)
            except ValueError:
                continue  # reported by the listing
            manifest = await self._newest()
            try:
                found = await find_stored(
                    self._store,
                    listed.key,
                    partial(CloudCursor.parse, name=name),
                    most_bytes=MOST_SMALL_BYTES,
                    worker=self._worker,
                )
            except CorruptionError as error:
                advice = (
                    "delete it, then commit it again if it is wanted; nothing is collected before"
                )
                self._report(of_error(error, advice=advice))
                continue
            # A removed cursor or an expired pin holds nothing and may point anywhere.
            if found is not None and not found.value.is_expired(self._clock.now_us()):
                await self._check_cursor(listed.key, found.value, manifest)

    async def _check_cursor(self, key: str, cursor: CloudCursor, manifest: Manifest) -> None:
        if cursor.position < manifest.oldest_offset and cursor.is_unchecked:
            self._note(
                key,
                "a cursor for records that were collected, put by a call that did not end yet, or never will",
                "commit it further on, or delete it, unless that call is under way: it holds the log",
            )
        elif cursor.position < manifest.oldest_offset:
            self._report(
                Finding(
                    Severity.WARNING,
                    key,
                    "the cursor points at records that were collected",
                    "find out what its reader has missed; then commit it further on, or delete it",
                    f"at least {manifest.oldest_offset}",
                    cursor.position,
                )
            )
        elif cursor.position > manifest.next_offset:
            manifest = await self._newest()
            if cursor.position > manifest.next_offset:
                self._report(
                    Finding(
                        Severity.WARNING,
                        key,
                        "the cursor is ahead of the log; its reader would miss what comes there",
                        "rewind it to the log's end",
                        f"at most {manifest.next_offset}",
                        cursor.position,
                    )
                )

    async def _check_garbage(self) -> None:
        try:
            found = await find_stored(
                self._store, layout.GARBAGE, Garbage.parse, worker=self._worker
            )
        except (CorruptionError, FormatVersionError) as error:
            advice = "overwrite it with an empty one; nothing can be collected until then"
            self._report(of_error(error, advice=advice))
            return
        if found is not None and not found.value.is_empty:
            self._note(
                layout.GARBAGE,
                f"a collection of what comes before offset {found.value.first_to_keep} is under way, or was "
                "interrupted",
                "collect again, if no collector is at work; that finishes it",
            )

    # -- the listing -------------------------------------------------------------------------

    async def _check_listing(self) -> None:
        manifest = await self._newest()
        fragments: list[str] = []
        snapshots: list[str] = []
        counted: Counter[tuple[str, str, str]] = Counter()
        async for listed in self._store.list(""):
            part = part_of(listed.key)
            if part is Part.FRAGMENT:
                if await self._why_unnamed(listed.key, manifest) is not None:
                    fragments.append(listed.key)
                    del fragments[_MOST_SUSPECTS:]
            elif part is Part.SNAPSHOT:
                snapshots.append(listed.key)
            elif part in {None, Part.REBUILT}:
                self._report_other(listed.key, part, counted)
            elif part in _ODD:
                self._report(Finding(_ODD[part][0], listed.key, *_ODD[part][1:]))
        for (place, what, advice), count in counted.items():
            self._note(place, f"{count} objects {what}", advice)
        manifest = await self._newest()
        if manifest.is_rebuilding:
            self._report_up_to_limit(Severity.WARNING, layout.MANIFEST, *_REBUILDING)
        await self._report_fragments(fragments, manifest)
        if snapshots:
            await self._report_snapshots(snapshots, manifest)

    async def _report_fragments(self, fragments: Sequence[str], manifest: Manifest) -> None:
        """Report the fragments that no manifest names, except voided ones."""
        misfits, voided = await self._behind(fragments, manifest)
        for key in fragments:
            if key in voided:
                continue
            why = _MISFIT if key in misfits else await self._why_unnamed(key, manifest)
            if why is not None:
                self._report_up_to_limit(
                    Severity.WARNING if key in misfits else Severity.NOTE, key, *why
                )

    async def _why_unnamed(self, key: str, manifest: Manifest) -> tuple[str, str] | None:
        """Return why no manifest names the fragment at ``key``, and the advice; None if one names it."""
        seq_no = fragment_number(key)
        if seq_no < first_seq_no(manifest):
            what = "a fragment that was collected, but not deleted"
            return what, "delete it, if no collector is at work"
        if seq_no >= manifest.next_seq_no:
            if manifest.is_sealed and key == layout.fragment_path(manifest.next_seq_no):
                return None  # the seal's blocker
            if manifest.is_sealed:
                return "an object behind the end of a sealed log", "delete it"
            what = "a fragment that was put and not published, or not yet"
            return what, "nothing: the next writer takes it up, or puts its own there"
        if key.startswith(layout.FRAGMENT_FOLDER) or await self._is_named(key, manifest):
            return None
        what = "a fragment of a writer that was overtaken by another one"
        return what, "delete it, once that writer is gone"

    async def _behind(self, keys: Sequence[str], manifest: Manifest) -> tuple[set[str], set[str]]:
        """Return the fragments after the log's end that do not continue it but that wal3's programs would
        link; and the keys there that are voided. Reads the fragments after the end."""
        found: set[str] = set()
        voided: set[str] = set()
        seq_no, offset = manifest.next_seq_no, manifest.next_offset
        behind = [key for key in keys if key.startswith(layout.FRAGMENT_FOLDER)]
        behind = [key for key in behind if fragment_number(key) >= seq_no]
        for key in [] if manifest.is_sealed else sorted(behind)[:MOST_LISTED]:
            try:
                data = (await read_object(self._store, key)).data
                if data == VOID:
                    voided.add(key)
                    continue
                entry = await self._worker.run(inspect_fragment, data, key)
            except (ObjectNotFoundError, CorruptionError):
                continue  # wal3 would link neither
            if (entry.seq_no, entry.start) == (seq_no, offset):
                seq_no, offset = seq_no + 1, entry.limit
            else:
                found.add(key)
        return found, voided

    async def _is_named(self, key: str, manifest: Manifest) -> bool:
        """Return whether a fragment in a shard is the one that the manifest names, as far as can be
        determined.

        Several may have the same number, since their keys depend on their content.
        """
        try:
            found = await self._tree.locate(manifest, FragmentName.parse(key).start)
        except (CorruptionError, OffsetTrimmedError):
            return True  # reported by the walk
        return found is None or found.path == key

    async def _report_snapshots(self, keys: Sequence[str], manifest: Manifest) -> None:
        """Report the snapshots that the manifest does not lead to."""
        named = await named_snapshots(manifest, self._below)
        for key in keys:
            if key not in named and await self._store.head(key) is not None:
                self._note(
                    key, "a snapshot that nothing names", "delete it, if no writer is at work"
                )

    async def _below(self, pointer: SnapshotPointer) -> list[SnapshotPointer]:
        path = pointer.path_to_snapshot
        try:
            parse = partial(Snapshot.parse, path=path)
            snapshot = (await read_stored(self._store, path, parse, worker=self._worker)).value
        except (ObjectNotFoundError, CorruptionError):
            return []  # reported by the walk
        return [child for child in snapshot.snapshots if child.depth < pointer.depth]

    def _report_other(
        self, key: str, part: Part | None, counted: Counter[tuple[str, str, str]]
    ) -> None:
        """Report an object that is not part of a log; count copies and those outside its folders."""
        folder = next((folder for folder in FOLDERS if key.startswith(folder)), None)
        if part is Part.REBUILT:
            counted[layout.parse_rebuilt_path(key)[0], *_REBUILT] += 1
        elif folder is None:
            top, slash, _ = key.partition("/")
            counted[top + slash, *_OUTSIDE] += 1
        elif folder == layout.CURSOR_FOLDER:
            what = "this is not the key of a cursor; wal3's collector stops at it"
            self._report(Finding(Severity.WARNING, key, what, "move it elsewhere or delete it"))
        else:
            self._note(
                key, "an object that is no part of the log", "move it elsewhere or delete it"
            )

    def _note(self, key: str, what: str, advice: str) -> None:
        self._report_up_to_limit(Severity.NOTE, key, what, advice)

    def _report_up_to_limit(self, severity: Severity, key: str, what: str, advice: str) -> None:
        self._counts[what] += 1
        if self._counts[what] <= MOST_LISTED:
            self._report(Finding(severity, key, what, advice))


_MISFIT: Final = (
    "a fragment that does not continue the log; wal3, opening it, would link it and destroy the log",
    "let one of our writers append before a program of wal3 opens the log for writing",
)
_OUTSIDE: Final = "that are no part of the log", "see whose they are"
_REBUILT: Final = (
    "that a rebuild replaced or gave up",
    "delete them, once nobody wants to look at them",
)
_REBUILDING: Final = (
    "a rebuild is under way, or was interrupted; until it ends nobody can append",
    "rebuild the log again",
)
_ODD: Final = {
    Part.PROBE: (
        Severity.NOTE,
        "left over from a look at the store",
        "delete it, if no writer is being opened",
    ),
    Part.TOMBSTONE: (
        Severity.WARNING,
        "the log was destroyed, but there is a manifest",
        "destroy it again",
    ),
}
