"""Head: the one object of a collection that changes. Every change replaces it by compare-and-swap. Pure.

The head contains what must be decided in one place: the newest version of the merged area, the readers and
what each holds, the epoch of the controller, and from where on pending batches count. The rules of its
changes are in ``transitions.py``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final

from uploader.format.document import Fields, check_u64, read_document, serialise
from uploader.format.layout import MAX_U64
from uploader.versioned.names import HEAD, check_name, parse_version_key
from uploader.versioned.schema import CollectionSchema
from uploader.versioned.version import Version
from walstore.errors import FormatVersionError

FORMAT: Final = 1
MOST_HEAD_BYTES: Final = 1 << 20
MOST_INLINE_BYTES: Final = 32 << 10
"""A version whose document is longer is read from its own object; the head stays short."""
MOST_COMMITS: Final = 64
"""So many changes are remembered by their ids. A program whose swap was not answered learns from them whether
it happened, unless more changes were made since."""
MOST_CONSUMED: Final = 64
"""So many pending batches are remembered after they were merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderHold:
    """What one registered reader holds back."""

    handle: str
    """Random id of the handle that owns the registration; a newer handle of the same name replaces it."""
    frontier: int
    """The reader may read as of this time and later: no update is advanced beyond it."""
    version: int | None
    """Objects of this and later versions are kept for it. None for a critical reader, which holds none."""
    expires_us: int | None
    """When the lease ends, in microseconds since 1970. None for a critical reader, whose hold never ends."""
    token: str = ""
    """Of a critical reader: what its owner stored last."""

    def __post_init__(self) -> None:
        """Refuse numbers that no head can keep; ValueError."""
        check_u64(
            frontier=self.frontier, version=self.version or 0, expires_us=self.expires_us or 0
        )

    def to_json(self) -> dict[str, Any]:
        """Return the hold as a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def read(cls, fields: Fields) -> ReaderHold:
        """Read a hold from a document; CorruptionError or ValueError."""
        return cls(
            handle=fields.text("handle"),
            frontier=fields.number("frontier"),
            version=fields.number("version") if fields.has("version") else None,
            expires_us=fields.number("expires_us") if fields.has("expires_us") else None,
            token=fields.text("token"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """A pending batch that was merged: evidence for a writer whose put was not answered."""

    writer: str
    lower: int
    upper: int
    digest: int

    def to_json(self) -> list[Any]:
        """Return it as a JSON list."""
        return [self.writer, self.lower, self.upper, self.digest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The content of a collection's head."""

    collection: str
    """Random id of the collection; each batch repeats it."""
    schema: CollectionSchema
    """The newest schema."""
    serial: int = 0
    """Counts the changes."""
    commits: tuple[str, ...] = ()
    """Ids of the last changes, the newest last."""
    epoch: int = 0
    """Counts the controllers; only the newest may commit."""
    holder: str | None = None
    """Name of the controller of this epoch; None if it has ended."""
    holder_expires_us: int = 0
    """Until when another controller waits, unless it is told to take over."""
    since: int = 0
    """No update is distinguished from others up to here; never regresses."""
    gc_floor: int = 0
    """Objects of versions before this one may be gone."""
    purged: int = 0
    """Pending batches that begin before this time may be gone, and count for nothing."""
    purging: int = 0
    """A controller that looks for garbage may raise ``purged`` up to here. Whoever relies on a batch in
    between sets this to 0 first, which stops the controller: it may not have seen the batch."""
    version: Version = dataclasses.field(default_factory=Version)
    """The newest version."""
    version_key: str | None = None
    """Key of its document; None for version 0."""
    readers: dict[str, ReaderHold] = dataclasses.field(default_factory=dict)
    consumed: tuple[Consumed, ...] = ()
    is_deleted: bool = False
    """Whether the collection was deleted; final."""

    def __post_init__(self) -> None:
        """Refuse numbers that no head can keep; ValueError."""
        check_u64(
            serial=self.serial,
            epoch=self.epoch,
            holder_expires_us=self.holder_expires_us,
            since=self.since,
            gc_floor=self.gc_floor,
            purged=self.purged,
            purging=self.purging,
        )

    @property
    def lacks_version(self) -> bool:
        """Whether the document does not repeat the newest version: it is only in that one's own object."""
        return (
            self.version_key is not None and parse_version_key(self.version_key) != self.version.n
        )

    @property
    def upper(self) -> int:
        """The upper frontier of the merged area."""
        return self.version.upper

    @property
    def oldest_held_version(self) -> int:
        """The oldest version that a reader holds, else the newest."""
        held = [hold.version for hold in self.readers.values() if hold.version is not None]
        return min(held, default=self.version.n)

    def serialise(self) -> bytes:
        """Return the document. A long version is left out: it has an object of its own."""
        version = self.version.to_json()
        is_inline = self.version_key is None or len(serialise(version)) <= MOST_INLINE_BYTES
        return serialise(
            {
                "format": FORMAT,
                "collection": self.collection,
                "serial": self.serial,
                "commits": list(self.commits),
                "epoch": self.epoch,
                "holder": self.holder,
                "holder_expires_us": self.holder_expires_us,
                "since": self.since,
                "gc_floor": self.gc_floor,
                "purged": self.purged,
                "purging": self.purging,
                "version_key": self.version_key,
                "version": version if is_inline else None,
                "schema": self.schema.serialise(),
                "readers": {name: hold.to_json() for name, hold in sorted(self.readers.items())},
                "consumed": [item.to_json() for item in self.consumed],
                "deleted": self.is_deleted,
            }
        )


