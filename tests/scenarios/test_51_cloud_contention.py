"""Two writers at one prefix: one wins, the other is told, and the manifest is never mixed or damaged."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from pathlib import Path

import pytest

from tests.cloud import (
    GIVES_UP,
    SEGMENTS,
    RecordingStore,
    cloud_log,
    cloud_values,
    put_fragment,
    snapshot,
    tier,
    unreferenced,
    values,
)
from tests.local import contents
from tests.waiting import until
from uploader.format import layout
from uploader.format.manifest import Manifest
from uploader.stores.memory import MemoryStore
from uploader.testing import FaultyStore, faults
from walstore import ContentionError, FencedError, Wal, WalClosedError, WalLockedError
from walstore.errors import WalError


@pytest.fixture
def inner() -> MemoryStore:
    return MemoryStore()


async def fill(directory: Path, content: list[bytes]) -> None:
    """Append to a log without a tier."""
    async with Wal.open(directory, settings=SEGMENTS) as wal:
        await wal.append_many(content)


async def ship(directory: Path, store) -> str | None:
    """Open the log with a tier, close it again, and return what its tier failed with."""
    async with Wal.open(directory, settings=SEGMENTS, tier=tier(store)) as wal:
        pass
    return wal.statistics().tier_failure


async def manifest_of(store: MemoryStore) -> Manifest:
    return Manifest.parse((await store.get(layout.MANIFEST)).data)


# -- two logs --------------------------------------------------------------------------------


@pytest.mark.parametrize("records", [0, 5, 40, 60])
async def test_both_open_before_either_has_made_the_manifest(
    tmp_path: Path, inner: MemoryStore, records: int
) -> None:
    """However far the first one came: the second never takes the first one's records for its own.

    Nor does it delete local files on the strength of them.
    """
    settings = SEGMENTS.replace(retention_bytes=0, cache_bytes=0)
    theirs = [b"second"] * 50
    await fill(tmp_path / "second", theirs)
    release, reached = asyncio.Event(), asyncio.Event()
    store = FaultyStore(inner)
    # The second look at it is the one before the manifest is made, after the opening's.
    store.on("get", faults.hang(release, reached), nth=2, key_prefix=layout.MANIFEST)
    second = await Wal.open(tmp_path / "second", settings=settings, tier=tier(store))
    await reached.wait()
    async with Wal.open(tmp_path / "first", settings=SEGMENTS, tier=tier(inner)) as first:
        if records:
            await first.append_many([b"first"] * records, durability="cloud")
        while await inner.head(layout.MANIFEST) is None:  # noqa: ASYNC110 - no one to tell
            await asyncio.sleep(0)
        release.set()
        waiting = asyncio.create_task(second.wait_durable(1, "cloud"))
        with pytest.raises(ContentionError, match="belongs to another log") as told:
            await waiting
        assert told.value.outcome == "durable"
        await second.rotate()
        assert second.uploaded_limit == 1
        assert await second.append(b"on it goes") == 51
        await second.aclose()
    assert await cloud_values(inner) == [b"first"] * records
    assert (await manifest_of(inner)).writer.endswith(f" {first.log_id}")
    assert [r.value for r in await contents(tmp_path / "second")] == [*theirs, b"on it goes"]


async def test_six_begin_at_the_same_moment(tmp_path: Path, inner: MemoryStore) -> None:
    """None of them knows of any other when it opens: one log is there in the end."""
    opened = asyncio.Barrier(6)
    go = asyncio.Event()

    async def live(number: int) -> int | ContentionError:
        path, content = tmp_path / str(number), [b"%d" % number] * 30
        await fill(path, content)
        store = FaultyStore(inner)
        # The look before the manifest is made.
        store.on("get", faults.hang(go), nth=2, key_prefix=layout.MANIFEST)
        try:
            async with Wal.open(path, settings=SEGMENTS, tier=tier(store)) as wal:
                await opened.wait()
                go.set()
                await wal.append_many(content[:10], durability="cloud")
        except ContentionError as error:
            return error
        return number

    outcomes = await asyncio.gather(*map(live, range(6)), return_exceptions=True)
    winners = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert len(winners) == 1
    assert {o.outcome for o in outcomes if isinstance(o, ContentionError)} == {"durable"}
    assert await cloud_values(inner) == [b"%d" % winners[0]] * 40
    assert await unreferenced(inner) == []


async def test_a_log_of_wal3_is_not_continued_by_a_log_that_has_records_of_its_own(
    tmp_path: Path, inner: MemoryStore
) -> None:
    entry = await put_fragment(inner, 1, 1, [b"theirs"] * 10)
    manifest = Manifest.initial("wal3").apply_fragments([entry], "wal3")
    await inner.put_if_absent(layout.MANIFEST, manifest.serialise())
    await fill(tmp_path / "ours", [b"ours"] * 20)
    with pytest.raises(ContentionError, match="another log"):
        await Wal.open(tmp_path / "ours", tier=tier(inner))
    assert await manifest_of(inner) == manifest


async def test_a_new_directory_goes_on_behind_a_log_of_wal3(
    tmp_path: Path, inner: MemoryStore
) -> None:
    """Also if it dies before it has shipped anything; but not once wal3 itself has gone on."""
    entry = await put_fragment(inner, 1, 1, [b"theirs"] * 10)
    manifest = Manifest.initial("wal3").apply_fragments([entry], "wal3")
    await inner.put_if_absent(layout.MANIFEST, manifest.serialise())
    store = FaultyStore(inner)
    store.on("put_if_absent", faults.hang(asyncio.Event()), key_prefix="log/")
    async with Wal.open(tmp_path / "ours", tier=tier(store, GIVES_UP)) as wal:
        assert await wal.append(b"ours") == 11
    claimed = await manifest_of(inner)
    assert dataclasses.replace(claimed, writer=manifest.writer) == manifest
    twin = MemoryStore()
    for key, data in (await snapshot(inner)).items():
        await twin.put_if_absent(key, data)
    assert await ship(tmp_path / "ours", inner) is None
    assert await cloud_values(inner) == [*[b"theirs"] * 10, b"ours"]
    assert await ship(tmp_path / "ours", inner) is None

    more = await put_fragment(twin, 2, 11, [b"theirs"])
    longer = manifest.apply_fragments([more], "wal3")
    await twin.delete([layout.MANIFEST])
    await twin.put_if_absent(layout.MANIFEST, longer.serialise())
    with pytest.raises(ContentionError, match="another log"):
        await Wal.open(tmp_path / "ours", tier=tier(twin))


# -- one log twice ---------------------------------------------------------------------------


async def test_the_same_directory_opened_twice(tmp_path: Path, inner: MemoryStore) -> None:
    """The second opener has no lock, and does not disturb what the first one has under way."""
    store, release = RecordingStore(inner), asyncio.Event()
    store.on("put_if_absent", faults.hang(release), key_prefix=layout.fragment_path(1))
    expected = values(60)
    async with Wal.open(tmp_path / "log", settings=SEGMENTS) as wal:
        for value in expected:
            await wal.append(value, durability="memory")
    async with Wal.open(tmp_path / "log", settings=SEGMENTS, tier=tier(store)) as wal:
        await until(lambda: len(store.attempts) >= 4)
        before = await snapshot(inner)
        assert await unreferenced(inner)
        other = RecordingStore(inner)
        for _ in range(3):
            with pytest.raises(WalLockedError):
                await Wal.open(tmp_path / "log", settings=SEGMENTS, tier=tier(other))
        assert not other.attempts
        assert before.items() <= (await snapshot(inner)).items()
        release.set()
        await wal.wait_durable(60, "cloud")
        assert wal.statistics().tier_failure is None
    assert await cloud_values(inner) == expected


@pytest.mark.slow
async def test_a_copy_of_the_directory_races_the_original(
    tmp_path: Path, inner: MemoryStore
) -> None:
    """Same identity, different records: the loser stops, and stays refused when it is opened again."""
    common = values(10)
    async with Wal.open(tmp_path / "one", settings=SEGMENTS, tier=tier(inner)) as wal:
        await wal.append_many(common)
    shutil.copytree(tmp_path / "one", tmp_path / "two")

    async def live(name: str) -> str | WalError:
        path = tmp_path / name
        try:
            async with Wal.open(path, settings=SEGMENTS, tier=tier(FaultyStore(inner))) as wal:
                for number in range(40):
                    await wal.append(name.encode() + b"%d" % number, durability="cloud")
        except (ContentionError, FencedError, WalClosedError) as error:
            return error
        return name

    outcomes = await asyncio.gather(live("one"), live("two"))
    winners = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert len(winners) <= 1
    found = await cloud_values(inner)
    assert found[:10] == common
    assert {value.rstrip(b"0123456789") for value in found[10:]} <= {b"one", b"two"}
    assert len({value.rstrip(b"0123456789") for value in found[10:]}) <= 1
    assert await unreferenced(inner) == []
    loser = {"one", "two"} - {value.rstrip(b"0123456789").decode() for value in found[10:]}
    before = await snapshot(inner)
    for name in loser:
        with pytest.raises((ContentionError, FencedError)):
            await ship(tmp_path / name, inner)
    assert await snapshot(inner) == before


async def test_a_restored_backup_that_went_its_own_way(tmp_path: Path, inner: MemoryStore) -> None:
    """Records of the old directory were shipped that the restored one has others for."""
    path, backup = tmp_path / "log", tmp_path / "backup"
    settings = SEGMENTS.replace(retention_bytes=0, cache_bytes=0)
    await fill(path, values(10))
    assert await ship(path, inner) is None
    shutil.copytree(path, backup)
    await fill(path, values(10, start=11))
    assert await ship(path, inner) is None
    await fill(backup, [b"other"] * 300)
    before = await snapshot(inner)
    with pytest.raises(FencedError, match="holds other records than this log"):
        await Wal.open(backup, settings=settings, tier=tier(inner))
    assert await snapshot(inner) == before
    assert [r.value for r in await contents(backup)][10:310] == [b"other"] * 300


async def test_a_restored_backup_that_lacks_records(tmp_path: Path, inner: MemoryStore) -> None:
    path, backup = tmp_path / "log", tmp_path / "backup"
    await fill(path, values(10))
    shutil.copytree(path, backup)
    await fill(path, values(10, start=11))
    assert await ship(path, inner) is None
    for _ in range(2):
        with pytest.raises(FencedError, match="taken over"):
            await Wal.open(backup, tier=tier(inner))


async def test_a_new_directory_takes_over_from_one_that_still_lives(
    tmp_path: Path, inner: MemoryStore
) -> None:
    """A machine was given up, but is only slow: it is told, and never believed again."""
    old = await Wal.open(tmp_path / "old", settings=SEGMENTS, tier=tier(inner))
    await old.append_many(values(10), durability="cloud")
    async with Wal.open(tmp_path / "new", settings=SEGMENTS, tier=tier(inner)) as new:
        assert new.log_id == old.log_id
        assert await new.append(b"new", durability="cloud") == 11
        with pytest.raises(FencedError):
            await old.append(b"old", durability="cloud")
        with pytest.raises(WalClosedError, match="taken over"):
            await old.append_many([b"old"] * 5)
        assert await new.append(b"new", durability="cloud") == 12
    with pytest.raises(WalClosedError, match="taken over"):
        await old.aclose()
    with pytest.raises(FencedError):
        await ship(tmp_path / "old", inner)
    assert await cloud_values(inner) == [*values(10), b"new", b"new"]


# -- others at the manifest ------------------------------------------------------------------


async def test_a_collector_beside_a_writer(tmp_path: Path, inner: MemoryStore) -> None:
    """It drops old fragments by swaps of its own; the writer goes on on top of each."""

    async def collect() -> None:
        found = await inner.get(layout.MANIFEST)
        manifest = Manifest.parse(found.data)
        if len(manifest.fragments) < 3:
            return
        dropped = manifest.fragments[0]
        left = dataclasses.replace(
            manifest,
            collected=manifest.collected + dropped.setsum,
            fragments=manifest.fragments[1:],
            initial_offset=dropped.limit,
            initial_seq_no=dropped.seq_no + 1,
        )
        await inner.put_if_match(layout.MANIFEST, left.serialise(), found.etag)
        await inner.delete([dropped.path])

    store = FaultyStore(inner)
    store.on("put_if_match", faults.call(collect), times=10**6, key_prefix="manifest/")
    expected = values(200)
    async with Wal.open(tmp_path / "log", settings=SEGMENTS, tier=tier(store)) as wal:
        for start in range(0, 200, 10):
            await wal.append_many(expected[start : start + 10], durability="cloud")
        assert wal.statistics().tier_failure is None
        assert wal.head == 1  # the local files are all there
    async with cloud_log(inner) as log:
        assert log.tail == 201
        assert log.head > 150
        assert [r.value async for r in log.reader()] == expected[log.head - 1 :]
        assert (await log.verify()).setsum == log.manifest.setsum.hexdigest()


async def test_a_manifest_that_is_deleted_under_a_writer(
    tmp_path: Path, inner: MemoryStore
) -> None:
    async with Wal.open(tmp_path / "log", tier=tier(inner)) as wal:
        await wal.append(b"1", durability="cloud")
        await inner.delete([layout.MANIFEST])
        with pytest.raises(ContentionError, match="was deleted"):
            await wal.append(b"2", durability="cloud")
        assert await wal.append(b"3") == 3
    with pytest.raises(WalError, match="the manifest is missing"):
        await Wal.open(tmp_path / "log", tier=tier(inner))
