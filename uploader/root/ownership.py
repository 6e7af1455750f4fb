"""Ownership: which log a prefix belongs to, and which directory may ship it. Pure.

A manifest's ``writer`` carries the identity of the local log that ships there, so two logs that share a
prefix notice it before one takes the other's records for its own. A claim precedes it: which directory
took the prefix over last. A log that is written directly to the store has any number of writers, and states
that in the same field: no directory continues it.

Invariants (tests/uploader/root/test_ownership.py, tests/scenarios/test_46_two_machines.py)
  O1  A local log's fragments are published only by a change of the root whose manifest carries the very claim
      under which they are published (``check_held``). So one claim is good from the moment at which it is in
      the manifest until another one is, and whoever lost it learns that with its next fragment.
  O2  The epoch of the claim in a manifest never goes back while only local logs write there, and a fragment
      that says in its footer that it was made in an earlier epoch is named by no manifest to come
      (``is_outdated``). So whoever holds the claim may put its own fragment in that one's place.
  O3  Whoever lost its claim changes no fragment of a later epoch, although it may hold the very same records,
      as the old primary of a replicated log does (``is_overtaken``).

wal3's writer replaces the name when it appends and keeps it when it drops collected fragments.
So once wal3 has appended, the claim is gone and the log no longer belongs to that directory.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from uploader.format import layout
from uploader.format.manifest import Manifest
from walstore.core.format.claims import Claims
from walstore.errors import ContentionError, FencedError

_PREFIX: Final = "walstore "
_DIRECT_PREFIX: Final = "walstore-writer "
_DIRECT: Final = re.compile(rf"{_DIRECT_PREFIX}[0-9A-Za-z-]{{1,64}}")
_FORK_PREFIX: Final = "walstore fork of "
BOOTSTRAP_NAME: Final = "bootstrap"
"""The writer in the manifest of a log made by ``bootstrap``, until the first write."""
_ID_BYTES: Final = 16
_LIFE_BYTES: Final = 8
_NAME: Final = re.compile(r"walstore (?:([0-9]{1,19}) ([0-9a-f]{16}) )?([0-9a-f]{32})")


@dataclass(frozen=True, slots=True)
class Claim:
    """A manifest's record of the directory that ships to it."""

    log_id: bytes
    """Identity of the log, 16 bytes."""
    epoch: int = 0
    """Counts the takeovers of the prefix by another directory, from 1; 0 before there were claims."""
    life: str = ""
    """Of one opening of the directory: 16 random hex digits, empty in epoch 0."""

    @property
    def name(self) -> str:
        """The name in the manifest, and in the footers of fragments put under this claim."""
        held = f"{self.epoch} {self.life} " if self.epoch else ""
        return f"{_PREFIX}{held}{self.log_id.hex()}"

    @classmethod
    def parse(cls, writer: str) -> Claim | None:
        """Read :attr:`name`; None for the name of anything but a local log."""
        found = _NAME.fullmatch(writer)
        if found is None:
            return None
        epoch, life, log_id = found.groups()
        return cls(bytes.fromhex(log_id), int(epoch or 0), life or "")


@dataclass(frozen=True, slots=True)
class NextClaim:
    """How a directory may make a prefix its own."""

    claim: Claim
    claims: Claims
    """What it must store before it puts the claim."""
    must_prove: bool
    """Whether it must first be checked to hold what the manifest names: others may have diverged."""


def next_claim(
    manifest: Manifest,
    log_id: bytes,
    claims: Claims | None,
    *,
    limit: int | None,
    take_over: bool,
    url: str,
    is_replicated: bool = False,
    make_life: Callable[[], str] = lambda: secrets.token_hex(_LIFE_BYTES),
) -> NextClaim:
    """Return the claim with which a directory may make a prefix its own.

    Args:
        manifest: The newest one.
        log_id: Identity of the directory's log.
        claims: What the directory knows of its claims; None if there is no log in it yet.
        limit: Offset after the last record of its log; None if there is no log in it yet.
        take_over: Whether it may take the prefix back from a directory that took it over.
        url: For messages.
        is_replicated: Whether the copies of a replicated log have made the directory its primary; then
            ``claims`` are those of all its primaries.
        make_life: Returns a value that no other claim has.

    A directory continues, in the same epoch, if the manifest carries its own claim. The next epoch
    is for a directory without a log, one that was restored in place of the one that has the prefix, and a
    copy of that one (a backup), which knows all its epochs but not its last opening. Any other directory lost
    the prefix to one that continued without its records: FencedError, unless ``take_over``. The primary of
    a replicated log continues after every claim of an earlier one, in an epoch of its own, since that one
    may not know yet that its time is over.
    ContentionError if the prefix belongs to another log, or holds records that the directory lacks.
    """
    check_owner(manifest, log_id, url=url)
    found, known = Claim.parse(manifest.writer), claims or Claims()
    epochs = [claim.epoch for claim in map(Claim.parse, known.names) if claim is not None]
    latest = max(epochs, default=0)
    epoch, must_prove = max(latest, found.epoch if found else 0) + 1, False
    if found is not None and found.epoch and claims is not None:
        if found.name in known.names:
            epoch = epoch if is_replicated else found.epoch
        elif found.name != known.succeeds:
            must_prove = True
            if found.epoch > latest and not take_over:
                raise FencedError(
                    f"{url} was taken over by another directory, and ends at offset "
                    f"{manifest.next_offset} now; this one may hold records from some offset on that are "
                    "nowhere else: read them without the tier. Go on in a new directory, or, if the other "
                    "one is gone for good, open this one with CloudTier(take_over=True), or 'walstore upload "
                    "--take-over'"
                )
    if limit is not None and limit < manifest.next_offset:
        raise ContentionError(
            f"{url} holds offsets up to {manifest.next_offset} but this log ends at {limit}: it is the "
            "prefix of another log, or this disk lost records"
        )
    claim = Claim(log_id, epoch, make_life())
    return NextClaim(claim, known.and_then(claim.name), must_prove)


