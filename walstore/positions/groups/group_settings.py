"""GroupSettings: the options of a group, as its first member gives them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from walstore.core.batches.conditions import check_name
from walstore.core.validation.arguments import as_count, as_seconds, as_text
from walstore.errors import InvalidSettingsError
from walstore.positions.cursor_state import NAME
from walstore.records import Start

_MOST_SECONDS: Final = 86_400 * 30
_LEAST_AHEAD: Final = 1024
_MOST_NAME_CHARS: Final = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupSettings:
    """Options of :meth:`walstore.Wal.group`; all members of a group have the same."""

    start: Start | str | int | datetime = Start.EARLIEST
    stream: str | None = None
    ack_wait_seconds: float = 30.0
    max_deliver: int | None = None
    max_ack_pending: int = 1000
    is_ordered: bool = False
    dead_letters: str | None = None

    def __post_init__(self) -> None:
        if not 0.001 <= as_seconds(self.ack_wait_seconds, "ack_wait_seconds") <= _MOST_SECONDS:
            raise InvalidSettingsError(
                f"ack_wait_seconds must be 0.001 to 30 days, not {self.ack_wait_seconds!r}"
            )
        if not isinstance(self.is_ordered, bool):
            raise TypeError(f"ordered must be a bool, not {type(self.is_ordered).__name__}")
        if self.max_deliver is not None:
            as_count(self.max_deliver, "max_deliver", high=10_000)
        as_count(self.max_ack_pending, "max_ack_pending", high=1_000_000)
        for name in (self.stream, self.dead_letters):
            if name is not None:
                check_name(name, "stream")
        if self.dead_letters is not None and self.dead_letters == self.stream:
            raise InvalidSettingsError(
                "a group cannot send its dead letters to the stream it reads"
            )

    @property
    def most_unsettled(self) -> int:
        """How many records may be read and not settled: more than leased, as keys may have to wait."""
        return max(2 * self.max_ack_pending, self.max_ack_pending + _LEAST_AHEAD)

    def letters_of(self, group: str) -> str:
        """Return the stream of the dead letters."""
        return self.dead_letters or f"{group}.dead"


def check_group_name(name: str) -> str:
    """Return ``name`` if it is valid for a group; TypeError or ValueError otherwise."""
    name = as_text(name, "a group's name")
    if not NAME.fullmatch(name) or len(name) > _MOST_NAME_CHARS:
        raise ValueError(
            f"a group's name has 1 to {_MOST_NAME_CHARS} of the characters A-Z a-z 0-9 _ . - "
            f"and does not begin with a dot, unlike {name[:200]!r}"
        )
    return name
