"""What became of each append, as its caller was told, and whether the log agrees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.wal3.wal3 import Wal3, Wal3Error
from uploader import CloudWriter
from walstore import Record
from walstore.errors import WalError


@dataclass
class Ledger:
    """Appends of values that come only once, by their outcomes."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)
    """Values by the offsets that callers were told."""
    durable: set[bytes] = field(default_factory=set)
    """In the log; wal3 could not say where."""
    refused: set[bytes] = field(default_factory=set)
    """Not in the log."""
    unknown: set[bytes] = field(default_factory=set)
    """In the log, or not."""
    errors: Counter[str] = field(default_factory=Counter)
    """What the others were told, and how often."""

    async def theirs(self, wal3: Wal3, value: bytes) -> bool:
        """Append through wal3; return whether it is in the log for certain."""
        try:
            self._note(await wal3.append(value), value)
        except ConnectionError:
            self.unknown.add(value)
            self.errors["killed"] += 1
        except Wal3Error as error:
            self.errors[error.name] += 1
            match error.name:
                case "LogContentionDurable":
                    self.durable.add(value)
                    return True
                case "LogContentionRetry":
                    self.refused.add(value)
                case _:
                    self.unknown.add(value)
        else:
            return True
        return False

    async def ours(self, log: CloudWriter, value: bytes) -> bool:
        """Append through our writer; return whether it is in the log for certain."""
        try:
            self._note(await log.append(value), value)
        except WalError as error:
            self.errors[type(error).__name__] += 1
            {"not_written": self.refused, "durable": self.durable}.get(
                error.outcome or "", self.unknown
            ).add(value)
        else:
            return True
        return False

    def check(self, records: Iterable[Record], head: int = 1) -> None:
        """Assert that the log holds what it must, from ``head`` on, where it must, and nothing twice."""
        found = {record.offset: record.value for record in records}
        counts = Counter(found.values())
        assert [value for value, count in counts.items() if count > 1] == []
        assert sorted(found) == list(range(head, head + len(found)))
        wanted = {offset: value for offset, value in self.acknowledged.items() if offset >= head}
        assert {offset: found.get(offset) for offset in wanted} == wanted
        assert [value for value in self.refused if counts[value]] == []
        known = {*self.acknowledged.values(), *self.durable, *self.unknown}
        assert [value for value in counts if value not in known] == []
        if head == 1:
            assert [value for value in self.durable if not counts[value]] == []

    def _note(self, offset: int, value: bytes) -> None:
        assert offset not in self.acknowledged, (offset, value, self.acknowledged[offset])
        self.acknowledged[offset] = value
