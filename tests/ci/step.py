"""One step: a command with a limit. When the limit has passed, all that the command started is ended."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tests.ci.record import Record, TestRun, read_record
from tests.spark_path.sitecustomize import STARTS

GRACE_SECONDS: Final = 10
"""Time to end by itself, after SIGTERM."""
TESTS_RAN: Final = (0, 1)
"""The exit statuses of a pytest that ran all its tests; with 1, some failed."""
CONCLUSION_SECONDS: Final = 90
"""A step that may leave tests out begins none in this last part of its time."""


@dataclass(frozen=True)
class Step:
    """What to run. A pytest in it gets its options from ``PYTEST_ADDOPTS``, also below ``make``."""

    name: str
    command: Sequence[str]
    seconds: float
    """The limit."""
    files: Sequence[str] | None = None
    """The test files to run, in this order; None: all of them."""
    left_out: Sequence[str] = ()
    """The files of the same kind whose turn it is not."""
    has_tests: bool = True
    """Whether it runs a pytest."""
    may_stop: bool = False
    """Whether tests that would begin too late are left out, instead of being a failure."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for the command, beside those of this process."""


@dataclass
class Result:
    """How a step ended."""

    step: Step
    seconds: float
    status: int
    """The exit status of the command."""
    was_stopped: bool
    """Whether its time passed."""
    record: Record = field(default_factory=Record)

    def suspects(self) -> list[TestRun]:
        """Return the tests that failed, or had begun and did not end."""
        return [*self.record.by_outcome("failed"), *self.record.by_outcome(None)]

    def unexplained(self) -> list[str]:
        """Return what went wrong that no suspect explains, even one that passes when it runs again."""
        record, running = self.record, self.record.by_outcome(None)
        if record.broken:
            return record.broken
        if self.step.has_tests and not self.was_stopped and not record.tests:
            return [f"no test ran; it ended with {self.status}"]
        if self.was_stopped and not (self.step.may_stop and running):
            among = "among tests" if running else "between tests"
            return [f"stopped after {self.seconds:.0f} s, {among}; what comes after did not run"]
        if record.has_begun and not self.was_stopped and record.exit_status not in TESTS_RAN:
            how = "died" if record.exit_status is None else f"ended with {record.exit_status}"
            return [f"pytest {how}; tests may be missing"]
        if not self.was_stopped and (missing := record.never_begun()):
            return [f"{len(missing)} tests did not run, the first is {missing[0]}"]
        return [f"ended with {self.status}"] if self.status and not self.suspects() else []


def run_step(step: Step, directory: Path, clock: Callable[[], float] = time.time) -> Result:
    """Run a step to its end, or to its limit; its record is in ``directory``."""
    if step.files is not None and not step.files:
        return Result(replace(step, has_tests=False), 0.0, 0, was_stopped=False)
    path = directory / f"{step.name}.jsonl"
    path.unlink(missing_ok=True)
    path.with_suffix(".starts").unlink(missing_ok=True)
    began = clock()
    options = shlex.join(_options(step, path, began))
    environment = {
        **os.environ,
        **step.environment,
        "PYTEST_ADDOPTS": options,
        STARTS: str(path.with_suffix(".starts")),
    }
    print(f"\n== {step.name} (at most {step.seconds:.0f} s)", flush=True)
    with subprocess.Popen(
        step.command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            status, was_stopped = process.wait(step.seconds), False
        except subprocess.TimeoutExpired:
            status, was_stopped = _end(process), True
        except BaseException:
            _end(process)
            raise
        with contextlib.suppress(ProcessLookupError):  # what it left behind
            os.killpg(process.pid, signal.SIGKILL)
    return Result(step, clock() - began, status, was_stopped, read_record(path))


def _options(step: Step, path: Path, began: float) -> list[str]:
    options = ["-p", "tests.ci.plugin", f"--record={path}"]
    if step.files is not None:
        listed = path.with_suffix(".files")
        listed.parent.mkdir(parents=True, exist_ok=True)
        listed.write_text("".join(f"{name}\n" for name in step.files), encoding="utf-8")
        options.append(f"--only={listed}")
    if step.may_stop:
        options.append(f"--stop-at={began + step.seconds - CONCLUSION_SECONDS:.0f}")
    return options


def _end(process: subprocess.Popen[bytes]) -> int:
    """End a process and all in its group; return its status."""
    os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
