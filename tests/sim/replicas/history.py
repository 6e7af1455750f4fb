"""ReplicaHistory: machines with copies of one log, and programs that are its primary in turn, or at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final, NamedTuple
from unittest.mock import patch

from tests.sim.disk import Disk
from tests.sim.files import SimFileSystem
from tests.sim.loop import OUTSIDE, PROCESS, Process, SimLoop, StuckError
from tests.sim.replicas import plan as plans
from tests.sim.replicas.network import SimClient
from tests.sim.replicas.plan import ReplicaPlan
from tests.sim.rules import ViolationError
from tests.sim.surroundings import Nobody, SimClock, abandon_all, quiet, where
from tests.sim.threads import simulated_threads
from tests.sim.weather import Weather
from walstore import Replication, Settings, Wal
from walstore.append import upkeep
from walstore.errors import (
    CorruptionError,
    DiskFullError,
    FencedError,
    OffsetMismatchError,
    OffsetTrimmedError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalClosedError,
    WalError,
    WalLockedError,
)
from walstore.files.directory import PROMISE_NAME, SYNCED_NAME
from walstore.format.checkpoint import decode_cell
from walstore.format.frame import parse_header
from walstore.format.segment import HEADER_BYTES
from walstore.replication import primary as primaries
from walstore.replication.node import ReplicaNode
from walstore.topology.documents import PREFIX, SYNCED, Synced
from walstore.topology.memory import MemoryClient, MemoryKeyValues
from walstore.wire.address import Address

REPLICA_RULES: Final = {
    "acknowledged": "what was acknowledged is in the log of every later primary, in its place",
    "current": "what a primary says of the present has all that was acknowledged before it was asked",
    "seen": "what a reader saw is in the log of every later primary, in its place",
    "one-epoch": "no two primaries have the same epoch",
    "not-written": "what was reported as not written is never in the log",
    "once": "a value that was appended once is in the log once",
    "kept": "what was acknowledged before a copy was put back is on the disk of a machine in the end",
    "equal": "in the end all copies have the same log",
    "heals": "once all is well, a primary can be opened",
    "ends": "every call ends",
    "typed-errors": "calls raise WalError with an outcome, and asyncio has nothing to complain about",
}
_FREE_BYTES: Final = 1 << 40
_PATIENCE_SECONDS: Final = 2.0
_LOG: Final = "orders"
_DIRECTORY: Final = Path(f"/{_LOG}")
_MARKS: Final = f"{PREFIX}{SYNCED}{_LOG}"
_EXPECTED = (
    StorageUnavailableError,
    OutcomeUnknownError,
    FencedError,
    WalClosedError,
    DiskFullError,
)


class ReplicaViolationError(ViolationError):
    """A rule was broken."""

    rules: ClassVar[Mapping[str, str]] = REPLICA_RULES


class Machine:
    """A disk, and the process that uses it: a node, or a primary."""

    def __init__(self, history: ReplicaHistory, number: int) -> None:
        self.history = history
        self.number = number
        self.name = f"m{number}"
        self.address = Address("unix", f"/{self.name}.sock")
        self._is_cut_off = False
        self._keys: MemoryClient | None = None
        self.node: ReplicaNode | None = None
        self.requests: deque[Callable[[], Any]] = deque()
        self.lives = 0
        self.backup: dict[Path, bytes] = {}
        """The files of its copy at an earlier time."""
        self.replace_disk()
        self.process = Process(f"{self.name}.0")
        self.program: PrimaryProgram | None = None

    @property
    def is_cut_off(self) -> bool:
        """Whether the other machines do not reach it, nor it the topology. Programs on it go on."""
        return self._is_cut_off

    @is_cut_off.setter
    def is_cut_off(self, value: bool) -> None:
        self._is_cut_off = value
        if self._keys is not None:
            self._keys.cut_off = value

    def topology(self) -> MemoryClient | None:
        """Return a new client of the store that the machines share, if there is one."""
        if self.history.plan.has_topology:
            self._keys = self.history.store.client(self.name)
            self._keys.cut_off = self._is_cut_off
        return self._keys

    def replace_disk(self) -> None:
        """Put a new, empty disk in."""
        seed = f"disk {self.history.plan.seed} {self.number} {self.lives}"
        self.disk = Disk(Random(seed))
        self.weather = Weather(Random(f"weather {seed}"))
        self.weather.rate = self.history.plan.rate

    def files(self) -> dict[Path, bytes]:
        """Return the files of its copy as they are now."""
        names = self.disk.names.items()
        return {path: bytes(node.data) for path, node in names if path.parent == _DIRECTORY}

    def file_system(self, process: Process) -> SimFileSystem:
        return SimFileSystem(self.disk, self.weather, process, Nobody(), _FREE_BYTES)

    def new_process(self, what: str) -> Process:
        self.lives += 1
        self.node = None
        self.requests.clear()
        self.process = Process(f"{self.name}.{self.lives} {what}")
        return self.process

    def kill(self) -> None:
        """End its process at once."""
        if self.process.is_alive:
            self.history.note(OUTSIDE, f"{self.process} is killed")
            self.history.loop.kill(self.process)
        self.node = None

    def begin_requests(self) -> None:
        """Begin what arrived, in order, as tasks of the node's process."""
        while self.requests:
            work = self.requests.popleft()
            self.history.loop.spawn(self.process, self.history.guarded(work()), "request")

    async def serve(self) -> None:
        """Be a node from now on."""
        process = self.new_process("node")

        async def open_it() -> None:
            self.node = await ReplicaNode.open(
                "/", fs=self.file_system(process), clock=self.history.clock
            )

        await asyncio.wait(
            [self.history.loop.spawn(process, self.history.guarded(open_it()), "node")]
        )


