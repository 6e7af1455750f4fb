"""Reading: the answers to READ requests, each of what there is room for, or of one record."""

from __future__ import annotations

from typing import Final

from walstore.serve.answer import PackedAnswer, PreparedAnswer
from walstore.serve.fetching import Fetching
from walstore.serve.services import Service
from walstore.wire.message import Message, ProtocolViolationError
from walstore.wire.records import pack_batch

_MOST_WAIT_SECONDS: Final = 60.0
_WHOLE_BYTES: Final = 8 << 20
"""A batch of up to so much is not cut, unless there is only room for less."""


async def read(
    fetching: Fetching, service: Service, message: Message, most_bytes: int
) -> PackedAnswer | PreparedAnswer:
    """Return records from a position: what there is, or what comes within the time.

    A group that has more than about ``most_bytes`` is sent in parts: all of it is safe before anybody reads a
    record of it.
    """
    match message.head:
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
    seconds = max(0.0, min(float(wait), _MOST_WAIT_SECONDS))
    reader = await service.reader(position, stop, shown, seconds)
    if reader is None or not await reader.wait(seconds):
        return PackedAnswer([[], *service.limits(shown)], ())
    wanted_bytes = max(1, min(wanted_bytes, most_bytes))
    log = service.log if shown == "durable" else None

    async def make(room_bytes: int) -> PackedAnswer:
        batch = await fetching.fetch(log, reader, position, stop=stop, most_bytes=room_bytes)
        if room_bytes != wanted_bytes or batch.nbytes > _WHOLE_BYTES:
            batch = batch.first(room_bytes)
        intervals, frames = pack_batch(batch) if len(batch) else ([], [])
        return PackedAnswer([intervals, *service.limits(shown)], frames)

    return PreparedAnswer(make, wanted_bytes)
