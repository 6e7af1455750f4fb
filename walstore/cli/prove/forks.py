"""Forks: processes of a round that are paused and killed, and whose reports are heard.

The process that forks them runs no thread and never opens a log. A child reports through a pipe, a line with
each write, so that a line that arrived was true when it was written, even if the child was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from walstore.cli.errors import leaves
from walstore.cli.prove.promises import BrokenPromiseError

_CHUNK_BYTES: Final = 1 << 20
_ERROR_BYTES: Final = 60_000
"""Of a traceback; a pipe takes 64 KiB before anybody reads it."""

Main = Callable[[int], Coroutine[Any, Any, None]]
"""What a child runs, with the descriptor that its reports go to."""


def send(descriptor: int, report: list[Any]) -> None:
    """Write a report; it arrives once this returns, even if the process is killed then."""
    data = json.dumps(report).encode() + b"\n"
    while data:  # a pipe takes long lines in parts; a line that was cut off is not heard
        data = data[os.write(descriptor, data) :]


@dataclass(slots=True)
class ForkedChild:
    """A forked process, and what it has reported."""

    pid: int
    pipe: int
    errors: int
    heard: bytes = b""
    is_done: bool = False

    def lines(self) -> list[list[Any]]:
        """Return the whole lines that came since the last call."""
        whole, _, self.heard = self.heard.rpartition(b"\n")
        return [json.loads(line) for line in whole.splitlines()]


class Forks:
    """The processes of one round."""

    def __init__(self, take: Callable[[list[Any]], None]) -> None:
        """``take`` is called with each report, in the order of each child's."""
        self._take = take
        self._children: list[ForkedChild] = []

    def start(self, main: Main) -> ForkedChild:
        """Fork a process that runs ``main`` on an event loop of its own."""
        pipe, out = os.pipe()
        errors, error_out = os.pipe()
        pid = os.fork()
        if not pid:
            _live(main, out, error_out)
        os.close(out)
        os.close(error_out)
        for descriptor in (pipe, errors):
            os.set_blocking(descriptor, False)
        child = ForkedChild(pid, pipe, errors)
        self._children.append(child)
        return child

    def listen(self, child: ForkedChild, seconds: float, until: str | None = None) -> bool:
        """Hear all children for some time, or until one kind of report of ``child``; return whether it came.

        Also returns once ``child`` has ended. BrokenPromiseError with its traceback if one of them failed.
        """
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            pipes = {each.pipe: each for each in self._children if not each.is_done}
            ready, _, _ = select.select(list(pipes), [], [], max(0, left))
            came = False
            for pipe in ready:
                came |= self._hear(pipes[pipe], until if pipes[pipe] is child else None)
            if came or child.is_done:
                return came
            if left <= 0:
                return False

    def end(self, child: ForkedChild) -> None:
        """Kill a child with SIGKILL, paused or not, and hear the rest of its reports."""
        self._children.remove(child)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
        try:
            if not child.is_done:
                with contextlib.suppress(BlockingIOError):
                    while not child.is_done:
                        self._hear(child, None)
        finally:
            os.close(child.pipe)
            os.close(child.errors)

    def end_all(self) -> None:
        """Kill all that are left."""
        for child in list(self._children):
            self.end(child)

    def _hear(self, child: ForkedChild, until: str | None) -> bool:
        data = os.read(child.pipe, _CHUNK_BYTES)
        if not data:
            child.is_done = True
            self._raise_its_error(child)
        child.heard += data
        came = False
        for report in child.lines():
            came |= report[1][0] == until
            self._take(report)
        return came

    def _raise_its_error(self, child: ForkedChild) -> None:
        """Raise what a child ended with, unless it was killed."""
        error = b""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(child.errors, _CHUNK_BYTES):
                error += piece
        if error:
            raise BrokenPromiseError(error.decode(errors="replace"))


def pause(child: ForkedChild) -> None:
    """Stop a child with SIGSTOP."""
    os.kill(child.pid, signal.SIGSTOP)


def resume(child: ForkedChild) -> None:
    """Let a paused child continue."""
    os.kill(child.pid, signal.SIGCONT)


def _live(main: Main, out: int, errors: int) -> None:
    """Run in the child, and never return into the parent's code."""
    code = 1
    try:
        asyncio.run(main(out))
        code = 0
    except BaseException as error:  # noqa: BLE001 - the parent raises it
        (first, *_) = leaves(error)
        lines = [traceback.format_exc(), *traceback.format_exception_only(first)]
        text = "".join(lines).encode()
        with contextlib.suppress(OSError):
            os.write(errors, text[-_ERROR_BYTES:])
    finally:
        sys.stdout.flush()
        os._exit(code)
