"""Owned: a handle of one event loop, whose methods refuse other threads, event loops and child processes.

The rule is written once: making a class that inherits from this one puts the check before each of its
coroutines and asynchronous generators that users may call. A new method has it without a line of its own.
Methods without ``async`` check themselves where they change something; making an object, and looking, is
allowed anywhere.
"""

from __future__ import annotations

import functools
import inspect
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Final, NoReturn, TypeVar

from walstore.core.runtime.old_names import unrenamed

_T = TypeVar("_T")
_BLOCKS: Final = frozenset(("__aenter__", "__aexit__", "__anext__"))
_MARK: Final = "_checks_its_owner"


def checks_itself(call: _T) -> _T:
    """Mark a coroutine that checks its caller in a cheaper way, as it is called for each record."""
    setattr(call, _MARK, True)
    return call


class NotCopied:
    """Base of what is open: a copy, here or in another process, would be a second owner of it."""

    __slots__ = ()

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        """TypeError, for ``copy`` and ``pickle``."""
        raise TypeError(
            f"an open {type(self).__name__} cannot be copied or pickled; open another one"
        )


class Owned(NotCopied):
    """Base of handles that belong to one event loop; see the module."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, member in list(vars(cls).items()):
            is_public = not name.startswith("_") or name in _BLOCKS
            if not is_public or hasattr(member, _MARK):
                continue
            call, rename = unrenamed(member)
            if inspect.iscoroutinefunction(call):
                setattr(cls, name, rename(_checked(call)))
            elif inspect.isasyncgenfunction(call):
                setattr(cls, name, rename(_checked_generator(call)))

    @abstractmethod
    def check_owner(self) -> None:
        """Not for callers: raises WrongLoopError in another thread or event loop, WalClosedError in a
        forked child."""


def _checked(
    call: Callable[..., Coroutine[Any, Any, _T]],
) -> Callable[..., Coroutine[Any, Any, _T]]:
    @functools.wraps(call)
    async def checked(self: Owned, *arguments: Any, **options: Any) -> _T:
        self.check_owner()
        return await call(self, *arguments, **options)

    return checked


def _checked_generator(
    call: Callable[..., AsyncGenerator[_T, None]],
) -> Callable[..., AsyncGenerator[_T, None]]:
    @functools.wraps(call)
    async def checked(self: Owned, *arguments: Any, **options: Any) -> AsyncGenerator[_T, None]:
        self.check_owner()
        async with aclosing(call(self, *arguments, **options)) as found:
            async for one in found:
                yield one

    return checked
