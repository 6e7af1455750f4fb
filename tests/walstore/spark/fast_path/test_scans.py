"""Which fragments go into one scan, and how scans are divided."""

from __future__ import annotations

from uploader.format.entries import Fragment
from uploader.format.setsum import Setsum
from walstore.spark.fast_path.footers import FragmentKind
from walstore.spark.fast_path.planner import MOST_SCANS, divide, scans_of
from walstore.spark.partition import FragmentPart


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
