"""Reading stdin without blocking the event loop, and without a thread that cannot be stopped."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator

import aiofiles

from walstore.cli.errors import InputError, UsageError

CHUNK_BYTES = 1 << 20


def require_stdin() -> None:
    """Raise UsageError if stdin is closed, before anything is created or changed."""
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError(
            "stdin is closed; records come from stdin: give a pipe, a file or /dev/null"
        )


async def read_stdin(stop: asyncio.Event) -> AsyncIterator[bytes]:
    """Yield what arrives on stdin, as soon as it does, until it ends or ``stop`` is set.

    The thread that reads is only asked once there is something to read: one that waits in a read for
    input could not be stopped. ``stop`` never interrupts a read, so no byte is taken from
    stdin and then lost. Raises InputError if stdin cannot be read.
    """
    while True:
        await _readable(stop)
        if stop.is_set():
            return
        try:
            chunk = await aiofiles.stdin_bytes.read1(CHUNK_BYTES)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise InputError(f"stdin cannot be read: {reason}") from error
        if not chunk:
            return
        yield chunk


async def _readable(stop: asyncio.Event) -> None:
    """Return once stdin has something, or ``stop`` is set."""
    try:
        descriptor = sys.stdin.fileno()
    except (io.UnsupportedOperation, ValueError):
        return
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:  # a file, which is always readable
        return
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(event.wait()) for event in (ready, stop)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(descriptor)
            for task in waiting:
                task.cancel()
