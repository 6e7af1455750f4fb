"""uploader: the cloud tier of walstore, in wal3's formats."""

from uploader.cloud_log import CloudLog, Verified
from uploader.cloud_tier import CloudTier
from uploader.stores import open_store
from uploader.uploader import UploadSettings

__all__ = ["CloudLog", "CloudTier", "UploadSettings", "Verified", "open_store"]
