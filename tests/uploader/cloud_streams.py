"""Logs with streams in a store, made without a local log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tests.frames import batch_of, build
from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.fragments.fragment_builder import encode_fragment
from uploader.stores.port import ObjectStore
from walstore.records import Record

RECORDS = 10


async def put_log(
    store: ObjectStore,
    count: int,
    stream_of: Callable[[int], str | None],
    *,
    value: Callable[[int], bytes] = b"%d".__mod__,
    records: int = RECORDS,
) -> Manifest:
    """Put a log of so many fragments of so many records; an offset is a record's time, too."""
    entries: list[Fragment] = []
    for seq_no in range(1, count + 1):
        first = 1 + (seq_no - 1) * records
        found = [
            Record(at, value(at), None, stream_of(at), timestamp_us=at)
            for at in range(first, first + records)
        ]
        entries.append(await put_records(store, seq_no, found))
    manifest = Manifest.initial("w").apply_fragments(entries, "w")
    await store.put_if_absent(layout.MANIFEST, manifest.serialise())
    return manifest


async def put_records(store: ObjectStore, seq_no: int, records: Sequence[Record]) -> Fragment:
    """Put a fragment and return its entry."""
    encoded = await asyncio.to_thread(
        encode_fragment, [batch_of(build(list(records)))], timestamp_us=99
    )
    await store.put_if_absent(layout.fragment_path(seq_no), encoded.data)
    return encoded.entry(seq_no)
