"""Old names: each lives for one version more, and its use says what to write instead."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final, TypeVar

_CallT = TypeVar("_CallT", bound=Callable[..., Any])
_OURS: Final = frozenset(("walstore", "uploader"))
_BEHIND: Final = "_behind_old_names"


def warn_old(text: str) -> None:
    """Give a DeprecationWarning to the nearest caller outside of this package."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, DeprecationWarning, stacklevel=level + 1)


def renamed(**names: str) -> Callable[[_CallT], _CallT]:
    """Let a call also take arguments by their old names, ``old="new"``, with a DeprecationWarning.

    What it makes is a plain function, also of a coroutine function or an asynchronous generator: the warning
    is given at the call, which a task would only run later.
    """

    def decorate(call: Any) -> Any:
        @functools.wraps(call)
        def renaming(*arguments: Any, **options: Any) -> Any:
            if not names.keys().isdisjoint(options):
                _translate(call, names, options)
            return call(*arguments, **options)

        setattr(renaming, _BEHIND, (call, decorate))
        if inspect.iscoroutinefunction(call):
            _mark_coroutine(renaming)
        return renaming

    return decorate


def unrenamed(call: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return what :func:`renamed` decorates, and the decorator; the call and one without effect otherwise."""
    found = getattr(call, _BEHIND, None) if isinstance(call, FunctionType) else None
    return found or (call, lambda other: other)


def _translate(call: Any, names: dict[str, str], options: dict[str, Any]) -> None:
    for old in names.keys() & options.keys():
        new = names[old]
        if new in options:
            raise TypeError(f"{call.__qualname__}() got {old!r} and {new!r}, which it is now")
        warn_old(f"{call.__qualname__}() takes {new}= now, which was {old}=")
        options[new] = options.pop(old)


def _mark_coroutine(call: Any) -> None:
    """Let ``iscoroutinefunction`` find it: of inspect, or in Python 3.11 of asyncio, which mocks ask."""
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(call)
    else:
        call._is_coroutine = vars(asyncio.coroutines)["_is_coroutine"]  # noqa: SLF001 - a mark
