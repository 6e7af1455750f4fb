"""Ownership: whose log lies under a prefix. Pure.

A manifest's ``writer`` carries the identity of the local log that ships there, so two logs that meet at one
prefix notice it before one takes the other's records for its own. A log that is written straight to the
store has any number of writers, and says so in the same place: nobody else's directory continues it.
"""

from __future__ import annotations

import hashlib
from typing import Final

from uploader import layout
from uploader.manifests.manifest import Manifest
from walstore.errors import ContentionError

_PREFIX: Final = "walstore "
_DIRECT_PREFIX: Final = "walstore-writer "
_ID_BYTES: Final = 16


def writer_name(log_id: bytes) -> str:
    """Return what the manifest of a log says of its writer."""
    return f"{_PREFIX}{log_id.hex()}"


def direct_writer_name(writer_id: str) -> str:
    """Return what the manifest of a log says of a writer that has no local log."""
    return f"{_DIRECT_PREFIX}{writer_id}"


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
    if _named(manifest.writer) is not None:
        raise ContentionError(
            f"{url} belongs to a local log, which ships there; append to that, or use a prefix of its own"
        )


def check_owner(manifest: Manifest, log_id: bytes, *, url: str) -> None:
    """Raise ContentionError if the prefix belongs to another log than ``log_id``."""
    check_shippable(manifest, url=url)
    if owner(manifest) not in {None, log_id}:
        raise ContentionError(f"{url} belongs to another log; ship this one to a prefix of its own")


def _named(writer: str) -> bytes | None:
    if not writer.startswith(_PREFIX):
        return None
    try:
        found = bytes.fromhex(writer.removeprefix(_PREFIX))
    except ValueError:
        return None
    return found if len(found) == _ID_BYTES else None
