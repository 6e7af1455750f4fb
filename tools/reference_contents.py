"""What the reference shows: its pages with their names, and the kinds of all pages of docs/."""

from __future__ import annotations

from typing import NamedTuple

from uploader.stores import ObjectStore
from walstore.core.ports import FileSystem


class Page(NamedTuple):
    """A page of the reference: which public names of a module it shows, in this order."""

    name: str
    title: str
    summary: str
    names: dict[str, str]
    """Module, and its names, with spaces between them."""


PAGES = [
    Page(
        "wal",
        "A local log",
        "Opening, appending, reading; records and batches.",
        {
            "walstore": "Wal Reader ReadonlyWal Record Batch Start OneOf NoneOf Durability Statistics "
            "CopyStatistics ScrubRound CopyScrub StreamInfo Transaction Producer Fence Log ReadableLog open"
        },
    ),
    Page(
        "cursors",
        "Cursors and consumers",
        "Named, durable positions.",
        {"walstore": "Cursor CursorInfo Consumer"},
    ),
    Page(
        "settings",
        "Settings",
        "Every settings class with its fields, ranges and defaults.",
        {
            "walstore": "Settings StoreSettings",
            "uploader": "UploadSettings WriterSettings CollectorSettings ChainSettings RollUpSettings",
        },
    ),
    Page(
        "store",
        "Many logs in one process",
        "`WalStore`.",
        {"walstore": "WalStore StoreStatistics"},
    ),
    Page(
        "sync",
        "Threads and scripts",
        "`walstore.sync`: the same log without an event loop.",
        {
            "walstore.sync": "open connect BlockingLog BlockingReader BlockingCursor BlockingTransaction "
            "BlockingGroup BlockingJob",
            "walstore.log_handler": "LogHandler",
        },
    ),
    Page(
        "groups",
        "Groups",
        "`Group` and `Job`. [work_queue.md](../work_queue.md) explains them.",
        {"walstore": "Group Job GroupStatistics GroupInfo Redriven delayed"},
    ),
    Page(
        "serving",
        "Serving a log, and connecting to it",
        "`connect`, `connect_readonly`, and servers. [serving.md](../serving.md) and [http.md](../http.md) "
        "explain them.",
        {
            "walstore": "connect RemoteWal connect_readonly RemoteReadonlyWal list_logs ServedLog "
            "Replication",
            "walstore.serve": "Server ServeSettings AccessTokens AccessToken AccessScope ReplicaNode "
            "ClusterMember",
            "walstore.topology.key_values": "KeyValues",
            "walstore.topology.etcd": "EtcdKeyValues",
            "walstore.topology.memory": "MemoryKeyValues",
            "walstore.http": "HttpServer HttpSettings",
        },
    ),
    Page(
        "messages",
        "Transactions over several logs",
        "`walstore.messages`.",
        {
            "walstore.messages": "Coordinator CoordinatedTransaction CoordinatorState RegisterStore "
            "StateStore CommittedReader ReadCheckpoint Publisher AckIntents send_intents abort_producers "
            "new_producer_id MessageClock time_us Outcome ProducerState Sequencer Stamp Flag HEADER"
        },
    ),
    Page(
        "cloud_tier",
        "Shipping a local log",
        "`CloudTier`, and the cache on disk.",
        {"uploader": "CloudTier FragmentCache Layout"},
    ),
    Page(
        "cloud_log",
        "Reading a log in object storage",
        "`CloudLog` and cursors in the cloud.",
        {"uploader": "CloudLog Verified CloudCursors CloudCursor PartitionedLog PartitionedGroup"},
    ),
    Page(
        "cloud_writer",
        "Writing straight to object storage",
        "`CloudWriter`.",
        {"uploader": "CloudWriter WriterStatistics"},
    ),
    Page(
        "collection",
        "Garbage collection",
        "`GarbageCollector`, its plans and results.",
        {"uploader": "GarbageCollector Plan Collected Deleted Progress"},
    ),
    Page(
        "administration",
        "Scrub, seal, fork, destroy, restore, rebuild",
        "What an operator does to a log in object storage.",
        {
            "uploader": "Scrubber ScrubReport ScrubTally Finding Severity seal fork Forked destroy Destroyed "
            "bootstrap restore Restored RestoreProgress StoredCopy rebuild Rebuilt plan_rebuild RebuildPlan "
            "apply_rebuild DirtyLog Dirty RolledUp"
        },
    ),
    Page(
        "versioned_collections",
        "Versioned collections",
        "Tables in object storage that change over time, their writers, readers and controller. "
        "[versioned_collections.md](../versioned_collections.md) explains them.",
        {
            "uploader": "Collection CollectionStatus CollectionWriter CollectionReader Controller "
            "ControllerSettings CompactionPlan Compacted Purged "
            "Materializer MaterializerSettings Materialized CollectionScan ScanFile "
            "MergeEngine MergeJob MergeResult MergedObject"
        },
    ),
    Page(
        "arrow",
        "DuckDB, Polars, pandas",
        "`walstore.arrow`: a stored log as a dataset, and its files. [query.md](../query.md) explains them; "
        "`to_arrow` and `arrow_batches` are with the logs and their readers.",
        {"walstore.arrow": "dataset LogDataset SCHEMA", "uploader": "LogFile"},
    ),
    Page(
        "open_tables",
        "Open tables",
        "Logs and collections as Iceberg tables. [open_tables.md](../open_tables.md) explains them; "
        "`CollectionReader.export_iceberg` is with the [collections](versioned_collections.md).",
        {"uploader": "IcebergTarget LogTable JsonColumn Registered Released Exported"},
    ),
    Page(
        "stores",
        "Object stores",
        "The port, the stores behind it, and stores around stores.",
        {
            "uploader.stores": "open_store ObjectStore LocalStore S3Store ObstoreStore MemoryStore "
            "StoreWrapper RetryPolicy RetryingStore HedgedStore HedgeSettings HedgeStatistics "
            "MeteredStore Usage KindUsage Prices ObjectInfo StoredObject ListedObject probe_conditional_puts"
        },
    ),
    Page(
        "spark",
        "Spark",
        "Functions of `walstore.spark`. Options are in [spark.md](../spark.md).",
        {
            "walstore.spark": "register local_session read read_collection merge_engine problem "
            "partition_rows finish_commits sweep_staging"
        },
    ),
    Page(
        "testing",
        "Testing",
        "`walstore.testing` and `uploader.testing`.",
        {
            "walstore.testing": "FaultyFileSystem PowerLossFileSystem MemoryFileSystem ManualClock Call Hold",
            "uploader.testing": "FaultyStore LatencyStore ShuffledStore CallCount StoreKilled",
        },
    ),
    Page(
        "kits",
        "Kits",
        "`walstore.kits`. [kits.md](../kits.md) explains them.",
        {
            "walstore.kits.typed": "TypedLog TypedView TypedReader TypedRecord Schema",
            "walstore.kits.fastapi": "open_logs log answer_errors",
            "walstore.kits.taskiq": "WalstoreBroker",
        },
    ),
    Page(
        "metrics",
        "Metrics",
        "`PrometheusMetrics`, `OpenTelemetryMetrics`, `CollectionMetrics`. What is measured is in "
        "[metrics.md](../metrics.md).",
        {
            "walstore.metrics": "PrometheusMetrics OpenTelemetryMetrics Tracing Metrics "
            "LogObserver ObservedLog",
            "uploader": "CollectionMetrics",
        },
    ),
]

