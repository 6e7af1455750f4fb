"""Reading: the answers to READ requests, each of what there is room for, or of one record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple

from walstore.core.read.reader import Reader
from walstore.net.wire.message import PackedAnswer, ProtocolViolationError
from walstore.net.wire.records import pack_batch
from walstore.serve.answer import PreparedAnswer
from walstore.serve.fetching import Fetching
from walstore.serve.services import Service

_MOST_WAIT_SECONDS: Final = 60.0
_WHOLE_BYTES: Final = 8 << 20
"""A batch of up to so much is not cut, unless there is only room for less."""


class _Wanted(NamedTuple):
    """What a READ asks for. It is all that is kept of one that waits: there may be thousands."""

    position: int
    stop: int | None
    most_bytes: int
    wait_seconds: float
    shown: str


def begin_read(
    fetching: Fetching, service: Service, head: Any, most_bytes: int
) -> Callable[[], Awaitable[PackedAnswer | PreparedAnswer]]:
    """Return what answers a READ with records from a position: what there is, or comes within the time.

    A group that has more than about ``most_bytes`` is sent in parts: all of it is safe before anybody reads a
    record of it. ProtocolViolationError or ValueError for a head that asks for nothing of the kind.
    """
    match head:
        case [
            int(position),
            int() | None as stop,
            int(wanted_bytes),
            int() | float() as wait,
            str(shown),
        ]:
            pass
        case _:
            raise ProtocolViolationError(
                "a read that is none: its head is position, stop or nil, bytes, seconds and visibility"
            )
    if shown not in {"durable", "accepted"}:
        raise ValueError(f"visibility must be 'durable' or 'accepted', not {shown!r}")
    most_bytes = max(1, min(wanted_bytes, most_bytes))
    seconds = max(0.0, min(float(wait), _MOST_WAIT_SECONDS))
    return partial(_read, fetching, service, _Wanted(position, stop, most_bytes, seconds, shown))


async def _read(
    fetching: Fetching, service: Service, wanted: _Wanted
) -> PackedAnswer | PreparedAnswer:
    position, stop, most_bytes, seconds, shown = wanted
    reader = await service.reader(position, stop, shown, seconds)
    if reader is None or not await reader.wait(seconds):
        return PackedAnswer([[], *service.read_limits(shown)], ())
    return PreparedAnswer(partial(_make, fetching, service, wanted, reader), most_bytes)


async def _make(
    fetching: Fetching, service: Service, wanted: _Wanted, reader: Reader, room_bytes: int
) -> PackedAnswer:
    position, stop, most_bytes, _, shown = wanted
    log = service.log if shown == "durable" else None
    batch = await fetching.fetch(log, reader, position, stop=stop, most_bytes=room_bytes)
    if room_bytes != most_bytes or batch.nbytes > _WHOLE_BYTES:
        batch = batch.first(room_bytes)
    intervals, frames = pack_batch(batch) if len(batch) else ([], [])
    return PackedAnswer([intervals, *service.read_limits(shown)], frames)
