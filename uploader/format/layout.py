"""The keys of a log's objects, relative to the log's prefix. Pure.

The layout is wal3's, byte for byte, because its programs compute some keys and list some folders:
``log/``, ``manifest/``, ``snapshot/``, ``cursor/`` and ``gc/`` may contain no other objects of ours.
docs/format.md ("Objects") lists those that are in use.
"""

from __future__ import annotations

import re
from typing import Final

from uploader.format.setsum import Setsum
from walstore.errors import InvalidSettingsError

FIRST_OFFSET: Final = 1
"""Offset of the first record of a log."""
FIRST_SEQ_NO: Final = 1
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
HOLD_FOLDER: Final = "hold/"
"""Ours: from where on nothing is collected as long as a write is not finished."""
FORK_NOTE: Final = "fork/SOURCE"
"""Ours: this log begins with what another one holds, or is going to."""
TOMBSTONE: Final = "tombstone/DESTROYED"
"""Ours: there was a log once, and nothing may begin in its place."""
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
    fragments in shards (``format/names.py``) have a number, too.
    """
    name = path.rpartition("/")[2]
    found = _FRAGMENT_NAME.fullmatch(name) or _SHARD_FRAGMENT_NAME.fullmatch(name)
    seq_no = int(found[1], 16) if found else -1
    if not 0 <= seq_no <= MAX_U64:
        raise ValueError(f"not the key of a fragment: {path!r}")
    return seq_no


def fragment_number(key: str) -> int | None:
    """Return the number of the fragment that belongs under exactly this key; None if none does."""
    try:
        seq_no = parse_fragment_path(key)
    except ValueError:
        return None
    return seq_no if key == fragment_path(seq_no) else None


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
