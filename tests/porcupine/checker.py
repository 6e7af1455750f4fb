"""Histories of a log, checked by Porcupine, a checker of linearizability in Go.

``tests/histories.py`` finds what is wrong without a search, because an append says its place in the order.
Porcupine searches: it tries orders of the calls until a model of a log answers all of them as they were
answered. The program in ``main.go`` has the model. It reads a history as JSON lines:

  * ``{"kind": "append", "begin", "end", "value", "outcome", …}`` with the fields of ``Append``; times are
    whole numbers in the order of the real ones;
  * ``{"kind": "read", "begin", "end", "start", "values"}``;
  * ``{"kind": "log", "log": {offset: value, …}}``, once: the log after all calls.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.histories import History

SOURCES: Final = Path(__file__).parent
FETCH_SECONDS: Final = 60


class CannotBuildError(Exception):
    """Porcupine cannot be had on this machine; the text says why."""


def build(directory: Path) -> Path:
    """Build the program in a directory; return it."""
    go = shutil.which("go")
    if go is None:
        raise CannotBuildError("there is no go; https://go.dev/dl has it, 1.21 or newer")
    # A newer one is not downloaded: an old one says what it needs.
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off"}
    try:
        fetched = _run([go, "mod", "download"], environment, timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise CannotBuildError("Porcupine was not fetched in time") from error
    if fetched.returncode:
        raise CannotBuildError(f"Porcupine cannot be fetched: {fetched.stderr.strip()[-500:]}")
    program = directory / "porcupine"
    made = _run([go, "build", "-buildvcs=false", "-o", str(program), "."], environment)
    assert made.returncode == 0, f"main.go does not compile:\n{made.stderr}"
    return program


def build_once(shared: Path) -> Path | str:
    """Return the program, or why there is none; the first process that shares a directory builds it."""
    program, problem = shared / "porcupine" / "porcupine", shared / "no-porcupine"
    with (shared / "porcupine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists() and not problem.exists():
            program.parent.mkdir(exist_ok=True)
            try:
                build(program.parent)
            except CannotBuildError as error:
                problem.write_text(f"no Porcupine here: {error}")
    return program if program.exists() else problem.read_text()


def _run(
    command: list[str], environment: dict[str, str], timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=SOURCES,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def verdict(program: Path, history: History, log: Mapping[int, bytes]) -> str:
    """Return what Porcupine says of a history, given the log in the end: Ok, Illegal or Unknown."""
    text = "".join(f"{json.dumps(one)}\n" for one in lines(history, log))
    done = subprocess.run([program], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def lines(history: History, log: Mapping[int, bytes]) -> Iterator[dict[str, Any]]:
    """Yield a history as what its lines contain."""
    times = {
        moment for one in (*history.appends, *history.reads) for moment in (one.begin, one.end)
    }
    rank = {moment: at for at, moment in enumerate(sorted(times))}
    for kind, calls in (("append", history.appends), ("read", history.reads)):
        for one in calls:
            fields = {**dataclasses.asdict(one), "begin": rank[one.begin], "end": rank[one.end]}
            yield {"kind": kind, **{name: _text(value) for name, value in fields.items()}}
    yield {"kind": "log", "log": {offset: _text(value) for offset, value in log.items()}}


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return [_text(each) for each in value] if isinstance(value, list | tuple) else value
