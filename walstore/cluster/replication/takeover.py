"""Taking over a replicated log: promises of enough copies, and then all that any of them may have.

An append was acknowledged when ``quorum`` copies had it. Any ``replicas - quorum + 1`` copies contain one
of those, so the best of that many has everything that was acknowledged. Each of them promises first to obey
nobody older. ``quorum`` copies have to promise as well: an opening is over only when so many have its first
frame, so one that has obeyed a later candidate has to be heard before the epoch is chosen.

A copy that was put back from an older state does not count, as far as the store of the machines knows
(``copy_marks.py``); and if no copy that answers has what was replicated, nobody leads.

Copies that are not whole (``promise.py``) do not count. So a new log, or one that had no copies so far,
needs all of them once: if none is whole, and at most one has records, that one is the log.

A log of one copy A grows by one: the next list is A and B, and B, which came with that very list, is not
whole, nor can it become so before somebody leads. The same when one of two is replaced. So with a list of
two, of which one is new, it is enough that both promise and the old one, A, is whole:
  * Q1. A has everything. With this list an append is acknowledged when both have it. With the list before,
    of A alone or of A and another one, A's copy was needed, too; and if there were more copies before that,
    whoever led with that list needed both whole, and A had everything from then on. That somebody led with it
    before the list changes, and that his or a present copy stays, the allocator sees to (``allocation.py``).
  * Q2. Every takeover with the list before and this one needs a promise of A, which remembers it since it is
    whole. So of each epoch there is one primary. A stays in the next list, and the first takeover with that
    needs A again: it is A alone, A and another new one, the same two as equals, both of them whole, or these
    and a third one, which is not whole yet. From then on A refuses this list, whatever becomes of B: who
    reads it from somewhere old, or stood still, cannot take over with it. Were A given up at once, B alone
    would know of it, and B's disk may be lost. If B is given up by hand, A alone may take over while B leads
    yet; so what B says of the present is confirmed by A.
It is not enough that all answer: with A's disk lost, A forgot. Nor that any of two is whole: when the third
of three copies is given up, the first may lack what the other two acknowledged, until somebody leads. Nor
that A alone promises: an opening is over only when both have its first frame.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from walstore.cluster.replication.copies import LocalCopy, catch_up
from walstore.cluster.replication.copy_list import CopyList
from walstore.cluster.replication.copy_marks import CopyMarks
from walstore.cluster.replication.lead import Lead
from walstore.cluster.replication.position import CopyEnd
from walstore.cluster.replication.remote_copy import RemoteCopy
from walstore.cluster.replication.replica import Replica
from walstore.cluster.replication.whole_source import WholeSource, complete
from walstore.core.ports import Clock, FileSystem
from walstore.core.runtime.backoff import Backoff
from walstore.core.runtime.threads import Lane
from walstore.errors import CorruptionError, FencedError, StorageUnavailableError, WalError
from walstore.net.remote.client import Client

if TYPE_CHECKING:
    from pathlib import Path


logger = logging.getLogger("walstore.replication")

_PAUSE_SECONDS: Final = 0.1
_HELP_SECONDS: Final = 1.0
"""How long more copies are waited for when those that answer are damaged at the same place."""


class _Promised(NamedTuple):
    """A copy that has promised to obey."""

    end: CopyEnd
    is_whole: bool
    copy: RemoteCopy | None
    """None for the primary's own."""

    is_blank: bool = False
    """Whether it counted, and has no file of the log: it never got one, or they were removed. It decides only
    together with all others."""

    @property
    def address(self) -> str | None:
        """Of its node; None for the primary's own."""
        return None if self.copy is None else str(self.copy.client.address)

    @classmethod
    def of(cls, end: CopyEnd, is_whole: bool, copy: RemoteCopy | None) -> _Promised:  # noqa: FBT001
        """Return what a copy has answered."""
        has_log = bool(end.log_id)
        return cls(end, is_whole and has_log, copy, is_whole and not has_log)


