"""EngineSource: an open log as its replicator sees it; and the beginning of replication."""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from walstore.core.batches.conditions import RESERVED, AppendConditions
from walstore.core.files.directory import REMAKE, load_claims, read_segment_header
from walstore.core.files.floor import note_floor
from walstore.core.files.frame_stream import CheckedReads, check_segment
from walstore.core.files.frame_walk import frames_of
from walstore.core.files.mended_segment import mend_segment
from walstore.core.format import segment
from walstore.core.format.claims import Claims
from walstore.core.replication_port import Replicator
from walstore.core.runtime.error_mapping import copy_error, describe_open
from walstore.core.tier_port import Tier
from walstore.errors import CorruptionError, FormatVersionError, WalClosedError, WalError
from walstore.positions.cursors.directory import hold_cursors, remove_cursors
from walstore.positions.cursors.kept import Found, adopting, cursors_of_files, giving_up
from walstore.positions.cursors.queue import patiently
from walstore.positions.groups.journal import read_journals, remove_journals
from walstore.positions.groups.kept_journal import adopting_journals, kept_names

if TYPE_CHECKING:
    from walstore.log.engine import Engine

logger = logging.getLogger("walstore.log")

CLAIMS: Final = RESERVED + "claims"
"""The register with the claims on the log's tier."""
_CLOCK_SECONDS: Final = 5.0
"""How much later than the clock the newest record may be without a word."""


class EngineSource:
    """A :class:`walstore.core.replication_port.ReplicatedLog`. Belongs to the event loop of the log."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reads = CheckedReads(engine.fs)
        self.extents: list[tuple[int, int, int, int, bool]] = []
        """As the port says."""

    def look(self) -> None:
        """Note which segments there are. Blocking, for the writer's thread."""
        engine = self._engine
        *sealed, active = engine.opened.tail.summaries()
        for summary in (*sealed, active):
            header = read_segment_header(engine.fs, engine.path, summary.start)
            is_sealed = summary is not active
            size = summary.data_bytes
            if is_sealed:
                path = engine.path / segment.file_name(summary.start)
                with contextlib.closing(engine.fs.open(path, "r")) as file:
                    size = file.size()
                if size < summary.data_bytes + segment.SEAL.size:
                    text = f"a part of the segment is gone; {REMAKE}"
                    raise CorruptionError(text, path=str(path), position=size)
            extent = (summary.start, header.salt or 0, header.created_us, size, is_sealed)
            self.extents.append(extent)

    async def read(self, start: int, created_us: int, position: int, size: int) -> bytes:
        """As the port says."""
        path = self._engine.path / segment.file_name(start)
        read = self._reads.read
        return await self._engine.reading.run(read, path, start, created_us, position, size)

    async def frames(self, start: int, begin: int) -> Sequence[Sequence[int]]:
        """As the port says."""
        path = self._engine.path / segment.file_name(start)
        return await self._engine.reading.run(frames_of, self._engine.fs, path, begin)

    async def check(
        self, extent: tuple[int, int, int, int, bool], begin: int, most_bytes: int | None
    ) -> int:
        """As the port says."""
        start, _, created_us, size, is_sealed = extent
        path = self._engine.path / segment.file_name(start)
        check = partial(
            check_segment,
            self._engine.fs,
            path,
            start,
            created_us,
            size,
            is_sealed=is_sealed,
            begin=begin,
            most_bytes=most_bytes,
        )
        return await self._engine.reading.run(check)

    async def mend(self, start: int, created_us: int, position: int, data: bytes) -> int:
        """As the port says. No frames are written there any more, and no file is used again."""
        path, engine = self._engine.path / segment.file_name(start), self._engine
        run = engine.reading.run
        count = await run(mend_segment, engine.fs, path, created_us, position, data)
        if (
            start not in engine.state.segments
        ):  # retention deleted it meanwhile: it may have come back
            with contextlib.suppress(FileNotFoundError):
                await run(engine.fs.remove, path)
            raise FileNotFoundError(errno.ENOENT, "the segment was deleted", str(path))
        return count

    def on_replicated(self, limit: int) -> None:
        """As the port says."""
        self._engine.state.on_replicated(limit)

    async def note_replicated(self, limit: int) -> None:
        """As the port says."""
        reading = self._engine.reading
        await reading.run_through(note_floor, self._engine.fs, self._engine.path, limit)

    def on_too_few(self, error: WalError) -> None:
        """As the port says."""
        replicated = self._engine.state.replicated
        if replicated is not None:
            replicated.fail_waiting(lambda _: copy_error(error))

    def on_failed(self, error: Exception) -> None:
        """As the port says."""
        self._engine.writer.fail(error)
        self._engine.request_close()


async def _attach(engine: Engine, replicator: Replicator, source: EngineSource) -> None:
    """Let the source look, and tell the replicator what is written from then on.

    CorruptionError and the like for a file that is not as it was written: no write failed.
    """
    try:
        await engine.writer.attach(replicator.tee, source.look)
    except WalError as error:
        cause = error.__cause__
        if isinstance(cause, CorruptionError | FormatVersionError):
            raise copy_error(cause) from cause
        if isinstance(cause, OSError):
            raise describe_open(cause, engine.path) from cause
        raise


