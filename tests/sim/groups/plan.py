"""GroupPlan: what happens in one history, drawn from its seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

FAULTS: Final = ("slow", "lost", "unanswered", "late", "twice", "busy", "broken")


@dataclass(frozen=True)
class GroupPlan:
    """One history."""

    seed: int
    processes: int
    members: int
    """In each process."""
    lives: int
    jobs: int
    fragments: int
    """The log's records come in so many."""
    ack_wait_seconds: float
    max_deliver: int | None
    max_ack_pending: int
    is_ordered: bool
    stream: str | None
    faults: dict[str, float] = field(default_factory=dict)
    etags_of_content: bool = False
    kills: float = 0.0
    """Share of lives that end by a kill."""
    cancels: float = 0.0
    """Share of calls that are cancelled on the way."""
    deletes: bool = False
    """Whether somebody deletes the group now and then."""
    delays: float = 0.0
    """Share of jobs that are due later."""
    ignored: tuple[str, ...] = ()

    def replace(self, **changes: Any) -> GroupPlan:
        return dataclasses.replace(self, **changes)

    def without(self, names: Collection[str]) -> GroupPlan:
        """Return the plan without these faults."""
        kept = {name: share for name, share in self.faults.items() if name not in names}
        return self.replace(faults=kept)


def draw(seed: int) -> GroupPlan:
    """Return the plan of a seed."""
    random = Random(f"group plan {seed}")
    has_faults = random.random() < 0.75
    return GroupPlan(
        seed=seed,
        processes=random.choice([1, 2, 3, 5]),
        members=random.choice([1, 2, 3]),
        lives=random.choice([1, 2, 4]),
        jobs=random.choice([5, 20, 60]),
        fragments=random.choice([1, 3, 10]),
        ack_wait_seconds=random.choice([0.5, 5.0, 60.0]),
        max_deliver=random.choice([None, None, 2, 4]),
        max_ack_pending=random.choice([1, 3, 100]),
        is_ordered=random.random() < 0.4,
        stream=random.choice([None, "a"]),
        faults={
            name: random.choice([0.005, 0.02, 0.1])
            for name in FAULTS
            if has_faults and random.random() < 0.5
        },
        etags_of_content=random.random() < 0.5,
        kills=random.choice([0.0, 0.3, 0.7]),
        cancels=random.choice([0.0, 0.05, 0.2]),
        deletes=random.random() < 0.15,
        delays=random.choice([0.0, 0.0, 0.3]),
    )
