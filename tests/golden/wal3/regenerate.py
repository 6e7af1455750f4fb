"""Writes the golden documents of wal3 beside this file. Uses nothing of ours but the JSON module.

Run from the root of the repository::

    python -m tests.golden.wal3.regenerate

It writes only files that are missing and fails if one that is there would change.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import Any, Final

DIRECTORY: Final = Path(__file__).parent
PRIMES: Final = [2**32 - distance for distance in (5, 17, 65, 99, 107, 135, 153, 185)]
TIME_US: Final = 1_234_567_890_123_456
BODIES: Final = (
    *(bytes([42, 43, 44, 45]), bytes([81, 82, 83, 84]), bytes([90, 91, 92, 93])),
    *(b"record %d" % offset for offset in range(4, 8)),
)
NUM_BYTES: Final = 931
"""Length of the object in the published example; any would do."""
ZERO: Final = "00" * 32


def item_columns(item: bytes) -> list[int]:
    """Return an item's columns, by the definition and as slowly as that is."""
    words = struct.unpack("<8I", hashlib.sha3_256(item).digest())
    return [
        word - prime if word >= prime else word for word, prime in zip(words, PRIMES, strict=True)
    ]


def setsum_hex(items: list[bytes]) -> str:
    """Return the hex digest of the items' sum, adding one after the other."""
    columns = [0] * 8
    for item in items:
        pairs = zip(columns, item_columns(item), PRIMES, strict=True)
        columns = [(left + right) % prime for left, right, prime in pairs]
    return struct.pack("<8I", *columns).hex()


def record_item(offset: int) -> bytes:
    """Return what is hashed for a record of the example log."""
    return struct.pack(">QQ", offset, TIME_US) + BODIES[offset - 1]


def fragment(offset: int) -> dict[str, Any]:
    """Return the entry of the fragment that holds one record; fragments are numbered like them."""
    return {
        "path": f"log/Bucket=0000000000000000/FragmentSeqNo={offset:016x}.parquet",
        "seq_no": offset,
        "start": {"offset": offset},
        "limit": {"offset": offset + 1},
        "num_bytes": NUM_BYTES,
        "setsum": setsum_hex([record_item(offset)]),
    }


def manifest(offsets: range, *, acc_bytes: int, writer: str, **changes: Any) -> dict[str, Any]:
    """Return a manifest that names the fragments of these records."""
    document = {
        "setsum": setsum_hex([record_item(offset) for offset in offsets]),
        "collected": ZERO,
        "acc_bytes": acc_bytes,
        "writer": writer,
        "snapshots": [],
        "fragments": [fragment(offset) for offset in offsets],
    }
    return document | changes


def setsum_of(offsets: range) -> str:
    """Return the sum of these records."""
    return setsum_hex([record_item(offset) for offset in offsets])


def snapshot(offsets: range, *, writer: str = "test writer") -> dict[str, Any]:
    """Return the snapshot of the fragments of these records."""
    setsum = setsum_of(offsets)
    return {
        "path": f"snapshot/SNAPSHOT.{setsum}",
        "depth": 1,
        "setsum": setsum,
        "writer": writer,
        "snapshots": [],
        "fragments": [fragment(offset) for offset in offsets],
    }


def pointer(offsets: range, *, depth: int) -> dict[str, Any]:
    """Return the pointer at the snapshot of these records."""
    setsum = setsum_of(offsets)
    return {
        "setsum": setsum,
        "path_to_snapshot": f"snapshot/SNAPSHOT.{setsum}",
        "depth": depth,
        "start": {"offset": offsets.start},
        "limit": {"offset": offsets.stop},
        "num_bytes": len(offsets) * NUM_BYTES,
    }


def trees() -> dict[str, dict[str, Any]]:
    """Return a log of seven fragments with a tree of two levels, before and after garbage collection.

    And what wal3 makes when one snapshot holds only another: both have the same key.
    """
    upper = snapshot(range(1, 5)) | {
        "depth": 2,
        "snapshots": [pointer(range(1, 3), depth=1), pointer(range(3, 5), depth=1)],
        "fragments": [],
    }
    only = snapshot(range(4, 5), writer="garbage collection") | {
        "depth": 2,
        "snapshots": [pointer(range(4, 5), depth=1)],
        "fragments": [],
    }
    return {
        "manifest-with-tree": manifest(
            range(7, 8),
            acc_bytes=7 * NUM_BYTES,
            writer="test writer",
            setsum=setsum_of(range(1, 8)),
            snapshots=[pointer(range(1, 5), depth=2), pointer(range(5, 7), depth=1)],
        ),
        "manifest-with-collected-tree": manifest(
            range(7, 8),
            acc_bytes=7 * NUM_BYTES,
            writer="test writer",
            setsum=setsum_of(range(1, 8)),
            collected=setsum_of(range(1, 4)),
            snapshots=[pointer(range(4, 5), depth=2), pointer(range(5, 7), depth=1)],
            initial_offset={"offset": 4},
            initial_seq_no=4,
        ),
        "snapshot-tree-1-to-4": upper,
        "snapshot-tree-1-to-2": snapshot(range(1, 3)),
        "snapshot-tree-3-to-4": snapshot(range(3, 5)),
        "snapshot-tree-5-to-6": snapshot(range(5, 7)),
        "snapshot-tree-4-only": snapshot(range(4, 5), writer="garbage collection"),
        "snapshot-holds-one-snapshot": only,
    }


def documents() -> dict[str, dict[str, Any]]:
    """Return the golden documents by file name."""
    all_three, first_two = setsum_of(range(1, 4)), setsum_of(range(1, 3))
    size = NUM_BYTES
    return {
        "manifest-initial": manifest(range(0), acc_bytes=0, writer="test"),
        "manifest-one-record": manifest(range(1, 2), acc_bytes=size, writer="test writer"),
        "manifest-collected": manifest(
            range(3, 4),
            acc_bytes=3 * size,
            writer="test writer",
            setsum=all_three,
            collected=first_two,
            initial_offset={"offset": 3},
            initial_seq_no=3,
        ),
        "manifest-with-snapshot": manifest(
            range(3, 4),
            acc_bytes=3 * size,
            writer="test writer",
            setsum=all_three,
            snapshots=[pointer(range(1, 3), depth=1)],
        ),
        "manifest-other-writer": manifest(
            range(0), acc_bytes=0, writer='Jörg "J" \\ \t\x01\x7f 日本'
        ),
        "snapshot-two-fragments": snapshot(range(1, 3)),
        **trees(),
    }


def main() -> int:
    """Write what is missing; return 1 if a file that is there would change."""
    changed = 0
    for name, document in documents().items():
        data = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
        path = DIRECTORY / f"{name}.json"
        if not path.exists():
            path.write_bytes(data)
        elif path.read_bytes() != data:
            print(f"{path} would change", file=sys.stderr)
            changed = 1
    return changed


if __name__ == "__main__":
    sys.exit(main())
