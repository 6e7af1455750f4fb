"""The keys of a log's objects, relative to the log's prefix. Pure.

The layout is wal3's, byte for byte, because its programs compute some keys and list some folders:
``log/``, ``manifest/``, ``snapshot/``, ``cursor/`` and ``gc/`` may contain no other objects of ours.
docs/format.md ("Objects") lists those that are in use.

In a chain, the manifests' keys sort newest first and the fragments' keys say what those contain. All other
objects have the same keys in both layouts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from uploader.format.setsum import Setsum
from walstore.errors import InvalidSettingsError

FIRST_OFFSET: Final = 1
"""Offset of the first record of a log."""
FIRST_SEQ_NO: Final = 1
FRAGMENT_FORMAT: Final = "1"
"""Version of our fragments' columns; in their footers and in the manifest."""
"""Number of the first fragment of a log."""
BUCKET_FRAGMENTS: Final = 4096
"""Fragments that share a folder."""
MAX_U64: Final = (1 << 64) - 1
"""Largest number that offsets, sequence numbers, times and sizes may be."""

MANIFEST: Final = "manifest/MANIFEST"
GARBAGE: Final = "gc/GARBAGE"
FRAGMENT_FOLDER: Final = "log/"
SNAPSHOT_FOLDER: Final = "snapshot/"
CURSOR_FOLDER: Final = "cursor/"
GROUP_FOLDER: Final = "group/"
"""Ours: what the members of a group share."""
HOLD_FOLDER: Final = "hold/"
"""Ours: from where on nothing is collected as long as a write is not finished."""
FORK_NOTE: Final = "fork/SOURCE"
"""Ours: this log begins with what another one holds, or is going to."""
TOMBSTONE: Final = "tombstone/DESTROYED"
"""Ours: there was a log once, and nothing may begin in its place."""
COLLECTION_HEAD: Final = "head"
"""Ours: a versioned collection has this prefix, and no log may begin there."""
HEADS: Final = "collection/HEADS"
"""Ours: since when the log has begun where, so that collectors know what no reader can want any more."""
STREAMS: Final = "streams/TABLE"
"""Ours: the streams of a log that is written straight to the store."""
REBUILT_FOLDER: Final = "rebuilt/"
"""Ours: what a rebuild of a damaged log replaced or gave up."""
KEPT_SUFFIX: Final = ".kept"
"""Ours: ends the key of such a copy, so that none is an object of a log below this one."""
_REBUILD_NOTE: Final = "REBUILD"

_FRAGMENT_NAME: Final = re.compile(r"FragmentSeqNo=([0-9a-fA-F]+)\.parquet")
_BUCKET_NAME: Final = re.compile(r"Bucket=[0-9a-f]{16}")
_SHARD_FRAGMENT_NAME: Final = re.compile(r"([0-9a-f]{16})_[0-9]+_[0-9]+_[0-9a-f]{64}\.parquet")
_SNAPSHOT_PREFIX: Final = SNAPSHOT_FOLDER + "SNAPSHOT."
_CURSOR_NAME: Final = re.compile(r"[A-Za-z0-9_]+")
_CURSOR_SUFFIX: Final = ".json"
_GROUP_NAME: Final = re.compile(r"[A-Za-z0-9_]{1,100}")
_HOLD_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_REBUILT: Final = re.compile(rf"({REBUILT_FOLDER}[0-9a-f]{{16}}/)(.+)")


def fragment_path(seq_no: int) -> str:
    """Return the key of the fragment with that number; ValueError if it is no u64."""
    if not 0 <= seq_no <= MAX_U64:
        raise ValueError(f"a fragment's number is between 0 and 2**64 - 1, not {seq_no}")
    bucket = seq_no // BUCKET_FRAGMENTS * BUCKET_FRAGMENTS
    return f"{FRAGMENT_FOLDER}Bucket={bucket:016x}/FragmentSeqNo={seq_no:016x}.parquet"


def parse_fragment_path(path: str) -> int:
    """Return the number in a fragment's key; ValueError if there is none.

    As in wal3 only the last part of the key counts, and its digits may be of any number and case. Keys of
    fragments in shards (:class:`FragmentName`) have a number, too.
    """
    name = path.rpartition("/")[2]
    found = _FRAGMENT_NAME.fullmatch(name) or _SHARD_FRAGMENT_NAME.fullmatch(name)
    seq_no = int(found[1], 16) if found else -1
    if not 0 <= seq_no <= MAX_U64:
        raise ValueError(f"not the key of a fragment: {path!r}")
    return seq_no


