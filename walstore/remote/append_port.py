"""What an append to a served log needs: the log's part of it, and its conditions as they travel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from walstore.batches.conditions import Expected, check_sequence, make_conditions
from walstore.remote.client import Client
from walstore.remote.outbox import Outbox
from walstore.remote.source import LogMirror
from walstore.wire.registers import pack_expected


class Conditions:
    """The conditions of a group or transaction, as they travel."""

    __slots__ = ("expect", "expect_offset", "is_repeated", "producer", "sequence", "update")

    def __init__(
        self,
        expect_offset: int | None = None,
        expect: Expected | None = None,
        update: Mapping[str, str | None] | None = None,
        *,
        producer: str | None = None,
        sequence: int | None = None,
        repeated: bool = False,
    ) -> None:
        """Check and copy the conditions; TypeError or ValueError."""
        checked = make_conditions(expect_offset, expect, update)
        self.expect_offset = checked.expect_offset
        self.expect = None if checked.expect is None else dict(checked.expect)
        self.update = checked.update
        self.producer = producer
        self.sequence = check_sequence(sequence, repeated=repeated)
        self.is_repeated = repeated

    def packed(self) -> list[Any]:
        """Return them as values of msgpack."""
        return [
            self.expect_offset,
            pack_expected(self.expect),
            self.update,
            self.producer,
            self.sequence,
            self.is_repeated,
        ]


class RemoteLog(Protocol):
    """What appends need of the served log."""

    client: Client
    outbox: Outbox
    mirror: LogMirror
    max_record_bytes: int
    most_group_bytes: int
    producer_window: int
