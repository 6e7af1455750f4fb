"""Sidecars as processes of their own, and what a table that they wrote holds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.cluster.cluster import kill_session
from tests.spark_jvm import SparkJvm
from uploader import CloudLog

END_SECONDS = 120.0


class SidecarProcess:
    """``walstore sidecar … --json``, and the lines it writes."""

    def __init__(
        self,
        *arguments: object,
        command: Sequence[str] = (sys.executable, "-m", "walstore.cli", "sidecar"),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [*command, *map(str, arguments), "--json"],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.said: deque[str] = deque(maxlen=200)
        """Lines on stderr."""
        self._spoke = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def err(self) -> str:
        """What it said on stderr so far."""
        return "\n".join(self.said)

    def read(self, event: str) -> dict[str, Any]:
        """Return the next line about this event; fail if the process ends before."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = json.loads(line)
            if found["event"] == event:
                return found
        raise AssertionError(f"it ended with {self.process.wait()}: {self.err}")

    def read_until(self, position: int, log: str = "orders") -> dict[str, Any]:
        """Return the first report that says that so much has landed."""
        while True:
            found = self.read("landed")
            if found["positions"][log]["0"] >= position:
                return found

    def wait_for_warning(self, text: str) -> None:
        """Return when it has said this on stderr."""
        with self._spoke:
            assert self._spoke.wait_for(lambda: text in self.err, END_SECONDS), self.err

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait for its end; return its code."""
        assert self.process.stdout is not None
        self.process.stdout.read()
        code = self.process.wait(END_SECONDS)
        self._listener.join(END_SECONDS)
        return code

    def kill(self) -> None:
        """Kill it without a word, and wait until its Java process has noticed and gone, too."""
        self.process.kill()
        self.process.wait()
        self._listener.join(END_SECONDS)  # the Java process holds stderr as long as it lives

    def close(self) -> None:
        """Leave nothing of it."""
        kill_session(self.process.pid)
        self.process.wait()
        self._listener.join(END_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                with self._spoke:
                    self.said.append(line.rstrip())
                    self._spoke.notify_all()


@contextlib.contextmanager
def sidecar(
    *arguments: object, jvm: SparkJvm | None = None, **options: Any
) -> Iterator[SidecarProcess]:
    """Run a sidecar, in this JVM or in its own; nothing of it is left behind the block."""
    with contextlib.ExitStack() as stack:
        if jvm is not None:
            options["environment"] = stack.enter_context(jvm.lend())
        started = SidecarProcess(*arguments, **options)
        stack.callback(started.close)
        yield started


def committed_files(table: Path) -> list[Path]:
    """Return the files that belong to a table, as Spark's readers know them: by the log of its sink."""
    log = table / "_spark_metadata"
    names = [path.name for path in log.iterdir() if not path.name.startswith(".")]
    compacted = max(
        (int(name.partition(".")[0]) for name in names if name.endswith(".compact")), default=-1
    )
    numbers = sorted(int(name) for name in names if name.isdigit() and int(name) > compacted)
    found: list[Path] = []
    for name in [*([f"{compacted}.compact"] if compacted >= 0 else []), *map(str, numbers)]:
        version, *lines = (log / name).read_text().splitlines()
        assert version == "v1"
        for line in lines:
            entry = json.loads(line)
            assert entry["action"] == "add"
            found.append(Path(entry["path"].removeprefix("file://")))
    return found


def landed_rows(table: Path, *columns: str) -> list[tuple[Any, ...]]:
    """Return these columns of all rows in a table, in order."""
    rows: list[tuple[Any, ...]] = []
    for path in committed_files(table):
        found = pq.ParquetFile(path).read(columns=list(columns)).to_pydict()
        rows += zip(*(found[name] for name in columns), strict=True)
    return sorted(rows)


def cursor_at(url: str, name: str) -> int:
    """Return where a cursor of a log in a store stands."""

    async def look() -> int:
        async with CloudLog.open(url) as log:
            found = await log.cursors.load(name)
            assert found is not None
            return found.position

    return asyncio.run(look())
