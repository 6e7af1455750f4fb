"""uploader: the cloud tier of walstore, in wal3's formats. ``walstore.cloud`` is its other name."""

from walstore.extras import needs_extra

with needs_extra("cloud", "the cloud tier"):
    from uploader.chain import ChainSettings, Rebuilt, rebuild
    from uploader.cloud_log import CloudLog
    from uploader.cloud_tier import CloudTier
    from uploader.cloud_writer import CloudWriter
    from uploader.collecting.collection import Collected, CollectorSettings, Deleted, Plan, Progress
    from uploader.collecting.collector import GarbageCollector
    from uploader.cursors.cloud_cursor import CloudCursor
    from uploader.cursors.cloud_cursors import CloudCursors
    from uploader.dirty.dirty_log import DirtyLog, RolledUp
    from uploader.dirty.dirty_marker import Dirty
    from uploader.fragments.fragment_cache import FragmentCache
    from uploader.integrity.findings import Finding, Severity
    from uploader.integrity.scrub_report import ScrubReport, ScrubTally
    from uploader.integrity.scrubber import Scrubber
    from uploader.integrity.verified import Verified
    from uploader.lifecycle.bootstrap import bootstrap
    from uploader.lifecycle.destroy import Destroyed, destroy
    from uploader.lifecycle.fork import Forked, fork
    from uploader.lifecycle.seal import seal
    from uploader.manifests.rollup import RollUpSettings
    from uploader.manifests.roots import Layout
    from uploader.rebuilding.plan import RebuildPlan
    from uploader.rebuilding.rebuilding import apply_rebuild, plan_rebuild
    from uploader.restoring.restore import Restored, RestoreProgress, restore
    from uploader.restoring.stored_copy import StoredCopy
    from uploader.stores import open_store
    from uploader.writing.uploader import UploadSettings
    from uploader.writing.writer_settings import WriterSettings, WriterStatistics

__all__ = [
    "ChainSettings",
    "CloudCursor",
    "CloudCursors",
    "CloudLog",
    "CloudTier",
    "CloudWriter",
    "Collected",
    "CollectorSettings",
    "Deleted",
    "Destroyed",
    "Dirty",
    "DirtyLog",
    "Finding",
    "Forked",
    "FragmentCache",
    "GarbageCollector",
    "Layout",
    "Plan",
    "Progress",
    "RebuildPlan",
    "Rebuilt",
    "RestoreProgress",
    "Restored",
    "RollUpSettings",
    "RolledUp",
    "ScrubReport",
    "ScrubTally",
    "Scrubber",
    "Severity",
    "StoredCopy",
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
