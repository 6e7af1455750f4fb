"""ReplicaHistory: machines with copies of one log, and programs that are its primary in turn, or at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Awaitable, Mapping
from random import Random
from typing import Any
from unittest.mock import patch

from tests.sim.loop import OUTSIDE, PROCESS, Process, SimLoop, StuckError
from tests.sim.replicas import plan as plans
from tests.sim.replicas.calls import Calls
from tests.sim.replicas.disks import DAMAGE, Disks
from tests.sim.replicas.last_look import LastLook
from tests.sim.replicas.lists import Allocator, CopyList
from tests.sim.replicas.machine import LOG, Machine
from tests.sim.replicas.network import SimClient
from tests.sim.replicas.plan import ReplicaPlan
from tests.sim.replicas.program import EXPECTED, PrimaryProgram
from tests.sim.replicas.rules import ReplicaViolationError
from tests.sim.rules import ViolationError
from tests.sim.surroundings import SimClock, abandon_all, quiet, where
from tests.sim.threads import simulated_threads
from walstore.cluster.replication import lead
from walstore.cluster.replication.node import ReplicaNode
from walstore.core.append import upkeep
from walstore.errors import OffsetTrimmedError
from walstore.net.wire.address import Address
from walstore.topology.memory import MemoryKeyValues


class ReplicaHistory:
    """One history."""

    def __init__(self, plan: ReplicaPlan) -> None:
        self.plan = plan
        self.random = Random(f"replica history {plan.seed}")
        self.loop = SimLoop(
            Random(f"loop {plan.seed}"), shuffles=plan.seed % 2 == 0, most_turns=3_000_000
        )
        self.clock = SimClock(self.loop)
        self.store = MemoryKeyValues(self.clock)
        self.trace: list[tuple[float, str, str]] = []
        self.violation: ViolationError | None = None
        self.happened: Counter[str] = Counter(
            dict.fromkeys(
                ["opened", "refused", "acknowledged", "fenced", "unknown", "not written"], 0
            )
        )
        self.known: dict[int, bytes] = {}
        """What was acknowledged or seen, by offset."""
        self.refused: set[bytes] = set()
        self.epochs: set[int] = set()
        self.values = 0
        self.machines = [Machine(self, number) for number in range(plan.copies + plan.spares)]
        self.kept: dict[int, bytes] = {}
        """What was known when a copy was put back last."""
        self.rollbacks = 0
        self.lists = [CopyList(1, tuple(self.machines[: plan.copies]), {})]
        """The lists of copies, as the cluster's store had them one after the other."""
        self.allocator = Allocator(self)
        self.disks = Disks(self)
        self.calls = Calls(self.loop.time)
        self.log: dict[int, bytes] = {}
        """What is in the log in the end."""

    @property
    def is_damaged(self) -> bool:
        """Whether a file of a copy was damaged."""
        return any(machine.is_damaged for machine in self.machines)

    def note(self, who: Process, text: str) -> None:
        self.trace.append((self.loop.time(), who.name, text))

    def violate(self, violation: ViolationError) -> None:
        if violation.rule in self.plan.ignored or not PROCESS.get().is_alive:
            return
        if self.violation is None:
            self.violation = violation
            self.note(OUTSIDE, f"VIOLATION {violation}")

    async def guarded(self, call: Awaitable[Any]) -> None:
        try:
            await call
        except ViolationError as violation:
            self.violate(violation)
        except Exception as error:  # noqa: BLE001
            found = ReplicaViolationError("typed-errors", f"a program got {error!r}")
            found.__cause__ = error
            self.violate(found)

    # -- what is known -----------------------------------------------------------------------

    def learn(self, rule: str, offset: int, value: bytes) -> None:
        """Note that a value is at an offset, for good."""
        if self.known.setdefault(offset, value) != value:
            raise ReplicaViolationError(
                rule, f"{offset} is {value[:20]!r}, and was {self.known[offset][:20]!r}"
            )

    def compare(self, found: Mapping[int, bytes], head: int) -> None:
        """Check what a primary's log has when it is opened."""
        for offset, value in self.known.items():
            if offset >= head and found.get(offset) != value:
                raise ReplicaViolationError(
                    "acknowledged",
                    f"{offset} was {value[:20]!r}, and is {found.get(offset, b'nothing')[:20]!r}",
                )
        values = Counter(found.values())
        if max(values.values(), default=0) > 1:
            raise ReplicaViolationError("once", f"{values.most_common(1)}")
        if values.keys() & self.refused:
            raise ReplicaViolationError("not-written", f"{values.keys() & self.refused}")

    # -- the whole ---------------------------------------------------------------------------

    def run(self) -> None:
        """Run to the end; raises the violation that was found."""
        entropy = Random(f"entropy {self.plan.seed}")
        machines = {str(machine.address): machine for machine in self.machines}

        def client_of(address: Address, *_: Any, **__: Any) -> SimClient:
            process = PROCESS.get()
            source = next(one for one in self.machines if one.process is process)
            return SimClient(self, source, machines[str(address)], process)

        with (
            quiet(),
            simulated_threads(Random(f"threads {self.plan.seed}"), self.loop),
            patch.object(os, "urandom", entropy.randbytes),
            patch.object(lead, "client_of", client_of),
            patch.object(upkeep, "_REPLICATED_CHECKPOINT_WRITES", self.plan.checkpoint_writes),
        ):
            directing = self.loop.create_task(self._direct())
            try:
                self.loop.run_until_complete(directing)
            except StuckError as error:
                tasks = "\n      ".join(
                    f"{task.get_name()}: {where(task)}" for task in self.loop.tasks.values()
                )
                self.violate(ReplicaViolationError("ends", f"{error}\n      {tasks}"))
            finally:
                for machine in self.machines:
                    if machine.process.is_alive:
                        self.loop.kill(machine.process)
                directing._log_destroy_pending = False
                with contextlib.suppress(RuntimeError):
                    directing.get_coro().close()
                self.loop.close()
                abandon_all()
        if self.violation is not None:
            raise self.violation

    async def _direct(self) -> None:
        for machine in self.machines:
            await machine.serve()
        self.promote(self.machines[0])
        for _ in range(self.plan.rounds):
            await asyncio.sleep(self.random.choice([0.05, 0.5, 2.0, 5.0]))
            await self._act(self.random.choice(self.plan.acts))
            if self.violation is not None:
                return
        await LastLook(self).run()

    async def _act(self, act: str) -> None:
        of_list = self.plan.grows and act in ("promote", "usurp")
        machine = self.random.choice(self.lists[-1].machines if of_list else self.machines)
        self.note(OUTSIDE, f"{act} {machine.name}")
        self.happened[act] += 1
        match act:
            case "kill" | "power" | "replace" | "roll back" | "gaps":
                machine.kill()
                await self.disks.change(machine, act)
                await asyncio.sleep(self.random.choice([0.0, 0.3, 3.0]))
                await self._restart(machine)
            case "cut off":
                machine.is_cut_off = True
                seconds = self.random.choice([0.3, 3.0, 10.0])
                self.loop.call_later(seconds, setattr, machine, "is_cut_off", False)
            case "promote" | "usurp":
                # The old primary ends first, or goes on and does not know.
                for other in self.machines:
                    if act == "promote" and other is not machine and other.node is None:
                        other.kill()
                        await other.serve()
                machine.kill()
                self.promote(machine)
            case "old list":
                # A program that read the list before it was changed, and stood still since.
                self.promote(machine, self.random.choice(self.lists))
            case "exchange":
                await self.allocator.exchange()
            case "flip" | "spoil" | "lose a segment":
                await self.disks.damage(machine, act)
            case "back up":
                machine.backup = machine.files()
            case "read a copy":
                if machine.node is not None and LOG in machine.node.logs:
                    reading = self.guarded(self._read_copy(machine, machine.node))
                    self.loop.spawn(machine.process, reading, "reader of a copy")

    async def _read_copy(self, machine: Machine, node: ReplicaNode) -> None:
        """Read what a copy shows now: that stays, whoever leads."""
        try:
            log = await node.log(LOG)
            position, limit = log.head, log.limit
            while position < limit:
                for batch in await log.read(position, limit, 1 << 20):
                    for record in batch.records():
                        self.learn("seen", record.offset, record.value)
                    position = batch.limit
        except (*EXPECTED, *DAMAGE, OffsetTrimmedError) as error:
            if isinstance(error, DAMAGE) and not machine.is_damaged:
                raise
            self.note(machine.process, f"a copy is not read: {error!r:.90}")
        else:
            self.happened["copies read"] += 1
            self.happened["read at copies"] += limit - log.head

    async def _restart(self, machine: Machine) -> None:
        if self.random.random() < 0.5 and not any(
            one.node is None for one in self.machines if one is not machine
        ):
            self.promote(machine)
        else:
            await machine.serve()

    def promote(self, machine: Machine, copies: CopyList | None = None) -> None:
        copies = copies or self.lists[-1]
        if machine not in copies.machines:
            return
        machine.kill()
        process = machine.new_process("primary")
        program = machine.program = PrimaryProgram(self, machine, process, copies)

        async def run() -> None:
            await program.run()

        task = self.loop.spawn(process, self.guarded(run()), f"main of {process}")
        task.add_done_callback(lambda _: self._ended(machine, process))

    def _ended(self, machine: Machine, process: Process) -> None:
        """A primary that has ended makes its machine a node again."""
        if machine.process is process and process.is_alive:
            self.loop.call_soon(lambda: self.loop.create_task(machine.serve()))


def happenings(history: ReplicaHistory) -> Counter[str]:
    """Return how often what happened."""
    return history.happened


def simulate(seed: int, **changes: Any) -> ReplicaHistory:
    """Run the history of a seed; raises ViolationError."""
    history = ReplicaHistory(plans.draw(seed).replace(**changes))
    history.run()
    return history
