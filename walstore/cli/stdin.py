"""Reading stdin without blocking the event loop, and without a thread that cannot be stopped."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator

import aiofiles

CHUNK_BYTES = 1 << 20


async def read_stdin() -> AsyncIterator[bytes]:
    """Yield what arrives on stdin, as soon as it does, until it ends. Cancellable at any time.

    The thread that reads is only asked once there is something to read: one that waits in a read for
    somebody to type could not be stopped.
    """
    while True:
        await _readable()
        chunk = await aiofiles.stdin_bytes.read1(CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


async def _readable() -> None:
    try:
        descriptor = sys.stdin.fileno()
    except (io.UnsupportedOperation, ValueError):
        return
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    try:
        loop.add_reader(descriptor, _resolve, ready)
    except PermissionError:  # a file, which is always readable
        return
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


def _resolve(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
