"""StreamTable: the streams of a log in object storage, as a value; and which closings a manifest knows. Pure.

Owns the JSON of ``streams/TABLE``, what opening and closing do to it, and which fragments may still be named
by a manifest. Never does I/O: ``stream_file.py`` swaps it, ``stream_guard.py`` says when.

Closings are counted, from 1. A stream remembers the number of its last closing, and a fragment says in its
footer how many its writer knew when it was made. A fragment that was made before the last closing of one of
its streams can never be named any more, whether the stream is open again or not: so every program that finds
it comes to the same answer, at any time.

A manifest says how many closings its last writer knew: the number follows the writer's name. Only a writer
that has seen all closings up to the number in the manifest it replaces names a fragment with records of
streams. So once a number is in the manifest, every writer knows the closings up to it before it appends to
a stream. Every writer of ours carries the number on, and seals and collections keep it. A program of wal3
writes another name when it appends, and the number is lost; writers therefore read the table again when they
find another program's manifest.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from uploader.format import layout
from uploader.format.document import Fields, join_list, position, read_document, serialise
from uploader.format.manifest import Manifest
from walstore.core.batches.conditions import MAX_LEDGER_BYTES, check_stream_count
from walstore.core.format.ledger import StreamInfo
from walstore.errors import ContentionError, CorruptionError, LimitExceededError, StreamClosedError

_VERSION: Final = 1
_MOST_CHANGES: Final = 10**18
"""A table of more changes, or closings, was forged."""


@dataclass(frozen=True, slots=True)
class StoredStream:
    """What the table says of one stream."""

    is_open: bool
    metadata: Mapping[str, str]
    opened_at: int
    """No record of the stream is below."""
    closing: int = 0
    """Number of its last closing; 0 if it never was closed."""

    def info(self, closings: int | None = None) -> StreamInfo:
        """Return it as :meth:`walstore.Wal.streams` does.

        With ``closings``, one whose last closing is a later one counts as open: that is not finished.
        """
        is_open = self.is_open or (closings is not None and self.closing > closings)
        return StreamInfo(is_open=is_open, metadata=self.metadata, opened_at=self.opened_at)


@dataclass(frozen=True, slots=True)
class StreamTable:
    """All streams of one log."""

    streams: Mapping[str, StoredStream] = field(default_factory=dict)
    """By name, in the order of their opening."""
    closings: int = 0
    """How many closings there were."""
    revision: int = 0
    """Counts the changes, so that no two tables of a log have the same bytes; 0 if nothing is stored."""
    since: int = layout.FIRST_OFFSET
    """Records below were appended before there was a table; their streams may be missing from it."""

    @classmethod
    def parse(cls, data: bytes) -> StreamTable:
        """Read :meth:`serialise`; CorruptionError, FormatVersionError for a newer version's."""
        return read_document(data, _table, path=layout.STREAMS, most_bytes=MAX_LEDGER_BYTES)

    def serialise(self) -> bytes:
        """Return the table's bytes; LimitExceededError if there are too many."""
        data = b'{"version":%d,"revision":%d,"closings":%d,"since":%s,"streams":%s}' % (
            _VERSION,
            self.revision,
            self.closings,
            serialise(position(self.since)),
            join_list(_entry(name, stream) for name, stream in self.streams.items()),
        )
        if len(data) > MAX_LEDGER_BYTES:
            raise LimitExceededError(
                f"the streams of this log would have {len(data)} bytes, and {MAX_LEDGER_BYTES} are the most; "
                "put what is unbounded into the key; nothing was written",
                limit=MAX_LEDGER_BYTES,
            )
        return data

    # -- asking ------------------------------------------------------------------------------

    def is_open(self, names: Iterable[str]) -> bool:
        """Return whether appends to all these streams are accepted, and none has to be opened first."""
        return all(name in self.streams and self.streams[name].is_open for name in names)

    def check(self, name: str | None) -> None:
        """Raise StreamClosedError if a stream is closed."""
        found = None if name is None else self.streams.get(name)
        if found is not None and not found.is_open:
            assert name is not None
            raise StreamClosedError(
                f"stream {name!r} is closed; open it again with open_stream()", stream=name
            )

    def checked(self, closings: int | None) -> StreamTable:
        """Return the table if it is not older than what a manifest said that was read before it.

        ``closings`` are those that this manifest records. CorruptionError: the table was deleted, or
        replaced by an older one, and it is unknown what is closed.
        """
        if self.closings < (closings or 0):
            raise CorruptionError(
                "the table of streams lacks closings that the manifest names; put its newest version back",
                path=layout.STREAMS,
                expected=closings,
                found=self.closings,
            )
        return self

    def admits(self, names: Iterable[str], closings: int) -> bool:
        """Return whether a fragment with records of these streams may be named by a manifest.

        ``closings`` is what its writer knew when it was made. False is for good.
        """
        found = (self.streams.get(name) for name in names)
        return all(stream is None or stream.closing <= closings for stream in found)

    def infos(self, closings: int | None = None) -> dict[str, StreamInfo]:
        """Return all streams by name; see :meth:`StoredStream.info`."""
        return {name: stream.info(closings) for name, stream in self.streams.items()}

    # -- changing ----------------------------------------------------------------------------

    def begun(self, tail: int) -> StreamTable:
        """Return the table, to be changed; if nothing is stored yet, as that of a log that ends at
        ``tail``."""
        return self if self.revision else dataclasses.replace(self, since=tail)

    def open(self, name: str, metadata: Mapping[str, str], *, opened_at: int) -> StreamTable | None:
        """Return the table with a stream open, with ``metadata``; None if it is that already.

        ``opened_at`` counts if it is new. LimitExceededError if there are too many.
        """
        found = self.streams.get(name)
        if found is not None and found.is_open and found.metadata == metadata:
            return None
        if found is None:
            check_stream_count(len(self.streams) + 1)
            found = StoredStream(is_open=True, metadata=metadata, opened_at=opened_at)
        return self._with({name: dataclasses.replace(found, is_open=True, metadata=dict(metadata))})

    def add(self, names: Iterable[str], *, opened_at: int) -> StreamTable | None:
        """Return the table with streams that their first record opens; None if all are there already.

        StreamClosedError if one is closed, LimitExceededError if there are too many.
        """
        added: dict[str, StoredStream] = {}
        for name in names:
            self.check(name)
            if name not in self.streams:
                added[name] = StoredStream(is_open=True, metadata={}, opened_at=opened_at)
        if not added:
            return None
        check_stream_count(len(self.streams) + len(added))
        return self._with(added)

    def close(self, name: str) -> StreamTable | None:
        """Return the table with a stream closed; None if it is. StreamClosedError if there is none."""
        found = self.streams.get(name)
        if found is None:
            raise StreamClosedError(f"there is no stream {name!r} to close", stream=name)
        if not found.is_open:
            return None
        number = self.closings + 1
        closed = dataclasses.replace(found, is_open=False, closing=number)
        return dataclasses.replace(self._with({name: closed}), closings=number)

    def forked(self, closings: int | None, *, stop: int) -> StreamTable:
        """Return the table of a log that begins as a copy of this one's up to ``stop``.

        It counts its own closings. Closings that are not finished, by the manifest's ``closings``, did not
        happen there.
        """
        streams = {
            name: dataclasses.replace(stream, is_open=stream.info(closings).is_open, closing=0)
            for name, stream in self.streams.items()
            if stream.opened_at <= stop
        }
        return StreamTable(streams=streams, revision=1, since=self.since)

    def _with(self, changed: Mapping[str, StoredStream]) -> StreamTable:
        if self.revision >= _MOST_CHANGES:
            raise LimitExceededError(
                f"the table of streams was changed {self.revision} times; nothing was written",
                limit=_MOST_CHANGES,
            )
        streams = {**self.streams, **changed}
        return dataclasses.replace(self, streams=streams, revision=self.revision + 1)


