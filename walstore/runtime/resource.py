"""Opening: the result of ``Wal.open``, to be awaited or entered."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar


class _Closeable(Protocol):
    async def aclose(self) -> None: ...


_C = TypeVar("_C", bound=_Closeable)


def warn_unclosed(what: str, lost: str = "") -> None:
    """Warn of an object that is collected and was never closed. Its descriptors are closed with it."""
    warnings.warn(
        f"{what} was not closed{lost}; use 'async with', or await aclose() before its event loop ends",
        ResourceWarning,
        stacklevel=2,
    )


class Opening(Generic[_C]):
    """An open that has not happened yet: ``await`` it and call ``aclose`` yourself, or ``async with``.

    Leaving the block closes the resource. If the block itself raised, an error of closing is added to
    that exception as a note.
    """

    def __init__(self, open_it: Callable[[], Awaitable[_C]]) -> None:
        self._open_it = open_it
        self._resource: _C | None = None

    def __await__(self) -> Generator[Any, None, _C]:
        return self._open_it().__await__()

    async def __aenter__(self) -> _C:
        self._resource = await self._open_it()
        return self._resource

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._resource is not None
        try:
            await self._resource.aclose()
        except Exception as closing:
            if error is None:
                raise
            error.add_note(f"and closing failed: {closing!r}")
