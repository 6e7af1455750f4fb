"""Stage: where actors make their calls on an open log. It may cancel them, and judges how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

from tests.sim.plan import Plan
from tests.sim.rules import Book, Entry, ViolationError
from walstore import Wal
from walstore.errors import (
    DiskFullError,
    ExpectationError,
    FencedError,
    OutcomeUnknownError,
    RecordTooLargeError,
    StorageUnavailableError,
    StreamClosedError,
    WalClosedError,
    WalError,
    WalLockedError,
    WouldBlock,
)

_T = TypeVar("_T")
STREAMS = ("red", "green", "blue")


class Stage:
    """An open log, the book, and what actors need besides."""

    def __init__(
        self, wal: Wal, book: Book, plan: Plan, random: Random, trace: Callable[[str], None]
    ) -> None:
        self.wal = wal
        self.book = book
        self.plan = plan
        self.random = random
        self.trace = trace
        self.is_ending = False
        """Whether calls may fail because the log closes."""
        self.may_fail: Callable[[], bool] = lambda: True
        """Whether the disk gave a reason to fail."""
        self.is_hindered: Callable[[], bool] = lambda: True
        """Whether it refused what data does not depend on."""

    @property
    def keeps(self) -> bool:
        """Whether durable readers see only what no crash takes back."""
        return self.plan.sync != "os"

    async def pause(self) -> None:
        await asyncio.sleep(self.random.choice([0, 0, 0, 1e-4, 1e-3, 5e-3]))

    def size(self) -> int:
        random = self.random
        if random.random() < self.plan.large:
            return random.randint(2000, 9000)
        return random.choice([20, 60, 200, 600])

    async def call(self, what: str, call: Awaitable[_T], entry: Entry | None = None) -> _T | None:
        """Make a call, maybe cancel it; write down what became of it. None if there is no result."""
        if entry is not None:
            entry.tries += 1
        task = asyncio.ensure_future(call)
        if self.random.random() < self.plan.cancels:
            delay = self.random.choice([0, 0, 2e-5, 2e-4, 1e-3, 1e-2])
            asyncio.get_running_loop().call_later(delay, task.cancel)
        self.trace(f"{what} …")
        try:
            result = await task
        except asyncio.CancelledError:
            if entry is not None:
                self.book.lost_sight(entry)
            self.trace(f"{what} was cancelled")
            if task.cancelled() and not asyncio.current_task().cancelling():
                return None
            raise
        except WalError as error:
            self.trace(f"{what}: {type(error).__name__} {error.outcome}: {error}")
            self.judge(what, error)
            if entry is not None:
                self.book.failed(entry, error)
            return None
        except Exception as error:
            raise ViolationError("typed-errors", f"{what} raised {error!r}") from error
        self.trace(f"{what} -> {result!r}")
        return result

    def judge(self, what: str, error: WalError) -> None:
        """Check that an error has a cause."""
        if isinstance(
            error,
            ExpectationError
            | FencedError
            | StreamClosedError
            | WouldBlock
            | WalLockedError
            | RecordTooLargeError,
        ):
            return
        disk = isinstance(error, StorageUnavailableError | OutcomeUnknownError | DiskFullError)
        if isinstance(error, WalClosedError) and error.reason != "failed" and self.is_ending:
            return
        if (disk or isinstance(error, WalClosedError)) and self.may_fail():
            return
        if disk and self.is_hindered() and not {"trim", "rotate"}.isdisjoint(what.split()):
            return
        raise ViolationError("fails-for-a-cause", f"{what} raised {error!r}") from error


async def succeeds(call: Awaitable[Any]) -> bool:
    await call
    return True
