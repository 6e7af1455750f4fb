"""Whose log lies under a prefix."""

from __future__ import annotations

import dataclasses
import os

import pytest

from tests.uploader.documents import fragments, manifest_of
from uploader.manifests.manifest import Manifest
from uploader.writing.ownership import (
    check_direct,
    check_owner,
    check_shippable,
    direct_writer_name,
    owner,
    writer_name,
)
from walstore.errors import ContentionError

ID, OTHER = bytes(range(16)), bytes(16)


def test_the_writer_carries_the_identity() -> None:
    manifest = Manifest.initial(writer_name(ID))
    assert manifest.writer == "walstore 000102030405060708090a0b0c0d0e0f"
    assert owner(manifest) == ID
    check_owner(manifest, ID, url="s3://bucket")
    with pytest.raises(ContentionError, match="s3://bucket belongs to another log"):
        check_owner(manifest, OTHER, url="s3://bucket")


@pytest.mark.parametrize("writer", ["", "test", "walstore", "walstore 00", "walstore zz", "x " * 9])
def test_anybody_may_begin_where_no_record_ever_was(writer: str) -> None:
    manifest = Manifest.initial(writer)
    assert owner(manifest) is None
    check_owner(manifest, os.urandom(16), url="s3://bucket")


def test_a_log_of_another_program_belongs_to_no_log_of_ours() -> None:
    manifest = manifest_of(3, 4)
    with pytest.raises(ContentionError, match="another log"):
        check_owner(manifest, ID, url="s3://bucket")


def test_a_log_of_another_program_has_an_identity_until_it_goes_on() -> None:
    """Who begins a directory on it finds it again, also if a collector has been there."""
    manifest = manifest_of(3, 4)
    found = owner(manifest)
    assert found is not None
    assert len(found) == 16
    collected = dataclasses.replace(
        manifest,
        collected=manifest.fragments[0].setsum,
        fragments=manifest.fragments[1:],
        initial_offset=4,
    )
    assert owner(collected) == found
    longer = manifest.apply_fragments(fragments(1, seq_no=3, start=8), "test writer")
    assert owner(longer) != found
    assert owner(manifest_of(3, 5)) != found


def test_an_empty_log_that_begins_later_is_not_anybodys() -> None:
    manifest = dataclasses.replace(Manifest.initial("bootstrap"), initial_offset=42)
    assert owner(manifest) is not None


def test_writers_without_a_local_log_and_local_logs_keep_apart() -> None:
    """Even where nothing was written yet; logs of other programs are open to both."""
    ours = Manifest.initial(direct_writer_name("0123"))
    local = Manifest.initial(writer_name(bytes(16)))
    theirs = Manifest.initial("rust")
    check_direct(ours, url="x")
    check_direct(theirs, url="x")
    check_shippable(local, url="x")
    check_shippable(theirs, url="x")
    with pytest.raises(ContentionError, match="belongs to a local log"):
        check_direct(local, url="x")
    with pytest.raises(ContentionError, match="CloudWriter"):
        check_shippable(ours, url="x")
    with pytest.raises(ContentionError, match="CloudWriter"):
        check_owner(ours, bytes(16), url="x")
