"""Size of manifests: the log of a simulated writer, fragment by fragment, up to ten million of them.

Run from the root of the repository::

    python -m bench.manifest_tree                      # 10 million fragments, some minutes for each row
    python -m bench.manifest_tree --fragments 1000000

The writer publishes runs of 16 fragments; a roll-up begun at one swap is named by the next, as in
``SwappedRoot``. Everything is built and serialised as for a store, which keeps only what cannot be rebuilt.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from uploader.format.entries import Fragment, Snapshot
from uploader.format.layout import MANIFEST, MAX_U64, fragment_path
from uploader.format.manifest import Manifest
from uploader.format.rollup import Replacement, RollUpSettings, fold, is_ripe, plan
from uploader.format.setsum import PRIMES, Setsum
from uploader.layouts.swapped_root import SwappedRoot
from uploader.root.tree import ManifestTree
from uploader.stores import MemoryStore, RetryPolicy
from uploader.stores.port import ListedObject, StoredObject
from walstore.core.runtime.threads import Worker

RECORDS = 1000
FRAGMENT_BYTES = 1 << 20
RUN = 16
WRITER = "walstore 0123456789abcdef0123456789abcdef"
CHOICES = ((2048, 1846), (128, 64), (64, 32), (32, 32))
"""Fragments and snapshots per snapshot; the first pair is wal3's."""


def fragment(seq_no: int) -> Fragment:
    """Return the entry of a fragment, with a plausible setsum that is faster to make."""
    mixed = seq_no * 0x9E3779B97F4A7C15 & MAX_U64
    setsum = Setsum(tuple((mixed * (at + 3) >> 13) % prime for at, prime in enumerate(PRIMES)))
    start = 1 + (seq_no - 1) * RECORDS
    return Fragment(fragment_path(seq_no), seq_no, start, start + RECORDS, FRAGMENT_BYTES, setsum)


class SnapshotStore(MemoryStore):
    """Stores the upper snapshots, and of the lowest ones only which fragments they contain."""

    def __init__(self) -> None:
        super().__init__()
        self.upper: dict[str, bytes] = {}
        self.lowest: dict[str, tuple[int, int]] = {}
        self.gets = 0
        self.lists = 0
        self.got_bytes = 0

    def put(self, snapshot: Snapshot, data: bytes) -> None:
        """Take a snapshot."""
        if snapshot.fragments:
            first = snapshot.fragments[0].seq_no
            self.lowest[snapshot.path] = first, first + len(snapshot.fragments)
        else:
            self.upper[snapshot.path] = data

    async def get(self, key: str) -> StoredObject:
        """Return an object; a snapshot that was not stored is rebuilt."""
        self.gets += 1
        if key == MANIFEST:
            stored = await super().get(key)
        elif key in self.upper:
            stored = StoredObject(self.upper[key], "etag")
        else:
            run = [fragment(seq_no) for seq_no in range(*self.lowest[key])]
            stored = StoredObject(Snapshot.of(run, WRITER).serialise(), "etag")
        self.got_bytes += len(stored.data)
        return stored

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[ListedObject]:
        """Count a listing."""
        self.lists += 1
        async for listed in super().list(prefix, after=after):
            yield listed


@dataclass(slots=True)
class Log:
    """A growing log, and its costs."""

    settings: RollUpSettings
    store: SnapshotStore = field(default_factory=SnapshotStore)
    manifest: Manifest = field(default_factory=lambda: Manifest.initial(WRITER))
    ready: Sequence[Replacement] = ()
    swaps: int = 0
    manifest_bytes: int = 0
    longest: int = 0
    snapshots: int = 0
    snapshot_bytes: int = 0

    def publish(self, run: Sequence[Fragment]) -> None:
        """Swap the manifest once, and put the snapshots that it needs."""
        self.manifest = fold(self.manifest.apply_fragments(run, WRITER), self.ready)
        size = len(self.manifest.serialise())
        self.swaps += 1
        self.manifest_bytes += size
        self.longest = max(self.longest, size)
        self.ready = ()
        if is_ripe(self.manifest, self.settings):
            made = plan(self.manifest, self.settings)
            for snapshot in made:
                data = snapshot.serialise()
                self.snapshots += 1
                self.snapshot_bytes += len(data)
                self.store.put(snapshot, data)
            self.ready = [
                Replacement(one.snapshots or one.fragments, one.pointer()) for one in made
            ]

    def grow(self, count: int) -> None:
        """Publish that many more fragments."""
        first = self.manifest.next_seq_no
        for low in range(first, first + count, RUN):
            self.publish([fragment(low + at) for at in range(min(RUN, first + count - low))])

    @property
    def depth(self) -> int:
        """Levels of snapshots."""
        return max((pointer.depth for pointer in self.manifest.snapshots), default=0)


