"""What a fragment's footer says about reading it in the JVM, and whether it is the one that is meant. Pure.

The JVM's reader knows nothing of the manifest and of formats. What it would not notice is looked at before:
how many records there are, with which offsets, in which columns.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from uploader.format.entries import Fragment
from uploader.fragments.fragment_file import (
    FORMAT_VERSION,
    OUR_FIELDS,
    WAL3_FIELDS,
    Footer,
)
from walstore.errors import CorruptionError, FormatVersionError
from walstore.spark.fast_path.obstacle import FastPathError

_WAL3_NAMES: Final = frozenset(field.name for field in WAL3_FIELDS)
_OUR_NAMES: Final = frozenset(field.name for field in OUR_FIELDS)


class FragmentKind(Enum):
    """Who made a fragment, and with that how its columns are stored."""

    OURS = "ours"
    """All of our columns. Offsets and times are stored as deltas."""
    WAL3 = "wal3"
    """wal3's columns alone. Offsets and times may be stored through a dictionary."""


def kind_of(footer: Footer, entry: Fragment) -> FragmentKind:
    """Return what the fragment of a manifest entry is.

    Raises CorruptionError if it has not as many records as the entry says, other offsets, or lacks a
    column; FormatVersionError if a newer version of this program wrote it; FastPathError if it has columns
    that only the Python source can judge.
    """
    if footer.version not in {None, FORMAT_VERSION}:
        raise FormatVersionError(
            "a fragment of a newer version",
            path=entry.path,
            found=(footer.version or b"").decode(errors="replace"),
            supported=FORMAT_VERSION.decode(),
        )
    _same("number of records", entry, entry.limit - entry.start, footer.rows)
    if footer.offsets is not None:
        _same("offsets", entry, (entry.start, entry.limit - 1), footer.offsets)
    wanted = _WAL3_NAMES if footer.version is None else _WAL3_NAMES | _OUR_NAMES
    missing = sorted(wanted - footer.columns)
    if missing:
        raise CorruptionError(f"a fragment lacks the column {missing[0]!r}", path=entry.path)
    if footer.version is not None:
        return FragmentKind.OURS
    strange = sorted(name for name in footer.columns if name in _OUR_NAMES)
    if strange:
        raise FastPathError(
            f"{entry.path} was written by another program and has a column {strange[0]!r}, of which only"
            " the Python source can tell whether it is the log's"
        )
    return FragmentKind.WAL3


def _same(what: str, entry: Fragment, expected: object, found: object) -> None:
    if found != expected:
        raise CorruptionError(
            f"a fragment's {what}: {found}, but the manifest says {expected}",
            path=entry.path,
            expected=expected,
            found=found,
        )
