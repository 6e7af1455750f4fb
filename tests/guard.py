"""The guard that fails a test when the event loop is blocked.

blockbuster knows sockets, sleeps and most calls on files. It does not know the calls that a log is made
of, so they are added here. Threads are free to block; only a thread with a running loop is watched.
"""

from __future__ import annotations

import builtins
import fcntl
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from blockbuster import BlockBuster, BlockBusterFunction, BlockingError
from blockbuster import blockbuster as implementation

PACKAGES: Final = ["walstore", "uploader"]
"""Calls that tests may make for themselves (to look at a file) count only below these."""
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
    plain = implementation.BlockingError
    implementation.BlockingError = CaughtBlockingError  # type: ignore[misc]
    guard.activate()
    try:
        yield guard
    finally:
        guard.deactivate()
        implementation.BlockingError = plain  # type: ignore[misc]
