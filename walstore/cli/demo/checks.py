"""Checking that what was read is what was appended: exactly once, in order, byte for byte. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from walstore.batches.batch import Batch
from walstore.cli.demo.identity import KEY, digest

MAX_COMPLAINTS = 20


@dataclass(slots=True)
class ProducerClaim:
    """What one producer said through the pipe; its newest acknowledgement stands for all before."""

    stream: str
    acknowledged: int = 0
    """The first so many of its records are on disk."""
    checksum: int = 0
    """Checksum over them."""


@dataclass(slots=True)
class ProducerFound:
    """What was read of one producer."""

    stream: str | None
    target: int
    """Number of records after which ``checksum`` is kept; -1 for never."""
    count: int = 0
    group_first: int = 0
    """Number of the first record of the group that was read last, and after its last one."""
    group_limit: int = 0
    size_bytes: int = 0
    checksum: int = 0
    checksum_at_target: int = 0


class ReadTally:
    """Everything that one reader read, checked record by record and kept in a few numbers."""

    def __init__(self, claims: Mapping[int, ProducerClaim] | None = None) -> None:
        """With ``claims``, which must be final then, checksums are compared as well."""
        self._claims = claims or {}
        self.position: int | None = None
        """Next offset to read; None before the first batch."""
        self.records = 0
        self.size_bytes = 0
        self.duplicated = 0
        self.skipped = 0
        """Records that were missing when a later one of the same producer was read."""
        self.producers: dict[int, ProducerFound] = {}
        self.complaints: list[str] = []

    def take(self, batch: Batch) -> None:
        """Take a batch into account."""
        if self.position is not None and batch.start != self.position:
            self.complain(f"read offsets [{batch.start}, {batch.limit}) at {self.position}")
        self.position = batch.limit
        values = batch.values
        at = 0
        for (key, stream), same in groupby(zip(batch.keys, batch.streams, strict=True)):
            rows = sum(1 for _ in same)
            self._take_run(key, stream, values[at : at + rows])
            at += rows
        self.records += len(batch)

    def settle(self, claims: Mapping[int, ProducerClaim]) -> int:
        """Compare with what was acknowledged; return how many records are lost."""
        lost = self.skipped
        for number, claim in claims.items():
            found = self.producers.get(number) or ProducerFound(claim.stream, -1)
            if found.stream != claim.stream:
                self.complain(f"producer {number} is of {claim.stream}, not {found.stream}")
            if found.count < claim.acknowledged:
                lost += claim.acknowledged - found.count
                self.complain(
                    f"producer {number} had {claim.acknowledged} records acknowledged, "
                    f"{found.count} are there"
                )
            elif found.count != found.group_limit:
                self.complain(f"a group of producer {number} is not whole")
            elif 0 <= found.target == claim.acknowledged and (
                found.checksum_at_target != claim.checksum
            ):
                self.complain(f"records of producer {number} are not those that it appended")
        for number in self.producers.keys() - claims.keys():
            self.complain(f"producer {number} is not known")
        return lost

    def by_stream(self) -> dict[str, tuple[int, int]]:
        """Return records and bytes of values by stream."""
        totals: dict[str, tuple[int, int]] = {}
        for found in self.producers.values():
            records, size = totals.get(found.stream or "", (0, 0))
            totals[found.stream or ""] = (records + found.count, size + found.size_bytes)
        return dict(sorted(totals.items()))

    def complain(self, text: str) -> None:
        """Note something that should not be; only the first ones are kept."""
        if len(self.complaints) < MAX_COMPLAINTS:
            self.complaints.append(text)

    def _take_run(self, key: bytes | None, stream: str | None, values: Sequence[bytes]) -> None:
        """Take records that follow each other and have one key: a group, or a part of it."""
        size = sum(map(len, values))
        self.size_bytes += size
        if key is None or len(key) != KEY.size:
            self.complain(f"a record before offset {self.position} has the key {key!r}")
            return
        number, first, rows = KEY.unpack(key)
        found = self.producers.get(number) or self._meet(number, stream)
        if stream != found.stream:
            self.complain(f"producer {number} appended to {stream} and {found.stream}")
        # A group may be read in parts: then its first record is one that was counted before.
        expected = found.group_first if found.count < found.group_limit else found.count
        if first < expected or found.count + len(values) > first + rows:
            self.duplicated += len(values)
            self.complain(f"records of producer {number} are there twice, from its number {first}")
            return
        if first > found.count:
            self.skipped += first - found.count
            self.complain(f"producer {number}: its number {found.count} is missing before {first}")
            found.count = first
        found.group_first, found.group_limit = first, first + rows
        found.count += len(values)
        found.size_bytes += size
        found.checksum = digest(values, found.checksum)
        if found.count == found.target:
            found.checksum_at_target = found.checksum

    def _meet(self, number: int, stream: str | None) -> ProducerFound:
        claim = self._claims.get(number)
        found = ProducerFound(stream, claim.acknowledged if claim else -1)
        self.producers[number] = found
        return found


def compare(one: ReadTally, other: ReadTally) -> list[str]:
    """Return in which producers two readers of the whole log saw something different."""
    numbers = sorted(one.producers.keys() | other.producers.keys())
    return [
        f"two readers saw different records of producer {number}"
        for number in numbers
        if _identity(one, number) != _identity(other, number)
    ]


def compare_batches(one: Batch, other: Batch) -> str | None:
    """Return what differs between the same records from two places, or None."""
    for column in ("values", "keys", "streams", "headers", "timestamps_us"):
        if list(getattr(one, column)) != list(getattr(other, column)):
            return f"{column} of [{one.start}, {one.limit}) differ"
    return None


def _identity(ledger: ReadTally, number: int) -> tuple[int, int] | None:
    found = ledger.producers.get(number)
    return None if found is None else (found.count, found.checksum)
