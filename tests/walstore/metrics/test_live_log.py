"""What a real log shows: its work, its failure and its end."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.local import SMALL, segments
from walstore import (
    DiskFullError,
    RecordTooLargeError,
    RegisterMismatchError,
    Settings,
    Wal,
    WalStore,
)
from walstore.core.settings import KIB
from walstore.errors import WalError
from walstore.metrics import PrometheusMetrics
from walstore.testing import FaultyFileSystem, ManualClock

ACTIVE = "next.tmp"
Shown = Callable[..., float | None]


@pytest.fixture
def registry() -> CollectorRegistry:
    """A registry of the test's own."""
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> PrometheusMetrics:
    """Metrics of a log called orders."""
    return PrometheusMetrics(registry, log="orders")


@pytest.fixture
def shown(registry: CollectorRegistry) -> Shown:
    """Return a sample of the log called orders: ``shown("commits_total", tier="file")``."""

    def get(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"walstore_{name}", {"log": "orders"} | labels)

    return get


async def test_appends_are_shown_at_once(log_directory, metrics, shown: Shown) -> None:
    async with Wal.open(log_directory, metrics=metrics) as wal:
        assert shown("commits_total") == 0
        await wal.append_many([b"value"] * 10)
        assert shown("appended_records_total") == 10
        assert shown("commits_total") == 1
        assert shown("tail_offset") == shown("durable_limit_offset") == 11
        assert shown("head_offset") == shown("local_head_offset") == 1
        assert shown("commit_records_sum") == 10
        assert shown("commit_bytes_sum") == shown("appended_bytes_total") > 50
        for name in ("append_seconds", "commit_seconds", "sync_seconds"):
            assert shown(f"{name}_count") == 1, name
        assert shown("append_seconds_sum") >= shown("commit_seconds_sum")
        assert shown("commit_seconds_sum") >= shown("sync_seconds_sum") > 0
        assert shown("segments") == 1
        assert shown("cache_bytes") > 50
        assert shown("waiting_records") == shown("waiting_bytes") == 0
        assert shown("durable_lag_records") == shown("durable_lag_seconds") == 0


async def test_append_time_is_that_of_the_oldest_record(
    log_directory, metrics, shown: Shown, clock: ManualClock, faulty: FaultyFileSystem
) -> None:
    """While one commit syncs for 2 s two records come, 0.5 s apart; then 1 s passes in their own sync."""
    async with Wal.open(log_directory, metrics=metrics, clock=clock, fs=faulty) as wal:
        with faulty.hold("datasync", name=ACTIVE) as hold:
            async with asyncio.TaskGroup() as group:
                group.create_task(wal.append(b"first"))
                await hold.wait_entered()
                clock.advance(0.25)
                group.create_task(wal.append(b"oldest"))
                await asyncio.sleep(0)
                clock.advance(0.5)
                group.create_task(wal.append(b"younger"))
                await asyncio.sleep(0)
                clock.advance(1.25)
                assert shown("waiting_records") == shown("durable_lag_records") == 3
                assert shown("waiting_bytes") > 18
                assert shown("durable_lag_seconds") == 2
                hold.release()
        assert shown("commits_total") == 2
        assert shown("append_seconds_count") == 2
        assert shown("append_seconds_sum") == 2 + 1.75
        assert shown("commit_seconds_sum") == 2
        assert shown("sync_seconds_sum") == 2
        assert shown("durable_lag_seconds") == 0


async def test_lag_of_what_is_written_and_not_synced(
    log_directory, metrics, shown: Shown, clock: ManualClock
) -> None:
    """With a sync every 10 s a record is written at once and lags until its sync."""
    settings = Settings(sync=10, durability="memory")
    async with Wal.open(log_directory, settings=settings, metrics=metrics, clock=clock) as wal:
        await wal.append(b"value")
        await clock.wait_for_sleepers()
        clock.advance(4)
        assert shown("commits_total") == 1
        assert shown("sync_seconds_count") == 0
        assert shown("waiting_records") == 0
        assert shown("durable_lag_records") == 1
        assert shown("durable_lag_seconds") == 4
        await wal.flush()
        assert shown("sync_seconds_count") == 1
        assert shown("durable_lag_records") == shown("durable_lag_seconds") == 0


async def test_rotations_are_counted(log_directory, metrics, shown: Shown) -> None:
    async with Wal.open(log_directory, settings=SMALL, metrics=metrics) as wal:
        await wal.append(b"value")
        await wal.rotate()
        assert (shown("rotations_total"), shown("segments")) == (1, 2)
        for _ in range(3):
            await wal.append_many([bytes(1000)] * 40)
        assert shown("rotations_total") == wal.statistics().rotations > 1
        assert shown("segments") == len(segments(log_directory))


