"""Encoding: the fragment of one parcel in the making. Its first records may be encoded before it is cut.

All that arrives within a tenth of a second takes some 10 ms of a busy interpreter to be encoded and hashed.
Done at the cut, every record would wait for that, since the next change of the root begins once the fragment
is put. So most of it is done a little before; the rest takes a millisecond or two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgpack
import pyarrow as pa

from uploader.fragments.fragment_batch import FragmentBatch
from uploader.write.building import Building, Records
from walstore.batches.arrow import SCHEMA, offsets_array
from walstore.batches.batch_builder import BatchBuilder
from walstore.runtime.threads import Worker


class Encoding:
    """One fragment, for one place in the log. Belongs to the event loop."""

    def __init__(
        self,
        *,
        start: int,
        timestamp_us: int,
        floor_us: int,
        writer: str,
        worker: Worker,
        closings: int | None = None,
    ) -> None:
        """The first record comes to lie at ``start``; none is older than ``floor_us``.

        ``timestamp_us`` is the fragment's time. ``writer`` goes into the footer, so that two writers never
        make the same bytes of the same records; so do the ``closings`` of streams that it knows.
        """
        self.start = start
        self.floor_us = floor_us
        self.closings = closings
        self.latest_us = floor_us
        """Time of the last record taken."""
        self.building = Building(
            worker, timestamp_us=timestamp_us, writer=writer, closings=closings
        )
        self._rows = 0  # taken

    def take(self, draft: BatchBuilder, now_us: int) -> Records:
        """Take the records of ``draft`` that were not taken before, to be built into the fragment next.

        Those without a time of their own are of ``now_us``.
        """
        start, part = self.start + self._rows, draft.part(self._rows, len(draft.values))
        base_us, self.latest_us, deltas_us = part.times(now_us, self.latest_us)
        self._rows += len(part.values)
        return lambda: [_batch_of(part, start, base_us, deltas_us)] if part.values else []


def _batch_of(
    draft: BatchBuilder, start: int, base_us: int, deltas_us: list[int] | None
) -> FragmentBatch:
    rows = len(draft.values)
    if deltas_us is None:
        times = pa.repeat(pa.scalar(base_us, pa.uint64()), rows)
    else:
        times = pa.array([base_us + delta for delta in deltas_us], pa.uint64())
    columns = [
        offsets_array(start, start + rows),
        times,
        pa.array(draft.values, pa.binary()),
        _column(draft.keys, "key", rows),
        _column(draft.streams, "stream", rows),
        _column(_unpacked(draft.headers), "headers", rows),
    ]
    return FragmentBatch(pa.Table.from_arrays(columns, schema=SCHEMA), start=start)


def _column(items: Sequence[object] | None, name: str, rows: int) -> pa.Array:
    type_ = SCHEMA.field(name).type
    return pa.nulls(rows, type_) if items is None else pa.array(items, type_)


def _unpacked(packed: Iterable[bytes | None] | None) -> list[list[tuple[str, bytes]] | None] | None:
    if packed is None:
        return None
    unpack: Callable[[bytes], dict[str, bytes]] = msgpack.unpackb
    return [None if item is None else list(unpack(item).items()) for item in packed]
