"""The simulation of collections itself: a seed is always the same history, and what is broken is found."""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow as pa
import pytest

from tests.effort import first_seed, some
from tests.sim.collections.history import CollectionHistory, simulate
from tests.sim.collections.plan import draw
from tests.sim.collections.truth import COLLECTION_RULES
from tests.sim.rules import ViolationError
from uploader.versioned import collection_reader, controller, registration, transitions
from uploader.versioned.collection_writer import CollectionWriter
from uploader.versioned.head import Head
from uploader.versioned.sweep import plan_sweep
from walstore.errors import UpperMismatchError


@pytest.mark.parametrize("first", [0, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_histories(first: int) -> None:
    """A small share of what ``make sim`` runs; odd seeds have upsert collections."""
    count = some(50) if first else 3
    first += first_seed("histories of collections")
    for seed in range(first, first + count):
        simulate(seed)


LISTS: dict[str, Any] = {"lists": True, "shards": 1, "writers": 3, "cancels": 0.1, "calls": 8}


@pytest.mark.parametrize("first", [0, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_transactions_on_lists(first: int) -> None:
    """They are strictly serializable, whatever fails."""
    count, committed = some(50) if first else 4, 0
    first += first_seed("transactions on lists")
    for seed in range(first, first + count):
        committed += simulate(seed, **LISTS, readers=seed % 2).happened["transactions ok"]
    assert committed > 0  # in some histories each writer is killed before its first one


@pytest.mark.slow
def test_a_seed_is_always_the_same_history() -> None:
    traces = []
    for _ in range(2):
        history = CollectionHistory(draw(2))
        history.run()
        traces.append(history.trace)
    assert len(traces[0]) > 50
    assert traces[0] == traces[1]


def broken(rules: set[str], seeds: range, **changes: Any) -> None:
    """Check that some history breaks one of these rules."""
    found = set()
    for seed in seeds:
        try:
            simulate(seed, **changes)
        except ViolationError as violation:
            found.add(violation.rule)
            if violation.rule in rules:
                return
    pytest.fail(f"none of {rules} was broken, but {found}")


BUSY: dict[str, Any] = {
    "readers": 3,
    "controllers": 2,
    "lives": 2,
    "calls": 12,
    "delays": True,
    "page": 1000,
}


@pytest.mark.slow
def test_a_compaction_beyond_what_readers_hold_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def greatest(head: Head) -> Head:
        most = max([head.since, *(hold.frontier for hold in head.readers.values())])
        return dataclasses.replace(head, since=most)

    monkeypatch.setattr(transitions, "advance_since", greatest)
    broken({"fails-for-a-cause", "as-of"}, range(6), **BUSY)


@pytest.mark.slow
def test_a_collector_that_asks_no_reader_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def careless(session: Any, head: Head, *, delete_after_seconds: float) -> Any:
        return await plan_sweep(
            session, dataclasses.replace(head, readers={}), delete_after_seconds=0.0
        )

    monkeypatch.setattr(controller, "plan_sweep", careless)
    monkeypatch.setattr(transitions, "raise_floors", _any_floors)
    broken({"holds", "kept"}, range(8), **BUSY)


def _any_floors(head: Head, *, epoch: int, gc_floor: int, purged: int) -> Head:
    return dataclasses.replace(head, gc_floor=gc_floor, purged=purged)


@pytest.mark.slow
def test_a_compaction_that_drops_updates_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    merge = controller.merge

    def lossy(tables: Any, *args: Any, **options: Any) -> Any:
        return merge(
            [table.slice(0, max(table.num_rows - 1, 1)) for table in tables], *args, **options
        )

    monkeypatch.setattr(controller, "merge", lossy)
    broken({"as-of", "acknowledged"}, range(4), **BUSY)


@pytest.mark.slow
def test_a_listener_that_holds_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def greedy(self: Any) -> None:
        self.frontier = self._session.head.seen.head.upper + 5

    monkeypatch.setattr(registration.Registration, "renew", greedy)
    broken({"fails-for-a-cause", "as-of", "listen"}, range(6), **BUSY)


@pytest.mark.slow
def test_an_append_that_takes_whatever_place_there_is_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    append = CollectionWriter.append

    async def careless(self: Any, table: Any, *, lower: int, upper: int) -> None:
        try:
            await append(self, table, lower=lower, upper=upper)
        except UpperMismatchError as error:
            if error.actual < lower:
                raise
            moved = table.set_column(
                table.column_names.index("_t"),
                "_t",
                pa.array([error.actual] * table.num_rows, pa.uint64()),
            )
            await append(self, moved, lower=error.actual, upper=error.actual + 1)

    monkeypatch.setattr(CollectionWriter, "append", careless)
    broken({"serializable"}, range(6), **LISTS)


@pytest.mark.slow
def test_reads_of_what_is_no_longer_the_newest_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    upper = collection_reader.CollectionReader.upper

    async def late(self: Any) -> int:
        return max(await upper(self) - 4, min(self.frontier + 1, await upper(self)))

    monkeypatch.setattr(collection_reader.CollectionReader, "upper", late)
    broken({"serializable"}, range(6), **LISTS)


def test_every_rule_has_a_sentence() -> None:
    assert all(rule == rule.lower() and sentence for rule, sentence in COLLECTION_RULES.items())
