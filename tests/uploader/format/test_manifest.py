"""Manifest: wal3's bytes, what is refused, growth, and every invariant."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import case
from tests.golden.wal3.regenerate import DIRECTORY, documents
from tests.uploader.documents import (
    SETSUMS,
    SIZES,
    TEXT,
    U64,
    fragment,
    fragments,
    manifest_of,
    rolled_up,
)
from uploader.format import layout
from uploader.format.entries import Fragment, SnapshotPointer
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from walstore.errors import CorruptionError, FormatVersionError

PATHS = sorted(DIRECTORY.glob("manifest-*.json"))
MAX_U64 = layout.MAX_U64

FRAGMENTS = st.builds(Fragment, TEXT, U64, U64, U64, U64, SETSUMS)
POINTERS = st.builds(SnapshotPointer, SETSUMS, TEXT, st.integers(0, 255), U64, U64, U64)
MANIFESTS = st.builds(
    Manifest,
    setsum=SETSUMS,
    collected=SETSUMS,
    acc_bytes=U64,
    writer=TEXT,
    snapshots=st.lists(POINTERS, max_size=3).map(tuple),
    fragments=st.lists(FRAGMENTS, max_size=3).map(tuple),
    initial_offset=st.none() | U64,
    initial_seq_no=st.none() | U64,
    ours_from=st.none() | U64,
)


def changed(manifest: Manifest, **changes: Any) -> Manifest:
    return dataclasses.replace(manifest, **changes)


def document(**changes: Any) -> bytes:
    """Return the golden manifest of one record with some fields changed."""
    found = json.loads((DIRECTORY / "manifest-one-record.json").read_bytes()) | changes
    return json.dumps({name: value for name, value in found.items() if value is not ...}).encode()


def with_fragment(**changes: Any) -> bytes:
    """Return the same with some fields of its fragment changed."""
    entry = json.loads(document())["fragments"][0] | changes
    return document(fragments=[{n: v for n, v in entry.items() if v is not ...}])


# -- bytes -------------------------------------------------------------------------------------


def test_the_golden_files_are_there() -> None:
    assert {path.stem for path in DIRECTORY.glob("*.json")} == set(documents())


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_golden_manifests_are_read_and_written_byte_for_byte(path: Path) -> None:
    manifest = Manifest.parse(path.read_bytes())
    manifest.scrub()
    assert manifest.serialise() == path.read_bytes()


def test_an_initial_manifest_has_the_published_bytes() -> None:
    manifest = Manifest.initial("test")
    assert manifest.serialise() == (DIRECTORY / "manifest-initial.json").read_bytes()
    assert (manifest.oldest_offset, manifest.next_offset, manifest.next_seq_no) == (1, 1, 1)
    manifest.scrub()


def test_appending_one_record_gives_the_published_bytes() -> None:
    body = bytes.fromhex("2a2b2c2d")
    entry = Fragment.numbered(
        1,
        start=1,
        limit=2,
        num_bytes=931,
        setsum=Setsum.of_records(1, 1_234_567_890_123_456, [body]),
    )
    manifest = Manifest.initial("test").apply_fragments([entry], "test writer")
    assert manifest.serialise() == (DIRECTORY / "manifest-one-record.json").read_bytes()


def test_a_collected_manifest() -> None:
    manifest = Manifest.parse((DIRECTORY / "manifest-collected.json").read_bytes())
    assert (manifest.oldest_offset, manifest.next_offset, manifest.next_seq_no) == (3, 4, 4)
    assert manifest.collected != Setsum()


def test_a_manifest_with_a_snapshot() -> None:
    manifest = Manifest.parse((DIRECTORY / "manifest-with-snapshot.json").read_bytes())
    assert (manifest.oldest_offset, manifest.next_offset, manifest.next_seq_no) == (1, 4, 4)


@pytest.mark.slow
@given(MANIFESTS)
def test_any_manifest_reads_back_as_it_was(manifest: Manifest) -> None:
    data = manifest.serialise()
    assert Manifest.parse(data) == manifest
    plain = json.loads(data)
    assert json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode() == data


# -- shapes ------------------------------------------------------------------------------------


def test_unknown_fields_are_tolerated_and_dropped() -> None:
    expected = Manifest.parse(document())
    assert Manifest.parse(document(sealed=True, more={"a": [1]})) == expected
    assert Manifest.parse(with_fragment(extra=1.5)) == expected


def test_optional_fields_may_be_absent() -> None:
    manifest = Manifest.parse(document(collected=..., initial_offset=None, initial_seq_no=None))
    assert manifest == Manifest.parse(document())
    assert manifest.collected == Setsum()


def test_bad_shapes_are_corruption() -> None:
    for data in (
        b"",
        b"null",
        b"[]",
        b"{}",
        b"{",
        b"\xff\xfe{}",
        b'\xef\xbb\xbf{"setsum":1}',
        b"[" * 100_000,
        b'{"acc_bytes":' + b"9" * 5000 + b"}",
        document()[:-1],
        document() + b"x",
        document().decode().encode("utf-16"),
        document().replace(b'"acc_bytes"', b'"acc_bytes": 1, "acc_bytes"'),
        document(setsum=...),
        document(setsum="00"),
        document(setsum="FF" * 32),
        document(setsum="ff" * 32),
        document(setsum=1),
        document(collected=None),
        document(acc_bytes=...),
        document(acc_bytes=-1),
        document(acc_bytes=1 << 64),
        document(acc_bytes=1.0),
        document(acc_bytes=True),
        document(acc_bytes="1"),
        document(acc_bytes=None),
        document(acc_bytes=float("nan")),
        document(writer=...),
        document(writer=7),
        document(writer="\ud800"),
        document(snapshots=...),
        document(snapshots={}),
        document(snapshots=[1]),
        document(snapshots=[{}]),
        document(fragments=None),
        document(fragments=[None]),
        document(initial_offset=3),
        document(initial_offset={}),
        document(initial_offset={"offset": -1}),
        document(initial_seq_no="3"),
        with_fragment(path=...),
        with_fragment(path=None),
        with_fragment(seq_no=...),
        with_fragment(seq_no="1"),
        with_fragment(start=1),
        with_fragment(start={"offset": 1 << 64}),
        with_fragment(limit=...),
        with_fragment(num_bytes=-1),
        with_fragment(setsum="00" * 31),
    ):
        with case(data):
            with pytest.raises(CorruptionError) as caught:
                Manifest.parse(data, path="prefix/manifest/MANIFEST")
            assert caught.value.path == "prefix/manifest/MANIFEST"


def test_the_error_names_the_field() -> None:
    with pytest.raises(CorruptionError, match=r"'fragments\[0\]\.start' is not a log position"):
        Manifest.parse(with_fragment(start={"offset": "x"}))
    with pytest.raises(CorruptionError, match="'acc_bytes' is missing"):
        Manifest.parse(document(acc_bytes=...))


def test_a_replicated_log_is_refused_as_such() -> None:
    with pytest.raises(FormatVersionError, match="replicated"):
        Manifest.parse(with_fragment(seq_no="0198a3b2-0000-7000-8000-000000000000"))


@pytest.mark.parametrize("field", ["acc_bytes", "initial_offset", "initial_seq_no"])
@pytest.mark.parametrize("number", [-1, 1 << 64])
def test_numbers_beyond_64_bits_are_refused(field: str, number: int) -> None:
    with pytest.raises(ValueError, match=field):
        changed(Manifest.initial("w"), **{field: number})


# -- growth ------------------------------------------------------------------------------------


@given(st.lists(SIZES, max_size=4))
def test_a_log_grows_run_by_run(runs: list[list[int]]) -> None:
    manifest = Manifest.initial("nobody")
    seen: list[Fragment] = []
    for turn, sizes in enumerate(runs):
        added = fragments(*sizes, seq_no=manifest.next_seq_no, start=manifest.next_offset)
        grown = manifest.apply_fragments(added, f"writer {turn}")
        grown.scrub()
        manifest.scrub_successor(grown)
        assert grown.writer == f"writer {turn}"
        manifest, seen = grown, seen + added
    assert manifest.fragments == tuple(seen)
    assert manifest.setsum == Setsum.total(entry.setsum for entry in seen)
    assert manifest.acc_bytes == sum(entry.num_bytes for entry in seen)
    assert manifest.oldest_offset == 1
    assert manifest.next_offset == 1 + sum(map(sum, runs))
    assert manifest.next_seq_no == 1 + len(seen)
    assert Manifest.parse(manifest.serialise()) == manifest


def test_many_fragments() -> None:
    manifest = manifest_of(*[3] * 1000)
    manifest.scrub()
    assert (manifest.next_offset, manifest.next_seq_no) == (3001, 1001)
    assert Manifest.parse(manifest.serialise()) == manifest


@pytest.mark.parametrize(
    ("added", "message"),
    [
        (fragment(4, 31, 41), "does not continue"),
        (fragment(2, 31, 41), "does not continue"),
        (fragment(3, 30, 41), "does not continue"),
        (fragment(3, 32, 41), "does not continue"),
        (fragment(3, 31, 31), "no record"),
        (fragment(3, 31, 30), "no record"),
    ],
)
def test_what_does_not_continue_the_log_is_refused(added: Fragment, message: str) -> None:
    manifest = manifest_of(10, 20)
    with pytest.raises(ValueError, match=message):
        manifest.apply_fragments([added], "w")
    assert manifest == manifest_of(10, 20)


def run_of(manifest: Manifest, count: int, **changes: Any) -> list[Fragment]:
    """Return the next fragments of a log, of ten records each."""
    found = fragments(*[10] * count, seq_no=manifest.next_seq_no, start=manifest.next_offset)
    return [dataclasses.replace(one, **changes) for one in found]


def grown(manifest: Manifest, writer: str, **changes: Any) -> Manifest:
    """Append two fragments, and read back what is stored."""
    found = manifest.apply_fragments(run_of(manifest, 2, **changes), writer)
    return Manifest.parse(found.serialise())


def test_a_manifest_tells_from_where_on_all_fragments_are_ours() -> None:
    ours = grown(Manifest.initial("x"), "walstore-writer a streams 3", is_ours=True)
    assert (ours.ours_from, ours.writer) == (1, "walstore-writer a streams 3")
    assert grown(ours, "b", is_ours=True).ours_from == 1
    assert ours.seal().ours_from == 1
    assert Manifest.parse(ours.seal().serialise()).is_sealed


def test_what_others_append_is_not_ours() -> None:
    """wal3 replaces the name; a fragment that a dead writer left may be anybody's."""
    ours = grown(Manifest.initial("x"), "a", is_ours=True)
    theirs = json.loads(grown(ours, "a").serialise()) | {"writer": "log writer"}
    after = Manifest.parse(json.dumps(theirs).encode())
    assert (after.ours_from, after.writer) == (None, "log writer")
    assert grown(after, "a", is_ours=True).ours_from == 5
    adopted = grown(ours, "a", is_ours=False)
    assert adopted.ours_from is None
    assert grown(adopted, "a", is_ours=True).ours_from == 5


