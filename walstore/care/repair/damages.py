"""Every damaged place of a surveyed log, and notes for the operator. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from walstore.care.repair.plan import JOURNAL_NAME, Damage, Interval
from walstore.care.repair.runs import (
    FrameRun,
    LogSurvey,
    SegmentSurvey,
    Situation,
    Stretch,
    summary_of,
)
from walstore.core.files import spare_segment
from walstore.core.format import checkpoint, segment
from walstore.core.format.segment import SegmentSummary

_FOREIGN: Final = {
    JOURNAL_NAME: "the plan of an interrupted repair is damaged",
    spare_segment.NAME: "a directory is named like the next segment",
    "": "a foreign file is named like a segment",
}


def find_damages(survey: LogSurvey, situation: Situation) -> list[Damage]:
    """Return what is not as it was written, in the order of the log."""
    damages = list(situation.damages)
    if situation.forgotten:
        names = ", ".join(one.name for one in situation.forgotten)
        text = f"the checkpoint is gone, which says that {names} was to be removed"
        damages.append(_damage(survey, text, checkpoint.FILE_NAME))
    damages += [_damage(survey, _FOREIGN.get(name, _FOREIGN[""]), name) for name in survey.foreign]
    damages += [
        _damage(survey, "the segment belongs to another log", one.name, 0)
        for one in situation.strangers
    ]
    expected = situation.head
    previous_crc: int | None = None
    for at, one in enumerate(situation.segments):
        is_last = at + 1 == len(situation.segments)
        if max(one.first_offset, one.start) > expected and one.start > expected:
            text = f"the offsets [{expected}, {one.start}) are missing: a segment is gone"
            damages.append(_damage(survey, text))
            previous_crc = None
        damages += [
            _damage(survey, message, one.name, position)
            for position, message in _inside(one, previous_crc, is_last=is_last)
        ]
        if one.runs:
            expected = max(expected, one.runs[-1].limit)
            previous_crc = one.runs[-1].last_crc
        if one.footer is not None and one.footer.limit > expected:
            expected = one.footer.limit
            previous_crc = None
        following = situation.segments[at + 1].start if not is_last else situation.limit
        is_torn_off = one.rest_bytes > one.torn_bytes and one.footer is None
        if is_torn_off and expected < following:
            position = one.runs[-1].end if one.runs else segment.HEADER_BYTES
            damages.append(_damage(survey, _damaged(expected), one.name, position))
            expected, previous_crc = following, None
        elif is_last and one.lost_marks and expected == following:
            text = _lost_marks(one, expected)
            damages.append(_damage(survey, text, one.name, one.runs[-1].end))
    if not situation.segments and expected == situation.limit:
        text = f"the segment is gone that begins at offset {expected}; it held no records"
        damages.append(_damage(survey, text))
    if expected < situation.limit:
        text = f"the log ends at offset {expected}, but offsets below {situation.limit} had been synced"
        damages.append(_damage(survey, text))
    if not damages and (situation.unreadable or len(situation.readable) > 1):
        damages.append(_damage(survey, "the batches do not continue each other"))
    return damages


def _damage(survey: LogSurvey, message: str, name: str = "", position: int | None = None) -> Damage:
    return Damage(str(survey.path / name), position, message)


def _inside(
    one: SegmentSurvey, previous_crc: int | None, *, is_last: bool
) -> Iterator[tuple[int | None, str]]:
    """Yield position and description of each damage in one segment."""
    first = one.runs[0] if one.runs else None
    if one.header_error:
        yield 0, one.header_error
    elif one.header is not None and one.header.start != one.start:
        yield 0, f"the segment begins at offset {one.header.start}, unlike its name"
    elif one.header is not None and first is not None and one.header.epoch > first.first_epoch:
        yield 0, "the segment's header is of a later epoch than its batches"
    if (
        first is not None
        and first.position == segment.HEADER_BYTES
        and first.previous_crc != (first.previous_crc if previous_crc is None else previous_crc)
    ):
        yield 0, "the segment does not continue the one before"
    end, offset = segment.HEADER_BYTES, one.start
    for run in one.runs:
        if run.position > end:
            yield end, _damaged(offset)
        elif run.start != offset or end > segment.HEADER_BYTES:
            yield run.position, f"a batch at offset {run.start} does not continue the log"
        for patch in run.patches:
            yield patch.position, "a bit is flipped"
        end, offset = run.end, run.limit
    yield from _at_the_end(one, end, offset, is_last=is_last)


def _at_the_end(
    one: SegmentSurvey, end: int, offset: int, *, is_last: bool
) -> Iterator[tuple[int | None, str]]:
    """Yield the damages after the last whole batch, which ends at byte ``end`` and ``offset``."""
    footer = one.footer
    if one.footer_error:
        yield None, one.footer_error
    elif footer is not None and footer.data_bytes > end:
        yield end, _damaged(offset)
    elif footer is not None and one.runs and not _fits(footer, one.runs[-1]):
        yield footer.data_bytes, f"the footer ends at {footer.limit}, the batches at {offset}"
    elif footer is None and not is_last:
        yield end, "the sealed segment has lost its footer"
    if one.torn_bytes and not one.ends_early:
        yield end, f"{one.torn_bytes} bytes that hold no acknowledged record"


def _fits(footer: SegmentSummary, last: FrameRun) -> bool:
    """Return whether a footer matches the end of the last run; batches before it may be damaged."""
    return footer == replace(summary_of(last), start=footer.start)


def _lost_marks(one: SegmentSurvey, offset: int) -> str:
    """Describe the loss of batches without records from the end of the log."""
    if one.rest_bytes > one.torn_bytes:
        return f"a batch without records at offset {offset} is damaged"
    return (
        f"ends at byte {one.runs[-1].end}, but bytes below {one.synced_position} had been synced: "
        "changes of registers, streams or producers are missing"
    )


def _damaged(offset: int) -> str:
    return f"the batch at offset {offset} is damaged"


def general_notes(survey: LogSurvey, situation: Situation) -> Iterator[str]:
    """Yield the notes that do not depend on what is kept."""
    if situation.log_id is None:
        yield "the log's identity is lost; it gets a new one, which its cloud tier refuses"
    first = min((one.start for one in situation.segments), default=situation.head)
    if survey.cell is not None and situation.hint is None and situation.head < first:
        yield (
            f"only the durable cell says that the log began at offset {situation.head}; if "
            f"[{situation.head}, {first}) had been trimmed since it was written, nothing of it is lost"
        )
    torn = any(one.torn_bytes for one in situation.segments)
    if torn and situation.hint is None and survey.cell is None:
        yield (
            "whether the bytes behind the last batch had been acknowledged cannot be determined "
            "without checkpoint and durable cell"
        )


def loss_notes(
    survey: LogSurvey,
    situation: Situation,
    chosen: Stretch | None,
    kept: Interval,
    lost: Iterable[Interval],
) -> Iterator[str]:
    """Yield the effects of lost records on the tier, transactions, consumers and cursors."""
    hint = survey.hint
    if hint is not None and hint.tier_url:
        yield from _tier(hint.tier_url, hint.uploaded_limit, kept, lost)
    if chosen is not None:
        yield from _transactions(chosen)
    if kept.limit < situation.limit:
        yield (
            f"appends will use the offsets [{kept.limit}, {situation.limit}) again for other records: "
            f"set back consumers that stand beyond {kept.limit}"
        )
    for name, position in survey.cursors:
        if not kept.start <= position <= kept.limit:
            yield (
                f"cursor {name!r} stands at {position}, outside {kept}: move it with 'walstore "
                f"cursors {survey.path} --set {name} OFFSET'"
            )


def _tier(url: str, uploaded_limit: int, kept: Interval, lost: Iterable[Interval]) -> Iterator[str]:
    for one in lost:
        if one.start < uploaded_limit:
            held = Interval(one.start, min(one.limit, uploaded_limit))
            yield f"of what is lost here, {url} holds {held}: 'walstore dump' reads it from there"
    if kept.start > uploaded_limit:
        yield (
            f"{url} holds offsets below {uploaded_limit} only; what is between that and "
            f"{kept.start} is lost to it, so the log cannot be shipped there any more: give it a new "
            "prefix"
        )
    if kept.limit < uploaded_limit:
        yield (
            f"{url} holds offsets up to {uploaded_limit}, beyond the end of the repaired log: it "
            "cannot be opened with that tier; keep what is after the damage, or restore the log"
        )


def _transactions(chosen: Stretch) -> Iterator[str]:
    """Yield a note for each large transaction that was cut: a segment of its own, synced as a whole."""
    for source, run in chosen.pieces:
        is_whole = source.footer is not None and source.footer == summary_of(run)
        if not is_whole and source.was_sealed and run.last_synced_limit == source.start:
            yield (
                f"[{run.start}, {run.limit}) may be a part of one transaction, the rest of which is "
                "lost"
            )
