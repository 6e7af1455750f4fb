"""What a spec says of its log is so at whichever machine leads it: tier, settings."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from tests.walstore.cluster.machines import Machine, Machines
from uploader import CloudLog, CloudTier
from walstore import InvalidSettingsError, RecordTooLargeError, Wal
from walstore.topology.documents import SETTING_NAMES, LogSpec

pytestmark = pytest.mark.timeout(60)


def tier(name: str, url: str) -> CloudTier:
    assert url.endswith(name)
    return CloudTier(url)


async def stored(url: str) -> list[bytes]:
    async with CloudLog.open(url) as log, log.reader(follow=False) as reader:
        return [record.value async for record in reader]


async def test_every_leader_ships_to_the_tier_of_the_log(tmp_path: Path) -> None:
    url = (tmp_path / "store" / "orders").as_uri()
    async with Machines(tmp_path, tier=tier) as machines:
        await machines.apply(tier=url)
        first = await machines.led()
        async with await machines.connect() as remote:
            producer = remote.producer("p")
            await producer.append(b"one", durability="cloud")
            await first.stop()
            await machines.led()
            await producer.append(b"two", durability="cloud")
            extents = await remote.extents()
            assert extents.tier_url == url
            assert [one.kind for one in extents.stored] == ["fragment"] * len(extents.stored)
            assert extents.stored[-1].limit == 3
            for one in extents.stored:  # the records, without the server
                assert (tmp_path / "store" / "orders" / one.name).is_file()
    assert await stored(url) == [b"one", b"two"]


async def test_a_log_gets_a_tier_later(tmp_path: Path) -> None:
    url = (tmp_path / "store" / "orders").as_uri()
    async with Machines(tmp_path, tier=tier) as machines:
        await machines.apply()
        await machines.led()
        async with await machines.connect() as remote:
            await remote.append(b"one")
            await machines.apply(tier=url)

            def ships() -> bool:
                leader = machines.leader()
                wal = None if leader is None else leader.led()
                return wal is not None and wal.statistics().upload is not None

            await until(ships)
            await remote.append(b"two", durability="cloud")
    assert await stored(url) == [b"one", b"two"]


async def test_settings_of_a_log_are_those_of_every_leader(tmp_path: Path) -> None:
    async with Machines(tmp_path) as machines:
        await machines.apply(settings={"max_record_bytes": 1000})
        first = await machines.led()
        async with await machines.connect() as remote:
            await remote.append(bytes(900))
            with pytest.raises(RecordTooLargeError):
                await remote.append(bytes(1100))
            await first.stop()
            await machines.led()
            await remote.producer("p").append(bytes(900))
            with pytest.raises(RecordTooLargeError):
                await remote.append(bytes(1100))
            await machines.apply(settings={})

            async def takes_it() -> bool:
                await remote.producer("p").append(b"small")
                try:
                    await remote.append(bytes(1100))
                except RecordTooLargeError:
                    return False
                return True

            while not await takes_it():
                pass


async def test_a_log_has_a_rate_of_its_own(tmp_path: Path) -> None:
    """Its clients wait until it is lifted; those of other logs do not."""
    async with Machines(tmp_path) as machines:
        await machines.apply(settings={"max_append_bytes_per_second": 1000})
        await machines.apply("other")
        await machines.led("other")
        leader = await machines.led()
        async with await machines.connect() as remote, await machines.connect("other") as other:
            producer = remote.producer("p")
            await producer.append(bytes(60_000))  # at once; the next waits a minute
            waiting = [asyncio.ensure_future(producer.append(b"v")) for _ in range(3)]
            wal = leader.led()
            assert wal is not None
            await until(lambda: wal.statistics().blocked_appends > 0)
            await other.append_many([bytes(30_000)] * 3)
            assert not any(one.done() for one in waiting)
            await machines.apply(settings={})
            assert await asyncio.gather(*waiting) == [2, 3, 4]


def broken_tier(name: str, url: str) -> CloudTier:
    raise KeyError(f"no credentials for {name}")


async def test_a_machine_whose_tier_cannot_be_made_lets_others_lead(tmp_path: Path) -> None:
    async with Machines(tmp_path, tier=tier) as machines:
        broken = Machine(tmp_path / "broken", machines.store.client(), tier=broken_tier)
        await broken.start()
        try:
            copies = (broken.address, machines.all[0].address, machines.all[1].address)
            spec = LogSpec(tier=(tmp_path / "store" / "orders").as_uri()).with_copies(copies)
            await machines.apply(**spec._asdict())
            assert await machines.led() is not broken
            assert broken.led() is None
        finally:
            await broken.stop()


async def test_a_machine_without_stores_does_not_lead_a_log_that_ships(tmp_path: Path) -> None:
    async with Machines(tmp_path, tier=tier) as machines:
        without = Machine(tmp_path / "plain", machines.store.client())
        await without.start()
        try:
            copies = (without.address, machines.all[0].address, machines.all[1].address)
            spec = LogSpec(tier=(tmp_path / "store" / "orders").as_uri()).with_copies(copies)
            await machines.apply(**spec._asdict())
            leader = await machines.led()
            assert leader is not without
            assert without.led() is None
        finally:
            await without.stop()


@pytest.mark.parametrize(
    "fields",
    [
        {"tier": "bucket"},
        {"source": "bucket"},
        {"source": "s3://b/x", "tier": "s3://b/y"},
        {"source": "s3://b/x", "copies": ("a", "b", "c")},
        {"source": "s3://b/x", "settings": {"segment_bytes": 1 << 20}},
        {"source": "s3://b/x", "quorum": 2},
        {"suspended": 1},
        {"settings": {"durability": "memory"}},
        {"settings": {"sync": "os"}},
        {"settings": {"no": 1}},
        {"settings": {"segment_bytes": 1}},
        {"settings": {"segment_bytes": "many"}},
    ],
)
def test_specs_that_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises((InvalidSettingsError, TypeError)):
        LogSpec(**fields).check()


def test_all_other_settings_may_be_a_logs_own() -> None:
    assert {"retention_bytes", "segment_bytes", "compression"} <= SETTING_NAMES


async def test_a_preferred_machine_that_cannot_lead_is_not_asked_again_soon(tmp_path: Path) -> None:
    """It has no tier. The log is handed over once or twice in vain, and then led on."""
    async with Machines(tmp_path, tier=tier) as machines:
        without = Machine(tmp_path / "plain", machines.store.client())
        await without.start()
        try:
            copies = (machines.all[0].address, machines.all[1].address, without.address)
            spec = LogSpec(tier=(tmp_path / "store" / "orders").as_uri()).with_copies(copies)
            await machines.apply(**spec._asdict())
            await machines.led()
            async with await machines.connect() as remote:
                producer = remote.producer("p")
                await producer.append(b"one")
                await machines.apply(preferred=without.address)
                for number in range(200):
                    await producer.append(b"%d" % number)
                leader = await machines.led()
                wal = leader.led()
                assert wal is not None
                assert wal.statistics().epoch <= 6
                for number in range(200):
                    await producer.append(b"%d" % number)
                assert leader.led() is wal
        finally:
            await without.stop()


@pytest.mark.parametrize("number", [0, 2])
async def test_all_copies_of_a_log_that_ships_are_lost(tmp_path: Path, number: int) -> None:
    """Opened on one machine without the cluster, it goes on behind the bucket, and is that machine's copy."""
    url = (tmp_path / "store" / "orders").as_uri()
    async with Machines(tmp_path, tier=tier) as machines:
        await machines.apply(tier=url)
        await machines.led()
        async with await machines.connect() as remote:
            await remote.append_many([b"one", b"two"], durability="cloud")
        for machine in machines.all:
            await machine.stop()
            await asyncio.to_thread(shutil.rmtree, machine.path / "orders")
        async with Wal.open(machines.all[number].path / "orders", tier=CloudTier(url)) as alone:
            assert (alone.head, alone.tail) == (1, 3)
        for machine in machines.all:
            await machine.start()
        await machines.led()
        async with await machines.connect() as remote:
            assert await remote.append(b"three", durability="cloud") == 3
            async with remote.reader(follow=False) as reader:
                assert [one.value async for one in reader] == [b"one", b"two", b"three"]
    assert await stored(url) == [b"one", b"two", b"three"]
