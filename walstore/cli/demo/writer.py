"""The writing process of the demo: opens the log, appends, and is killed and started again.

A pipe to the parent is its stdout. Its last life stops after the job's time and closes the log, which uploads
the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgpack

from uploader import CloudTier, UploadSettings
from walstore import CorruptionError, Settings, Wal
from walstore.cli.child_process import run_child, say
from walstore.cli.demo.checks import (
    ACK,
    CLOSED,
    KEY,
    OPENED,
    STATUS,
    STOPPED,
    STREAMS,
    digest,
    producer_number,
)

MAX_PROCESSES: Final = 8
"""The youngest ones are sampled."""
_PROC: Final = Path("/proc")
_LINES_PER_APPEND: Final = 256
_BACKLOG_RECORDS: Final = 200_000
"""Text producers wait while the store is this far behind."""
_FILE_BYTES: Final = 4 << 20
"""Size of segments and fragments: small, so that segments rotate often."""
_RETENTION_BYTES: Final = 24 << 20
"""Small, so that uploaded segments leave the disk while the demo runs."""
_STATUS_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoJob:
    """What one life of the writing process does. A value; its fields are the arguments of the process."""

    directory: str
    store_url: str
    life: int = 1
    """1 until the process is killed, 2 after its restart."""
    seconds: float = 6.0
    """How long each life appends."""


# -- data ------------------------------------------------------------------------------------


def sample(stream: str) -> bytes:
    """Return what the kernel reports now about cpu, memory, disk, network or processes, and the time.

    A msgpack map: ``at_ns`` of the monotonic clock, and the words of each line of /proc. Blocking.
    """
    rows = []
    for path in _sources(stream):
        with contextlib.suppress(OSError):  # a process that has ended
            for line in path.read_text(errors="replace").splitlines():
                if not line.startswith(("intr", "softirq")):  # hundreds of numbers
                    rows.append([int(word) if word.isdecimal() else word for word in line.split()])
    packed: bytes = msgpack.packb({"at_ns": time.monotonic_ns(), stream: rows})
    return packed


def _sources(stream: str) -> list[Path]:
    if stream != "processes":
        names = {"cpu": "stat", "memory": "meminfo", "disk": "diskstats", "network": "net/dev"}
        return [_PROC / names[stream]]
    numbers = [int(path.name) for path in _PROC.iterdir() if path.name.isdecimal()]
    return [_PROC / str(number) / "stat" for number in sorted(numbers)[-MAX_PROCESSES:]]


def texts() -> Iterator[list[bytes]]:
    """Yield up to 256 lines of a source file of the installed packages at a time, without an end.

    Begins again after the last file. FileNotFoundError if there is no source file. Blocking.
    """
    roots = dict.fromkeys(sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib"))
    while True:
        count = 0
        for path in _source_files(list(roots)):
            try:
                lines = Path(path).read_bytes().splitlines()
            except OSError:  # removed, or not readable for this user
                continue
            for at in range(0, len(lines), _LINES_PER_APPEND):
                count += 1
                yield lines[at : at + _LINES_PER_APPEND]
        if not count:
            raise FileNotFoundError(f"no Python source files below {', '.join(roots)}")


def _source_files(directories: list[str]) -> Iterator[str]:
    while directories:
        with os.scandir(directories.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.path)
                elif entry.name.endswith(".py"):
                    yield entry.path


# -- one life --------------------------------------------------------------------------------


class _Producer:
    """Numbers the records of one producer, and reports those that are on disk."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._count = 0
        self._checksum = 0

    def key(self, values: list[bytes]) -> bytes:
        first, self._count = self._count, self._count + len(values)
        self._checksum = digest(values, self._checksum)
        return KEY.pack(self._number, first, len(values), self._checksum)

    def acknowledge(self) -> None:
        """Report that all records are on disk that have a key."""
        say(ACK, self._number, self._count)


