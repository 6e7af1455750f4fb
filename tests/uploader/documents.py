"""Fragments, snapshots and manifests for tests, made from numbers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import strategies as st

from uploader.format import layout
from uploader.format.entries import Entry, Fragment, Snapshot
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum


def fragment(seq_no: int, start: int, limit: int, *, num_bytes: int = 100) -> Fragment:
    """Return an entry whose setsum is unlike that of any other number."""
    setsum = Setsum.of_items([b"%d" % seq_no])
    return Fragment.numbered(seq_no, start=start, limit=limit, num_bytes=num_bytes, setsum=setsum)


def fragments(
    *sizes: int, seq_no: int = layout.FIRST_SEQ_NO, start: int = layout.FIRST_OFFSET
) -> list[Fragment]:
    """Return consecutive entries with so many records each."""
    bounds = itertools.pairwise(itertools.accumulate(sizes, initial=start))
    return [fragment(seq_no + at, low, high) for at, (low, high) in enumerate(bounds)]


def snapshot_of(children: Sequence[Entry], *, depth: int | None = None) -> Snapshot:
    """Return the snapshot above these snapshots or fragments."""
    setsum = Setsum.total(child.setsum for child in children)
    pointers = tuple(child for child in children if not isinstance(child, Fragment))
    return Snapshot(
        path=layout.snapshot_path(setsum),
        depth=1 + max((child.depth for child in pointers), default=0) if depth is None else depth,
        setsum=setsum,
        writer="snapshot writer",
        snapshots=pointers,
        fragments=tuple(child for child in children if isinstance(child, Fragment)),
    )


def manifest_of(*sizes: int) -> Manifest:
    """Return the manifest of a log with fragments of so many records each."""
    return Manifest.initial("first writer").apply_fragments(fragments(*sizes), "test writer")


def rolled_up(manifest: Manifest, count: int) -> tuple[Manifest, Snapshot]:
    """Return the manifest with its oldest fragments moved into a snapshot, and the snapshot."""
    snapshot = snapshot_of(manifest.fragments[:count])
    rest = Manifest(
        setsum=manifest.setsum,
        collected=manifest.collected,
        acc_bytes=manifest.acc_bytes,
        writer=manifest.writer,
        snapshots=(*manifest.snapshots, snapshot.pointer()),
        fragments=manifest.fragments[count:],
    )
    return rest, snapshot


U64 = st.integers(0, layout.MAX_U64)
TEXT = st.text(max_size=20)
SETSUMS = st.builds(Setsum.of_items, st.lists(st.binary(max_size=4), max_size=3))
SIZES = st.lists(st.integers(1, 1000), max_size=8)
