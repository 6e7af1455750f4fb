"""Where a query starts that has no checkpoint yet: at its cursors, or where the options say. Blocking.

Spark asks twice, asks again if it dies before the first micro-batch is done, and remembers no answer. What
may be another one the next time is therefore resolved once and held by a cursor.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing

from walstore.spark.bounds import Bound, Edge, LogName
from walstore.spark.plan import resolve
from walstore.spark.streaming.followed import Followed
from walstore.spark.streaming.offsets import show
from walstore.spark.streaming.stream_cursors import StreamCursors
from walstore.spark.streaming.stream_options import StreamOptions

logger = logging.getLogger("walstore.spark")


def initial_offsets(
    logs: Mapping[LogName, Followed], options: StreamOptions, trail: StreamCursors | None
) -> dict[LogName, int]:
    """Return where each log starts: at its cursor, which is made if there is none.

    Raises OffsetTrimmedError or OffsetNotWrittenError for offsets that are not there, InvalidSettingsError
    for bounds that do not fit the logs, and what cursors raise.
    """
    held = {} if trail is None else trail.positions(logs)
    if held.keys() != logs.keys():
        options.starting.check(logs.keys())
    found = {}
    for name, log in logs.items():
        bound = held.get(name) or options.starting.of(*name)
        start = _resolve(name, log, bound, options)
        if trail is not None and name not in held:
            start = trail.begin(name, log, start)
        found[name] = start
    return found


def _resolve(name: LogName, log: Followed, bound: Bound, options: StreamOptions) -> int:
    with closing(log.plan()) as planned:
        interval = resolve(
            planned,
            bound,
            Edge.LATEST,
            needs_record=options.needs_record,
            fail_on_data_loss=options.fail_on_data_loss,
        )
    if interval.lost:
        logger.warning("%s: %s", show(name), interval.lost)
    return interval.start
