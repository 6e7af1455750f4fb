"""The faces of a log: every way in which a program may have one, and what it promises there.

opened        Wal.open
replicated    the same, with copies on two other machines
served        connect
readonly      Wal.open_readonly, beside the writer
copied        connect_readonly
writer        CloudWriter
stored        CloudLog, beside a CloudWriter
partitioned   PartitionedLog, beside a CloudWriter of its one log
blocking      walstore.sync.open, called from threads
distant       walstore.sync.connect, the same
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

import walstore.sync
from tests.clocks import SkippingClock
from tests.cloud import FAST
from tests.contract.from_threads import FromThreads, in_thread
from tests.local import SMALL
from tests.walstore.cluster.replication.cluster import Cluster
from tests.walstore.serve.served import Served, serving
from uploader import CloudLog, CloudWriter, PartitionedLog, WriterSettings
from uploader.partitioned import create_partitions
from uploader.partitioned.partitions import SubStore
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore
from walstore import Wal, connect_readonly

URL: Final = "memory://contract"
QUICK: Final = WriterSettings(interval_seconds=0)


@dataclass
class Face:
    """A log as a program has it."""

    log: Any
    """What the program has."""
    beside: Any = None
    """Where records are appended, if the program only reads."""
    served: Served | None = None
    """The server, if there is one."""
    another: Callable[[], AbstractAsyncContextManager[Any]] | None = None
    """Opens the log as another program does, where several may."""
    clock: SkippingClock | None = None
    """That of groups, where a test may let time pass."""

    def again(self) -> AbstractAsyncContextManager[Any]:
        """Return the log as another program has it: a server as its own, and the same where only one can."""
        if self.another is not None:
            return self.another()
        return nullcontext(self.log if self.served is None else self.served.wal)

    @property
    def writer(self) -> Any:
        """Where records are appended."""
        return self.log if self.beside is None else self.beside

    @property
    def is_blocking(self) -> bool:
        """Whether each call waits in a thread."""
        return isinstance(self.log, FromThreads)

    @property
    def connections(self) -> int:
        """How many connections clients have made."""
        return 0 if self.served is None else self.served.server.figures.connected


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Face]:
    clock = SkippingClock()
    async with Wal.open(path / "log", settings=SMALL, clock=clock) as wal:
        yield Face(wal, clock=clock)


@asynccontextmanager
async def replicated(path: Path) -> AsyncIterator[Face]:
    async with Cluster(path) as cluster, await cluster.primary(0, settings=SMALL) as wal:
        yield Face(wal)


@asynccontextmanager
async def served(path: Path) -> AsyncIterator[Face]:
    clock = SkippingClock()
    async with serving(path / "log", SMALL, clock=clock) as server, server.connect() as remote:
        yield Face(remote, served=server, clock=clock)


@asynccontextmanager
async def readonly(path: Path) -> AsyncIterator[Face]:
    async with Wal.open(path / "log") as wal, Wal.open_readonly(path / "log") as log:
        yield Face(log, beside=wal)


@asynccontextmanager
async def copied(path: Path) -> AsyncIterator[Face]:
    async with serving(path / "log") as server, connect_readonly(server.address) as log:
        yield Face(log, beside=server.wal, served=server)


@asynccontextmanager
async def writer(path: Path) -> AsyncIterator[Face]:
    async with CloudWriter.open(URL, store=MemoryStore(), retry=FAST, settings=QUICK) as log:
        yield Face(log)


@asynccontextmanager
async def stored(path: Path) -> AsyncIterator[Face]:
    store, clock = MemoryStore(), SkippingClock()

    def another() -> Any:
        return CloudLog.open(URL, store=FaultyStore(store), retry=FAST, clock=clock)

    async with (
        CloudWriter.open(URL, store=FaultyStore(store), retry=FAST, settings=QUICK) as beside,
        another() as log,
    ):
        yield Face(log, beside=beside, another=another, clock=clock)


@asynccontextmanager
async def partitioned(path: Path) -> AsyncIterator[Face]:
    store = MemoryStore()
    await create_partitions(store, 1, retry=FAST)

    def another() -> Any:
        return PartitionedLog.open(URL, store=FaultyStore(store), retry=FAST)

    async with (
        CloudWriter.open(
            URL, store=FaultyStore(SubStore(store, 0)), retry=FAST, settings=QUICK
        ) as beside,
        another() as log,
    ):
        yield Face(log, beside=beside, another=another)


@asynccontextmanager
async def blocking(path: Path) -> AsyncIterator[Face]:
    log = await in_thread(walstore.sync.open, path / "log")
    try:
        yield Face(FromThreads(log))
    finally:
        await in_thread(log.close)


@asynccontextmanager
async def distant(path: Path) -> AsyncIterator[Face]:
    async with serving(path / "log") as server:
        log = await in_thread(walstore.sync.connect, server.address)
        try:
            yield Face(FromThreads(log), served=server)
        finally:
            await in_thread(log.close)


FACES: Final[dict[str, Callable[[Path], AbstractAsyncContextManager[Face]]]] = {
    face.__name__: face
    for face in (
        opened,
        replicated,
        served,
        readonly,
        copied,
        writer,
        stored,
        partitioned,
        blocking,
        distant,
    )
}


def on(*names: str) -> pytest.MarkDecorator:
    """Run a test on these faces."""
    return pytest.mark.parametrize("face", names, indirect=True)
