"""RemoteCopy: the copy of a log at another node, for its primary."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from walstore.cluster.replication.copy_list import CopyList
from walstore.cluster.replication.messages import NODE_VERBS
from walstore.cluster.replication.node import SERVICE
from walstore.cluster.replication.position import CopyEnd, Place, SegmentExtent
from walstore.core.ports import Buffer, Clock
from walstore.errors import StorageUnavailableError
from walstore.net.remote.client import Client
from walstore.net.wire.address import Address

_CHECK_SECONDS: Final = 600.0
"""A segment has up to 2 GiB."""
_RECONNECT_SECONDS: Final = 0.0
"""A lost connection fails what is under way at once; the user of the copy begins again."""


def client_of(address: Address, replication: CopyList, *, clock: Clock, make_tag: Any) -> Client:
    """Return a client of a node; connect it, and close it later."""
    return Client(
        [address],
        token=replication.token,
        tls=replication.tls,
        log=None,
        connect_seconds=replication.patience_seconds,
        reconnect_seconds=_RECONNECT_SECONDS,
        clock=clock,
        make_tag=make_tag,
        service=SERVICE,
    )


class RemoteCopy:
    """A copy at a node. Belongs to the event loop of its client."""

    def __init__(
        self,
        client: Client,
        name: str,
        epoch: int,
        primary: str,
        *,
        seconds: float,
        generation: int = 0,
        joined: int = 0,
    ) -> None:
        """Speak for the primary of an epoch; an answer may take so many seconds."""
        self.client = client
        """The connection."""
        self._name = name
        self._author = (epoch, primary)
        self._seconds = seconds
        self._list = (generation, joined)

    async def obey(self, *, is_elected: bool = False) -> tuple[CopyEnd, bool]:
        """Let the copy promise to obey this primary; return where it ends, and if it counts. FencedError."""
        return await self._obey(is_elected, *self._list)

    async def give_up_whole(self, *, is_elected: bool = False) -> None:
        """Let the copy not count any more, durably, as if it came into the list of copies only now."""
        generation, _ = self._list
        await self._obey(is_elected, generation, generation + 1)

    async def _obey(self, is_elected: bool, generation: int, joined: int) -> tuple[CopyEnd, bool]:  # noqa: FBT001
        match await self._call("obey", is_elected, generation, joined):
            case [packed, bool(is_whole)]:
                return CopyEnd.unpack(packed), is_whole
        raise StorageUnavailableError("a node answered with no promise")

    async def confirm(self) -> bool:
        """Return whether the copy counts; FencedError if it does not obey this primary any more."""
        return bool(await self._call("confirm"))

    async def make_whole(self) -> None:
        """Let what the copy says count from now on."""
        await self._call("make_whole")

    async def extents(self) -> Sequence[SegmentExtent]:
        """As of :class:`walstore.cluster.replication.copies.SourceCopy`."""
        return [SegmentExtent(*one) for one in _listed(await self._call("extents"))]

    async def frames(self, start: int, begin: int = 0) -> Sequence[Sequence[int]]:
        """As of :class:`walstore.cluster.replication.copies.SourceCopy`."""
        return _listed(await self._call("frames", start, begin))

    async def read(self, place: Place, size: int) -> bytes:
        """As of :class:`walstore.cluster.replication.copies.SourceCopy`."""
        found = await self._call("read", list(place), size)
        if not isinstance(found, bytes):
            raise StorageUnavailableError("a node answered with no bytes")
        return found

    async def write(self, place: Place, pieces: Sequence[Buffer], *, seals: bool) -> Place:
        """As of :class:`walstore.cluster.replication.copies.TargetCopy`."""
        views = [memoryview(piece) for piece in pieces]
        found = await self._call("write", list(place), seals, 0, 1, payload=views)
        return written_there(found)[0]

    def begin_write(
        self,
        place: Place,
        pieces: Sequence[Buffer],
        *,
        seals: bool,
        shown: int,
        checks: bool = False,
    ) -> asyncio.Future[Any]:
        """Send a write, and up to which offset readers of the copy may see; see :func:`written_there`.

        ``checks``: the pieces were read from a file.
        """
        extra = [1] if checks else []
        views = [memoryview(piece) for piece in pieces]
        return self._begin("write", list(place), seals, shown, *extra, payload=views)

    async def show(self, shown: int) -> bool:
        """Let readers of the copy see up to an offset; return whether there are some."""
        return bool(await self._call("show", shown))

    def begin_show(self, shown: int) -> asyncio.Future[Any]:
        """As :meth:`show`, without waiting."""
        return self._begin("show", shown)

    async def cut(
        self, start: int, position: int, *, agreed: tuple[int, int] | None = None, first: int = 0
    ) -> None:
        """As of :class:`walstore.cluster.replication.copies.TargetCopy`."""
        more = [list(agreed or (start, position)), first] if agreed or first else []
        await self._call("cut", start, position, *more)

    async def check(self, start: int, begin: int = 0, most_bytes: int | None = None) -> int:
        """As :meth:`Replica.check`."""
        asked = [begin, most_bytes] if begin or most_bytes is not None else []
        return int(await self._call("check", start, *asked, seconds=_CHECK_SECONDS) or 0)

    async def mend(self, place: Place, data: bytes) -> int:
        """As :meth:`Replica.mend`."""
        return int(await self._call("mend", list(place), payload=[memoryview(data)]))

    def begin_trim(self, head: int) -> asyncio.Future[Any]:
        """Let the copy remove the segments wholly below the head, without waiting."""
        return self._begin("trim", head)

    async def keep_hint(self, place: Place, data: bytes) -> None:
        """Let the copy keep a checkpoint of the primary."""
        await self._call("keep_hint", list(place), payload=[memoryview(data)])

    def _begin(
        self, verb: str, *arguments: object, payload: Sequence[memoryview] = ()
    ) -> asyncio.Future[Any]:
        asked = (self._name, *self._author, *arguments)
        return self.client.send(NODE_VERBS[verb], *asked, payload=payload).future

    async def _call(
        self,
        verb: str,
        *arguments: object,
        payload: Sequence[memoryview] = (),
        seconds: float | None = None,
    ) -> Any:
        seconds = seconds or self._seconds
        try:
            async with asyncio.timeout(seconds):
                return await self.client.call(
                    NODE_VERBS[verb], self._name, *self._author, *arguments, payload=payload
                )
        except TimeoutError as error:
            text = f"the node at {self.client.address} did not answer within {seconds:g} s"
            raise StorageUnavailableError(text, outcome="unknown") from error


def written_there(answer: Any) -> tuple[Place, bool]:
    """Return up to where a copy is durable, and whether it has readers; StorageUnavailableError."""
    match answer:
        case [int(start), int(created_us), int(position), bool(is_watched)]:
            return Place(start, created_us, position), is_watched
    raise StorageUnavailableError("a node answered with no place")


def _listed(found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise StorageUnavailableError("a node answered with no list")
    return found