def number_in(path: str) -> int | None:
    """Return the number in a fragment's key as :func:`parse_fragment_path` does; None if there is none."""
    try:
        return parse_fragment_path(path)
    except ValueError:
        return None


def fragment_number(key: str) -> int | None:
    """Return the number of the fragment that belongs under exactly this key; None if none does."""
    seq_no = number_in(key)
    return None if seq_no is None or key != fragment_path(seq_no) else seq_no


def is_among_fragments(key: str) -> bool:
    """Return whether a key in ``log/`` is in a place of this log's fragments.

    Else it is in a folder of another log, which may be at ``log`` below this one: its keys have numbers
    that :func:`parse_fragment_path` takes for this one's.
    """
    folder, _, name = key.removeprefix(FRAGMENT_FOLDER).partition("/")
    return not name or (_BUCKET_NAME.fullmatch(folder) is not None and "/" not in name)


def snapshot_path(setsum: Setsum) -> str:
    """Return the key of the snapshot whose content adds up to ``setsum``."""
    return _SNAPSHOT_PREFIX + setsum.hexdigest()


def parse_snapshot_path(path: str) -> Setsum:
    """Return the setsum in a snapshot's key; ValueError if there is none."""
    if not path.startswith(_SNAPSHOT_PREFIX):
        raise ValueError(f"not the key of a snapshot: {path!r}")
    return Setsum.from_hexdigest(path.removeprefix(_SNAPSHOT_PREFIX))


def cursor_path(name: str) -> str:
    """Return the key of a cursor; InvalidSettingsError unless its name is of letters, digits and _.

    One object of any other name in the folder would stop wal3's garbage collection.
    """
    if not isinstance(name, str):
        raise TypeError(f"a cursor's name must be a str, not {type(name).__name__}")
    if not _CURSOR_NAME.fullmatch(name):
        raise InvalidSettingsError(
            f"a cursor's name is made of letters A to Z, digits and '_', not {name!r}"
        )
    return f"{CURSOR_FOLDER}{name}{_CURSOR_SUFFIX}"


def parse_cursor_path(path: str) -> str:
    """Return the name in a cursor's key; ValueError if it is none."""
    name = path.removeprefix(CURSOR_FOLDER).removesuffix(_CURSOR_SUFFIX)
    if not _CURSOR_NAME.fullmatch(name) or cursor_path(name) != path:
        raise ValueError(f"not the key of a cursor: {path!r}")
    return name


def group_path(name: str) -> str:
    """Return the key of a group; ValueError unless its name has 1 to 100 letters, digits and _.

    It is part of the name of a cursor.
    """
    if not isinstance(name, str):
        raise TypeError(f"a group's name must be a str, not {type(name).__name__}")
    if not _GROUP_NAME.fullmatch(name):
        raise ValueError(
            "the name of a group of a log in a store has 1 to 100 of the characters A-Z a-z 0-9 _, "
            f"unlike {name[:200]!r}"
        )
    return f"{GROUP_FOLDER}{name}.json"


def parse_group_path(path: str) -> str:
    """Return the name in a group's key; ValueError if it is none."""
    name = path.removeprefix(GROUP_FOLDER).removesuffix(".json")
    if group_path(name) != path:
        raise ValueError(f"not the key of a group: {path!r}")
    return name


def hold_path(name: str) -> str:
    """Return the key of a hold; InvalidSettingsError unless its name is of letters, digits, _ and -."""
    if not _HOLD_NAME.fullmatch(name):
        raise InvalidSettingsError(
            f"a hold's name is made of letters A to Z, digits, '_' and '-', not {name!r}"
        )
    return f"{HOLD_FOLDER}{name}.json"


def parse_hold_path(path: str) -> str:
    """Return the name in a hold's key; ValueError if it is none."""
    name = path.removeprefix(HOLD_FOLDER).removesuffix(".json")
    if not _HOLD_NAME.fullmatch(name) or hold_path(name) != path:
        raise ValueError(f"not the key of a hold: {path!r}")
    return name


def rebuilt_folder(name: str) -> str:
    """Return where the rebuild ``name``, 16 hex digits, keeps what it replaced."""
    return f"{REBUILT_FOLDER}{name}/"


