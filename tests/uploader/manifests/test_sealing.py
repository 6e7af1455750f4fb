"""The mark of a sealed log, and what lies in the way of wal3's writers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from tests.uploader.documents import TEXT, fragments, manifest_of
from uploader.manifests.manifest import Manifest
from uploader.manifests.sealing import blocker, is_blocker, is_sealed_by, seal_writer
from walstore.errors import LogSealedError


@given(TEXT)
def test_the_mark_is_put_once_and_keeps_the_name(writer: str) -> None:
    sealed = seal_writer(writer)
    assert is_sealed_by(sealed)
    assert not is_sealed_by(writer)
    assert sealed.endswith(writer)
    assert sealed != writer
    assert seal_writer(sealed) == sealed


def test_it_survives_being_written_and_read() -> None:
    manifest = manifest_of(2, 3).seal()
    assert Manifest.parse(manifest.serialise()).is_sealed
    assert manifest.serialise() != manifest_of(2, 3).serialise()
    manifest_of(2, 3).scrub_successor(manifest)
    manifest.scrub()


def test_a_sealed_manifest_takes_no_fragments() -> None:
    """Not even none: whoever asks is told."""
    manifest = manifest_of(2)
    more = fragments(1, seq_no=2, start=3)
    assert manifest.apply_fragments(more, "w").next_offset == 4
    with pytest.raises(LogSealedError):
        manifest.seal().apply_fragments(more, "w")


def test_the_blocker_is_no_parquet_file() -> None:
    data = blocker(17)
    assert json.loads(data) == {"sealed": True, "limit": {"offset": 17}}
    assert is_blocker(data)
    assert not is_blocker(b"PAR1")
    assert not is_blocker(b"")
