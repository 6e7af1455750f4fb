"""One input for each seed: a log, damaged raw or forged."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

from tests.fuzz import forge, hostile, raw
from tests.fuzz.bases import Base
from walstore import Record


@dataclass(frozen=True)
class Input:
    """A log directory to be opened."""

    what: str
    kinds: list[str]
    """What was damaged how, without the places: for counting."""
    files: dict[str, bytes]
    truth: dict[int, Record] | None
    """The records that may be returned; None if others were forged."""
    is_single: bool = False
    """Whether only one file is damaged: then the others testify to what is lost."""


def make(seed: int, bases: list[Base]) -> Input:
    """Return the input of a seed; the same each time, but for what the log's writer draws by chance."""
    rng = Random(seed)
    base = bases[rng.randrange(len(bases))]
    files = dict(base.files)
    if seed % 2:
        done = [raw.damage(rng, files, base) for _ in range(rng.choice((1, 1, 2)))]
        what = f"{base.name}: raw: {'; '.join(done)}"
        return Input(what, _kinds("raw", done), files, base.records, is_single=len(done) == 1)
    done = forge.forge(rng, files)
    return Input(f"{base.name}: forged: {'; '.join(done)}", _kinds("forged", done), files, None)


def make_bucket(seed: int, buckets: list[Base]) -> Input:
    """Return the bucket of a seed, as :func:`make` returns a log."""
    rng = Random(seed)
    base = buckets[rng.randrange(len(buckets))]
    files = dict(base.files)
    if seed % 2:
        # Most objects are fragments, and little depends on each.
        chosen = {key: files[key] for key in files if rng.random() < 0.3 or files[key][:1] == b"{"}
        done = [raw.damage(rng, chosen, base) for _ in range(rng.choice((1, 1, 2)))]
        what = f"{base.name}: raw: {'; '.join(done)}"
        return Input(what, _kinds("raw", done), files | chosen, base.records)
    done = hostile.forge(rng, files)
    return Input(f"{base.name}: hostile: {'; '.join(done)}", _kinds("hostile", done), files, None)


def undamaged(base: Base) -> Input:
    """Return a log as it was written."""
    return Input(base.name, [], base.files, base.records, is_single=True)


def _kinds(group: str, done: list[str]) -> list[str]:
    """Return what was done without the numbers and sums in the names of files."""
    return [f"{group}: {re.sub(r'[0-9]{5,}|[0-9a-f]{8,}', '', what)}" for what in done]