class CopyList(NamedTuple):
    """Which machines have copies."""

    generation: int
    machines: tuple[Machine, ...]
    joined: Mapping[Machine, int]
    """When those came into the list that were not in it from the beginning."""


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
            patch.object(primaries, "client_of", client_of),
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
        self._promote(self.machines[0])
        for _ in range(self.plan.rounds):
            await asyncio.sleep(self.random.choice([0.05, 0.5, 2.0, 5.0]))
            await self._act(self.random.choice(self.plan.acts))
            if self.violation is not None:
                return
        await self._heal()

    async def _act(self, act: str) -> None:
        of_list = self.plan.grows and act in ("promote", "usurp")
        machine = self.random.choice(self.lists[-1].machines if of_list else self.machines)
        self.note(OUTSIDE, f"{act} {machine.name}")
        self.happened[act] += 1
        match act:
            case "kill" | "power" | "replace" | "roll back":
                machine.kill()
                await self._change_disk(machine, act)
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
                self._promote(machine)
            case "old list":
                # A program that read the list before it was changed, and stood still since.
                self._promote(machine, self.random.choice(self.lists))
            case "exchange":
                await self._exchange()
            case "back up":
                machine.backup = machine.files()
            case "read a copy":
                if machine.node is not None and _LOG in machine.node.logs:
                    reading = self.guarded(self._read_copy(machine, machine.node))
                    self.loop.spawn(machine.process, reading, "reader of a copy")

    async def _change_disk(self, machine: Machine, act: str) -> None:
        if act == "power":
            machine.disk.lose_power()
        if act == "roll back":
            self._roll_back(machine)
        if act == "replace":
            await self._replace(machine)

    async def _read_copy(self, machine: Machine, node: ReplicaNode) -> None:
        """Read what a copy shows now: that stays, whoever leads."""
        try:
            log = await node.log(_LOG)
            position, limit = log.head, log.limit
            while position < limit:
                for batch in await log.read(position, limit, 1 << 20):
                    for record in batch.records():
                        self.learn("seen", record.offset, record.value)
                    position = batch.limit
        except (*_EXPECTED, OffsetTrimmedError) as error:
            self.note(machine.process, f"a copy is not read: {error!r:.90}")
        else:
            self.happened["copies read"] += 1
            self.happened["read at copies"] += limit - log.head

    def _roll_back(self, machine: Machine) -> None:
        """Put a copy back from an older state, if what others know of it suffices to notice.

        With a store: its mark shows that this is an older state, or all that is known is in the marks.
        Without one, another machine knows all of it to be replicated, which is noted a little later.
        """
        others = [one for one in self.machines if one is not machine]
        if self.plan.has_topology:
            is_known = self._is_marked(machine)
        else:
            holders = [one for one in others if _floor_of(one) > max(self.known, default=0)]
            is_known = not self.rollbacks and 0 < len(holders) < len(others)
            if machine.backup and is_known:  # who has all is away when the next primary is opened
                for one in holders:
                    one.is_cut_off = True
                    self.loop.call_later(15.0, setattr, one, "is_cut_off", False)
        if machine.backup and is_known:
            machine.disk.put_back(_DIRECTORY, machine.backup)
            self.kept = dict(self.known)
            self.rollbacks += 1
            self.happened["rolled back"] += 1

    def _is_marked(self, machine: Machine) -> bool:
        found = self.store.get(_MARKS)
        if found is None:
            return False
        marks = Synced.decode(found.value, _MARKS)
        if _limit_of(machine.backup) < marks.limits.get(str(machine.address), 0):
            return True
        is_newest = marks.epoch >= max(self.epochs, default=0)
        return is_newest and max(marks.limits.values()) > max(self.known, default=0)

    def _check_kept(self) -> None:
        """Look for what was known before a copy was put back: on some disk each of it has to be."""
        disks = [data for one in self.machines for data in one.files().values()]
        lost = [at for at, value in self.kept.items() if not any(value in one for one in disks)]
        if lost:
            self.violate(ReplicaViolationError("kept", f"{lost[:5]} of {len(lost)}"))

    async def _exchange(self) -> None:
        """Put another machine into the list, as the allocator does: all but the one that leaves are there.

        The primary goes on with the old list until it is killed, or another one takes over.
        """
        now = self.lists[-1]
        for _ in range(50):
            await asyncio.sleep(0.2)
            leader, present = self._leader()
            if leader is None and self._may_be_lost(now) and self.random.random() < 0.2:
                self._give_up_new_one(now)
                return
            if leader is None or self.lists[-1] is not now:
                continue
            spare = [one for one in self.machines if one not in now.machines]
            doomed = [one for one in now.machines if one is not leader]
            absent = [one for one in doomed if one not in present]
            if len(absent) > 1 or not (spare or self.plan.grows):
                continue
            news = self._new_of_two(now)
            if leader in news and absent:
                continue  # the other one is needed
            gone, new = self._exchanged(now, doomed, absent, spare)
            machines = self._change_list(now, gone, new)
            others = [one for one in machines if one not in (leader, new)]
            if others and self.random.random() < 0.5:
                # Another copy falls behind before the new list is used.
                behind = self.random.choice(others)
                behind.is_cut_off = True
                self.loop.call_later(1.0, setattr, behind, "is_cut_off", False)
            await asyncio.sleep(self.random.choice([0.0, 0.3, 1.0]))
            leader.kill()
            if "heals" in self.plan.ignored and len(machines) == 2 < len(now.machines):
                leader.replace_disk()  # the other one may lack what this and the one given up had
                self.happened["disks lost"] += 1
            if self.random.random() < 0.5:
                self._promote(leader)
            else:
                leader.is_cut_off = True
                self.loop.call_later(3.0, setattr, leader, "is_cut_off", False)
                await leader.serve()
                self._promote(new or machines[-1])
            return

    def _exchanged(
        self, now: CopyList, doomed: list[Machine], absent: list[Machine], spare: list[Machine]
    ) -> tuple[Machine | None, Machine | None]:
        """Return who leaves the list of copies, and who comes, or None."""
        if self._new_of_two(now) and not absent:
            return None, None  # the same two, as equals
        if self.plan.grows:
            return self._grown_or_less(doomed, absent, spare)
        gone, new = (absent or [self.random.choice(doomed)])[0], self.random.choice(spare)
        resizes = self.plan.resizes > 0 and self.random.random() < self.plan.resizes
        if resizes and len(now.machines) > self.plan.copies:
            return gone, None  # one copy less
        return (None, new) if resizes and not absent else (gone, new)

    def _grown_or_less(
        self, doomed: list[Machine], absent: list[Machine], spare: list[Machine]
    ) -> tuple[Machine | None, Machine | None]:
        """Return who leaves a list of one to three copies, and who comes, of which one may be None."""
        gone = (absent or [self.random.choice(doomed)])[0] if doomed else None
        new = self.random.choice(spare) if spare else None
        share = self.random.random()
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
        self.lists.append(CopyList(generation, machines, joined))
        self.note(OUTSIDE, f"the copies are {[one.name for one in machines]} now")
        self.happened["exchanged" if len(machines) == len(now.machines) else "resized"] += 1
        self.happened[f"{len(now.machines)} to {len(machines)}"] += 1
        return machines

    def _may_be_lost(self, now: CopyList) -> bool:
        """Whether the list has two copies of which one is new, which is given up by hand if nobody leads."""
        news = self._new_of_two(now)
        return bool(news) and all(self._is_whole(one) for one in now.machines if one not in news)

    def _new_of_two(self, now: CopyList) -> list[Machine]:
        """Return the one of two copies that is new beside one that is not."""
        news = [one for one, at in now.joined.items() if at == now.generation]
        return news if self.plan.grows and (len(now.machines), len(news)) == (2, 1) else []

    def _give_up_new_one(self, now: CopyList) -> None:
        (gone,) = [one for one, at in now.joined.items() if at == now.generation]
        spare = [one for one in self.machines if one not in now.machines]
        self._change_list(now, gone, self.random.choice([None, *spare]))
        self.happened["given up while nobody led"] += 1

    def _leader(self) -> tuple[Machine | None, list[Machine]]:
        """Return who leads with the newest list, as the newest primary says, and which others are there."""
        for machine in self.machines:
            program = machine.program
            if program is None or program.wal is None or not machine.process.is_alive:
                continue
            if program.list is self.lists[-1] and not program.wal.is_closing:
                if program.wal.statistics().epoch < max(self.epochs):
                    continue
                copies = program.wal.statistics().copies
                there = {copy.address for copy in copies if copy.is_present}
                return machine, [one for one in self.machines if str(one.address) in there]
        return None, []

    async def _replace(self, doomed: Machine) -> None:
        """Lose a disk while a primary has brought all others up to date, and not otherwise."""
        before = self.happened["acknowledged"]
        for _ in range(100):
            await asyncio.sleep(0.2)
            others = [one for one in self.lists[-1].machines if one is not doomed]
            if self.plan.grows and not self._may_lose(doomed):
                continue
            ends = {self._end_of(one) if self._is_whole(one) else None for one in others}
            if len(ends) == 1 and None not in ends and self.happened["acknowledged"] >= before:
                doomed.replace_disk()
                self.happened["disks lost"] += 1
                return

    def _may_lose(self, doomed: Machine) -> bool:
        """Whether the log can be led without this disk: not with one of two copies, but for the new one."""
        now = self.lists[-1]
        is_new = now.joined.get(doomed) == now.generation
        is_spared = len(now.machines) > 2 or doomed not in now.machines or is_new
        return is_spared or "heals" in self.plan.ignored

    def _is_whole(self, machine: Machine) -> bool:
        """Whether a machine's copy counts: else it is as good as lost, too."""
        inode = machine.disk.names.get(Path(f"/{_LOG}/{PROMISE_NAME}"))
        return inode is not None and b'"whole": true' in inode.data

    def _end_of(self, machine: Machine) -> Any:
        """Return the bytes of the copy's files; None if there are none."""
        files = {
            path.name: bytes(inode.data).rstrip(b"\0")
            for path, inode in machine.disk.names.items()
            if path.name.endswith(".wal")
        }
        return tuple(sorted(files.items())) or None

    async def _restart(self, machine: Machine) -> None:
        if self.random.random() < 0.5 and not any(
            one.node is None for one in self.machines if one is not machine
        ):
            self._promote(machine)
        else:
            await machine.serve()

    def _promote(self, machine: Machine, copies: CopyList | None = None) -> None:
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

    async def _heal(self) -> None:
        """Let all be well, and look at the log with each machine as the primary."""
        for machine in self.machines:
            machine.is_cut_off = False
            machine.weather.clear()
            machine.kill()
            await machine.serve()
        self._check_kept()
        self.plan = self.plan.replace(breaks=0.0)
        logs = []
        for machine in self.lists[-1].machines:
            machine.kill()
            process = machine.new_process("last")
            program = PrimaryProgram(self, machine, process, self.lists[-1])
            task = self.loop.spawn(process, self.guarded(program.look(logs)), "last")
            await asyncio.wait([task])
            if self.violation is not None or self.happened["undecided"]:
                return
            machine.kill()
            await machine.serve()
        if any(log != logs[0] for log in logs):
            self.violate(ReplicaViolationError("equal", f"{[len(log) for log in logs]} records"))


