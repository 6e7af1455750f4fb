"""Keys that nobody should have written: one line names the key and what to do, and the rest goes on."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.waiting import until
from tests.walstore.cluster.machines import Machines
from walstore.cluster.view import ClusterView
from walstore.testing import ManualClock
from walstore.topology.documents import Leader, LogSpec, Member, Synced
from walstore.topology.memory import MemoryKeyValues

pytestmark = pytest.mark.timeout(60)
PLACE = "tls://10.0.0.1:7430"
DOCUMENTS: Final[dict[str, Any]] = {
    "logs/bad": LogSpec(copies=(PLACE,)),
    "removed/bad": LogSpec(copies=(PLACE,)),
    "leaders/bad": Leader(PLACE, "00", 1),
    f"members/{PLACE}": Member(PLACE, "00"),
    "synced/bad": Synced("ab" * 16, 1, 1, {PLACE: 7}),
}


def changed(value: bytes, **fields: Any) -> bytes:
    return json.dumps({**json.loads(value), **fields}).encode()


def without_a_field(value: bytes) -> bytes:
    found = json.loads(value)
    del found["labels" if "labels" in found else "epoch" if "epoch" in found else "zone"]
    return json.dumps(found).encode()


GARBAGE: Final[dict[str, Callable[[bytes], bytes]]] = {
    "garbage": lambda _: b"\xff\x00garbage",
    "empty": lambda _: b"",
    "truncated": lambda value: value[: len(value) // 2],
    "null": lambda _: b"null",
    "a list": lambda _: b"[1]",
    "deep": lambda _: b"[" * 100_000,
    "no field": without_a_field,
    "no version": lambda value: changed(value, version=None),
    "old version": lambda value: changed(value, version=0),
    "new version": lambda value: changed(value, version=2),
    "a number is text": lambda value: changed(
        value, replicas="3", epoch="1", zone=7, generation="1"
    ),
    "control characters": lambda _: b"\x1b[2J\r\n" * 9,
}
LONG = "x" * 101
NAMES: Final = [
    *(
        f"{folder}/{name}"
        for folder in ("logs", "removed", "leaders", "synced")
        for name in ("", "../x", "a b", "a/b", "a\nb", "a\x1b[2Jb", LONG, "é")
    ),
    *(
        f"members/{name}"
        for name in (
            "",
            "nowhere",
            "tls://a",
            "tls://a:x",
            f"{PLACE}?log=a",
            "unix:///a\nb",
            "tls://é\x1b:1",
        )
    ),
    "nothing/x",
    "log/x",
    "orders",
    "\x1b[2J/\n",
]


@pytest.fixture
def store(clock: ManualClock) -> MemoryKeyValues:
    made = MemoryKeyValues(clock)
    put(made, "logs/good", LogSpec().encode())
    put(made, "leaders/good", Leader(PLACE, "00", 3).encode())
    return made


def put(store: MemoryKeyValues, key: str, value: bytes) -> None:
    found = store.get(f"walstore/{key}")
    assert store.swap(f"walstore/{key}", value, found.revision if found else 0, 0).happened


async def told(
    store: MemoryKeyValues, key: str, value: bytes, caplog: pytest.LogCaptureFixture
) -> str:
    """Return the one line of a view that meets a key twice; nothing else is different for it."""
    view = ClusterView(store.client(), clock=store.clock)
    await view.look()
    known = dict(view.specs), dict(view.leaders), dict(view.members)
    caplog.clear()
    for _ in range(2):
        put(store, key, value)
        await view.look()
    assert (view.specs, view.leaders, view.members) == known
    (line,) = (one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING)
    assert list(view.left_out) == [f"walstore/{key}"]  # what 'walstore logs list --json' prints
    assert view.left_out[f"walstore/{key}"] in line
    assert line.isprintable()
    assert len(line) < 1200
    return line


@pytest.mark.parametrize("fault", GARBAGE)
@pytest.mark.parametrize("key", DOCUMENTS)
async def test_a_value_that_is_none(
    key: str, fault: str, store: MemoryKeyValues, caplog: pytest.LogCaptureFixture
) -> None:
    line = await told(store, key, GARBAGE[fault](DOCUMENTS[key].encode()), caplog)
    assert line.startswith(f"the key walstore/{key} of the cluster is left out: ")
    if fault == "new version":
        assert "update walstore on this machine" in line
    elif key.startswith("synced"):
        assert "the leader of the log writes it again" in line
    else:
        assert f"etcdctl del walstore/{key}" in line


@pytest.mark.parametrize("key", NAMES, ids=ascii)
async def test_a_key_that_is_none(
    key: str, store: MemoryKeyValues, caplog: pytest.LogCaptureFixture
) -> None:
    value = next((one for kind, one in DOCUMENTS.items() if key.startswith(kind[:5])), None)
    line = await told(store, key, b"{}" if value is None else value.encode(), caplog)
    assert "the key walstore/" in line
    assert "etcdctl del" in line or "writes it again" in line


@pytest.mark.parametrize("address", ["nowhere", "tls://a", "http://a:1", "\x1b[2J", "tls://a:1/x"])
async def test_a_leader_at_an_address_that_is_none(
    address: str, store: MemoryKeyValues, caplog: pytest.LogCaptureFixture
) -> None:
    line = await told(store, "leaders/bad", Leader(address, "00", 1).encode(), caplog)
    assert "walstore/leaders/bad" in line


async def test_machines_say_it_once_and_lead_the_other_logs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A leader that is garbage keeps its log from being led, and says so once at each machine."""
    async with Machines(tmp_path) as cluster:
        put(cluster.store, "leaders/orders", b"garbage")
        await cluster.apply()
        await cluster.apply("other")
        await until(
            lambda: all("orders" in one.member.view.specs for one in cluster.all if one.member)
        )
        wal = (await cluster.led("other")).led("other")
        assert wal is not None
        await until(lambda: sum("cannot be claimed" in one.message for one in caplog.records) >= 1)
        for number in range(20):
            await wal.append(b"%d" % number)
        lines = [one.getMessage() for one in caplog.records if "leaders/orders" in one.getMessage()]
        assert sum("etcdctl del walstore/leaders/orders" in line for line in lines) == 3
        assert sum("cannot be claimed" in line for line in lines) <= 3
        assert cluster.leader() is None
        found = cluster.store.get("walstore/leaders/orders")
        assert found is not None
        cluster.store.swap(found.key, None, found.revision, 0)  # as the line says
        await cluster.led()


async def test_a_leader_whose_key_became_garbage_leads_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Machines(tmp_path) as cluster:
        await cluster.apply()
        wal = (await cluster.led()).led()
        assert wal is not None
        put(cluster.store, "leaders/orders", b"garbage")
        put(cluster.store, "synced/orders", b"garbage")
        await wal.append_many([b"v"] * 3)
        await until(
            lambda: all(
                "walstore/leaders/orders" in one.member.view.left_out
                for one in cluster.all
                if one.member
            )
        )
        assert await wal.append(b"v") == 4
        lines = [one.getMessage() for one in caplog.records if "leaders/orders" in one.getMessage()]
        assert sum("is left out" in line for line in lines) == 3
        assert [one for one in caplog.records if one.exc_info] == []