@pytest.mark.parametrize(
    "writer", ["a fragments 2 from 1", "a fragments 1 from x", f"a fragments 1 from {1 << 64}"]
)
def test_another_version_and_no_number_say_nothing_of_fragments(writer: str) -> None:
    found = Manifest.parse(document(writer=writer))
    assert (found.ours_from, found.writer) == (None, writer)


def test_a_gap_inside_a_run_is_refused() -> None:
    with pytest.raises(ValueError, match="does not continue"):
        Manifest.initial("w").apply_fragments([fragment(1, 1, 5), fragment(2, 6, 9)], "w")


def test_a_log_that_begins_elsewhere() -> None:
    manifest = changed(Manifest.initial("bootstrap"), initial_offset=42, initial_seq_no=7)
    assert (manifest.oldest_offset, manifest.next_offset, manifest.next_seq_no) == (42, 42, 7)
    grown = manifest.apply_fragments([fragment(7, 42, 50)], "w")
    grown.scrub()
    assert (grown.initial_offset, grown.oldest_offset, grown.next_seq_no) == (42, 42, 8)


def test_accumulated_bytes_stop_at_the_largest_u64() -> None:
    manifest = Manifest.initial("w").apply_fragments([fragment(1, 1, 2, num_bytes=MAX_U64)], "w")
    grown = manifest.apply_fragments([fragment(2, 2, 3, num_bytes=5)], "w")
    grown.scrub()
    assert grown.acc_bytes == MAX_U64


