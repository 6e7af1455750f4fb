"""walstore logs remove: it may be called again whatever became of a call, and takes only what it has seen."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.walstore.cli.conftest import Cli
from tests.walstore.cli.test_cluster import put, spec
from walstore.errors import OutcomeUnknownError, StorageUnavailableError
from walstore.topology.documents import Leader, LogSpec, Synced
from walstore.topology.key_values import KeyValue, Swap
from walstore.topology.memory import MemoryKeyValues

LOG, REMOVED, MARKS, LEADER = (
    f"walstore/{folder}/orders" for folder in ("logs", "removed", "synced", "leaders")
)
COPIES = ("tls://a:1", "tls://b:1", "tls://c:1")
KNOWN = Synced("ab" * 16, 3, 1, {"tls://a:1": 9})


@pytest.fixture
def led(store: MemoryKeyValues) -> LogSpec:
    """A log with marks in the store."""
    found = LogSpec(copies=COPIES)
    put(store, LOG, found.encode())
    put(store, MARKS, KNOWN.encode())
    return found


def lose_an_answer(monkeypatch: pytest.MonkeyPatch, key: str, *, happens: bool) -> None:
    """Let the next swap of a key happen or not, and its answer be lost."""
    swap = MemoryKeyValues.swap

    def lost(self: MemoryKeyValues, of: str, value: bytes | None, at: int, lease: int) -> Swap:
        if of != key:
            return swap(self, of, value, at, lease)
        monkeypatch.setattr(MemoryKeyValues, "swap", swap)
        if happens:
            swap(self, of, value, at, lease)
        raise OutcomeUnknownError("the answer was lost")

    monkeypatch.setattr(MemoryKeyValues, "swap", lost)


def before_get(monkeypatch: pytest.MonkeyPatch, key: str, act: Callable[[], None]) -> None:
    """Let something happen when a key is read for the first time."""
    get = MemoryKeyValues.get

    def looked(self: MemoryKeyValues, of: str) -> KeyValue | None:
        if of == key:
            monkeypatch.setattr(MemoryKeyValues, "get", get)
            act()
        return get(self, of)

    monkeypatch.setattr(MemoryKeyValues, "get", looked)


@pytest.mark.parametrize("happens", [True, False])
@pytest.mark.parametrize("key", [REMOVED, LOG, MARKS])
def test_an_answer_is_lost(
    cli: Cli,
    store: MemoryKeyValues,
    led: LogSpec,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    happens: bool,
) -> None:
    lose_an_answer(monkeypatch, key, happens=happens)
    done = cli("logs", "remove", "orders", "--confirm", "--json")
    if not happens:
        assert (done.code, "the answer was lost" in done.err) == (1, True)
        dry = cli("logs", "remove", "orders", "--json")
        assert (dry.code, dry.json["removed"], dry.json["copies"]) == (0, False, list(COPIES))
        done = cli("logs", "remove", "orders", "--confirm", "--json")
    assert (done.code, done.json["removed"], done.json["copies"]) == (0, True, list(COPIES))
    assert [store.get(one) for one in (LOG, MARKS)] == [None, None]
    assert cli("logs", "remove", "orders", "--confirm").code == 3
    assert cli("logs", "apply", "orders").code == 0
    assert spec(store) == led


def test_the_store_is_away_between_two_steps(
    cli: Cli, store: MemoryKeyValues, led: LogSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave() -> None:
        raise StorageUnavailableError("the store does not answer")

    before_get(monkeypatch, LEADER, leave)
    assert cli("logs", "remove", "orders", "--confirm").code == 1
    assert (store.get(LOG), store.get(MARKS) is None) == (None, False)
    assert cli("logs", "remove", "orders", "--confirm").code == 0
    assert store.get(MARKS) is None


@pytest.mark.parametrize("seen", [LEADER, MARKS])
def test_a_log_that_is_made_again_meanwhile_keeps_its_marks(
    cli: Cli,
    store: MemoryKeyValues,
    led: LogSpec,
    monkeypatch: pytest.MonkeyPatch,
    seen: str,
) -> None:
    first = KNOWN._replace(epoch=4, limits={"tls://a:1": 12})

    def make_again() -> None:
        if store.list(LOG).items:  # it looks at the marks before, too
            before_get(monkeypatch, seen, make_again)
            return
        put(store, LOG, led.encode())
        put(store, MARKS, first.encode())

    before_get(monkeypatch, seen, make_again)
    done = cli("logs", "remove", "orders", "--confirm")
    assert (done.code, "was made again meanwhile" in done.err) == (0, True)
    found = store.get(MARKS)
    assert found is not None
    assert Synced.decode(found.value, MARKS) == first
    assert spec(store) == led


def test_marks_of_a_log_that_is_led_by_a_program_stay(cli: Cli, store: MemoryKeyValues) -> None:
    """It has marks, too, and was never a log of the cluster."""
    put(store, MARKS, KNOWN.encode())
    put(store, LEADER, Leader("tls://a:1", "00", 3).encode())
    assert cli("logs", "remove", "orders", "--confirm").code == 3
    assert store.get(MARKS) is not None


def test_marks_of_a_newer_version_are_not_removed(
    cli: Cli, store: MemoryKeyValues, led: LogSpec
) -> None:
    put(store, MARKS, json.dumps({"version": 2, "copies": []}).encode())
    refused = cli("logs", "remove", "orders", "--confirm")
    assert (refused.code, MARKS in refused.err, "newer version" in refused.err) == (1, True, True)
    assert spec(store) == led
    assert store.get(MARKS) is not None
