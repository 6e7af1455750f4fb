"""Entries of manifests and snapshots: bounds and keys. Their JSON is tested with the documents."""

from __future__ import annotations

import dataclasses

import pytest

from tests.uploader.documents import fragment, fragments, snapshot_of
from uploader.format.entries import Fragment
from uploader.format.layout import MAX_U64
from uploader.format.setsum import Setsum


def test_a_numbered_fragment_has_the_key_of_its_number() -> None:
    entry = Fragment.numbered(0x1234, start=1, limit=2, num_bytes=3, setsum=Setsum())
    assert entry.path == "log/Bucket=0000000000001000/FragmentSeqNo=0000000000001234.parquet"


@pytest.mark.parametrize("field", ["seq_no", "start", "limit", "num_bytes"])
def test_numbers_of_fragments_fit_64_bits(field: str) -> None:
    assert getattr(dataclasses.replace(fragment(1, 1, 2), **{field: MAX_U64}), field) == MAX_U64
    for number in (-1, MAX_U64 + 1):
        with pytest.raises(ValueError, match=field):
            dataclasses.replace(fragment(1, 1, 2), **{field: number})


@pytest.mark.parametrize("field", ["start", "limit", "num_bytes"])
def test_numbers_of_pointers_fit_64_bits(field: str) -> None:
    pointer = snapshot_of(fragments(1)).pointer()
    for number in (-1, MAX_U64 + 1):
        with pytest.raises(ValueError, match=field):
            dataclasses.replace(pointer, **{field: number})