# -- invariants --------------------------------------------------------------------------------


def balanced(manifest: Manifest, **changes: Any) -> Manifest:
    """Return the manifest with changes, its setsum made to fit them."""
    found = changed(manifest, **changes)
    live = Setsum.total(entry.setsum for entry in (*found.snapshots, *found.fragments))
    return changed(found, setsum=live + found.collected)


ONE, TWO, THREE = fragments(10, 20, 30)
LOG = manifest_of(10, 20, 30)
ROLLED, _ = rolled_up(LOG, 2)
POINTER = ROLLED.snapshots[0]


def test_sound_manifests_pass() -> None:
    LOG.scrub()
    ROLLED.scrub()
    assert (ROLLED.oldest_offset, ROLLED.next_offset, ROLLED.next_seq_no) == (1, 61, 4)
    balanced(LOG, fragments=(TWO, THREE), initial_offset=11, initial_seq_no=2).scrub()
    changed(Manifest.initial("w"), initial_offset=61, initial_seq_no=4).scrub()


def test_every_broken_invariant_is_found() -> None:
    for manifest, message in (
        (changed(LOG, setsum=Setsum()), "do not add up"),
        (changed(LOG, collected=Setsum.of_items([b"x"])), "do not add up"),
        (changed(LOG, fragments=(ONE, TWO)), "do not add up"),
        (balanced(LOG, fragments=(ONE, THREE)), "missing or named twice"),
        (balanced(LOG, fragments=(TWO, ONE, THREE)), "missing or named twice"),
        (balanced(LOG, fragments=(ONE, ONE)), "missing or named twice"),
        (balanced(LOG, fragments=(ONE, fragment(2, 11, 11))), "holds no record"),
        (balanced(LOG, fragments=(fragment(1, 11, 1),)), "holds no record"),
        (balanced(LOG, fragments=(ONE, fragment(3, 11, 31))), "fragment 3 stands where 2 belongs"),
        (
            balanced(LOG, fragments=(ONE, dataclasses.replace(TWO, path=ONE.path))),
            "has the key",
        ),
        (
            balanced(LOG, fragments=(ONE, dataclasses.replace(TWO, path="log/what.parquet"))),
            "has the key",
        ),
        (balanced(ROLLED, fragments=()), "outside the snapshots"),
        (balanced(ROLLED, fragments=(fragment(3, 32, 40),)), "missing or named twice"),
        (balanced(ROLLED, snapshots=(POINTER, POINTER)), "missing or named twice"),
        (
            balanced(
                ROLLED, snapshots=(dataclasses.replace(POINTER, path_to_snapshot="snapshot/X"),)
            ),
            "key is not its setsum",
        ),
        (balanced(ROLLED, snapshots=(dataclasses.replace(POINTER, depth=0),)), "depth 0"),
        (changed(LOG, initial_offset=2), "not at its initial offset"),
        (changed(ROLLED, initial_offset=31), "not at its initial offset"),
        (changed(LOG, initial_seq_no=2), "comes before the initial one"),
        (changed(LOG, acc_bytes=299), "300 bytes are held"),
        (changed(ROLLED, acc_bytes=299), "300 bytes are held"),
    ):
        with case(manifest, message):
            with pytest.raises(CorruptionError, match=message) as caught:
                manifest.scrub(path="p/manifest/MANIFEST")
            assert caught.value.path == "p/manifest/MANIFEST"


