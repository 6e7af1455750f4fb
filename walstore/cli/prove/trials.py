"""Trials: the kinds of rounds, what each does, and the rule that it checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from walstore.cli.prove.bucket import BucketRound
from walstore.cli.prove.bucket_writers import BucketScene
from walstore.cli.prove.flips import flip_bits
from walstore.cli.prove.full_disk import fill_disk
from walstore.cli.prove.kills import KillRound
from walstore.cli.prove.power import fail_power
from walstore.cli.prove.writers import SCENES, Scene

_WRITERS: Final = 10
"""That a round of kills ends."""
_HISTORY: Final = """\
Each acknowledged append is there once, whole, in order, with its value, and nothing that nobody appended."""


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """One round. A value; its fields are the arguments of the process that runs it."""

    kind: str
    """A name of :data:`DIRECTORY_TRIALS` or :data:`BUCKET_TRIALS`."""
    seed: int
    place: str
    """An empty directory."""
    url: str | None = None
    """Of a round in a store: where its log is."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What rounds of one kind do."""

    about: str
    rule: str
    run: Callable[[RoundPlan, Counter[str]], None]
    """Runs one round in this process, which has no other thread and has not opened a log, and adds what it
    did. BrokenPromiseError if the rule was broken."""


def _kill(plan: RoundPlan, counts: Counter[str], *, has_pauses: bool) -> None:
    scene = Scene(SCENES[plan.seed % len(SCENES)], Path(plan.place), plan.seed)
    KillRound(scene, counts, has_pauses=has_pauses).run(_WRITERS)


def _write_to_bucket(
    plan: RoundPlan, counts: Counter[str], *, has_pauses: bool = False, has_faults: bool = False
) -> None:
    assert plan.url is not None
    scene = BucketScene(plan.url, plan.seed, has_faults)
    BucketRound(scene, counts, has_pauses=has_pauses).run()


DIRECTORY_TRIALS: Final = {
    "kills": Trial(
        "Writers are killed with SIGKILL while they open, append, trim, rotate, ship and close.",
        _HISTORY + " Registers, cursors, streams and producers do not go back.",
        partial(_kill, has_pauses=False),
    ),
    "pauses": Trial(
        "Writers are paused with SIGSTOP, continued and killed; others try to open their logs.",
        "A second writer is refused. " + _HISTORY,
        partial(_kill, has_pauses=True),
    ),
    "full": Trial(
        "The disk has no space left at a random byte, and some again later.",
        "The log refuses with DiskFullError, and a refused append is never there. " + _HISTORY,
        lambda plan, counts: fill_disk(Path(plan.place), plan.seed, counts),
    ),
    "flips": Trial(
        "A bit of a copy of a log is flipped, in any file; the copy is read, opened and repaired.",
        "No reader gets a wrong record or misses one in silence; a repair loses only what it lists.",
        lambda plan, counts: flip_bits(Path(plan.place), plan.seed, counts),
    ),
    "power": Trial(
        "The power fails at a random call (simulated): unsynced sectors and names are lost or kept.",
        _HISTORY + " Incomplete writes at the end are dropped.",
        lambda plan, counts: fail_power(Path(plan.place), plan.seed, counts),
    ),
}
BUCKET_TRIALS: Final = {
    "kills": Trial(
        "Two writers at once are killed with SIGKILL while they open, append and publish.",
        _HISTORY + " Manifests, setsums and objects agree.",
        _write_to_bucket,
    ),
    "pauses": Trial(
        "Two writers at once; each is paused with SIGSTOP while the other goes on, and continued.",
        _HISTORY + " Manifests, setsums and objects agree.",
        partial(_write_to_bucket, has_pauses=True),
    ),
    "faults": Trial(
        "Requests fail, are throttled, are done with a lost answer, or arrive late (injected).",
        _HISTORY + " A refused append is never there.",
        partial(_write_to_bucket, has_faults=True),
    ),
}
