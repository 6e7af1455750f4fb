"""Retention: which segments are deleted, the new head, and why. Pure: no I/O, no asyncio.

Segments are deleted oldest first, whole, and only if

  * there is a reason: trimmed, older than the age limit, or beyond the byte budget;
  * nothing holds them: with a tier they are uploaded, and no pin needs one of their records.

The active segment is never deleted. Once its newest record has expired and nothing holds it, the plan
requests its sealing; the next plan then drops it. So an age limit also empties an idle log. The newest
record of a segment decides, so no record is deleted early.

``retention.py`` carries plans out and has the pins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from walstore.core.format.segment import SegmentSummary
from walstore.core.offset_range import OffsetRange


class Reason(StrEnum):
    """Why a segment should be deleted."""

    TRIMMED = "trimmed"
    """All of it is below the head already."""
    AGE = "age"
    """Its newest record is older than ``retention_seconds``."""
    BYTES = "bytes"
    """It is beyond ``retention_bytes``, counted from the newest sealed segment back."""


class RetentionHold(StrEnum):
    """Why a segment that should be deleted stays."""

    NOT_UPLOADED = "not uploaded"
    """The log has a cloud tier, and no manifest names all of the segment yet."""
    PINNED = "pinned"
    """A cursor or reader needs a record at or before its end."""


class Pin(NamedTuple):
    """A promise that an offset and everything after it stays."""

    offset: int
    """First offset needed."""
    holder: str
    """The holder, for operators: ``"cursor billing"``."""
    expires_us: int | None = None
    """When the promise expires, in microseconds since 1970 UTC; None for never."""


class Decision(NamedTuple):
    """The decision on one segment that should be deleted."""

    start: int
    limit: int
    data_bytes: int
    reason: Reason
    hold: RetentionHold | None = None
    """None if it is deleted."""
    holder: str | None = None
    """The pin's holder, if a pin holds it."""

    def __str__(self) -> str:
        what = f"segment [{self.start}, {self.limit}) of {self.data_bytes} bytes"
        if self.hold is None:
            return f"{what} is deleted: {self.reason}"
        by = f" by {self.holder}" if self.holder else ""
        return f"{what} should be deleted ({self.reason}) but is kept: {self.hold}{by}"


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What retention does now, and when to plan again."""

    head: int
    """The head to make durable; the current one if it does not move."""
    decisions: tuple[Decision, ...] = ()
    """Segments that should be deleted, oldest first: those that are, then those that are held."""
    seals_active: bool = False
    """Whether to seal the active segment because all of it has expired."""
    due_us: int | None = None
    """When time alone may change the plan, in microseconds since 1970 UTC; None for never."""
    limit: int = 0
    """Offset after the last record that the plan considered."""

    @property
    def dropped(self) -> tuple[Decision, ...]:
        """The segments that are deleted, oldest first."""
        return tuple(decision for decision in self.decisions if decision.hold is None)

    def changes(self, head: int) -> bool:
        """Whether there is anything to do, or to check against pins, for a log with that head."""
        return self.head > head or self.seals_active or bool(self.decisions)

    @property
    def held(self) -> Decision | None:
        """The oldest segment that is held, if any; later ones wait for it."""
        return next((decision for decision in self.decisions if decision.hold is not None), None)


def plan_retention(
    sealed: Sequence[SegmentSummary],
    *,
    active: SegmentSummary,
    head: int,
    now_us: int,
    retention_seconds: float | None,
    retention_bytes: int | None,
    uploaded_limit: int | None,
    pins: Iterable[Pin] = (),
) -> RetentionPlan:
    """Decide on each segment.

    ``sealed`` is in offset order, ``active`` is the summary that sealing would now write for the active
    segment, ``head`` the current head. ``uploaded_limit`` is None for a log without a tier.
    """
    pin = lowest(pins, now_us)
    age_us = None
    if retention_seconds is not None and math.isfinite(retention_seconds):
        age_us = math.ceil(retention_seconds * 1e6)
    excess = 0 if retention_bytes is None else _total_bytes(sealed) - retention_bytes
    decisions: list[Decision] = []
    for summary in sealed:
        if summary.limit <= head:
            reason = Reason.TRIMMED
        elif age_us is not None and summary.max_timestamp_us + age_us <= now_us:
            reason = Reason.AGE
        elif excess > 0:
            reason = Reason.BYTES
        else:
            break
        excess -= summary.data_bytes
        decisions.append(_decide(summary, reason, uploaded_limit, pin))
    due_us, seals_active = None, False
    oldest = sealed[len(decisions)] if len(decisions) < len(sealed) else active
    if age_us is not None and oldest.start < oldest.limit:
        due_us = oldest.max_timestamp_us + age_us
        if due_us <= now_us:  # the active one: sealed ones were judged above
            due_us = None
            decision = _decide(active, Reason.AGE, uploaded_limit, pin)
            seals_active = decision.hold is None
            if not seals_active:
                decisions.append(decision)
    held = next((found for found in decisions if found.hold is not None), None)
    if held is not None:  # later ones wait for it, whatever their age
        due_us = pin.expires_us if pin is not None and held.hold is RetentionHold.PINNED else None
    limits = [found.limit for found in decisions if found.hold is None]
    return RetentionPlan(max([head, *limits]), tuple(decisions), seals_active, due_us, active.limit)


def plan_trim(
    before: int,
    *,
    head: int,
    durable_limit: int,
    now_us: int,
    uploaded_limit: int | None,
    pins: Iterable[Pin] = (),
) -> int:
    """Return the new head for a trim of everything below ``before``.

    Exactly ``before``, also inside a segment; lower for a pin or, with a tier, for records not yet
    uploaded; never lower than ``head``. Raises OffsetNotWrittenError for an offset beyond the durable
    limit. The durable limit itself is allowed: then the log is empty.
    """
    if isinstance(before, bool) or not isinstance(before, int):
        raise TypeError(f"before must be an offset, not {before!r}")
    OffsetRange(head, durable_limit).check_tail(
        before, "only durable records can be trimmed; before may be the durable limit at most"
    )
    pin = lowest(pins, now_us)
    limits = [before]
    if pin is not None:
        limits.append(pin.offset)
    if uploaded_limit is not None:
        limits.append(uploaded_limit)
    return max(head, min(limits))


def lowest(pins: Iterable[Pin], now_us: int) -> Pin | None:
    """Return the lowest pin that has not expired, or None."""
    alive = (pin for pin in pins if pin.expires_us is None or pin.expires_us > now_us)
    return min(alive, key=lambda pin: pin.offset, default=None)


def _decide(
    summary: SegmentSummary, reason: Reason, uploaded_limit: int | None, pin: Pin | None
) -> Decision:
    """Return the decision on a segment that should be deleted."""
    hold, holder = None, None
    if reason is not Reason.TRIMMED:  # trimmed records can no longer be read
        if uploaded_limit is not None and summary.limit > uploaded_limit:
            hold = RetentionHold.NOT_UPLOADED
        elif pin is not None and summary.limit > pin.offset:
            hold, holder = RetentionHold.PINNED, pin.holder
    return Decision(
        summary.start, summary.limit, summary.data_bytes, reason, hold=hold, holder=holder
    )


def _total_bytes(sealed: Sequence[SegmentSummary]) -> int:
    return sum(summary.data_bytes for summary in sealed)