@given(SIZES.filter(bool), st.data())
def test_a_lost_or_changed_fragment_always_shows(sizes: list[int], data: st.DataObject) -> None:
    manifest = manifest_of(*sizes)
    at = data.draw(st.integers(0, len(sizes) - 1))
    found = list(manifest.fragments)
    if data.draw(st.booleans()):
        del found[at]
    else:
        found[at] = dataclasses.replace(found[at], setsum=Setsum.of_items([b"other"]))
    with pytest.raises(CorruptionError):
        changed(manifest, fragments=tuple(found)).scrub()


@given(SIZES.filter(lambda sizes: len(sizes) > 1), st.data())
def test_collecting_from_the_front_keeps_the_balance(sizes: list[int], data: st.DataObject) -> None:
    manifest = manifest_of(*sizes)
    count = data.draw(st.integers(1, len(sizes) - 1))
    dropped, kept = manifest.fragments[:count], manifest.fragments[count:]
    collected = changed(
        manifest,
        collected=Setsum.total(entry.setsum for entry in dropped),
        fragments=kept,
        initial_offset=kept[0].start,
        initial_seq_no=kept[0].seq_no,
    )
    collected.scrub()
    manifest.scrub_successor(collected)
    assert collected.next_offset == manifest.next_offset
    assert collected.next_seq_no == manifest.next_seq_no


@pytest.mark.parametrize(
    ("successor", "what"),
    [
        (changed(LOG, acc_bytes=LOG.acc_bytes - 1), "acc_bytes"),
        (changed(LOG, fragments=LOG.fragments[:-1]), "next_offset"),
        (Manifest.initial("again"), "acc_bytes"),
        (changed(LOG, fragments=(fragment(1, 1, 100),)), "next_seq_no"),
    ],
)
def test_nothing_that_only_grows_may_go_back(successor: Manifest, what: str) -> None:
    with pytest.raises(CorruptionError, match=f"{what} went back"):
        LOG.scrub_successor(successor)


