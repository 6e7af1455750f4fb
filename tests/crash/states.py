"""States in which a power failure at a moment of a trace may leave the disk. Pure, and the same every time.

All subsets of what may be lost where there are few, else a sample: nothing lost, all lost, one thing lost,
one thing kept, names in order (as a journal keeps them) over any sectors, whole pages, and mixtures.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from tests.crash.disk import Content, Disk, Piece, Resize, parent

_ALL_SUBSETS = 6
"""Most things of which every subset is tried."""
_PAGE = 4096
_SHARES = (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True)
class State:
    """What is found after the power is back: bytes by path, None for a directory."""

    files: dict[str, bytes | None]
    digest: bytes
    keeps_all: bool
    """Whether nothing was lost: then a killed process would leave the same."""
    in_order: bool
    """Whether names were lost in the order in which they were changed, as a journal of metadata does."""


class States:
    """Makes the states of one disk."""

    def __init__(self, disk: Disk, seed: int) -> None:
        self._disk = disk
        self._seed = seed

    def at(self, moment: int, most: int) -> Iterator[State]:
        """Yield up to ``most`` states of this moment, which seeds the sample."""
        chance = random.Random(self._seed * 1_000_003 + moment)
        files = [found for found in self._reachable() if found.pending and not found.cells]
        things = len(self._disk.pending_names) + sum(len(content.pending) for content in files)
        if things <= _ALL_SUBSETS:
            choices = [list(kept) for kept in product((True, False), repeat=things)]
            if len(choices) > most:
                choices = choices[:1] + chance.sample(choices[1:], most - 1)
        else:
            choices = [self._choose(chance, number, things, files) for number in range(most)]
        for number, kept in enumerate(choices):
            yield self._state(kept, files, chance if number else None)

    def _reachable(self) -> list[Content]:
        """Return the contents that some outcome of the names shows, but for those that nobody reads."""
        disk = self._disk
        found = {*disk.names.values(), *disk.durable_names.values()}
        found |= {change.file for change in disk.pending_names}
        found -= {file for path, file in disk.names.items() if _is_lock(path)}
        return [disk.contents[file] for file in sorted(file for file in found if file is not None)]

    def _choose(
        self, chance: random.Random, number: int, things: int, files: list[Content]
    ) -> list[bool]:
        """Choose what is kept of many things: the names first, then each file's changes."""
        names = len(self._disk.pending_names)
        if number < 2:
            return [number == 0] * things
        kind = chance.randrange(6)
        if kind in (0, 1):  # one thing is lost, or one is kept
            kept = [kind == 0] * things
            kept[chance.randrange(things)] = kind == 1
            return kept
        share = chance.choice(_SHARES)
        kept = [chance.random() < share for _ in range(things)]
        if kind in (2, 3):  # names as a journal keeps them
            until = chance.randint(0, names)
            kept[:names] = [at < until for at in range(names)]
        if kind in (3, 4):
            kept[names:] = _by_pages(chance, share, files)
        if kind == 5:  # lengths are kept, as they are where the data of a commit is lost
            kept[names:] = [
                isinstance(change, Resize) or chance.random() < share
                for content in files
                for change in content.pending
            ]
        return kept

    def _state(self, kept: list[bool], files: list[Content], chance: random.Random | None) -> State:
        """Return the state with what is kept; without chance cells show their last store."""
        disk = self._disk
        names = dict(disk.durable_names)
        for change, is_kept in zip(disk.pending_names, kept, strict=False):
            if is_kept:
                change.apply(names)
        at = len(disk.pending_names)
        choices: dict[int, list[bool]] = {}
        for content in files:
            choices[id(content)] = kept[at : at + len(content.pending)]
            at += len(content.pending)
        found: dict[str, bytes | None] = {}
        whole = hashlib.blake2b(digest_size=16)
        for path in sorted(names):
            above = parent(path)
            if above != "." and above not in found:
                continue  # its directory was lost
            file = names[path]
            data, digest = None, b""
            if file is not None:
                data, digest = self._outcome(disk.contents[file], choices, chance)
            found[path] = data
            if not _is_lock(path):
                whole.update(path.encode() + b"\0" + digest)
        changes = kept[: len(disk.pending_names)]
        in_order = changes == sorted(changes, reverse=True)
        return State(found, whole.digest(), all(kept) and chance is None, in_order)

    @staticmethod
    def _outcome(
        content: Content, choices: dict[int, list[bool]], chance: random.Random | None
    ) -> tuple[bytes, bytes]:
        if content.cells:
            return _hashed(_cell(content, chance))
        kept = choices.get(id(content), [])
        if not any(kept):
            return content.durable, content.digest()
        return _hashed(content.outcome(kept, None))


def _is_lock(path: str) -> bool:
    return path.rpartition("/")[2] in ("LOCK", ".lock")


def _hashed(data: bytes) -> tuple[bytes, bytes]:
    return data, hashlib.blake2b(data, digest_size=16).digest()


def _cell(content: Content, chance: random.Random | None) -> bytes:
    """Return what a mapped file holds: mostly one of its newest stores, else what was before them."""
    newest = len(content.cells) - 1
    if chance is None or chance.random() < 0.5:
        return content.outcome(None, newest)
    if chance.random() < 0.9:
        return content.outcome(None, chance.randrange(newest + 1))
    return content.durable if chance.random() < 0.5 else content.outcome(None, None)


def _by_pages(chance: random.Random, share: float, files: list[Content]) -> list[bool]:
    """Keep or lose whole pages of 4 KiB, each change of a length on its own."""
    kept = []
    for content in files:
        pages: dict[int, bool] = {}
        for change in content.pending:
            if isinstance(change, Piece):
                page = change.position // _PAGE
                kept.append(pages.setdefault(page, chance.random() < share))
            else:
                kept.append(chance.random() < share)
    return kept
