"""Clients of a served log under Hypothesis: whatever is lost, cancelled or stopped between any two steps.

The model is what clients were told. In the end the log holds each acknowledged record at its offset, each
record of the producer once and in order, each one whose outcome is unknown at most once, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.effort import some
from tests.waiting import until
from tests.walstore.serve.served import Proxy
from walstore import (
    OutcomeUnknownError,
    RemoteWal,
    StorageUnavailableError,
    Wal,
    WalError,
    connect,
)
from walstore.serve import Server

CLIENTS = 2
clients = st.integers(0, CLIENTS - 1)
steps = st.integers(0, 6)


class Served(RuleBasedStateMachine):
    """A log, its server, and clients behind a proxy that loses connections."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = tempfile.TemporaryDirectory()
        self.known: dict[int, bytes] = {}
        self.maybe: set[bytes] = set()
        self.gone: set[bytes] = set()
        self.produced: list[bytes] = []
        self.number = 0

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    def value(self, what: str) -> bytes:
        self.number += 1
        return b"%s-%d" % (what.encode(), self.number)

    # -- the parts ---------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.run(self._begin())

    async def _begin(self) -> None:
        path = Path(self.directory.name)
        self.log, self.socket = path / "log", path / "s.sock"
        await self._start()
        self.proxy = await Proxy(f"unix://{self.socket}").__aenter__()
        self.clients: list[RemoteWal] = [
            await connect(self.proxy.address, reconnect_seconds=30) for _ in range(CLIENTS)
        ]
        self.producer = self.clients[0].producer("p")

    async def _start(self) -> None:
        self.wal = await Wal.open(self.log)
        self.server = await Server.open(self.wal, unix=self.socket)

    async def _tell(self, value: bytes, client: RemoteWal) -> None:
        """Note what a client was told of one append."""
        try:
            self.known[await client.append(value)] = value
        except OutcomeUnknownError:
            self.maybe.add(value)
        except StorageUnavailableError as error:
            (self.maybe if error.outcome == "unknown" else self.gone).add(value)
        except asyncio.CancelledError:
            self.maybe.add(value)

    # -- what clients do ---------------------------------------------------------------------

    @rule(at=clients)
    def append(self, at: int) -> None:
        value = self.value("append")
        self.run(self._tell(value, self.clients[at]))

    @rule(at=clients, count=st.integers(1, 4))
    def append_many(self, at: int, count: int) -> None:
        values = [self.value("group") for _ in range(count)]
        self.run(self._append_many(at, values))

    async def _append_many(self, at: int, values: list[bytes]) -> None:
        try:
            span = await self.clients[at].append_many(values)
        except OutcomeUnknownError:
            self.maybe.update(values)
        else:
            self.known.update(zip(span, values, strict=True))

    @rule()
    def produce(self) -> None:
        """An append of a producer succeeds, and is there once, whatever is lost."""
        value = self.value("produced")
        self.run(self.producer.append(value))
        self.produced.append(value)

    @rule(at=clients, is_committed=st.booleans())
    def transaction(self, at: int, is_committed: bool) -> None:
        self.run(self._transaction(at, self.value("transaction"), is_committed=is_committed))

    async def _transaction(self, at: int, value: bytes, *, is_committed: bool) -> None:
        try:
            async with self.clients[at].transaction() as transaction:
                await transaction.append(value)
                if not is_committed:
                    raise KeyError(value)
        except KeyError:
            self.gone.add(value)
        except OutcomeUnknownError:
            self.maybe.add(value)
        else:
            assert transaction.span is not None
            self.known[transaction.span.start] = value

    @rule(at=clients, after=steps)
    def cancel(self, at: int, after: int) -> None:
        value = self.value("cancelled")
        self.run(self._disturb(self.clients[at], value, after, lambda task: task.cancel()))

    @rule(at=clients, after=steps)
    def lose_while_appending(self, at: int, after: int) -> None:
        value = self.value("lost")
        self.run(self._disturb(self.clients[at], value, after, lambda _: self.proxy.lose()))

    async def _disturb(self, client: RemoteWal, value: bytes, after: int, disturb: Any) -> None:
        telling = asyncio.ensure_future(self._tell(value, client))
        for _ in range(after):
            await asyncio.sleep(0)
        disturb(telling)
        with contextlib.suppress(asyncio.CancelledError):
            await telling
        if not any(value in known for known in (self.known.values(), self.maybe, self.gone)):
            self.maybe.add(value)  # cancelled before its first step

    @rule(after=steps)
    def lose_while_producing(self, after: int) -> None:
        value = self.value("produced")
        self.run(self._lose_while_producing(value, after))
        self.produced.append(value)

    async def _lose_while_producing(self, value: bytes, after: int) -> None:
        producing = asyncio.ensure_future(self.producer.append(value))
        for _ in range(after):
            await asyncio.sleep(0)
        self.proxy.lose()
        await producing

    # -- what happens to them ----------------------------------------------------------------

    @rule()
    def lose(self) -> None:
        self.run(self._lose())

    async def _lose(self) -> None:
        self.proxy.lose()

    @rule(at=clients)
    def lose_an_answer(self, at: int) -> None:
        value = self.value("answer")
        self.run(self._lose_an_answer(at, value))

    async def _lose_an_answer(self, at: int, value: bytes) -> None:
        await until(lambda: self.clients[at].is_connected)
        self.proxy.holds_answers = True
        telling = asyncio.ensure_future(self._tell(value, self.clients[at]))
        held = asyncio.ensure_future(self.proxy.held.wait())
        await asyncio.wait([telling, held], return_when=asyncio.FIRST_COMPLETED)
        held.cancel()
        self.proxy.holds_answers = False
        self.proxy.lose()
        await telling

    @rule()
    def restart(self) -> None:
        self.run(self._restart())

    async def _restart(self) -> None:
        await self.server.aclose()
        await self.wal.aclose()
        await self._start()

    # -- what must hold ----------------------------------------------------------------------

    @invariant()
    def a_reader_sees_what_was_acknowledged(self) -> None:
        if hasattr(self, "clients"):
            self.run(self._check(self.clients[-1]))

    async def _check(self, log: Any) -> None:
        found: dict[int, bytes] = {}
        async with log.reader(1, follow=False) as reader:
            async for record in reader:
                found[record.offset] = record.value
        for offset, value in self.known.items():
            assert found[offset] == value
        counts = Counter(found.values())
        assert all(count == 1 for count in counts.values())
        assert [one for one in found.values() if one.startswith(b"produced")] == self.produced
        assert not self.gone & counts.keys()
        assert counts.keys() <= {*self.known.values(), *self.maybe, *self.produced}

    def teardown(self) -> None:
        if hasattr(self, "clients"):
            self.run(self._end())
        self.runner.close()
        self.directory.cleanup()

    async def _end(self) -> None:
        for client in self.clients:
            with contextlib.suppress(WalError):
                await client.aclose()
        await self.proxy.__aexit__()
        await self.server.aclose()
        await self.wal.aclose()
        async with Wal.open(self.log) as wal:
            await self._check(wal)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_clients_were_told_is_so() -> None:
    run_state_machine_as_test(
        Served,
        settings=settings(
            max_examples=some(200),
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
