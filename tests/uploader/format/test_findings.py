"""The checks behind a scrub find whatever the documents' own checks find, and all of it."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from tests.uploader.documents import SETSUMS, fragments, manifest_of, rolled_up, snapshot_of
from uploader.format import layout
from uploader.format.findings import (
    Severity,
    check_manifest,
    check_order,
    check_snapshot,
    of_error,
    of_unavailable,
)
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from walstore.errors import CorruptionError, FormatVersionError, StorageUnavailableError

SMALL = st.integers(0, 20)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """A sound manifest in which some fields were changed, or none."""
    manifest, _ = rolled_up(manifest_of(2, 3, 4, 5), draw(st.integers(0, 3)) or 1)
    entries = list(manifest.fragments)
    at = draw(st.integers(0, len(entries) - 1))
    changes = draw(
        st.dictionaries(
            st.sampled_from(["seq_no", "start", "limit", "num_bytes"]), SMALL, max_size=2
        )
    )
    entries[at] = dataclasses.replace(entries[at], **changes)
    fields = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "setsum": SETSUMS,
                "collected": SETSUMS,
                "acc_bytes": SMALL,
                "initial_offset": SMALL,
                "initial_seq_no": SMALL,
                "snapshots": st.just(()),
            },
        )
    )
    return dataclasses.replace(manifest, **{"fragments": tuple(entries), **fields})


def is_sound(scrub) -> bool:
    try:
        scrub()
    except CorruptionError:
        return False
    return True


@given(manifests())
def test_a_manifest_has_findings_if_and_only_if_it_is_not_sound(manifest: Manifest) -> None:
    found = check_manifest(manifest)
    assert (found == []) == is_sound(manifest.scrub)
    assert all(one.severity is Severity.ERROR and one.key == layout.MANIFEST for one in found)


@given(SETSUMS, SMALL, SMALL, st.booleans())
def test_a_snapshot_has_findings_if_it_is_not_sound(
    setsum: Setsum, start: int, num_bytes: int, changes: bool
) -> None:
    sound = snapshot_of(fragments(2, 3))
    pointer = sound.pointer()
    children = sound.fragments
    if changes:
        first = dataclasses.replace(children[0], start=start, num_bytes=num_bytes)
        children = (first, *children[1:])
    snapshot = dataclasses.replace(
        sound, fragments=children, setsum=setsum if changes else sound.setsum
    )
    found = check_snapshot(snapshot, pointer)
    assert found or is_sound(lambda: snapshot.scrub(expected=pointer))
    assert not found or not is_sound(lambda: snapshot.scrub(expected=pointer))


def test_all_that_differs_from_what_is_said_of_a_snapshot() -> None:
    snapshot = snapshot_of(fragments(2, 3))
    other = snapshot_of(fragments(4, seq_no=3, start=6))
    pointer = dataclasses.replace(
        other.pointer(), path_to_snapshot=snapshot.path, num_bytes=1, depth=1
    )
    names = [one.what for one in check_snapshot(snapshot, pointer)]
    for name in ("setsum", "start", "limit", "num_bytes"):
        assert any(f"its {name} is not" in what for what in names)


def test_a_snapshot_of_nothing() -> None:
    snapshot = snapshot_of(fragments(2))
    empty = dataclasses.replace(snapshot, fragments=())
    assert check_snapshot(empty, snapshot.pointer())


def test_a_snapshot_that_is_deeper_than_it_should_be() -> None:
    """Else following snapshots might not come to an end."""
    snapshot = snapshot_of(fragments(2, 3), depth=4)
    pointer = dataclasses.replace(snapshot.pointer(), depth=1)
    assert any("deeper" in one.what for one in check_snapshot(snapshot, pointer))
    shallow = dataclasses.replace(snapshot.pointer(), depth=9)
    assert check_snapshot(snapshot, shallow) == []


def test_the_order_of_fragments() -> None:
    first, second = fragments(1, 1)
    assert check_order(None, first, "p") == []
    assert check_order(first, second, "p") == []
    (found,) = check_order(first, first, "p")
    assert (found.expected, found.found) == (2, 1)


def test_what_errors_become() -> None:
    found = of_error(CorruptionError("it is broken", path="p", expected=1, found=2))
    assert (found.severity, found.key, found.what) == (Severity.ERROR, "p", "it is broken")
    assert (found.expected, found.found) == (1, 2)
    newer = of_error(FormatVersionError("newer", path="p", found="2", supported="1"))
    assert (newer.severity, newer.what) == (Severity.WARNING, "newer")
    away = of_unavailable("p", StorageUnavailableError("away"))
    assert away.severity is Severity.WARNING
    assert "away" in away.what
    assert str(found) == f"error: p: it is broken; {found.advice}"
