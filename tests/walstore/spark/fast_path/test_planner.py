"""Who reads what, and what is found wrong before the JVM is asked."""

from __future__ import annotations

import asyncio
import logging
import shutil
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests import local
from tests.cloud import write_without_objects
from tests.uploader.parquet import by_pyarrow, wal3_table
from tests.walstore.spark.fast_path.building import ours, put_log, records, wal3
from tests.walstore.spark.reading import fill
from uploader import CloudTier, UploadSettings
from uploader.format.entries import Fragment
from uploader.format.layout import MANIFEST, fragment_path
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from uploader.fragments.fragment import inspect_fragment
from uploader.fragments.fragment_file import read_footer
from uploader.stores.local import LocalStore
from uploader.testing import FaultyStore
from uploader.testing.faults import fail
from walstore import Wal
from walstore.errors import AccessDeniedError, CorruptionError, FormatVersionError
from walstore.spark import FastPathError
from walstore.spark.fast_path import planner
from walstore.spark.fast_path.planner import (
    MOST_SCANS,
    FragmentKind,
    divide,
    kind_of,
    plan,
    scans_of,
)
from walstore.spark.options import parse_options
from walstore.spark.partitions import FragmentPart


def planned(location, **options):
    return plan(parse_options({"path": str(location), **options}))


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def log(store):
    """Four fragments of 50 records, the third by wal3; and where they lie."""
    parts = [records(1 + 50 * at, 50, at) for at in range(4)]
    return put_log(store, [ours(parts[0]), ours(parts[1]), wal3(parts[2]), ours(parts[3])])


def test_fragments_of_a_store(store, log):
    found = planned(f"file://{store}", startingOffsets="20", endingOffsets="180")
    (fragments,) = found.fragments
    assert (fragments.topic, fragments.partition, (fragments.start, fragments.limit)) == (
        "store",
        0,
        (20, 180),
    )
    assert found.files == []
    scans = found.scans(None)
    assert [(s.kind, s.cut, len(s.parts)) for s in scans] == [
        (FragmentKind.OURS, None, 1),
        (FragmentKind.WAL3, None, 1),
        (FragmentKind.OURS, (20, 180), 2),
    ]


def test_streams_rule_fragments_out(store, log):
    assert planned(f"file://{store}").scans("nobody") == []
    assert sum(len(s.parts) for s in planned(f"file://{store}").scans("eu")) == 3  # not wal3's


def test_fragments_that_only_manifests_hold_are_put_for_the_jvm(store, monkeypatch):
    asyncio.run(write_without_objects(LocalStore(store), b"1", b"2"))
    found = planned(f"file://{store}")
    refusing = FaultyStore(LocalStore(store))
    refusing.on("put_if_absent", fail(AccessDeniedError("not yours")), times=10**9)
    with (
        monkeypatch.context() as patch,
        pytest.raises(FastPathError, match="the Python source reads"),
    ):
        patch.setattr(planner, "open_store", lambda _: refusing)
        found.scans(None)
    (scan,) = found.scans(None)
    assert [(part.start, part.limit) for part in scan.parts] == [(1, 2), (2, 3)]
    assert all((store / part.entry.path).is_file() for part in scan.parts)


def test_what_is_wrong_with_a_fragment(store, log):
    found = planned(f"file://{store}")
    whole = log[1].read_bytes()
    for data in (whole[:-1], whole + b"x", b"not parquet" * 100, ours(records(51, 49, 1))):
        log[1].write_bytes(data)
        with pytest.raises(CorruptionError):
            found.scans(None)
    log[1].unlink()
    with pytest.raises(CorruptionError, match="a fragment that the manifest names is missing"):
        found.scans(None)


