"""LastLook: all is well again; damage is mended, and each machine leads the log once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from tests.histories import problems
from tests.sim.replicas.disks import DAMAGE
from tests.sim.replicas.machine import Machine
from tests.sim.replicas.program import PrimaryProgram
from tests.sim.replicas.rules import ReplicaViolationError
from walstore import Wal
from walstore.core.files.directory import REMAKE
from walstore.errors import FencedError, StorageUnavailableError, WalError

if TYPE_CHECKING:
    from tests.sim.replicas.history import ReplicaHistory

_ATTEMPTS: Final = 40
"""To make a second copy, of which each has its patience."""
_SECONDS: Final = 60
"""In which all copies become whole."""


class LastLook:
    """The end of a history."""

    def __init__(self, history: ReplicaHistory) -> None:
        self._history = history
        self._logs: list[dict[int, bytes]] = []
        self._unusable: set[Machine] = set()
        self._is_undecided = False

    async def run(self) -> None:
        """Let all be well, and look at the log with each machine as the primary."""
        history = self._history
        for machine in history.machines:
            machine.is_cut_off = False
            machine.weather.clear()
            machine.kill()
            await machine.serve()
        history.disks.check_kept()
        history.plan = history.plan.replace(breaks=0.0)
        machines = history.lists[-1].machines
        if history.is_damaged:
            await self._mend(machines)
        for machine in machines:
            await self._lead(machine, self._look)
            if history.violation is not None or self._is_undecided:
                return
        if not self._logs:
            return  # nobody leads, and the rule against that is left aside
        if any(log != self._logs[0] for log in self._logs):
            sizes = [len(log) for log in self._logs]
            history.violate(ReplicaViolationError("equal", f"{sizes} records"))
        history.log = self._logs[0]
        if not history.rollbacks:
            wrong = problems(history.calls.history(), history.log)
            if wrong:
                history.violate(ReplicaViolationError("in-order", f"{wrong[:3]} of {len(wrong)}"))

    async def _lead(
        self, machine: Machine, what: Callable[[PrimaryProgram], Awaitable[None]]
    ) -> None:
        """Let a program on a machine do something as the primary; make copies again that say so."""
        history = self._history
        machine.kill()
        process = machine.new_process("last")
        program = PrimaryProgram(history, machine, process, history.lists[-1])
        task = history.loop.spawn(process, history.guarded(what(program)), "last")
        while not task.done():
            await asyncio.wait([task], timeout=1.0)
            for one in self._unusable - {machine}:
                await self._remake(one)
        machine.kill()
        if machine in self._unusable:
            await self._remake(machine)
        else:
            await machine.serve()

    async def _remake(self, machine: Machine) -> None:
        self._unusable.discard(machine)
        machine.kill()
        self._history.disks.remake(machine)
        await machine.serve()

    async def _mend(self, machines: tuple[Machine, ...]) -> None:
        """Let one that can lead read all copies, until all of them are whole."""
        for machine in machines:
            self._logs.clear()
            await self._lead(machine, self._scrub)
            if self._history.violation is not None or self._logs:
                break
        self._logs.clear()

    async def _scrub(self, program: PrimaryProgram) -> None:
        try:
            wal = await self._open(program)
        except DAMAGE as error:
            self._history.note(program.process, f"cannot lead: {error}")
            self._unusable.add(program.machine)
            return
        self._logs.append({})
        try:
            await self._until(program, wal, lambda: self._is_scrubbed(wal))
        finally:
            await wal.aclose()

    async def _is_scrubbed(self, wal: Wal) -> bool:
        """Return whether a round finds all copies there and whole, without a repair."""
        number = wal.begin_scrub()
        await asyncio.sleep(1.0)
        copies, last = wal.statistics().copies, wal.statistics().last_scrub
        for one in copies:
            if REMAKE in (one.trouble or ""):
                self._unusable.add(self._machine_at(one.address))
        if last is None or last.number < number or not all(one.is_present for one in copies):
            return False
        return not any(one.left or one.trouble or one.mended_bytes for one in last.copies)

    async def _look(self, program: PrimaryProgram, *, again: int = _ATTEMPTS) -> None:
        """Note all of the log, and wait until all copies have the same files."""
        history, begin = self._history, self._history.loop.time()
        try:
            wal = await self._open(program)
        except StorageUnavailableError:
            self._is_undecided = True
            history.happened["undecided"] += 1
            return
        self._logs.append(await program.check(wal, begin))
        try:
            if not history.rollbacks:
                await self._until(program, wal, self._are_equal)
            return
        except ReplicaViolationError:
            late = any(" is over: " in str(one.trouble) for one in wal.statistics().copies)
            if again and late:
                self._logs.pop()
            else:
                raise
        finally:
            await wal.aclose()
        # A copy that follows a later epoch, of one that never led, was too late: the next opening asks it.
        await self._look(program, again=again - 1)

    async def _are_equal(self) -> bool:
        return len({one.segments() for one in self._history.lists[-1].machines}) == 1

    async def _until(
        self, program: PrimaryProgram, wal: Wal, holds: Callable[[], Awaitable[bool]]
    ) -> None:
        for _ in range(_SECONDS):
            if await holds():
                return
            await asyncio.sleep(1.0)
        now = wal.statistics()
        troubles = [one.trouble for one in now.copies]
        text = f"led by {program.machine.name}: {troubles}, {now.last_scrub}"
        raise ReplicaViolationError("whole", text)

    async def _open(self, program: PrimaryProgram) -> Wal:
        """Open the log; StorageUnavailableError if nobody may lead it, as two copies were put back."""
        history = self._history
        may_take_long = history.plan.grows or history.is_damaged
        for left in reversed(range(_ATTEMPTS if may_take_long else 1)):
            try:
                return await program.open()
            except (StorageUnavailableError, FencedError) as error:
                says_so = "are needed" in str(error) or "were acknowledged" in str(error)
                if history.rollbacks > 1 and says_so:  # nobody leads
                    raise
                if not left or isinstance(error, FencedError):
                    raise self._unhealed(program, error) from error
            except DAMAGE as error:
                if not history.is_damaged:
                    raise self._unhealed(program, error) from error
                raise
        raise AssertionError("no attempt")

    def _unhealed(self, program: PrimaryProgram, error: WalError) -> ReplicaViolationError:
        return ReplicaViolationError("heals", f"{program.process}: {error!r}")

    def _machine_at(self, address: str) -> Machine:
        return next(one for one in self._history.machines if str(one.address) == address)
