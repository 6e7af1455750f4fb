"""Versions of the merged area: immutable lists of batches that are contiguous in time. Pure.

A batch with ``rows`` updates belongs to layer ``ceil(log2(rows))``. The layers of a version that compaction
has left behind decrease from the oldest batch to the newest, so there are at most ``1 + log2(total rows)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from uploader.format.document import Fields, check_u64, read_document, serialise
from uploader.format.layout import MAX_U64
from uploader.versioned.names import parse_merged_key, parse_version_key
from walstore.errors import FormatVersionError

FORMAT: Final = 1
MOST_VERSION_BYTES: Final = 4 << 20
"""Longest document of a version: some ten thousand batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedBatch:
    """One batch of the merged area: the updates at times ``t`` with ``lower <= t < upper``.

    Times up to ``since`` were advanced to ``since``, so the batch cannot be read as of an earlier time.
    """

    lower: int
    upper: int
    since: int
    rows: int
    size_bytes: int
    """Length of all its objects."""
    digest: int
    """Sum of the digests of its objects; see ``updates.digest``."""
    schema_id: int
    """The newest schema of its inputs."""
    keys: tuple[str, ...]
    """Its objects; none if it has no updates."""

    def __post_init__(self) -> None:
        """Refuse what no batch can be; ValueError."""
        check_u64(
            lower=self.lower,
            since=self.since,
            rows=self.rows,
            size_bytes=self.size_bytes,
            digest=self.digest,
            schema_id=self.schema_id,
        )
        if not self.lower < self.upper <= MAX_U64:
            raise ValueError(f"the batch [{self.lower}, {self.upper}) is empty or too long")
        if (self.rows == 0) != (not self.keys):
            raise ValueError(f"a batch of {self.rows} rows has {len(self.keys)} objects")
        for key in self.keys:
            if parse_merged_key(key) is None:
                raise ValueError(f"{key[:80]!r} is not the key of a merged batch")

    @property
    def layer(self) -> int:
        """The layer, by the number of rows; 0 for one row or none."""
        return max(self.rows - 1, 0).bit_length()

    def to_json(self) -> dict[str, Any]:
        """Return the batch as a JSON object."""
        return {
            "lower": self.lower,
            "upper": self.upper,
            "since": self.since,
            "rows": self.rows,
            "bytes": self.size_bytes,
            "layer": self.layer,
            "digest": self.digest,
            "schema": self.schema_id,
            "keys": list(self.keys),
        }

    @classmethod
    def read(cls, fields: Fields) -> MergedBatch:
        """Read a batch from a document; CorruptionError or ValueError."""
        return cls(
            lower=fields.number("lower"),
            upper=fields.number("upper"),
            since=fields.number("since"),
            rows=fields.number("rows"),
            size_bytes=fields.number("bytes"),
            digest=fields.number("digest"),
            schema_id=fields.number("schema"),
            keys=tuple(fields.texts("keys")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of the merged area. It contains all updates before ``upper``."""

    n: int = 0
    parent: str | None = None
    """Key of the version before it; None if it has none, or one without batches."""
    created_us: int = 0
    """When it was made, in microseconds since 1970 by its controller's clock."""
    since: int = 0
    batches: tuple[MergedBatch, ...] = ()

    def __post_init__(self) -> None:
        """Refuse batches that are not contiguous, or compacted further than the version; ValueError."""
        check_u64(n=self.n, created_us=self.created_us, since=self.since)
        position = 0
        for batch in self.batches:
            if batch.lower != position:
                raise ValueError(
                    f"a batch begins at {batch.lower}, the one before ends at {position}"
                )
            if batch.since > self.since:
                raise ValueError(f"a batch has since {batch.since}, its version {self.since}")
            position = batch.upper
        if self.parent is not None and parse_version_key(self.parent) is None:
            raise ValueError(f"{self.parent[:80]!r} is not the key of a version")

    @property
    def upper(self) -> int:
        """The upper frontier: the merged area contains all updates before it."""
        return self.batches[-1].upper if self.batches else 0

    @property
    def rows(self) -> int:
        """Updates in all batches."""
        return sum(batch.rows for batch in self.batches)

    @property
    def size_bytes(self) -> int:
        """Length of the objects of all batches."""
        return sum(batch.size_bytes for batch in self.batches)

    def object_keys(self) -> Iterable[str]:
        """Yield the keys of all batches' objects."""
        return (key for batch in self.batches for key in batch.keys)

    def before(self, limit: int) -> Sequence[MergedBatch]:
        """Return the batches that contain times before ``limit``."""
        return [batch for batch in self.batches if batch.lower < limit]

    def position_of(self, run: Sequence[MergedBatch]) -> int | None:
        """Return the index of the first batch of ``run`` if exactly these follow each other, else None."""
        if not run:
            return len(self.batches)
        for index, batch in enumerate(self.batches):
            if batch == run[0]:
                return index if self.batches[index : index + len(run)] == tuple(run) else None
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the version as a JSON object."""
        return {
            "n": self.n,
            "parent": self.parent,
            "created_us": self.created_us,
            "since": self.since,
            "upper": self.upper,
            "batches": [batch.to_json() for batch in self.batches],
        }

    def serialise(self) -> bytes:
        """Return the document of the version."""
        return serialise({"format": FORMAT, **self.to_json()})

    @classmethod
    def read(cls, fields: Fields) -> Version:
        """Read a version from a document; CorruptionError or ValueError."""
        return cls(
            n=fields.number("n"),
            parent=fields.text("parent") if fields.has("parent") else None,
            created_us=fields.number("created_us"),
            since=fields.number("since"),
            batches=tuple(MergedBatch.read(item) for item in fields.objects("batches")),
        )

    @classmethod
    def parse(cls, data: bytes, *, path: str) -> Version:
        """Read the document of a version; CorruptionError, or FormatVersionError for a newer one."""

        def build(fields: Fields) -> Version:
            format_ = fields.number("format")
            if format_ > FORMAT:
                raise FormatVersionError(
                    "a version of the merged area in a newer format",
                    path=path,
                    found=format_,
                    supported=FORMAT,
                )
            found = cls.read(fields)
            if parse_version_key(path) != found.n:
                raise ValueError(f"it is the document of version {found.n}")
            return found

        return read_document(data, build, path=path, most_bytes=MOST_VERSION_BYTES)
