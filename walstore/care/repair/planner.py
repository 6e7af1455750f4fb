"""Planning a repair: from a survey to a plan. Pure: no I/O, nothing is changed.

A repaired log is one unbroken stretch of whole batches. No record is invented or moved to another offset,
and every file that is replaced is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from crc32c import crc32c

from walstore.care.repair.damages import find_damages, general_notes, loss_notes
from walstore.care.repair.plan import (
    JOURNAL_NAME,
    Actions,
    Damage,
    Interval,
    Move,
    Output,
    RepairKind,
    RepairPlan,
    Step,
)
from walstore.care.repair.runs import (
    FrameRun,
    Healed,
    Keep,
    LogSurvey,
    SegmentSurvey,
    Stretch,
    summary_of,
    understand,
)
from walstore.core.files.directory import PROMISE_NAME, SYNCED_NAME
from walstore.core.format import checkpoint, segment
from walstore.core.format.checkpoint import Checkpoint, DurableCell


class RepairPlanner:
    """Collects the steps and actions of one plan."""

    def __init__(
        self,
        found: LogSurvey,
        keep: Keep | None,
        kept_names: Iterable[str],
        *,
        healed: LogSurvey | None = None,
        source: str | None = None,
    ) -> None:
        """``kept_names`` are names in use in the directory ``damaged``.

        ``healed`` is the survey ``found`` with its gaps filled from the copy at ``source``, if there is one.
        """
        self._found = found
        self._survey = survey = healed or found
        self._source = source
        self._keep = keep
        self._taken = set(kept_names)
        self._situation = understand(survey)
        self._chosen: Stretch | None = None
        self._steps: list[Step] = []
        self._moves: list[Move] = []
        self._outputs: list[Output] = []

    def plan(self) -> RepairPlan:
        """Decide. InvalidSettingsError if ``keep`` is an offset that is not readable."""
        situation = self._situation
        before = understand(self._found)
        damages = find_damages(self._found, before)
        self._chosen = situation.choose(self._keep)
        needs_choice = self._keep is None and len(situation.readable) > 1
        actions = None
        if damages and not needs_choice:
            actions = self._act(damages)
        limit = self._limit if not needs_choice else situation.limit
        head = self._head if not needs_choice else situation.head
        lost = self._lost() if not needs_choice else situation.unreadable
        restored = self._restored() if actions is not None else ()
        return RepairPlan(
            path=str(self._survey.path),
            log_id=situation.log_id.hex() if situation.log_id else None,
            keep=None if self._keep is None else str(self._keep),
            source=self._source,
            restored=restored,
            damages=tuple(damages),
            unreadable=before.unreadable,
            choices=tuple(
                Interval(max(one.start, situation.head), one.limit) for one in situation.readable
            ),
            needs_choice=needs_choice,
            steps=tuple(self._steps),
            head=head,
            limit=limit,
            lost=lost,
            reassigned=Interval(limit, situation.limit) if limit < situation.limit else None,
            epoch=situation.epoch + 1 if damages else situation.epoch,
            uploaded_limit=situation.hint.uploaded_limit if situation.hint else 0,
            tier_url=self._survey.hint.tier_url if self._survey.hint else None,
            notes=() if not damages else tuple(self._notes(lost, is_decided=not needs_choice)),
            actions=actions,
        )

    # -- what the repaired log is ------------------------------------------------------------

    @property
    def _limit(self) -> int:
        return self._chosen.limit if self._chosen else self._situation.limit

    @property
    def _head(self) -> int:
        first = self._chosen.start if self._chosen else self._situation.limit
        return max(first, self._situation.head)

    def _lost(self) -> tuple[Interval, ...]:
        should = Interval(self._situation.head, self._situation.limit)
        parts = (Interval(should.start, self._head), Interval(self._limit, should.limit))
        return tuple(part for part in parts if part.start < part.limit)

    def _restored(self) -> tuple[Interval, ...]:
        """Return the offsets whose records come from the copy."""
        pieces = self._chosen.pieces if self._chosen else []
        found = [one.interval for source, run in pieces for one in _healed_in(source, run)]
        return tuple(one for one in found if one.start < one.limit)

    def _ledger(self) -> tuple[bytes, bool]:
        """Return the repaired log's ledger, and whether no change of it can have been lost."""
        survey, situation = self._survey, self._situation
        hint = situation.hint
        if self._chosen is not None:
            pieces = self._chosen.pieces
            source, run = pieces[-1]
            if not (source.lost_marks and run is source.runs[-1]):
                return _before(pieces).ledger, _before(pieces).ledger_is_exact
            if hint is None or not _is_behind(hint, source, run):
                return _before(pieces).ledger, False
            end = max(source.synced_position, run.end + source.rest_bytes)
            return hint.ledger, hint.tail_position >= end and _is_newest(hint, survey.cell)
        if hint is not None and hint.next_offset == self._limit:
            return hint.ledger, bool(situation.segments) or _is_newest(hint, survey.cell)
        runs = [run for one in situation.stretches for _, run in one.pieces]
        ledger = runs[-1].ledger if runs else hint.ledger if hint else b""
        return ledger, not ledger and bool(runs)

    # -- what is done ------------------------------------------------------------------------

    def _act(self, damages: Iterable[Damage]) -> Actions:
        survey, situation, chosen = self._survey, self._situation, self._chosen
        for name in survey.foreign:
            if name == JOURNAL_NAME:
                self._step(RepairKind.SET_ASIDE, name, f"keep a copy of {name}, which is damaged")
            else:
                self._set_aside(name, "it is named like a segment and is none")
        for one in situation.strangers:
            self._set_aside(one.name, "it is a segment of another log")
        pieces = chosen.pieces if chosen else []
        kept = [source for source, _ in pieces]
        for one in situation.segments:
            if not any(one is source for source in kept):
                held = ", ".join(f"[{run.start}, {run.limit})" for run in one.runs) or "nothing"
                self._set_aside(one.name, f"readable in it: {held}")
        for at, (source, run) in enumerate(pieces):
            self._place(
                source, run, _before(pieces[: at + 1]).timestamp_us, is_last=at + 1 == len(pieces)
            )
        if chosen is None:
            self._begin_anew()
        if not situation.segments and not self._lost():
            name = segment.file_name(self._limit)
            text = f"begin the log again at offset {self._limit} with what the checkpoint remembers"
            self._step(RepairKind.REBUILD_HEADER, name, text)
        self._explain_loss()
        self._replace_side_files({damage.path for damage in damages})
        ledger, _ = self._ledger()
        hint = situation.hint
        return Actions(
            log_id=situation.log_id.hex() if situation.log_id else "",
            epoch=situation.epoch + 1,
            head=self._head,
            limit=self._limit,
            moves=tuple(self._moves),
            outputs=tuple(self._outputs),
            segments=tuple(run.start for _, run in pieces) or (self._limit,),
            ledger=ledger,
            uploaded_limit=min(hint.uploaded_limit, self._limit) if hint else 0,
            tier_url=survey.hint.tier_url if survey.hint else None,
            record_name=self._free_name(lambda number: f"repair-{number}.json"),
        )

    def _replace_side_files(self, damaged: Container[str]) -> None:
        """Write checkpoint and cell again; a copy of a replicated log loses what makes it count."""
        survey = self._survey
        for name, kind in (
            (checkpoint.FILE_NAME, RepairKind.REBUILD_CHECKPOINT),
            (checkpoint.CELL_FILE_NAME, RepairKind.REBUILD_CELL),
        ):
            if str(survey.path / name) in damaged:
                self._step(kind, name, f"write {name} again from the segments")
            if name in survey.names:
                self._move(name)
        for name in (PROMISE_NAME, SYNCED_NAME):
            if name in survey.names:
                why = "a repaired copy counts for nothing before it has caught up with the others"
                self._set_aside(name, why)

    def _place(
        self, source: SegmentSurvey, run: FrameRun, timestamp_us: int, *, is_last: bool
    ) -> None:
        """Keep a segment as it is, or rewrite it from the run, whose last record has ``timestamp_us``."""
        header, footer = source.header, source.footer
        is_cut_short = is_last and self._limit < self._situation.limit
        is_sealed = not is_last or (source.was_sealed and not is_cut_short)
        name = segment.file_name(run.start)
        before = len(self._steps)
        begins_late = run.position != segment.HEADER_BYTES
        is_other_start = header is not None and header.start != run.start
        is_header_good = (
            header is not None
            and not source.header_error
            and header.previous_crc == run.previous_crc
            and header.epoch <= run.first_epoch
        )
        for one in _healed_in(source, run):
            what = (
                f"take the records {one.interval} from {self._source}"
                if one.interval.start < one.interval.limit
                else f"make the batches without records before offset {one.interval.limit} again"
            )
            how = "bit for bit" if one.is_exact else "as new batches"
            self._step(RepairKind.RESTORE, source.name, f"{what}, {how}")
        for patch in run.patches:
            text = f"put the flipped bit at byte {patch.position} of {name} right"
            self._step(RepairKind.CORRECT_BIT, source.name, text)
        if source.name != name and not begins_late:
            self._step(RepairKind.RENAME, source.name, f"name {source.name} {name}")
        if not is_header_good and not begins_late:
            self._step(RepairKind.REBUILD_HEADER, source.name, f"write the header of {name} again")
        if is_sealed and footer != summary_of(run) and not begins_late:
            self._step(RepairKind.REBUILD_FOOTER, source.name, f"write the footer of {name} again")
        elif not is_sealed and source.lost_marks and run is source.runs[-1]:
            had_records = self._limit < self._situation.limit
            what = "damaged batches" if had_records else "damaged batches without records"
            text = (
                f"cut {source.rest_bytes} bytes off {name}, {what}"
                if source.rest_bytes
                else f"end {name} at byte {run.end}; batches behind it are missing"
            )
            if self._ledger()[1]:
                text += "; what they changed is taken from the checkpoint"
            self._step(RepairKind.CUT_TAIL, source.name, text)
        elif not is_sealed and source.torn_bytes:
            self._step(
                RepairKind.CUT_TAIL,
                source.name,
                f"cut {source.torn_bytes} bytes off {name} that hold no acknowledged record",
            )
        holds_more = run is not source.runs[-1] or source.was_sealed or source.rest_bytes > 0
        is_cut = not is_sealed and holds_more
        ledger, _ = self._ledger()
        needs_ledger = not is_sealed and bool(ledger) and (begins_late or ledger != run.ledger)
        is_changed = (
            len(self._steps) > before
            or begins_late
            or is_other_start
            or is_cut
            or bool(source.extents)
            or needs_ledger
        )
        if not is_changed:
            return
        epoch = header.epoch if header is not None else run.first_epoch
        created_us = header.created_us if header is not None else run.created_us
        self._outputs.append(
            Output(
                name=name,
                source=self._move(source.name) if source.name in self._survey.names else None,
                extents=source.extents,
                position=run.position,
                end=run.end,
                start=run.start,
                limit=run.limit,
                header_epoch=min(epoch, run.first_epoch),
                created_us=created_us,
                previous_crc=run.previous_crc,
                last_crc=run.last_crc,
                timestamp_us=timestamp_us,
                patches=run.patches,
                is_sealed=is_sealed,
                needs_ledger=needs_ledger,
                salt=_moved_salt(source.salt, run.position),
            )
        )

    def _begin_anew(self) -> None:
        """No record is left: write an empty segment, so that no offset is used again."""
        ledger, _ = self._ledger()
        at = segment.HEADER_BYTES
        self._outputs.append(
            Output(
                name=segment.file_name(self._limit),
                source=None,
                position=at,
                end=at,
                start=self._limit,
                limit=self._limit,
                header_epoch=self._situation.epoch + 1,
                created_us=0,
                previous_crc=0,
                last_crc=0,
                timestamp_us=0,
                patches=(),
                is_sealed=False,
                needs_ledger=bool(ledger),
                salt=crc32c(b"%d %d" % (self._limit, self._situation.epoch)),
            )
        )

    def _explain_loss(self) -> None:
        should = self._situation
        path = str(self._survey.path)
        if self._head > should.head:
            lost = Interval(should.head, self._head)
            text = f"begin the log at offset {self._head}; it loses {lost}"
            self._steps.append(Step(RepairKind.ADVANCE_HEAD, path, text))
        if self._limit < should.limit:
            lost = Interval(self._limit, should.limit)
            text = f"end the log before offset {self._limit}; it loses {lost}"
            self._steps.append(Step(RepairKind.TRUNCATE, path, text))

    # -- helpers -----------------------------------------------------------------------------

    def _step(self, kind: RepairKind, name: str, message: str) -> None:
        self._steps.append(Step(kind, str(self._survey.path / name), message))

    def _set_aside(self, name: str, why: str) -> None:
        self._step(RepairKind.SET_ASIDE, name, f"set {name} aside: {why}")
        self._move(name)

    def _move(self, name: str) -> str:
        for move in self._moves:
            if move.name == name:
                return move.kept_as
        kept_as = self._free_name(lambda number: name if number == 1 else f"{name}.{number}")
        self._moves.append(Move(name, kept_as))
        return kept_as

    def _free_name(self, make: Callable[[int], str]) -> str:
        number = 1
        while make(number) in self._taken:
            number += 1
        self._taken.add(make(number))
        return make(number)

    def _notes(self, lost: tuple[Interval, ...], *, is_decided: bool) -> Iterable[str]:
        yield from general_notes(self._found, self._situation)
        if is_decided and lost:
            kept = Interval(self._head, self._limit)
            yield from loss_notes(self._survey, self._situation, self._chosen, kept, lost)
        if is_decided and not self._ledger()[1]:
            yield (
                "registers, producers and streams that changed in the damaged or missing batches have "
                "their older values"
            )


