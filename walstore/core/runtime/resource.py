"""Resources: opening one, and refusing event loops, threads and processes that did not open it.

A forked child has the descriptors of its parent, locks included, and copies of its objects, but none of
its threads. So in a child every descriptor is closed, which does not affect the parent, and every log,
store and thread pool refuses to be used. A child that needs a log opens it itself.

The hook runs in the child's only thread and takes no lock: another thread may have held it at the fork.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import warnings
from abc import abstractmethod
from asyncio import _get_running_loop
from collections.abc import Awaitable, Callable, Generator
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, NoReturn, Protocol, TypeVar
from weakref import WeakSet

from walstore.core.runtime.owned import NotCopied
from walstore.core.runtime.tasks import log_failure, shield
from walstore.errors import WalClosedError, WrongLoopError

logger = logging.getLogger("walstore.log")


class _Closeable(Protocol):
    async def aclose(self) -> None: ...


_C = TypeVar("_C", bound=_Closeable)


class MustClose(NotCopied):
    """Base of what a program opens and has to close: a ResourceWarning tells of one that is collected open.

    Its descriptors are closed with it.
    """

    __slots__ = ()

    @abstractmethod
    def _left_open(self) -> Unclosed | None:
        """Return what is open; None if that is closed, was never made whole, or is the parent process's."""

    def __del__(self) -> None:
        left = self._left_open()
        if left is not None:
            warnings.warn(
                f"{left.what} was not closed{left.lost}; use 'async with', or await aclose() before its "
                "event loop ends",
                ResourceWarning,
                stacklevel=2,
            )


class Unclosed(NamedTuple):
    """What a program did not close."""

    what: str
    lost: str = ""
    """What became of its records."""


_HOW_TO_OPEN: Final = (
    "write 'async with ... as log:', or 'log = await ...'; walstore.sync is for threads and scripts"
)


class Opening(NotCopied, Generic[_C]):
    """An open that has not happened yet: ``await`` it and call ``aclose`` yourself, or ``async with``.

    Leaving the block closes the resource. If the block itself raised, an error of closing is added to
    that exception as a note.
    """

    def __init__(self, open_it: Callable[[], Awaitable[_C]]) -> None:
        self._open_it = open_it
        self._resource: _C | None = None

    def __await__(self) -> Generator[Any, None, _C]:
        _check_asyncio()
        return self._open_it().__await__()

    if not TYPE_CHECKING:  # type checkers find these mistakes by themselves

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"nothing is open yet, so there is no {name!r}: {_HOW_TO_OPEN}")

        def __enter__(self) -> NoReturn:
            raise TypeError(f"it opens in an event loop: {_HOW_TO_OPEN}")

        def __exit__(self, *_: object) -> None:
            """Only here so that ``with`` reaches ``__enter__``."""

    async def __aenter__(self) -> _C:
        _check_asyncio()
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


def _check_asyncio() -> None:
    """Raise WrongLoopError where no event loop of asyncio runs, as in trio."""
    if _get_running_loop() is None:
        raise WrongLoopError(
            "no event loop of asyncio runs here; nothing was opened: start one with asyncio.run(), or use "
            "walstore.sync in a thread, as under trio"
        )


async def wait_closed(closing: asyncio.Future[None]) -> None:
    """Return when something is closed, or raise why it is not.

    Cancelling does not stop it. If it fails then, the error is logged: the caller cannot get it any more.
    """
    try:
        await shield(closing)
    except asyncio.CancelledError:
        log_failure(closing)
        raise


class LoopGuard:
    """Remembers the process, thread and event loop of an object: those that run when this is made."""

    __slots__ = ("_loop", "_process", "_what", "thread")

    def __init__(self, what: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """``what`` names the object in errors. ``loop`` defaults to the running event loop."""
        self._what: Final = what
        self._loop: Final = loop or asyncio.get_running_loop()
        self._process: Final = _process
        self.thread: Final = get_ident()
        """Identity of the thread."""

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that made it."""
        return self._process != _process

    @property
    def is_home(self) -> bool:
        """Whether the caller runs in its event loop, or in no event loop and in the thread that opened it.

        An event loop runs in one thread at a time, but may later run in another.
        """
        running = _get_running_loop()
        if self._process != _process:
            return False
        if running is None:
            return get_ident() == self.thread and not self._loop.is_closed()
        return running is self._loop

    def check(self) -> None:
        """Raise WrongLoopError for a caller from another thread or event loop, WalClosedError in a child."""
        if self._process != _process:
            raise _of_parent(self._process)
        if not self.is_home:
            raise WrongLoopError(
                f"the {self._what} belongs to the event loop and thread that opened it; nothing was written: "
                "from another thread use asyncio.run_coroutine_threadsafe(call(...), its loop)"
            )


class Inherited(Protocol):
    """An object that a child process must not use."""

    def abandon(self, error: WalClosedError) -> None:
        """Refuse everything from now on, with copies of ``error``. Called in a child process, once.

        Takes no lock, does not wait and wakes no waiter: the event loop may be that of the parent."""


_inherited: Final[WeakSet[Inherited]] = WeakSet()
_process = os.getpid()


def abandon_in_children(thing: Inherited) -> None:
    """Abandon an object in every child process forked from now on, while it is alive."""
    _inherited.add(thing)


def _of_parent(process: int) -> WalClosedError:
    return WalClosedError(
        f"opened in process {process}, of which this process is a fork; open it again here"
    )


def _abandon_all() -> None:
    global _process  # noqa: PLW0603 - there is one process
    error = _of_parent(_process)
    _process = os.getpid()
    for thing in list(_inherited):
        with contextlib.suppress(OSError):  # of closing; the others must still be closed
            thing.abandon(error)
    _inherited.clear()


os.register_at_fork(after_in_child=_abandon_all)