async def reach_copies(primary: Lead) -> None:
    """Return once a node is connected, or if there is none; else as the takeover ends that nobody answers.

    A vote is durable before any node is asked for its own, and is not taken back then: a node may have
    answered. So a directory that is new waits for this, and a start in vain leaves nothing there.
    """
    clients = [primary.client_of(address) for address in primary.settings.addresses]
    errors: list[WalError] = []

    async def connect(client: Client) -> None:
        try:
            await client.connect()
        except WalError as error:
            errors.append(error)

    def is_reached() -> bool:
        return any(client.is_connected for client in clients)

    try:
        async with asyncio.TaskGroup() as tasks:
            connecting = {tasks.create_task(connect(client)) for client in clients}
            await _until(is_reached, connecting, primary.settings.patience_seconds)
            for task in connecting:
                task.cancel()
        if clients and not is_reached():
            raise _too_few(primary, [], errors)
    finally:
        for client in clients:
            await client.aclose()


async def take_over(primary: Lead, fs: FileSystem, directory: Path, lane: Lane) -> int:
    """Return the epoch that enough copies obey; the directory then has what the best of them has.

    Tries for ``patience_seconds``. StorageUnavailableError, FencedError; what the copies raise.
    """
    clock = primary.clock
    deadline = clock.monotonic() + primary.settings.patience_seconds
    replica = await lane.run_owned(lambda: Replica(fs, directory, _nothing), Replica.close)
    own = LocalCopy(replica, lane)
    try:
        epoch = max(replica.promise.epoch, replica.end.epoch) + 1
        if primary.marks is not None:  # a copy that was put back may have forgotten a later one
            epoch = max(epoch, primary.marks.epoch_of(replica.end.log_id) + 1)
        reported: WalError | None = None
        help_seconds = 0.0
        while True:
            try:
                refused = await _try_epoch(primary, own, epoch, deadline, help_seconds)
            except CorruptionError:
                if help_seconds:
                    raise
                help_seconds = _HELP_SECONDS
                continue
            if refused is None:
                return epoch
            if reported is None or isinstance(reported, FencedError):
                reported = refused  # not what the last attempt says, which had no time
            if clock.monotonic() >= deadline:
                raise reported
            if own.damaged:
                help_seconds = _HELP_SECONDS
            if isinstance(refused, FencedError):  # else the promises of this epoch still hold
                # Not later than is needed: the own copy follows it, and refuses who leads by then.
                epoch = max(epoch, (epoch if refused.epoch is None else refused.epoch) + 1)
            await clock.sleep(_PAUSE_SECONDS * (0.5 + primary.make_tag()[0] / 256))
    finally:
        await own.aclose()


async def _try_epoch(
    primary: Lead, own: LocalCopy, epoch: int, deadline: float, help_seconds: float
) -> WalError | None:
    """Collect promises for an epoch, and get what the best copy has; return why that failed, if so.

    Once there are enough, the others are waited for, so long at most: they may have what is damaged.
    """
    settings = primary.settings
    clients = [primary.client_of(address) for address in settings.addresses]
    own_end = await own.obey(
        epoch, primary.tag, generation=settings.generation, joined=settings.joined_here
    )
    promised: list[_Promised] = []
    if own.is_whole and _is_put_back(primary.marks, None, own_end):
        await own.obey(
            epoch, primary.tag, generation=settings.generation, joined=settings.generation + 1
        )
    if own_end.log_id:
        own.had = own_end
    # Of a copy that is being replaced, and has nothing yet, what it had still counts for this takeover.
    promised.append(_Promised.of(own_end if own_end.log_id else own.had, own.is_whole, None))
    refused: dict[RemoteCopy, WalError] = {}

    def are_enough() -> bool:
        whole = sum(one.is_whole for one in promised)
        if len(promised) == settings.copies:  # nobody else could know more
            whole += sum(one.is_blank for one in promised)
        is_whole = whole >= settings.needed_to_take_over or _has_old_one(promised, settings)
        return is_whole and len(promised) >= settings.needed

    def is_decided() -> bool:
        return are_enough() or any(isinstance(one, FencedError) for one in refused.values())

    try:
        async with asyncio.TaskGroup() as tasks:
            asking = {
                tasks.create_task(
                    _ask(
                        primary.copy_at(client, epoch),
                        promised,
                        refused,
                        primary.marks,
                        primary.clock,
                    )
                )
                for client in clients
            }
            await _until(is_decided, asking, deadline - primary.clock.monotonic())
            if help_seconds and are_enough():
                await _until(lambda: len(promised) == settings.copies, asking, help_seconds)
            for task in asking:
                task.cancel()
        if not are_enough() and not _is_new(promised, settings.copies):
            return _too_few(primary, promised, list(refused.values()))
        try:
            await _adopt(primary, own, promised, is_new=not are_enough())
        except StorageUnavailableError as error:
            return error
        return None
    finally:
        for client in clients:
            await client.aclose()


