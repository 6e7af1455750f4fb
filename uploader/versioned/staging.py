"""StagingArea: updates that tasks of a job put into a collection's store, until one program appends them.

A write is a batch of a query: ``staging/<query>/<batch>/``. Each attempt of it is a job of its own, whose
tasks put Parquet files there. The first to commit puts the ``intent``, which names the files that count.
Every attempt appends these, so the batch has one content, whatever other attempts staged. Once it is
appended, the mark ``done`` is put, and only then are files removed: whoever finds an intent and no mark finds
its files.

The intent and the mark stay until the query's next batch is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from uploader.format.document import Fields, read_document, serialise
from uploader.fragments.parquet_metadata import parsing, plan_reading, read_metadata, read_table
from uploader.root import cas
from uploader.root.stored_document import parse_aside, read_object
from uploader.runtime.task_groups import gather_all
from uploader.stores.port import ObjectNotFoundError, ObjectStore, remove
from uploader.stores.retry import RetryPolicy
from uploader.versioned.names import STAGING_FOLDER, is_collection_key, parse_staging_key
from walstore.core.runtime.threads import Lane
from walstore.errors import ContentionError, CorruptionError

MOST_ROWS: Final = 16 << 20
"""Most rows of one batch, which goes through the memory of one program."""
MOST_BYTES: Final = 1 << 30
"""Most bytes of one batch, in memory."""
FILE_BYTES: Final = 64 << 20
"""A task puts a file when its rows take so much memory."""
JOB_QUERY: Final = "job-"
"""The query of a job that is not repeated has this and the time at which it began."""
WEEK_US: Final = 7 * 86_400 * 1_000_000

_INTENT: Final = "intent"
_DONE: Final = "done"
_AT_ONCE: Final = 8
_REMOVED_AT_ONCE: Final = 1000
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that a task staged."""

    key: str
    rows: int
    num_bytes: int
    """What its rows take in memory."""
    size_bytes: int
    """Its length."""

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "key": self.key,
            "rows": self.rows,
            "num_bytes": self.num_bytes,
            "size_bytes": self.size_bytes,
        }


@dataclass(frozen=True, slots=True)
class StagedWrite:
    """A batch of a query."""

    query: str
    batch: int

    @property
    def folder(self) -> str:
        """Where its objects are."""
        return f"{STAGING_FOLDER}{self.query}/{self.batch:016x}/"


