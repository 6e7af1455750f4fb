"""LastSequence: what a producer of an open log returned as a number, and returns when it is called."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable
from functools import partialmethod
from typing import Any, Final, Self

_OPERATIONS: Final = (
    *("eq", "ne", "lt", "le", "gt", "ge", "add", "radd", "sub", "rsub", "mod", "rmod"),
    *("int", "bool", "repr", "str", "format"),
)


class LastSequence(int):
    """The number of a producer's newest append: call it and await that. Used as a number it warns."""

    _ask: Callable[[], Awaitable[int]]

    def __new__(cls, number: int, ask: Callable[[], Awaitable[int]]) -> Self:
        """``ask`` returns what it is when it is called."""
        made = super().__new__(cls, number)
        made._ask = ask
        return made

    async def __call__(self) -> int:
        """Return the number."""
        return await self._ask()

    __hash__ = int.__hash__


def _warned(number: LastSequence, operation: str, *others: object) -> Any:
    warnings.warn(
        "Producer.last_sequence becomes what that of a served log is: await producer.last_sequence()",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(int, operation)(number, *others)


for _name in (f"__{operation}__" for operation in _OPERATIONS):
    setattr(LastSequence, _name, partialmethod(_warned, _name))
