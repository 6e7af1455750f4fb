"""ClusterView: it has what the store has, whatever it missed, and what it cannot read stays as it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.waiting import until
from tests.walstore.topology.programs import pass_seconds
from walstore.cluster.view import ClusterView, removed_spec
from walstore.errors import StorageUnavailableError
from walstore.testing import ManualClock
from walstore.topology.documents import Leader, LogSpec, Member
from walstore.topology.memory import MemoryClient, MemoryKeyValues

SPEC = LogSpec(labels={"env": "prod"})
LEADER = Leader("tls://a:1", "t", 1)
MEMBER = Member("unix:///run/a.sock", "t", "zone")
NEWER = b'{"version": 2}'


@pytest.fixture
def store(clock: ManualClock) -> MemoryKeyValues:
    return MemoryKeyValues(clock)


@pytest.fixture
def client(store: MemoryKeyValues) -> MemoryClient:
    return store.client("m1")


@pytest.fixture
def view(client: MemoryClient, clock: ManualClock) -> ClusterView:
    return ClusterView(client, clock=clock)


@asynccontextmanager
async def running(view: ClusterView) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(view.run())
        yield
        task.cancel()


def put(store: MemoryKeyValues, key: str, value: bytes | None, lease: int = 0) -> int:
    """Write or delete a key below the prefix; return its revision."""
    found = store.get(f"walstore/{key}")
    expected = 0 if found is None else found.revision
    swap = store.swap(f"walstore/{key}", value, expected, lease)
    assert swap.happened
    return swap.revision


def fill(store: MemoryKeyValues) -> None:
    put(store, "logs/orders", SPEC.encode())
    put(store, "leaders/orders", LEADER.encode())
    put(store, f"members/{MEMBER.address}", MEMBER.encode())


async def caught_up(view: ClusterView, store: MemoryKeyValues) -> None:
    await until(lambda: view.revision == store.revision)


async def test_a_look_reads_what_is_there(
    store: MemoryKeyValues, client: MemoryClient, view: ClusterView, clock: ManualClock
) -> None:
    assert view.revision == 0
    fill(store)
    put(store, "unknown/x", b"of a later version")
    other = ClusterView(client, clock=clock, prefix="test/")
    store.swap(other.key("logs/", "x"), SPEC.encode(), 0, 0)
    for one in (view, other):
        await one.look()
        assert one.revision == store.revision
    assert (view.specs, view.leaders) == ({"orders": SPEC}, {"orders": LEADER})
    assert view.members == {MEMBER.address: MEMBER}
    assert view.revisions[view.key("logs/", "orders")] == 2  # the store begins at 1
    assert (other.specs, other.leaders, other.members) == ({"x": SPEC}, {}, {})


async def test_a_look_removes_what_is_gone(store: MemoryKeyValues, view: ClusterView) -> None:
    fill(store)
    await view.look()
    for key in ("logs/orders", "leaders/orders", f"members/{MEMBER.address}"):
        put(store, key, None)
    await view.look()
    assert (view.specs, view.leaders, view.members, view.revisions) == ({}, {}, {}, {})


@pytest.mark.parametrize("value", [NEWER, b"damaged", b"[]"])
async def test_what_cannot_be_decoded_is_kept_as_it_was_known(
    store: MemoryKeyValues, view: ClusterView, value: bytes
) -> None:
    fill(store)
    await view.look()
    put(store, "leaders/orders", value)
    revision = put(store, "logs/orders", value)
    put(store, "logs/next", SPEC.encode())
    for _ in range(2):
        await view.look()
        assert view.specs == {"orders": SPEC, "next": SPEC}
        assert view.leaders == {"orders": LEADER}
        assert view.revisions["walstore/logs/orders"] == revision
    put(store, "leaders/orders", None)
    put(store, "logs/orders", SPEC._replace(replicas=5).encode())
    await view.look()
    assert view.specs["orders"].replicas == 5
    assert view.leaders == {}


async def test_it_follows_changes(store: MemoryKeyValues, view: ClusterView) -> None:
    async with running(view):
        await caught_up(view, store)
        fill(store)
        lease = store.grant(5)
        put(store, "leaders/orders", LEADER._replace(epoch=2).encode(), lease)
        await caught_up(view, store)
        assert (view.specs, view.leaders["orders"].epoch) == ({"orders": SPEC}, 2)
        put(store, "logs/orders", NEWER)
        put(store, f"members/{MEMBER.address}", None)
        store.revoke(lease)
        await caught_up(view, store)
        assert (view.specs, view.leaders, view.members) == ({"orders": SPEC}, {}, {})
        assert list(view.revisions) == ["walstore/logs/orders"]


async def test_a_store_that_is_set_back_is_read_again(
    store: MemoryKeyValues, view: ClusterView, clock: ManualClock
) -> None:
    """A watch says nothing of that, and what is written then has revisions that were there before."""
    saved = store.save()
    fill(store)
    async with running(view):
        await caught_up(view, store)
        store.set_back(saved)
        put(store, "logs/other", SPEC.encode())
        put(store, "logs/other", SPEC._replace(replicas=5).encode())
        await pass_seconds(clock, 5, sleepers=1)
        await until(lambda: "orders" not in view.specs)
        assert view.specs["other"].replicas == 5
        assert (view.leaders, view.members) == ({}, {})
        assert list(view.revisions) == ["walstore/logs/other"]
        put(store, "logs/other", SPEC.encode())
        await until(lambda: view.specs["other"] == SPEC)


async def test_changes_forgotten_before_it_ran(store: MemoryKeyValues, view: ClusterView) -> None:
    fill(store)
    await view.look()
    put(store, "leaders/orders", None)
    store.compact(store.revision)
    async with running(view):
        await caught_up(view, store)
        assert (view.specs, view.leaders) == ({"orders": SPEC}, {})
        put(store, "logs/new", SPEC.encode())
        await caught_up(view, store)
        assert set(view.specs) == {"orders", "new"}


async def test_changes_forgotten_while_it_was_cut_off(
    store: MemoryKeyValues, client: MemoryClient, view: ClusterView
) -> None:
    fill(store)
    async with running(view):
        await caught_up(view, store)
        client.cut_off = True
        put(store, "leaders/orders", None)
        put(store, "logs/new", SPEC.encode())
        store.compact(store.revision)
        client.cut_off = False
        await caught_up(view, store)
        assert (view.specs, view.leaders) == ({"orders": SPEC, "new": SPEC}, {})


async def test_a_store_that_is_cut_off_is_tried_again(
    store: MemoryKeyValues, client: MemoryClient, view: ClusterView, clock: ManualClock
) -> None:
    fill(store)
    client.cut_off = True
    with pytest.raises(StorageUnavailableError):
        await view.look()
    async with running(view):
        for _ in range(3):
            await clock.wait_for_sleepers()
            assert view.revision == 0
            clock.advance(1)
        client.cut_off = False
        await caught_up(view, store)
        assert view.specs == {"orders": SPEC}


async def test_subscribers_are_woken(store: MemoryKeyValues, view: ClusterView) -> None:
    event, other = view.subscribe(), view.subscribe()
    async with running(view):
        await asyncio.gather(event.wait(), other.wait())  # the first look
        event.clear()
        other.clear()
        view.unsubscribe(other)
        put(store, "logs/orders", SPEC.encode())
        await event.wait()
        assert view.specs == {"orders": SPEC}
        assert not other.is_set()


async def test_a_wait_ends_when_it_holds(store: MemoryKeyValues, view: ClusterView) -> None:
    async with running(view), asyncio.TaskGroup() as group:
        waiting = group.create_task(view.wait(lambda: len(view.specs) == 2))
        put(store, "logs/a", SPEC.encode())
        await caught_up(view, store)
        assert not waiting.done()
        put(store, "logs/b", SPEC.encode())
        await waiting


async def test_what_a_removed_log_had(store: MemoryKeyValues, client: MemoryClient) -> None:
    assert await removed_spec(client, "orders") is None
    put(store, "removed/orders", SPEC.encode())
    assert await removed_spec(client, "orders") == SPEC


async def test_such_a_spec_does_not_end_the_view(clock: ManualClock) -> None:
    store = MemoryKeyValues(clock)
    store.swap("walstore/logs/bad", LogSpec(labels={"\ud800": "x"}).encode(), 0, 0)
    store.swap("walstore/logs/orders", SPEC.encode(), 0, 0)
    view = ClusterView(store.client(), clock=clock)
    await view.look()
    assert view.specs == {"orders": SPEC}


@pytest.mark.parametrize("key", ["logs/a b", "logs/", "leaders/../x", "members/nowhere"])
async def test_a_key_with_a_name_that_is_none_is_left_out_and_told_once(
    store: MemoryKeyValues, view: ClusterView, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    value = {"logs": SPEC, "leaders": LEADER, "members": MEMBER}[key.partition("/")[0]].encode()
    async with running(view):
        await caught_up(view, store)
        for _ in range(3):
            put(store, key, value)
        fill(store)
        await caught_up(view, store)
        await view.look()
        assert (view.specs, view.leaders) == ({"orders": SPEC}, {"orders": LEADER})
        assert view.members == {MEMBER.address: MEMBER}
        assert list(view.left_out) == [f"walstore/{key}"]
        assert [f"walstore/{key}" in record.message for record in caplog.records] == [True]
        put(store, key, None)
        await caught_up(view, store)
        assert view.left_out == {}


async def test_a_key_that_is_right_again_is_not_left_out(
    store: MemoryKeyValues, view: ClusterView, caplog: pytest.LogCaptureFixture
) -> None:
    for value in (NEWER, SPEC.encode(), NEWER):
        put(store, "logs/orders", value)
        await view.look()
        assert ("walstore/logs/orders" in view.left_out) is (value == NEWER)
    assert len(caplog.records) == 2