def _has_old_one(promised: Sequence[_Promised], settings: CopyList) -> bool:
    """Return whether both of two copies are there, the whole one and one that is new in this list."""
    if not len(promised) == settings.copies == settings.needed == 2:
        return False
    is_new = {one: settings.is_new(one.address) for one in promised}
    return any(is_new.values()) and any(one.is_whole and not is_new[one] for one in promised)


async def _ask(
    copy: RemoteCopy,
    promised: list[_Promised],
    refused: dict[RemoteCopy, WalError],
    marks: CopyMarks | None,
    clock: Clock,
) -> None:
    """Ask until the copy promises, or refuses for good: a machine that leads the log yet makes room first."""
    backoff = Backoff(first_seconds=0.02, longest_seconds=_PAUSE_SECONDS)
    while True:
        try:
            if not copy.client.is_connected:
                await copy.client.connect()
            end, is_whole = await copy.obey()
            if is_whole and _is_put_back(marks, copy, end):
                is_whole = False
                await copy.give_up_whole()
            promised.append(_Promised.of(end, is_whole, copy))
        except WalError as error:
            refused[copy] = error
            if isinstance(error, FencedError) or not error.retriable:
                return
            await clock.sleep(backoff.next_seconds())
        else:
            refused.pop(copy, None)
            return


def _is_put_back(marks: CopyMarks | None, copy: RemoteCopy | None, end: CopyEnd) -> bool:
    """Return whether a copy lacks what it had, as far as the store of the machines knows; that is logged."""
    if marks is None:
        return False
    address = marks.address if copy is None else str(copy.client.address)
    trouble = marks.trouble_of(address, end)
    if trouble is not None:
        logger.warning("%s", trouble)
    return trouble is not None


def _is_new(promised: Sequence[_Promised], copies: int) -> bool:
    """Return whether these are all copies, and never were copies of a log before."""
    return (
        len(promised) == copies
        and sum(one.end.limit > 1 for one in promised) <= 1
        and not any(one.is_whole and one.end.limit > 1 for one in promised)
    )


async def _until(holds: Callable[[], bool], tasks: set[asyncio.Task[None]], seconds: float) -> None:
    """Return when something holds, or all tasks have ended, or it is too late."""
    pending, end = tasks, asyncio.get_running_loop().time() + max(seconds, 0.0)
    while pending and not holds():
        left = end - asyncio.get_running_loop().time()
        if left <= 0:
            return
        _, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)


def _too_few(primary: Lead, promised: Sequence[_Promised], errors: Sequence[WalError]) -> WalError:
    fenced = [error for error in errors if isinstance(error, FencedError)]
    if fenced:
        return max(fenced, key=lambda error: error.epoch or 0)
    settings = primary.settings
    if len(promised) == settings.copies:
        return _undecided(primary, promised)
    whole, new = (sum(one.is_whole is wanted for one in promised) for wanted in (True, False))
    why = f": {errors[0]}" if errors else ""
    also = (
        f" ({new} more are new or were put back, and do not count; a new log needs all of them once)"
        if new
        else ""
    )
    needed = max(settings.needed_to_take_over, settings.needed)
    return StorageUnavailableError(
        f"{whole} of {settings.copies} copies of {primary.name!r} answer, and {needed} are needed to take "
        f"over{also}{why}; start more nodes, then open the log again"
    )


