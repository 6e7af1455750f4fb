"""Lists of copies, and who changes them: as the allocator of a cluster does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from tests.sim.loop import OUTSIDE
from tests.sim.replicas.machine import is_whole

if TYPE_CHECKING:
    from tests.sim.replicas.history import ReplicaHistory
    from tests.sim.replicas.machine import Machine


class CopyList(NamedTuple):
    """Which machines have copies."""

    generation: int
    machines: tuple[Machine, ...]
    joined: Mapping[Machine, int]
    """When those came into the list that were not in it from the beginning."""


class Allocator:
    """Changes the list of copies of a history."""

    def __init__(self, history: ReplicaHistory) -> None:
        self._history = history

    async def exchange(self) -> None:
        """Put another machine into the list, as the allocator does: all but the one that leaves are there.

        The primary goes on with the old list until it is killed, or another one takes over.
        """
        now = self._history.lists[-1]
        for _ in range(50):
            await asyncio.sleep(0.2)
            leader, present = self.leader()
            if leader is None and self._may_be_lost(now) and self._history.random.random() < 0.2:
                self._give_up_new_one(now)
                return
            if leader is None or self._history.lists[-1] is not now:
                continue
            spare = [one for one in self._history.machines if one not in now.machines]
            doomed = [one for one in now.machines if one is not leader]
            absent = [one for one in doomed if one not in present]
            if len(absent) > 1 or not (spare or self._history.plan.grows):
                continue
            news = self._new_of_two(now)
            if leader in news and absent:
                continue  # the other one is needed
            gone, new = self._exchanged(now, doomed, absent, spare)
            machines = self._change_list(now, gone, new)
            others = [one for one in machines if one not in (leader, new)]
            if others and self._history.random.random() < 0.5:
                # Another copy falls behind before the new list is used.
                behind = self._history.random.choice(others)
                behind.is_cut_off = True
                self._history.loop.call_later(1.0, setattr, behind, "is_cut_off", False)
            await asyncio.sleep(self._history.random.choice([0.0, 0.3, 1.0]))
            leader.kill()
            if "heals" in self._history.plan.ignored and len(machines) == 2 < len(now.machines):
                leader.replace_disk()  # the other one may lack what this and the one given up had
                self._history.happened["disks lost"] += 1
            if self._history.random.random() < 0.5:
                self._history.promote(leader)
            else:
                leader.is_cut_off = True
                self._history.loop.call_later(3.0, setattr, leader, "is_cut_off", False)
                await leader.serve()
                self._history.promote(new or machines[-1])
            return

    def _exchanged(
        self, now: CopyList, doomed: list[Machine], absent: list[Machine], spare: list[Machine]
    ) -> tuple[Machine | None, Machine | None]:
        """Return who leaves the list of copies, and who comes, or None."""
        if self._new_of_two(now) and not absent:
            return None, None  # the same two, as equals
        if self._history.plan.grows:
            return self._grown_or_less(doomed, absent, spare)
        random = self._history.random
        gone, new = (absent or [random.choice(doomed)])[0], random.choice(spare)
        resizes = self._history.plan.resizes > 0 and random.random() < self._history.plan.resizes
        if resizes and len(now.machines) > self._history.plan.copies:
            return gone, None  # one copy less
        return (None, new) if resizes and not absent else (gone, new)

    def _grown_or_less(
        self, doomed: list[Machine], absent: list[Machine], spare: list[Machine]
    ) -> tuple[Machine | None, Machine | None]:
        """Return who leaves a list of one to three copies, and who comes, of which one may be None."""
        gone = (absent or [self._history.random.choice(doomed)])[0] if doomed else None
        new = self._history.random.choice(spare) if spare else None
        share = self._history.random.random()
        if gone is None or new is None or share < 0.2:
            return gone, new
        return (None, new) if share < 0.6 and not absent else (gone, None)

    def _change_list(
        self, now: CopyList, gone: Machine | None, new: Machine | None
    ) -> tuple[Machine, ...]:
        generation = now.generation + 1
        machines = tuple(one for one in (*now.machines, new) if one not in (gone, None))
        joined = {one: at for one, at in now.joined.items() if one is not gone}
        if new is not None:
            joined[new] = generation
        self._history.lists.append(CopyList(generation, machines, joined))
        self._history.note(OUTSIDE, f"the copies are {[one.name for one in machines]} now")
        self._history.happened[
            "exchanged" if len(machines) == len(now.machines) else "resized"
        ] += 1
        self._history.happened[f"{len(now.machines)} to {len(machines)}"] += 1
        return machines

    def _may_be_lost(self, now: CopyList) -> bool:
        """Whether the list has two copies of which one is new, which is given up by hand if nobody leads."""
        news = self._new_of_two(now)
        return bool(news) and all(is_whole(one) for one in now.machines if one not in news)

    def _new_of_two(self, now: CopyList) -> list[Machine]:
        """Return the one of two copies that is new beside one that is not."""
        news = [one for one, at in now.joined.items() if at == now.generation]
        return news if self._history.plan.grows and (len(now.machines), len(news)) == (2, 1) else []

    def _give_up_new_one(self, now: CopyList) -> None:
        (gone,) = [one for one, at in now.joined.items() if at == now.generation]
        spare = [one for one in self._history.machines if one not in now.machines]
        self._change_list(now, gone, self._history.random.choice([None, *spare]))
        self._history.happened["given up while nobody led"] += 1

    def leader(self) -> tuple[Machine | None, list[Machine]]:
        """Return who leads with the newest list, as the newest primary says, and which others are there."""
        for machine in self._history.machines:
            program = machine.program
            if program is None or program.wal is None or not machine.process.is_alive:
                continue
            if program.list is self._history.lists[-1] and not program.wal.is_closing:
                if program.wal.statistics().epoch < max(self._history.epochs):
                    continue
                copies = program.wal.statistics().copies
                there = {copy.address for copy in copies if copy.is_present}
                return machine, [one for one in self._history.machines if str(one.address) in there]
        return None, []
