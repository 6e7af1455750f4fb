"""Reading the footers of the fragments that the JVM is going to scan. Blocking I/O, many at a time.

Costs a small ranged request for each fragment. Their lengths are checked with that, too; the records of one
with another length are hashed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from uploader import open_store
from uploader.read.fragment_reader import FragmentReader
from uploader.stores.port import ObjectStore
from walstore.runtime.threads import Worker
from walstore.spark.fast_path.kinds import FragmentKind, kind_of
from walstore.spark.partition import FragmentPart
from walstore.spark.sync_runner import Loop

PARALLEL: Final = 32
"""Footers of one log that are asked for at the same time."""

KnownPart = tuple[FragmentPart, FragmentKind]


def look_at(url: str, parts: Sequence[FragmentPart], stream: str | None) -> list[KnownPart]:
    """Return what each fragment of the log at ``url`` is, in order.

    Without those that deny holding records of ``stream``, if one is named. Raises what
    :func:`walstore.spark.fast_path.kinds.kind_of` does, OffsetTrimmedError for a fragment that was
    collected since the manifest was read, CorruptionError for one that is missing or has other records, and
    the store's errors.
    """
    loop = Loop()
    try:
        return loop.run(_look_at(open_store(url), parts, stream))
    finally:
        loop.close()


async def _look_at(
    store: ObjectStore, parts: Sequence[FragmentPart], stream: str | None
) -> list[KnownPart]:
    worker = Worker("footers")
    reader = FragmentReader(store=store, worker=worker, cache_bytes=0)
    pending = iter(range(len(parts)))
    found: dict[int, KnownPart] = {}

    async def take() -> None:
        for at in pending:
            footer = await reader.footers.get(parts[at].entry)
            kind = kind_of(footer, parts[at].entry)
            if stream is None or footer.streams.may_hold(stream):
                found[at] = parts[at], kind

    try:
        takers = [asyncio.ensure_future(take()) for _ in range(min(PARALLEL, len(parts)))]  # noqa: TID251
        try:
            await asyncio.gather(*takers)
        finally:
            for taker in takers:
                taker.cancel()
            await asyncio.wait(takers)
    finally:
        await reader.aclose()
        worker.close()
        await store.aclose()
    return [found[at] for at in sorted(found)]
