"""Two machines over one prefix for tests: a tier, what a directory holds, and histories at random."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from tests.cloud import FAST, SMALL, URL, cloud_values
from uploader import ChainSettings, CloudLog, CloudTier, UploadSettings
from uploader.layouts.log_session import Layout
from uploader.root.ownership import Claim
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore, faults
from walstore import ContentionError, FencedError, Wal, WalClosedError
from walstore.errors import (
    OutcomeUnknownError,
    StorageUnavailableError,
    WalError,
)

LAYOUTS: list[Layout] = ["swap", "chain"]
IDLE = UploadSettings(fragment_bytes=4096, fragment_age_seconds=3600.0)
"""Ships nothing that nobody waits for."""

both = pytest.mark.parametrize("shape", LAYOUTS)


def tier(
    store: MemoryStore | FaultyStore,
    shape: Layout,
    settings: UploadSettings = SMALL,
    *,
    take_over: bool = False,
    chain: ChainSettings | None = None,
) -> CloudTier:
    """Return a tier in that layout."""
    return CloudTier(
        URL,
        store=store,
        settings=settings,
        retry=FAST,
        layout=shape,
        chain=chain,
        take_over=take_over,
    )


async def records(path: Path) -> dict[int, bytes]:
    """Return what a directory holds, read without the tier."""
    async with Wal.open(path) as wal:
        return {record.offset: record.value async for record in wal.reader(follow=False)}


async def close(wal: Wal) -> WalError | None:
    """Close a log and return what that raised."""
    try:
        await wal.aclose()
    except WalError as error:
        return error
    return None


async def claim_in(store: MemoryStore) -> Claim:
    """Return the claim that the newest manifest carries."""
    async with CloudLog.open(URL, store=store) as log:
        found = Claim.parse(log.manifest.writer)
    assert found is not None
    return found


async def outcome(appending) -> BaseException | int:
    """Return what an append returned or raised."""
    try:
        return await appending
    except WalError as error:
        return error


# -- histories -------------------------------------------------------------------------------


HOLE = "behind records that were never uploaded"


class Machine:
    """One machine: a directory, a process or none, and what that process was told."""

    def __init__(self, name: str, path: Path, inner: MemoryStore, shape: Layout) -> None:
        self.name = name
        self.path = path
        self.inner = inner
        self.shape = shape
        self.wal: Wal | None = None
        self.stores = [FaultyStore(inner)]
        self.directory = path / f"{name}1"
        self.directories = 1
        self.on_disk: dict[Path, dict[int, bytes]] = {}
        self.in_cloud: dict[int, bytes] = {}
        self.appended = 0
        self.fenced = 0

    @property
    def store(self) -> FaultyStore:
        """The connection of the process that runs."""
        return self.stores[-1]

    def replace_disk(self) -> None:
        """Begin with a new directory next time."""
        self.directories += 1
        self.directory = self.path / f"{self.name}{self.directories}"

    async def open(self) -> None:
        """Start the process; if its directory was taken over from, the next one gets a new disk."""
        try:
            self.wal = await Wal.open(self.directory, tier=tier(self.store, self.shape))
        except FencedError:
            self.fenced += 1
            self.replace_disk()
            self.stores.append(FaultyStore(self.inner))
        except ContentionError as error:
            # A fragment before others never came; only a disk that was replaced has its records.
            if HOLE not in str(error):
                raise
            self.directory = self.path / f"{self.name}{max(1, self.directories - 1)}"
        except (OutcomeUnknownError, StorageUnavailableError, faults.StoreKilled):
            self.stores.append(FaultyStore(self.inner))

    async def append(self, level: str, count: int) -> None:
        """Append, and note what was acknowledged; a process that was told to stop ends."""
        assert self.wal is not None
        self.appended += 1
        content = [b"%s %d %d" % (self.name.encode(), self.appended, n) for n in range(count)]
        try:
            span = await self.wal.append_many(content, durability=level)
        except WalError as error:
            await self.give_up(error)
            return
        acknowledged = dict(zip(span, content, strict=True))
        self.on_disk.setdefault(self.directory, {}).update(acknowledged)
        if level == "cloud":
            assert not self.in_cloud.keys() & acknowledged.keys()
            self.in_cloud.update(acknowledged)

    async def give_up(self, error: WalError) -> None:
        """End a process whose append was refused: it was killed, or was taken over from."""
        assert self.wal is not None
        if self.store.is_killed:
            assert isinstance(error, StorageUnavailableError | WalClosedError)
        else:
            assert isinstance(error, FencedError | WalClosedError)
            assert getattr(error, "reason", "fenced") == "fenced"
            self.fenced += 1
            with pytest.raises(WalClosedError):
                self.wal.append_nowait(b"refused")
        await self.stop(is_killed=self.store.is_killed)

    async def stop(self, *, is_killed: bool) -> None:
        """End the process, as it should or without another request."""
        wal, self.wal = self.wal, None
        self.store.is_killed = is_killed
        if wal is not None:
            with contextlib.suppress(WalError, faults.StoreKilled, BaseExceptionGroup):
                await wal.aclose()
        self.stores.append(FaultyStore(self.inner))


async def play(path: Path, shape: Layout, seed: int, steps: int) -> int:
    """Let two machines do anything for a while, check what became of it; return how often one lost."""
    rng, inner = random.Random(seed), MemoryStore()
    await (await Wal.open(path / "first", tier=tier(inner, shape))).aclose()
    machines = [Machine(name, path, inner, shape) for name in "ab"]
    for _ in range(steps):
        machine = rng.choice(machines)
        act = rng.choice(["append", "append", "cloud", "fault", "fault", "stop", "late", "disk"])
        if machine.wal is None and act in {"append", "cloud", "stop"}:
            await machine.open()
        elif act in {"append", "cloud"}:
            level = "disk" if act == "append" else "cloud"
            await machine.append(level, rng.choice([1, 1, 3, 12]))
        elif act == "stop":
            await machine.stop(is_killed=rng.random() < 0.6)
        elif act == "fault":
            plan_fault(rng, machine.store)
        elif act == "late":
            await rng.choice(machine.stores).deliver(newest_first=rng.random() < 0.5)
        elif machine.wal is None and rng.random() < 0.3:
            machine.replace_disk()
    for machine in machines:
        await machine.stop(is_killed=rng.random() < 0.5)
    in_order = [store for machine in machines for store in machine.stores]
    for store in rng.sample(in_order, len(in_order)):
        await store.deliver(newest_first=rng.random() < 0.5)
    await check(path, machines, inner, shape)
    return sum(machine.fenced for machine in machines)


def plan_fault(rng: random.Random, store: FaultyStore) -> None:
    """Let a request to come fail, or be answered late, or happen late."""
    kind = rng.choice(["put_if_absent", "put_if_match", "put_if_absent", "get"])
    fault = rng.choice(
        [
            faults.fail(faults.timeout("not_written")),
            faults.happen_then_fail(faults.timeout()),
            faults.postpone(store.late) if kind != "get" else faults.fail(faults.timeout()),
            faults.report("412", happens=True) if kind != "get" else faults.fail(faults.busy()),
            faults.kill(),
        ]
    )
    prefix = rng.choice(["manifest/", "manifest/", "log/", "shard"])
    nth, times = rng.choice([1, 1, 2, 3, 5]), rng.choice([1, 1, 2])
    store.on(kind, fault, nth=nth, times=times, key_prefix=prefix)


async def open_last(path: Path, machines: list[Machine], inner: MemoryStore, shape: Layout) -> Wal:
    """Open a new directory, or an old one without which some fragments are behind a hole."""
    old = [directory for machine in machines for directory in machine.path.glob(f"{machine.name}*")]
    for directory in (path / "last", *sorted(old)):
        try:
            return await Wal.open(directory, tier=tier(inner, shape))
        except ContentionError as error:
            if HOLE not in str(error):
                raise
        except FencedError:
            if directory not in old:
                raise
    raise AssertionError("no directory goes on")


async def check(path: Path, machines: list[Machine], inner: MemoryStore, shape: Layout) -> None:
    """Whoever comes last goes on; nothing acknowledged is lost where it was acknowledged."""
    async with await open_last(path, machines, inner, shape) as wal:
        last = await wal.append(b"last", durability="cloud")
    found = dict(enumerate(await cloud_values(inner), 1))
    assert found[last] == b"last"
    first, second = (machine.in_cloud for machine in machines)
    assert not first.keys() & second.keys()
    for acknowledged in (first, second):
        assert acknowledged.items() <= found.items()
    for machine in machines:
        for directory, acknowledged in machine.on_disk.items():
            assert acknowledged.items() <= (await records(directory)).items()