def _entry(name: str, stream: StoredStream) -> bytes:
    return serialise(
        {
            "name": name,
            "is_open": stream.is_open,
            "opened_at": position(stream.opened_at),
            "closing": stream.closing,
            "metadata": dict(stream.metadata),
        }
    )


def _table(fields: Fields) -> StreamTable:
    fields.check_version(_VERSION, "a newer version of this program wrote the table of streams")
    streams: dict[str, StoredStream] = {}
    revision = fields.number("revision", maximum=_MOST_CHANGES)
    closings = fields.number("closings", maximum=revision)
    for item in fields.objects("streams"):
        name = item.text("name")
        if name in streams:
            raise ValueError(f"stream {name!r} occurs twice")
        streams[name] = StoredStream(
            is_open=item.flag("is_open"),
            metadata=item.text_map("metadata"),
            opened_at=item.position("opened_at"),
            closing=item.number("closing", maximum=closings),
        )
    return StreamTable(
        streams=streams,
        closings=closings,
        revision=revision,
        since=fields.position("since"),
    )


_BEHIND: Final = " streams "
_NUMBER: Final = re.compile(r"(.*) streams ([0-9]{1,19})", re.DOTALL)
_OURS: Final = "walstore"


def with_closings(writer: str, closings: int) -> str:
    """Return a writer's name with the number of closings it knows, in place of any that is there."""
    return f"{without_closings(writer)}{_BEHIND}{closings}"


def without_closings(writer: str) -> str:
    """Return a writer's name alone."""
    found = _NUMBER.fullmatch(writer)
    return writer if found is None else found[1]


def closings_in(writer: str) -> int | None:
    """Return the number in a writer's name; None if there is none."""
    found = _NUMBER.fullmatch(writer)
    return None if found is None else int(found[2])


def is_telling(writer: str) -> bool:
    """Return whether a manifest with that writer says all that was closed: one without a number, nothing.

    Not one that a program of wal3 has written.
    """
    return writer.startswith(_OURS) or closings_in(writer) is not None


def finished_closings(manifest: Manifest) -> int | None:
    """Return up to which number closings have taken effect, by a manifest; None: all that the table names."""
    if manifest.is_sealed or not is_telling(manifest.writer):
        return None
    return closings_in(manifest.writer) or 0


def check_closings(found: str, writer: str, *, url: str) -> None:
    """Raise ContentionError if ``writer`` lacks closings that the manifest of writer ``found`` records.

    A name without a number is that of a writer that appends to no stream.
    """
    known, closed = closings_in(writer), closings_in(found)
    if known is not None and closed is not None and closed > known:
        raise ContentionError(f"a stream of {url} was closed meanwhile; look again", retriable=True)


def carry_closings(found: str, writer: str) -> str:
    """Return what the next manifest says of its writer, with the larger of both numbers."""
    closings = max(closings_in(found) or 0, closings_in(writer) or 0)
    name = without_closings(writer)
    return with_closings(name, closings) if closings else name


def raise_closings(manifest: Manifest, closings: int) -> Manifest | None:
    """Return the manifest with at least this number; None if it has that already.

    None for a sealed log, too: it takes no appends.
    """
    if manifest.is_sealed or (closings_in(manifest.writer) or 0) >= closings:
        return None
    return dataclasses.replace(manifest, writer=with_closings(manifest.writer, closings))
