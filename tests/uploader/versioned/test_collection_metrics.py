"""Metrics of collections: what they show, for how long, and that the page has them all."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.uploader.versioned.collections import SCHEMA, SHORT_SECONDS, Site, rows, turns
from tests.waiting import until
from uploader import Collection, CollectionMetrics, Compacted, Purged
from uploader.testing.faults import fail, timeout
from uploader.versioned.collection_metrics import METRICS, label_of
from walstore.errors import CollectionNotFoundError, InvalidSettingsError

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
PERIOD = 2 * SHORT_SECONDS


def shown(registry: CollectorRegistry) -> dict[str, float]:
    """Return the samples, without what all names begin with."""
    lines = [line for line in generate_latest(registry).decode().splitlines() if line[0] != "#"]
    found = (line.removeprefix("walstore_collection_").rsplit(" ", 1) for line in lines)
    return {name: float(value) for name, value in found}


async def test_what_a_look_shows():
    site, registry = Site(), CollectorRegistry()
    metrics = CollectionMetrics(registry, clock=site.clock)
    async with site.program().opened() as collection:
        writer = collection.writer()
        await writer.append(rows((1, "a"), (2, "b"), (3, "c")), lower=0, upper=10)
        async with (
            site.program().controller() as controller,
            await collection.reader("report", since=3, lease_seconds=900.0),
            await collection.critical("spark", since=8),
        ):
            metrics.compacted("here", await controller.compact())
            metrics.removed("here", await controller.gc())
            await writer.append(rows((4, "d")), lower=10, upper=12)
            metrics.show("here", await collection.status())
            site.clock.seconds += 60
            found = shown(registry)
    here = '{collection="here"}'
    assert {name: found[name + here] for name in ("upper", "merged_upper", "since", "behind")} == {
        "upper": 12,
        "merged_upper": 10,
        "since": 3,
        "behind": 8,
    }
    assert found['batches{collection="here",layer="2"}'] == 1
    assert (found["rows" + here], found["pending_rows" + here]) == (3, 1)
    assert (found["pending_batches" + here], found["readers" + here]) == (1, 2)
    assert found["bytes" + here] > 0 < found["pending_bytes" + here]
    assert (found["epoch" + here], found["controlled" + here]) == (1, 1)
    assert found['reader_behind{collection="here",reader="report"}'] == 8
    assert found['reader_behind{collection="here",reader="spark"}'] == 3
    assert found['reader_versions{collection="here",reader="report"}'] == 1
    assert found['reader_lease_seconds{collection="here",reader="report"}'] == pytest.approx(
        840, abs=0.1
    )
    assert 'reader_lease_seconds{collection="here",reader="spark"}' not in found
    assert found["look_timestamp_seconds" + here] == site.clock.now_us() / 1e6 - 60
    assert (found["compaction_passes_total" + here], found["version" + here]) == (1, 1)
    assert found["compaction_written_rows_total" + here] == 3
    assert found['removed_objects_total{collection="here",kind="pending"}'] == 0


async def test_a_task_looks_again_and_a_failed_look_is_counted():
    site, registry = Site(), CollectorRegistry()
    metrics = CollectionMetrics(registry, clock=site.clock)
    program = site.program()
    async with program.opened() as collection, asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(metrics.watch(collection, name="here", seconds=PERIOD))
        await turns()
        assert shown(registry)['upper{collection="here"}'] == 0
        await collection.writer().append(rows((1, "a")), lower=0, upper=5)
        program.store.on("get", fail(timeout()), key_prefix="head")
        await site.clock.advance(PERIOD)
        found = shown(registry)
        assert found['upper{collection="here"}'] == 0
        assert found['look_failures_total{collection="here"}'] == 1
        await site.clock.advance(PERIOD)
        await until(lambda: shown(registry)['upper{collection="here"}'] == 5)
        watching.cancel()
    assert shown(registry) == {'look_failures_total{collection="here"}': 1}


async def test_the_label_is_the_end_of_the_url(tmp_path):
    async with Collection.open(
        f"file://{tmp_path}/lake/people", create=True, schema=SCHEMA
    ) as collection:
        assert label_of(collection) == "people"


async def test_watching_ends_with_the_collection():
    site, registry = Site(), CollectorRegistry()
    metrics = CollectionMetrics(registry, clock=site.clock)
    async with site.program().opened() as collection:
        with pytest.raises(InvalidSettingsError, match="positive"):
            await metrics.watch(collection, seconds=0)
        await collection.delete()
        with pytest.raises(CollectionNotFoundError):
            await metrics.watch(collection, name="gone")
    assert shown(registry) == {}


def test_one_object_serves_a_registry():
    registry = CollectorRegistry()
    metrics = CollectionMetrics(registry)
    with pytest.raises(InvalidSettingsError, match="use that CollectionMetrics"):
        CollectionMetrics(registry)
    for name in ("one", "other"):
        metrics.compacted(name, Compacted(passes=2, rows_read=7, seconds=0.5))
    metrics.compacted("one", Compacted(passes=1, seconds=0.25))
    metrics.removed(
        "one",
        Purged(pending=3, merged=2, versions=1, size_bytes=9, gc_floor=0, purged=0, held_by=None),
    )
    found = shown(registry)
    assert found['compaction_passes_total{collection="one"}'] == 3
    assert found['compaction_seconds_total{collection="one"}'] == 0.75
    assert found['compaction_read_rows_total{collection="other"}'] == 7
    assert found['removed_objects_total{collection="one",kind="merged"}'] == 2
    assert found['removed_bytes_total{collection="one"}'] == 9


async def test_series_are_bounded():
    """A hundred readers have three series each, and there is no other label that grows with them."""
    site, registry = Site(), CollectorRegistry()
    metrics = CollectionMetrics(registry, clock=site.clock)
    async with site.program().opened() as collection:
        for number in range(100):
            await collection.reader(f"r{number}")
        metrics.show("here", await collection.status())
        names = shown(registry)
    assert len([name for name in names if "reader=" in name]) == 300
    assert len([name for name in names if "reader=" not in name]) < len(METRICS)


def test_names_follow_the_conventions():
    units = ("_seconds", "_bytes", "_rows")
    for metric in METRICS:
        assert re.fullmatch(r"walstore(_[a-z]+)+", metric.full_name)
        assert not any(f"{unit}_" in metric.name for unit in units)
        assert metric.help.endswith(".")


def test_the_page_has_them_all():
    """Their rows are those of docs/metrics.md, in the same order."""
    rows_of_page = re.findall(r"^\| `walstore_collection_.*$", PAGE.read_text(), re.MULTILINE)
    expected = []
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        expected.append(f"| `{metric.full_name}` | {metric.kind} | {labels} | {metric.help} |")
    assert rows_of_page == expected, "\n".join(expected)
