"""``walstore.spark.read_collection``: the content of a collection at a time, as a DataFrame."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from walstore import CorruptionError, InvalidSettingsError
from walstore.core.runtime.old_names import renamed
from walstore.spark.environment import require_packages
from walstore.spark.fast_path.reading import FastPath, by_jvm, check_fast_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from uploader import CollectionReader, CollectionScan
    from uploader.stores import ObjectStore
    from walstore.spark.versioned.scanning import Narrow

LEASE_SECONDS: Final = 3600.0
_INT32: Final = 1
"""The stored type of numbers up to 32 bits, as Parquet numbers it."""


@renamed(max_wait="max_wait_seconds")
def read_collection(
    spark: SparkSession,
    url: str,
    as_of: int | None = None,
    *,
    lease_seconds: float = LEASE_SECONDS,
    name: str | None = None,
    max_wait_seconds: float | None = None,
    fast_path: FastPath = "auto",
) -> DataFrame:
    """Return the content of a collection at time ``as_of``, as ``CollectionReader.snapshot`` returns it.

    In a ``diff`` collection the rows with their counts in ``_d``, in an ``upsert`` collection the live keys
    with their values; in no order. docs/spark_collections.md has the types. Spark's own Parquet reader reads
    the objects where it can open the store, as for :func:`walstore.spark.read`; it checks the checksums of
    pages. Python tasks also check each object against its digest.

    This call fixes what is read, and holds the objects for at least ``lease_seconds`` from now. That is not
    renewed: an action after that may fail, because an object was removed. It is never wrong.

    Args:
        spark: The session.
        url: Location of the collection.
        as_of: A time that is not compacted. Default: the latest that is readable now.
        lease_seconds: From 1 second to 100 years.
        name: Name of a reader of its own for this call, also as a sign of who reads. A later call with this
            name replaces it, and then nothing holds the frame of the earlier call. Default: a reader
            ``shared-…`` for all calls that read the same version; see ``Collection.planned_scan``.
        max_wait_seconds: Longest wait until all updates up to ``as_of`` are published; TimeoutError when
            it has passed. Default: no limit.
        fast_path: ``auto`` reads with Python tasks if the JVM cannot, and logs why; ``always`` raises
            FastPathError instead, and assumes that all machines of a cluster see a ``file:`` store;
            ``never`` reads with Python tasks.

    Blocks; must not be called on an event loop. InvalidSettingsError for invalid arguments, a ``memory:``
    store and columns for which Spark has no type. SinceViolationError, CollectionNotFoundError,
    LimitExceededError for more than 100 readers, and the store's errors. If the call fails a reader of its
    own is released.
    """
    require_packages()
    check_fast_path(fast_path)
    from walstore.spark.blocking import StoreReading
    from walstore.spark.versioned import scanning

    with StoreReading(url) as site:
        if site.store.url.startswith("memory:"):
            raise InvalidSettingsError(
                "a memory: store exists in this process alone, so that Spark's tasks cannot read it; use "
                "CollectionReader.snapshot"
            )
        opened = AsyncExitStack()
        try:
            reader, scan, narrow = site.run(
                _open(opened, site.store, url, as_of, lease_seconds, name, max_wait_seconds)
            )
            # Spark's calls block: not on the event loop.
            scanning.check_names(spark, scan.schema)
            found = _frame(spark, scan, url, narrow, fast_path)
            if reader is not None:
                site.run(reader.leave())
        finally:
            site.run(opened.aclose())
    return found


async def _open(
    opened: AsyncExitStack,
    store: ObjectStore,
    url: str,
    as_of: int | None,
    lease_seconds: float,
    name: str | None,
    max_wait_seconds: float | None,
) -> tuple[CollectionReader | None, CollectionScan, Narrow]:
    """Return the reader that was named, if one was, and what it or a shared one holds."""
    from uploader import Collection

    collection = await opened.enter_async_context(Collection.open(url, store=store))
    if name is None:
        scan = await collection.planned_scan(
            hold_seconds=lease_seconds, as_of=as_of, max_wait_seconds=max_wait_seconds
        )
        return None, scan, await _narrow(store, scan)
    reader = await opened.enter_async_context(
        await collection.reader(name, lease_seconds=lease_seconds)
    )
    scan = await opened.enter_async_context(
        reader.scan(as_of=as_of, max_wait_seconds=max_wait_seconds)
    )
    return reader, scan, await _narrow(store, scan)


def _frame(
    spark: SparkSession, scan: CollectionScan, url: str, narrow: Narrow, fast_path: FastPath
) -> DataFrame:
    from walstore.spark.fast_path import jvm
    from walstore.spark.versioned import scanning
    from walstore.spark.versioned.object_tasks import CollectionObjects

    def jvm_updates(is_shared: bool) -> DataFrame:  # noqa: FBT001
        jvm.require_jvm(spark)
        return scanning.jvm_updates(spark, scan, url, narrow, is_shared=is_shared)

    def python_updates() -> DataFrame:
        objects = CollectionObjects(url, scan.collection, scan.schema)
        parts = scanning.parts_of(scan.files)
        return scanning.python_updates(spark, objects, parts, with_hash=False)

    what = f"the collection at {scan.url}"
    return scanning.content(by_jvm(fast_path, what, jvm_updates, python_updates), scan.schema)


async def _narrow(store: ObjectStore, scan: CollectionScan) -> Narrow:
    """Return which unsigned numbers older objects store in 32 bits, from a footer of each older schema."""
    from walstore.spark.versioned.scanning import is_long_number

    wide = [field.name for field in scan.schema.columns if is_long_number(field.type)]
    older = {file.schema_id: file.key for file in scan.files if file.schema_id != scan.schema.id}
    return {
        number: await _stored_in_32_bits(store, key, wide) for number, key in older.items() if wide
    }


async def _stored_in_32_bits(store: ObjectStore, key: str, names: list[str]) -> frozenset[str]:
    from uploader.fragments.parquet_metadata import read_metadata
    from uploader.versioned import batch_file

    found = await store.head(key)
    if found is None:
        raise CorruptionError("an object of the collection is missing", path=key)
    tail = await batch_file.read_end(partial(store.get_range, key), found.size_bytes, path=key)
    leaves = read_metadata(tail, found.size_bytes, path=key).leaves
    return frozenset(leaf.name for leaf in leaves if leaf.kind == _INT32 and leaf.name in names)