def without(manifest: Manifest, count: int) -> Manifest:
    """Return the manifest after a collection of so many fragments; it has no snapshots."""
    kept = manifest.fragments[count:]
    return changed(
        manifest,
        collected=Setsum.total(entry.setsum for entry in manifest.fragments[:count]),
        fragments=kept,
        initial_offset=kept[0].start,
        initial_seq_no=kept[0].seq_no,
    )


def test_the_oldest_offset_may_not_go_back() -> None:
    trimmed = without(LOG, 1)
    LOG.scrub_successor(trimmed)
    with pytest.raises(CorruptionError, match="oldest_offset went back from 11 to 1"):
        trimmed.scrub_successor(LOG)


def other(entry: Fragment) -> Fragment:
    """Return an entry of the same place for other records."""
    return changed(entry, setsum=Setsum.of_items([b"other", b"%d" % entry.seq_no]))  # type: ignore[arg-type]


@pytest.mark.parametrize("at", range(3))
def test_records_that_were_named_are_not_replaced(at: int) -> None:
    """Though everything that only grows has grown, and the successor is sound in itself."""
    rewritten = [
        other(entry) if place >= at else entry for place, entry in enumerate(LOG.fragments)
    ]
    longer = [*rewritten, *fragments(5, seq_no=LOG.next_seq_no, start=LOG.next_offset)]
    successor = Manifest.initial("somebody").apply_fragments(longer, "somebody")
    successor.scrub()
    first = LOG.fragments[at]
    with pytest.raises(CorruptionError, match="not those that were there before") as told:
        LOG.scrub_successor(successor)
    assert f"[{first.start}, {first.limit})" in str(told.value)
    assert "open the log again" in str(told.value)


def test_what_was_collected_is_what_was_named() -> None:
    LOG.scrub_successor(without(LOG, 2))
    forged = without(Manifest.initial("w").apply_fragments([other(ONE), TWO, THREE], "w"), 1)
    forged.scrub()
    with pytest.raises(CorruptionError, match="not those"):
        LOG.scrub_successor(forged)


def test_fragments_are_never_divided_otherwise() -> None:
    """Neither by a manifest with more of them nor by one with fewer."""
    few = manifest_of(10, 20)
    many = manifest_of(10, 5, 15, 1)
    for before, after in ((few, many), (many, manifest_of(10, 20, 1, 1))):
        with pytest.raises(CorruptionError, match="not those"):
            before.scrub_successor(after)


@given(st.data())
def test_one_changed_record_shows_wherever_both_manifests_tell(data: st.DataObject) -> None:
    """However they are rolled up and collected; and a log that only grew is always believed."""
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=12))
    known = data.draw(st.integers(0, len(sizes)))
    runs = fragments(*sizes)
    before = shaped(data, runs[:known])
    after = shaped(data, runs)
    if before.oldest_offset <= after.oldest_offset:
        before.scrub_successor(after)
    changed_at = data.draw(st.integers(0, len(sizes) - 1))
    forged = shaped(data, [other(e) if at == changed_at else e for at, e in enumerate(runs)])
    shared = [offset for offset in before.bounds if offset in forged.bounds]
    shows = changed_at < known and any(offset > runs[changed_at].start for offset in shared)
    if before.oldest_offset > forged.oldest_offset:
        return
    if shows:
        with pytest.raises(CorruptionError, match="not those"):
            before.scrub_successor(forged)
    else:
        before.scrub_successor(forged)


def shaped(data: st.DataObject, entries: list[Fragment]) -> Manifest:
    """Return a manifest of these fragments, the oldest collected, others rolled up, as drawn."""
    manifest = Manifest.initial("w").apply_fragments(entries, "w")
    count = data.draw(st.integers(0, max(0, len(entries) - 1)))
    if count:
        manifest = without(manifest, count)
    for _ in range(data.draw(st.integers(0, 2))):
        rolled = data.draw(st.integers(0, max(0, len(manifest.fragments) - 1)))
        if rolled:
            beginning = {
                "initial_offset": manifest.initial_offset,
                "initial_seq_no": manifest.initial_seq_no,
            }
            manifest = changed(rolled_up(manifest, rolled)[0], **beginning)
    manifest.scrub()
    return manifest
