"""Time index: the first record at or after a time. Blocking; runs on executor threads.

Timestamps never decrease within a log, so a segment is found by binary search over the times of the
segments' last records, and the place within it by its index. The cost is one read of a footer per step of
the search, unless the summary is known already, and then one read of at most :data:`SEARCH_BYTES`.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial

from walstore.errors import CorruptionError
from walstore.files.segment_file import SEARCH_BYTES, Segment, find_time, read_batches, read_footer
from walstore.ports import FileSystem


def find_offset(
    fs: FileSystem, segments: Sequence[Segment], timestamp_us: int, limit: int
) -> int | None:
    """Return the first offset below ``limit`` that is not older than a time; None if all are older.

    ``segments`` are those of a log in order; all but the last one are sealed. Raises CorruptionError, and
    FileNotFoundError if a segment that must be looked at is gone.
    """
    first = bisect_left(
        segments, timestamp_us, 0, max(len(segments) - 1, 0), key=partial(_latest_us, fs)
    )
    for source in segments[first:]:
        if source.start >= limit:
            break
        if source.summary is None or source.summary.max_timestamp_us >= timestamp_us:
            found = find_time(fs, source, timestamp_us, limit)
            if found is not None:
                return found if found < limit else None
    return None


def timestamp_of(fs: FileSystem, source: Segment, offset: int) -> int:
    """Return the timestamp of a record of a segment, in microseconds since 1970 UTC.

    Raises as :func:`walstore.files.segment_file.read_batches`.
    """
    return read_batches(fs, source, offset, offset + 1, SEARCH_BYTES)[0].timestamps_us[0]


def load_summary(fs: FileSystem, source: Segment) -> None:
    """Fill the summary of a sealed segment from its footer, unless it is known.

    Raises CorruptionError if it has none, and FileNotFoundError if the file is gone.
    """
    if source.summary is not None:
        return
    with contextlib.closing(fs.open(source.path, "r")) as file:
        footer = read_footer(file, source.start, source.path)
    if footer is None:
        raise CorruptionError("sealed segment has lost its footer", path=str(source.path))
    source.summary = footer[0]


def _latest_us(fs: FileSystem, source: Segment) -> int:
    """Return the time of a sealed segment's last record."""
    load_summary(fs, source)
    assert source.summary is not None
    return source.summary.max_timestamp_us
