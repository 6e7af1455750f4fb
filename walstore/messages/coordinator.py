"""Coordinator: transactions over several logs, exactly once across crashes of the program."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from datetime import datetime

from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.error_mapping import copy_error
from walstore.core.runtime.resource import Opening
from walstore.errors import (
    ExpectationError,
    FencedError,
    LogNotFoundError,
    WalClosedError,
    WalError,
)
from walstore.log.wal import Wal
from walstore.messages.coordinator_state import CoordinatorState, StateStore
from walstore.messages.publisher import Publisher, abort_producers, send_intents
from walstore.messages.stamp import Stamp, new_producer_id
from walstore.records import AnyDurability, Durability


class CoordinatedTransaction:
    """Messages to several logs that become visible all together or not at all.

    Made by :meth:`walstore.messages.Coordinator.transaction`.
    """

    def __init__(
        self, publisher: Publisher, outputs: Collection[str], position: bytes | None
    ) -> None:
        """Not for callers."""
        self._publisher: Publisher | None = publisher
        self._outputs = outputs
        self.position = position
        """Value to store with the commit, for example the position of the input; set it. If it is not set,
        the previous one stays."""

    async def publish(
        self,
        log: Wal,
        value: bytes,
        *,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | datetime | None = None,
    ) -> int:
        """Append a message to one of the coordinator's outputs; return its offset when accepted.

        Options as for :meth:`walstore.Wal.append`. ValueError for a log that is not an output,
        WalClosedError outside the transaction's block. Let errors leave the block: they roll the
        transaction back.
        """
        if self._publisher is None:
            raise WalClosedError("the transaction has ended; publish inside its async with block")
        if log.log_id not in self._outputs:
            raise ValueError(f"{log!r} is not among the outputs the coordinator was opened with")
        return await self._publisher.publish_uncommitted(
            log, value, key=key, stream=stream, headers=headers, timestamp_us=timestamp_us
        )

    def end(self) -> None:
        """Refuse further messages. Called when the block is left."""
        self._publisher = None


class Coordinator:
    """Publishes to several logs, all or nothing, together with the position of its input.

    A transaction is committed when the store has saved its state. Opening finishes or rolls back the
    unfinished work of the previous program, and fences it: only the coordinator opened last can save to
    a store. One transaction at a time, one event loop.
    """

    @classmethod
    def open(
        cls,
        store: StateStore,
        outputs: Iterable[Wal],
        *,
        clock: Clock | None = None,
        make_id: Callable[[], bytes] = new_producer_id,
        durability: AnyDurability = Durability.DISK,
        forget_missing: bool = False,
    ) -> Opening[Coordinator]:
        """Take the store over, recover, and return a coordinator; await or enter the result.

        ``outputs`` are all logs that transactions may publish to, including those of the previous
        program: LogNotFoundError if one is missing, unless ``forget_missing`` says that it was deleted
        on purpose. Messages reach ``durability`` ("disk" or "cloud") before their transaction commits.
        Raises what the store and the logs raise.
        """

        async def open_it() -> Coordinator:
            logs = list(outputs)
            names = tuple(log.log_id for log in logs)
            ticking = clock or SystemClock()
            publisher = Publisher(clock=ticking, make_id=make_id)
            position = None
            data = await store.load()
            if data is not None:
                found = CoordinatorState.from_bytes(data)
                missing = sorted(set(found.outputs) - set(names))
                if missing and not forget_missing:
                    raise LogNotFoundError(
                        f"the previous program published to the log {missing[0]}, which is not among "
                        "the outputs; open it too, or say forget_missing=True if it is gone",
                        location=missing[0],
                    )
                # First take the store over: then no other program can commit what is rolled back below.
                claimed = dataclasses.replace(
                    found,
                    producers=(*found.producers, publisher.producer),
                    outputs=tuple(sorted({*found.outputs, *names})),
                )
                await store.save(claimed.to_bytes())
                await _recover(found, logs, ticking, forget_missing=forget_missing)
                position = found.position
            state = CoordinatorState((publisher.producer,), names, {}, position)
            await store.save(state.to_bytes())
            return cls(
                store=store, outputs=logs, publisher=publisher, state=state, durability=durability
            )

        return Opening(open_it)

    def __init__(
        self,
        *,
        store: StateStore,
        outputs: list[Wal],
        publisher: Publisher,
        state: CoordinatorState,
        durability: AnyDurability,
    ) -> None:
        """Not for callers; see :meth:`open`."""
        self._store = store
        self._outputs = {log.log_id: log for log in outputs}
        self._publisher = publisher
        self._state = state
        self._durability = durability
        self._is_busy = False
        self._ended: WalClosedError | None = None
        # Acknowledgements accepted and perhaps not on disk; until they are, the state with them must stay.
        self._unsettled: dict[str, int] = {}

    @property
    def position(self) -> bytes | None:
        """The position stored by the last committed transaction; None before the first."""
        return self._state.position

    @property
    def producer(self) -> bytes:
        """Producer id of this session."""
        return self._publisher.producer

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[CoordinatedTransaction]:
        """Open a transaction for an ``async with`` block: committed at its end, rolled back if it raises.

        ExpectationError if another one is open. WalClosedError if an earlier one failed such that only
        opening again can determine its outcome, or finish it; if this one failed like that after it was
        committed, the error's ``outcome`` is "durable". FencedError if another coordinator took over.
        If cancelled while it commits, only opening again determines the outcome.
        """
        transaction = self._begin()
        try:
            yield transaction
        except BaseException as error:
            transaction.end()
            await self._roll_back(error)
            raise
        transaction.end()
        await self._commit(transaction.position)

    async def aclose(self) -> None:
        """Return when the acknowledgements of the last transaction are on disk; twice is allowed."""
        if self._ended is None:
            self._ended = WalClosedError("the coordinator is closed")
            await self._settle()

    # -- inside ------------------------------------------------------------------------------

    def _begin(self) -> CoordinatedTransaction:
        if self._ended is not None:
            raise copy_error(self._ended)
        if self._is_busy:
            raise ExpectationError(
                "another transaction of this coordinator is open; end it first",
                expected=0,
                actual=1,
            )
        self._is_busy = True
        return CoordinatedTransaction(self._publisher, self._outputs, self.position)

    async def _commit(self, position: bytes | None) -> None:
        try:
            await self._publisher.wait_durable(self._durability)
            await self._settle()
            intents = self._publisher.build_ack_intents()
        except BaseException as error:
            await self._roll_back(error)
            raise
        state = dataclasses.replace(self._state, intents=intents, position=position)
        try:
            await self._store.save(state.to_bytes())
        except BaseException as error:
            is_undone = isinstance(error, WalError) and error.outcome == "not_written"
            if is_undone and not isinstance(error, FencedError):
                await self._roll_back(error)
            else:
                self._end(error)
            raise
        self._state = state
        try:
            self._unsettled = await self._publisher.ack()
        except BaseException as error:
            self._end(error)
            if isinstance(error, WalError):
                raise WalClosedError(
                    "the transaction is committed, but not yet visible in every log; open the logs "
                    "and the coordinator again to finish it",
                    reason="failed",
                    outcome="durable",
                ) from error
            raise
        self._is_busy = False

    async def _roll_back(self, cause: BaseException) -> None:
        """Abort the transaction because of ``cause``, which is raised afterwards."""
        try:
            await self._publisher.abort()
        except WalError as error:
            cause.add_note(f"and rolling back failed: {error!r}")
            self._end(error)
        except BaseException as error:
            self._end(error)
            raise
        else:
            self._is_busy = False

    async def _settle(self) -> None:
        for log_id, offset in self._unsettled.items():
            await self._outputs[log_id].wait_durable(offset)
        self._unsettled = {}

    def _end(self, cause: BaseException) -> None:
        """Refuse further transactions: only recovery can determine the outcome of this one, or finish
        it."""
        self._ended = WalClosedError(
            "a transaction could not be ended; open the logs and the coordinator again to recover",
            reason="fenced" if isinstance(cause, FencedError) else "failed",
        )
        self._ended.__cause__ = cause


async def _recover(
    found: CoordinatorState, logs: list[Wal], clock: Clock, *, forget_missing: bool
) -> None:
    """Finish the last committed transaction in all logs, and roll back those begun after it.

    Only after the state was taken over, so that no other program can commit.
    """
    await send_intents(logs, found.intents, forget_missing=forget_missing)
    for log in logs:
        intent = found.intents.get(log.log_id)
        settled = Stamp.decode(intent).producer if intent is not None else None
        dead = [producer for producer in found.producers if producer != settled]
        await abort_producers([log], dead, clock=clock)