async def test_reads_are_counted_by_tier(log_directory, metrics, shown: Shown) -> None:
    async with Wal.open(log_directory, settings=SMALL, metrics=metrics) as wal:
        for _ in range(40):
            await wal.append(bytes(1000))
        async with wal.reader("earliest", follow=False) as reader:
            assert len([record async for record in reader]) == 40
        for tier in ("file", "cache"):
            assert shown("reads_total", tier=tier) > 0, tier
            assert shown("read_bytes_total", tier=tier) > 1000, tier
        assert shown("reads_total", tier="cloud") == shown("read_bytes_total", tier="cloud") == 0
        assert shown("cache_evictions_total") > 0
        both = sum(shown("read_bytes_total", tier=tier) for tier in ("file", "cache"))
        assert both >= shown("appended_bytes_total")


async def test_reader_lag_is_that_of_the_slowest(log_directory, metrics, shown: Shown) -> None:
    """Readers that end somewhere do not count, nor those that nobody has any more."""
    async with Wal.open(log_directory, metrics=metrics) as wal:
        await wal.append_many([b"value"] * 10)
        fast, slow = wal.follow("latest"), wal.follow("earliest")
        once = wal.reader("earliest", follow=False)
        part = wal.follow("earliest", stop=5)
        assert (shown("readers"), shown("reader_lag_records")) == (2, 10)
        await slow.fetch(max_records=3)
        assert shown("reader_lag_records") == 7
        async for record in slow:
            assert record.offset == 4
            break
        assert shown("reader_lag_records") == 6
        await wal.append(b"value")
        assert shown("reader_lag_records") == 7
        del slow
        assert (shown("readers"), shown("reader_lag_records")) == (1, 1)
        del fast, once, part
        assert (shown("readers"), shown("reader_lag_records")) == (0, 0)


async def test_cursor_lag_is_shown_by_name(log_directory, metrics, shown: Shown) -> None:
    """For as long as the process has a handle, a consumer's included."""
    async with Wal.open(log_directory, metrics=metrics) as wal:
        await wal.append_many([b"value"] * 10)
        billing = await wal.cursor("billing")
        assert shown("cursor_lag_records", cursor="billing") == 10
        await billing.commit(8)
        assert shown("cursor_lag_records", cursor="billing") == 3
        async with wal.consumer("audit", follow=False) as consumer:
            assert len([record async for record in consumer]) == 10
            await consumer.commit()
            assert shown("cursor_lag_records", cursor="audit") == 0
            await wal.append(b"value")
            assert shown("cursor_lag_records", cursor="audit") == 1
        del billing, consumer
        assert shown("cursor_lag_records", cursor="billing") is None


async def test_transactions_are_counted(log_directory, metrics, shown: Shown) -> None:
    settings = Settings(transaction_memory_bytes=64 * KIB)
    async with Wal.open(log_directory, settings=settings, metrics=metrics) as wal:
        async with wal.transaction() as txn:
            await txn.append(b"small")
        assert shown("transaction_spilled_bytes_total") == 0
        async with wal.transaction() as txn:
            for _ in range(10):
                await txn.append(bytes(20 * KIB))
        with pytest.raises(ZeroDivisionError):
            async with wal.transaction() as txn:
                await txn.append(b"small")
                raise ZeroDivisionError
        assert shown("transactions_total", outcome="committed") == 2
        assert shown("transactions_total", outcome="rolled_back") == 1
        assert shown("transaction_spilled_bytes_total") > 200_000
        assert shown("commit_records_sum") == shown("appended_records_total") == 11


async def test_refusals_are_errors_by_type(log_directory, metrics, registry) -> None:
    settings = Settings(max_record_bytes=1000)
    async with Wal.open(log_directory, settings=settings, metrics=metrics) as wal:
        with pytest.raises(RecordTooLargeError):
            await wal.append(bytes(1001))
        for _ in range(2):
            with pytest.raises(RegisterMismatchError):
                await wal.append_many([b"value"], expect={"owner": "somebody"})
        found = {
            name: registry.get_sample_value("walstore_errors_total", {"type": name})
            for name in ("RecordTooLargeError", "RegisterMismatchError", "WouldBlock")
        }
        assert found == {"RecordTooLargeError": 1, "RegisterMismatchError": 2, "WouldBlock": None}
        assert wal.statistics().errors == {"RecordTooLargeError": 1, "RegisterMismatchError": 2}


async def test_waiting_for_room_is_shown_and_is_no_error(
    log_directory, metrics, shown: Shown, faulty: FaultyFileSystem, registry
) -> None:
    settings = Settings(max_record_bytes=1000, channel_bytes=2000)
    async with Wal.open(log_directory, settings=settings, metrics=metrics, fs=faulty) as wal:
        with faulty.hold("datasync", name=ACTIVE) as hold:
            async with asyncio.TaskGroup() as group:
                for _ in range(5):
                    group.create_task(wal.append(bytes(900)))
                await hold.wait_entered()
                assert shown("blocked_appends") == 3
                hold.release()
        assert shown("blocked_appends") == 0
        assert shown("appended_records_total") == 5
        assert wal.statistics().errors == {}


