"""A standalone Spark cluster on loopback: a master and workers from the installed PySpark.

Every process leads a session of its own, so that whatever it starts (executors, their Python workers) can be
found and killed with it; and each dies when the thread that started the cluster does.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark

from tests.spark_classes import java_options, python_path
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
START_SECONDS = 120.0
STOP_SECONDS = 60.0
DRIVER_SECONDS = 500.0
SETTINGS = "WALSTORE_TEST_SPARK_SETTINGS"
"""Where a job finds the settings of its session, as JSON."""
_KEPT_LINES = 50

Settings = Mapping[str, str]
"""Settings of a session by their names."""

# Dies with the parent, then becomes the program. Not preexec_fn: this process has threads.
_BECOME = (
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGKILL); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)

_LOGGING = """
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n
"""


class ClusterError(Exception):
    """The cluster did not start; the text holds the last words of its processes."""


class Daemon:
    """A process of the cluster, and what it says on stderr."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self._said: deque[str] = deque(maxlen=_KEPT_LINES)
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._is_over = False
        self.process = subprocess.Popen(
            [sys.executable, "-c", _BECOME, *command],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def wait_for(self, pattern: str, *, count: int = 1) -> re.Match[str]:
        """Return when so many lines match, with the last match; ClusterError if they do not in time."""
        found: list[re.Match[str]] = []

        def is_decided() -> bool:
            found[:] = [match for line in self._lines if (match := re.search(pattern, line))]
            return len(found) >= count or self._is_over

        with self._changed:
            self._changed.wait_for(is_decided, START_SECONDS)
            if len(found) < count:
                raise ClusterError(f"no line {pattern!r} in: {' | '.join(self._said)}")
            return found[-1]

    def stop(self) -> None:
        """End the process, and kill what is left of its session."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        kill_session(self.process.pid)
        self.process.wait()
        self._listener.join(STOP_SECONDS)

    def _listen(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                with self._changed:
                    self._said.append(line.rstrip())
                    self._lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


class Cluster:
    """A master and workers with one core each. To the tests' environment they add ``environment``."""

    def __init__(
        self,
        directory: Path,
        *,
        workers: int = 2,
        worker_memory: str = "768m",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start everything below ``directory``; return when all workers are registered."""
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "log4j2.properties").write_text(_LOGGING)
        self._home = Path(pyspark.__file__).parent
        self.environment = {**os.environ, **self._settings(), **(environment or {})}
        self._daemons: list[Daemon] = []
        self._driver: Driver | None = None
        try:
            master = self._start(
                "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
            )
            self.url = master.wait_for(r"Starting Spark master at (spark://\S+)")[1]
            for number in range(workers):
                self._start(
                    "worker.Worker",
                    # A host each: of a task that is slow, another attempt is only made on another host.
                    *("--host", f"127.0.0.{number + 1}"),
                    *("--cores", "1", "--memory", worker_memory, "--webui-port", "0"),
                    *("--work-dir", str(directory / f"worker-{number}"), self.url),
                )
            master.wait_for(r"Registering worker \S+ with", count=workers)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the driver, the workers, and then the master; nothing of them is left."""
        self.free()
        for daemon in reversed(self._daemons):
            daemon.stop()
        self._daemons.clear()

    @property
    def sessions(self) -> list[int]:
        """Ids of the sessions that the processes lead."""
        return [daemon.process.pid for daemon in self._daemons]

    def settings(self) -> dict[str, str]:
        """Return the settings of a Spark session on this cluster: small, with nothing but loopback."""
        return {
            "spark.master": self.url,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": java_options(),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            # A task must not wait for the worker that happens to be nearer, or be alone on one.
            "spark.locality.wait": "0s",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "30s",
        }

    def run(
        self,
        job: str,
        *arguments: str,
        python: str = sys.executable,
        more: Settings | None = None,
    ) -> Any:
        """Run a job of ``jobs.py`` with Python workers that are ``python``; return what it returns.

        It runs in the driver of the job before, and in its executors, unless the settings of Spark that are
        added in ``more`` are others. Not in this process, where other tests may have their context.
        """
        if self._driver is None or self._driver.more != (more or {}):
            self.free()
            self._driver = Driver(self, more or {})
        try:
            return self._driver.run(job, *arguments, python=python)
        except BaseException:
            self.free()  # the next job shall not suffer from this one
            raise

    def free(self) -> None:
        """End the driver: another application has no core before."""
        if self._driver is not None:
            self._driver.stop()
            self._driver = None

    def _start(self, name: str, *arguments: str) -> Daemon:
        program = str(self._home / "bin" / "spark-class")
        daemon = Daemon(
            [program, f"org.apache.spark.deploy.{name}", *arguments],
            self.environment,
        )
        self._daemons.append(daemon)
        return daemon

    def _settings(self) -> dict[str, str]:
        logging = f"-Dlog4j2.configurationFile={self._directory / 'log4j2.properties'}"
        return {
            "SPARK_HOME": str(self._home),
            # It is in front of the class path, and Java reads no archive of classes if anything is there.
            "SPARK_CONF_DIR": str(self._directory / "no-configuration"),
            "SPARK_DAEMON_JAVA_OPTS": f"{os.environ.get('SPARK_DAEMON_JAVA_OPTS', '')} {logging}",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self._directory / "scratch"),
            "SPARK_DAEMON_MEMORY": "256m",
            "PYTHONPATH": python_path(ROOT),
        }


def processes_of(session: int) -> list[int]:
    """Return the processes of a session that are not dead."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] not in "ZX":
                found.append(int(path.parent.name))
    return found


def kill_session(session: int) -> None:
    """Kill a session's processes until there is none."""

    def are_gone() -> bool:
        found = processes_of(session)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not found

    with contextlib.suppress(TimeoutError):
        wait_until(are_gone, seconds=STOP_SECONDS)


class Driver:
    """A process with a session on a cluster, which does one job after the other."""

    def __init__(self, cluster: Cluster, more: Settings) -> None:
        self.more = more
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - stop() closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.jobs"],
            cwd=ROOT,
            env={
                **cluster.environment,
                SETTINGS: json.dumps({**cluster.settings(), **more}),
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )

    def run(self, job: str, *arguments: str, python: str) -> Any:
        """Let it do a job; return what that returned."""
        limit = threading.Timer(DRIVER_SECONDS, kill_session, [self._process.pid])
        limit.start()
        try:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps([job, python, *arguments]) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        finally:
            limit.cancel()
        assert answer, self._said()
        result, error = json.loads(answer)
        assert error is None, f"{error}\n{self._said()}"
        return result

    def stop(self) -> None:
        """End it; nothing of it is left."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=STOP_SECONDS)
        kill_session(self._process.pid)
        self._process.communicate()
        self._errors.close()

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()
