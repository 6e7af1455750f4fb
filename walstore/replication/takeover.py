"""Taking over a replicated log: promises of enough copies, and then all that any of them may have.

An append was acknowledged when ``quorum`` copies had it. Any ``replicas - quorum + 1`` copies contain one
of those, so the best of that many has everything that was acknowledged. Each of them promises first to obey
nobody older.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from walstore.errors import FencedError, StorageUnavailableError, WalError
from walstore.ports import FileSystem
from walstore.replication.copies import LocalCopy, catch_up
from walstore.replication.position import CopyEnd
from walstore.replication.remote_copy import RemoteCopy
from walstore.replication.replica import Replica
from walstore.runtime.threads import Lane

if TYPE_CHECKING:
    from pathlib import Path

    from walstore.replication.primary import Primary

logger = logging.getLogger("walstore")

_PAUSE_SECONDS: Final = 0.1


class _Promised(NamedTuple):
    """A copy that has promised to obey."""

    end: CopyEnd
    copy: RemoteCopy | None
    """None for the primary's own."""


async def take_over(primary: Primary, fs: FileSystem, directory: Path, lane: Lane) -> int:
    """Return the epoch that enough copies obey; the directory then has what the best of them has.

    Tries for ``patience_seconds``. StorageUnavailableError, FencedError; what the copies raise.
    """
    clock = primary.clock
    deadline = clock.monotonic() + primary.settings.patience_seconds
    replica = await lane.run_through(Replica, fs, directory, _nothing)
    own = LocalCopy(replica, lane)
    try:
        epoch = max(replica.promise.epoch, replica.end.epoch) + 1
        while True:
            refused = await _try_epoch(primary, own, epoch, deadline)
            if refused is None:
                return epoch
            if clock.monotonic() >= deadline:
                raise refused
            epoch += 1
            await clock.sleep(_PAUSE_SECONDS * (0.5 + primary.make_tag()[0] / 256))
    finally:
        await own.aclose()


async def _try_epoch(
    primary: Primary, own: LocalCopy, epoch: int, deadline: float
) -> WalError | None:
    """Collect promises for an epoch, and get what the best copy has; return why that failed, if so."""
    settings = primary.settings
    needed = settings.copies - settings.needed + 1
    clients = [primary.client_of(address) for address in settings.addresses]
    promised = [_Promised(await own.obey(epoch, primary.tag), None)]
    errors: list[WalError] = []

    async def ask(copy: RemoteCopy) -> None:
        try:
            await copy.client.connect()
            promised.append(_Promised(await copy.obey(), copy))
        except WalError as error:
            errors.append(error)

    try:
        async with asyncio.TaskGroup() as tasks:
            asking = {tasks.create_task(ask(primary.copy_at(client, epoch))) for client in clients}
            await _until(
                lambda: len(promised) >= needed, asking, deadline - primary.clock.monotonic()
            )
            for task in asking:
                task.cancel()
        if len(promised) < needed:
            return _too_few(primary, len(promised), needed, errors)
        try:
            await _adopt(primary.name, own, promised)
        except StorageUnavailableError as error:
            return error
        return None
    finally:
        for client in clients:
            await client.aclose()


async def _until(holds: Callable[[], bool], tasks: set[asyncio.Task[None]], seconds: float) -> None:
    """Return when something holds, or all tasks have ended, or it is too late."""
    pending, end = tasks, asyncio.get_running_loop().time() + max(seconds, 0.0)
    while pending and not holds():
        left = end - asyncio.get_running_loop().time()
        if left <= 0:
            return
        _, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)


def _too_few(primary: Primary, found: int, needed: int, errors: Sequence[WalError]) -> WalError:
    fenced = next((error for error in errors if isinstance(error, FencedError)), None)
    if fenced is not None:
        return fenced
    why = f": {errors[0]}" if errors else ""
    return StorageUnavailableError(
        f"{found} of {primary.settings.copies} copies of {primary.name!r} answer, and {needed} are needed to "
        f"take over{why}; start more nodes, then open the log again"
    )


async def _adopt(name: str, own: LocalCopy, promised: Sequence[_Promised]) -> None:
    """Make the own copy equal to the one that has most, if that is another."""
    best = max(promised, key=lambda one: (one.end.epoch, one.end.place))
    mine = promised[0].end
    if best.copy is None or (best.end.epoch, best.end.place) <= (mine.epoch, mine.place):
        return
    logger.info("%s is continued from the copy at %s", name, best.copy.client.address)
    await catch_up(best.copy, own, mine, log_id=best.end.log_id)


def _nothing() -> None:
    """The directory stays locked by whoever opens the log."""