def test_the_manifest_is_enough_if_it_says_that_all_fragments_are_ours(store, monkeypatch):
    put_log(store, [ours(records(1 + 50 * at, 50, at)) for at in range(4)])
    found = planned(f"file://{store}", startingOffsets="20")
    with monkeypatch.context() as patch:
        patch.setattr(planner, "open_store", lambda _: pytest.fail("a request"))
        kinds = [(s.kind, s.cut, len(s.parts)) for s in found.scans(None)]
    assert kinds == [(FragmentKind.OURS, None, 3), (FragmentKind.OURS, (20, 201), 1)]
    assert found.scans("nobody") == []


def test_footers_are_read_of_fragments_before_ours(store, monkeypatch):
    """We appended, then wal3 did, then we again: only of the first two a footer is needed."""
    parts = [records(1 + 50 * at, 50, at) for at in range(3)]
    paths = put_log(store, [ours(parts[0]), wal3(parts[1]), ours(parts[2])])
    assert Manifest.parse((store / MANIFEST).read_bytes()).ours_from == 3
    found = planned(f"file://{store}")
    paths[2].write_bytes(b"not looked at")
    assert [(s.kind, len(s.parts)) for s in found.scans(None)] == [
        (FragmentKind.OURS, 2),
        (FragmentKind.WAL3, 1),
    ]
    with pytest.raises(CorruptionError):
        found.check()
    paths[0].write_bytes(b"looked at")
    with pytest.raises(CorruptionError):
        found.scans(None)


async def append_unshipped(path, count: int) -> None:
    async with Wal.open(path) as wal:
        await wal.append_many([b"later"] * count)


def shipped_log(path, store, **settings):
    tier = CloudTier(f"file://{store}", settings=UploadSettings(fragment_bytes=16_384))
    asyncio.run(fill(path, tier=tier, settings=local.SMALL.replace(**settings)))


@pytest.mark.slow
@pytest.mark.parametrize("retention_bytes", [0, None])
def test_files_are_left_where_no_fragment_is(log_directory, store, retention_bytes):
    shipped_log(log_directory, store, retention_bytes=retention_bytes)
    assert planned(log_directory).files == []
    asyncio.run(append_unshipped(log_directory, 5))
    found = planned(log_directory)
    assert found.fragments[0].start == 1
    assert found.fragments[-1].limit == 1001
    (files,) = found.files
    assert (files.topic, files.partition, files.start, files.limit) == ("log", 0, 1001, 1006)
    assert files.directory == str(log_directory)
    offsets = [p.start for f in found.fragments for p in f.parts]
    assert offsets == sorted(set(offsets))


def test_a_log_that_was_never_shipped(log_directory):
    asyncio.run(fill(log_directory))
    found = planned(log_directory)
    assert found.fragments == []
    assert [(files.start, files.limit) for files in found.files] == [(1, 1001)]


@pytest.mark.slow
def test_the_tier_may_be_off_or_lost(log_directory, store, caplog):
    shipped_log(log_directory, store)
    assert planned(log_directory, tier="off").fragments == []
    (store / "manifest" / "MANIFEST").write_bytes(b"damaged")
    with caplog.at_level(logging.WARNING, "walstore.spark"):
        found = planned(log_directory)
    assert (found.fragments, len(found.files)) == ([], 1)
    assert "log is read from its files" in caplog.text
    shutil.rmtree(store)
    assert planned(log_directory).fragments == []


def part(number: int, *, start: int | None = None, limit: int | None = None, size: int = 100):
    """The fragment with that number, of ten records."""
    low = 10 * number
    entry = Fragment.numbered(number, start=low, limit=low + 10, num_bytes=size, setsum=Setsum())
    return FragmentPart(low if start is None else start, limit or low + 10, entry)


def scans(found, bounds=(0, 1000)):
    return scans_of("orders", 3, "file:///store", found, bounds)


def test_whole_fragments_are_one_scan():
    (found,) = scans([(part(at), FragmentKind.OURS) for at in range(5)])
    assert (found.topic, found.partition, found.kind, found.cut) == (
        "orders",
        3,
        FragmentKind.OURS,
        None,
    )
    assert [one.start for one in found.parts] == [0, 10, 20, 30, 40]
    assert found.size_bytes == 500


