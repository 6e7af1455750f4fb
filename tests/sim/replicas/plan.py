"""ReplicaPlan: what happens in one history, drawn from its seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import Any


@dataclass(frozen=True)
class ReplicaPlan:
    """One history."""

    seed: int
    copies: int
    quorum: int
    rounds: int
    """How often something is done to the machines."""
    producers: int
    segment_bytes: int
    acts: tuple[str, ...]
    """What may be done to them."""
    rate: float
    """Share of the calls on disks that fail."""
    breaks: float
    """Share of the messages with which a connection is lost."""
    slowness: float
    spares: int = 0
    """Machines that have no copy at first."""
    resizes: float = 0.0
    """Share of the changes of the list that add a copy, or give one up."""
    grows: bool = False
    """Whether the list of copies has one to three machines, one more or less each time."""
    checkpoint_writes: int = 1024
    """After so many writes a primary sends its copies a checkpoint."""
    has_topology: bool = False
    """Whether programs claim the log in a store that they share, with leases."""
    scrub_seconds: float = 86400.0
    """In what time a primary reads all copies."""
    ignored: tuple[str, ...] = ()

    def replace(self, **changes: Any) -> ReplicaPlan:
        return dataclasses.replace(self, **changes)

    def without(self, names: Collection[str]) -> ReplicaPlan:
        """Return the plan without these acts."""
        return self.replace(acts=tuple(act for act in self.acts if act not in names))


ACTS = ("kill", "power", "cut off", "promote", "usurp", "replace", "rest")
OF_LISTS = ("exchange", "old list")
"""What changes the list of copies, or does not know that it was changed."""
OF_FILES = ("flip", "flip", "gaps", "spoil", "lose a segment")
"""What damages files of copies."""
_AS_A_LOST_DISK = ("spoil", "lose a segment")
"""What may leave a copy of no use."""


def draw(seed: int) -> ReplicaPlan:
    """Return the plan of a seed."""
    random = Random(f"replica plan {seed}")
    copies, quorum = random.choice([(3, 2), (3, 2), (3, 2), (2, 1), (2, 2), (3, 3), (5, 3)])
    acts = tuple(act for act in ACTS if act in ("promote", "rest") or random.random() < 0.7)
    # A new disk counts only once enough others have confirmed who is the primary.
    if max(quorum, copies - quorum + 1, copies // 2 + 1) > copies - 1:
        acts = tuple(act for act in acts if act != "replace")
    # A list of copies changes one at a time; with a majority as quorum two lists in a row overlap.
    extra = Random(f"replica lists {seed}")
    spares = extra.choice([0, 1, 2]) if (copies, quorum) in ((3, 2), (5, 3)) else 0
    acts += tuple(act for act in OF_LISTS if spares and extra.random() < 0.7)
    acts += ("read a copy",)
    grown = Random(f"replica growth {seed}")
    grows = grown.random() < 0.15
    if grows:
        copies, quorum, spares = 1, 1, 2
        acts = ("exchange", "exchange", "exchange", "promote", "read a copy")
        acts += tuple(act for act in (*ACTS, "old list") if grown.random() < 0.6)
    damaged = Random(f"replica damage {seed}")
    has_damage = not spares and damaged.random() < 0.4
    if has_damage:
        needs_all = max(quorum, copies - quorum + 1, copies // 2 + 1) > copies - 1
        acts += tuple(act for act in OF_FILES if not (needs_all and act in _AS_A_LOST_DISK))
    return ReplicaPlan(
        seed=seed,
        copies=copies,
        quorum=quorum,
        rounds=random.choice([4, 8, 16]),
        producers=random.choice([1, 3, 8]),
        segment_bytes=min(random.choice([65536, 1 << 20]), 65536 if has_damage else 1 << 20),
        acts=acts,
        rate=random.choice([0.0, 0.0, 0.002]),
        breaks=random.choice([0.0, 0.002, 0.02]),
        slowness=random.choice([0.0002, 0.002, 0.05]),
        spares=spares,
        checkpoint_writes=extra.choice([3, 20, 1024]),
        resizes=0.5 if spares else 0.0,
        grows=grows,
        scrub_seconds=damaged.choice([3.0, 86400.0]) if has_damage else 86400.0,
        has_topology=Random(f"replica topology {seed}").random() < 0.5,
    )
