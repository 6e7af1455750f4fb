"""PrimaryProgram: a program that opens the log as its primary, appends, reads and asks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tests.sim.loop import Process
from tests.sim.replicas.disks import DAMAGE
from tests.sim.replicas.lists import CopyList
from tests.sim.replicas.machine import LOG, Machine
from tests.sim.replicas.rules import ReplicaViolationError
from walstore import Replication, Settings, Wal
from walstore.errors import (
    DiskFullError,
    FencedError,
    OffsetMismatchError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalClosedError,
    WalError,
    WalLockedError,
)

if TYPE_CHECKING:
    from tests.sim.replicas.history import ReplicaHistory

_PATIENCE_SECONDS: Final = 2.0
EXPECTED = (
    StorageUnavailableError,
    OutcomeUnknownError,
    FencedError,
    WalClosedError,
    DiskFullError,
)


class PrimaryProgram:
    """A program that opens the log as its primary."""

    def __init__(
        self, history: ReplicaHistory, machine: Machine, process: Process, copies: CopyList
    ) -> None:
        self.list = copies
        self.wal: Wal | None = None
        self.history = history
        self.machine = machine
        self.process = process
        self.random = history.random

    def open(self) -> Any:
        history, plan = self.history, self.history.plan
        others = [one for one in self.list.machines if one is not self.machine]
        joined = {str(one.address): self.list.joined.get(one, 0) for one in others}
        return Wal.open(
            f"/{LOG}",
            settings=Settings(segment_bytes=plan.segment_bytes),
            replication=Replication(
                nodes=list(joined),
                replicas=len(self.list.machines),
                quorum=min(
                    len(self.list.machines), max(plan.quorum, len(self.list.machines) // 2 + 1)
                ),
                name=LOG,
                generation=self.list.generation,
                joined=joined,
                joined_here=self.list.joined.get(self.machine, 0),
                patience_seconds=_PATIENCE_SECONDS,
                scrub_seconds=plan.scrub_seconds,
                topology=self.machine.topology(),
                address=str(self.machine.address) if plan.has_topology else "",
                lease_seconds=1,
            ),
            fs=self.machine.file_system(self.process),
            clock=history.clock,
        )

    async def run(self) -> None:
        """Append until the log fails, or it was enough."""
        history, begin = self.history, 0.0
        for _ in range(3):
            begin = history.loop.time()
            try:
                wal = await self.open()
                break
            except (*EXPECTED, WalLockedError) as error:
                history.note(self.process, f"open: {error!r}")
                history.happened["refused"] += 1
            except DAMAGE as error:
                history.note(self.process, f"open: {error!r}")
                if history.rollbacks and "two histories" in str(error):
                    history.happened["two histories"] += 1
                elif history.is_damaged:
                    history.happened["refused for damage"] += 1
                else:
                    raise
                return
        else:
            return
        history.happened["opened"] += 1
        self.wal = wal
        try:
            try:
                await self.check(wal, begin)
            except EXPECTED:
                assert history.plan.rate
                return
            except DAMAGE:  # the copies that could help are away
                assert history.is_damaged
                return
            producers = [self._produce(wal) for _ in range(history.plan.producers)]
            await asyncio.gather(*producers, self._read(wal), self._ask(wal))
        finally:
            with contextlib.suppress(WalError):
                await wal.aclose()

    async def check(self, wal: Wal, begin: float) -> dict[int, bytes]:
        """Return all that is in a log whose opening began then."""
        history = self.history
        epoch = wal.statistics().epoch
        if epoch in history.epochs:
            raise ReplicaViolationError("one-epoch", f"{epoch}")
        history.epochs.add(epoch)
        async with wal.reader(follow=False) as reader:
            found = {record.offset: record.value async for record in reader}
        history.calls.saw(wal.head, list(found.values()), begin)
        history.note(self.process, f"opened in epoch {epoch}: {len(found)} records")
        history.compare(found, wal.head)
        for offset, value in found.items():
            history.learn("seen", offset, value)
        return found

    async def _produce(self, wal: Wal) -> None:
        history, random = self.history, self.random
        for _ in range(random.choice([5, 30, 100])):
            history.values += 1
            value = b"%d " % history.values + b"." * random.choice([1, 100, 3000])
            values = (value, b"t" + value) if random.random() < 0.1 else (value,)
            history.calls.begin(*values)
            try:
                offsets = await self._append(wal, values)
            except EXPECTED as error:
                if not self._failed(values, error):
                    return
                continue
            for offset, one in zip(offsets, values, strict=True):
                history.calls.end(one, "ok", offset)
                history.learn("acknowledged", offset, one)
            history.happened["acknowledged"] += 1
            await asyncio.sleep(random.choice([0.0, 0.001, 0.05]))

    async def _append(self, wal: Wal, values: Sequence[bytes]) -> Sequence[int]:
        if len(values) == 1:
            return [await wal.append(values[0])]
        async with wal.transaction() as transaction:
            for value in values:
                await transaction.append(value)
        assert transaction.span is not None
        return transaction.span

    def _failed(self, values: Sequence[bytes], error: WalError) -> bool:
        """Note what is known of an append that failed; return whether to go on."""
        history = self.history
        is_refused = error.outcome == "not_written"
        for value in values:
            history.calls.end(value, "refused" if is_refused else "unknown")
        if is_refused:
            history.refused.update(values)
        history.happened["not written" if is_refused else "unknown"] += 1
        if isinstance(error, FencedError):
            history.happened["fenced"] += 1
        history.note(self.process, f"append {values[0][:10]!r}: {error!r:.90}")
        return isinstance(error, StorageUnavailableError) and error.retriable

    async def _ask(self, wal: Wal) -> None:
        """Ask what is now, also while others have taken over."""
        history, random = self.history, self.random
        while not wal.is_closing:
            await asyncio.sleep(random.choice([0.01, 0.1, 0.5]))
            known = max(history.known, default=0)
            try:
                if known and random.random() < 0.5:
                    now = await self._mismatch(wal)
                else:
                    now = await self._refresh(wal)
            except EXPECTED:
                history.happened["not confirmed"] += 1
                continue
            except DAMAGE:
                assert history.is_damaged
                continue
            history.happened["confirmed"] += 1
            if now <= known:
                text = f"it ends at {now}, and {known} was acknowledged before"
                raise ReplicaViolationError("current", text)

    async def _mismatch(self, wal: Wal) -> int:
        """Append on a condition that does not hold; return where the log ends, as the refusal says."""
        history = self.history
        history.values += 1
        value = b"never %d" % history.values
        history.calls.begin(value, expect_offset=1)
        try:
            await wal.append_many([value], expect_offset=1)
        except OffsetMismatchError as error:
            history.calls.end(value, "refused")
            history.refused.add(value)
            return error.actual or 0
        except EXPECTED as error:
            self._failed([value], error)
            raise
        raise ReplicaViolationError("current", "the log was taken for empty")

    async def _refresh(self, wal: Wal) -> int:
        """Return where the log ends, and read its last records."""
        begin = self.history.loop.time()
        await wal.refresh()
        now = wal.visible_limit
        start = max(wal.head, now - self.random.randrange(5))
        async with wal.follow(start, stop=now) as reader:
            self.history.calls.saw(start, [record.value async for record in reader], begin)
        return now

    async def _read(self, wal: Wal) -> None:
        """Follow the log: what a reader sees stays."""
        try:
            async with wal.follow() as reader:
                while True:
                    batch = await reader.fetch(max_wait_seconds=3.0)
                    if not len(batch):
                        return
                    for record in batch.records():
                        self.history.learn("seen", record.offset, record.value)
        except WalError:
            return
