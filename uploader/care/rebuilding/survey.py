"""StoreSurvey: all objects of a log, read once and judged one at a time. Writes nothing.

Nothing that is damaged ends it; what cannot be *looked at* does, since a fragment that the store does not
give, or that a newer version wrote, is not lost.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from uploader.care.gc.observed_heads import read_heads
from uploader.care.rebuilding.plan import Note
from uploader.format import layout
from uploader.format.cloud_cursor import CloudCursor
from uploader.format.entries import Fragment, Snapshot
from uploader.format.findings import Finding, check_manifest, of_error
from uploader.format.garbage import Garbage
from uploader.format.inventory import Part, part_of
from uploader.format.layout import MANIFEST_PREFIX, SHARD_PREFIX
from uploader.format.manifest import Manifest, is_blocker
from uploader.fragments.fragment import inspect_fragment
from uploader.fragments.fragment_file import fragment_maker
from uploader.root.orphan_recovery import VOID
from uploader.root.stored_document import find_stored_or_damaged, most_bytes_at
from uploader.root.stream_file import read_closings
from uploader.runtime.task_groups import task_group
from uploader.stores.port import ObjectStore, StoredObject
from walstore.core.runtime.threads import Worker
from walstore.errors import CorruptionError, InvalidSettingsError

logger = logging.getLogger("walstore.repair")
_T = TypeVar("_T")

_EXCLUDED: Final = "it was excluded"
Progress = Callable[[int, int], None]
"""Called with how many fragments were read, and how many there are."""


@dataclass(frozen=True, slots=True)
class SeenFragment:
    """An object in the place of a fragment."""

    key: str
    seq_no: int
    etag: str
    entry: Fragment | None = None
    """What a manifest would say of it, from nothing but its bytes; None if it is no fragment."""
    maker: str | None = None
    """Who made it, as its footer says."""
    problem: str = ""
    """Why it is no fragment, in words."""
    is_excluded: bool = False
    """Whether the caller asked to treat it as damaged."""
    is_void: bool = False
    """Whether it counts as an empty place."""
    is_blocker: bool = False
    """Whether a seal put it there."""


@dataclass(frozen=True, slots=True)
class SeenSnapshot:
    """An object in the place of a snapshot."""

    etag: str
    snapshot: Snapshot | None
    """None if it cannot be read."""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSurvey:
    """What was found."""

    url: str
    manifest: Manifest | None
    """None if it is missing or cannot be read."""
    manifest_data: bytes
    """Empty if there is none."""
    manifest_etag: str | None
    """None if there is none."""
    manifest_findings: tuple[Finding, ...]
    """All that is wrong inside the manifest."""
    snapshots: Mapping[str, SeenSnapshot]
    """By key."""
    fragments: Mapping[int, SeenFragment]
    """By number."""
    garbage_etag: str | None
    """Names the announced collection; None if there is none."""
    head: int
    """Where collectors have seen the log begin; 0 if nothing says so."""
    announced: int
    """Where an announced collection lets the log begin, if it was carried out; 0 if there is none."""
    cursors: tuple[CloudCursor, ...]
    """Those that can be read."""
    notes: tuple[Note, ...]
    """What earlier rebuilds noted."""
    is_forked: bool
    """Whether a fork was made here, or is being made."""
    closings: int
    """How many closings of streams are in the log's table."""


async def is_chain(store: ObjectStore) -> bool:
    """Return whether there is a log of the layout ``chain``, or what is left of one."""
    if await store.head(layout.MANIFEST) is not None:
        return False
    async for listed in store.list(MANIFEST_PREFIX):
        if part_of(listed.key) is Part.MANIFEST:
            return True
    async for listed in store.list(SHARD_PREFIX):
        if part_of(listed.key) is Part.FRAGMENT:
            return True
    return False


async def survey(
    store: ObjectStore,
    worker: Worker,
    *,
    exclude: AbstractSet[str],
    concurrency: int,
    now_us: int,
    progress: Progress | None,
) -> StoreSurvey:
    """Read everything; fragments ``concurrency`` at a time. FormatVersionError if something is too new.

    InvalidSettingsError for a log of the layout ``chain``; the store's errors.
    """
    if await is_chain(store):
        raise InvalidSettingsError(
            f"the log at {store.url} has the layout 'chain'; use uploader.rebuild for that"
        )
    stored = await _get(store, layout.MANIFEST)
    manifest: Manifest | None = None
    missing = CorruptionError("the manifest is missing", path=layout.MANIFEST)
    findings: tuple[Finding, ...] = (of_error(missing),)
    if stored is not None:
        manifest, findings = await worker.run(_parse_manifest, stored.data)
    snapshots = await _snapshots(store, worker)
    keys = await _fragment_keys(store, _named(manifest, snapshots))
    fragments = await _fragments(store, worker, keys, exclude, concurrency, progress)
    garbage = await _get(store, layout.GARBAGE)
    announced = _announced(garbage)
    return StoreSurvey(
        url=store.url,
        manifest=manifest,
        manifest_data=b"" if stored is None else stored.data,
        manifest_etag=None if stored is None else stored.etag,
        manifest_findings=findings,
        snapshots=snapshots,
        fragments=fragments,
        garbage_etag=None if garbage is None or announced is None else garbage.etag,
        head=max((head.offset for head in await read_heads(store)), default=0),
        announced=0 if announced is None else announced.first_to_keep,
        cursors=tuple(
            [cursor async for cursor in _cursors(store) if not cursor.is_expired(now_us)]
        ),
        notes=tuple([note async for note in _notes(store)]),
        is_forked=await store.head(layout.FORK_NOTE) is not None,
        closings=await read_closings(store),
    )


