"""The mark of a sealed log, and what lies in the way of wal3's writers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from tests.uploader.documents import TEXT, fragments, manifest_of
from uploader.format.manifest import (
    Manifest,
    blocker,
    end_writer,
    is_blocker,
    is_ended_by,
    is_sealed_by,
    seal_writer,
)
from walstore.errors import LogSealedError


@given(TEXT)
def test_the_mark_is_put_once_and_keeps_the_name(writer: str) -> None:
    sealed = seal_writer(writer)
    assert is_sealed_by(sealed)
    assert not is_sealed_by(writer)
    assert sealed.endswith(writer)
    assert sealed != writer
    assert seal_writer(sealed) == sealed


@given(TEXT)
def test_the_mark_of_a_destroyed_log_is_one_of_a_sealed_log_too(writer: str) -> None:
    """So a program that does not know it appends nothing either."""
    ended = end_writer(writer)
    assert is_ended_by(ended)
    assert is_sealed_by(ended)
    assert not is_ended_by(seal_writer(writer))
    assert ended.endswith(writer)
    assert end_writer(ended) == end_writer(seal_writer(writer)) == seal_writer(ended) == ended


def test_the_last_manifest_names_nothing_and_adds_up() -> None:
    manifest = manifest_of(2, 3)
    last = manifest.seal().destroy()
    assert last.is_sealed
    assert last.is_destroyed
    assert not manifest.seal().is_destroyed
    assert last.oldest_offset == last.next_offset == manifest.next_offset
    last.scrub()
    manifest.scrub_successor(last)
    assert Manifest.parse(last.serialise()) == last


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
