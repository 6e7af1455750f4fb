"""Shards: lists the prefixes that fragments are spread over, and rebuilds a manifest from such a listing.

A log whose manifests are lost or damaged needs nothing else: the names of fragments contain almost all. What
no name contains is lost: the sum of what was collected before, and how many bytes were ever added.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Final

from uploader.chain.chain_reader import WINDOW_SLOTS, slots_of
from uploader.chain.window import new_author
from uploader.format.entries import Fragment
from uploader.format.garbage import first_seq_no
from uploader.format.layout import (
    FIRST_SEQ_NO,
    MANIFEST_PREFIX,
    MOST_SHARDS,
    SHARD_PREFIX,
    FragmentName,
    last_before,
    manifest_key,
    shard_folder,
)
from uploader.format.link import Link
from uploader.format.manifest import Manifest
from uploader.root import cas
from uploader.root.stored_document import find_stored_or_damaged
from uploader.root.stream_file import read_closings
from uploader.root.write_guard import writer_after_rebuild
from uploader.runtime.task_groups import gather_all
from uploader.stores.port import ListedObject, ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.validation.arguments import as_texts
from walstore.errors import ContentionError, CorruptionError, LogNotFoundError


async def list_behind(
    store: ObjectStore, seq_no: int, *, is_spread: bool = True
) -> list[ListedObject]:
    """Return the fragments with that number and higher ones, of all shards, by number.

    All possible shards are listed, since an earlier writer may have used more. One request is enough if all
    fragments are in the first one. That is tried unless ``is_spread``, and costs a request if wrong.
    """
    found = None
    if seq_no == FIRST_SEQ_NO or not is_spread:  # of a new log there is little to list
        found = await _list_first_shard(store, seq_no)
    if found is None:
        found = await _list_names(store, seq_no)
    return [listed for _, listed in sorted(found, key=_by_number)]


async def _list_names(store: ObjectStore, seq_no: int) -> list[tuple[FragmentName, ListedObject]]:
    """Return what :func:`list_behind` does, with the parsed names; other objects are left out."""
    shards = range(1, MOST_SHARDS + 1)
    folders = [_list(store, shard_folder(shard), last_before(shard, seq_no)) for shard in shards]
    found = await gather_all(folders)
    return sorted((item for listing in found for item in listing), key=_by_number)


async def _list_first_shard(
    store: ObjectStore, seq_no: int
) -> list[tuple[FragmentName, ListedObject]] | None:
    """Return what one listing names from there on; None if other keys follow.

    Those may be of the other shards, from their beginning, or of any object with such a prefix.
    """
    found = []
    folder = shard_folder(1)
    async for listed in store.list(SHARD_PREFIX, after=last_before(1, seq_no)):
        name = _parse(listed)
        if name is not None and name.seq_no >= seq_no:
            found.append((name, listed))
        elif not listed.key.startswith(folder):
            return None
    return found


async def _list(
    store: ObjectStore, prefix: str, after: str | None
) -> list[tuple[FragmentName, ListedObject]]:
    listing = [(_parse(listed), listed) async for listed in store.list(prefix, after=after)]
    return [(name, listed) for name, listed in listing if name is not None]


def _parse(listed: ListedObject) -> FragmentName | None:
    try:
        return FragmentName.parse(listed.key)
    except ValueError:
        return None


def _by_number(item: tuple[FragmentName, ListedObject]) -> tuple[int, int, int, str]:
    name, listed = item
    return name.seq_no, name.start, name.limit, listed.key


_SLOTS_AHEAD: Final = 1 << 32
"""A new chain begins at the next multiple of it, far from any slot that an old one could name."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a listing says."""

    manifest: Manifest
    """Of the longest run of fragments that continue each other."""
    left_out: tuple[str, ...]
    """Keys of the other fragments: never published, collected, or behind a hole. Check before you write."""


def assemble(
    listed: Iterable[tuple[FragmentName, ListedObject]],
    writer: str,
    *,
    exclude: AbstractSet[str] = frozenset(),
) -> Rebuilt:
    """Return what fragments there are, by their names, as a manifest.

    Args:
        listed: Names and listed objects.
        writer: What the manifest is to say of who wrote it.
        exclude: Keys to leave out.

    Raises:
        LogNotFoundError: if there is none.
        CorruptionError: if two could stand in the same place with as many behind them. One of them was
            never published; exclude it.
    """
    left_out_keys = frozenset(as_texts(exclude, "exclude"))
    fragments = [_fragment(name, item) for name, item in listed if item.key not in left_out_keys]
    if not fragments:
        raise LogNotFoundError("there are no fragments", location="shard")
    run = _longest_run(fragments)
    first = run[0]
    begun = Manifest.initial(writer, start=first.start, seq_no=first.seq_no)
    manifest = begun.apply_fragments(run, writer)
    manifest.scrub()
    taken = {fragment.path for fragment in run}
    left_out = sorted({fragment.path for fragment in fragments} - taken)
    return Rebuilt(manifest, tuple(left_out))


