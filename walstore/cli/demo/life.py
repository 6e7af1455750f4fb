"""One life of the writing process, as the parent sees it: started, listened to, perhaps killed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from walstore.cli.demo import messages
from walstore.cli.demo.plan import DemoRun
from walstore.cli.demo.story import Story
from walstore.cli.errors import ChildFailedError
from walstore.errors import WalError

START_SECONDS = 60.0
"""How long a life may take to open the log."""
DRAIN_SECONDS = 180.0
"""How long it may take to end by itself after its time is up."""
_EXIT_SECONDS = 10.0
"""An interpreter may take that long to end on a busy machine."""
_BUFFER_BYTES = 1 << 20


class Life:
    """Runs the child once. The child never outlives :meth:`run`."""

    def __init__(self, plan: DemoRun, story: Story, say: Callable[[str], None]) -> None:
        """``say`` gets what the child writes to its stderr."""
        self._plan = plan
        self._story = story
        self._say = say
        # Set by what the child says; both when the pipe ends.
        self._opened = asyncio.Event()
        self._ended = asyncio.Event()

    async def run(self, *, kill_after_seconds: float | None = None) -> None:
        """Start the child and return when it has ended and all it said was heard.

        It is killed with SIGKILL so long after it opened the log, or left to end by itself. WalError if
        it ends in any other way.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "walstore.cli.demo.child",
            self._plan.to_json(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_BUFFER_BYTES,
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen(process))
                group.create_task(self._pass_on(process))
                await self._direct(process, kill_after_seconds)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _direct(
        self, process: asyncio.subprocess.Process, kill_after_seconds: float | None
    ) -> None:
        if not await _happens(self._opened, START_SECONDS) or self._ended.is_set():
            raise await _failure(process, "did not open the log")
        if kill_after_seconds is not None:
            if await _happens(self._ended, kill_after_seconds):
                raise await _failure(process, "ended too early")
            process.kill()
            self._story.end_life()
        elif not await _happens(self._ended, self._plan.life_seconds + DRAIN_SECONDS):
            raise await _failure(process, "does not end")
        elif await process.wait():
            raise await _failure(process, "failed")

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for message in messages.receive(process.stdout):
            self._story.take(message)
            if message[0] == messages.OPENED:
                self._opened.set()
        self._ended.set()
        self._opened.set()

    async def _pass_on(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            self._say(line.decode("utf-8", "replace").rstrip())


async def _happens(event: asyncio.Event, seconds: float) -> bool:
    """Return whether the event is set within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def _failure(process: asyncio.subprocess.Process, what: str) -> WalError:
    """Return the error for a child that did not do what it should; one without a pipe ends at once."""
    try:
        async with asyncio.timeout(_EXIT_SECONDS):
            code = await process.wait()
    except TimeoutError:
        return WalError(f"the writing process {what}")
    return ChildFailedError(f"the writing process {what}: exit code {code}", code=code)
