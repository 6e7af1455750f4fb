"""CursorQueue: changes the cursors of one log on their files, for one process, in rounds.

One task makes the changes; it runs only while there are requests. Requests made during a round are done
together in the next, under one lock and with one sync of the directory.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from walstore.core.ports import Clock, FileSystem
from walstore.core.runtime.backoff import Backoff
from walstore.core.runtime.threads import Lane
from walstore.errors import WalClosedError, WalError, WalLockedError
from walstore.positions.cursor_state import CursorState
from walstore.positions.cursors.directory import (
    CursorTable,
    HeldCursors,
    describe_cursor,
    hold_cursors,
)
from walstore.positions.queue import CursorRequest, RequestQueue, stopped

logger = logging.getLogger("walstore.cursors")

_T = TypeVar("_T")

Act = Callable[[CursorTable], _T]
"""Reads, compares and writes cursors while nothing else does; raises WalError or OSError."""

PATIENCE_SECONDS: Final = 30.0
"""How long to wait for the lock of the cursors; each holder has it for milliseconds."""


class CursorQueue(RequestQueue):
    """Does what is requested on the files of the cursors."""

    def __init__(
        self,
        *,
        fs: FileSystem,
        clock: Clock,
        worker: Callable[[], Lane],
        directory: Path,
        owner: str,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """``worker()`` returns the lane for blocking calls; ``owner`` names this process in the lock.

        ``check()`` is called on that lane before a round, and again while the lock is held; it may refuse.
        """
        super().__init__(directory)
        self._directory = directory
        self._fs = fs
        self._clock = clock
        self._worker = worker
        self._owner = owner
        self._check = check
        # What is known to be durable. Belongs to the round in progress, on its thread.
        self._synced: dict[str, CursorState] = {}

    async def _drain(self) -> None:
        try:
            while taken := self._take():
                await self._round(taken)
        except BaseException:
            # The whole event loop is being stopped.
            left, self._requests = self._requests, []
            for request in left:
                request.begin()
                request.end(WalClosedError("the event loop is stopping"))
            raise
        finally:
            self._draining = None

    async def _round(self, requests: Sequence[CursorRequest[object]]) -> None:
        self.rounds += 1
        acts = [request.begin() for request in requests]
        outcomes: Sequence[object | BaseException]
        try:
            outcomes = await patiently(self._clock, lambda: self._worker().run(self._perform, acts))
        except Exception as error:
            if not isinstance(error, WalError):
                logger.exception("a defect while cursors of %s were changed", self._directory)
            outcomes = [error] * len(requests)
        except BaseException:
            for request in requests:
                request.end(stopped())
            raise
        for request, outcome in zip(requests, outcomes, strict=True):
            request.end(outcome)

    def _perform(self, acts: Sequence[Act[object]]) -> list[object | WalError]:
        """Do all acts under the lock. One that fails does not prevent the others."""
        self._check()
        try:
            with hold_cursors(
                self._fs, self._directory, owner=self._owner, synced=self._synced
            ) as held:
                self._check()
                outcomes = [self._try(act, held) for act in acts]
                try:
                    held.sync()
                except WalError as error:
                    outcomes = [
                        found if isinstance(found, WalError) else error for found in outcomes
                    ]
                return outcomes
        except OSError as error:
            raise describe_cursor(error, self._directory, "not_written") from error

    def _try(self, act: Act[object], held: HeldCursors) -> object | WalError:
        try:
            return act(held)
        except WalError as error:
            return error
        except OSError as error:
            return describe_cursor(error, self._directory, "not_written")


async def patiently(
    clock: Clock, attempt: Callable[[], Awaitable[_T]], *, seconds: float = PATIENCE_SECONDS
) -> _T:
    """Return what ``attempt()`` returns, trying again while the cursors are locked by others.

    Raises WalLockedError (retriable) when they still are after ``seconds``.
    """
    deadline = clock.monotonic() + seconds
    backoff = Backoff(first_seconds=0.0005, longest_seconds=0.005)
    while True:
        try:
            return await attempt()
        except WalLockedError as error:
            if clock.monotonic() >= deadline:
                busy = WalLockedError(
                    f"the cursors at {error.path} are held by {error.owner or 'another process'} "
                    f"for more than {seconds:g} s; check whether that process is stopped",
                    path=error.path,
                    owner=error.owner,
                )
                busy.retriable = True
                raise busy from error
        await clock.sleep(backoff.next_seconds())
