"""A published batch of the pending area, and the part of it that a reader needs. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from uploader.versioned.batch_file import BatchFooter
from uploader.versioned.names import pending_key
from uploader.versioned.schema import CollectionSchema
from walstore.errors import WalError


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBatch:
    """One published batch: what its footer says."""

    writer: str
    position: int
    """Where the batch before it in the shard ends."""
    footer: BatchFooter
    size_bytes: int

    @property
    def lower(self) -> int:
        """The first time that it covers."""
        return self.footer.lower

    @property
    def upper(self) -> int:
        """Its upper frontier."""
        return self.footer.upper

    @property
    def key(self) -> str:
        """Its object."""
        return pending_key(self.writer, self.position)


@dataclass(frozen=True, slots=True)
class PendingPart:
    """A pending batch as far as a reader needs it: times ``t`` with ``start <= t < limit``."""

    batch: PendingBatch
    start: int
    limit: int


class StaleSchemaError(WalError):
    """A batch was written in a newer schema than that of the head at hand: read the head again."""

    retriable = True


def check_schema(footer: BatchFooter, schema: CollectionSchema, key: str) -> None:
    """Raise StaleSchemaError if a batch is newer than ``schema``."""
    if footer.schema_id > schema.id:
        raise StaleSchemaError(f"{key} was written in a newer schema; read the head again")
