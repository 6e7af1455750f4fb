"""Plan: what a history is made of, drawn from its seed. Small plans make short stories."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, Final

from walstore.core.settings import KIB, Settings

ACTS: Final = (
    "append",
    "nowait",
    "many",
    "transaction",
    "spilled",
    "counter",
    "swap",
    "fence",
    "produce",
    "stream",
    "flush",
    "rotate",
    "trim",
)
FOLLOWERS: Final = ("follow", "accepted", "batches", "cursor")
ENDS: Final = ("clean", "busy", "cancel", "kill", "kill", "power", "power")
CONDITIONS: Final = {
    "full": "is_full",
    "dead": "is_dead",
    "descriptors": "has_no_descriptors",
    "unlink": "keeps_files",
    "checkpoint": "has_no_checkpoint",
}
"""What may be wrong with the disk for a while, and the field of the weather that says so."""
_USUAL_SETTINGS: Final = {
    "retention_bytes": None,
    "retention_seconds": None,
    "segment_age_seconds": None,
    "linger_seconds": 0.0,
    "channel_records": 100_000,
    "channel_bytes": 256 << 10,
    "cache_bytes": 64 << 10,
}


@dataclass(frozen=True)
class Plan:
    """One history: sessions of a writing process, one after the other, on one machine."""

    seed: int
    acts: tuple[str, ...]
    followers: tuple[str, ...]
    ends: tuple[str, ...]
    """How the sessions end, one each."""
    actors: int
    calls: int
    """Most calls that an actor makes in a session."""
    readonly: bool
    """Whether another process reads the log beside its writer."""
    store: bool
    """Whether the log is one of a store's."""
    shuffles: bool
    cancels: float
    """Share of calls that are cancelled on the way."""
    rate: float
    read_rate: float
    stall_rate: float
    conditions: tuple[str, ...]
    """Conditions of the disk that come and stay for a while."""
    sync: Any
    settings: dict[str, Any]
    large: float
    """Share of large values."""
    lies: bool = False
    """Whether the disk lies about syncs, so that the checks have something to find."""

    ignored: tuple[str, ...] = ()
    """Rules that are not looked at, while a defect is known and others are looked for."""

    PARTS: ClassVar = {"ends": 1, "followers": 0, "acts": 1, "conditions": 0}
    """Fields of which some may be left out, and how many must stay."""
    USUAL: ClassVar = {
        "readonly": False,
        "store": False,
        "shuffles": False,
        "cancels": 0.0,
        "rate": 0.0,
        "read_rate": 0.0,
        "stall_rate": 0.0,
        "large": 0.0,
        "sync": "batch",
    }
    COUNTS: ClassVar = ("actors", "calls")

    def smaller(self) -> Iterator[Plan]:
        """Yield plans with one setting less."""
        for name, usual in _USUAL_SETTINGS.items():
            if self.settings[name] != usual:
                yield self.replace(settings={**self.settings, name: usual})

    @property
    def retains(self) -> bool:
        """Whether the log deletes segments by itself."""
        return any(self.settings[name] for name in ("retention_bytes", "retention_seconds"))

    def make_settings(self) -> Settings:
        return Settings(sync=self.sync, **self.settings)

    def without(self, names: Collection[str]) -> Plan:
        """Return the plan without these acts, followers, ends, conditions, store or readonly."""

        def rest(found: tuple[str, ...], least: str | None) -> tuple[str, ...]:
            left = tuple(name for name in found if name not in names)
            return left or ((least,) if least else ())

        return self.replace(
            acts=rest(self.acts, "append"),
            followers=rest(self.followers, None),
            ends=rest(self.ends, "clean"),
            conditions=rest(self.conditions, None),
            store=self.store and "store" not in names,
            readonly=self.readonly and "readonly" not in names,
        )

    def replace(self, **changes: Any) -> Plan:
        return dataclasses.replace(self, **changes)


def draw(seed: int) -> Plan:
    """Return the plan of a seed."""
    random = Random(f"plan {seed}")
    has_faults = random.random() < 0.6
    acts = [act for act in ACTS if random.random() < 0.6] or ["append"]
    sync = random.choice(["batch"] * 4 + ["os", "os", 0.005, 0.5])
    settings = {
        "segment_bytes": random.choice([64 * KIB, 64 * KIB, 128 * KIB]),
        "batch_bytes": 4 * KIB,
        "cache_bytes": random.choice([0, 8 * KIB, 64 * KIB]),
        "checkpoint_bytes": 64 * KIB,
        "read_ahead_bytes": 4 * KIB,
        "max_record_bytes": 12 * KIB,
        "channel_bytes": random.choice([12 * KIB, 64 * KIB, 256 * KIB]),
        "channel_records": random.choice([3, 50, 100_000]),
        "transaction_memory_bytes": random.choice([1 * KIB, 4 * KIB]),
        "linger_seconds": random.choice([0.0, 0.0, 0.0, 0.002]),
        "retention_bytes": random.choice([None, None, None, 64 * KIB]),
        "retention_seconds": random.choice([None, None, None, 0.05]),
        "segment_age_seconds": random.choice([None, None, None, 0.01]),
        "min_free_bytes": 0,
        "producer_window": 16,
    }
    return Plan(
        seed=seed,
        acts=tuple(acts),
        followers=tuple(each for each in FOLLOWERS if random.random() < 0.4),
        ends=tuple(random.choice(ENDS) for _ in range(random.randint(1, 6))),
        actors=random.randint(1, 8),
        calls=random.choice([3, 8, 20]),
        readonly=random.random() < 0.35,
        store=random.random() < 0.2,
        shuffles=random.random() < 0.3,
        cancels=random.choice([0.0, 0.0, 0.1, 0.3]),
        rate=random.choice([0.0, 0.01, 0.03, 0.1]) if has_faults else 0.0,
        read_rate=random.choice([0.0, 0.0, 0.01]) if has_faults else 0.0,
        stall_rate=random.choice([0.0, 0.0, 0.005]),
        conditions=tuple(each for each in CONDITIONS if has_faults and random.random() < 0.25),
        sync=sync,
        settings=settings,
        large=random.choice([0.0, 0.05, 0.4]),
    )
