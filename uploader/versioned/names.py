"""The keys of a collection's objects, relative to the collection's prefix. Pure.

docs/versioned_collections.md lists the objects. Every key but the head's is used for one content only: the
keys of versions and merged batches contain a random part, and those of pending batches are never trusted
again once they may have been removed (:attr:`uploader.versioned.head.Head.purged`).
"""

from __future__ import annotations

import re
from secrets import token_hex
from typing import Final

from uploader.format.layout import COLLECTION_HEAD, MAX_U64
from walstore.core.validation.arguments import as_text
from walstore.errors import InvalidSettingsError

HEAD: Final = COLLECTION_HEAD
VERSION_FOLDER: Final = "versions/"
MERGED_FOLDER: Final = "merged/"
PENDING_FOLDER: Final = "pending/"
STAGING_FOLDER: Final = "staging/"
MAX_NAME_CHARACTERS: Final = 64

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_VERSION: Final = re.compile(r"versions/([0-9a-f]{16})-[0-9a-f]{32}\.json")
_MERGED: Final = re.compile(r"merged/([0-9a-f]{16})/[0-9a-f]{32}\.parquet")
_PENDING: Final = re.compile(r"pending/([A-Za-z0-9_-]{1,64})/([0-9a-f]{16})\.parquet")

_STAGED: Final = re.compile(
    r"staging/([A-Za-z0-9_-]{1,64})/([0-9a-f]{16})/"
    r"(?:intent|done|[0-9a-f]{16}-[0-9a-f]{8}-[0-9a-f]{8}-[0-9a-f]{8}\.parquet)"
)


def check_name(name: object, what: str) -> str:
    """Return the name of a writer or reader; TypeError or InvalidSettingsError naming ``what``.

    1 to 64 of the letters A to Z, digits, ``_`` and ``-``.
    """
    text = as_text(name, what)
    if not _NAME.fullmatch(text):
        raise InvalidSettingsError(
            f"{what} must be 1 to {MAX_NAME_CHARACTERS} letters A to Z, digits, _ or -, not {text[:80]!r}"
        )
    return text


def new_id() -> str:
    """Return 128 random bits in hex."""
    return token_hex(16)


def version_key(n: int) -> str:
    """Return a new key for the document of version ``n``."""
    return f"{VERSION_FOLDER}{n:016x}-{new_id()}.json"


def merged_key(epoch: int) -> str:
    """Return a new key for a merged batch that the controller of that epoch writes."""
    return f"{MERGED_FOLDER}{epoch:016x}/{new_id()}.parquet"


def pending_key(writer: str, position: int) -> str:
    """Return the key of the batch at a position of a shard; InvalidSettingsError if that is no u64."""
    if not 0 <= position <= MAX_U64:
        raise InvalidSettingsError(f"a frontier is between 0 and 2**64 - 1, not {position}")
    return f"{PENDING_FOLDER}{writer}/{position:016x}.parquet"


def parse_version_key(key: str) -> int | None:
    """Return the number of the version with that key; None for any other key."""
    found = _VERSION.fullmatch(key)
    return int(found[1], 16) if found else None


def parse_merged_key(key: str) -> int | None:
    """Return the epoch that wrote the merged batch with that key; None for any other key."""
    found = _MERGED.fullmatch(key)
    return int(found[1], 16) if found else None


def parse_pending_key(key: str) -> tuple[str, int] | None:
    """Return the writer and the position of the pending batch with that key; None for any other key."""
    found = _PENDING.fullmatch(key)
    return (found[1], int(found[2], 16)) if found else None


def parse_staging_key(key: str) -> tuple[str, int] | None:
    """Return the query and the batch of a staged object with that key; None for any other key."""
    found = _STAGED.fullmatch(key)
    return (found[1], int(found[2], 16)) if found else None


def is_collection_key(key: str) -> bool:
    """Return whether an object with that key belongs to a collection, other than its head."""
    return any(
        parse(key) is not None
        for parse in (parse_version_key, parse_merged_key, parse_pending_key, parse_staging_key)
    )
