"""ReadyAnswer: an answer that is there already, and a coroutine like one that is asked for elsewhere."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Generic, NoReturn, TypeVar

_T = TypeVar("_T")


class ReadyAnswer(Coroutine[Any, Any, _T], Generic[_T]):
    """Base of such answers: ``await log.statistics()`` is right wherever the log is.

    ``asyncio.gather``, ``create_task`` and ``TaskGroup`` take it as they take a coroutine. Other than one, it
    may be awaited again. The subclass is what it answers: ``class Numbers(ReadyAnswer["Numbers"])``.
    """

    __slots__ = ()
    # By identity: gather() keeps what it is given in a dict, also an answer that is one itself.
    __hash__ = object.__hash__

    def __await__(self) -> Generator[Any, None, Any]:
        yield from ()
        return self

    def send(self, value: Any, /) -> NoReturn:
        """Not for callers: ends with the answer, as a coroutine does."""
        raise StopIteration(self)

    def throw(self, error: Any, *_: Any) -> NoReturn:
        """Not for callers: raises the error, such as a cancellation before the first step."""
        raise error

    def close(self) -> None:
        """Not for callers: does nothing, as an answer may be left alone."""
