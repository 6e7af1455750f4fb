"""Plan: what a history of a log in object storage is made of, drawn from its seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, Final, Literal

from uploader.chain import ChainSettings
from uploader.format.rollup import RollUpSettings

ACTS: Final = ("append", "many", "expect", "burst", "flush")
OTHERS: Final = ("read", "follow", "consume", "pin", "collect", "fork", "seal", "destroy")
"""Programs beside the writers."""
ENDS: Final = ("clean", "busy", "cancel", "kill", "kill", "kill")
FAULTS: Final = ("slow", "lost", "unanswered", "late", "twice", "busy", "broken", "patient")
_SHARES: Final = {
    "slow": (0.01, 0.05),
    "late": (0.01, 0.05, 0.2),
    "twice": (0.02, 0.1, 0.3),
    "patient": (0.02, 0.1),
}


@dataclass(frozen=True)
class CloudPlan:
    """One history: programs that use one log, and its forks, at the same time."""

    seed: int
    layout: Literal["swap", "chain"]
    ships: bool
    """Whether local logs ship to it, instead of writers without a disk."""
    writers: int
    """Programs that append, each with lives one after the other; or machines that ship."""
    lives: int
    """Most lives of a program."""
    acts: tuple[str, ...]
    others: tuple[str, ...]
    ends: tuple[str, ...]
    """How lives may end."""
    actors: int
    calls: int
    """Most calls that an actor makes in a life."""
    cancels: float
    """Share of appends that are cancelled on the way."""
    faults: dict[str, float]
    """Shares of requests, by the fields of the network."""
    outages: int
    """How often the store answers nothing for a while."""
    usual_seconds: float
    leaps: bool
    """Whether clocks are set now and then."""
    etags_of_content: bool
    page: int
    shuffles: bool
    """Whether listings have an order of their own."""
    probes: bool
    parallel_puts: bool
    small: bool
    """Whether fragments hold little, and snapshots few of them."""
    interval_seconds: float
    """How long a collector waits for readers."""
    large: float
    """Share of large values."""
    lies: bool = False
    """Whether the store ignores the conditions of puts, so that the checks have something to find."""
    ignored: tuple[str, ...] = ()
    """Rules that are not looked at, while a defect is known and others are looked for."""

    PARTS: ClassVar = {"others": 0, "ends": 1, "acts": 1}
    """Fields of which some may be left out, and how many there must be."""
    USUAL: ClassVar = {
        "cancels": 0.0,
        "outages": 0,
        "leaps": False,
        "etags_of_content": False,
        "page": 1000,
        "shuffles": False,
        "probes": False,
        "parallel_puts": False,
        "small": False,
        "large": 0.0,
        "usual_seconds": 0.1,
        "interval_seconds": 10_000.0,
        "lives": 1,
    }
    COUNTS: ClassVar = ("writers", "actors", "calls")

    def smaller(self) -> list[CloudPlan]:
        """Return plans with one kind of fault less."""
        return [
            self.replace(
                faults={name: share for name, share in self.faults.items() if name != gone}
            )
            for gone in self.faults
        ]

    def without(self, names: Collection[str]) -> CloudPlan:
        """Return the plan without these acts, programs, ends or faults."""

        def rest(found: tuple[str, ...], least: str | None) -> tuple[str, ...]:
            left = tuple(name for name in found if name not in names)
            return left or ((least,) if least else ())

        return self.replace(
            acts=rest(self.acts, "append"),
            others=rest(self.others, None),
            ends=rest(self.ends, "clean"),
            faults={name: share for name, share in self.faults.items() if name not in names},
        )

    def replace(self, **changes: Any) -> CloudPlan:
        return dataclasses.replace(self, **changes)

    @property
    def roll_up(self) -> RollUpSettings:
        if not self.small:
            return RollUpSettings()
        return RollUpSettings(fragments_per_snapshot=2, snapshots_per_snapshot=2)

    def chain(self, random: Random) -> ChainSettings:
        """Return how some program writes a chain."""
        return ChainSettings(alpha=random.choice([1, 2, 8]), shards=random.choice([1, 1, 3]))


def draw(seed: int) -> CloudPlan:
    """Return the plan of a seed: of a log in the layout ``swap`` if it is even, ``chain`` if it is odd."""
    random = Random(f"cloud plan {seed}")
    has_faults = random.random() < 0.75
    ships = random.random() < 0.25
    others = [name for name in OTHERS if random.random() < 0.45]
    if ships:
        others = [name for name in others if name not in {"seal", "destroy"}] or ["read"]
    if "collect" in others and random.random() < 0.8:
        others = [
            *(name for name in others if name not in {"consume", "collect"}),
            "consume",
            "collect",
        ]
    faults = {
        name: random.choice(_SHARES.get(name, (0.005, 0.02, 0.1)))
        for name in FAULTS
        if has_faults and random.random() < 0.5
    }
    return CloudPlan(
        seed=seed,
        layout=("swap", "chain")[seed % 2],
        ships=ships,
        writers=random.choice([1, 1, 2, 2, 3]) if not ships else random.choice([1, 2]),
        lives=random.choice([1, 2, 3]),
        acts=tuple(act for act in ACTS if random.random() < 0.6) or ("append",),
        others=tuple(others),
        ends=tuple(random.choice(ENDS) for _ in range(random.randint(1, 4))),
        actors=random.randint(1, 3),
        calls=random.choice([2, 4, 8]),
        cancels=random.choice([0.0, 0.0, 0.1]),
        faults=faults,
        outages=random.choice([0, 0, 0, 1, 2]) if has_faults else 0,
        usual_seconds=random.choice([0.02, 0.1, 0.1, 0.5]),
        leaps=random.random() < 0.3,
        etags_of_content=random.random() < 0.5,
        page=random.choice([1, 3, 20, 1000, 1000]),
        shuffles=random.random() < 0.2,
        probes=random.random() < 0.15,
        parallel_puts=random.random() < 0.3,
        small=random.random() < 0.5,
        interval_seconds=random.choice([600.0, 3600.0, 10_000.0]),
        large=random.choice([0.0, 0.0, 0.3]),
    )
