"""Old names: each lives for one version more, and its use says what to write instead."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final, TypeVar

_CallT = TypeVar("_CallT", bound=Callable[..., Any])
_OURS: Final = frozenset(("walstore", "uploader"))


def warn_old(text: str) -> None:
    """Give a DeprecationWarning to the nearest caller outside of this package."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, DeprecationWarning, stacklevel=level + 1)


def renamed(**names: str) -> Callable[[_CallT], _CallT]:
    """Let a call also take arguments by their old names, ``old="new"``, with a DeprecationWarning."""

    def decorate(call: Any) -> Any:
        def translate(options: dict[str, Any]) -> dict[str, Any]:
            for old, new in names.items():
                if old not in options:
                    continue
                if new in options:
                    raise TypeError(
                        f"{call.__qualname__}() got {old!r} and {new!r}, which it is now"
                    )
                warn_old(f"{call.__qualname__}() takes {new}= now, which was {old}=")
                options[new] = options.pop(old)
            return options

        @functools.wraps(call)
        def renaming(*arguments: Any, **options: Any) -> Any:
            return call(*arguments, **translate(options))

        @functools.wraps(call)
        async def renaming_coroutine(*arguments: Any, **options: Any) -> Any:
            return await call(*arguments, **translate(options))

        @functools.wraps(call)
        async def renaming_generator(*arguments: Any, **options: Any) -> Any:
            async with aclosing(call(*arguments, **translate(options))) as found:
                async for one in found:
                    yield one

        if inspect.iscoroutinefunction(call):
            return renaming_coroutine
        return renaming_generator if inspect.isasyncgenfunction(call) else renaming

    return decorate