def _before(pieces: list[tuple[SegmentSurvey, FrameRun]]) -> FrameRun:
    """Return the last run that has frames; if none has, the last one."""
    return next((run for _, run in reversed(pieces) if not run.is_empty), pieces[-1][1])


def _is_behind(hint: Checkpoint, source: SegmentSurvey, run: FrameRun) -> bool:
    """Return whether the checkpoint was written at or after the end of a run, with no record between."""
    return (
        (hint.tail_start, hint.tail_salt) == (source.start, source.salt)
        and hint.next_offset == run.limit
        and hint.tail_position >= run.end
    )


def _is_newest(hint: Checkpoint, cell: DurableCell | None) -> bool:
    """Return whether nothing is known to have been synced that the checkpoint does not cover."""
    if cell is None:
        return hint.is_closed
    is_same = (cell.tail_start, cell.tail_salt) == (hint.tail_start, hint.tail_salt)
    return is_same and cell.tail_position <= hint.tail_position


def _healed_in(source: SegmentSurvey, run: FrameRun) -> list[Healed]:
    """Return the gaps filled from a copy that a run holds."""
    return [
        one
        for one in source.healed
        if run.start <= one.interval.start and one.interval.limit <= run.limit
    ]


def _moved_salt(salt: int | None, position: int) -> int | None:
    """Return the salt with which frames that began at ``position`` are whole at the beginning of a file."""
    return None if salt is None else (salt + position - segment.HEADER_BYTES) & 0xFFFF_FFFF
