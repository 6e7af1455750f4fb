"""Healing: the survey of a damaged log as it will be once a copy's records fill its gaps. Blocking.

A gap is filled bit for bit if possible: then the segment is as it was written. Otherwise its records become
new batches. They end the segment, and the frames after the gap become a segment of their own, because
batches must not move within their file. Nothing here changes the log: new bytes are staged.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Protocol

from crc32c import crc32c

from walstore.care.repair.overlay import ExtentList, Overlay, OverlayBytes, Staging
from walstore.care.repair.plan import Interval
from walstore.care.repair.rebuild import Gap, Rebuilder
from walstore.care.repair.runs import (
    FrameRun,
    Healed,
    LogSurvey,
    SegmentSurvey,
    Situation,
    understand,
)
from walstore.care.repair.survey import SegmentWalk
from walstore.core.batches.batch import Batch
from walstore.core.format import segment
from walstore.core.format.segment import SegmentHeader, SegmentSummary
from walstore.core.ports import File, FileSystem
from walstore.errors import WalError


class Copy(Protocol):
    """Records of the log elsewhere. Blocking; for one thread at a time."""

    @property
    def url(self) -> str:
        """Where the copy is, without credentials."""

    @property
    def log_id(self) -> bytes | None:
        """Identity of the log whose copy it is; None if it does not say."""

    @property
    def head(self) -> int:
        """First offset of the copy."""

    @property
    def limit(self) -> int:
        """Every offset in ``[head, limit)`` can be read."""

    def read(self, start: int, limit: int) -> Iterator[Batch]:
        """Yield the records ``[start, limit)``, verified, in order.

        Raises CorruptionError if the copy is damaged, and StorageUnavailableError.
        """


def heal(fs: FileSystem, survey: LogSurvey, copy: Copy, staging: Staging) -> LogSurvey:
    """Return the survey of the log with its gaps filled, as far as the copy reaches.

    WalError if the copy is of another log.
    """
    situation = understand(survey)
    if situation.log_id is not None and copy.log_id not in (None, situation.log_id):
        assert copy.log_id is not None
        raise WalError(
            f"{copy.url} holds another log ({copy.log_id.hex()}, not {situation.log_id.hex()}); "
            "nothing was changed"
        )
    if situation.log_id is None:  # no file says it any more
        situation = dataclasses.replace(situation, log_id=copy.log_id)
    return _Healing(fs, survey, situation, copy, staging).run()


@dataclasses.dataclass(slots=True)
class _Before:
    """Position of the log after the part that was walked."""

    limit: int
    last_crc: int | None
    epoch: int
    timestamp_us: int
    ledger: bytes

    @classmethod
    def after(cls, run: FrameRun) -> _Before:
        return cls(run.limit, run.last_crc, run.epoch, run.timestamp_us, run.ledger)

    def gap(
        self, position: int, limit: int, wanted_crc: int | None, next_epoch: int, synced_limit: int
    ) -> Gap:
        """Return the gap from here to ``limit``, which begins at byte ``position`` of its segment."""
        return Gap(
            position=position,
            start=self.limit,
            limit=limit,
            previous_crc=self.last_crc or 0,
            wanted_crc=wanted_crc,
            epoch=self.epoch,
            next_epoch=next_epoch,
            timestamp_us=self.timestamp_us,
            ledger=self.ledger,
            synced_limit=synced_limit,
        )


class _Healing:
    """One log while it is healed."""

    def __init__(
        self, fs: FileSystem, survey: LogSurvey, situation: Situation, copy: Copy, staging: Staging
    ) -> None:
        self._fs = fs
        self._survey = survey
        self._situation = situation
        self._copy = copy
        self._staging = staging
        self._noted = {one.start: one for one in situation.hint.sealed} if situation.hint else {}
        first_epoch = min((one.header.epoch for one in survey.segments if one.header), default=1)
        self._before = _Before(situation.head, None, first_epoch, 0, b"")
        self._made: list[SegmentSurvey] = []

    def run(self) -> LogSurvey:
        segments = self._situation.segments
        for at, one in enumerate(segments):
            following = segments[at + 1] if at + 1 < len(segments) else None
            start = _start_of(one)
            if self._before.limit < start and (at or self._before.limit >= self._situation.head):
                self._fill_missing(start, one)
            self._before.limit = start
            self._heal(one, following)
        # If the last segment was not sealed, all that follows belongs to it.
        is_open = bool(segments) and self._summary_of(segments[-1]) is None
        if self._before.limit < self._situation.limit and not is_open:
            self._fill_missing(self._situation.limit, None)
        known = {one.name for one in segments}
        others = [one for one in self._survey.segments if one.name not in known]
        return dataclasses.replace(self._survey, segments=[*others, *self._made])

    # -- one segment -------------------------------------------------------------------------

    def _heal(self, one: SegmentSurvey, following: SegmentSurvey | None) -> None:
        limit = self._limit_of(one, following)
        gaps = list(self._gaps(one, limit, following))
        if not any(self._can_fill(gap) for _, gap in gaps):
            self._made.append(one)
            if one.runs:
                self._before = _Before.after(one.runs[-1])
            self._before.limit = max(self._before.limit, limit)
            return
        with contextlib.closing(self._fs.open(self._survey.path / one.name, "r")) as file:
            self._fill_gaps(one, file, gaps)
        self._before.limit = max(self._before.limit, limit)

    def _gaps(
        self, one: SegmentSurvey, limit: int, following: SegmentSurvey | None
    ) -> Iterator[tuple[int, Gap]]:
        """Yield each gap of a segment, and which run follows it."""
        summary = self._summary_of(one)
        before = dataclasses.replace(self._before)
        if one.header is not None:
            before.last_crc = one.header.previous_crc
            before.epoch = max(before.epoch, one.header.epoch)
        position: int = segment.HEADER_BYTES
        for at, run in enumerate(one.runs):
            if run.position > position:
                gap = before.gap(
                    position, run.start, run.previous_crc, run.first_epoch, _start_of(one)
                )
                gap.size = run.position - position
                yield at, gap
            before, position = _Before.after(run), run.end
        end = summary.data_bytes if summary is not None else None
        if before.limit < limit or (end is not None and position < end):
            crc = summary.last_crc if summary is not None else _previous_crc(following)
            epoch = max(self._situation.epoch, 1)
            gap = before.gap(position, limit, crc, epoch, _start_of(one))
            gap.size = None if end is None else end - position
            gap.is_last = following is None
            yield len(one.runs), gap

    def _can_fill(self, gap: Gap) -> bool:
        copy = self._copy
        return copy.head <= gap.start and (gap.limit <= copy.limit or gap.start == gap.limit)

    def _fill_gaps(self, one: SegmentSurvey, file: File, gaps: list[tuple[int, Gap]]) -> None:
        """Make one or more segments of the runs and the filled gaps."""
        made = ExtentList(self._staging)
        salt = self._add_header(one, made)
        healed: list[Healed] = []
        first = begin = 0  # the first run of what is being made, and where its batches begin
        behind = dict(gaps)
        for at in range(len(one.runs) + 1):
            run = one.runs[at] if at < len(one.runs) else None
            gap = behind.get(at)
            if gap is not None and not self._can_fill(gap):
                limit = run.position if run else max(gap.position, one.size_bytes)
                made.take(gap.position, min(limit, one.size_bytes))
            elif gap is not None:
                gap.salt = salt
                is_exact = self._fill(gap, file, made)
                healed.append(Healed(Interval(gap.start, gap.limit), is_exact))
                if not is_exact and run is not None:
                    part_start = one.runs[first].start if first else _start_of(one)
                    if gap.limit == part_start:  # it would have the name of what follows
                        self._link(run)
                    else:
                        self._finish(one, file, made, begin, healed)
                    made, healed = ExtentList(self._staging), []
                    made.take(0, run.position)
                    first, begin = at, run.position
            if run is not None:
                made.take(run.position, run.end)
        footer = one.footer.data_bytes if one.footer else made.size_bytes
        if made.size_bytes == footer and (one.was_sealed or not healed):
            made.take(footer, one.size_bytes)
        if made.is_changed:
            self._finish(one, file, made, begin, healed)
        else:
            self._made.append(dataclasses.replace(one, runs=one.runs[first:]))
            if one.runs:
                self._before = _Before.after(one.runs[-1])

    def _add_header(self, one: SegmentSurvey, made: ExtentList) -> int | None:
        """Add a segment's header, a new one if it is damaged; return the salt."""
        header = one.header
        if header is not None and not one.header_error:
            made.take(0, segment.HEADER_BYTES)
            return header.salt
        if header is None:
            first = one.runs[0] if one.runs else None
            is_first = first is not None and first.position == segment.HEADER_BYTES
            header = SegmentHeader(
                self._situation.log_id or bytes(16),
                one.start,
                self._before.epoch,
                first.created_us if first else 0,
                first.previous_crc if first and is_first else self._before.last_crc or 0,
                one.salt if one.salt is not None or first else self._new_salt(one.start),
            )
        made.stage([segment.encode_header(header)])
        return header.salt

    def _new_salt(self, start: int) -> int | None:
        """Return the salt of a new segment, the same when it is planned and when it is made."""
        headers = [one.header for one in self._survey.segments if one.header is not None]
        if headers and all(header.salt is None for header in headers):
            return None
        return crc32c(b"%d %d" % (start, self._situation.epoch))

    def _fill(self, gap: Gap, file: File, made: ExtentList) -> bool:
        """Add the batches of a gap; return whether they are bit for bit those that were written."""
        wanted = gap.size if gap.size is not None else file.size() - gap.position
        gap.data = file.pread(max(wanted, 0), gap.position)
        rebuilder = Rebuilder(gap, self._copy.read)
        if made.size_bytes == gap.position:
            made.stage(rebuilder.exact())
        if rebuilder.is_done:
            return True
        made.stage(rebuilder.new())
        if gap.is_last:
            made.stage(rebuilder.remember(self._ledger_at(gap.limit)))
        return False

    def _ledger_at(self, limit: int) -> bytes:
        """Return the checkpoint's ledger if it was written at that offset; else nothing."""
        hint = self._situation.hint
        return hint.ledger if hint is not None and hint.next_offset == limit else b""

    def _finish(
        self,
        one: SegmentSurvey,
        file: File | None,
        made: ExtentList,
        begin: int,
        healed: list[Healed],
    ) -> None:
        """Survey the new segment as if it were in the directory."""
        path = self._survey.path / one.name
        overlay = Overlay(made.extents, file, self._staging)
        found = SegmentWalk(
            overlay, path, one.start, self._survey.hint, None, [], is_last=False
        ).run()
        runs = [run for run in found.runs if run.position >= begin]
        self._made.append(
            dataclasses.replace(found, runs=runs, extents=tuple(made.extents), healed=tuple(healed))
        )
        if runs:
            self._before = _Before.after(runs[-1])

    def _link(self, run: FrameRun) -> None:
        """End the segment before with a batch without records that ``run`` continues."""
        previous = self._made[-1] if self._made else None
        if previous is None or not previous.runs or previous.runs[-1].limit != run.start:
            return
        self._made.pop()
        last = previous.runs[-1]
        made = ExtentList(self._staging)
        made.add(previous.extents or (OverlayBytes(0, last.end, is_staged=False, at=0),), last.end)
        gap = _Before.after(last).gap(
            last.end, last.limit, run.previous_crc, run.first_epoch, previous.start
        )
        gap.salt = previous.salt
        made.stage(Rebuilder(gap, self._copy.read).new())
        healed = [*previous.healed, Healed(Interval(run.start, run.start), is_exact=False)]
        begin = previous.runs[0].position
        is_there = previous.name in self._survey.names
        with contextlib.ExitStack() as stack:
            file = None
            if is_there:
                file = self._fs.open(self._survey.path / previous.name, "r")
                stack.callback(file.close)
            self._finish(previous, file, made, begin, healed)

    # -- segments that are gone --------------------------------------------------------------

    def _fill_missing(self, limit: int, following: SegmentSurvey | None) -> None:
        """Make a segment of the records before ``limit`` for which there is no file."""
        before, copy = self._before, self._copy
        start, limit = before.limit, min(limit, copy.limit)
        complete = following is None or limit == _start_of(following)
        if not (copy.head <= start < limit and complete and self._situation.log_id is not None):
            return
        previous = before.last_crc or 0
        salt = self._new_salt(start)
        header = SegmentHeader(self._situation.log_id, start, before.epoch, 0, previous, salt)
        made = ExtentList(self._staging)
        made.stage([segment.encode_header(header)])
        wanted_crc = _previous_crc(following)
        gap = before.gap(segment.HEADER_BYTES, limit, wanted_crc, before.epoch, start)
        gap.salt = salt
        rebuilder = Rebuilder(gap, copy.read)
        made.stage(rebuilder.remember(before.ledger))
        made.stage(rebuilder.new())
        if following is None:
            made.stage(rebuilder.remember(self._ledger_at(limit)))
        path = self._survey.path / segment.file_name(start)
        overlay = Overlay(made.extents, None, self._staging)
        found = SegmentWalk(overlay, path, start, None, None, [], is_last=False).run()
        healed = (Healed(Interval(start, limit), is_exact=False),)
        self._made.append(dataclasses.replace(found, extents=tuple(made.extents), healed=healed))
        self._before = _Before.after(found.runs[-1])

    def _summary_of(self, one: SegmentSurvey) -> SegmentSummary | None:
        """Return the summary of a sealed segment, from its footer or the checkpoint."""
        return one.footer or self._noted.get(one.start)

    def _limit_of(self, one: SegmentSurvey, following: SegmentSurvey | None) -> int:
        """Return the offset at which a segment should end."""
        summary = self._summary_of(one)
        if summary is not None:
            return summary.limit
        limit = self._situation.limit if following is None else _start_of(following)
        end = one.runs[-1].limit if one.runs else _start_of(one)
        if following is None:  # a loss at the end of the log is filled as far as the copy reaches
            return max(end, min(limit, self._copy.limit))
        return limit


def _start_of(one: SegmentSurvey) -> int:
    """Return the first offset of a segment, by its header if that is good, else by its name."""
    return one.header.start if one.header is not None and not one.header_error else one.start


def _previous_crc(following: SegmentSurvey | None) -> int | None:
    """Return the CRC of the last batch before a segment, as that segment says."""
    if following is None:
        return None
    if following.header is not None:
        return following.header.previous_crc
    first = following.runs[0] if following.runs else None
    return first.previous_crc if first and first.position == segment.HEADER_BYTES else None
