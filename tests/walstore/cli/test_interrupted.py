"""Ctrl-C ends a verb without a traceback, whenever it comes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from walstore.cli.running import run_async, stop_on_signal

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
    """From the first import to the last flush, at eight moments."""
    never = 10**9
    done = _run(never, verb, str(log))
    assert done.returncode == 0
    calls = never - int(done.stderr.rpartition(b"calls left: ")[2])
    for step in range(1, 9):
        at = calls * step // 9
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
