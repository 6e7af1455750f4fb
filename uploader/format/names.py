"""Names of a chain's objects: manifests newest first, fragments named by what they hold. Pure.

Snapshots, cursors and all other objects have the keys of the other layout (``layout.py``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from uploader.format.layout import MAX_U64
from uploader.format.setsum import Setsum

MANIFEST_PREFIX: Final = "manifest/MANIFEST."
SHARD_PREFIX: Final = "shard"
"""What the names of all shards begin with."""
MOST_SHARDS: Final = 12
"""Prefixes that fragments may be spread over."""
ANCHOR: Final = 0
"""The slot of the first manifest, which is never deleted."""

_SLOT: Final = re.compile(r"[0-9a-f]{16}")
_FRAGMENT: Final = re.compile(
    r"shard([0-9]{4})/([0-9a-f]{16})_(0|[1-9][0-9]*)_(0|[1-9][0-9]*)_([0-9a-f]{64})\.parquet"
)


def manifest_key(slot: int) -> str:
    """Return the key of a manifest: the higher its slot, the earlier a listing names it.

    ValueError if the slot is no u64.
    """
    if not 0 <= slot <= MAX_U64:
        raise ValueError(f"a manifest's slot is between 0 and 2**64 - 1, not {slot}")
    return f"{MANIFEST_PREFIX}{MAX_U64 - slot:016x}"


def parse_manifest_key(key: str) -> int:
    """Return the slot of a manifest by its key; ValueError if it is none."""
    digits = key.removeprefix(MANIFEST_PREFIX)
    if not key.startswith(MANIFEST_PREFIX) or not _SLOT.fullmatch(digits):
        raise ValueError(f"not the key of a manifest in a chain: {key!r}")
    return MAX_U64 - int(digits, 16)


def shard_folder(shard: int) -> str:
    """Return the folder of a shard's fragments; shards are counted from 1. ValueError if it is none."""
    if not 1 <= shard <= MOST_SHARDS:
        raise ValueError(f"a shard's number is between 1 and {MOST_SHARDS}, not {shard}")
    return f"{SHARD_PREFIX}{shard:04}/"


@dataclass(frozen=True, slots=True)
class FragmentName:
    """All that the manifest says of a fragment but its length, and that is its object's."""

    seq_no: int
    start: int
    limit: int
    setsum: Setsum

    def key(self, *, shards: int) -> str:
        """Return the key for a writer with so many shards: neighbours are in different ones.

        ValueError for a number that is not a u64.
        """
        if not 0 <= self.seq_no <= MAX_U64:
            raise ValueError(f"a fragment's number is between 0 and 2**64 - 1, not {self.seq_no}")
        folder = shard_folder(1 + (self.seq_no - 1) % shards)
        digest = self.setsum.hexdigest()
        return f"{folder}{self.seq_no:016x}_{self.start}_{self.limit}_{digest}.parquet"

    @classmethod
    def parse(cls, key: str) -> FragmentName:
        """Read a key of whatever shard; ValueError if it is none."""
        found = _FRAGMENT.fullmatch(key)
        if found is None or not 1 <= int(found[1]) <= MOST_SHARDS:
            raise ValueError(f"not the key of a fragment in a shard: {key!r}")
        name = cls(
            seq_no=int(found[2], 16),
            start=int(found[3]),
            limit=int(found[4]),
            setsum=Setsum.from_hexdigest(found[5]),
        )
        if not name.start < name.limit <= MAX_U64:
            raise ValueError(f"the key of a fragment that holds no record: {key!r}")
        return name


def last_before(shard: int, seq_no: int) -> str:
    """Return a string that sorts behind all fragments of a shard below ``seq_no``, before all others."""
    return f"{shard_folder(shard)}{seq_no:016x}"