class DemoWriter:
    """One life of the writing process."""

    def __init__(self, job: DemoJob) -> None:
        self._job = job
        self._stop = asyncio.Event()
        """The time is up."""
        self._written = asyncio.Event()
        """All records are on disk."""
        self._append_us: list[int] = []
        self._tail_us: list[int] = []
        self._begun_ns: dict[bytes, int] = {}
        """When the append of a sample began, by its key."""
        self._texts = texts()
        self._reading = asyncio.Lock()
        """Held while a thread reads text."""

    async def run(self) -> None:
        """Open the log, append for the job's time, and close the log."""
        job = self._job
        settings = Settings(
            segment_bytes=_FILE_BYTES,
            checkpoint_bytes=_FILE_BYTES,
            retention_bytes=_RETENTION_BYTES,
        )
        tier = CloudTier(job.store_url, settings=UploadSettings(fragment_bytes=_FILE_BYTES))
        async with asyncio.TaskGroup() as group:
            async with Wal.open(job.directory, settings=settings, tier=tier) as wal:
                say(OPENED, {"tail": wal.tail} | dataclasses.asdict(wal.recovery))
                reporting = group.create_task(self._report(wal))
                await self._work(wal)
            reporting.cancel()
        self._send_status(wal)
        say(CLOSED)

    async def _work(self, wal: Wal) -> None:
        """Append for the job's time; the readers read everything."""
        async with asyncio.TaskGroup() as readers:
            readers.create_task(self._read_tail(wal))
            history = readers.create_task(self._read_history(wal))
            async with asyncio.TaskGroup() as producers:
                for index, stream in enumerate(STREAMS):
                    producer = _Producer(producer_number(self._job.life, index))
                    produce = self._produce_text if stream == "text" else self._produce_samples
                    producers.create_task(produce(wal, producer, stream))
                await asyncio.sleep(self._job.seconds)
                self._stop.set()
            await wal.flush()
            self._written.set()
        self._send_status(wal)
        say(STOPPED, history.result())

    async def _produce_samples(self, wal: Wal, producer: _Producer, stream: str) -> None:
        """Append samples, each when the one before is on disk."""
        while not self._stop.is_set():
            value = await asyncio.to_thread(sample, stream)
            key = producer.key([value])
            self._begun_ns[key] = begin = time.monotonic_ns()
            await wal.append(value, key=key, stream=stream)
            self._append_us.append((time.monotonic_ns() - begin) // 1000)
            producer.acknowledge()

    async def _produce_text(self, wal: Wal, producer: _Producer, stream: str) -> None:
        """Append lines, as fast as the log and the store accept them."""
        while not self._stop.is_set():
            async with self._reading:
                values = await asyncio.to_thread(next, self._texts)
            span = await wal.append_many(values, key=producer.key(values), stream=stream)
            producer.acknowledge()
            if span.stop - wal.uploaded_limit > _BACKLOG_RECORDS and not self._stop.is_set():
                await wal.wait_durable(span.stop - _BACKLOG_RECORDS, "cloud")

    async def _read_tail(self, wal: Wal) -> None:
        """Follow the newest records, and measure the time from their append to their arrival."""
        reader = wal.follow("latest")
        while not (self._written.is_set() and reader.is_caught_up):
            batch = await reader.fetch(max_records=4096, max_wait_seconds=_STATUS_SECONDS)
            now_ns = time.monotonic_ns()
            for key in dict.fromkeys(batch.keys):
                begun_ns = self._begun_ns.pop(key or b"", None)
                if begun_ns is not None:
                    self._tail_us.append((now_ns - begun_ns) // 1000)

    async def _read_history(self, wal: Wal) -> int:
        """Read from the first record: the cloud, then files, then memory. Return the next offset."""
        reader, position = wal.follow("earliest"), wal.head
        while not (self._written.is_set() and reader.is_caught_up):
            batch = await reader.fetch(
                max_records=1 << 16, max_bytes=4 << 20, max_wait_seconds=_STATUS_SECONDS
            )
            if batch.start != position or len(batch.values) != batch.limit - batch.start:
                raise CorruptionError(
                    f"the reader was at {position} and got [{batch.start}, {batch.limit})",
                    path=str(wal.path),
                )
            position = batch.limit
        return position

    async def _report(self, wal: Wal) -> None:
        while True:
            await asyncio.sleep(_STATUS_SECONDS)
            self._send_status(wal)

    def _send_status(self, wal: Wal) -> None:
        now = wal.statistics()
        names = ("durable_limit", "uploaded_limit", "appended_bytes", "commits", "rotations")
        status = {name: getattr(now, name) for name in (*names, "tier_failure")}
        say(STATUS, status, self._append_us, self._tail_us)
        self._append_us, self._tail_us = [], []


if __name__ == "__main__":
    run_child(lambda **fields: DemoWriter(DemoJob(**fields)).run())
