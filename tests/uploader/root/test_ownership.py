"""Whose log lies under a prefix."""

from __future__ import annotations

import dataclasses
import os

import pytest

from tests.uploader.documents import fragments, manifest_of
from uploader.format.manifest import Manifest
from uploader.root.ownership import (
    Claim,
    NextClaim,
    check_direct,
    check_held,
    check_owner,
    check_shippable,
    direct_writer_name,
    is_direct_writer_name,
    is_outdated,
    is_overtaken,
    next_claim,
    owner,
    writer_name,
)
from walstore.core.format.claims import Claims
from walstore.errors import ContentionError, FencedError

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


# -- claims ----------------------------------------------------------------------------------


def claim(epoch: int, life: int = 1, log_id: bytes = ID) -> Claim:
    return Claim(log_id, epoch, f"{life:016x}")


def following(held: Claim | str, claims: Claims | None, **options) -> NextClaim:
    """Return the next claim on an empty log under ``held``."""
    writer = held if isinstance(held, str) else held.name
    rules = {"limit": None, "take_over": False, "url": "x", "make_life": lambda: "f" * 16}
    return next_claim(Manifest.initial(writer), ID, claims, **{**rules, **options})


def test_a_claim_is_read_as_it_was_written() -> None:
    assert claim(7).name == f"walstore 7 {1:016x} {ID.hex()}"
    for found in (claim(1), claim(10**18, 5), Claim(ID)):
        assert Claim.parse(found.name) == found
        assert owner(Manifest.initial(found.name)) == ID
    for other in ("walstore", "walstore 1", f"walstore 1 {ID.hex()}", f"{claim(1).name} ", "rust"):
        assert Claim.parse(other) is None


def test_who_follows_whom() -> None:
    """The table of docs/design.md: new, reopened, copied, restored, taken over from, given leave."""
    ours, theirs = claim(3, 1), claim(3, 2)
    assert following("", None).claim == Claim(ID, 1, "f" * 16)
    assert following(Claim(ID), Claims()).claim.epoch == 1  # of a version without claims
    assert following(theirs, None).claim.epoch == 4
    again = following(ours, Claims((claim(2).name, ours.name)))
    assert (again.claim.epoch, again.must_prove) == (3, False)
    assert again.claims.names == (claim(2).name, ours.name, again.claim.name)
    copy = following(theirs, Claims((ours.name,)))
    assert (copy.claim.epoch, copy.must_prove) == (4, True)
    restored = following(theirs, Claims(succeeds=theirs.name))
    assert (restored.claim.epoch, restored.must_prove) == (4, False)
    for lost in (Claims(), Claims((claim(2).name,)), Claims(succeeds=ours.name)):
        with pytest.raises(FencedError, match="taken over by another directory"):
            following(theirs, lost)
        given = following(theirs, lost, take_over=True)
        assert (given.claim.epoch, given.must_prove) == (4, True)


def test_a_claim_needs_the_records_and_the_identity() -> None:
    with pytest.raises(ContentionError, match="belongs to another log"):
        next_claim(
            Manifest.initial(claim(1, log_id=OTHER).name),
            ID,
            None,
            limit=None,
            take_over=True,
            url="x",
        )
    grown = Manifest.initial(claim(1).name).apply_fragments(fragments(1), claim(1).name)
    known = Claims((claim(1).name,))
    rules = {"take_over": True, "url": "x"}
    next_claim(grown, ID, known, limit=grown.next_offset, **rules)
    with pytest.raises(ContentionError, match="this disk lost records"):
        next_claim(grown, ID, known, limit=grown.next_offset - 1, **rules)


def test_an_epoch_that_was_asked_for_is_not_given_twice() -> None:
    """Also if the manifest was rebuilt meanwhile, and says nothing of it."""
    assert following(Claim(ID), Claims((claim(8).name,))).claim.epoch == 9


def test_who_follows_whom_among_the_primaries_of_a_replicated_log() -> None:
    """One epoch each, after all that earlier ones asked for; none after a later one's claim."""
    first, second = claim(3, 1), claim(4, 2)
    rules = {"is_replicated": True}
    again = following(first, Claims((first.name,)), **rules)
    assert (again.claim.epoch, again.must_prove) == (4, False)
    # The second one knows of the first one's attempt, whether it took effect or not.
    for held in (first, second):
        found = following(held, Claims((first.name, second.name)), **rules)
        assert (found.claim.epoch, found.must_prove) == (5, False)
    with pytest.raises(FencedError, match="taken over by another directory"):
        following(second, Claims((first.name,)), **rules)
    # Sixteen attempts later the claim is not known by name any more, only by its epoch.
    later = Claims(tuple(claim(epoch).name for epoch in range(10, 26)))
    found = following(second, later, **rules)
    assert (found.claim.epoch, found.must_prove) == (26, True)
    assert following("", Claims(), **rules).claim.epoch == 1


def test_only_the_very_claim_publishes() -> None:
    direct = direct_writer_name("0123")

    def held(by: str, writer: str) -> None:
        check_held(Manifest.initial(by), writer, url="x")

    for writer in (claim(1).name, Claim(ID).name, direct, "rust"):
        held(writer, writer)
        held("rust", writer)
    held(direct, claim(1).name)  # what contends is seen by the numbers
    held(Claim(ID).name, direct)  # nobody knows since when
    for writer in (claim(1, 2).name, claim(2).name, Claim(ID).name, direct, "rust"):
        with pytest.raises(FencedError):
            held(claim(1).name, writer)
    with pytest.raises(FencedError):
        held(Claim(ID).name, claim(1).name)  # an older version went on
    with pytest.raises(ContentionError, match="another log"):
        held(claim(1, log_id=OTHER).name, claim(1).name)


def test_what_is_outdated() -> None:
    manifest = Manifest.initial(claim(3).name)
    assert is_outdated(claim(2).name, manifest)
    for maker in (
        claim(3, 9).name,
        claim(4).name,
        claim(2, 1, OTHER).name,
        Claim(ID).name,
        "rust",
        None,
    ):
        assert not is_outdated(maker, manifest)
    assert not is_outdated(claim(2).name, Manifest.initial("rust"))


def test_what_is_overtaken() -> None:
    assert is_overtaken(claim(4).name, claim(3).name)
    for maker in (
        claim(3, 9).name,
        claim(2).name,
        claim(4, 1, OTHER).name,
        Claim(ID).name,
        "",
        None,
    ):
        assert not is_overtaken(maker, claim(3).name)
    assert not is_overtaken(claim(4).name, Claim(ID).name)  # before there were claims
    assert not is_overtaken(claim(4).name, "rust")


def test_names_of_writers_without_a_local_log() -> None:
    assert is_direct_writer_name(direct_writer_name("0123456789abcdef"))
    for name in ("walstore-writer ", writer_name(ID), "walstore sealed, was: walstore-writer 01"):
        assert not is_direct_writer_name(name)
