"""GroupHistory: members of one group in several processes, over a bad network, on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable
from random import Random
from typing import Any, Final
from unittest.mock import patch

from tests.frames import batch_of, build
from tests.sim.cloud.network import Network, SimStore, World
from tests.sim.cloud.scene import MachineClock
from tests.sim.collections.history import InlineWorker
from tests.sim.groups import plan as plans
from tests.sim.groups.plan import GroupPlan
from tests.sim.groups.truth import GroupTruth, GroupViolationError
from tests.sim.loop import OUTSIDE, Process, SimLoop, StuckError
from tests.sim.rules import ViolationError
from tests.sim.surroundings import quiet
from uploader import CloudLog
from uploader.format import layout
from uploader.format.cloud_cursor import CloudCursor
from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.fragments.fragment_builder import encode_fragment
from uploader.layouts import log_session
from uploader.positions.groups.cloud_groups import CloudGroups
from uploader.root import stored_document
from uploader.stores.port import StoredObject
from uploader.stores.retry import RetryPolicy
from walstore import Group, Job
from walstore.errors import (
    LeaseExpiredError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalClosedError,
)
from walstore.positions.groups.delay import NOT_BEFORE, not_before_us
from walstore.records import Record

URL: Final = "sim://group"
_TROUBLES: Final = (StorageUnavailableError, OutcomeUnknownError)
_KEYS: Final = (None, b"k", b"l", b"m")


class GroupStore(SimStore):
    """The port for one program; what happens to the group is checked."""

    def __init__(self, history: GroupHistory, process: Process) -> None:
        super().__init__(history.world, URL, process)
        self._history = history

    async def put_if_absent(self, key: str, data: bytes) -> str:
        self._note(key, data)
        return await super().put_if_absent(key, data)

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        self._note(key, data)
        return await super().put_if_match(key, data, etag)

    def _note(self, key: str, data: bytes) -> None:
        if key == layout.group_path("g"):
            self._history.truth.send(data, self._history.loop.time())

    def _put(self, key: str, data: bytes) -> str:
        etag = super()._put(key, data)
        history = self._history
        try:
            if key == layout.group_path("g"):
                history.truth.change(data, history.loop.time())
            elif key.startswith(layout.CURSOR_FOLDER):
                history.check_cursor(key, data)
        except ViolationError as violation:
            history.violate(violation)
        return etag


class Letters:
    """Where dead letters go: they arrive, or fail, or are lost."""

    def __init__(self, history: GroupHistory) -> None:
        self._history = history

    async def append(self, value: bytes, **options: Any) -> int:
        await asyncio.sleep(0.05)
        offset = int(options["headers"]["walstore.offset"])
        if self._history.random.random() < 0.2 and not self._history.is_ending:
            raise StorageUnavailableError("not now", outcome="not_written", retriable=True)
        self._history.truth.asked.add(offset)
        self._history.happened["dead letters"] += 1
        return offset


class GroupHistory:
    """One history."""

    def __init__(self, plan: GroupPlan) -> None:
        self.plan = plan
        self.random = Random(f"group history {plan.seed}")
        self.loop = SimLoop(self.random, shuffles=True, most_turns=3_000_000)
        self.world = World(
            self.random,
            self.loop,
            Network(),
            etags_of_content=plan.etags_of_content,
            page=1000,
            shuffles=False,
            probes=False,
            lies=False,
            watch=self.note,
        )
        self._delayed = Random(f"delays {plan.seed}")
        streams = [self.random.choice([None, "a", "b"]) for _ in range(plan.jobs)]
        self.records = [
            Record(
                at,
                b"%d" % at,
                self.random.choice(_KEYS),
                stream,
                self._delays(),
                timestamp_us=at,
            )
            for at, stream in enumerate(streams, 1)
        ]
        jobs = [one for one in self.records if plan.stream in (None, one.stream)]
        self.truth = GroupTruth(plan, {one.offset: one.key for one in jobs} or {0: None})
        self.trace: list[tuple[float, str, str]] = []
        self.violation: ViolationError | None = None
        self.happened: Counter[str] = Counter(
            dict.fromkeys(
                ["jobs", "acks", "kills", "redelivered", "dead letters", "cancelled", "delayed"], 0
            )
        )
        self.is_ending = False

    def _delays(self) -> dict[str, bytes]:
        """Return the headers of a job: now and then it is due later."""
        if self._delayed.random() >= self.plan.delays:
            return {}
        moment = 1_750_000_000_000_000 + round(self._delayed.uniform(0, 300) * 1e6)
        return {NOT_BEFORE: b"%d" % moment}

    def note(self, who: Process, text: str) -> None:
        self.trace.append((self.loop.time(), who.name, text))

    def check_cursor(self, key: str, data: bytes) -> None:
        """Check that a cursor holds all that its group may want."""
        name = layout.parse_cursor_path(key)
        document = self.truth.document
        if document is None or document.is_removed or not name.endswith(document.made):
            return
        cursor = CloudCursor.parse(data, name=name)
        if not cursor.is_removed and cursor.position > document.floor:
            raise GroupViolationError("cursor", f"{cursor.position} > {document.floor}")

    def run(self) -> None:
        """Run to the end; raises the violation that was found."""
        ids = Random(f"ids {self.plan.seed}")
        with (
            quiet(),
            patch.object(log_session, "SharedWorker", InlineWorker),
            patch.object(stored_document, "SharedWorker", InlineWorker),
            patch.object(CloudGroups, "make_group_tag", lambda _: ids.randbytes(8).hex()),
        ):
            asyncio.set_event_loop(self.loop)
            try:
                self.loop.run_until_complete(self._direct())
            except StuckError as error:
                raise GroupViolationError("ends", str(error)) from error
            finally:
                asyncio.set_event_loop(None)
                self.loop.close()
        if self.violation is not None:
            raise self.violation
        # What is left of processes that were killed.
        left = ("asynchronous generator", "never retrieved: WalClosedError(")
        complaints = [one for one in self.loop.complaints if not any(map(one.__contains__, left))]
        if not self.happened["kills"]:
            complaints = self.loop.complaints
        if complaints:
            raise GroupViolationError("typed-errors", complaints[0])

    async def _direct(self) -> None:
        plan = self.plan
        self._put_log()
        programs = [f"p{number}" for number in range(plan.processes)]
        slots = [asyncio.create_task(self._lives(name)) for name in programs]
        grows = asyncio.create_task(self._grow())
        self.world.network = Network(**plan.faults)
        await asyncio.wait([*slots, grows])
        if self.violation is None:
            self.world.network = Network()
            await asyncio.sleep(8000)  # what is under way arrives
            self.is_ending = True
            last = GroupProgram(self, "last")
            await asyncio.wait([self.loop.spawn(last.process, self.guarded(last.finish()), "last")])
        if self.violation is None and max(self.truth.keys):
            try:
                self.truth.end()
            except ViolationError as violation:
                self.violate(violation)

    async def _lives(self, name: str) -> None:
        for life in range(self.plan.lives):
            program = GroupProgram(self, f"{name}.{life}")
            task = self.loop.spawn(program.process, self.guarded(program.work()), name)
            if self.random.random() < self.plan.kills:
                seconds = self.random.choice([0.2, 1.0, 5.0, 30.0])
                await asyncio.wait([task], timeout=self.random.uniform(0, seconds))
                if not task.done():
                    self.loop.kill(program.process)
                    self.happened["kills"] += 1
                    self.note(OUTSIDE, f"{program.process} is killed")
            else:
                await asyncio.wait([task])
            if self.violation is not None:
                return

    async def guarded(self, call: Awaitable[Any]) -> None:
        try:
            await call
        except ViolationError as violation:
            self.violate(violation)
        except Exception as error:  # noqa: BLE001
            found = GroupViolationError("typed-errors", f"a program got {error!r}")
            found.__cause__ = error
            self.violate(found)

    def violate(self, violation: ViolationError) -> None:
        if self.violation is None and violation.rule not in self.plan.ignored:
            self.violation = violation
            self.note(OUTSIDE, f"VIOLATION {violation}")

    # -- the log -----------------------------------------------------------------------------

    def _put_log(self) -> None:
        """Put the first fragment; the others follow."""
        count = self.plan.fragments
        size = max(1, -(-len(self.records) // count))
        self._pieces = [self.records[at : at + size] for at in range(0, len(self.records), size)]
        self._entries: list[Fragment] = []
        self._add_fragment()

    def _add_fragment(self) -> None:
        seq_no = len(self._entries) + 1
        encoded = encode_fragment([batch_of(build(self._pieces[seq_no - 1]))], timestamp_us=99)
        self._store(layout.fragment_path(seq_no), encoded.data)
        self._entries.append(encoded.entry(seq_no))
        manifest = Manifest.initial("w").apply_fragments(self._entries, "w")
        self._store(layout.MANIFEST, manifest.serialise())

    def _store(self, key: str, data: bytes) -> None:
        etag = f"log-{len(self._entries)}-{key}"
        self.world.bucket(URL).objects[key] = StoredObject(data, etag)

    async def _grow(self) -> None:
        while len(self._entries) < len(self._pieces):
            await asyncio.sleep(self.random.choice([0.0, 0.5, 3.0, 20.0]))
            self._add_fragment()


class GroupProgram:
    """One process with members of the group."""

    def __init__(self, history: GroupHistory, name: str) -> None:
        self.history = history
        self.plan = history.plan
        self.random = history.random
        self.truth = history.truth
        self.process = Process(name)
        self.clock = MachineClock(history.loop, self.random, leaps=False)

    async def work(self) -> None:
        for _ in range(3):
            with contextlib.suppress(*_TROUBLES):
                async with self._open() as log:
                    members = [self._member(log, number) for number in range(self.plan.members)]
                    await asyncio.gather(*members)
                    if self.plan.deletes and self.random.random() < 0.3:
                        await log.delete_group("g")
                        self.history.happened["deletions"] += 1
                return

    async def finish(self) -> None:
        """Handle what is left, over a network without faults."""
        async with self._open() as log, self._group(log) as group:
            while jobs := await group.fetch(
                100, max_wait_seconds=3 * self.plan.ack_wait_seconds + 10
            ):
                for job in jobs:
                    self._note(job, group)
                    self.truth.asked.add(job.offset)
                await self._ack(job.ack() for job in jobs)
                for job in jobs:
                    self.truth.acknowledge(job.offset, _made(job.group))
            await asyncio.sleep(10)
            found = await group.statistics()
            if found.unsettled or found.lag:
                raise GroupViolationError("all", f"{found}")

    def _open(self) -> Any:
        attempts = self.random.choice([1, 2, 5])
        return CloudLog.open(
            URL,
            store=GroupStore(self.history, self.process),
            clock=self.clock,
            retry=RetryPolicy(clock=self.clock, attempts=attempts, jitter=self.random.random),
        )

    def _group(self, log: CloudLog) -> Group:
        return log.group(
            "g",
            stream=self.plan.stream,
            ack_wait_seconds=self.plan.ack_wait_seconds,
            max_deliver=self.plan.max_deliver,
            max_ack_pending=self.plan.max_ack_pending,
            ordered=self.plan.is_ordered,
            letters=self._letters(),
        )

    def _letters(self) -> Letters:
        if "letters" not in self.process.__dict__:
            self.process.__dict__["letters"] = Letters(self.history)
        letters: Letters = self.process.__dict__["letters"]
        return letters

    async def _member(self, log: CloudLog, number: int) -> None:
        with contextlib.suppress(WalClosedError):  # the group was deleted
            async with self._group(log) as group:
                try:
                    for _ in range(self.random.choice([1, 5, 20])):
                        await self._step(group)
                finally:  # what a member has is given back when it leaves
                    self.truth.leave(_made(group), self._had(group))

    async def _step(self, group: Group) -> None:
        random = self.random
        most = random.choice([1, 1, 3, 20])
        max_wait_seconds = random.choice([0.0, 0.5, 5.0, 30.0])
        try:
            jobs = await self._call(group.fetch(most, max_wait_seconds))
        except _TROUBLES:
            return
        for job in jobs or ():
            self._note(job, group)
        for job in jobs or ():
            with contextlib.suppress(LeaseExpiredError, *_TROUBLES):
                await self._handle(job)

    def _note(self, job: Job, group: Group) -> None:
        self.history.happened["jobs"] += 1
        self.history.happened["redelivered"] += job.deliveries > 1
        is_early = (not_before_us(job.headers) or 0) > self.clock.now_us() + 1000
        if is_early and self.truth.leases[job.offset] == 1:  # later ones: by other clocks
            raise GroupViolationError("delay", f"{job.offset} comes early")
        self.history.happened["delayed"] += NOT_BEFORE in job.headers
        self.truth.deliver(job.offset, job.deliveries, _made(group))
        self._had(group).append((job.offset, job.deliveries))

    def _had(self, group: Group) -> list[tuple[int, int]]:
        """Return what a member got so far."""
        had: dict[Group, list[tuple[int, int]]] = self.process.__dict__.setdefault("had", {})
        return had.setdefault(group, [])

    async def _handle(self, job: Job) -> None:
        random, wait = self.random, self.plan.ack_wait_seconds
        await asyncio.sleep(random.choice([0.0, 0.0, 0.1, wait / 2, wait * 1.2]))
        ways = [
            "ack",
            "ack",
            "ack",
            "ack",
            "nak",
            "late",
            "term",
            "nothing",
            "more",
            "error",
            "bury",
        ]
        match random.choice(ways):
            case "ack" | "term":
                self.truth.asked.add(job.offset)
                call = self._ack([job.ack()])
                if await self._call(call) is True:
                    self.truth.acknowledge(job.offset, _made(job.group))
                    self.history.happened["acks"] += 1
            case "nak":
                self.truth.given_back.add((job.offset, job.deliveries))
                await self._call(job.nak())
            case "late":
                self.truth.given_back.add((job.offset, job.deliveries))
                await self._call(job.nak(delay_seconds=random.uniform(0, 10)))
            case "error":
                self.truth.given_back.add((job.offset, job.deliveries))
                await self._call(job.nak(error=ValueError("bad")))
            case "bury":
                self.truth.given_back.add((job.offset, job.deliveries))
                await self._call(job.term("bad"))
            case "more":
                await self._call(job.in_progress())

    async def _ack(self, acks: Any) -> bool:
        calls = list(acks)
        await asyncio.gather(*calls)
        return True

    async def _call(self, call: Any) -> Any:
        """Make a call, or cancel it on the way."""
        task = asyncio.ensure_future(call)
        if self.random.random() >= self.plan.cancels:
            return await task
        await asyncio.wait([task], timeout=self.random.choice([0.0, 0.01, 0.1, 0.3]))
        if not task.done():
            self.history.happened["cancelled"] += 1
            task.cancel()
        await asyncio.wait([task])
        return None if task.cancelled() else task.result()


def _made(group: Group) -> str:
    """Return which of the groups that had its name a member is in."""
    backend: Any = group.backend
    made: str = backend._known.made
    return made


def happenings(history: GroupHistory) -> Counter[str]:
    """Return how often what happened."""
    return history.happened


def simulate(seed: int, **changes: Any) -> GroupHistory:
    """Run the history of a seed; raises ViolationError."""
    history = GroupHistory(plans.draw(seed).replace(**changes))
    history.run()
    return history
