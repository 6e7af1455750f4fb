"""Served logs for tests: a server in this process, and a proxy that loses connections when it is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Self

from walstore import RemoteWal, Settings, Wal, connect
from walstore.core.ports import Clock
from walstore.serve import Server, ServeSettings


class Served:
    """A log, its server, and clients of it."""

    def __init__(self, wal: Wal, server: Server) -> None:
        self.wal = wal
        self.server = server
        self.address = str(server.addresses[0])

    def connect(self, **options: Any) -> Any:
        return connect(self.address, **options)


@asynccontextmanager
async def serving(
    path: Path,
    settings: Settings | None = None,
    serve: ServeSettings | None = None,
    *,
    clock: Clock | None = None,
    **options: Any,
) -> AsyncIterator[Served]:
    """Serve the log at ``path`` at a socket beside it."""
    async with (
        Wal.open(path, settings=settings, clock=clock) as wal,
        Server.open(wal, unix=path.parent / "s.sock", settings=serve, **options) as server,
    ):
        yield Served(wal, server)


@contextmanager
def serving_from_a_thread(path: Path) -> Iterator[str]:
    """Serve the log at ``path`` from an event loop of its own, to a test that has none; yield the address."""
    begun: Future[str] = Future()
    runner, stop = asyncio.Runner(), asyncio.Event()

    async def serve() -> None:
        async with serving(path) as served:
            begun.set_result(served.address)
            await stop.wait()

    def run() -> None:
        try:
            with runner:
                runner.run(serve())
        except BaseException as error:
            if begun.done():
                raise
            begun.set_exception(error)

    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(run)
        address = begun.result()
        try:
            yield address
        finally:
            runner.get_loop().call_soon_threadsafe(stop.set)
            ended.result()


@asynccontextmanager
async def connected(path: Path, **options: Any) -> AsyncIterator[tuple[Served, RemoteWal]]:
    """Serve a log and connect to it."""
    async with serving(path, **options) as served, served.connect() as remote:
        yield served, remote


class Proxy:
    """Passes bytes on between clients and a server, until told to lose or hold them."""

    def __init__(self, target: str) -> None:
        self.target = target.removeprefix("unix://")
        self.path = self.target + ".proxy"
        self.address = f"unix://{self.path}"
        self.holds_answers = False
        self.keeps_answers = False
        """Whether answers wait in the proxy until :meth:`release`."""
        self.kept = asyncio.Event()
        """Set when an answer waits."""
        self.refuses = False
        self.greets_only = False
        """Whether connections are lost with the first request behind the greeting."""
        self.connections = 0
        self.silenced = 0
        """So many connections, the first ones, are dead, and nobody was told: what is sent vanishes."""
        self.pieces: asyncio.Semaphore | None = None
        """How many pieces of 64 KiB may pass on the way to the server; None for any number."""
        self.held = asyncio.Event()
        """Set when an answer is held."""
        self._writers: list[asyncio.StreamWriter] = []
        self._kept: list[tuple[asyncio.StreamWriter, bytes]] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.lose()

    def lose(self) -> None:
        """Lose all connections, and whatever is held."""
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.transport.abort()
        self.held.clear()

    def release(self) -> None:
        """Pass on the answers that wait."""
        kept, self._kept = self._kept, []
        self.kept.clear()
        for sink, data in kept:
            sink.write(data)

    def silence(self) -> None:
        """Let all connections die without a word; new ones live."""
        self.silenced = self.connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        if self.refuses:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_unix_connection(self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers += [writer, back]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pass(reader, back, number, is_answer=False))
            group.create_task(self._pass(there, writer, number, is_answer=True))

    async def _pass(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        number: int,
        *,
        is_answer: bool,
    ) -> None:
        has_greeted = False
        with contextlib.suppress(ConnectionError):
            while data := await source.read(1 << 16):
                if self.greets_only and has_greeted and not is_answer:
                    self.lose()
                has_greeted = True
                if self.pieces is not None and not is_answer:
                    await self.pieces.acquire()
                if number <= self.silenced:
                    continue
                if is_answer and self.holds_answers:
                    self.held.set()
                    continue
                if is_answer and (self.keeps_answers or self._kept):
                    self._kept.append((sink, data))
                    self.kept.set()
                    continue
                sink.write(data)
                await sink.drain()
        sink.transport.abort()
