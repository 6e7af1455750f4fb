"""walstore: a write-ahead log for asyncio programs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from walstore.core.batches.batch import Batch
from walstore.core.batches.conditions import NoneOf, OneOf
from walstore.core.faces.fence import Fence
from walstore.core.faces.producer import Producer
from walstore.core.faces.readable_log import ReadableLog
from walstore.core.faces.transaction import Transaction
from walstore.core.format.ledger import StreamInfo
from walstore.core.read.reader import Reader
from walstore.core.runtime.extras import MissingExtraError
from walstore.core.runtime.statistics import (
    CopyScrub,
    CopyStatistics,
    GroupInfo,
    GroupStatistics,
    ScrubRound,
    Statistics,
)
from walstore.core.settings import Settings
from walstore.errors import (
    AccessDeniedError,
    CollectionNotFoundError,
    CollectionRefusedError,
    ContentionError,
    CorruptionError,
    CursorMovedError,
    DiskFullError,
    ExpectationError,
    FencedError,
    FormatVersionError,
    IndefiniteError,
    InvalidSettingsError,
    LeaseExpiredError,
    LimitExceededError,
    LogNotFoundError,
    LogSealedError,
    LogSuspendedError,
    OffsetError,
    OffsetMismatchError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    OutcomeUnknownError,
    RecordTooLargeError,
    RegisterMismatchError,
    SequenceMismatchError,
    SinceViolationError,
    StorageUnavailableError,
    StreamClosedError,
    UnsupportedStoreError,
    UpperMismatchError,
    WalClosedError,
    WalError,
    WalLockedError,
    WouldBlock,
    WrongLoopError,
)
from walstore.location import open  # noqa: A004 - as in gzip
from walstore.log.log import Log
from walstore.log.readonly import ReadonlyWal
from walstore.log.wal import Wal
from walstore.net.remote.remote_readonly_wal import RemoteReadonlyWal, connect_readonly
from walstore.net.remote.remote_wal import RemoteWal, connect
from walstore.net.remote.served_logs import ServedLog, list_logs
from walstore.positions.cursor import Cursor
from walstore.positions.cursor_state import CursorInfo
from walstore.positions.cursors.consumer import Consumer
from walstore.positions.groups.delay import delayed
from walstore.positions.groups.group import Group, Job
from walstore.positions.groups.redrive import Redriven
from walstore.records import Durability, Record, Start
from walstore.store.store_settings import StoreSettings
from walstore.store.wal_store import StoreStatistics, WalStore

if TYPE_CHECKING:
    from walstore.cluster.replication.replication import Replication

__version__ = "0.1.0"

__all__ = [
    # the log
    "Consumer",
    "CopyScrub",
    "CopyStatistics",
    "Cursor",
    "CursorInfo",
    "Durability",
    "Fence",
    "Group",
    "GroupInfo",
    "GroupStatistics",
    "Job",
    "Log",
    "NoneOf",
    "OneOf",
    "Producer",
    "ReadableLog",
    "Reader",
    "ReadonlyWal",
    "Redriven",
    "RemoteReadonlyWal",
    "RemoteWal",
    "Replication",
    "ScrubRound",
    "ServedLog",
    "Settings",
    "Start",
    "Statistics",
    "StoreSettings",
    "StoreStatistics",
    "StreamInfo",
    "Transaction",
    "Wal",
    "WalStore",
    "connect",
    "connect_readonly",
    "delayed",
    "list_logs",
    "open",
    # values
    "Batch",
    "Record",
    # errors
    "AccessDeniedError",
    "CollectionRefusedError",
    "ContentionError",
    "CorruptionError",
    "CursorMovedError",
    "DiskFullError",
    "ExpectationError",
    "FencedError",
    "FormatVersionError",
    "InvalidSettingsError",
    "LimitExceededError",
    "LogNotFoundError",
    "LogSealedError",
    "LogSuspendedError",
    "MissingExtraError",
    "OffsetError",
    "OffsetMismatchError",
    "OffsetNotWrittenError",
    "OffsetTrimmedError",
    "OutcomeUnknownError",
    "RecordTooLargeError",
    "RegisterMismatchError",
    "SequenceMismatchError",
    "StorageUnavailableError",
    "StreamClosedError",
    "CollectionNotFoundError",
    "IndefiniteError",
    "LeaseExpiredError",
    "SinceViolationError",
    "UpperMismatchError",
    "UnsupportedStoreError",
    "WalClosedError",
    "WalError",
    "WalLockedError",
    "WouldBlock",
    "WrongLoopError",
]


def __getattr__(name: str) -> Any:
    """Return Replication, with all that replicates: programs without copies need none of it."""
    if name != "Replication":
        raise AttributeError(f"module 'walstore' has no attribute {name!r}")
    from walstore.cluster.replication.replication import Replication

    globals()[name] = Replication
    return Replication


logging.getLogger("walstore").addHandler(logging.NullHandler())
