"""Disks of the machines of a replicated log: lost, put back, damaged, and made again by an operator."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from tests.sim.loop import OUTSIDE
from tests.sim.replicas.machine import DIRECTORY, LOG, Machine, floor_of, is_whole, limit_of
from tests.sim.replicas.rules import ReplicaViolationError
from walstore.core.files.frame_stream import FrameStream
from walstore.core.format.segment import HEADER_BYTES, SEAL, decode_footer, parse_seal
from walstore.errors import CorruptionError, FormatVersionError
from walstore.topology.documents import PREFIX, SYNCED, Synced

if TYPE_CHECKING:
    from tests.sim.replicas.history import ReplicaHistory

_MARKS: Final = f"{PREFIX}{SYNCED}{LOG}"
DAMAGE: Final = (CorruptionError, FormatVersionError)
"""What calls raise that meet damage."""


class Disks:
    """Does to disks of a history what its plan says, as long as the log can survive that."""

    def __init__(self, history: ReplicaHistory) -> None:
        self._history = history
        self._random = Random(f"disks {history.plan.seed}")

    async def change(self, machine: Machine, act: str) -> None:
        """Change the disk of a machine whose process has ended."""
        if act == "power":
            machine.disk.lose_power()
        if act == "roll back":
            self._roll_back(machine)
        if act == "replace" and await self._is_spared(machine):
            machine.replace_disk()
            self._history.happened["disks lost"] += 1
        if act == "gaps":
            self._damage_inside(machine)

    async def damage(self, machine: Machine, act: str) -> None:
        """Damage files of a copy, whatever its process does."""
        match act:
            case "flip":
                for one in self._random.sample(self._history.machines, k=2):
                    self._flip_sealed(one)
            case "spoil" | "lose a segment" if await self._is_spared(machine):
                machine.is_spoiled = True
                (self._spoil if act == "spoil" else self._lose_segment)(machine)

    # -- losing all of it --------------------------------------------------------------------

    async def _is_spared(self, doomed: Machine) -> bool:
        """Wait until a primary has brought all others up to date; return whether it has."""
        history = self._history
        before = history.happened["acknowledged"]
        for _ in range(100):
            await asyncio.sleep(0.2)
            others = [one for one in history.lists[-1].machines if one is not doomed]
            if history.plan.grows and not self._may_lose(doomed):
                continue
            ends = {one.segments() if is_whole(one) else None for one in others}
            is_same = len(ends) == 1 and ends.isdisjoint({None, ()})
            is_same = is_same and _is_unbroken(others[0].segments())
            if is_same and history.happened["acknowledged"] >= before:
                for one in others:
                    one.is_spoiled = False
                return True
        return False

    def _may_lose(self, doomed: Machine) -> bool:
        """Whether the log can be led without this disk: not with one of two copies, but for the new one."""
        now = self._history.lists[-1]
        is_new = now.joined.get(doomed) == now.generation
        is_spared = len(now.machines) > 2 or doomed not in now.machines or is_new
        return is_spared or "heals" in self._history.plan.ignored

    # -- damage ------------------------------------------------------------------------------

    def _flip_sealed(self, machine: Machine) -> None:
        """Flip bits of a frame of a sealed segment that a whole copy has, too."""
        found = self._kept_elsewhere(machine)
        if found:
            name, data = self._random.choice(found)
            self._flip(machine, DIRECTORY / name, HEADER_BYTES, _footer_of(data))

    def _damage_inside(self, machine: Machine) -> None:
        """Remove sealed segments that a whole copy has, too, cut them, or flip bits where they begin or end.

        The process has ended, so the next one finds them so. It goes on counting.
        """
        found = self._kept_elsewhere(machine)
        for name, data in self._random.sample(found, min(len(found), self._random.choice([1, 2]))):
            match self._random.choice(["header", "footer", "lose"]):
                case "header":
                    self._flip(machine, DIRECTORY / name, 0, HEADER_BYTES)
                case "footer":
                    self._flip(machine, DIRECTORY / name, _footer_of(data))
                case _:
                    self._lose(machine, name, len(data))
            self._history.happened["gaps made"] += 1

    def _kept_elsewhere(self, machine: Machine) -> list[tuple[str, bytes]]:
        """Return the whole sealed segments of a copy that another whole one has durably, too."""
        others = [one for one in self._history.lists[-1].machines if one is not machine]
        kept = [dict(one.segments()[:-1]) for one in others if is_whole(one) and not one.is_spoiled]
        return [
            (name, data)
            for name, data in machine.segments()[:-1]
            if any(files.get(name) == data for files in kept) and _is_sound(name, data)
        ]

    def _spoil(self, machine: Machine) -> None:
        """Flip bits of any file of a copy."""
        found = sorted(path for path, data in machine.files().items() if data)
        if found:
            self._flip(machine, self._random.choice(found))

    def _flip(self, machine: Machine, path: Path, begin: int = 0, end: int | None = None) -> None:
        inode = machine.disk.names[path]
        end = len(inode.data) if end is None else end
        for _ in range(self._random.choice([1, 1, 3])):
            at, bit = self._random.randrange(begin, end), self._random.randrange(8)
            inode.write(at, bytes([inode.data[at] ^ 1 << bit]))
            self._note(machine, f"bit {bit} of byte {at} of {path.name} flips")
        self._history.happened["bits flipped"] += 1

    def _lose_segment(self, machine: Machine) -> None:
        """Remove the first segment of a copy, or another one that is not the last, or its end."""
        sealed = machine.segments()[:-1]
        if not sealed:
            return
        name, data = self._random.choice([sealed[0], self._random.choice(sealed)])
        self._lose(machine, name, len(data))

    def _lose(self, machine: Machine, name: str, size_bytes: int) -> None:
        """Remove a segment, or its end."""
        path, disk = DIRECTORY / name, machine.disk
        if self._random.random() < 0.3:
            size = self._random.randrange(size_bytes)
            disk.names[path].resize(size)
            self._note(machine, f"{name} ends at byte {size}")
        else:
            disk.change(path, None, disk.names[path])
            disk.sync_names(disk.pending_names(DIRECTORY))
            self._note(machine, f"{name} is removed")
        self._history.happened["segments lost"] += 1

    def remake(self, machine: Machine) -> None:
        """Empty the directory of a copy that cannot be used, as the error says."""
        machine.disk.put_back(DIRECTORY, {})
        machine.is_spoiled = False
        self._note(machine, "its directory is emptied")
        self._history.happened["emptied"] += 1

    def _note(self, machine: Machine, text: str) -> None:
        machine.is_damaged = True
        self._history.note(OUTSIDE, f"{machine.name}: {text}")

    # -- an older state ----------------------------------------------------------------------

    def _roll_back(self, machine: Machine) -> None:
        """Put a copy back from an older state, if what others know of it suffices to notice.

        With a store: its mark shows that this is an older state, or all that is known is in the marks.
        Without one, another machine knows all of it to be replicated, which is noted a little later.
        """
        others = [one for one in self._history.machines if one is not machine]
        if self._history.plan.has_topology:
            is_known = self._is_marked(machine)
        else:
            holders = [one for one in others if floor_of(one) > max(self._history.known, default=0)]
            is_known = not self._history.rollbacks and 0 < len(holders) < len(others)
            if machine.backup and is_known:  # who has all is away when the next primary is opened
                for one in holders:
                    one.is_cut_off = True
                    self._history.loop.call_later(15.0, setattr, one, "is_cut_off", False)
        if machine.backup and is_known:
            machine.disk.put_back(DIRECTORY, machine.backup)
            self._history.kept = dict(self._history.known)
            self._history.rollbacks += 1
            self._history.happened["rolled back"] += 1

    def _is_marked(self, machine: Machine) -> bool:
        found = self._history.store.get(_MARKS)
        if found is None:
            return False
        marks = Synced.decode(found.value, _MARKS)
        if limit_of(machine.backup) < marks.limits.get(str(machine.address), 0):
            return True
        is_newest = marks.epoch >= max(self._history.epochs, default=0)
        return is_newest and max(marks.limits.values()) > max(self._history.known, default=0)

    def check_kept(self) -> None:
        """Look for what was known before a copy was put back: on some disk each of it has to be."""
        disks = [data for one in self._history.machines for data in one.files().values()]
        lost = [
            at for at, value in self._history.kept.items() if not any(value in one for one in disks)
        ]
        if lost:
            self._history.violate(ReplicaViolationError("kept", f"{lost[:5]} of {len(lost)}"))


def _footer_of(data: bytes) -> int:
    """Return where the footer of a whole sealed segment begins."""
    return parse_seal(data[-SEAL.size :]) or 0


def _is_unbroken(segments: Sequence[tuple[str, bytes]]) -> bool:
    """Return whether all segments but the last are as they were written, and none is missing inside."""
    for (name, data), (following, _) in pairwise(segments):
        if not _is_sound(name, data):
            return False
        summary, _ = decode_footer(data[_footer_of(data) :], int(Path(name).stem), name)
        if summary.limit != int(Path(following).stem):
            return False
    return True


def _is_sound(name: str, data: bytes) -> bool:
    """Return whether the file of a sealed segment is as it was written."""
    stream = FrameStream(name, int(Path(name).stem))
    try:
        stream.feed(data)
        stream.finish()
    except DAMAGE:
        return False
    return True
