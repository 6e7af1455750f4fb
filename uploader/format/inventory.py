"""Classifies the objects under a log's prefix by their keys alone. Pure."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from uploader.format import layout
from uploader.stores.probe import MARK_FOLDER, PROBE_FOLDER, parse_probe_key
from walstore.errors import InvalidSettingsError


class Part(Enum):
    """What an object of a log is."""

    FRAGMENT = "fragment"
    """Records, or a seal's object in the place of the next ones."""
    SNAPSHOT = "snapshot"
    """An inner node of the manifest's tree."""
    CURSOR = "cursor"
    """A reader's place."""
    GROUP = "group"
    """What the members of a group share."""
    HOLD = "hold"
    """From where on nothing is collected while a write is not finished."""
    GARBAGE = "garbage"
    """What a collector is about to drop."""
    HEADS = "heads"
    """Since when the log has begun where, for collectors."""
    STREAMS = "streams"
    """Which streams there are, and which are closed."""
    PROBE = "probe"
    """Left over from looking whether a store keeps its conditions."""
    MARK = "mark"
    """A store was looked at, and keeps its conditions."""
    FORK_NOTE = "fork note"
    """Whose fork the log is."""
    REBUILT = "rebuilt"
    """What a rebuild of the damaged log replaced or gave up."""
    MANIFEST = "manifest"
    """The root."""
    TOMBSTONE = "tombstone"
    """A log was destroyed here."""


FOLDERS: Final = {
    layout.FRAGMENT_FOLDER: Part.FRAGMENT,
    **{layout.shard_folder(1 + at): Part.FRAGMENT for at in range(layout.MOST_SHARDS)},
    layout.SNAPSHOT_FOLDER: Part.SNAPSHOT,
    layout.CURSOR_FOLDER: Part.CURSOR,
    layout.GROUP_FOLDER: Part.GROUP,
    layout.HOLD_FOLDER: Part.HOLD,
    layout.GARBAGE.rpartition("/")[0] + "/": Part.GARBAGE,
    layout.HEADS.rpartition("/")[0] + "/": Part.HEADS,
    layout.STREAMS.rpartition("/")[0] + "/": Part.STREAMS,
    f"{PROBE_FOLDER}/": Part.PROBE,
    f"{MARK_FOLDER}/": Part.MARK,
    layout.FORK_NOTE.rpartition("/")[0] + "/": Part.FORK_NOTE,
    layout.REBUILT_FOLDER: Part.REBUILT,
    layout.MANIFEST.rpartition("/")[0] + "/": Part.MANIFEST,
    layout.TOMBSTONE.rpartition("/")[0] + "/": Part.TOMBSTONE,
}
"""The folders of a log's objects, and their parts. The order is one in which they can be removed."""


def part_of(key: str) -> Part | None:
    """Return what the object with that key is to a log; None if it is no part of one."""
    for folder, part in FOLDERS.items():
        if key.startswith(folder):
            return part if _fits(part, key) else None
    return None


def goes_with_its_log(key: str) -> bool:
    """Return whether the object goes when its log is destroyed: all of its objects but the tombstone."""
    return part_of(key) not in {None, Part.TOMBSTONE}


def fragment_number(key: str) -> int:
    """Return the number in a fragment's key, of either layout; ValueError if there is none."""
    if key.startswith(layout.FRAGMENT_FOLDER):
        seq_no = layout.fragment_number(key)
        if seq_no is None:
            raise ValueError(f"not the key of a fragment: {key!r}")
        return seq_no
    return layout.FragmentName.parse(key).seq_no


def _fits(part: Part, key: str) -> bool:
    if part not in _PARSERS or key in _SINGLE:
        return key in _SINGLE
    try:
        _PARSERS[part](key)
    except (ValueError, InvalidSettingsError):
        return False
    return True


def _check_rebuilt(key: str) -> None:
    """Raise ValueError unless a rebuild keeps something under the key: a copy, or its own note."""
    _, copied = layout.parse_rebuilt_path(key)
    if copied is not None and part_of(copied) not in _COPIED:
        raise ValueError(f"not the key of what a rebuild keeps: {key!r}")


_COPIED: Final = {Part.FRAGMENT, Part.SNAPSHOT, Part.GARBAGE, Part.MANIFEST}
_PARSERS: Final[dict[Part, Callable[[str], object]]] = {
    Part.FRAGMENT: fragment_number,
    Part.SNAPSHOT: layout.parse_snapshot_path,
    Part.CURSOR: layout.parse_cursor_path,
    Part.GROUP: layout.parse_group_path,
    Part.HOLD: layout.parse_hold_path,
    Part.REBUILT: _check_rebuilt,
    Part.MANIFEST: layout.parse_manifest_key,
    Part.PROBE: parse_probe_key,
    Part.MARK: parse_probe_key,
}
_SINGLE: Final = {
    layout.GARBAGE,
    layout.HEADS,
    layout.STREAMS,
    layout.FORK_NOTE,
    layout.MANIFEST,
    layout.TOMBSTONE,
}
