"""Log: a log that can be read and written, opened here or at a server."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from walstore.cursors.cursor_mixin import CursorMixin
from walstore.faces.append_face import AppendFace
from walstore.faces.readable_log import ReadableLog
from walstore.groups.group_mixin import GroupMixin
from walstore.read.reader import Reader, ReadGuard, ReadSource
from walstore.records import Start
from walstore.runtime.statistics import GroupInfo


class Log(ReadableLog, AppendFace, CursorMixin, GroupMixin):
    """A log that is read and written: what :meth:`walstore.Wal.open` and :func:`walstore.connect` give."""

    _read_bytes: int
    """How much a reader reads at once."""
    _guard: ReadGuard

    @property
    @abstractmethod
    def tail(self) -> int:
        """Next offset to be assigned."""

    @property
    @abstractmethod
    def durable_limit(self) -> int:
        """Every offset below it is on disk."""

    @property
    @abstractmethod
    def registers(self) -> Mapping[str, str]:
        """The log's registers."""

    def reader(
        self,
        start: Start | str | int | datetime = Start.EARLIEST,
        *,
        stop: int | None = None,
        stream: str | None = None,
        follow: bool = True,
        visibility: Literal["durable", "accepted"] = "durable",
    ) -> Reader:
        """Return a reader of durable records.

        ``start`` is ``"earliest"``, ``"latest"`` (the next record to become durable), an offset, or an
        aware datetime: the first record at or after it, waiting for it if that time has not come. ``stop``
        is an exclusive last offset. ``follow`` waits for new records at the end; without it the
        iteration ends at the durable limit seen when it is reached. ``stream`` delivers only the records
        of that stream; those of a served log are picked out at the client, so the others' travel, too.

        With ``visibility="accepted"`` records are delivered as soon as they are accepted, for the
        lowest latency: before their sync, so a crash may lose records that were read, and other records
        may get their offsets. The time of a record appended without one is then not final.
        """
        if visibility not in ("durable", "accepted"):
            raise ValueError(f"visibility must be 'durable' or 'accepted', not {visibility!r}")
        reader = Reader(
            self._source_of(visibility),
            start=start,
            stop=stop,
            stream=stream,
            follow=follow,
            read_bytes=self._read_bytes,
            guard=self._guard,
        )
        if follow and stop is None:
            self._note_follower(reader)
        return reader

    @abstractmethod
    def _source_of(self, visibility: Literal["durable", "accepted"]) -> ReadSource:
        """Return what a reader reads from."""

    def _note_follower(self, reader: Reader) -> None:
        """Count a reader that follows the log."""

    @abstractmethod
    async def groups(self) -> list[GroupInfo]:
        """Return all groups."""

    @abstractmethod
    async def delete_group(self, name: str) -> bool:
        """Remove a group; return whether there was one."""
