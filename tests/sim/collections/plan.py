"""CollectionPlan: what happens in one history, drawn from its seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

FAULTS: Final = ("slow", "lost", "unanswered", "late", "twice", "busy", "broken", "patient")


@dataclass(frozen=True)
class CollectionPlan:
    """One history."""

    seed: int
    kind: str
    """Of the collection."""
    shards: int
    """1: programs append to one shard whatever they want; more: all publish what the seed says."""
    writers: int
    readers: int
    controllers: int
    lives: int
    """How often each program begins again."""
    calls: int
    """Calls of each life."""
    faults: dict[str, float] = field(default_factory=dict)
    leaps: bool = False
    etags_of_content: bool = False
    page: int = 1000
    shuffles: bool = False
    kills: float = 0.0
    """Share of lives that end by a kill."""
    delays: bool = False
    """Whether hours pass between calls."""
    lists: bool = False
    """Whether writers are clients whose transactions read and append to lists, in one shard."""
    cancels: float = 0.0
    """Share of commits that their callers cancel."""
    ignored: tuple[str, ...] = ()

    def replace(self, **changes: Any) -> CollectionPlan:
        return dataclasses.replace(self, **changes)

    def without(self, names: Collection[str]) -> CollectionPlan:
        """Return the plan without these faults."""
        kept = {name: share for name, share in self.faults.items() if name not in names}
        return self.replace(faults=kept)


def draw(seed: int) -> CollectionPlan:
    """Return the plan of a seed."""
    random = Random(f"collection plan {seed}")
    has_faults = random.random() < 0.75
    shards = random.choice([1, 1, 2, 3])
    plan = CollectionPlan(
        seed=seed,
        kind=("diff", "upsert")[seed % 2],
        shards=shards,
        writers=max(shards, random.choice([1, 2, 3])),
        readers=random.choice([1, 2, 3]),
        controllers=random.choice([1, 1, 2]),
        lives=random.choice([1, 2, 4]),
        calls=random.choice([4, 8, 16]),
        faults={
            name: random.choice([0.005, 0.02, 0.1])
            for name in FAULTS
            if has_faults and random.random() < 0.5
        },
        leaps=random.random() < 0.3,
        etags_of_content=random.random() < 0.5,
        page=random.choice([5, 50, 1000, 1000]),
        shuffles=random.random() < 0.2,
        kills=random.choice([0.0, 0.3, 0.7]),
        delays=random.random() < 0.6,
    )
    if random.random() < 0.4:
        return plan.replace(
            lists=True,
            shards=1,
            writers=random.choice([2, 3, 4]),
            readers=random.choice([0, 1]),
            cancels=random.choice([0.0, 0.1]),
        )
    return plan
