"""Signals: Ctrl-C ends a verb without a traceback, whenever it comes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.effort import some
from walstore.cli.running import run_async, stop_on_signal, until_stopped


async def test_cancelling_ends_the_read_under_way():
    begun, ended = asyncio.Event(), asyncio.Event()

    async def source() -> AsyncIterator[int]:
        try:
            begun.set()
            await asyncio.Event().wait()
            yield 1
        finally:
            ended.set()

    async def read() -> None:
        async for _ in until_stopped(source(), asyncio.Event()):
            pass

    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read())
        await begun.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert ended.is_set()


MOMENTS = some(40)
AT_A_CALL = """
import os, signal, sys
left = int(sys.argv.pop(1))
def count(frame, event, arg):
    global left
    left -= 1
    if left == 0:
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)
from walstore.__main__ import main
sys.setprofile(count)
try:
    main()
finally:
    sys.setprofile(None)
    print("calls left:", left, file=sys.stderr)
"""
"""Sends SIGINT to itself after so many calls and returns of functions."""


def _run(at: int, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", AT_A_CALL, str(at), *arguments],
        input=b"one\ntwo\n",
        capture_output=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("verb", ["append", "verify"])
def test_at_any_call(verb: str, log: Path) -> None:
    """From the first import to the last flush, at moments in equal distances."""
    never = 10**9
    done = _run(never, verb, str(log))
    assert done.returncode == 0
    calls = never - int(done.stderr.rpartition(b"calls left: ")[2])
    for step in range(1, MOMENTS + 1):
        at = calls * step // (MOMENTS + 1)
        done = _run(at, verb, str(log))
        told = (at, calls, done)
        assert done.returncode in {0, 1, -signal.SIGINT}, told
        assert b"Traceback" not in done.stderr, told
        assert b"Exception ignored" not in done.stderr, told


def test_the_first_signal_stops_and_the_second_cancels() -> None:
    """What waits for a store that does not answer can be left."""

    async def wait() -> None:
        with stop_on_signal() as stop:
            for number in (signal.SIGINT, signal.SIGINT):
                os.kill(os.getpid(), number)
                await stop.wait()
            await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        run_async(wait())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_stop_cancels_what_is_still_at_work(number: signal.Signals) -> None:
    """The log that is closed may have to wait for a store, too."""

    async def wait() -> None:
        with stop_on_signal() as stop:
            os.kill(os.getpid(), number)
            await stop.wait()
        os.kill(os.getpid(), number)
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        run_async(wait())


AGAIN_AT_THE_END = """
import atexit, os, signal
def again():
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    print("still here", flush=True)
atexit.register(again)
from walstore.__main__ import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_has_ended_as_it_should_is_not_killed_by_more_signals(
    number: signal.Signals, log: Path
) -> None:
    """The interpreter takes a while to end, and the result was told by then."""
    process = subprocess.Popen(
        [sys.executable, "-c", AGAIN_AT_THE_END, "tail", "-f", str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"value 91\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert out.endswith(b"still here\n")
