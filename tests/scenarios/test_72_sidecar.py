"""The sidecar as it is run: stopped, killed at any point, beside a collection; each record lands once.

One that is killed has a JVM of its own, which starts and dies with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.effort import first_seed, some
from tests.sidecars import SidecarProcess, cursor_at, landed_rows, sidecar
from tests.spark_jvm import SparkJvm
from tests.waiting import wait_until
from uploader import CloudLog, CloudWriter, CollectorSettings, GarbageCollector
from uploader.write.writer_settings import WriterSettings
from walstore.spark.features import HAS_LIMITS

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

CURSOR = "lander"
KILLS = some(15, least=3)
AT_ONCE = 100
"""Records of a fragment, and of a batch of the table."""


def value(offset: int) -> bytes:
    return b"record %d" % offset


class Place:
    """A log in a store, and the table that it lands in."""

    def __init__(self, path: Path, log: str = "orders") -> None:
        self.url = (path / "store" / log).as_uri()
        self.table = path / "table"
        self.tail = 1

    def append(self, fragments: int) -> None:
        """Append records that say their offset, so many fragments of them."""
        asyncio.run(self._append(fragments))

    async def _append(self, fragments: int) -> None:
        settings = WriterSettings(interval_seconds=0)
        async with CloudWriter.open(self.url, settings=settings) as log:
            for _ in range(fragments):
                limit = self.tail + AT_ONCE
                await log.append_many([value(offset) for offset in range(self.tail, limit)])
                self.tail = limit

    def run(self, *options: object, **more):
        """Run a sidecar with small batches, where Spark can do that, one directly after the other."""
        small = ("--max-records-per-trigger", AT_ONCE) if HAS_LIMITS else ()
        return sidecar(
            *(self.url, "--to", self.table, "--cursor", CURSOR),
            *(*small, "--trigger-seconds", 0, *options),
            **more,
        )

    def cursor(self) -> int:
        """Where the sidecar's cursor stands."""
        return cursor_at(self.url, CURSOR)

    def collect(self) -> int:
        """Remove whatever no cursor asks for; return where the log begins."""

        async def collect() -> int:
            settings = CollectorSettings(interval_seconds=0, max_drop_fraction=1)
            async with GarbageCollector.open(self.url, settings=settings) as collector:
                await collector.collect()
            async with CloudLog.open(self.url) as log:
                return log.head

        return asyncio.run(collect())

    def landed(self) -> list[int]:
        """Return the offsets in the table, after checking what their records say."""
        if not (self.table / "_spark_metadata").is_dir():
            return []
        rows = landed_rows(self.table, "offset", "value")
        assert all(said == value(offset) for offset, said in rows)
        return [offset for offset, _ in rows]

    def check(self, *, is_all: bool = False) -> int:
        """Check that each record landed once, and that what is not there is still kept; return how many."""
        landed = self.landed()
        assert landed == list(range(1, len(landed) + 1)), "each once, in order, none left out"
        assert self.cursor() <= len(landed) + 1, "the cursor never overtakes the table"
        if is_all:
            assert len(landed) + 1 == self.tail == self.cursor()
        return len(landed)


@pytest.mark.kill
def test_killed_at_random_points_each_record_lands_once_and_none_is_collected_before(tmp_path):
    place, chance = Place(tmp_path), random.Random(first_seed("sidecar"))
    counts = []
    place.append(6)
    for round_ in range(KILLS):
        with place.run() as running:
            if round_:
                # In its start, in the middle of a batch, or between a batch and the cursor.
                running.read("started")
            place.append(2)
            if round_ > 1:
                running.read("landed")
            kill_after(running, chance.uniform(0, 1.5))
        counts.append(place.check() if round_ else 0)
        if round_:
            head = place.collect()
            assert head <= counts[-1] + 1, "a collection took what had not landed"
    assert counts[-1] > 0
    with place.run("--once") as running:
        assert running.end() == 0, running.err
    place.check(is_all=True)
    assert place.collect() == place.tail


