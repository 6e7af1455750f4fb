"""The parent of a soak: starts, kills and restarts its processes, and checks what they wrote."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from uploader import CloudLog, CloudTier, CloudWriter, Scrubber
from walstore import Wal
from walstore.care.verify import verify_directory
from walstore.cli.child_process import LatencySamples, child_process, receive
from walstore.cli.soak import child
from walstore.cli.soak.child import MOST_PROBLEMS, STREAMS, Checker, SoakJob
from walstore.errors import OffsetTrimmedError, WalError

_START_SECONDS: Final = 60.0
_END_SECONDS: Final = 120.0
"""How long writers may take to close, and readers to read the rest."""
_PAUSE_SECONDS: Final = 0.1
_LONG_LIFE: Final = 8
"""Seconds that a process must live before the growth of its memory is reported."""


@dataclass(slots=True)
class Actor:
    """One role, over all lives of its process."""

    role: str
    numbers: tuple[int, ...]
    """Of a reader: the next numbers of the streams."""
    position: int = 1
    """Of a reader: its next offset."""
    life: int = 0
    process: asyncio.subprocess.Process | None = None
    is_open: bool = False
    """Whether the process works."""
    is_over: bool = False
    """It needs no further life."""
    asked_life: int = 0
    """The life that was last asked to close the log; 0 is none."""
    rss: list[list[int]] = field(default_factory=list)
    """Resident bytes, looked at once a second, of each life."""

    def kill(self) -> bool:
        """End a life with SIGKILL; return whether there was one."""
        if self.process is None or self.process.returncode is not None:
            return False
        self.process.kill()
        return True

    def is_closed(self) -> bool:
        """Ask a writer to close the log; return whether it has."""
        if self.is_open and self.process is not None and self.process.returncode is None:
            # Only once: a second signal may come after the process took its handler away.
            if self.asked_life != self.life:
                self.process.terminate()
            self.asked_life = self.life
        return self.is_over

    def look(self) -> None:
        """Note how much memory the process has while it works, where the system reports it."""
        if not self.is_open or self.process is None:
            return
        try:
            statm = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii")
        except OSError:
            return
        if pages := int(statm.split()[1]):  # else it has just ended
            self.rss[-1].append(pages * os.sysconf("SC_PAGE_SIZE"))


class Soak:
    """One run."""

    def __init__(self, plan: SoakJob, place: Path, *, seconds: float, kill_seconds: float) -> None:
        """The stderr of the processes goes to a file in ``place``; no kills if ``kill_seconds`` is 0."""
        self._plan = plan
        self._words = place / "processes.log"
        self._seconds = seconds
        self._kill_seconds = kill_seconds or float("inf")
        self._chance = random.Random(plan.seed)
        first = plan.numbers
        self._writers = [Actor(role, first) for role in plan.writers]
        self._readers = [Actor(role, first) for role in plan.readers]
        self._actors = [*self._writers, *self._readers, Actor("collector", first)]
        self._stop = asyncio.Event()
        self._working = asyncio.Event()
        # By stream: the next number that is in the log for certain, the one behind the append under
        # way, and the one behind all that was ever tried.
        self._known, self._pending, self._tried = list(first), list(first), list(first)
        self._latencies = LatencySamples()
        self._counts: Counter[str] = Counter()
        self._kills: Counter[str] = Counter()
        self._problems: list[str] = []

    async def run(self, stop: asyncio.Event, say: Callable[[str], None]) -> dict[str, Any]:
        """Run until the time is over, ``stop`` is set or something is wrong; then check everything.

        Returns the fields of ``walstore soak --json``. Raises the errors of a place that cannot be used.
        """
        self._stop = stop
        await self._create()
        async with asyncio.TaskGroup() as group:
            for actor in self._actors:
                group.create_task(self._keep(actor))
            watching = group.create_task(self._watch(say))
            seconds = await self._load()
            await self._until(self._writers, Actor.is_closed, "did not close the log")
            async with CloudLog.open(self._plan.url) as log:
                tail = log.tail
            await self._until(
                self._readers, lambda one: one.position >= tail, f"did not get to offset {tail}"
            )
            for actor in self._actors:
                actor.is_over = True
                actor.kill()
            watching.cancel()
        say("checking all that is stored")
        return self.report(seconds, tail, await self._check(tail))

    # -- processes ---------------------------------------------------------------------------

    async def _create(self) -> None:
        """Make an empty log, and the cursors before anything can be collected."""
        plan = self._plan
        if plan.directory is None:
            async with CloudWriter.open(plan.url, layout=plan.layout):
                pass
        else:
            tier = CloudTier(plan.url, layout=plan.layout)
            async with Wal.open(plan.directory, settings=child.SETTINGS, tier=tier) as wal:
                await wal.cursor("disk", start="earliest")
        async with CloudLog.open(plan.url) as log:
            for role in plan.readers:
                if role != "disk":
                    await log.cursor(role, start=1)

    async def _keep(self, actor: Actor) -> None:
        """Give a role one life after another."""
        while not actor.is_over:
            code = await self._live(actor)
            if code == child.TRY_AGAIN:
                self._counts["failures"] += 1
                await asyncio.sleep(_PAUSE_SECONDS)
            elif code not in {0, -signal.SIGKILL}:
                actor.is_over = True
                self._complain(f"{actor.role} ended, code {code}: {self._last_words()}")

    async def _live(self, actor: Actor) -> int:
        """Run a process, take all its messages, and return its exit code."""
        actor.life += 1
        position, numbers = await self._place(actor)
        plan = dataclasses.replace(
            self._plan, role=actor.role, life=actor.life, position=position, numbers=numbers
        )
        with self._words.open("ab") as words:
            running = child_process(
                "walstore.cli.soak.child", dataclasses.asdict(plan), stderr=words
            )
            async with running as process:
                actor.process, actor.is_open = process, False
                actor.rss.append([])
                if actor.is_over:  # since it was decided to start it
                    actor.kill()
                assert process.stdout is not None
                async for kind, *items in receive(process.stdout):
                    self._take(actor, kind, items)
                return await process.wait()

    async def _place(self, actor: Actor) -> tuple[int, tuple[int, ...]]:
        """Return the position at which a process begins; pins it for a writer until it has read the log."""
        while True:
            ahead = max(self._readers, key=lambda one: one.position)
            reader = actor if actor in self._readers else ahead
            place = reader.position, reader.numbers
            if actor not in self._writers or self._plan.directory or actor.is_over:
                return place
            try:
                async with CloudLog.open(self._plan.url) as log:
                    try:
                        pin = await log.cursor(
                            actor.role, start=place[0], lease_seconds=_END_SECONDS
                        )
                        await pin.rewind(place[0])
                    except (
                        OffsetTrimmedError
                    ):  # the readers have gone on, perhaps beyond an old pin
                        await log.cursors.delete(actor.role)
                        continue
                    return place
            except WalError as error:
                if not child.may_pass(error):
                    raise
                self._counts["failures"] += 1
                await asyncio.sleep(_PAUSE_SECONDS)

    def _take(self, actor: Actor, kind: str, items: list[Any]) -> None:
        if kind == child.BEGUN:
            stream, self._pending[stream] = items
            self._tried[stream] = max(self._tried[stream], items[1])
        elif kind == child.ACKNOWLEDGED:
            stream, limit, took_us = items
            self._counts["acknowledged"] += limit - self._known[stream]
            self._known[stream] = limit
            self._latencies.add((took_us,))
            self._working.set()
        elif kind == child.READ:
            actor.position, actor.numbers = items[0], tuple(items[1])
            self._counts[actor.role] += items[2]
        elif kind == child.FOUND:
            self._settle(actor, items[0])
        elif kind == child.OPENED:
            actor.is_open = True
        elif kind == child.COLLECTED:
            self._counts["collections"] += 1
            self._counts["objects"] += items[0]
        elif kind == child.CLOSED:
            actor.is_over = True

    def _settle(self, writer: Actor, numbers: list[int]) -> None:
        """Compare what a restarted writer finds in the log with what was acknowledged before."""
        for stream in self._plan.own_streams(writer.role):
            found, known, counts = numbers[stream], self._known[stream], self._counts
            counts["unknown"] += max(0, self._pending[stream] - known)
            counts["landed"] += max(0, found - known)
            if found < known and self._plan.durability == "memory":
                counts["taken_back"] += known - found
            elif found < known:
                self._complain(
                    f"stream {stream} ended before record {found} when {writer.role} was restarted; "
                    f"all before {known} were acknowledged"
                )
            elif found > self._tried[stream]:
                self._complain(f"nobody appended record {found - 1} of stream {stream}")
            self._known[stream] = self._pending[stream] = found

    def _last_words(self) -> str:
        lines = self._words.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1].removeprefix("walstore: ") if lines else "it said nothing"

    def _complain(self, text: str) -> None:
        """Note something that is wrong; the soak ends then."""
        if len(self._problems) < MOST_PROBLEMS and text not in self._problems:
            self._problems.append(text)
        self._stop.set()
        self._working.set()

    # -- the load ----------------------------------------------------------------------------

    async def _load(self) -> float:
        """Kill processes, writers twice as often, until the time is over; return the seconds of work."""
        await self._wait(self._working, _START_SECONDS)
        begin = time.monotonic()
        while (left := begin + self._seconds - time.monotonic()) > 0 and not self._stop.is_set():
            pause = self._kill_seconds * self._chance.uniform(0.5, 1.5)
            await self._wait(self._stop, min(pause, left))
            if pause < left and not self._stop.is_set():
                target = self._chance.choice([*self._writers, *self._actors])
                self._kills[target.role] += target.kill()
        return time.monotonic() - begin

    async def _wait(self, event: asyncio.Event, seconds: float) -> None:
        """Wait for the event, but only so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    async def _until(
        self, actors: list[Actor], is_done: Callable[[Actor], bool], what: str
    ) -> None:
        """Wait for all of them. One that is not done in time is killed, which is a problem."""
        end = time.monotonic() + _END_SECONDS
        while late := [one for one in actors if not (one.is_over or is_done(one))]:
            await asyncio.sleep(_PAUSE_SECONDS)
            for actor in late if time.monotonic() > end else ():
                self._complain(f"{actor.role} {what} in time: {self._last_words()}")
                actor.is_over = True
                actor.kill()

    async def _watch(self, say: Callable[[str], None]) -> None:
        """Look at the processes' memory, and show the progress."""
        while True:
            for actor in self._actors:
                actor.look()
            read = min(one.position for one in self._readers) - 1
            say(
                f"{self._counts['acknowledged']} acknowledged, {read} read by all, "
                f"{self._kills.total()} kills, {self._counts['collections']} collections"
            )
            await asyncio.sleep(1)

    # -- the end -----------------------------------------------------------------------------

    async def _check(self, tail: int) -> int:
        """Compare all accounts of the log and check every stored byte; return the log's head."""
        plan, head = self._plan, tail
        if not self._counts["acknowledged"]:
            self._complain("nothing was appended")
        if self._appended != tail - 1:
            self._complain(f"{self._appended} records were written, the log ends at {tail}")
        for reader in self._readers:
            self._compare(reader.role, reader.numbers)
        try:
            if plan.directory is not None:
                verified = await asyncio.to_thread(verify_directory, plan.directory)
                for problem in verified.problems:
                    self._complain(f"verify: {problem}")
            async with CloudLog.open(plan.url) as log:
                await log.verify()
                head = log.head
                checker = Checker(plan.seed, head, [0] * len(STREAMS))
                async for batch in log.reader(head, stop=log.tail).batches():
                    checker.take(batch)
            for text in checker.problems:
                self._complain(f"the log at the end: {text}")
            self._compare("the log at the end", checker.numbers)
            async with Scrubber.open(plan.url) as scrubber:
                for finding in (await scrubber.scrub()).errors:
                    self._complain(f"scrub: {finding}")
        except WalError as error:
            self._complain(f"what was written cannot be read back: {error}")
        return head

    @property
    def _appended(self) -> int:
        """Number of records that are certainly in the log."""
        return sum(self._known) - len(self._known)

    def _compare(self, who: str, numbers: Sequence[int]) -> None:
        """Compare the next numbers that were read; 0 where none was seen."""
        for stream, (read, written) in enumerate(zip(numbers, self._known, strict=True)):
            if read not in {0, written}:
                self._complain(
                    f"{who}: stream {stream} goes to record {read - 1}, {written - 1} were written"
                )

    def report(self, seconds: float, tail: int, head: int) -> dict[str, Any]:
        """Return the result; docs/cli.md describes the fields."""
        plan, counts = self._plan, self._counts
        p50, p99, p999 = (self._latencies.milliseconds(percent) for percent in (50, 99, 99.9))
        return {
            "ok": not self._problems,
            **{name: getattr(plan, name) for name in ("seed", "layout", "durability", "directory")},
            "store_url": plan.url.partition("?")[0],
            "seconds": round(seconds, 3),
            "appended": self._appended,
            "acknowledged": counts["acknowledged"],
            "read": {role: counts[role] for role in plan.readers},
            "unknown_written": counts["landed"],
            "unknown_not_written": counts["unknown"] - counts["landed"],
            "taken_back": counts["taken_back"],
            "kills": dict(self._kills),
            "failures": counts["failures"],
            "collections": counts["collections"],
            "collected_objects": counts["objects"],
            "head": head,
            "tail": tail,
            "records_per_second": round(counts["acknowledged"] / max(seconds, 1e-3), 1),
            "p50_ms": p50,
            "p99_ms": p99,
            "p999_ms": p999,
            "rss_bytes": {
                one.role: max(map(max, filter(None, one.rss)), default=0) for one in self._actors
            },
            "rss_growth_bytes": {
                role: seen[-1] - seen[len(seen) // 4]
                for role, seen in (
                    (one.role, max(one.rss, key=len, default=[])) for one in self._actors
                )
                if len(seen) >= _LONG_LIFE
            },
            "problems": self._problems,
        }