@dataclass(frozen=True, slots=True)
class Reading:
    """The cost of a search in a log, from the manifest on."""

    recovery_reads: int
    """Requests to continue writing after a crash: the manifest, and a listing after its end."""
    recovery_bytes: int
    locate_gets: float
    """Snapshots read to find the fragment of an offset, with nothing in memory."""
    locate_bytes: float
    search_gets: float
    """Snapshots read to find the first fragment that ends at or after a time."""
    search_looks: float
    """Fragments whose footers that search reads."""


async def read(log: Log, times: int = 20) -> Reading:
    """Look up offsets spread over the log."""
    worker = Worker("bench")
    store, last = log.store, log.manifest.next_offset - 1
    looks = 0
    await store.put_if_absent(MANIFEST, log.manifest.serialise())
    root = SwappedRoot(store, RetryPolicy(), worker)
    assert await root.load()
    assert root.manifest == log.manifest
    assert not [listed async for listed in root.unpublished()]
    recovery = store.gets + store.lists, store.got_bytes
    store.gets = store.got_bytes = 0
    for at in range(1, times + 1):
        offset = last * at // (times + 1)
        found = await ManifestTree(store, worker).locate(log.manifest, offset)
        assert found is not None
        assert found.start <= offset < found.limit
    gets, got_bytes = store.gets, store.got_bytes
    store.gets = 0
    for at in range(1, times + 1):
        offset = last * at // (times + 1)

        async def reaches(one: Fragment, offset: int = offset) -> bool:
            nonlocal looks
            looks += 1
            return one.limit > offset

        found = await ManifestTree(store, worker).first(log.manifest, reaches)
        assert found is not None
        assert found.start <= offset < found.limit
    worker.close()
    return Reading(*recovery, gets / times, got_bytes / times, store.gets / times, looks / times)


def cpu_per_publish(log: Log, times: int = 2000) -> float:
    """Return the CPU seconds to publish one fragment: adding it to the manifest and serialising that."""
    entries = [fragment(log.manifest.next_seq_no + at) for at in range(times)]
    began = time.process_time()
    for entry in entries:
        log.publish([entry])
    return (time.process_time() - began) / times


def cpu_per_load(log: Log, times: int = 50) -> float:
    """Return the CPU seconds to read and check the manifest."""
    data = log.manifest.serialise()
    began = time.process_time()
    for _ in range(times):
        Manifest.parse(data).scrub()
    return (time.process_time() - began) / times


HEADERS = (
    ("fragments", "per snap"),
    ("snapshots", "per snap"),
    ("manifest", "mean kB"),
    ("", "max kB"),
    ("snapshots", "B/swap"),
    ("", "depth"),
    ("recover", "reads"),
    ("", "kB"),
    ("find offset", "GETs"),
    ("", "kB"),
    ("find time", "GETs"),
    ("", "footers"),
    ("CPU ms", "publish"),
    ("", "load"),
)
WIDTH = 11


def show_header() -> None:
    """Print the titles of the columns."""
    for line in zip(*HEADERS, strict=True):
        print("".join(title.rjust(WIDTH) for title in line))


def show(log: Log) -> None:
    """Print one row."""
    reading = asyncio.run(read(log))
    mean, longest, swaps = log.manifest_bytes / log.swaps, log.longest, log.swaps
    put, depth = log.snapshot_bytes / swaps, log.depth
    load, publish = cpu_per_load(log), cpu_per_publish(log)
    cells = (
        f"{log.settings.fragments_per_snapshot}",
        f"{log.settings.snapshots_per_snapshot}",
        f"{mean / 1e3:.1f}",
        f"{longest / 1e3:.1f}",
        f"{put:.0f}",
        f"{depth}",
        f"{reading.recovery_reads}",
        f"{reading.recovery_bytes / 1e3:.0f}",
        f"{reading.locate_gets:.1f}",
        f"{reading.locate_bytes / 1e3:.0f}",
        f"{reading.search_gets:.1f}",
        f"{reading.search_looks:.1f}",
        f"{publish * 1e3:.2f}",
        f"{load * 1e3:.1f}",
    )
    print("".join(cell.rjust(WIDTH) for cell in cells), flush=True)


def main() -> None:
    """Simulate, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fragments", type=int, default=10_000_000)
    parser.add_argument(
        "--choice", type=int, nargs=2, action="append", metavar=("FRAGMENTS", "SNAPSHOTS")
    )
    wanted = parser.parse_args()
    print(f"{wanted.fragments:,} fragments, published in runs of {RUN}\n")
    show_header()
    for fragments, snapshots in wanted.choice or CHOICES:
        settings = RollUpSettings(
            fragments_per_snapshot=fragments, snapshots_per_snapshot=snapshots
        )
        log = Log(settings)
        log.grow(wanted.fragments)
        show(log)


if __name__ == "__main__":
    main()