def _undecided(primary: Lead, promised: Sequence[_Promised]) -> WalError:
    """Return the error when all copies answer and too few count: no other machine can change that."""
    settings, marks = primary.settings, primary.marks
    here = (settings.address if marks is None else marks.address) or "this machine"
    best = max(promised, key=lambda one: (one.end.epoch, one.end.place))
    found = ", ".join(f"{one.address or here} {_state(one)}" for one in promised)
    shared = "" if marks is None else " --cluster"
    whole = sum(one.is_whole for one in promised)
    return StorageUnavailableError(
        f"all {settings.copies} copies of {primary.name!r} answer, and {whole} count, where "
        f"{settings.needed_to_take_over} are needed to take over: {found}. Nothing was changed, and waiting "
        f"does not help. To let the copy at {best.address or here} be the log, stop the machines, call "
        f"'walstore logs reset-head{shared}' there and 'walstore logs give-up' on the others, and start "
        "them; what only lost copies had is gone then"
    )


def _state(one: _Promised) -> str:
    if not one.end.log_id:
        return "is empty"
    state = "counts" if one.is_whole else "is new or was put back"
    return f"ends at offset {one.end.limit} and {state}"


async def _adopt(
    primary: Lead, own: LocalCopy, promised: Sequence[_Promised], *, is_new: bool
) -> None:
    """Make the own copy equal to the one that has most, if that is another."""
    name = primary.name
    counted = [one for one in promised if one.is_whole or one.is_blank or is_new]
    best = max(counted, key=lambda one: (one.end.epoch, one.end.place))
    mine = promised[0]
    if primary.marks is not None:
        primary.marks.check(name, best.end)
    has_more = (best.end.epoch, best.end.place) > (mine.end.epoch, mine.end.place)
    is_other = best.copy is not None and bool(best.end.log_id)
    if best.copy is None and not own.end.log_id and own.had.log_id:
        raise StorageUnavailableError(
            f"the copy of {name!r} here was being replaced from another one, which had more and does not "
            "answer now; start more nodes, then open the log again"
        )
    if is_other and (has_more or not (mine.is_whole or is_new)):
        assert best.copy is not None
        logger.info("%s is continued from the copy at %s", name, best.copy.client.address)
        await _continue_from(best, own, promised, replaces=mine.is_whole)
    for one in sorted(counted, key=lambda one: one.end.first):
        is_same = one.copy is not None and one.end.log_id == own.end.log_id
        has_more = one.end.first < own.end.first or bool(own.damaged)
        if is_same and own.end.log_id and has_more:
            assert one.copy is not None
            logger.warning("%s lacks segments here, or has damaged ones: they are copied", name)
            await complete(_source(one.copy, promised), own)
    await own.check_inside()
    if is_new:
        for one in promised:
            if one.copy is not None:
                await one.copy.make_whole()
    await own.make_whole()


async def _continue_from(
    best: _Promised, own: LocalCopy, promised: Sequence[_Promised], *, replaces: bool
) -> None:
    """Make the own copy equal to the best one, or to one that ends there, too, where it is damaged."""
    equal = [one.copy for one in promised if one.copy is not None and one.end[:4] == best.end[:4]]
    for at, copy in enumerate(equal, 1):
        source = _source(copy, promised)
        try:
            await catch_up(source, own, own.end, log_id=best.end.log_id, replaces=replaces)
            return
        except CorruptionError:
            if at == len(equal):
                raise


def _source(best: RemoteCopy, promised: Sequence[_Promised]) -> WholeSource:
    """Return a copy as a source, with the others for what is damaged there."""
    others = [one.copy for one in promised if one.copy is not None and one.copy is not best]
    return WholeSource(best, others)


def _nothing() -> None:
    """The directory stays locked by the program that opens the log."""
