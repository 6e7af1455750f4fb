"""Child processes of the demo and the soak: their life, their messages to the parent, and latencies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import IO, Any, Final

import msgpack

from walstore.cli.errors import exit_code, explain, is_expected, unwrap
from walstore.cli.logs import send_warnings_to_stderr
from walstore.cli.output import complain

RESERVOIR: Final = 200_000


@contextlib.asynccontextmanager
async def child_process(
    module: str, arguments: dict[str, Any], *, stderr: int | IO[Any] = asyncio.subprocess.PIPE
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run ``python -m module`` with a pipe as its stdout, and its arguments as JSON.

    What is left of its process group at the end of the block is killed.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, json.dumps(arguments)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,  # Ctrl-C is the parent's to handle
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def receive(reader: asyncio.StreamReader) -> AsyncIterator[list[Any]]:
    """Yield the messages of a child until its end of the pipe is closed.

    A message that a kill cut off is dropped.
    """
    unpacker = msgpack.Unpacker()
    while data := await reader.read(1 << 16):
        unpacker.feed(data)
        for message in unpacker:
            yield message


def run_child(
    main: Callable[..., Coroutine[Any, Any, None]],
    *,
    code_of: Callable[[BaseException], int] = exit_code,
) -> None:
    """Run ``main`` with the arguments from the parent; end with ``code_of`` an expected error."""
    send_warnings_to_stderr()
    try:
        asyncio.run(main(**json.loads(sys.argv[1])))
    except Exception as error:
        cause = unwrap(error)
        if not is_expected(cause):
            raise
        complain(explain(cause))
        sys.exit(code_of(cause))


def say(*message: Any) -> None:
    """Write a message to the parent, and return once the pipe contains it.

    The child's next step begins after that. BrokenPipeError if the parent has ended.
    """
    data = memoryview(msgpack.packb(message))
    while data:
        data = data[os.write(1, data) :]


class LatencySamples:
    """Percentiles over many samples in bounded memory. Samples are in microseconds."""

    def __init__(self, *, capacity: int = RESERVOIR) -> None:
        """Keep the first ``capacity`` samples, and a uniform choice of all samples after that."""
        self._capacity = capacity
        self._random = random.Random(1)
        self._kept = array("I")
        self.count = 0
        """How many samples were added."""

    def add(self, samples_us: Iterable[int]) -> None:
        """Add samples."""
        for sample in samples_us:
            self.count += 1
            if len(self._kept) < self._capacity:
                self._kept.append(sample)
                continue
            at = self._random.randrange(self.count)
            if at < self._capacity:
                self._kept[at] = sample

    def milliseconds(self, percent: float) -> float | None:
        """Return the value that ``percent`` of the samples do not exceed; None if there are none."""
        if not self._kept:
            return None
        ordered = sorted(self._kept)
        at = min(int(len(ordered) * percent / 100), len(ordered) - 1)
        return ordered[at] / 1e3