ERRORS = {
    "walstore.spark": "FastPathError",
    "walstore.kits.typed": "SchemaError",
    "uploader.stores": "ObjectNotFoundError PreconditionFailedError",
}
"""Errors with a public name other than those of the package ``walstore``."""

HIDDEN = {"open_in", "abandon", "check_home", "check_open", "of_store"}
"""Methods that only other parts of the packages call, next to those whose docstring says so."""
INSIDE = "Not for callers"
MADE_HERE = {
    "Reader",
    "TypedReader",
    "ReadonlyWal",
    "RemoteWal",
    "Consumer",
    "CloudWriter",
    "CloudLog",
    "LogTable",
    "LogDataset",
    "LogFile",
    "CollectionWriter",
    "CollectionReader",
    "CoordinatedTransaction",
    "Cursor",
    "Group",
}
"""Classes whose objects come from methods of others."""
PORTS = (ObjectStore, FileSystem)
"""What a class that implements one of these has from it is shown once."""

SECTIONS = {
    "Start here": "index tutorial concepts",
    "How-tos": (
        "web_application kits several_processes serving deploy http work_queue replication cluster "
        "transactions streams readonly consumers "
        "messages retention store cloud_writer cloud_reading collection integrity restore "
        "versioned_collections query open_tables repair handbook operations prove "
        "testing "
        "stores spark spark_cluster spark_streaming spark_sink spark_from_kafka spark_fast_path "
        "spark_sidecar spark_collections"
    ),
    "Reference": "api errors cli metrics format chain",
    "Explanation": "design guarantees performance decisions gazette",
}
"""Which page is of which kind."""
