"""Forked programs are as those that a new Python runs."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import programs

SAYS = """
import os, sys
print(__name__, sys.argv, os.getcwd(), os.environ["SAID"], sys.stdin.read())
print("to stderr", file=sys.stderr)
sys.exit(7)
"""
ENDS = """
import atexit
atexit.register(print, "at the end")
1 / 0
"""
ECHOES = """
import sys
for line in sys.stdin:
    print(line.strip()[::-1], flush=True)
"""
FOR_EVER = "import threading; threading.Event().wait()"


def test_what_a_program_is_given_and_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAID", "it")
    done = programs.run(SAYS, 1, "zwei", directory=tmp_path)
    new = subprocess.run(
        [sys.executable, "-c", SAYS, "1", "zwei"],
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (7, new.stdout, new.stderr)
    assert new.returncode == 7


def test_the_interpreter_of_a_program_ends() -> None:
    done = programs.run(ENDS)
    assert (done.returncode, done.stdout) == (1, "at the end\n")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_streams_signals_and_several_at_a_time() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with programs.start(ECHOES, **pipes) as one, programs.start(ECHOES, **pipes) as other:
        for program, said in ((one, b"abc\n"), (other, b"def\n")):
            assert program.stdin is not None
            assert program.stdout is not None
            program.stdin.write(said)
            assert program.stdout.readline() == said.strip()[::-1] + b"\n"
        assert one.poll() is None
        one.kill()
        assert one.wait(30) == one.poll() == -signal.SIGKILL
        assert other.poll() is None
    assert other.returncode == 0


def test_a_program_that_takes_too_long_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired) as found:
        programs.run(FOR_EVER, seconds=0)
    command = Path("/proc", found.value.cmd[0], "cmdline")
    assert not command.exists() or not command.read_bytes()  # nobody may have taken its code yet