# -- inside ----------------------------------------------------------------------------------


async def _get(store: ObjectStore, key: str) -> StoredObject | None:
    """Return an object, None if there is none; without its bytes if it is longer than what belongs there."""
    found = await find_stored_or_damaged(store, key, bytes, most_bytes=most_bytes_at(key))
    if found is None or found.etag is None:
        return None
    return StoredObject(found.value or b"", found.etag)


def _parse_manifest(data: bytes) -> tuple[Manifest | None, tuple[Finding, ...]]:
    try:
        manifest = Manifest.parse(data)
    except CorruptionError as error:
        return None, (of_error(error),)
    return manifest, tuple(check_manifest(manifest))


async def _snapshots(store: ObjectStore, worker: Worker) -> dict[str, SeenSnapshot]:
    found: dict[str, SeenSnapshot] = {}
    async for listed in store.list(layout.SNAPSHOT_FOLDER):
        if part_of(listed.key) is not Part.SNAPSHOT:
            continue
        stored = await _get(store, listed.key)
        if stored is not None:
            found[listed.key] = await worker.run(_parse_snapshot, stored, listed.key)
    return found


def _parse_snapshot(stored: StoredObject, key: str) -> SeenSnapshot:
    try:
        snapshot = Snapshot.parse(stored.data, path=key)
        snapshot.scrub()
        if snapshot.path != key:
            raise CorruptionError("it says that it has another key", path=key)
    except CorruptionError as error:
        return SeenSnapshot(stored.etag, None, of_error(error).what)
    return SeenSnapshot(stored.etag, snapshot)


def _named(manifest: Manifest | None, snapshots: Mapping[str, SeenSnapshot]) -> Iterable[Fragment]:
    """Yield every entry of a fragment in any document."""
    if manifest is not None:
        yield from manifest.fragments
    for seen in snapshots.values():
        if seen.snapshot is not None:
            yield from seen.snapshot.fragments


async def _fragment_keys(store: ObjectStore, named: Iterable[Fragment]) -> dict[int, str]:
    """Return the keys of all fragments, by number; one under an unusual key only if that is named."""
    there = [listed.key async for listed in store.list(layout.FRAGMENT_FOLDER)]
    keys = {number: key for key in there if (number := layout.fragment_number(key)) is not None}
    unusual = {entry.path: entry.seq_no for entry in named}
    keys.update(
        {
            unusual[key]: key
            for key in there
            if key in unusual and unusual[key] == layout.number_in(key)
        }
    )
    return dict(sorted(keys.items()))


async def _fragments(
    store: ObjectStore,
    worker: Worker,
    keys: Mapping[int, str],
    exclude: AbstractSet[str],
    concurrency: int,
    progress: Progress | None,
) -> dict[int, SeenFragment]:
    found: dict[int, SeenFragment] = {}
    waiting = iter(keys.items())
    done = 0

    async def read_on() -> None:
        nonlocal done
        for seq_no, key in waiting:
            stored = await _get(store, key)
            if stored is not None:
                seen = await worker.run(_examine, stored, key, seq_no)
                if key in exclude and seen.entry is not None:
                    seen = replace(seen, entry=None, problem=_EXCLUDED, is_excluded=True)
                found[seq_no] = seen
            done += 1
            if progress is not None:
                progress(done, len(keys))

    async with task_group() as group:
        for _ in range(concurrency):
            group.create_task(read_on())
    return dict(sorted(found.items()))


def _examine(stored: StoredObject, key: str, seq_no: int) -> SeenFragment:
    seen = SeenFragment(key, seq_no, stored.etag)
    if stored.data == VOID:
        return replace(seen, problem="it is void", is_void=True)
    if is_blocker(stored.data):
        return replace(seen, problem="a seal put it there", is_blocker=True)
    try:
        entry = inspect_fragment(stored.data, key)
        maker = fragment_maker(stored.data, path=key)
    except CorruptionError as error:
        return replace(seen, problem=of_error(error).what)
    return replace(seen, entry=entry, maker=maker)


def _announced(stored: StoredObject | None) -> Garbage | None:
    """Return the announced collection; None if there is none, or it cannot be read."""
    if stored is None:
        return None
    try:
        garbage = Garbage.parse(stored.data)
    except CorruptionError:
        return None  # it stops only collectors; a scrub reports what to do
    return None if garbage.is_empty else garbage


async def _cursors(store: ObjectStore) -> AsyncIterator[CloudCursor]:
    async for listed in store.list(layout.CURSOR_FOLDER):
        if part_of(listed.key) is not Part.CURSOR:
            continue
        parse = partial(CloudCursor.parse, name=layout.parse_cursor_path(listed.key))
        cursor = await _parsed(store, listed.key, parse)
        if cursor is not None:  # a scrub reports those that are damaged
            yield cursor


async def _notes(store: ObjectStore) -> AsyncIterator[Note]:
    async for listed in store.list(layout.REBUILT_FOLDER):
        if part_of(listed.key) is not Part.REBUILT or layout.parse_rebuilt_path(listed.key)[1]:
            continue
        note = await _parsed(store, listed.key, partial(Note.parse, path=listed.key))
        if note is not None:
            yield note


async def _parsed(store: ObjectStore, key: str, parse: Callable[[bytes], _T]) -> _T | None:
    """Return what a document says; None if it is gone or damaged."""
    found = await find_stored_or_damaged(store, key, parse)
    if found is None:
        return None
    if found.value is None:
        logger.warning("%s: %s", store.url, found.damage)
    return found.value