class StagingArea:
    """The staged objects in a store. Its methods pass on the store's errors."""

    def __init__(self, store: ObjectStore, *, retry: RetryPolicy, worker: Lane) -> None:
        """Use a store, which stays open."""
        self._store = store
        self._retry = retry
        self._worker = worker

    async def put(self, write: StagedWrite, job: str, name: str, rows: pa.Table) -> StagedFile:
        """Put a file of a job's task; ``name`` is the task's, and ``job`` has 16 hexadecimal digits."""
        key = f"{write.folder}{job}-{name}-{token_hex(4)}.parquet"
        data = await self._worker.run(_encode, rows)
        result = await cas.create(self._store, key, data, retry=self._retry)
        result.decided(self._store.url, "the rows of a task were staged; the task is tried again")
        return StagedFile(key, rows.num_rows, rows.nbytes, len(data))

    async def is_done(self, write: StagedWrite) -> bool:
        """Return whether the write was appended before, as far as that is still known."""
        return await self._store.head(write.folder + _DONE) is not None

    async def intend(
        self, write: StagedWrite, files: Sequence[StagedFile]
    ) -> tuple[StagedFile, ...]:
        """Decide that these files are the write, unless others are; return those that are."""
        key = write.folder + _INTENT
        data = serialise({"version": _FORMAT, "files": [file.to_json() for file in files]})
        result = await cas.create(self._store, key, data, retry=self._retry)
        result.decided(self._store.url, "it was decided what is written; run it again")
        if result.outcome is cas.PutOutcome.COMMITTED:
            return tuple(files)
        if result.data is None:
            raise ContentionError(
                "another run of this query went on meanwhile; nothing was written"
            )
        found = await parse_aside(partial(_read_intent, key), result.data)
        for file in found:
            if parse_staging_key(file.key) != (write.query, write.batch):
                raise CorruptionError(
                    "an intent names what is not its own", path=key, found=file.key
                )
        return found

    async def finish(self, write: StagedWrite) -> None:
        """Mark the write as appended, and remove what is no longer needed of it and of earlier ones."""
        result = await cas.create(self._store, write.folder + _DONE, b"appended", retry=self._retry)
        result.decided(self._store.url, "the write was marked as done; run it again")
        kept = {write.folder + _INTENT, write.folder + _DONE}
        await self._remove(
            [
                listed.key
                async for listed in self._store.list(f"{STAGING_FOLDER}{write.query}/")
                if (name := parse_staging_key(listed.key)) is not None
                and name[1] <= write.batch
                and listed.key not in kept
            ]
        )

    async def load(self, files: Iterable[StagedFile]) -> list[pa.Table]:
        """Return the rows of files, in their order; CorruptionError for one that is missing or damaged."""
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(file: StagedFile) -> pa.Table:
            async with turns:
                try:
                    data = (await read_object(self._store, file.key)).data
                except ObjectNotFoundError:
                    raise CorruptionError(
                        "staged rows are missing, and whether they were appended is not known: another "
                        "program removed them",
                        path=file.key,
                    ) from None
                return await self._worker.run(_decode, data, file)

        return await gather_all(one(file) for file in files)

    async def discard(self, query: str) -> None:
        """Remove all that a job staged which is not going to be committed."""
        await self._remove(
            [
                listed.key
                async for listed in self._store.list(f"{STAGING_FOLDER}{query}/")
                if parse_staging_key(listed.key) is not None
            ]
        )

    async def sweep_jobs(self, now_us: int) -> None:
        """Remove what jobs that began a week ago staged and never appended; not what streams did."""
        doomed = []
        async for listed in self._store.list(STAGING_FOLDER + JOB_QUERY):
            name = parse_staging_key(listed.key)
            if name is not None and _began_us(name[0]) < now_us - WEEK_US:
                doomed.append(listed.key)
        await self._remove(doomed)

    async def _remove(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), _REMOVED_AT_ONCE):
            await remove(
                self._store, keys[start : start + _REMOVED_AT_ONCE], rule=is_collection_key
            )


def job_query(now_us: int) -> str:
    """Return the query of a job that begins now and is not repeated."""
    return f"{JOB_QUERY}{now_us:016x}-{token_hex(8)}"


def _began_us(query: str) -> int:
    digits = query.removeprefix(JOB_QUERY)[:16]
    try:
        return int(digits, 16)
    except ValueError:
        return 1 << 64  # not ours


def _read_intent(key: str, data: bytes) -> tuple[StagedFile, ...]:
    return read_document(data, _files, path=key)


def _files(fields: Fields) -> tuple[StagedFile, ...]:
    fields.check_version(_FORMAT, "an intent")
    return tuple(
        StagedFile(
            key=item.text("key"),
            rows=item.number("rows"),
            num_bytes=item.number("num_bytes"),
            size_bytes=item.number("size_bytes"),
        )
        for item in fields.objects("files")
    )


def _encode(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", compression_level=1, write_page_checksum=True)
    return bytes(sink.getvalue().to_pybytes())


def _decode(data: bytes, file: StagedFile) -> pa.Table:
    with parsing(file.key):
        metadata = read_metadata(data, len(data), path=file.key)
        source = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        names = source.schema_arrow.names
        reading = plan_reading(metadata, data, names, path=file.key)
        table = read_table(source, names, reading, path=file.key)
    if (table.num_rows, len(data)) != (file.rows, file.size_bytes):
        raise CorruptionError("staged rows are not those that were staged", path=file.key)
    return table.replace_schema_metadata(None)
