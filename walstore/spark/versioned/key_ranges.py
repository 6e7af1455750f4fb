"""Key ranges: how a collection is divided between tasks, and a task's part into steps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from uploader.versioned.batch_groups import Key, RowGroup, key_columns, keys_at_least
from uploader.versioned.schema import CollectionSchema


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys in ``[low, high)``; an empty ``low`` is before all, no ``high`` after all and nulls."""

    low: Key = ()
    high: Key | None = None

    def may_have(self, group: RowGroup) -> bool:
        """Return whether a row group may have such keys."""
        return group.may_have(self.low, self.high)

    def select(self, table: pa.Table, schema: CollectionSchema) -> pa.Table:
        """Return the updates of a table whose keys are in the range."""
        columns = key_columns(schema)
        if self.low:
            table = table.filter(keys_at_least(table, self.low, columns))
        if self.high is not None:
            table = table.filter(pc.invert(keys_at_least(table, self.high, columns)))
        return table


def cut(groups: Iterable[RowGroup], most_rows: int) -> list[KeyRange]:
    """Return ranges of about ``most_rows`` rows that are all keys together, in their order.

    They begin where row groups do, so keys that fill several row groups, and row groups without statistics,
    make a range larger.
    """
    cuts: list[Key] = [()]
    rows = 0
    for group in sorted(groups, key=lambda group: group.low):
        if rows >= most_rows and group.low > cuts[-1]:
            cuts.append(group.low)
            rows = 0
        rows += group.rows
    return [KeyRange(low, high) for low, high in pairwise([*cuts, None])]  # type: ignore[arg-type]


def join(ranges: Sequence[KeyRange], pieces: int) -> Iterator[Sequence[KeyRange]]:
    """Yield ``pieces`` runs of about equally many ranges that follow each other; fewer if there are fewer."""
    count = min(pieces, len(ranges))
    for number in range(count):
        yield ranges[number * len(ranges) // count : (number + 1) * len(ranges) // count]
