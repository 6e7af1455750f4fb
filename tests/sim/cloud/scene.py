"""Scene: what the programs of one process share, its clock and its calls, and how those are judged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from tests.sim.cloud.ledger import CloudViolationError, Entry, Ledger
from tests.sim.cloud.network import SimStore
from tests.sim.loop import Process, SimLoop
from uploader import CloudLog
from uploader.stores.retry import RetryPolicy
from walstore.errors import (
    CollectionRefusedError,
    ContentionError,
    FencedError,
    LogNotFoundError,
    LogSealedError,
    OffsetMismatchError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalClosedError,
    WalError,
)

if TYPE_CHECKING:
    from tests.sim.cloud.history import CloudHistory

_T = TypeVar("_T")


class MachineClock:
    """Of one machine: some minutes off, and set now and then. Its monotonic time is right."""

    def __init__(self, loop: SimLoop, random: Random, *, leaps: bool) -> None:
        self._loop = loop
        self._random = random
        self._leaps = leaps
        self._off_us = round(random.uniform(-120, 120) * 1e6)

    def now_us(self) -> int:
        if self._leaps and self._random.random() < 0.01:
            self._off_us = round(self._random.uniform(-120, 120) * 1e6)
        return 1_750_000_000_000_000 + self._off_us + round(self._loop.time() * 1e6)

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


MOST_OFF_SECONDS = 300.0
"""More than two clocks differ."""


class Scene:
    """One process, and the log it uses."""

    def __init__(self, history: CloudHistory, process: Process, ledger: Ledger, end: str) -> None:
        self.history = history
        self.process = process
        self.ledger = ledger
        self.end = end
        self.plan = history.plan
        self.random = history.random
        self.clock = MachineClock(history.loop, self.random, leaps=self.plan.leaps)
        self.is_ending = False
        """Whether calls may fail because the log is closed."""
        self.cancels = self.plan.cancels
        """Share of appends that are cancelled on the way."""
        self._troubles = history.world.troubles
        self._was_begun = ledger.is_begun

    @property
    def url(self) -> str:
        return self.ledger.name

    def retry(self) -> RetryPolicy:
        return RetryPolicy(clock=self.clock, attempts=self.random.choice([2, 3, 5]))

    def store(self, url: str | None = None) -> SimStore:
        return SimStore(self.history.world, url or self.url, self.process)

    def options(self) -> dict[str, Any]:
        """Return what everything that opens a log takes."""
        return {"store": self.store(), "retry": self.retry(), "clock": self.clock}

    def trace(self, text: str) -> None:
        self.history.note(self.process, text)

    async def pause(self, *seconds: float) -> None:
        await asyncio.sleep(self.random.choice(seconds or (0, 0, 0.01, 0.3, 5.0)))

    def size(self) -> int:
        if self.random.random() < self.plan.large:
            return self.random.randint(2000, 5000)
        return self.random.choice([20, 60, 300])

    def submit(self, sizes: list[int], expect: int | None = None) -> Entry:
        return self.ledger.submit(self.history.number(), sizes, expect)

    async def call(self, what: str, call: Awaitable[_T], entry: Entry | None = None) -> _T | None:
        """Make a call, an append maybe cancelled; write down what became of it. None without a result."""
        task = asyncio.ensure_future(call)
        if entry is not None and self.random.random() < self.cancels:
            delay = self.random.choice([0, 0.01, 0.1, 1.0])
            asyncio.get_running_loop().call_later(delay, task.cancel)
        self.trace(f"{what} …")
        try:
            result = await task
        except asyncio.CancelledError:
            if entry is not None:
                self.ledger.lost_sight(entry)
            self.trace(f"{what} was cancelled")
            if task.cancelled() and not asyncio.current_task().cancelling():  # type: ignore[union-attr]
                return None
            raise
        except WalError as error:
            self.trace(f"{what}: {type(error).__name__} {error.outcome}: {error}")
            if entry is not None:
                self.ledger.failed(entry, error)
            self.judge(what, error)
            return None
        except CloudViolationError:
            raise
        except Exception as error:
            raise CloudViolationError("typed-errors", f"{what} raised {error!r}") from error
        self.trace(f"{what} -> {_shown(result)}")
        return result

    def judge(self, what: str, error: WalError) -> None:
        """Check that an error has a cause."""
        ledger = self.ledger
        if isinstance(error, StorageUnavailableError | OutcomeUnknownError):
            is_right = self.history.world.troubles > self._troubles or self.is_ending
            is_right |= ledger.may_be_destroyed
        elif isinstance(error, LogSealedError):
            is_right = ledger.may_be_sealed
        elif isinstance(error, LogNotFoundError):
            is_right = ledger.may_be_destroyed or not self._was_begun
        elif isinstance(error, WalClosedError):
            is_fenced = self.plan.ships and error.reason == "fenced"
            is_right = is_fenced or (self.is_ending and error.reason == "clean")
        elif isinstance(error, ContentionError):
            is_right = self.history.is_shared
        else:
            is_right = isinstance(error, OffsetMismatchError | CollectionRefusedError | FencedError)
        if not is_right:
            raise CloudViolationError("fails-for-a-cause", f"{what} raised {error!r}") from error

    async def open_log(self) -> CloudLog | None:
        """Open the log for reading; check that it is not older than what is known."""
        since = self.ledger.floor()
        log = await self.call(
            "open for reading", _opened(CloudLog.open(self.url, **self.options()))
        )
        if log is not None:
            self.ledger.looked(log.head, log.tail, since)
            self.ledger.is_begun = True
        return log


async def _opened(opening: Any) -> Any:
    return await opening


def _shown(result: object) -> str:
    """Return what a trace says of a result; no address, which is another one each time."""
    return repr(result).partition(" object at ")[0][:200]
