"""The parent of walstore prove: runs rounds, each in a process of its own, until the time is over."""

from __future__ import annotations

import asyncio
import dataclasses
import shlex
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from uploader import CloudWriter
from uploader.stores import open_store
from walstore import Wal
from walstore.cli.child_process import child_process, receive
from walstore.cli.prove.round_process import BROKEN, COUNTS
from walstore.cli.prove.trials import BUCKET_TRIALS, DIRECTORY_TRIALS, RoundPlan, Trial

_ROUND_SECONDS: Final = 600.0
"""A round that takes longer hangs, which is an error."""
WORDS: Final = "processes.log"
"""Name of the file with the stderr of the rounds."""


@dataclass(frozen=True, slots=True)
class ProvePlan:
    """Where to run rounds, and which."""

    location: str
    """As it was given."""
    place: Path
    """An empty directory for the files of the rounds."""
    url: str | None
    """Below it are the objects of the rounds; None if the rounds are in the directory."""
    seed: int
    """Of the first round; each following one has the next."""
    seconds: float
    kinds: tuple[str, ...]

    @property
    def trials(self) -> Mapping[str, Trial]:
        """All kinds of rounds that there are for such a place."""
        return DIRECTORY_TRIALS if self.url is None else BUCKET_TRIALS


@dataclass(slots=True)
class Tried:
    """What was tried so far."""

    rounds: Counter[str] = field(default_factory=Counter)
    """Complete rounds of each kind."""
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    """What the rounds of each kind did, also the last one."""
    last_seed: int | None = None
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    rule: str | None = None
    """The one that was broken."""
    repeat: str | None = None
    """The command that runs the round again in which a rule was broken."""
    evidence: str | None = None
    """Where its files are."""
    is_interrupted: bool = False
    has_objects: bool = False
    """Whether something may be left below the URL."""


class Prove:
    """One run."""

    def __init__(self, plan: ProvePlan) -> None:
        self._plan = plan
        self._words = plan.place / WORDS
        self.tried = Tried()

    async def prepare(self) -> None:
        """Append a record where the rounds will be; the errors of the log or the store if that fails."""
        if self._plan.url is None:
            log = self._plan.place / "first"
            async with Wal.open(log) as wal:
                await wal.append(b"first", durability="disk")
            await asyncio.to_thread(shutil.rmtree, log)
        else:
            async with CloudWriter.open(_below(self._plan.url, "first")) as writer:
                self.tried.has_objects = True
                await writer.append(b"first")
            await remove_objects(_below(self._plan.url, "first"))

    async def run(self, stop: asyncio.Event, say: Callable[[str], None]) -> Tried:
        """Run rounds until the time is over, ``stop`` is set, or a rule is broken; at least one.

        A round that ``stop`` interrupts does not count. OSError, or the errors of the store, if the place
        cannot be used any more.
        """
        tried, plan = self.tried, self._plan
        begin, number = time.monotonic(), 0
        while not (stop.is_set() or tried.problems):
            kind = plan.kinds[number % len(plan.kinds)]
            say(self._progress(kind, plan.seed + number))
            await self._run_round(kind, plan.seed + number, stop)
            number += 1
            tried.seconds = time.monotonic() - begin
            if tried.seconds >= plan.seconds:
                break
        tried.is_interrupted = stop.is_set()
        if plan.url is not None and not tried.problems:
            await remove_objects(plan.url)
            tried.has_objects = False
        return tried

    def _progress(self, kind: str, seed: int) -> str:
        total: Counter[str] = sum(self.tried.counts.values(), Counter())
        return (
            f"{kind}, seed {seed}: {self.tried.rounds.total()} rounds, {total['kills']} kills, "
            f"{total['acknowledged']} acknowledged, {total['checked']} records checked"
        )

    async def _run_round(self, kind: str, seed: int, stop: asyncio.Event) -> None:
        directory = self._plan.place / f"{kind}-{seed}"
        await asyncio.to_thread(directory.mkdir)
        url = None if self._plan.url is None else _below(self._plan.url, directory.name)
        plan = RoundPlan(kind, seed, str(directory), url)
        counts, broken = await self._hear(plan, stop)
        if counts is None and broken is None:  # interrupted
            await self._remove(directory, url)
            return
        self.tried.last_seed = seed
        self.tried.counts.setdefault(kind, Counter()).update(counts or {})
        if broken is None:
            self.tried.rounds[kind] += 1
            await self._remove(directory, url)
            return
        self.tried.problems.append(f"{kind}, seed {seed}: {broken}")
        self.tried.rule = self._plan.trials[kind].rule
        self.tried.evidence = url.partition("?")[0] if url else str(directory)
        self.tried.repeat = (
            f"walstore prove {shlex.quote(self._plan.location)} --only {kind} --seed {seed}"
        )

    async def _hear(
        self, plan: RoundPlan, stop: asyncio.Event
    ) -> tuple[dict[str, int] | None, str | None]:
        """Run a round; return what it did and what was wrong, or nothing if ``stop`` came first."""
        with await asyncio.to_thread(self._words.open, "ab") as stderr:
            running = child_process(
                "walstore.cli.prove.round_process", dataclasses.asdict(plan), stderr=stderr
            )
            async with running as process, asyncio.TaskGroup() as group:
                assert process.stdout is not None
                hearing = group.create_task(_messages(process.stdout))
                stopping = group.create_task(stop.wait())
                done, _ = await asyncio.wait(
                    {hearing, stopping},
                    timeout=_ROUND_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                hearing.cancel()
                stopping.cancel()
                if hearing not in done:
                    hung = None if stopping in done else "the round did not end in time"
                    return None, hung
                found = hearing.result()
                code = await process.wait()
        if COUNTS not in found and code == -signal.SIGKILL:
            return None, "the process of the round was killed by somebody else"
        if COUNTS not in found:
            words = await asyncio.to_thread(self._last_words)
            return None, f"the process of the round ended with code {code}: {words}"
        return found[COUNTS], found.get(BROKEN)

    def _last_words(self) -> str:
        lines = self._words.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1] if lines else "it said nothing"

    async def _remove(self, directory: Path, url: str | None) -> None:
        """Remove the files and objects of a round."""
        await asyncio.to_thread(shutil.rmtree, directory)
        if url is not None:
            await remove_objects(url)


async def _messages(stdout: asyncio.StreamReader) -> dict[str, Any]:
    return {kind: item async for kind, item in receive(stdout)}


def _below(url: str, name: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path}/{name}"))


async def remove_objects(url: str) -> None:
    """Remove every object below a URL, and the directory of one that names a directory."""
    store = open_store(url)
    try:
        await store.delete([listed.key async for listed in store.list("")])
    finally:
        await store.aclose()
    if url.startswith("file:"):
        with suppress(FileNotFoundError):
            await asyncio.to_thread(shutil.rmtree, Path(unquote(urlsplit(url).path)))
