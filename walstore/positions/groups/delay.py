"""Delays: the header by which a record says when groups may deliver it first. Pure, but for the clock."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.core.validation.arguments import as_moment_us, as_seconds
from walstore.errors import InvalidSettingsError

NOT_BEFORE: Final = "walstore.not_before"
"""Header of a job: the microseconds since 1970 UTC, in decimal, before which no group delivers it."""
_MOMENT: Final = re.compile(rb"\d{1,18}")
_MOST_SECONDS: Final = 10 * 365 * 86_400


def delayed(until: float | datetime, *, clock: Clock | None = None) -> dict[str, bytes]:
    """Return the headers of a record that groups deliver later: ``headers={**delayed(60), "h": b"1"}``.

    ``until`` is a number of seconds from now, 0 to ten years, or an aware datetime. The moment is part of the
    record, so it survives restarts, copies and takeovers. It is compared with the clock of the process that
    has the group: the log's owner, or the process that fetches from a stored group. Readers and consumers
    do not wait for it. ``clock`` is that of the program, by default the system's.
    """
    if isinstance(until, datetime):
        moment = as_moment_us(until, "until")
        if moment < 0:
            raise InvalidSettingsError(f"until must be after 1970, not {until}")
        return {NOT_BEFORE: b"%d" % moment}
    seconds = as_seconds(until, "until")
    if not 0 <= seconds <= _MOST_SECONDS:
        raise InvalidSettingsError(f"until must be 0 seconds to ten years from now, not {until!r}")
    moment = (clock or SystemClock()).now_us() + round(seconds * 1e6)
    return {NOT_BEFORE: b"%d" % moment}


def not_before_us(headers: Mapping[str, bytes]) -> int | None:
    """Return the moment before which a record is not to be delivered; None without one that can be read."""
    if not headers:
        return None
    moment = headers.get(NOT_BEFORE)
    return int(moment) if moment is not None and _MOMENT.fullmatch(moment) else None
