"""Bucket writers: what runs in the processes of a round in a store: writers, and a checker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from uploader import CloudLog, CloudWriter, Layout, Scrubber, WriterSettings
from uploader.stores import ObjectStore, open_store
from uploader.stores.retry import RetryPolicy
from uploader.stores.wrapper import Request, StoreWrapper
from uploader.testing.faults import Fault, busy, conflict, fail, happen_then_fail, postpone, timeout
from walstore.cli.errors import leaves
from walstore.cli.prove.forks import send
from walstore.cli.prove.promises import FoundLog, Promises, parse_value, require, value_of
from walstore.cli.prove.workload import SIZES
from walstore.core.settings import KIB
from walstore.errors import WalClosedError, WalError

OPS_OF_A_WRITER: Final = 100_000
_TASKS: Final = 2
"""Of a writer; each has one append under way."""
_SETTINGS: Final = WriterSettings(fragment_bytes=64 * KIB, max_in_flight=4)
_RETRY: Final = RetryPolicy(first_wait_seconds=0.01, longest_wait_seconds=0.1)
_LATE_SECONDS: Final = 0.2
_PUT_FAULT_SHARE: Final = 0.15
_READ_FAULT_SHARE: Final = 0.01

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class BucketScene:
    """The stored log of a round."""

    url: str
    seed: int
    has_faults: bool
    """Whether some requests of the writers fail, are done with a lost answer, or arrive late."""
    wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store
    """Makes the store of the writers from the one that the URL names."""

    @property
    def layout(self) -> Layout:
        """The layout of the log."""
        return "chain" if self.seed % 2 else "swap"


class UnreliableStore(StoreWrapper):
    """A store some of whose requests fail or are not answered, by chance."""

    def __init__(
        self, inner: ObjectStore, chance: random.Random, note: Callable[[str], None]
    ) -> None:
        """Wrap ``inner``; ``note`` is called with the name of each fault before it happens."""
        super().__init__(inner)
        self.late: list[Request[Any]] = []
        """Puts that were reported as timed out and have not arrived yet."""
        self._chance = chance
        self._note = note
        self._faults: dict[str, Fault] = {
            "lost_answers": happen_then_fail(timeout()),
            "late_requests": postpone(self.late),
            "throttled_requests": fail(conflict()),
            "failed_requests": fail(busy()),
        }

    async def _call(self, request: Request[_T]) -> _T:
        is_put = request.kind in {"put_if_absent", "put_if_match"}
        share = _PUT_FAULT_SHARE if is_put else _READ_FAULT_SHARE
        if self._chance.random() >= share:
            return await request()
        names = list(self._faults) if is_put else ["throttled_requests", "failed_requests"]
        name = self._chance.choice(names)
        self._note(name)
        return await self._faults[name](request)  # type: ignore[return-value]  # a call's, or it raised

    async def deliver(self) -> None:
        """Let late puts arrive after random pauses, until this is cancelled."""
        while True:
            await asyncio.sleep(self._chance.uniform(0, _LATE_SECONDS))
            if self.late:
                try:
                    await self.late.pop(self._chance.randrange(len(self.late)))()
                except WalError:
                    continue  # it came too late to be obeyed, which nobody hears


async def write(scene: BucketScene, descriptor: int, writer: int) -> None:
    """Append until killed; ends by itself if the store refuses it for now. ``writer`` is unique."""
    chance = random.Random(scene.seed * 7919 + writer)
    store = scene.wrap(open_store(scene.url))
    unreliable = UnreliableStore(store, chance, lambda name: send(descriptor, [0, ["fault", name]]))
    opening = CloudWriter.open(
        scene.url,
        layout=scene.layout,
        settings=_SETTINGS,
        retry=_RETRY,
        store=unreliable if scene.has_faults else store,
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            late = tasks.create_task(unreliable.deliver())
            async with opening as log:
                send(descriptor, [0, ["writing"]])
                work = _BucketAppends(log, descriptor, chance, writer)
                async with asyncio.TaskGroup() as appending:
                    for _ in range(_TASKS):
                        appending.create_task(work.run())
            late.cancel()
    except* WalError as errors:
        if not all(may_pass(error) for error in leaves(errors)):
            raise
        send(descriptor, [0, ["refused_for_now"]])


class _BucketAppends:
    """The appends of one writer."""

    def __init__(
        self, log: CloudWriter, descriptor: int, chance: random.Random, writer: int
    ) -> None:
        self._log, self._descriptor, self._chance = log, descriptor, chance
        self._op = writer * OPS_OF_A_WRITER

    async def run(self) -> None:
        """Append one group after another."""
        while True:
            self._op += 1
            op = self._op
            sizes = [self._chance.choice(SIZES) for _ in range(self._chance.randint(1, 6))]
            self._say(["op", op, sizes, {}])
            try:
                values = [value_of(op, at, size) for at, size in enumerate(sizes)]
                span = await self._log.append_many(values)
            except WalError as error:
                if error.outcome == "not_written":
                    self._say(["refused", op])
                if isinstance(error, WalClosedError) or not may_pass(error):
                    raise
            else:
                self._say(["ok", op, span.start])

    def _say(self, report: list[Any]) -> None:
        send(self._descriptor, [0, report])


async def check(scene: BucketScene, promises: Promises, descriptor: int) -> None:
    """Verify the log with its setsums, read it, compare it with what was promised, and scrub it."""
    async with CloudLog.open(scene.url) as log:
        await log.verify()
        limit = log.limit
        require(limit >= promises.limit, f"the log ends at {limit}, promised: {promises.limit}")
        async with log.reader("earliest", stop=limit, follow=False) as reader:
            rows = [(r.offset, r.value, r.key, r.stream) async for r in reader]
        promises.check_records(FoundLog(log.head, limit, rows))
    async with Scrubber.open(scene.url) as scrubber:
        errors = (await scrubber.scrub()).errors
        require(not errors, f"scrub: {errors[:1]}")
    names = [[offset, *(parse_value(value) or ())] for offset, value, *_ in rows]
    send(descriptor, [0, ["durable", limit]])
    send(descriptor, [0, ["shown", names]])
    send(descriptor, [0, ["checked", len(rows)]])


def may_pass(error: BaseException) -> bool:
    """Return whether a writer may meet an error of a store that others use and that fails at times."""
    return isinstance(error, WalError) and (error.retriable or error.outcome == "unknown")
