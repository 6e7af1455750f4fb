"""EtcdKeyValues with real nodes that are killed, that stand still, and that ask who asks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from tests import etcd
from tests.waiting import RUNS_OUT_SECONDS
from tests.walstore.topology.conftest import changes, post
from walstore.errors import AccessDeniedError, OutcomeUnknownError, StorageUnavailableError
from walstore.topology.etcd import EtcdKeyValues
from walstore.topology.key_values import Event

pytestmark = [pytest.mark.slow, pytest.mark.kill]

REQUEST_SECONDS = 10.0
"""Longer than a cluster needs for its next leader."""
_numbers = itertools.count()


class Counter:
    """Clients that count in one key. Every value is unique, so that it can be found again."""

    def __init__(self, cluster: etcd.EtcdCluster, key: str) -> None:
        self._cluster = cluster
        self._key = key
        self.counts = 0
        self.counted = asyncio.Event()
        self.happened: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.is_over = False

    async def count(self, name: str) -> None:
        async with EtcdKeyValues.open(
            self._cluster.address, request_seconds=REQUEST_SECONDS
        ) as client:
            for number in itertools.count():
                if self.is_over:
                    return
                value = f"{name} {number}".encode()
                try:
                    found = await client.get(self._key)
                    expected = found.revision if found else 0
                    swap = await client.swap(self._key, value, expected=expected)
                except StorageUnavailableError:
                    self.refused.add(value)
                except OutcomeUnknownError:
                    self.unknown.add(value)
                else:
                    self.counts += 1
                    self.counted.set()
                    (self.happened if swap.happened else self.refused).add(value)


@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_swaps_and_watches_while_nodes_end(cluster: etcd.EtcdCluster, end: str) -> None:
    """What happened is in the history once, what was refused is not, and watches tell all of it."""
    prefix = f"counted {next(_numbers)}/"
    counter = Counter(cluster, prefix + "k")
    async with EtcdKeyValues.open(cluster.address, request_seconds=REQUEST_SECONDS) as client:
        begin = (await client.list(prefix)).revision
        async with asyncio.TaskGroup() as group:
            watched = group.create_task(_watched(client, prefix, begin))
            async with asyncio.TaskGroup() as counters:
                for name in "abc":
                    counters.create_task(counter.count(name))
                for node in (0, 1, 2):
                    await _counted(counter)
                    await asyncio.to_thread(getattr(cluster, end), node)
                    await _counted(counter)
                    await asyncio.to_thread(cluster.restart, node)
                await _counted(counter)
                counter.is_over = True
            assert (await client.swap(prefix + "end", b"end", expected=0)).happened
    values = [event.now.value for event in watched.result() if event.now is not None]
    assert len(values) == len(set(values))
    assert counter.happened <= set(values)
    assert not counter.refused & set(values)
    assert set(values) <= counter.happened | counter.unknown | {b"end"}
    revisions = [event.revision for event in watched.result()]
    assert revisions == sorted(set(revisions))
    async with EtcdKeyValues.open(cluster.address) as other:
        again = await changes(other, prefix, after=begin, count=len(revisions))
    assert again[: len(revisions)] == watched.result()


async def _counted(counter: Counter) -> None:
    """Return when it has counted on for a while."""
    begin = counter.counts
    async with asyncio.timeout(60):
        while counter.counts < begin + 30:
            counter.counted.clear()
            await counter.counted.wait()


async def _watched(client: EtcdKeyValues, prefix: str, begin: int) -> list[Event]:
    found: list[Event] = []
    watch = client.watch(prefix, after=begin)
    while not (found and found[-1].key == prefix + "end"):
        found += await anext(watch)
    await watch.aclose()
    return found


async def test_a_node_that_stands_still_is_left_in_time(cluster: etcd.EtcdCluster) -> None:
    """It stands still until all answers are there, which did not come from it."""
    prefix = f"still {next(_numbers)}/"
    async with (
        EtcdKeyValues.open(cluster.endpoints, request_seconds=REQUEST_SECONDS) as client,
        EtcdKeyValues.open(cluster.endpoints[1:], request_seconds=REQUEST_SECONDS) as other,
    ):
        begin = (await client.list(prefix)).revision
        watch = client.watch(prefix, after=begin)
        async with asyncio.TaskGroup() as group:
            told = group.create_task(_next(watch))
            await client.get(prefix)
            cluster.stop(0)
            try:
                await other.get(prefix)  # there is a leader again, if it was the one
                item = (await other.swap(prefix + "k", b"1", expected=0)).found
                assert item is not None
                assert await client.get(prefix + "k") == item
                assert await told == [Event(item.key, item, item.revision)]
            finally:
                await asyncio.to_thread(cluster.restart, 0)
        await watch.aclose()


async def test_without_a_majority_nothing_is_done(cluster: etcd.EtcdCluster) -> None:
    prefix = f"minority {next(_numbers)}/"
    async with (
        EtcdKeyValues.open(cluster.address) as client,
        EtcdKeyValues.open(cluster.address, request_seconds=RUNS_OUT_SECONDS) as hasty,
    ):
        lease = await client.grant(60)
        for node in (0, 1):
            await asyncio.to_thread(cluster.kill, node)
        for call in (hasty.get(prefix), hasty.list(prefix), hasty.grant(5)):
            with pytest.raises(StorageUnavailableError):
                await call
        with pytest.raises((StorageUnavailableError, OutcomeUnknownError)):
            await hasty.swap(prefix + "k", b"1", expected=0)
        await asyncio.gather(*(asyncio.to_thread(cluster.restart, node) for node in (0, 1)))
        assert await client.keep_alive(lease) >= 60
        await client.revoke(lease)


@pytest.fixture
def secured() -> Iterator[str]:
    """A node that will ask for a user."""
    etcd.require_etcd()
    with etcd.running(1) as cluster:
        yield cluster.address


async def test_users(secured: str) -> None:
    endpoint = secured.replace("etcd:", "http:")
    secret = secured.replace("//", "//root:secret@")
    async with EtcdKeyValues.open(secret) as client, EtcdKeyValues.open(secured) as nobody:
        swap = await client.swap("k", b"1", expected=0)
        watch = nobody.watch("", after=1)
        assert len(await anext(watch)) == 1
        await post(endpoint, "/v3/auth/user/add", {"name": "root", "password": "secret"})
        await post(endpoint, "/v3/auth/user/add", {"name": "poor", "password": "secret"})
        await post(endpoint, "/v3/auth/role/add", {"name": "root"})
        await post(endpoint, "/v3/auth/user/grant", {"user": "root", "role": "root"})
        await post(endpoint, "/v3/auth/enable", {})
        assert await client.get("k") == swap.found
        assert (await client.swap("k", b"2", expected=swap.revision)).happened
        assert len(await changes(client, "", after=1, count=2)) == 2
        for options in (
            {"user": "root", "password": "wrong"},
            {"user": "poor", "password": "secret"},
            {},
        ):
            async with EtcdKeyValues.open(secured, **options) as refused:
                with pytest.raises(AccessDeniedError):
                    await refused.get("k")
                with pytest.raises(AccessDeniedError):
                    await refused.swap("k", b"3", expected=0)
                with pytest.raises(AccessDeniedError):
                    await anext(refused.watch("", after=0))
        await watch.aclose()


async def _next(watch):
    return await anext(watch)
