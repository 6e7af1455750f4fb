"""The messages of a served log, request by request, as clients and servers of other versions send them.

``protocol_v1.txt`` was written when each side named its calls by hand. A line that changes needs a reason
that holds for both sides of a connection between two versions.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from tests.local import turns
from tests.walstore.serve.served import serving
from walstore import RegisterMismatchError, RemoteWal, connect, connect_readonly
from walstore.net.wire import verbs
from walstore.net.wire.message import Decoder, Kind
from walstore.testing import ManualClock

GOLDEN: Final = Path(__file__).parent / "protocol_v1.txt"
_MOST_BYTES: Final = 1 << 30
_OF_THIS_RUN: Final = re.compile(
    r"(?<=p~)[0-9a-f]{16}|process \d+ on [^']+|(?<=(?:gin|add|mit|ack)', \[)\d+"
)
"""A producer's tag, who has a cursor, and the number of a transaction in its program."""


class Recorder:
    """Passes on what a client and its server say, and writes it down: a line for each message."""

    def __init__(self, target: str) -> None:
        self.target = target.removeprefix("unix://")
        self.lines: list[str] = []
        self._known: dict[bytes, str] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(self.target)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pass(reader, back, ">"))
            group.create_task(self._pass(there, writer, "<"))

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: str
    ) -> None:
        decoder = Decoder(most_bytes=_MOST_BYTES)
        with contextlib.suppress(ConnectionError):
            while data := await source.read(1 << 16):
                for message in decoder.feed(data):
                    if message.kind != Kind.HELLO and message.id:
                        said = f"{way} {message.kind} {self._plain(message.head)!r}"
                        if message.payload:
                            said += f" {len(message.payload)} {crc32(message.payload):08x}"
                        self.lines.append(_OF_THIS_RUN.sub("N", said))
                sink.write(data)
                await sink.drain()
        sink.transport.abort()

    def _plain(self, value: Any) -> Any:
        """Return a value with what differs from run to run named by its order."""
        if isinstance(value, dict):
            return {key: self._plain(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self._plain(one) for one in value]
        if isinstance(value, bytes) and len(value) in (8, 16) and len(set(value)) > 4:
            return self._known.setdefault(value, f"TAG {len(self._known)}")
        return value


@asynccontextmanager
async def recorded(path: Path) -> AsyncIterator[tuple[str, Recorder]]:
    """Serve a log, and yield the address of a recorder before it."""
    clock = ManualClock()
    async with serving(path / "log", clock=clock) as served:
        recorder = Recorder(served.address)
        server = await asyncio.start_unix_server(recorder.serve, path / "r.sock")
        try:
            yield f"unix://{path}/r.sock", recorder
        finally:
            server.close()
            await turns()


async def use_it(wal: RemoteWal) -> None:
    """Ask for what a client can ask for, one after the other."""
    await wal.append(b"lone", key=b"k", stream="s", headers={"h": b"1"}, timestamp_us=5)
    await asyncio.gather(*(wal.append(b"%d" % one) for one in range(3)))
    await wal.append(b"fast", durability="memory")
    await wal.append_many([b"a", b"b"], expect={"r": None}, update={"r": "1"})
    with contextlib.suppress(RegisterMismatchError):
        await wal.append_many([b"a"], expect={"r": "2"})
    producer = wal.producer("p")
    await producer.append(b"numbered")
    await producer.last_sequence()
    fence = await wal.fence("owner")
    async with fence.transaction(update={"r": "2"}) as transaction:
        await transaction.append(b"t")
    with contextlib.suppress(ZeroDivisionError):
        async with wal.transaction() as transaction:
            for _ in range(2):  # more than one part
                await transaction.append(bytes(700_000))
            raise ZeroDivisionError
    await wal.open_stream("s2", metadata={"m": "1"})
    await wal.close_stream("s2")
    await wal.streams()
    await wal.wait_durable(1)
    await wal.flush()
    await wal.refresh()
    await wal.offset_at(6)
    await wal.timestamp_at(1)
    await wal.extents()
    async with wal.reader(1, follow=False) as reader:
        async for _ in reader:
            pass
    cursor = await wal.cursor("c", start=datetime(1969, 1, 1, tzinfo=UTC))
    await cursor.commit(3)
    await cursor.rewind(2)
    await cursor.renew()
    await cursor.refresh()
    await wal.cursors()
    await cursor.delete()
    await wal.delete_cursor("c")
    async with wal.group("g", ack_wait_seconds=30) as group:
        jobs = await group.fetch(3, max_wait_seconds=0)
        await jobs[0].ack()
        await jobs[1].nak()
        await jobs[2].in_progress()
        await group.statistics()
        await wal.groups()
    await wal.delete_group("g")
    await wal.rotate()
    await wal.trim(3)


async def transcript(path: Path) -> list[str]:
    """Return what is said when everything is asked for."""
    async with recorded(path) as (address, recorder):
        async with await connect(address, clock=ManualClock()) as wal:
            await use_it(wal)
        async with await connect_readonly(address, clock=ManualClock()) as log:
            await log.refresh()
            await log.offset_at(6)
            await log.timestamp_at(3)
        return recorder.lines


ASKED_BY_CHANCE: Final = {"begin_scrub", "limits", "registers", "stay", "take_back"}
"""Of a replicated log, of many registers, and what a client asks when a call is cancelled, or takes long."""


def test_every_verb_is_asked_for() -> None:
    """A new one belongs into the transcript, or is named here."""
    text = GOLDEN.read_text()
    of_members = [
        one.part for one in vars(verbs).values() if isinstance(one, verbs.Verb) and one.part
    ]
    asked = {name for name in verbs.VERBS if f"['{name}'" in text}
    asked |= {part for part in of_members if f"['group', ['{part}'" in text}
    assert {*verbs.VERBS, *of_members} - asked == ASKED_BY_CHANCE


async def test_every_message_is_as_it_was(tmp_path: Path) -> None:
    assert await transcript(tmp_path) == GOLDEN.read_text().splitlines()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        GOLDEN.write_text("\n".join(asyncio.run(transcript(Path(folder)))) + "\n")
