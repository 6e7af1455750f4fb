"""Sweep: deletes what writes left behind whose drivers died, and finishes what they had committed.

What a sweep deletes was begun longer ago than anything that may still be committed (``STALE_SECONDS``), and
no commit record names it any more: records that are not done are finished first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from uploader.partitioned.committer import STALE_SECONDS, Committer
from uploader.partitioned.sink_settings import SinkSettings
from uploader.partitioned.stager import forget_staged
from uploader.partitioned.write_id import (
    JOBS,
    QUERIES,
    STAGING,
    job_time_us,
    parse_staged,
)
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.stores.url import chosen_store
from walstore.errors import InvalidSettingsError
from walstore.ports import Clock
from walstore.runtime.clock import SystemClock
from walstore.runtime.threads import Worker

SWEEP_SECONDS: Final = 7 * 86_400.0
"""Age from which staged objects are swept up; the least and the default."""
_BATCH: Final = 1000


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did."""

    finished: int
    """Commits that were published to their end."""
    objects: int
    """Objects deleted."""
    size_bytes: int
    """Their length."""


async def finish_commits(
    url: str,
    *,
    store: ObjectStore | None = None,
    retry: RetryPolicy | None = None,
    clock: Clock | None = None,
) -> int:
    """Publish what was committed to the logs under ``url`` and is not in them yet; return how many writes.

    For writes whose driver died and is not started again. While it lives this does no harm, but doubles the
    work. Raises what publishing raises; call again to finish the rest.
    """
    async with _place(url, store, retry, clock) as (place, committer, _):
        return await _finish(place, committer)


async def sweep_staging(
    url: str,
    *,
    older_than_seconds: float = SWEEP_SECONDS,
    store: ObjectStore | None = None,
    retry: RetryPolicy | None = None,
    clock: Clock | None = None,
) -> Swept:
    """Finish what was committed under ``url``, then delete what was staged so long ago and never committed.

    Safe next to writes under way. InvalidSettingsError for less than a week, since a write may take that
    long; otherwise raises as :func:`finish_commits`, and then nothing is deleted.
    """
    assert SWEEP_SECONDS > STALE_SECONDS
    if not older_than_seconds >= SWEEP_SECONDS:
        raise InvalidSettingsError(
            f"older_than_seconds must be at least {SWEEP_SECONDS:.0f} (a week), not {older_than_seconds:g}: "
            "what is younger may still be committed"
        )
    async with _place(url, store, retry, clock) as (place, committer, ticking):
        finished = await _finish(place, committer)
        before_us = ticking.now_us() - int(older_than_seconds * 1e6)
        objects, size_bytes, doomed = 0, 0, []
        for folder in (STAGING, JOBS):
            async for listed in place.list(folder):
                began_us = _began_us(listed.key)
                if began_us is None or began_us >= before_us:
                    continue
                doomed.append(listed.key)
                objects += 1
                size_bytes += listed.size_bytes
                if len(doomed) == _BATCH:
                    await forget_staged(place, doomed)
                    doomed = []
        await forget_staged(place, doomed)
        return Swept(finished, objects, size_bytes)


async def _finish(store: ObjectStore, committer: Committer) -> int:
    keys = [listed.key for folder in (QUERIES, JOBS) async for listed in store.list(folder)]
    return sum([await committer.finish(key) for key in keys])


def _began_us(key: str) -> int | None:
    """Return when the job began that put an object; None if the key does not say."""
    staged = parse_staged(key)
    try:
        return job_time_us(key.removeprefix(JOBS) if staged is None else staged[2])
    except InvalidSettingsError:
        return None


@asynccontextmanager
async def _place(
    url: str, store: ObjectStore | None, retry: RetryPolicy | None, clock: Clock | None
) -> AsyncIterator[tuple[ObjectStore, Committer, Clock]]:
    ticking = clock or SystemClock()
    used = chosen_store(url, store)
    worker = Worker("sweep", threads=2)
    try:
        committer = Committer(
            used,
            settings=SinkSettings(),
            retry=retry or RetryPolicy(clock=ticking),
            clock=ticking,
            worker=worker,
        )
        yield used, committer, ticking
    finally:
        worker.close()
        if store is None:
            await used.aclose()
