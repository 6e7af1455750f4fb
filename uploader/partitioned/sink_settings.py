"""SinkSettings: how rows are staged and published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from uploader.layouts.log_session import Layout
from walstore.core.validation.fields import (
    MIB,
    Rule,
    check_fields,
    choice,
    described,
    seconds,
    size,
    whole,
)

FRAGMENT_BYTES: Final = 8 << 20
"""Default size at which fragments are cut."""


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """Options of staging and publishing; every one has a default."""

    layout: Layout | None = choice(  # noqa: RUF009 - it makes a field
        None,
        Rule(
            "Layout of logs that do not exist yet; None is 'swap'. A log that exists keeps its own.",
            "",
            words=("swap", "chain"),
            optional=True,
        ),
    )

    fragment_bytes: int = size(
        FRAGMENT_BYTES, "Size of the records at which a fragment is cut.", low=1
    )

    buffer_bytes: int = size(
        64 * MIB,
        """Memory that a task takes for records of all logs together before it cuts the largest part
        early.""",
        low=1,
    )

    max_in_flight: int = whole(3, "Fragments that a task encodes or puts at a time.", low=1)

    max_record_bytes: int = size(16 * MIB, "Longer values are refused.", low=1)

    max_timestamp_lead_seconds: float = seconds(
        86_400.0, "How far ahead of the task's clock a record's time may be."
    )

    parallel_logs: int = whole(
        8,
        "Logs that the driver publishes to at a time; each takes the memory of two fragments or three.",
        low=1,
    )

    max_moves: int = whole(
        100,
        """How often other writers of a log may come between before publishing gives up; see
        Committer.commit.""",
    )

    patience_seconds: float = seconds(
        60.0, "How long a store may fulfil nothing before the driver gives up."
    )

    def __post_init__(self) -> None:
        """Check the fields; InvalidSettingsError."""
        check_fields(self)
