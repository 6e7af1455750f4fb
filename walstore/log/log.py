"""Log: a log that can be read and written, opened here or at a server."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Coroutine, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from walstore.core.faces.append_face import AppendFace
from walstore.core.faces.readable_log import ReadableLog, follow_or_warn
from walstore.core.format.ledger import StreamInfo
from walstore.core.read.read_source import ReadSource
from walstore.core.read.reader import Reader, ReadGuard
from walstore.core.runtime.ready_answer import ReadyAnswer
from walstore.core.runtime.statistics import GroupInfo, Statistics
from walstore.core.tier_port import LogExtents
from walstore.core.validation.arguments import as_count, as_int
from walstore.positions.cursors.cursor_mixin import CursorMixin
from walstore.positions.groups.group_mixin import GroupMixin
from walstore.positions.groups.group_settings import check_group_name
from walstore.positions.groups.redrive import Redriven, redrive
from walstore.records import Start


class StreamsOfLog(  # type: ignore[misc]  # a dict has no hash, and gather() needs one
    ReadyAnswer["StreamsOfLog"], dict[str, StreamInfo]
):
    """The streams of a log by name."""


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

    @abstractmethod
    def statistics(self) -> Coroutine[Any, Any, Statistics]:
        """Await a snapshot of the log's counters."""

    @abstractmethod
    def extents(self) -> Coroutine[Any, Any, LogExtents]:
        """Await which file or object holds which records, and what keeps the oldest from deletion."""

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
        follow: bool | None = None,
        visibility: Literal["durable", "accepted"] = "durable",
    ) -> Reader:
        """Return a reader of the durable records that are there; :meth:`follow` also waits for new ones.

        ``start`` is ``"earliest"``, ``"latest"`` (the next record to become durable), an offset, or an
        aware datetime: the first record at or after it. ``stop`` is an exclusive last offset. The iteration
        ends there, or at the durable limit seen when it is reached. ``stream`` delivers only the records
        of that stream; those of a served log are picked out at the client, so the others' travel, too.

        With ``visibility="accepted"`` records are delivered as soon as they are accepted, for the
        lowest latency: before their sync, so a crash may lose records that were read, and other records
        may get their offsets. The time of a record appended without one is then not final.

        ``follow=True`` makes it a reader as of :meth:`follow`, for programs that choose at run time. Say
        ``follow=False`` in this version: left out, it still means True, with a DeprecationWarning.
        """
        follows = follow_or_warn(follow=follow)
        return self._read(start, stop, stream, follow=follows, visibility=visibility)

    def follow(
        self,
        start: Start | str | int | datetime = Start.EARLIEST,
        *,
        stop: int | None = None,
        stream: str | None = None,
        visibility: Literal["durable", "accepted"] = "durable",
    ) -> Reader:
        """Return a reader that waits for new records at the end of the log.

        The arguments are those of :meth:`reader`. With ``stop`` it ends there, once there are records up to
        it. A ``start`` in the future waits for the first record of that time.
        """
        return self._read(start, stop, stream, follow=True, visibility=visibility)

    def _read(
        self,
        start: Start | str | int | datetime,
        stop: int | None,
        stream: str | None,
        *,
        follow: bool,
        visibility: Literal["durable", "accepted"] = "durable",
    ) -> Reader:
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

    async def redrive_group(
        self,
        name: str,
        *,
        offsets: Iterable[int] | None = None,
        limit: int | None = None,
        dead_letters: str | None = None,
    ) -> Redriven:
        """Make dead letters of a group jobs of it again, oldest first, with no deliveries; each letter once.

        All of them, or those at ``offsets``, which are the letters' own, at most ``limit`` in this call.
        ``dead_letters`` is the stream of the letters, by default the group's name and ``.dead``. A job is a
        new record in the stream of the former one, with its value, key and headers; other groups do not get
        it, readers and consumers do. Letters stay. The group need not be in use.

        If cancelled, or after OutcomeUnknownError or StorageUnavailableError, some letters may be jobs again:
        call again, which does the others. Raises as :meth:`transaction`; LimitExceededError if letters were
        picked with gaps between them for which the log has no room.
        """
        check_group_name(name)
        chosen = None if offsets is None else {as_int(offset, "an offset") for offset in offsets}
        most = None if limit is None else as_count(limit, "limit")
        return await redrive(self, name, dead_letters or f"{name}.dead", chosen, most)
