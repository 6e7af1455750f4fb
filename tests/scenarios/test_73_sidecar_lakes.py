"""The sidecar landing a log in Delta and Iceberg: killed where it hurts, each record lands once."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.cluster.cluster import processes_of
from tests.lakes import Lake, find_lake
from tests.sidecars import SidecarProcess, cursor_at, sidecar
from tests.waiting import wait_until
from uploader import CloudWriter
from uploader.write.writer_settings import WriterSettings

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.kill,
    pytest.mark.timeout(900),
]

CURSOR = "lander"
AT_ONCE = 500
ATTEMPTS = 4


class Place:
    """A log in a store, and the table that it lands in."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.url = (lake.path / "store" / "orders").as_uri()
        self.checkpoint = lake.path / "checkpoint"
        self.tail = 1

    def append(self, fragments: int) -> None:
        asyncio.run(self._append(fragments))

    async def _append(self, fragments: int) -> None:
        async with CloudWriter.open(self.url, settings=WriterSettings(interval_seconds=0)) as log:
            for _ in range(fragments):
                limit = self.tail + AT_ONCE
                values = [b"record %d" % offset for offset in range(self.tail, limit)]
                await log.append_many(values)
                self.tail = limit

    def run(self, *options: object):
        config = [f"--config={name}={value}" for name, value in self.lake.config.items()]
        return sidecar(
            *(self.url, "--to", self.lake.table, "--format", self.lake.format, *config),
            *(
                "--checkpoint",
                self.checkpoint,
                "--cursor",
                CURSOR,
                "--trigger-seconds",
                0,
                *options,
            ),
        )

    def land(self) -> None:
        """Run until everything has landed."""
        with self.run("--once") as running:
            assert running.end() == 0, running.err

    def batches(self, folder: str) -> list[int]:
        """The batches that the checkpoint has begun (``offsets``) or committed (``commits``)."""
        found = (self.checkpoint / folder).glob("[0-9]*")
        return sorted(int(path.name) for path in found)

    def is_between(self) -> bool:
        """Whether a batch is in the table that the checkpoint does not know to be there."""
        begun, committed = self.batches("offsets"), self.batches("commits")
        return len(begun) == len(committed) + 1 == self.lake.commits()

    def cursor(self) -> int:
        return cursor_at(self.url, CURSOR)

    def check_all(self) -> None:
        assert self.lake.offsets() == list(range(1, self.tail)), "each once, none left out"
        assert self.cursor() == self.tail


def kill_at_commit(running: SidecarProcess, victims: list[int], lake: Lake, before: int) -> None:
    """Kill it and its Java process as soon as the table has one more commit."""
    process = running.process
    wait_until(lambda: lake.commits() != before or process.poll() is not None, seconds=240)
    assert process.poll() is None, f"it ended by itself: {running.err}"
    for pid in victims:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_killed_between_the_tables_commit_and_the_checkpoints(table_format: str, tmp_path: Path):
    place = Place(find_lake(table_format, tmp_path))
    place.append(2)
    for _ in range(ATTEMPTS):
        with place.run() as running:
            running.read_until(place.tail)
            victims = processes_of(running.process.pid)
            before = place.lake.commits()
            place.append(1)
            kill_at_commit(running, victims, place.lake, before)
        if place.is_between():
            break
    else:
        raise AssertionError("the checkpoint was faster each time")
    assert place.cursor() < place.tail
    place.append(1)
    place.land()
    place.check_all()

    # The same state once more, of the last batch: its commit did not reach the checkpoint.
    newest = place.batches("commits")[-1]
    for name in (f"{newest}", f".{newest}.crc"):
        (place.checkpoint / "commits" / name).unlink(missing_ok=True)
    (tmp_path / "store" / "orders" / "cursor" / f"{CURSOR}.json").unlink()
    assert place.is_between()
    place.land()
    place.check_all()

    # Checkpoint and table that do not belong together are refused; nothing lands, and no cursor is made.
    with place.run("--once", "--checkpoint", tmp_path / "new", "--cursor", "new") as running:
        assert running.end() == 1
        assert f"has records of orders up to {place.tail - 1}" in running.said[-1]
    assert not (tmp_path / "store" / "orders" / "cursor" / "new.json").exists()