async def begin_to_replicate(engine: Engine, replicator: Replicator) -> None:
    """Begin to copy, and return once enough copies have a frame of this opening.

    Closes the log if that fails: StorageUnavailableError, FencedError.
    """
    try:
        source = EngineSource(engine)
        await _attach(engine, replicator, source)
        replicator.start(source, engine.opened.log_id)
        engine.source.repair = replicator.heal
        trouble = _clock_trouble(engine)
        await engine.writer.mark_epoch()
        await replicator.wait_all()
        if engine.tier is not None:
            await _claim_tier(engine, engine.tier)
        await _keep_cursors(engine)
    except BaseException as error:
        with contextlib.suppress(WalError):
            await engine.close()
        failure = engine.writer.failure
        if isinstance(error, WalClosedError) and failure is not None:
            cause = failure.__cause__
            raise copy_error(cause if isinstance(cause, WalError) else failure) from cause
        raise
    if trouble is not None:
        logger.warning("%s", trouble)


def _clock_trouble(engine: Engine) -> str | None:
    """Return what is to be said of the clock of this machine, as the newest record shows it."""
    ahead_seconds = (engine.opened.tail.newest_us - engine.clock.now_us()) / 1e6
    if ahead_seconds < _CLOCK_SECONDS:
        return None
    return (
        f"the newest record of {engine.path} is {ahead_seconds:.0f} seconds later than the clock of this "
        "machine: this clock is behind, that of an earlier leader was ahead, or a program gave the record "
        "that time. Nothing is lost: records get that time until the clock has reached it, and age that much "
        "later. Compare the clocks of the machines, and let NTP keep them"
    )


async def _claim_tier(engine: Engine, tier: Tier) -> None:
    """Claim the tier for the primary of this epoch, and begin to ship. Raises as :meth:`Tier.claim`.

    Enough copies have a frame of this epoch, so all that is here is in the log for good, and with it all
    that an earlier primary shipped, which was on enough machines before. The names of claims are in a
    register, and on enough machines before the tier is asked. So a primary knows every claim that an earlier
    one asked for, and none knows those of a later one: that takes the tier from it, and it never takes it
    back.
    """
    path = engine.path
    value = engine.state.registers.get(CLAIMS)
    known = None if value is None else Claims.of_register(value, str(path))
    if known is None:  # a log that was not replicated, or had no tier, until now
        known = await engine.reading.run(load_claims, engine.fs, path)

    async def remember(claims: Claims) -> None:
        update: dict[str, str | None] = {CLAIMS: claims.to_register()}
        await engine.change(AppendConditions(update=update, is_upkeep=True))

    await tier.claim(
        engine.opened.log_id, known, remember, local=engine.shipping, is_replicated=True
    )
    engine.tier_claimed.set_result(None)


async def _keep_cursors(engine: Engine) -> None:
    """Let the log have the cursors that were files until now, if there are any, and remove the files.

    From the moment in which the log has them, files count for nothing. Raises as :meth:`Engine.change`,
    LimitExceededError for too many.
    """
    fs, path = engine.fs, engine.path

    def read() -> dict[str, Found]:
        if not cursors_of_files(fs, path):
            return {}
        with hold_cursors(fs, path, owner=engine.owner):  # no other process moves one any more
            return cursors_of_files(fs, path)

    if engine.opened.adopted is not None:
        found = await patiently(engine.clock, lambda: engine.reading.run(read))
        assert engine.pins.kept is not None
        engine.pins.kept.adopt(found)
        await engine.change(adopting(found))
        if found:
            logger.info("%d cursors of %s are in the log now", len(found), path)
    await _keep_journals(engine)
    try:
        await engine.reading.run(remove_cursors, fs, path)
        await engine.reading.run(remove_journals, fs, path)
    except OSError as error:
        logger.warning("files of cursors in %s, which count no more, stay: %s", path, error)


async def _keep_journals(engine: Engine) -> None:
    """Let the log have what groups remembered in files until now. Those that count no more are gone by then.

    Raises as :meth:`Engine.change`.
    """
    found = await engine.reading.run(read_journals, engine.fs, engine.path)
    conditions = adopting_journals(found, engine.registers)
    if conditions is not None:
        await engine.change(conditions)


async def restore_cursors(engine: Engine) -> None:
    """Let a log that is replicated no longer forget its cursors, which opening has made files.

    Closes the log if that fails; raises as :meth:`Engine.change`.
    """
    try:
        conditions = giving_up(engine.state.registers)
        assert conditions.update is not None
        conditions.update |= dict.fromkeys(kept_names(engine.state.registers))
        await engine.change(conditions)
    except BaseException:
        with contextlib.suppress(WalError):
            await engine.close()
        raise