def kept_path(name: str, key: str) -> str:
    """Return where the rebuild ``name`` keeps the object that was at ``key``."""
    return f"{rebuilt_folder(name)}{key}{KEPT_SUFFIX}"


def rebuild_note(name: str) -> str:
    """Return the key of what a rebuild says of itself."""
    return rebuilt_folder(name) + _REBUILD_NOTE


def parse_rebuilt_path(path: str) -> tuple[str, str | None]:
    """Return the folder of a rebuild, and the key of what is kept under ``path``; None for its note.

    ValueError if it is neither.
    """
    found = _REBUILT.fullmatch(path)
    if found is None or not (found[2] == _REBUILD_NOTE or found[2].endswith(KEPT_SUFFIX)):
        raise ValueError(f"not the key of what a rebuild keeps: {path!r}")
    return found[1], None if found[2] == _REBUILD_NOTE else found[2].removesuffix(KEPT_SUFFIX)


MANIFEST_PREFIX: Final = "manifest/MANIFEST."
SHARD_PREFIX: Final = "shard"
"""What the names of all shards begin with."""
MOST_SHARDS: Final = 12
"""Prefixes that fragments may be spread over."""
ANCHOR: Final = 0
"""The slot of the first manifest, which is never deleted."""

_SLOT: Final = re.compile(r"[0-9a-f]{16}")
_FRAGMENT: Final = re.compile(
    r"shard([0-9]{4})/([0-9a-f]{16})_(0|[1-9][0-9]*)_(0|[1-9][0-9]*)_([0-9a-f]{64})\.parquet"
)


def manifest_key(slot: int) -> str:
    """Return the key of a manifest: the higher its slot, the earlier a listing names it.

    ValueError if the slot is no u64.
    """
    if not 0 <= slot <= MAX_U64:
        raise ValueError(f"a manifest's slot is between 0 and 2**64 - 1, not {slot}")
    return f"{MANIFEST_PREFIX}{MAX_U64 - slot:016x}"


def parse_manifest_key(key: str) -> int:
    """Return the slot of a manifest by its key; ValueError if it is none."""
    digits = key.removeprefix(MANIFEST_PREFIX)
    if not key.startswith(MANIFEST_PREFIX) or not _SLOT.fullmatch(digits):
        raise ValueError(f"not the key of a manifest in a chain: {key!r}")
    return MAX_U64 - int(digits, 16)


def shard_folder(shard: int) -> str:
    """Return the folder of a shard's fragments; shards are counted from 1. ValueError if it is none."""
    if not 1 <= shard <= MOST_SHARDS:
        raise ValueError(f"a shard's number is between 1 and {MOST_SHARDS}, not {shard}")
    return f"{SHARD_PREFIX}{shard:04}/"


@dataclass(frozen=True, slots=True)
class FragmentName:
    """All that the manifest says of a fragment but its length, and that is its object's."""

    seq_no: int
    start: int
    limit: int
    setsum: Setsum

    def key(self, *, shards: int) -> str:
        """Return the key for a writer with so many shards: neighbours are in different ones.

        ValueError for a number that is not a u64.
        """
        if not 0 <= self.seq_no <= MAX_U64:
            raise ValueError(f"a fragment's number is between 0 and 2**64 - 1, not {self.seq_no}")
        folder = shard_folder(1 + (self.seq_no - 1) % shards)
        digest = self.setsum.hexdigest()
        return f"{folder}{self.seq_no:016x}_{self.start}_{self.limit}_{digest}.parquet"

    @classmethod
    def parse(cls, key: str) -> FragmentName:
        """Read a key of whatever shard; ValueError if it is none."""
        found = _FRAGMENT.fullmatch(key)
        if found is None or not 1 <= int(found[1]) <= MOST_SHARDS:
            raise ValueError(f"not the key of a fragment in a shard: {key!r}")
        name = cls(
            seq_no=int(found[2], 16),
            start=int(found[3]),
            limit=int(found[4]),
            setsum=Setsum.from_hexdigest(found[5]),
        )
        if not name.start < name.limit <= MAX_U64:
            raise ValueError(f"the key of a fragment that holds no record: {key!r}")
        return name


def last_before(shard: int, seq_no: int) -> str:
    """Return a string that sorts behind all fragments of a shard below ``seq_no``, before all others."""
    return f"{shard_folder(shard)}{seq_no:016x}"
