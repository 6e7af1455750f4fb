"""Ownership: whose log lies under a prefix, and which directory may ship it. Pure.

A manifest's ``writer`` carries the identity of the local log that ships there, so two logs that meet at one
prefix notice it before one takes the other's records for its own. Before it stands a claim: which directory
took the prefix over last. A log that is written straight to the store has any number of writers, and says so
in the same place: nobody else's directory continues it.

Invariants (tests/uploader/root/test_ownership.py, tests/scenarios/test_two_machines.py)
  O1  A local log's fragments are published only by a change of the root whose manifest carries the very claim
      under which they are published (``check_held``). So one claim is good from the moment at which it is in
      the manifest until another one is, and whoever lost it learns that with its next fragment.
  O2  The epoch of the claim in a manifest never goes back while only local logs write there, and a fragment
      that says in its footer that it was made in an earlier epoch is named by no manifest to come
      (``is_outdated``). So whoever holds the claim may put its own fragment in that one's place.

Of other programs, wal3's writer replaces the name when it appends and keeps it when it drops what was
collected. So a claim is gone once wal3 has appended, and then the log is no longer that directory's, either.
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
from walstore.errors import ContentionError, FencedError
from walstore.format.claims import Claims

_PREFIX: Final = "walstore "
_DIRECT_PREFIX: Final = "walstore-writer "
_DIRECT: Final = re.compile(rf"{_DIRECT_PREFIX}[0-9A-Za-z-]{{1,64}}")
_FORK_PREFIX: Final = "walstore fork of "
BOOTSTRAP_NAME: Final = "bootstrap"
"""What the manifest of a log says that was made by ``bootstrap``, as long as nobody has written to it."""
_ID_BYTES: Final = 16
_LIFE_BYTES: Final = 8
_NAME: Final = re.compile(r"walstore (?:([0-9]{1,19}) ([0-9a-f]{16}) )?([0-9a-f]{32})")


@dataclass(frozen=True, slots=True)
class Claim:
    """What a manifest says of the directory that ships to it."""

    log_id: bytes
    """Identity of the log, 16 bytes."""
    epoch: int = 0
    """Counts how often the prefix was taken over by another directory, from 1; 0 before there were claims."""
    life: str = ""
    """Of one opening of the directory: 16 random hex digits, empty in epoch 0."""

    @property
    def name(self) -> str:
        """What stands in the manifest, and in the footers of the fragments that are put under it."""
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
    """What it is to remember before it asks for the claim."""
    must_prove: bool
    """Whether it must first be found to hold what the manifest names: others may have gone another way."""


def next_claim(
    manifest: Manifest,
    log_id: bytes,
    claims: Claims | None,
    *,
    limit: int | None,
    take_over: bool,
    url: str,
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
        make_life: Returns what no other claim has.

    A directory goes on, in the same epoch, where the manifest carries a claim of its own. In the next epoch
    follow a directory without a log, one that was restored in place of the one that has the prefix, and a
    copy of that one (a backup), which knows all its epochs and not its last opening. Any other lost the
    prefix to a directory that went on without its records: FencedError, unless ``take_over``.
    ContentionError if the prefix belongs to another log, or holds records that the directory lacks.
    """
    check_owner(manifest, log_id, url=url)
    found, known = Claim.parse(manifest.writer), claims or Claims()
    epochs = [claim.epoch for claim in map(Claim.parse, known.names) if claim is not None]
    latest = max(epochs, default=0)
    epoch, must_prove = max(latest, found.epoch if found else 0) + 1, False
    if found is not None and found.epoch and claims is not None:
        if found.name in known.names:
            epoch = found.epoch
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

    ContentionError if that one's log is another one, by its identity. Writers without a claim contend with
    each other by the numbers of their fragments alone.
    """
    if manifest.writer == writer:
        return
    found, ours = Claim.parse(manifest.writer), Claim.parse(writer)
    if found is None or not (found.epoch or (ours and ours.epoch)):
        return
    if ours is not None and ours.log_id != found.log_id:
        raise ContentionError(f"{url} belongs to another log; ship this one to a prefix of its own")
    raise FencedError(
        f"{url} was taken over by another directory of its log, which goes on at offset "
        f"{manifest.next_offset}; what was not shipped by then is only here"
    )


def is_outdated(maker: str | None, manifest: Manifest) -> bool:
    """Return whether a fragment whose footer names ``maker`` can never be published any more.

    Only what a directory put from which the prefix was taken over since. What other programs put, or older
    versions, nobody can tell.
    """
    made, held = Claim.parse(maker or ""), Claim.parse(manifest.writer)
    return (
        made is not None
        and held is not None
        and made.log_id == held.log_id
        and 0 < made.epoch < held.epoch
    )


def writer_name(log_id: bytes) -> str:
    """Return what the manifest of a log that no directory has claimed yet says of its writer."""
    return Claim(log_id).name


def direct_writer_name(writer_id: str) -> str:
    """Return what the manifest of a log says of a writer that has no local log."""
    return f"{_DIRECT_PREFIX}{writer_id}"


def is_direct_writer_name(name: str) -> bool:
    """Return whether :func:`direct_writer_name` makes such a name, of an id as writers have them."""
    return _DIRECT.fullmatch(name) is not None


def fork_writer_name(source_url: str) -> str:
    """Return what the manifest of a fork says until somebody writes to it."""
    return f"{_FORK_PREFIX}{source_url}"


def is_unwritten(manifest: Manifest) -> bool:
    """Return whether no writer has changed a manifest since it was created, empty or with records."""
    was_made = manifest.writer == BOOTSTRAP_NAME or manifest.writer.startswith(_FORK_PREFIX)
    return was_made or manifest.next_offset == layout.FIRST_OFFSET


def owner(manifest: Manifest) -> bytes | None:
    """Return the identity of the log under a manifest; None if anybody may begin one there.

    A log that another program wrote has an identity made from its content. Who continues it with a new
    directory takes that identity; nobody else has it, and it changes when the other program goes on.
    """
    named = _named(manifest.writer)
    if named is not None:
        return named
    if manifest.next_offset == layout.FIRST_OFFSET:
        return None
    content = manifest.setsum.digest() + manifest.next_offset.to_bytes(8, "big")
    return hashlib.sha256(content).digest()[:_ID_BYTES]


def check_shippable(manifest: Manifest, *, url: str) -> None:
    """Raise ContentionError if the log is written straight to the store, so no local log may ship there."""
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
