"""GroupDocument: what the members of a group share through a store, as a value. Pure.

One JSON object, which every change replaces. It names the records that were handed out and are not settled;
records below ``position`` that it does not name are settled::

    {
        "version": 1,
        "made": "4f0c…",
        "tag": "91ab…-7",
        "position": {"offset": 120},
        "stream": null,
        "is_ordered": false,
        "tags": ["91ab…-7"],
        "jobs": [[118, 1, 1, 30000, 0, 0]],
    }

Each row of ``jobs`` has an offset, the deliveries so far, whether it is leased, for how many milliseconds
that or the wait for the next delivery lasts, 1 + the CRC-32C of the key in a group ordered by key (else 0),
and the index of its tag. There are no moments of leases in it, since clocks of machines differ: the time runs
from when a process first sees a row with its tag. A job that was never delivered waits for the moment that
its record says: there the milliseconds count from 1970 UTC. A removed group is
``{"version":1,"made":…,"tag":…,"removed":true}``; its object stays, as those of cursors do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from uploader.format import layout
from uploader.format.document import Fields, position, read_document, serialise

MOST_GROUP_BYTES: Final = 4 << 20
"""Longest document of a group that is read; one of 20 000 jobs has a quarter of that."""
_VERSION: Final = 1
_WIDTH: Final = 6


class JobRow(NamedTuple):
    """A record that was handed out, or waits for one of its key, and is not settled."""

    deliveries: int
    """How often it was delivered."""
    is_leased: bool
    """Whether a member has it."""
    wait_ms: int
    """How long the lease, or the wait for the next delivery, lasts; if it :attr:`is_delayed`, until when."""
    tag: str
    """The change that made the row. No two changes have the same, so it also names the lease."""
    key: int
    """Of a group ordered by key: 1 + CRC-32C of the key; 0 without a key."""

    @property
    def is_delayed(self) -> bool:
        """Whether it waits for its first delivery: ``wait_ms`` is that moment, since 1970 UTC."""
        return not self.deliveries and not self.is_leased and self.wait_ms > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDocument:
    """A group after one change."""

    made: str
    """Names this group among all that ever had its name; letters and digits."""
    tag: str
    """Names this change: two programs never put the same bytes."""
    position: int = layout.FIRST_OFFSET
    """Offset of the next record that the group has not looked at."""
    stream: str | None = None
    """The stream whose records are jobs; None for all."""
    is_ordered: bool = False
    """Whether jobs of one key are delivered one after the other."""
    is_removed: bool = False
    """Whether it only marks a removed group."""
    rows: Mapping[int, JobRow] = field(default_factory=dict)
    """What is not settled, by offset, in order."""

    @property
    def floor(self) -> int:
        """Everything below it is settled."""
        return next(iter(self.rows), self.position)

    @classmethod
    def parse(cls, data: bytes, *, name: str) -> GroupDocument:
        """Read the object of group ``name``; CorruptionError for a bad shape, FormatVersionError for a newer
        one."""
        path = layout.group_path(name)
        return read_document(data, _from_fields, path=path, most_bytes=MOST_GROUP_BYTES)

    def serialise(self) -> bytes:
        """Return its object."""
        document: dict[str, Any] = {"version": _VERSION, "made": self.made, "tag": self.tag}
        if self.is_removed:
            return serialise({**document, "removed": True})
        tags: dict[str, int] = {}
        jobs = [
            [
                offset,
                row.deliveries,
                int(row.is_leased),
                row.wait_ms,
                row.key,
                tags.setdefault(row.tag, len(tags)),
            ]
            for offset, row in self.rows.items()
        ]
        return serialise(
            {
                **document,
                "position": position(self.position),
                "stream": self.stream,
                "is_ordered": self.is_ordered,
                "tags": list(tags),
                "jobs": jobs,
            }
        )


def _from_fields(fields: Fields) -> GroupDocument:
    fields.check_version(_VERSION, "the group is newer")
    made, tag = fields.text("made"), fields.text("tag")
    if not made.isalnum() or not made.isascii():
        raise ValueError(f"made is of letters and digits, not {made[:80]!r}")
    if fields.has("removed"):
        return GroupDocument(made=made, tag=tag, is_removed=True)
    tags, rows, before = fields.texts("tags"), dict[int, JobRow](), 0
    end = fields.position("position")
    for offset, deliveries, leased, wait_ms, key, index in fields.rows("jobs", _WIDTH):
        if not before < offset < end:
            raise ValueError(f"job {offset} is behind {before} and before {end}")
        if leased > 1 or index >= len(tags):
            raise ValueError(f"job {offset} has no state or no tag")
        rows[offset] = JobRow(deliveries, bool(leased), wait_ms, tags[index], key)
        before = offset
    return GroupDocument(
        made=made,
        tag=tag,
        position=end,
        stream=fields.text("stream") if fields.has("stream") else None,
        is_ordered=fields.flag("is_ordered"),
        rows=rows,
    )