async def test_a_failure_is_shown_until_the_log_is_closed(
    log_directory, metrics, shown: Shown, faulty: FaultyFileSystem, registry
) -> None:
    """The gauge goes with the log; the count of errors stays and goes on after it is opened again."""
    errors = {"type": "DiskFullError"}
    for opening in (1, 2):
        wal = await Wal.open(log_directory, metrics=metrics, fs=faulty)
        assert shown("failed") == 0
        faulty.fail("pwrite", error=errno.ENOSPC)
        with pytest.raises(DiskFullError):
            await wal.append(b"value")
        faulty.heal()
        assert shown("failed") == 1
        assert "opened again" in (wal.statistics().failure or "")
        assert registry.get_sample_value("walstore_errors_total", errors) == opening
        with pytest.raises(WalError):
            await wal.aclose()
        assert shown("failed") is None
        assert registry.get_sample_value("walstore_errors_total", errors) == opening
        assert registry.get_sample_value("walstore_openings_total") == opening


async def test_a_recovery_that_cut_something_off_is_counted(
    log_directory, metrics, registry
) -> None:
    async with Wal.open(log_directory) as wal:
        await wal.append(b"kept")
        await wal.append(b"torn")
    (path,) = segments(log_directory)
    await asyncio.to_thread(lambda: path.write_bytes(path.read_bytes()[:-10]))
    await asyncio.to_thread(Path.unlink, log_directory / "CHECKPOINT", missing_ok=True)
    async with Wal.open(log_directory, metrics=metrics) as wal:
        cut = wal.recovery.truncated_bytes
        assert cut > 0
    async with Wal.open(log_directory, metrics=metrics):
        assert registry.get_sample_value("walstore_recovery_truncations_total") == 1
        assert registry.get_sample_value("walstore_recovery_truncated_bytes_total") == cut
        assert registry.get_sample_value("walstore_openings_total") == 2


async def test_a_closed_log_is_gone_and_the_others_stay(tmp_path, registry) -> None:
    metrics = PrometheusMetrics(registry)
    async with Wal.open(tmp_path / "stays", metrics=metrics) as stays:
        async with Wal.open(tmp_path / "goes", metrics=metrics):
            assert 'log="goes"' in generate_latest(registry).decode()
        await stays.append(b"value")
        text = generate_latest(registry).decode()
        assert 'log="goes"' not in text
        assert 'walstore_appended_records_total{log="stays"} 1.0' in text
    assert 'log="' not in generate_latest(registry).decode()
    assert registry.get_sample_value("walstore_logs") is None


async def test_asking_on_another_thread_while_the_log_works(
    log_directory, metrics, registry, shown: Shown
) -> None:
    """Answers never fail, counters never go back, and readers and appenders notice nothing."""
    done = asyncio.Event()
    commits: list[float] = []

    def ask() -> None:
        assert generate_latest(registry)
        commits.append(shown("commits_total") or 0)
        assert (shown("reader_lag_records") or 0) >= 0

    async def ask_all_the_time() -> None:
        while not done.is_set():
            await asyncio.to_thread(ask)

    async with Wal.open(log_directory, settings=SMALL, metrics=metrics) as wal:
        async with asyncio.TaskGroup() as group:
            group.create_task(ask_all_the_time())
            reader = wal.follow("earliest")
            for n in range(60):
                await wal.append(b"%d" % n * 100)
                if n % 20 == 0:
                    await wal.rotate()
                assert [record.offset async for record in wal.follow(n + 1, stop=n + 2)] == [n + 1]
                await reader.fetch(max_records=1)
            done.set()
        assert len(commits) > 1
        assert commits == sorted(commits)
        assert shown("reader_lag_records") == 0


async def test_metrics_that_cannot_be_attached_close_the_log(log_directory) -> None:
    class Broken:
        def attach(self, log: object, name: str) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Wal.open(log_directory, metrics=Broken())
    async with Wal.open(log_directory) as wal:  # not locked any more
        assert await wal.append(b"value") == 1


async def test_logs_of_a_store_are_shown_by_their_names(tmp_path, registry) -> None:
    get = registry.get_sample_value
    async with WalStore.open(tmp_path / "store", metrics=PrometheusMetrics(registry)) as store:
        for number, name in enumerate(("users", "orders/eu"), 1):
            wal = await store.wal(name)
            await wal.append_many([b"value"] * number)
        assert get("walstore_appended_records_total", {"log": "users"}) == 1
        assert get("walstore_appended_records_total", {"log": "orders/eu"}) == 2
        assert get("walstore_logs") == 2
        await store.close_log("users")
        assert get("walstore_appended_records_total", {"log": "users"}) is None
        assert get("walstore_logs") == 1
