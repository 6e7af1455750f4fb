"""What an operator should know beside the steps of a repair. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from walstore.repair.plan import Interval
from walstore.repair.runs import Situation, Stretch, summary_of
from walstore.repair.survey_types import LogSurvey


def general_notes(survey: LogSurvey, situation: Situation) -> Iterator[str]:
    """Yield what holds whatever is kept."""
    if situation.log_id is None:
        yield "the log's identity is lost; it gets a new one, which its cloud tier refuses"
    first = min((one.start for one in situation.segments), default=situation.head)
    if survey.cell is not None and not situation.is_hint_trusted and situation.head < first:
        yield (
            f"only the durable cell says that the log began at offset {situation.head}; if "
            f"[{situation.head}, {first}) had been trimmed since it was written, nothing of it is lost"
        )
    torn = any(one.torn_bytes for one in situation.segments)
    if torn and not situation.is_hint_trusted and survey.cell is None:
        yield (
            "whether the bytes behind the last batch had been acknowledged cannot be told without "
            "checkpoint and durable cell"
        )


def loss_notes(
    survey: LogSurvey,
    situation: Situation,
    chosen: Stretch | None,
    kept: Interval,
    lost: Iterable[Interval],
) -> Iterator[str]:
    """Yield what the loss of records means for the tier, transactions, consumers and cursors."""
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
            f"{url} holds offsets below {uploaded_limit} only; what lies between that and "
            f"{kept.start} is lost to it, so the log cannot be shipped there any more: give it a new "
            "prefix"
        )
    if kept.limit < uploaded_limit:
        yield (
            f"{url} holds offsets up to {uploaded_limit}, beyond the end of the repaired log: it "
            "cannot be opened with that tier; keep what lies behind the damage, or restore the log"
        )


def _transactions(chosen: Stretch) -> Iterator[str]:
    """A large transaction is a segment of its own, all of whose batches were synced at once."""
    for source, run in chosen.pieces:
        is_whole = source.footer is not None and source.footer == summary_of(run)
        if not is_whole and source.was_sealed and run.last_synced_limit == source.start:
            yield (
                f"[{run.start}, {run.limit}) may be a part of one transaction, the rest of which is "
                "lost"
            )