def kill_after(running: SidecarProcess, seconds: float) -> None:
    """Kill at a point that nobody chose: after some time, whatever is done meanwhile."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        running.process.wait(seconds)
        raise AssertionError(f"it ended by itself: {running.err}")
    running.kill()


def test_stopped_by_a_signal_it_ends_in_order_and_goes_on_where_it_was(
    tmp_path, spark_jvm: SparkJvm
):
    place = Place(tmp_path)
    place.append(3)
    with place.run("--metrics-port", 0, jvm=spark_jvm) as running:
        started = running.read("started")
        assert started["positions"] == {"orders": {"0": 1}}
        assert (started["resumed"], started["cursor"]) == (False, CURSOR)
        assert started["checkpoint"] == str(place.table / "_checkpoint")
        report = running.read_until(place.tail)
        assert report["cursors"] == report["positions"]
        assert report["lag_records"] == (0 if HAS_LIMITS else None)
        port = running.err.partition("metrics at port ")[2].split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            shown = answer.read().decode()
        assert f'walstore_sidecar_landed_offset{{log="orders"}} {place.tail}.0' in shown
        running.signal(signal.SIGTERM)
        assert running.end() == 0, running.err
    assert place.check(is_all=True) == 3 * AT_ONCE

    place.append(1)
    cursor = tmp_path / "store" / "orders" / "cursor" / f"{CURSOR}.json"
    with place.run(jvm=spark_jvm) as running:
        started = running.read("started")
        assert started["resumed"]
        assert started["positions"] == {"orders": {"0": 301}}
        running.read_until(place.tail)
        # The store fails for the cursor alone; what lands goes on landing, and the cursor follows later.
        good = cursor.read_bytes()
        cursor.write_bytes(b"{")
        place.append(1)
        report = running.read_until(place.tail)
        assert report["cursors"] == {"orders": {"0": 401}}
        running.wait_for_warning("the cursor stays where it is for now")
        cursor.write_bytes(good)
        report = running.read("landed")
        assert report["records"] == 0, "nothing came meanwhile"
        assert report["cursors"] == report["positions"]
        running.signal(signal.SIGINT)
        assert running.end() == 0, running.err
    assert place.check(is_all=True) == 5 * AT_ONCE


def test_of_two_with_the_same_checkpoint_one_ends(tmp_path, spark_jvm: SparkJvm):
    """Started by mistake: Spark lets the first one commit a batch, and the other notices."""
    place = Place(tmp_path)
    place.append(1)
    with place.run(jvm=spark_jvm) as one, place.run() as other:
        one.read("started")
        other.read("started")
        ended, running = first_to_end(place, one, other)
        assert ended.end() == 1
        # Rarely, Spark stumbles over a file of the checkpoint that the other one is writing.
        assert re.search(
            r"another query runs with the same checkpoint|_checkpoint/", ended.said[-1]
        )
        running.signal(signal.SIGTERM)
        assert running.end() == 0, running.err
    with place.run("--once", jvm=spark_jvm) as running:
        assert running.end() == 0, running.err
    place.check(is_all=True)


def first_to_end(place: Place, one: SidecarProcess, other: SidecarProcess):
    """Return the one that ends by itself, and then the other.

    They meet where both work on one batch. One that looks at the checkpoint after a batch of the other goes
    on behind it.
    """

    def has_ended() -> bool:
        return (one.process.poll(), other.process.poll()) != (None, None)

    for _ in range(24):
        place.append(1)
        with contextlib.suppress(TimeoutError):
            wait_until(has_ended, seconds=10)
            break
    assert has_ended(), "both go on"
    return (one, other) if one.process.poll() is not None else (other, one)


def test_several_logs_in_a_divided_table(tmp_path, spark_jvm: SparkJvm):
    orders, payments = Place(tmp_path), Place(tmp_path, "payments")
    orders.append(2)
    payments.append(1)
    with sidecar(
        *((tmp_path / "store").as_uri(), "--to", tmp_path / "table", "--once", "--no-headers"),
        *("--subscribe", "orders,payments", "--partition-by", "topic,date", "--cursor", CURSOR),
        jvm=spark_jvm,
    ) as running:
        assert running.end() == 0, running.err
    folders = sorted(path.name for path in (tmp_path / "table").glob("topic=*"))
    assert folders == ["topic=orders", "topic=payments"]
    assert all("date=" in str(path) for path in (tmp_path / "table").glob("*/*.parquet"))
    rows = landed_rows(tmp_path / "table", "offset", "value")
    assert len(rows) == 300
    assert (orders.cursor(), payments.cursor()) == (201, 101)


def test_a_directory_and_mistakes_that_only_spark_shows(tmp_path, spark_jvm: SparkJvm):
    """One after the other, as somebody would make them; each is one line and a code."""
    place = Place(tmp_path)
    place.append(1)
    with place.run("--once", jvm=spark_jvm) as running:
        assert running.end() == 0, running.err
    other = Place(tmp_path, "payments")
    other.append(1)
    for options, message in [
        ((other.url, "--to", place.table), "belongs to orders"),
        ((place.url, "--to", place.table, "--checkpoint", tmp_path / "new"), "knows of 0"),
        ((place.url, "--to", tmp_path / "delta", "--format", "delta"), "--packages io.delta"),
    ]:
        with sidecar(*options, jvm=spark_jvm) as running:
            assert running.end() == 1
            assert message in running.said[-1]
            assert "Traceback" not in running.err