def check_held(manifest: Manifest, writer: str, *, url: str) -> None:
    """Raise FencedError if ``writer`` may not publish, because a directory claimed the prefix since.

    ContentionError if that directory's log has another identity. Writers without a claim contend with
    each other only by the numbers of their fragments.
    """
    if manifest.writer == writer:
        return
    found, ours = Claim.parse(manifest.writer), Claim.parse(writer)
    if found is None or not (found.epoch or (ours and ours.epoch)):
        return
    if ours is not None and ours.log_id != found.log_id:
        raise ContentionError(f"{url} belongs to another log; ship this one to a prefix of its own")
    raise FencedError(
        f"{url} was taken over by another directory of its log, which continues at offset "
        f"{manifest.next_offset}; what was not shipped by then is only here"
    )


def is_outdated(maker: str | None, manifest: Manifest) -> bool:
    """Return whether a fragment whose footer names ``maker`` can never be published any more.

    True only for fragments of a directory that has since lost the prefix. For those of other programs or
    older versions this is not known.
    """
    made, held = Claim.parse(maker or ""), Claim.parse(manifest.writer)
    return (
        made is not None
        and held is not None
        and made.log_id == held.log_id
        and 0 < made.epoch < held.epoch
    )


def is_overtaken(maker: str | None, claim: str) -> bool:
    """Return whether a fragment whose footer names ``maker`` was made under a later claim than ``claim``.

    Then that one is in the manifest: whoever still holds ``claim`` may change nothing there.
    """
    made, held = Claim.parse(maker or ""), Claim.parse(claim)
    return (
        made is not None
        and held is not None
        and made.log_id == held.log_id
        and 0 < held.epoch < made.epoch
    )


def writer_name(log_id: bytes) -> str:
    """Return the writer in the manifest of a log that no directory has claimed yet."""
    return Claim(log_id).name


def direct_writer_name(writer_id: str) -> str:
    """Return the name in a manifest of a writer that has no local log."""
    return f"{_DIRECT_PREFIX}{writer_id}"


def is_direct_writer_name(name: str) -> bool:
    """Return whether :func:`direct_writer_name` makes such a name, of an id as writers have them."""
    return _DIRECT.fullmatch(name) is not None


def fork_writer_name(source_url: str) -> str:
    """Return the writer in the manifest of a fork until the first write."""
    return f"{_FORK_PREFIX}{source_url}"


def is_unwritten(manifest: Manifest) -> bool:
    """Return whether no writer has changed a manifest since it was created, empty or with records."""
    was_made = manifest.writer == BOOTSTRAP_NAME or manifest.writer.startswith(_FORK_PREFIX)
    return was_made or manifest.next_offset == layout.FIRST_OFFSET


def owner(manifest: Manifest) -> bytes | None:
    """Return the identity of the log under a manifest; None if any program may begin one there.

    The identity of a log that another program wrote is derived from its content. A new directory that
    continues it takes that identity; no other log has it, and it changes when the other program appends.
    """
    named = _named(manifest.writer)
    if named is not None:
        return named
    if manifest.next_offset == layout.FIRST_OFFSET:
        return None
    content = manifest.setsum.digest() + manifest.next_offset.to_bytes(8, "big")
    return hashlib.sha256(content).digest()[:_ID_BYTES]


def check_shippable(manifest: Manifest, *, url: str) -> None:
    """Raise ContentionError if the log is written directly to the store, so no local log may ship there."""
    if manifest.writer.startswith(_DIRECT_PREFIX):
        raise ContentionError(
            f"the log at {url} is written by CloudWriter; ship a local log to a prefix of its own"
        )


def check_direct(manifest: Manifest, *, url: str) -> None:
    """Raise ContentionError if the prefix belongs to a local log, so only that may write there.

    Logs of other programs may be written; they contend as wal3's writers do among themselves.
    """
    if is_shipped_to(manifest):
        raise ContentionError(
            f"{url} belongs to a local log, which ships there; append to that, or use a prefix of its own"
        )


def is_shipped_to(manifest: Manifest) -> bool:
    """Return whether the prefix belongs to a local log."""
    return _named(manifest.writer) is not None


def check_owner(manifest: Manifest, log_id: bytes, *, url: str) -> None:
    """Raise ContentionError if the prefix belongs to another log than ``log_id``."""
    check_shippable(manifest, url=url)
    if owner(manifest) not in {None, log_id}:
        raise ContentionError(f"{url} belongs to another log; ship this one to a prefix of its own")


def _named(writer: str) -> bytes | None:
    found = Claim.parse(writer)
    return None if found is None else found.log_id
