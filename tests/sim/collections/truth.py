"""Truth: what the updates of a history are, what was acknowledged, and what readers may see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any, ClassVar, Final

import pyarrow as pa

from tests.sim.rules import ViolationError

SCHEMA: Final = pa.schema([("k", pa.int64()), ("v", pa.string())])
COLLECTION_RULES: Final = {
    "as-of": "the content as of a time is always the same, and is what the updates up to it add up to",
    "acknowledged": "what was acknowledged is in the collection, for ever",
    "not-written": "what was refused is never in the collection",
    "one-history": "of two batches for the same times in one shard at most one is in the collection",
    "serializable": "transactions that read and append in one shard took effect one by one, in their time",
    "listen": "a listener sees each update after its start once, at its time",
    "holds": "a registered reader may read as of its frontier and later",
    "kept": "every object that a kept version names exists",
    "swept": "no garbage stays after a collection",
    "layers": "a compacted collection has at most 1 + log2(updates) batches",
    "fails-for-a-cause": "a call fails only if the network did, or the caller broke a condition",
    "typed-errors": "calls raise WalError, and asyncio has nothing to complain about",
    "ends": "every call ends",
}
Row = tuple[Any, ...]
Updates = list[tuple[int, int, str, int]]
"""Time, key, value, and the change of the count; of an upsert 0 for a removal."""


class CollectionViolationError(ViolationError):
    """A rule was broken."""

    rules: ClassVar[Mapping[str, str]] = COLLECTION_RULES


def to_table(updates: Updates, kind: str) -> pa.Table:
    """Return updates as a caller gives them."""
    columns: dict[str, Any] = {
        "k": pa.array([key for _, key, _, _ in updates], pa.int64()),
        "v": pa.array([value for _, _, value, _ in updates], pa.string()),
        "_t": pa.array([time for time, _, _, _ in updates], pa.uint64()),
    }
    if kind == "diff":
        columns["_d"] = pa.array([diff for _, _, _, diff in updates], pa.int64())
    else:
        columns["_deleted"] = pa.array([diff == 0 for _, _, _, diff in updates], pa.bool_())
    return pa.table(columns)


def content(updates: Iterable[tuple[int, int, str, int]], kind: str, as_of: int) -> Counter[Row]:
    """Return what updates add up to at a time, in their order."""
    found: Counter[Row] = Counter()
    live: dict[int, str] = {}
    for time, key, value, diff in updates:
        if time > as_of:
            continue
        if kind == "diff":
            found[key, value] += diff
        elif diff:
            live[key] = value
        else:
            live.pop(key, None)
    if kind == "upsert":
        return Counter(live.items())
    return Counter({row: count for row, count in found.items() if count})


def content_of(table: pa.Table) -> Counter[Row]:
    """Return a snapshot in the form of :func:`content`."""
    rows: Counter[Row] = Counter()
    for row in table.to_pylist():
        rows[row["k"], row["v"]] += row.get("_d", 1)
    return rows


class Truth:
    """The book of one history."""

    def __init__(self, seed: int, kind: str, *, is_definite: bool) -> None:
        self.kind = kind
        self.is_definite = is_definite
        self._seed = seed
        self.batches: dict[tuple[int, int], list[Updates]] = {}
        self.acknowledged: list[tuple[int, int, Updates]] = []
        self.refused: set[str] = set()
        self.seen: dict[int, Counter[Row]] = {}
        """What some reader saw as of a time."""
        self._tags = 0
        self._at: dict[int, Updates] = {}

    def at(self, time: int) -> Updates:
        """Return the updates of a time, if the seed says them."""
        if time not in self._at:
            self._at[time] = self._drawn(time)
        return self._at[time]

    def _drawn(self, time: int) -> Updates:
        random = Random(f"{self._seed} {time}")
        changes = []
        for key in random.sample(range(6), random.choice([0, 1, 1, 2, 3])):
            value = random.choice("abc")
            changes.append((time, key, value, random.choice([1, 1, 1, -1, 2, 0])))
        return [change for change in changes if change[3] or self.kind == "upsert"]

    def batch(self, lower: int, upper: int, random: Random) -> Updates:
        """Return what a program appends to an interval."""
        if self.is_definite:
            return [change for time in range(lower, upper) for change in self.at(time)]
        self._tags += 1
        return [
            (random.randint(lower, upper - 1), random.randrange(6), f"{self._tags}", 1)
            for _ in range(random.choice([1, 1, 3]))
        ]

    def acknowledge(self, lower: int, upper: int, updates: Updates) -> None:
        for start, limit, _ in self.acknowledged if not self.is_definite else ():
            if start < upper and lower < limit:
                raise CollectionViolationError(
                    "one-history",
                    f"[{lower}, {upper}) and [{start}, {limit}) were both acknowledged",
                )
        self.acknowledged.append((lower, upper, updates))

    def refuse(self, updates: Updates) -> None:
        if not self.is_definite:
            self.refused.update(value for _, _, value, _ in updates)

    def saw(self, as_of: int, found: Counter[Row]) -> None:
        """Check what a reader saw as of a time."""
        if self.is_definite:
            known = [change for time in range(as_of + 1) for change in self.at(time)]
            self._same(as_of, found, content(known, self.kind, as_of))
        self._same(as_of, found, self.seen.setdefault(as_of, found))
        values = {value for _, value in found}
        if values & self.refused:
            raise CollectionViolationError("not-written", f"{values & self.refused} was refused")
        if self.kind == "diff" and not self.is_definite:
            for lower, upper, updates in self.acknowledged:
                missing = [
                    one for one in updates if one[0] <= as_of and (one[1], one[2]) not in found
                ]
                if missing:
                    raise CollectionViolationError(
                        "acknowledged", f"{missing} of [{lower}, {upper}) is missing as of {as_of}"
                    )

    def _same(self, as_of: int, found: Counter[Row], known: Counter[Row]) -> None:
        if found != known:
            raise CollectionViolationError(
                "as-of", f"as of {as_of}: {dict(found)}, not {dict(known)}"
            )