def parse_head(data: bytes) -> Head:
    """Read a head's document; CorruptionError for any other shape, FormatVersionError for a newer format."""

    def build(fields: Fields) -> Head:
        found = fields.number("format")
        if found > FORMAT:
            raise FormatVersionError(
                "the collection was written by a newer version",
                path=HEAD,
                found=found,
                supported=FORMAT,
            )
        key = fields.text("version_key") if fields.has("version_key") else None
        if key is not None and parse_version_key(key) is None:
            raise ValueError("version_key is not the key of a version")
        is_inline = fields.has("version")
        head = Head(
            collection=fields.text("collection"),
            schema=CollectionSchema.read(fields.object("schema")),
            serial=fields.number("serial"),
            commits=tuple(fields.texts("commits")),
            epoch=fields.number("epoch"),
            holder=fields.text("holder") if fields.has("holder") else None,
            holder_expires_us=fields.number("holder_expires_us"),
            since=fields.number("since"),
            gc_floor=fields.number("gc_floor"),
            purged=fields.number("purged"),
            purging=fields.number("purging") if fields.has("purging") else 0,
            version=Version.read(fields.object("version")) if is_inline else Version(),
            version_key=key,
            readers=_readers(fields.object("readers")),
            consumed=tuple(_consumed(fields.raw("consumed"))),
            is_deleted=fields.flag("deleted"),
        )
        if is_inline and key is not None and parse_version_key(key) != head.version.n:
            raise ValueError("version_key belongs to another version")
        if key is None and (not is_inline or head.version.n or head.version.batches):
            raise ValueError("the newest version has no key")
        return head

    return read_document(data, build, path=HEAD, most_bytes=MOST_HEAD_BYTES)


def _readers(fields: Fields) -> dict[str, ReaderHold]:
    return {
        check_name(name, "the name of a reader"): ReaderHold.read(fields.object(name))
        for name in fields.names()
    }


def _consumed(rows: Any) -> list[Consumed]:
    found = []
    for row in rows if isinstance(rows, list) else [None]:
        match row:
            case [str(writer), lower, upper, digest] if _are_u64(lower, upper, digest):
                name = check_name(writer, "the writer of a consumed batch")
                found.append(Consumed(writer=name, lower=lower, upper=upper, digest=digest))
            case _:
                raise ValueError("an entry of consumed is not [writer, lower, upper, digest]")
    return found


def _are_u64(*values: Any) -> bool:
    # bool is an int to Python, but true is no number to JSON.
    return all(type(value) is int and 0 <= value <= MAX_U64 for value in values)
