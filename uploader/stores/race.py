"""Chooses between two answers to a hedged request. Knows neither when nor why the second one was sent.

A read is settled by the first answer that is not a transient fault. A put-if-absent is settled by

* a success: the object is ours;
* two failures: if either put may have happened the outcome is unknown, else a refusal was about another
  writer's object;
* the object itself, once one request was refused while the other is unanswered: other bytes are another
  writer's. Equal bytes may be ours or not, so the other request gets some more time to answer; after that
  the outcome is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from uploader.runtime.task_groups import task_group
from uploader.stores.errors import PreconditionFailedError
from uploader.stores.port import StoredObject
from uploader.stores.retry import is_transient
from walstore.errors import CorruptionError, StorageUnavailableError, WalError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Answer(Generic[_T]):
    """What a request returned, or the error it ended with."""

    value: _T | None
    error: WalError | None = None

    def get(self) -> _T:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return cast("_T", self.value)

    @property
    def is_final(self) -> bool:
        """Whether the answer is final: anything but a transient fault."""
        return self.error is None or not is_transient(self.error)

    @property
    def is_refusal(self) -> bool:
        """Whether a put was refused because the object exists."""
        return isinstance(self.error, PreconditionFailedError)

    @property
    def may_have_happened(self) -> bool:
        """Whether a put that failed may have happened."""
        return self.error is not None and self.error.outcome != "not_written"


async def ask(request: Callable[[], Awaitable[_T]]) -> Answer[_T]:
    """Make a request and return its answer; raises nothing that a store may raise."""
    try:
        return Answer(await request())
    except WalError as error:
        return Answer(None, error)


async def settle_read(
    first: asyncio.Task[Answer[_T]],
    second: asyncio.Task[Answer[_T]],
    _pause: Callable[[], Awaitable[None]],
) -> Answer[_T]:
    """Return the first final answer; the first request's if both had transient faults."""
    pending = {first, second}
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in (first, second):
            if task in done and task.result().is_final:
                return task.result()
    return first.result()


async def settle_put(
    first: asyncio.Task[Answer[str]],
    second: asyncio.Task[Answer[str]],
    pause: Callable[[], Awaitable[None]],
    *,
    look: Callable[[], Awaitable[StoredObject]],
    data: bytes,
) -> Answer[str]:
    """Return what became of ``data``, which both try to put if absent.

    ``look`` reads the object; CorruptionError if that is longer than ``data``.
    """

    async def is_theirs() -> bool:
        """Return whether another writer's object is there; False only after the pause."""
        found = await ask(look)
        is_longer = isinstance(found.error, CorruptionError)
        if is_longer or (found.error is None and found.get().data != data):
            return True
        await pause()
        return False

    judging: asyncio.Task[bool] | None = None
    waiting: set[asyncio.Task[Answer[str]] | asyncio.Task[bool]] = {first, second}
    async with task_group() as group:
        while True:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            waiting -= done
            answers = [task.result() for task in (first, second) if task.done()]
            answer = _decide(answers)
            if answer is None and judging is None:
                if answers[0].is_refusal:
                    judging = group.create_task(is_theirs())
                    waiting.add(judging)
            elif answer is None and judging is not None and judging.done():
                answer = answers[0] if judging.result() else _OPEN
            if answer is not None:
                if judging is not None:
                    judging.cancel()
                return answer


_OPEN: Answer[str] = Answer(
    None,
    StorageUnavailableError(
        "an object of the same content is there, but which request put it is not known",
        outcome="unknown",
    ),
)


def _decide(answers: list[Answer[str]]) -> Answer[str] | None:
    """Decide the outcome of a put from its one or two answers; None: it needs the other answer."""
    for answer in answers:
        if answer.error is None:
            return answer
    if len(answers) < 2:
        return None
    for answer in answers:
        if answer.may_have_happened:
            return answer
    return next((answer for answer in answers if answer.is_refusal), answers[0])