class PrimaryProgram:
    """A program that opens the log as its primary."""

    def __init__(
        self, history: ReplicaHistory, machine: Machine, process: Process, copies: CopyList
    ) -> None:
        self.list = copies
        self.wal: Wal | None = None
        self.history = history
        self.machine = machine
        self.process = process
        self.random = history.random

    def _open(self) -> Any:
        history, plan = self.history, self.history.plan
        others = [one for one in self.list.machines if one is not self.machine]
        joined = {str(one.address): self.list.joined.get(one, 0) for one in others}
        return Wal.open(
            f"/{_LOG}",
            settings=Settings(segment_bytes=plan.segment_bytes),
            replication=Replication(
                nodes=list(joined),
                replicas=len(self.list.machines),
                quorum=min(
                    len(self.list.machines), max(plan.quorum, len(self.list.machines) // 2 + 1)
                ),
                name=_LOG,
                generation=self.list.generation,
                joined=joined,
                joined_here=self.list.joined.get(self.machine, 0),
                patience_seconds=_PATIENCE_SECONDS,
                topology=self.machine.topology(),
                address=str(self.machine.address) if plan.has_topology else "",
                lease_seconds=1,
            ),
            fs=self.machine.file_system(self.process),
            clock=history.clock,
        )

    async def run(self) -> None:
        """Append until the log fails, or it was enough."""
        history = self.history
        for _ in range(3):
            try:
                wal = await self._open()
                break
            except (*_EXPECTED, WalLockedError) as error:
                history.note(self.process, f"open: {error!r}")
                history.happened["refused"] += 1
            except CorruptionError as error:
                if not history.rollbacks or "two histories" not in str(error):
                    raise
                history.happened["two histories"] += 1
                return
        else:
            return
        history.happened["opened"] += 1
        self.wal = wal
        try:
            try:
                await self._check(wal)
            except _EXPECTED:
                assert history.plan.rate
                return
            producers = [self._produce(wal) for _ in range(history.plan.producers)]
            await asyncio.gather(*producers, self._read(wal), self._ask(wal))
        finally:
            with contextlib.suppress(WalError):
                await wal.aclose()

    async def look(self, logs: list[dict[int, bytes]]) -> None:
        """Open the log when all is well, and note all of it."""
        for left in reversed(range(40 if self.history.plan.grows else 1)):
            try:
                wal = await self._open()
                break
            except (StorageUnavailableError, FencedError, CorruptionError) as error:
                # The second copy may be made in several attempts, each with its patience.
                if left and isinstance(error, StorageUnavailableError):
                    continue
                says_so = "are needed" in str(error) or "were acknowledged" in str(error)
                if self.history.rollbacks > 1 and says_so:  # nobody leads
                    self.history.happened["undecided"] += 1
                    return
                raise ReplicaViolationError("heals", f"{self.process}: {error!r}") from error
        logs.append(await self._check(wal))
        await wal.aclose()

    async def _check(self, wal: Wal) -> dict[int, bytes]:
        history = self.history
        epoch = wal.statistics().epoch
        if epoch in history.epochs:
            raise ReplicaViolationError("one-epoch", f"{epoch}")
        history.epochs.add(epoch)
        async with wal.reader(follow=False) as reader:
            found = {record.offset: record.value async for record in reader}
        history.note(self.process, f"opened in epoch {epoch}: {len(found)} records")
        history.compare(found, wal.head)
        for offset, value in found.items():
            history.learn("seen", offset, value)
        return found

    async def _produce(self, wal: Wal) -> None:
        history, random = self.history, self.random
        for _ in range(random.choice([5, 30, 100])):
            history.values += 1
            value = b"%d " % history.values + b"." * random.choice([1, 100, 3000])
            try:
                if random.random() < 0.1:
                    async with wal.transaction() as transaction:
                        offset = await transaction.append(value)
                        await transaction.append(b"t" + value)
                    offset = None
                else:
                    offset = await wal.append(value)
            except _EXPECTED as error:
                if not self._failed(value, error):
                    return
                continue
            if offset is not None:
                history.learn("acknowledged", offset, value)
                history.happened["acknowledged"] += 1
            await asyncio.sleep(random.choice([0.0, 0.001, 0.05]))

    def _failed(self, value: bytes, error: WalError) -> bool:
        """Note what is known of an append that failed; return whether to go on."""
        history = self.history
        if error.outcome == "not_written":
            history.refused.add(value)
            history.happened["not written"] += 1
        else:
            history.happened["unknown"] += 1
        if isinstance(error, FencedError):
            history.happened["fenced"] += 1
        history.note(self.process, f"append {value[:10]!r}: {error!r:.90}")
        return isinstance(error, StorageUnavailableError) and error.retriable

    async def _ask(self, wal: Wal) -> None:
        """Ask what is now, also while others have taken over."""
        history, random = self.history, self.random
        while not wal.is_closing:
            await asyncio.sleep(random.choice([0.01, 0.1, 0.5]))
            known = max(history.known, default=0)
            try:
                if known and random.random() < 0.5:
                    await wal.append_many([b"never"], expect_offset=1)
                    raise ReplicaViolationError("current", "the log was taken for empty")
                await wal.refresh()
                now = wal.visible_limit
            except OffsetMismatchError as error:
                now = error.actual or 0
            except _EXPECTED:
                history.happened["not confirmed"] += 1
                continue
            history.happened["confirmed"] += 1
            if now <= known:
                text = f"it ends at {now}, and {known} was acknowledged before"
                raise ReplicaViolationError("current", text)

    async def _read(self, wal: Wal) -> None:
        """Follow the log: what a reader sees stays."""
        try:
            async with wal.reader() as reader:
                while True:
                    batch = await reader.fetch(max_wait=3.0)
                    if not len(batch):
                        return
                    for record in batch.records():
                        self.history.learn("seen", record.offset, record.value)
        except WalError:
            return


def _floor_of(machine: Machine) -> int:
    cell = decode_cell(machine.files().get(_DIRECTORY / SYNCED_NAME, b""))
    return 0 if cell is None else cell.visible_limit


def _limit_of(files: Mapping[Path, bytes]) -> int:
    """Return the offset after the last record in files of a copy."""
    segments = [path for path in files if path.suffix == ".wal"]
    if not segments:
        return 0
    newest = max(segments)
    view, at, limit = memoryview(files[newest]), HEADER_BYTES, int(newest.stem)
    while (header := parse_header(view, at)) is not None:
        at, limit = header.end, header.limit
    return limit


def happenings(history: ReplicaHistory) -> Counter[str]:
    """Return how often what happened."""
    return history.happened


def simulate(seed: int, **changes: Any) -> ReplicaHistory:
    """Run the history of a seed; raises ViolationError."""
    history = ReplicaHistory(plans.draw(seed).replace(**changes))
    history.run()
    return history


__all__ = ["REPLICA_RULES", "ReplicaHistory", "happenings", "simulate"]
