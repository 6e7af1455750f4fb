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
    is_watched_of: dict[CodeType, bool | None] = {}  # None: it may block

    def classify(code: CodeType) -> bool | None:
        path = code.co_filename
        if any(path.endswith(end) and code.co_name in names for end, names in can_block_functions):
            return None
        return path.startswith(tuple(modules)) and not path.startswith(tuple(excluded_modules))

    def is_refused() -> bool:
        frame: FrameType | None = sys._getframe(2)
        refused = not modules
        while frame:
            code = frame.f_code
            if code not in is_watched_of:
                is_watched_of[code] = classify(code)
            if (is_watched := is_watched_of[code]) is None:
                return False
            refused = refused or is_watched
            frame = frame.f_back
        return refused

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if asyncio._get_running_loop() is None or getattr(_inside, "call", False):
            return function(*args, **kwargs)
        _inside.call = True
        try:
            if not can_block_predicate(*args, **kwargs) and is_refused():
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
    guard.functions["os.preadv"].can_block_in("walstore/files/posix.py", "load")
    for function in guard.functions.values():
        # Where log lines go is the application's choice, here pytest's.
        function.can_block_in("logging/__init__.py", "callHandlers")
    plain = implementation.BlockingError, implementation._wrap_blocking
    implementation.BlockingError = CaughtBlockingError  # type: ignore[misc]
    implementation._wrap_blocking = _wrap_blocking  # type: ignore[assignment]
    guard.activate()
    try:
        yield guard
    finally:
        guard.deactivate()
        implementation.BlockingError, implementation._wrap_blocking = plain  # type: ignore[misc]
