"""Opening of a log: claim its tier, lock and recover its directory, start its engine."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from walstore.errors import CorruptionError, InvalidSettingsError, OffsetError
from walstore.files.anchor import absolute
from walstore.files.directory import PROMISE_NAME, peek_log_id
from walstore.files.locks import this_process
from walstore.format import codec
from walstore.format.claims import Claims
from walstore.log.engine import Engine
from walstore.log.log_resources import LogResources
from walstore.log.opening import Entered, Opened, close_log, enter_log, recover_log
from walstore.log.replicated import begin_to_replicate
from walstore.log.tier_source import RecoveredRecords, local_uploaded_limit
from walstore.ports import Clock, FileSystem, ReplicationPlan, Replicator, Tier
from walstore.records import Durability
from walstore.runtime.error_mapping import describe_open
from walstore.settings import Settings

logger = logging.getLogger("walstore")


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
        if tier is not None:
            await tier.open(await resources.writing.run(peek_log_id, fs, path))
        opened = await _enter_and_recover(path, settings, tier, fs, clock, resources, replicator)
    except BaseException as error:
        resources.close()
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
    return engine


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
    directory that cannot continue does not take the tier from another one.
    """
    known: bytes | None = None
    log_id: bytes | None = None

    def enter() -> Entered:
        if settings.compression is not None:
            codec.require()
        entered = enter_log(path, fs=fs, owner=this_process(), take_lock=resources.take_lock)
        _refuse_copy(entered, replicator)
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
            await tier.claim(log_id, None, remember)
            timestamp_us = await _last_timestamp_us(tier)
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


async def _last_timestamp_us(tier: Tier) -> int:
    """Return the time of a tier's last record; 0 if it has none, or none that can be read."""
    if tier.limit <= tier.head:
        return 0
    try:
        batches = await tier.read(tier.limit - 1, tier.limit, 1)
    except (CorruptionError, OffsetError) as error:
        logger.warning("times may go back in the log at %s: %s", tier.url, error)
        return 0
    return max(batches[-1].timestamps_us)


def _refuse_copy(entered: Entered, replicator: Replicator | None) -> None:
    """Release a copy of a replicated log, and refuse it unless it is replicated: InvalidSettingsError.

    What is appended to one copy alone would count as the newest of all.
    """
    if replicator is None and PROMISE_NAME in entered.names:
        entered.release()
        raise InvalidSettingsError(
            f"{entered.directory} is a copy of a replicated log: open it with replication=, or for reading; "
            "to go on with it as a log of its own, which is no copy any more, remove its file PROMISE"
        )
