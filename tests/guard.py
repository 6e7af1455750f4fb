"""The guard that fails a test when the event loop is blocked.

blockbuster knows sockets, sleeps and most calls on files. It does not know the calls that a log is made
of, so they are added here. Threads are free to block; only a thread with a running loop is watched.
"""

from __future__ import annotations

import asyncio
import builtins
import fcntl
import io
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from types import CodeType, FrameType
from typing import Any, Final

from blockbuster import BlockBuster, BlockBusterFunction, BlockingError
from blockbuster import blockbuster as implementation

PACKAGES: Final = [module_from_spec(find_spec(name)) for name in ("walstore", "uploader")]
"""Calls that tests may make for themselves (to look at a file) count only below these.

They are found, not imported, for the second one needs an extra.
"""
HELPERS: Final = ["walstore.testing"]
WAKING: Final = ("walstore/core/runtime/tasks.py", "wake")
"""What runs tasks as the event loop does: what is below it has not called them."""

WATCHED_EVERYWHERE: Final = (
    (os, "copy_file_range"),
    (os, "fdatasync"),
    (os, "fsync"),
    (os, "ftruncate"),
    (os, "posix_fallocate"),
    (os, "pread"),
    (os, "preadv"),
    (os, "pwrite"),
    (os, "pwritev"),
    (os, "readv"),
    (os, "sync"),
    (os, "truncate"),
    (os, "writev"),
    (fcntl, "flock"),
    (fcntl, "lockf"),
)
WATCHED_IN_PACKAGES: Final = (
    (builtins, "open"),
    (io, "open"),
    (os, "fstat"),
    (os, "makedirs"),
    (os, "open"),
)

violations: Final[list[BlockingError]] = []
"""What was caught since the list was last cleared, also where the error itself was swallowed."""


class CaughtBlockingError(BlockingError):
    """A blocking call on the event loop; remembers itself in :data:`violations`."""

    def __init__(self, func: str) -> None:
        super().__init__(func)
        violations.append(self)


_inside = threading.local()
_plain_run_forever = asyncio.BaseEventLoop.run_forever


def _run_forever(loop: asyncio.BaseEventLoop) -> None:
    """Run a loop, and keep what the guard finds out about those who run it."""
    outer = getattr(_inside, "runners", None)
    _inside.runners = {}
    try:
        _plain_run_forever(loop)
    finally:
        _inside.runners = outer


class _Callers:
    """What is known of the code that calls a function: watched, not watched, or None if it may block."""

    def __init__(
        self,
        modules: Sequence[str],
        excluded_modules: Sequence[str],
        can_block_functions: list[tuple[str, Iterable[str]]],
    ) -> None:
        self._modules = tuple(modules)
        self._excluded_modules = tuple(excluded_modules)
        self._can_block_functions = can_block_functions
        # By id: the hash of code is made of all its constants and names at each use.
        self._known: dict[int, tuple[CodeType, bool | None, bool]] = {}

    def is_refused(self, frame: FrameType) -> bool:
        """Return whether the function may not block when it is called from ``frame``."""
        watched, rest = self._look(frame, _run_forever.__code__)
        if rest:  # who runs the loop stays the same while it runs
            if self not in _inside.runners:
                _inside.runners[self] = self._look(rest, None)[0]
            runner = _inside.runners[self]
            watched = None if runner is None else watched or runner
        return watched is not None and (watched or not self._modules)

    def _look(
        self, frame: FrameType | None, end: CodeType | None
    ) -> tuple[bool | None, FrameType | None]:
        """Return what the callers up to the frame of ``end`` are, and that frame."""
        watched = False
        while frame and frame.f_code is not end:
            code = frame.f_code
            if (known := self._known.get(id(code))) is None:
                wakes = code.co_name == WAKING[1] and code.co_filename.endswith(WAKING[0])
                known = self._known[id(code)] = code, self._classify(code), wakes
            if known[1] is None:
                return None, None
            watched = watched or (known[1] and not known[2])
            frame = frame.f_back
            while known[2] and frame and frame.f_code is not _run_forever.__code__:
                frame = frame.f_back
        return watched, frame

    def _classify(self, code: CodeType) -> bool | None:
        path = code.co_filename
        if any(
            path.endswith(end) and code.co_name in names for end, names in self._can_block_functions
        ):
            return None
        return path.startswith(self._modules) and not path.startswith(self._excluded_modules)


def _wrap_blocking(
    modules: Sequence[str],
    excluded_modules: Sequence[str],
    function: Callable[..., Any],
    name: str,
    can_block_functions: list[tuple[str, Iterable[str]]],
    can_block_predicate: Callable[..., bool],
) -> Callable[..., Any]:
    """Do what blockbuster's function of this name does, and remember what it found out about a caller.

    Its own compares the paths of all callers at each call, which took a fifth of a test that uses files.
    """
    callers = _Callers(modules, excluded_modules, can_block_functions)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if asyncio._get_running_loop() is None or getattr(_inside, "call", False):
            return function(*args, **kwargs)
        _inside.call = True
        try:
            if not can_block_predicate(*args, **kwargs) and callers.is_refused(sys._getframe(1)):
                raise implementation.BlockingError(name)
            return function(*args, **kwargs)
        finally:
            _inside.call = False

    return wrapper


@contextmanager
def watched_event_loop() -> Iterator[BlockBuster]:
    """Make blocking calls on an event loop raise BlockingError while the block runs."""
    guard = BlockBuster(PACKAGES, excluded_modules=HELPERS)
    for owner, name in WATCHED_EVERYWHERE:
        guard.functions[f"{owner.__name__}.{name}"] = BlockBusterFunction(owner, name)
    for owner, name in WATCHED_IN_PACKAGES:
        guard.functions[f"{owner.__name__}.{name}"] = BlockBusterFunction(
            owner, name, scanned_modules=PACKAGES, excluded_modules=HELPERS
        )
    # With a flag that makes it refuse to wait: a look at the cell of another process.
    guard.functions["os.preadv"].can_block_in("walstore/core/files/posix.py", "load")
    # A lock that was forgotten is given back, which waits for nobody.
    guard.functions["fcntl.flock"].can_block_in("walstore/core/files/posix.py", "__del__")
    for function in guard.functions.values():
        # Where log lines go is the application's choice, here pytest's.
        function.can_block_in("logging/__init__.py", "callHandlers")
    plain = implementation.BlockingError, implementation._wrap_blocking
    implementation.BlockingError = CaughtBlockingError  # type: ignore[misc]
    implementation._wrap_blocking = _wrap_blocking  # type: ignore[assignment]
    asyncio.BaseEventLoop.run_forever = _run_forever  # type: ignore[method-assign]
    guard.activate()
    try:
        yield guard
    finally:
        guard.deactivate()
        asyncio.BaseEventLoop.run_forever = _plain_run_forever  # type: ignore[method-assign]
        implementation.BlockingError, implementation._wrap_blocking = plain  # type: ignore[misc]
