"""Opening of a log: claim its tier, lock and recover its directory, start its engine."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from walstore.core.files.anchor import absolute
from walstore.core.files.directory import PROMISE_NAME, peek_log_id
from walstore.core.files.locks import this_process
from walstore.core.format import codec
from walstore.core.format.claims import Claims
from walstore.core.format.packed import MOST_START, MOST_TIMESTAMP_US
from walstore.core.ports import Clock, FileSystem
from walstore.core.replication_port import ReplicationPlan, Replicator
from walstore.core.runtime.error_mapping import describe_open
from walstore.core.settings import Settings
from walstore.core.tier_port import Tier
from walstore.errors import CorruptionError, InvalidSettingsError, OffsetError
from walstore.log.engine import Engine
from walstore.log.entered import Entered, enter_log, has_been_entered
from walstore.log.log_resources import LogResources
from walstore.log.opening import Opened, close_log, recover_log
from walstore.log.replicated import begin_to_replicate, restore_cursors
from walstore.log.tier_source import RecoveredRecords, local_uploaded_limit
from walstore.positions.cursors.kept import adopting, cursors_of_files, keeps_cursors
from walstore.records import Durability

logger = logging.getLogger("walstore.log")


async def open_engine(
    path: Path,
    settings: Settings,
    tier: Tier | None,
    fs: FileSystem,
    clock: Clock,
    resources: LogResources | None = None,
    *,
    replication: ReplicationPlan | None = None,
) -> Engine:
    """Lock and recover the log at ``path``, or create it, and start its tasks."""
    if settings.durability is Durability.CLOUD and tier is None:
        raise InvalidSettingsError("durability 'cloud' needs a log opened with tier=")
    if settings.durability is Durability.REPLICATED and replication is None:
        raise InvalidSettingsError("durability 'replicated' needs a log opened with replication=")
    resources = resources or LogResources.alone()
    replicator: Replicator | None = None
    try:
        path = await absolute(path, resources.writing)
        replicator = None if replication is None else replication.begin(path, clock)
        if tier is not None and replicator is not None:
            # Before the copies are asked: a program that cannot reach its tier ends no other one's time.
            await tier.open(None, is_replicated=True)
        elif tier is not None:
            await tier.open(await resources.writing.run(peek_log_id, fs, path))
        if replicator is not None and not await resources.writing.run(has_been_entered, fs, path):
            await replicator.reach()
        opened = await _enter_and_recover(path, settings, tier, fs, clock, resources, replicator)
    except BaseException as error:
        resources.close()
        if replicator is not None:
            await replicator.aclose()
        if tier is not None:
            await tier.aclose()
        if isinstance(error, OSError):
            raise describe_open(error, path) from error
        raise
    engine = Engine(
        path=path,
        settings=settings,
        fs=opened.fs,
        clock=clock,
        opened=opened,
        resources=resources,
        tier=tier,
        replicator=replicator,
    )
    await engine.until_started()
    if replicator is not None:
        await begin_to_replicate(engine, replicator)
    elif keeps_cursors(engine.state.registers, path):
        await restore_cursors(engine)
    logger.info("%s: opened %s", path, _opened_text(engine))
    return engine


def _opened_text(engine: Engine) -> str:
    """Return what an operator asks of a log that was opened just now; what was lost is a warning."""
    state, tier = engine.state, engine.tier
    parts = [f"at epoch {engine.opened.tail.epoch}, offsets [{state.head}, {state.durable.value})"]
    if engine.opened.recovery.created:
        parts.append("a new log")
    if tier is not None:
        parts.append(f"shipped to {tier.url} below {state.uploaded.value}")
    return "; ".join(parts)


async def _enter_and_recover(
    path: Path,
    settings: Settings,
    tier: Tier | None,
    fs: FileSystem,
    clock: Clock,
    resources: LogResources,
    replicator: Replicator | None,
) -> Opened:
    """Lock the log's directory, claim the tier, and recover the log or create it.

    Only the holder of the lock claims the tier, and nothing is appended before it is claimed. A new log
    begins after the records of the claimed tier; an existing log is recovered first, so that a
    directory that cannot continue does not take the tier from another one. The tier of a replicated log is
    claimed when its copies have decided (``replicated.py``); before that only for a log that begins behind
    the records of a tier, which no copy has.
    """
    known: bytes | None = None
    log_id: bytes | None = None

    def enter() -> Entered:
        if settings.compression is not None:
            codec.require()
        entered = enter_log(path, fs=fs, owner=this_process(), take_lock=resources.take_lock)
        _check_entered(entered, is_replicated=replicator is not None)
        return entered

    async def remember(claims: Claims) -> None:
        await resources.writing.run(entered.remember, claims)

    def recover(entered: Entered) -> Opened:
        opened = recover_log(
            entered,
            clock=clock,
            settings=settings,
            defers_epoch=resources.defers_epoch,
            make_log_id=lambda: log_id or os.urandom(16),
            tier_limit=1 if tier is None or known is not None else tier.limit,
            tier_url=tier.url if tier else None,
            tier_timestamp_us=timestamp_us,
            own_epoch=epoch,
        )
        resources.adopt(opened.tail.park)
        return opened

    lane, timestamp_us = resources.writing, 0
    epoch: int | None = None
    if replicator is not None:
        entered = await lane.run_owned(enter, Entered.release)
        try:
            epoch = await replicator.take_over(entered.fs, entered.directory, lane)
            entered = await lane.run(entered.look_again)
            known, _ = await lane.run(entered.peek)
            log_id, timestamp_us = await _claim_for_new(known, tier, remember)
        except BaseException:
            await lane.run_through(entered.release)
            raise
        return await lane.run_owned(lambda: recover(entered), close_log)
    if tier is None:
        return await lane.run_owned(lambda: recover(enter()), close_log)
    entered = await lane.run_owned(enter, Entered.release)
    try:
        known, claims = await lane.run(entered.peek)
        log_id = known or tier.log_id or os.urandom(16)
        if known is None:
            timestamp_us = await _claim_new(log_id, tier, remember)
    except BaseException:
        await lane.run_through(entered.release)
        raise
    opened = await lane.run_owned(lambda: recover(entered), close_log)
    if known is not None:
        try:
            uploaded_limit = local_uploaded_limit(opened.tail, tier)
            local = RecoveredRecords(opened, resources.reading, uploaded_limit=uploaded_limit)
            await tier.claim(log_id, claims, remember, local=local)
        except BaseException:
            await lane.run_through(close_log, opened)
            raise
    return opened


async def _claim_for_new(
    known: bytes | None, tier: Tier | None, remember: Callable[[Claims], Awaitable[None]]
) -> tuple[bytes | None, int]:
    """Claim the tier for a replicated log that begins behind its records; return its identity and last time.

    None and 0 for a log that is there (``known``), or begins where none is.
    """
    log_id = None if tier is None else tier.log_id
    if tier is None or known is not None or log_id is None:
        return None, 0
    return log_id, await _claim_new(log_id, tier, remember, is_replicated=True)


async def _claim_new(
    log_id: bytes,
    tier: Tier,
    remember: Callable[[Claims], Awaitable[None]],
    *,
    is_replicated: bool = False,
) -> int:
    """Claim a tier whose log begins here, behind its records; return the time of the last of these.

    CorruptionError if no log on disk can begin there: nobody could read what it wrote.
    """
    if tier.limit > MOST_START:
        raise CorruptionError(
            f"the log ends at offset {tier.limit}; a log on disk cannot begin behind {MOST_START}; nothing "
            "was changed there",
            path=tier.url,
        )
    await tier.claim(log_id, None, remember, is_replicated=is_replicated)
    return await _last_timestamp_us(tier)


async def _last_timestamp_us(tier: Tier) -> int:
    """Return the time of a tier's last record; 0 if it has none, or none that is possible."""
    if tier.limit <= tier.head:
        return 0
    try:
        batches = await tier.read(tier.limit - 1, tier.limit, 1)
    except (CorruptionError, OffsetError) as error:
        logger.warning("times may go back in the log at %s: %s", tier.url, error)
        return 0
    newest_us = max(batches[-1].timestamps_us)
    if newest_us > MOST_TIMESTAMP_US:  # no batch here could be as late
        logger.warning(
            "times may go back in the log at %s: its last record has the impossible time %d µs",
            tier.url,
            newest_us,
        )
        return 0
    return newest_us


def _check_entered(entered: Entered, *, is_replicated: bool) -> None:
    """Refuse a copy of a replicated log unless it is opened as one, and release it: InvalidSettingsError.

    What is appended to one copy alone would count as the newest of all. LimitExceededError, before it becomes
    a copy, for a log of more cursors than it can keep.
    """
    is_copy = PROMISE_NAME in entered.names
    try:
        if is_replicated and not is_copy:
            adopting(cursors_of_files(entered.fs, entered.directory))
        elif is_copy and not is_replicated:
            raise InvalidSettingsError(
                f"{entered.directory} is a copy of a replicated log: open it with replication=, or for "
                "reading; to go on with it as a log of its own, which is no copy any more, remove its file "
                "PROMISE"
            )
    except BaseException:
        entered.release()
        raise
