"""Which objects are a log's own, by their keys."""

from __future__ import annotations

import pytest

from tests.cases import case
from uploader.format import layout
from uploader.format.inventory import FOLDERS, Part, fragment_number, part_of
from uploader.format.layout import FragmentName, manifest_key
from uploader.format.setsum import Setsum

SUM = Setsum.of_items([b"x"])
SHARDED = FragmentName(7, 3, 9, SUM).key(shards=4)


def test_parts_of_a_log() -> None:
    for key, part in (
        (layout.fragment_path(5000), Part.FRAGMENT),
        (SHARDED, Part.FRAGMENT),
        (layout.snapshot_path(SUM), Part.SNAPSHOT),
        (layout.cursor_path("reader_1"), Part.CURSOR),
        (layout.hold_path("0a-1"), Part.HOLD),
        (layout.GARBAGE, Part.GARBAGE),
        (layout.HEADS, Part.HEADS),
        (layout.MANIFEST, Part.MANIFEST),
        (manifest_key(0), Part.MANIFEST),
        (layout.FORK_NOTE, Part.FORK_NOTE),
        (layout.TOMBSTONE, Part.TOMBSTONE),
        ("rebuilt/0123456789abcdef/REBUILD", Part.REBUILT),
        (layout.kept_path("0123456789abcdef", layout.MANIFEST), Part.REBUILT),
        (layout.kept_path("0123456789abcdef", layout.fragment_path(5000)), Part.REBUILT),
        ("walstore-probe/x-1", Part.PROBE),
        ("walstore-mark/swaps-0123456789abcdef", Part.MARK),
    ):
        with case(key, part):
            assert part_of(key) is part


def test_what_is_no_part_of_a_log() -> None:
    for key in (
        "readme",
        "logs/x",
        "a/" + layout.fragment_path(1),
        "log/readme",
        layout.fragment_path(1).replace("Bucket=0000000000000000", "Bucket=0000000000001000"),
        layout.fragment_path(10).upper(),
        "log/FragmentSeqNo=1.parquet",
        SHARDED.replace("shard0", "shard9"),
        "snapshot/SNAPSHOT.xyz",
        "cursor/a b.json",
        "cursor/a",
        "hold/a b.json",
        "hold/a",
        "gc/GARBAGE2",
        "manifest/MANIFEST.json",
        "tombstone/x",
        "fork/x",
        "collection/x",
        "rebuilt/REBUILD",
        "rebuilt/0123456789abcdef/readme",
        "rebuilt/0123456789abcdef/" + layout.MANIFEST,
        layout.kept_path("0123456789abcdef", layout.cursor_path("x")),
        "walstore-probe/",
        "walstore-probe/manifest/MANIFEST",
        "walstore-mark/manifest/MANIFEST",
    ):
        with case(key):
            assert part_of(key) is None


def test_the_manifest_goes_last_and_the_tombstone_stays_behind() -> None:
    """The order in which a log is removed."""
    assert list(FOLDERS.values())[-2:] == [Part.MANIFEST, Part.TOMBSTONE]


def test_numbers_of_fragments() -> None:
    assert fragment_number(layout.fragment_path(5000)) == 5000
    assert fragment_number(SHARDED) == 7
    with pytest.raises(ValueError):
        fragment_number("log/FragmentSeqNo=1.parquet")
