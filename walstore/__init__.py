"""walstore: a write-ahead log for asyncio programs."""

import logging

from walstore.batch import Batch
from walstore.errors import (
    ContentionError,
    CorruptionError,
    DiskFullError,
    ExpectationError,
    FencedError,
    FormatVersionError,
    InvalidSettingsError,
    LogNotFoundError,
    OffsetError,
    OffsetMismatchError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    OutcomeUnknownError,
    RecordTooLargeError,
    RegisterMismatchError,
    StorageUnavailableError,
    UnsupportedStoreError,
    WalClosedError,
    WalError,
    WalLockedError,
    WouldBlock,
)
from walstore.reader import Reader
from walstore.records import Durability, Record, Start
from walstore.settings import Settings
from walstore.statistics import Statistics
from walstore.wal import Wal

__version__ = "0.1.0"

__all__ = [
    # the log
    "Durability",
    "Reader",
    "Settings",
    "Start",
    "Statistics",
    "Wal",
    # values
    "Batch",
    "Record",
    # errors
    "ContentionError",
    "CorruptionError",
    "DiskFullError",
    "ExpectationError",
    "FencedError",
    "FormatVersionError",
    "InvalidSettingsError",
    "LogNotFoundError",
    "OffsetError",
    "OffsetMismatchError",
    "OffsetNotWrittenError",
    "OffsetTrimmedError",
    "OutcomeUnknownError",
    "RecordTooLargeError",
    "RegisterMismatchError",
    "StorageUnavailableError",
    "UnsupportedStoreError",
    "WalClosedError",
    "WalError",
    "WalLockedError",
    "WouldBlock",
]

logging.getLogger("walstore").addHandler(logging.NullHandler())
