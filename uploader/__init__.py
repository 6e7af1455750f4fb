"""uploader: the cloud tier of walstore, in wal3's formats. ``walstore.cloud`` is its other name."""

from walstore.core.runtime.extras import needs_extra

with needs_extra("cloud", "the cloud tier"):
    from uploader.care.admin.bootstrap import bootstrap
    from uploader.care.admin.destroy import Destroyed, destroy
    from uploader.care.admin.fork import Forked, fork
    from uploader.care.admin.scrubber import Scrubber, ScrubReport, ScrubTally
    from uploader.care.admin.seal import seal
    from uploader.care.dirty.dirty_log import Dirty, DirtyLog, RolledUp
    from uploader.care.gc.collection_plan import (
        Collected,
        CollectorSettings,
        Deleted,
        Plan,
        Progress,
    )
    from uploader.care.gc.collector import GarbageCollector
    from uploader.care.rebuilding.plan import RebuildPlan
    from uploader.care.rebuilding.rebuilding import apply_rebuild, plan_rebuild
    from uploader.care.restoring.restore import Restored, RestoreProgress, restore
    from uploader.care.restoring.stored_copy import StoredCopy
    from uploader.chain import ChainSettings, Rebuilt, rebuild
    from uploader.format.cloud_cursor import CloudCursor
    from uploader.format.findings import Finding, Severity
    from uploader.format.rollup import RollUpSettings
    from uploader.iceberg.content_table import Exported
    from uploader.iceberg.iceberg_target import IcebergTarget
    from uploader.iceberg.json_columns import JsonColumn
    from uploader.iceberg.log_table import LogTable, Registered, Released
    from uploader.layouts.log_session import Layout
    from uploader.partitioned.partitioned_log import PartitionedGroup, PartitionedLog
    from uploader.positions.cursors.cloud_cursors import CloudCursors
    from uploader.read.cloud_log import CloudLog, Verified
    from uploader.read.fragment_cache import FragmentCache
    from uploader.read.log_file import LogFile
    from uploader.stores import open_store
    from uploader.versioned.collection import Collection, CollectionStatus
    from uploader.versioned.collection_metrics import CollectionMetrics
    from uploader.versioned.collection_reader import CollectionReader
    from uploader.versioned.collection_writer import CollectionWriter
    from uploader.versioned.compaction import CompactionPlan
    from uploader.versioned.controller import Compacted, Controller, ControllerSettings
    from uploader.versioned.materializer import Materialized, Materializer, MaterializerSettings
    from uploader.versioned.merging import MergedObject, MergeEngine, MergeJob, MergeResult
    from uploader.versioned.scan import CollectionScan, ScanFile
    from uploader.versioned.sweep import Purged
    from uploader.write.cloud_tier import CloudTier
    from uploader.write.cloud_writer import CloudWriter
    from uploader.write.writer_settings import UploadSettings, WriterSettings, WriterStatistics

__all__ = [
    "ChainSettings",
    "CloudCursor",
    "CloudCursors",
    "CloudLog",
    "CloudTier",
    "CloudWriter",
    "Collected",
    "Collection",
    "CollectionMetrics",
    "CollectionReader",
    "CollectionScan",
    "CollectionStatus",
    "CollectionWriter",
    "CollectorSettings",
    "Compacted",
    "CompactionPlan",
    "Controller",
    "ControllerSettings",
    "Deleted",
    "Destroyed",
    "Dirty",
    "DirtyLog",
    "Exported",
    "Finding",
    "Forked",
    "FragmentCache",
    "GarbageCollector",
    "IcebergTarget",
    "JsonColumn",
    "Layout",
    "LogFile",
    "LogTable",
    "Materialized",
    "Materializer",
    "MaterializerSettings",
    "MergeEngine",
    "MergeJob",
    "MergeResult",
    "MergedObject",
    "PartitionedGroup",
    "PartitionedLog",
    "Plan",
    "Progress",
    "RebuildPlan",
    "Rebuilt",
    "Registered",
    "Released",
    "RestoreProgress",
    "Restored",
    "RollUpSettings",
    "RolledUp",
    "ScanFile",
    "ScrubReport",
    "ScrubTally",
    "Scrubber",
    "Severity",
    "StoredCopy",
    "Purged",
    "UploadSettings",
    "Verified",
    "WriterSettings",
    "WriterStatistics",
    "apply_rebuild",
    "bootstrap",
    "destroy",
    "fork",
    "open_store",
    "plan_rebuild",
    "rebuild",
    "restore",
    "seal",
]