async def rebuild(
    store: ObjectStore,
    writer: str,
    *,
    write: bool = False,
    exclude: AbstractSet[str] = frozenset(),
    retry: RetryPolicy | None = None,
    make_id: Callable[[], str] = new_author,
) -> Rebuilt:
    """Make a manifest of the fragments in the store's shards; with ``write``, begin a new chain with it.

    The new chain comes before the old one in every listing, so it is the log from then on. Stop all writers
    first: anything that one of them publishes to the old chain meanwhile is lost. Errors as :func:`assemble`;
    OutcomeUnknownError if the store does not answer, then look before calling again.

    A fragment without an object is taken from the newest manifests; with ``write`` its object is put.
    """
    writer = writer_after_rebuild(writer, await read_closings(store))
    listed = await _list_names(store, 0)
    inline = await _inline_contents(store, {item.key for _, item in listed})
    listed += [
        (FragmentName.parse(path), ListedObject(path, len(data))) for path, data in inline.items()
    ]
    rebuilt = assemble(listed, writer, exclude=exclude)
    if not write:
        return rebuilt
    for path in {fragment.path for fragment in rebuilt.manifest.fragments} & inline.keys():
        put = await cas.create(store, path, inline[path], retry=retry)
        put.decided(store.url, f"{path} was put; look before you try again")
    slots = slots_of([listed.key async for listed in store.list(MANIFEST_PREFIX)])
    slot = (max(slots, default=-1) // _SLOTS_AHEAD + 1) * _SLOTS_AHEAD
    link = Link.root(rebuilt.manifest, author=make_id(), alpha=1, slot=slot)
    result = await cas.create(store, link.key, link.serialise(), retry=retry)
    result.decided(store.url, f"{link.key} was put; look before you try again")
    if result.outcome is cas.PutOutcome.LOST:
        raise ContentionError(f"another process rebuilds the manifest of {store.url}")
    return rebuilt


async def _inline_contents(store: ObjectStore, known: AbstractSet[str]) -> dict[str, bytes]:
    """Return the fragments without an object that are in the newest manifests that can be read, by key.

    Also of manifests that do not belong to the log, if any: their fragments are like those that were put and
    never published. Not what the newest one says was collected.
    """
    keys = [listed.key async for listed in store.list(MANIFEST_PREFIX)]
    slots = sorted(slots_of(keys), reverse=True)
    found: dict[str, bytes] = {}
    links: dict[int, Link | None] = {}

    async def link_in(slot: int) -> Link | None:
        if slot not in links:
            parse = partial(Link.parse, slot=slot)
            stored = await find_stored_or_damaged(store, manifest_key(slot), parse)
            links[slot] = None if stored is None else stored.value
        return links[slot]

    first: int | None = None
    for slot in slots[:WINDOW_SLOTS]:
        link = await link_in(slot)
        if link is None:
            continue
        first = first_seq_no(link.manifest) if first is None else first
        for item in link.inline:
            if FragmentName.parse(item.path).seq_no < first:
                continue
            holder = await link_in(item.slot)
            data = None if holder is None else holder.content(item.path)
            if data is not None and item.path not in known:
                found[item.path] = data
    return found


def _fragment(name: FragmentName, listed: ListedObject) -> Fragment:
    return Fragment(listed.key, name.seq_no, name.start, name.limit, listed.size_bytes, name.setsum)


def _longest_run(fragments: Sequence[Fragment]) -> list[Fragment]:
    """Return the one longest run in which each fragment continues the one before."""
    behind: dict[tuple[int, int], list[Fragment]] = defaultdict(list)
    length: dict[str, int] = {}
    for fragment in sorted(fragments, key=lambda fragment: -fragment.seq_no):
        following = behind[fragment.seq_no + 1, fragment.limit]
        length[fragment.path] = 1 + max((length[item.path] for item in following), default=0)
        behind[fragment.seq_no, fragment.start].append(fragment)
    run: list[Fragment] = []
    choice: Sequence[Fragment] = fragments
    while choice:
        most = max(length[fragment.path] for fragment in choice)
        best = [fragment for fragment in choice if length[fragment.path] == most]
        if len(best) > 1:
            raise CorruptionError(
                f"{best[0].path} and {best[1].path} could both belong there; exclude one of them",
                path=best[1].path,
            )
        run.append(best[0])
        choice = behind.get((best[0].seq_no + 1, best[0].limit), [])
    return run
