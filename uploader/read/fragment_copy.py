"""FragmentCopier: copies fragments of one log into another, byte for byte, and verifies each.

A copy matches the source's manifest: offsets, and the hash of every record. The entry of a copy has the
right length, even if the source's entry does not. The last fragment may be cut, so that it ends earlier.
Copying a fragment that is already there puts nothing.
"""

from __future__ import annotations

import dataclasses
from functools import partial

from uploader.format.entries import Fragment
from uploader.fragments.fragment import decode_fragment, verify_fragment
from uploader.fragments.fragment_builder import encode_fragment
from uploader.fragments.fragment_file import fragment_timestamp
from uploader.layouts.log_session import put_anyhow
from uploader.root.stored_document import read_object
from uploader.stores.errors import ObjectNotFoundError
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.errors import CorruptionError
from walstore.runtime.threads import Worker


class FragmentCopier:
    """Copies fragments from one store to another. Any number of tasks may call it."""

    def __init__(
        self,
        source: ObjectStore,
        target: ObjectStore,
        *,
        is_resumed: bool,
        retry: RetryPolicy,
        worker: Worker,
    ) -> None:
        """``is_resumed``: look in the target first, since an earlier attempt may have put much of it."""
        self._source = source
        self._target = target
        self._is_resumed = is_resumed
        self._retry = retry
        self._worker = worker

    async def copy(self, entry: Fragment, stop: int) -> Fragment:
        """Copy the records of a fragment before ``stop``; return the entry of the copy.

        Its number and first offset stay; its key is that of the default layout. ObjectNotFoundError if
        the source no longer has it, CorruptionError if it does not match its entry.
        """
        whole = Fragment.numbered(
            entry.seq_no,
            start=entry.start,
            limit=entry.limit,
            num_bytes=entry.num_bytes,
            setsum=entry.setsum,
        )
        if stop >= entry.limit and self._is_resumed:
            there = await self._copied(whole)
            if there is not None:
                return there
        data = await _read_whole(self._source, entry)
        await self._worker.run(verify_fragment, data, entry)
        if stop < entry.limit:
            data, whole = await self._worker.run(partial(_cut, data, entry, stop))
        await put_anyhow(self._target, whole.path, data, retry=self._retry)
        return dataclasses.replace(whole, num_bytes=len(data))

    async def _copied(self, entry: Fragment) -> Fragment | None:
        """Return the entry of a copy that is there already; None if there is none, or another object."""
        try:
            data = await _read_whole(self._target, entry)
            await self._worker.run(verify_fragment, data, entry)
        except (ObjectNotFoundError, CorruptionError):
            return None
        return dataclasses.replace(entry, num_bytes=len(data))


async def _read_whole(store: ObjectStore, entry: Fragment) -> bytes:
    """Return all of an object. A range costs less than a get, which may have to hash it for its ETag."""
    data = await store.get_range(entry.path, 0, entry.num_bytes + 1)
    return data if len(data) <= entry.num_bytes else (await read_object(store, entry.path)).data


def _cut(data: bytes, entry: Fragment, stop: int) -> tuple[bytes, Fragment]:
    """Return the fragment that ends at ``stop``, with the same number and time."""
    batch = decode_fragment(data, entry).slice(entry.start, stop)
    timestamp_us = fragment_timestamp(data, path=entry.path)
    encoded = encode_fragment([batch], timestamp_us=timestamp_us)
    return encoded.data, encoded.entry(entry.seq_no)
