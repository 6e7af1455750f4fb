"""Plans a read of one or many logs: finds them, resolves their bounds, divides them into tasks. Blocking I/O.

Several logs are opened concurrently in threads, for a request or two each. Logs that filters exclude by topic
or partition are not opened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Final

from walstore import WalError
from walstore.spark.filters import Narrowed
from walstore.spark.logs import NamedLog, find_logs, open_log
from walstore.spark.options import ReadOptions
from walstore.spark.partition import LogPartition
from walstore.spark.plan import Log, ReadInterval, divide, resolve

logger = logging.getLogger("walstore.spark")

PARALLEL: Final = 8
"""Logs opened concurrently."""

_Read = tuple[Log, ReadInterval]


def plan_read(options: ReadOptions, narrowed: Narrowed) -> list[LogPartition]:
    """Return what each task reads, narrowed by filters; reads indexes and manifests, no records.

    Blocks, also inside a running event loop, as in a notebook. See :func:`walstore.spark.logs.find_logs` and
    :func:`walstore.spark.plan.resolve` for the errors.
    """
    if not _is_in_loop():
        return _plan(options, narrowed)
    with ThreadPoolExecutor(1, "walstore-plan") as thread:
        return thread.submit(_plan, options, narrowed).result()


def check_location(options: ReadOptions) -> None:
    """Raise what planning would raise for a location that cannot be read, mostly LogNotFoundError.

    Opens a single log; of several it looks up only the names. Blocks, as :func:`plan_read`.
    """
    if not _is_in_loop():
        _check(options)
        return
    with ThreadPoolExecutor(1, "walstore-plan") as thread:
        thread.submit(_check, options).result()


def _check(options: ReadOptions) -> None:
    named = find_logs(options.location, options.selection)
    if len(named) == 1:
        open_log(named[0], use_tier=False).close()


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _plan(options: ReadOptions, narrowed: Narrowed) -> list[LogPartition]:
    named = find_logs(options.location, options.selection)
    names = [(log.topic, log.partition) for log in named]
    options.starting.check(names)
    options.ending.check(names)
    admitted = [log for log in named if narrowed.admits(log.topic, log.partition)]
    with ExitStack() as stack:
        reads = _open_all(admitted, partial(_look, options, narrowed), stack)
        return divide(reads, options.min_partitions)


def _open_all(logs: Sequence[NamedLog], look: partial[_Read], stack: ExitStack) -> list[_Read]:
    """Open the logs, all or none; the stack closes them."""
    if len(logs) == 1:
        reads = [look(logs[0])]
        stack.callback(reads[0][0].close)
        return reads
    with ThreadPoolExecutor(PARALLEL, "walstore-plan") as threads:
        looks = [threads.submit(look, log) for log in logs]
    for done in looks:
        if done.exception() is None:
            stack.callback(done.result()[0].close)
    return [done.result() for done in looks]


def _look(options: ReadOptions, narrowed: Narrowed, named: NamedLog) -> _Read:
    """Open a log and resolve which part of it is read; the caller closes it."""
    with ExitStack() as stack:
        try:
            log = open_log(named, use_tier=options.use_tier)
            stack.callback(log.close)
            interval = resolve(
                log,
                options.starting.of(named.topic, named.partition),
                options.ending.of(named.topic, named.partition),
                needs_record=options.needs_record,
                fail_on_data_loss=options.fail_on_data_loss,
            )
            found = narrowed.interval(log, interval)
        except WalError as error:
            if not options.selection.is_whole or named.is_part:
                error.add_note(f"this is about {named.topic}/{named.partition}")
            raise
        if interval.lost:
            logger.warning("%s/%d: %s", named.topic, named.partition, interval.lost)
        stack.pop_all()
        return log, found
