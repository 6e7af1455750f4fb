"""KeptQueue: changes the cursors that a log keeps in itself.

A request is begun at once, as an append is, so those of one moment are one change of the log; while that is
on its way to the copies, the next ones are written. A request ends when its change is on enough machines; one
that changes nothing ends when what it saw is. Requests wait only for room in the log, and those of one handle
for each other.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from walstore.core.batches.conditions import AppendConditions
from walstore.errors import WalError, WouldBlock
from walstore.positions.cursor_state import CursorInfo
from walstore.positions.cursors.kept import KeptCursors, KeptTable, setting
from walstore.positions.cursors.queue import Act
from walstore.positions.queue import CursorRequest, RequestQueue, stopped

logger = logging.getLogger("walstore.cursors")

_T = TypeVar("_T")
_Finish = Callable[[], Awaitable[None]]


class KeepingLog(Protocol):
    """What the queue needs of its log. Belongs to the event loop."""

    def change_nowait(self, conditions: AppendConditions) -> _Finish:
        """Accept a change of registers; what is returned waits until it is on enough machines.

        WouldBlock if there is no room; if this raises, nothing was changed.
        """

    async def begin_change(self, conditions: AppendConditions) -> _Finish:
        """The same, as soon as there is room."""

    async def check_current(self) -> None:
        """Return once it is certain that no other machine leads the log; StorageUnavailableError."""

    async def wait_changes(self) -> None:
        """Return when all that was accepted is on enough machines, and no other machine leads the log."""


@dataclass(slots=True)
class _Round:
    """Requests that were done in memory together."""

    requests: Sequence[CursorRequest[object]]
    outcomes: Sequence[object | BaseException]
    table: KeptTable

    @property
    def is_refusing(self) -> bool:
        """Whether a request is refused: that asserts the present."""
        return any(isinstance(outcome, BaseException) for outcome in self.outcomes)

    def end(self, error: BaseException | None = None) -> None:
        """End the requests: with what they found, or all with an error."""
        for request, outcome in zip(self.requests, self.outcomes, strict=True):
            request.end(outcome if error is None else error)


class KeptQueue(RequestQueue):
    """Does what is requested on the cursors in the log."""

    def __init__(self, log: KeepingLog, cursors: KeptCursors, directory: Path) -> None:
        """``directory`` names the log."""
        super().__init__(directory)
        self._log = log
        self._cursors = cursors
        # Done in memory, and waiting for room in the log: at most one, for which all others wait.
        self._blocked: _Round | None = None
        # Accepted in this turn of the event loop, and what waits for the copies to have the last of them.
        self._accepted: list[_Round] = []
        self._last_finish: _Finish | None = None

    def infos(self, now_us: int) -> list[CursorInfo]:
        """Return the cursors that are on enough machines, by name."""
        return self._cursors.infos(now_us)

    async def check_current(self) -> None:
        """As of :class:`RequestQueue`."""
        self._check_open()
        await self._log.check_current()

    def put(self, request: CursorRequest[_T]) -> None:
        """As of :class:`RequestQueue`; usually it is begun when this returns."""
        self._check_open()
        self._requests.append(request)  # type: ignore[arg-type]
        self._begin_some()

    def _begin_some(self) -> None:
        """Begin all that can be begun."""
        while self._draining is None and (taken := self._take()):
            self._begin(taken)
            if self._blocked is not None:
                self._wake()

    def _begin(self, requests: Sequence[CursorRequest[object]]) -> None:
        """Do requests in memory and write what that changes; without room for it they are blocked."""
        self.rounds += 1
        acts = [request.begin() for request in requests]
        try:
            with self._cursors.change() as table:
                outcomes = [_try(act, table) for act in acts]
        except Exception as error:  # noqa: BLE001 - a defect
            self._refuse(requests, error)
            return
        made = _Round(requests, outcomes, table)
        if not table.changes:
            if self._cursors.is_confirmed and not made.is_refusing:
                made.end()
            else:
                self._follow(made, self._log.wait_changes)
            return
        try:
            self._follow(made, self._log.change_nowait(setting(table.changes)))
        except WouldBlock:
            self._blocked = made
        except Exception as error:  # noqa: BLE001 - each caller gets it
            self._cursors.withdraw(table.number)
            self._refuse(made.requests, error)

    async def _drain(self) -> None:
        """Wait for room for what is blocked, and begin what came meanwhile."""
        made, self._blocked = self._blocked, None
        try:
            if made is not None:
                await self._accept(made)
        except BaseException:  # the whole event loop is being stopped
            assert made is not None
            made.end(stopped())
            raise
        finally:
            self._draining = None
        self._begin_some()

    async def _accept(self, made: _Round) -> None:
        try:
            finish = await self._log.begin_change(setting(made.table.changes))
        except Exception as error:  # noqa: BLE001 - each caller gets it
            self._cursors.withdraw(made.table.number)
            self._refuse(made.requests, error)
        else:
            self._follow(made, finish)

    def _refuse(self, requests: Sequence[CursorRequest[object]], error: Exception) -> None:
        if not isinstance(error, WalError):
            logger.error("a defect while cursors of %s were changed", self._name, exc_info=error)
        for request in requests:
            request.end(error)

    def _follow(self, made: _Round, finish: _Finish) -> None:
        """End a round when it is on enough machines, together with the others of this moment."""
        self._busy.update(request.key for request in made.requests)
        self._accepted.append(made)
        is_first, self._last_finish = self._last_finish is None, finish
        if is_first:
            self._spawn(self._finish())

    async def _finish(self) -> None:
        rounds, self._accepted = self._accepted, []
        finish, self._last_finish = self._last_finish, None
        assert finish is not None
        error: WalError | None = None
        try:
            await finish()
            self._cursors.confirm(rounds[-1].table.number)
        except WalError as caught:
            error = caught
        except BaseException:  # the whole event loop is being stopped
            for made in rounds:
                made.end(stopped())
            raise
        for made in rounds:
            self._busy.difference_update(request.key for request in made.requests)
            made.end(error)
        self._begin_some()


def _try(act: Act[object], table: KeptTable) -> object | WalError:
    try:
        return act(table)
    except WalError as error:
        return error
