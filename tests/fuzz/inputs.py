"""One input for each seed: a log, damaged raw or forged."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.fuzz import forge, raw
from tests.fuzz.bases import Base
from walstore import Record


@dataclass(frozen=True)
class Input:
    """A log directory to be opened."""

    what: str
    files: dict[str, bytes]
    truth: dict[int, Record] | None
    """The records that may be returned; None if others were forged."""


def make(seed: int, bases: list[Base]) -> Input:
    """Return the input of a seed; the same each time, but for what the log's writer draws by chance."""
    rng = Random(seed)
    base = bases[rng.randrange(len(bases))]
    files = dict(base.files)
    if seed % 2:
        what = "; ".join(raw.damage(rng, files, base) for _ in range(rng.choice((1, 1, 2))))
        return Input(f"{base.name}: raw: {what}", files, base.records)
    what = forge.forge(rng, files)
    return Input(f"{base.name}: forged: {what}", files, None)
