"""FromThreads: a handle of ``walstore.sync`` with the habits of the others, each of its calls in a thread."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any, Final, Self

_MADE: Final = frozenset(("reader", "follow", "transaction", "group"))
"""What is made without waiting, elsewhere; here each is made when it is used first."""
_END: Final = object()


async def in_thread(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call in a thread, where no event loop runs. If cancelled, the call goes on and is waited for."""
    context = contextvars.copy_context()
    running = asyncio.get_running_loop().run_in_executor(
        None, lambda: context.run(call, *arguments, **options)
    )
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise


class FromThreads:
    """A handle, or one that is made when it is first used."""

    def __init__(self, thing: Any, make: Callable[[], Any] | None = None) -> None:
        self.thing, self._make = thing, make
        self._items: Any = None

    def __getattr__(self, name: str) -> Any:
        if name in _MADE:
            return lambda *some, **options: FromThreads(
                None, lambda: getattr(self.thing, name)(*some, **options)
            )
        if self.thing is not None and not callable(getattr(self.thing, name)):
            return getattr(self.thing, name)
        return lambda *some, **options: self._call(name, some, options)

    async def _call(self, name: str, some: tuple[Any, ...], options: dict[str, Any]) -> Any:
        some = tuple([_bare(one) for one in some])
        found = await in_thread(lambda: getattr(self._here(), name)(*some, **options))
        if isinstance(found, list):
            return [_wrapped(one) for one in found]
        return _wrapped(found)

    def _here(self) -> Any:
        if self.thing is None and self._make is not None:
            self.thing = self._make()
        return self.thing

    async def __aenter__(self) -> Self:
        await in_thread(lambda: self._here().__enter__())
        return self

    async def __aexit__(self, *error: object) -> None:
        await in_thread(lambda: self._here().__exit__(*error))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        found = await in_thread(self._next)
        if found is _END:
            raise StopAsyncIteration
        return _wrapped(found)

    def _next(self) -> Any:
        if self._items is None:
            self._items = iter(self._here())
        found = next(self._items, _END)
        if found is _END:
            self._items = None  # it may have been moved when it is asked again
        return found


def _wrapped(found: Any) -> Any:
    return FromThreads(found) if type(found).__name__.startswith("Blocking") else found


def _bare(given: Any) -> Any:
    return given.thing if isinstance(given, FromThreads) else given