def test_only_fragments_at_the_ends_are_cut():
    whole, cut = scans(
        [
            (part(0, start=4), FragmentKind.OURS),
            (part(1), FragmentKind.OURS),
            (part(2, limit=25), FragmentKind.OURS),
        ],
        (4, 25),
    )
    assert (whole.cut, cut.cut) == (None, (4, 25))
    assert [one.start for one in whole.parts] == [10]
    assert [one.start for one in cut.parts] == [4, 20]


def test_kinds_are_read_apart():
    kinds = [FragmentKind.OURS, FragmentKind.WAL3, FragmentKind.OURS]
    found = scans([(part(at), kind) for at, kind in enumerate(kinds)])
    assert [(one.kind, len(one.parts)) for one in found] == [
        (FragmentKind.OURS, 2),
        (FragmentKind.WAL3, 1),
    ]


def test_dividing():
    found = scans([(part(at), FragmentKind.OURS) for at in range(10)])
    assert divide(found, 1) == found
    pieces = divide(found, 4)
    assert [len(one.parts) for one in pieces] == [2, 3, 2, 3]
    assert [one.start for piece in pieces for one in piece.parts] == list(range(0, 100, 10))
    assert len(divide(found, 30)) == 10  # not more than there are fragments


def test_larger_scans_are_divided_more():
    found = scans(
        [
            (part(0, size=900), FragmentKind.WAL3),
            *((part(at), FragmentKind.OURS) for at in range(1, 2)),
        ]
    )
    assert [one.kind for one in divide(found, 2)] == [FragmentKind.WAL3, FragmentKind.OURS]
    many = scans(
        [(part(at, size=1000), FragmentKind.OURS) for at in range(8)]
        + [(part(8), FragmentKind.WAL3)]
    )
    assert [one.kind for one in divide(many, 4)] == [FragmentKind.OURS] * 3 + [FragmentKind.WAL3]


def test_there_is_a_limit():
    found = scans([(part(at), FragmentKind.OURS) for at in range(1000)])
    assert len(divide(found, 1000)) == MOST_SCANS


def test_nothing():
    assert scans([]) == []
    assert divide([], 10) == []


def kind(data: bytes, **footer: Any) -> FragmentKind:
    entry = inspect_fragment(data, fragment_path(1))
    return kind_of(replace(read_footer(data), **footer), entry)


def test_both_kinds():
    found = records(7, 20, 1)
    assert kind(ours(found)) is FragmentKind.OURS
    assert kind(wal3(found)) is FragmentKind.WAL3


def test_without_statistics_offsets_are_not_compared():
    data = by_pyarrow(wal3_table(7, 1, [b"a", b"b"]), write_statistics=False)
    assert read_footer(data).offsets is None
    assert kind(data) is FragmentKind.WAL3


@pytest.mark.parametrize(
    ("footer", "message"),
    [
        ({"rows": 19}, "number of records: 19, but the manifest says 20"),
        ({"offsets": (8, 27)}, r"offsets: \(8, 27\), but the manifest says \(7, 26\)"),
        ({"columns": frozenset({"offset", "timestamp_us", "body"})}, "lacks the column 'headers'"),
    ],
)
def test_not_the_fragment_that_is_meant(footer, message):
    with pytest.raises(CorruptionError, match=message):
        kind(ours(records(7, 20, 1)), **footer)


def test_a_column_of_wal3_is_missing():
    with pytest.raises(CorruptionError, match="lacks the column 'body'"):
        kind(wal3(records(7, 20, 1)), columns=frozenset({"offset", "timestamp_us"}))


def test_a_newer_version():
    with pytest.raises(FormatVersionError, match="a fragment of a newer version"):
        kind(ours(records(7, 20, 1)), version=b"2")


def test_somebody_elses_columns_are_left_to_python():
    table = wal3_table(7, 1, [b"a", b"b"]).append_column("key", pa.array([1, 2]))
    with pytest.raises(FastPathError, match="written by another program and has a column 'key'"):
        kind(by_pyarrow(table))
