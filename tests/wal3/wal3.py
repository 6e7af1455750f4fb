"""A program of wal3 beside a test: commands go in as lines of JSON, answers come out; see ``rust/driver``."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Final

from tests.wal3.build import DRIVER
from walstore import Record

AT_ONCE: Final = {"throttle_fragment": {"batch_interval_us": 1}}
"""A batch waits for nobody. wal3 waits 100 ms by default."""

LINE_BYTES: Final = 1 << 26


class Wal3Error(Exception):
    """What wal3 answered instead; ``name`` is that of its error."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


class Wal3:
    """One process of wal3 at one log. Calls may be made from several tasks; they run at the same time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Take a process that was started; use :func:`running`."""
        self._process = process
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def call(self, command: str, **arguments: Any) -> Any:
        """Return the answer; Wal3Error if it is an error, ConnectionError if the process is gone."""
        if self._process.returncode is not None:
            raise ConnectionResetError("wal3 has ended")
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        line = json.dumps({"id": number, "do": command, **arguments})
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        found = await answer
        if "error" in found:
            raise Wal3Error(found["error"], found["text"])
        return found["ok"]

    async def open(self, *, create: bool = True, **options: Any) -> None:
        """Open the log for writing; ``options`` are wal3's own."""
        await self.call("open", create=create, options={**AT_ONCE, **options})

    async def append(self, *values: bytes) -> int:
        """Append records together; return the offset of the first."""
        return int(await self.call("append", values=[value.hex() for value in values]))

    async def read(self, start: int = 0) -> list[Record]:
        """Return all records from an offset on; wal3 compares the sum of each fragment."""
        return [
            Record(offset, bytes.fromhex(value), timestamp_us=time_us)
            for offset, time_us, value in await self.call("read", **{"from": start})
        ]

    async def stop(self, when: str, key: str, *, call: str = "put") -> None:
        """Make the next such call with this in its key wait ``before`` or ``after`` it happens."""
        await self.call("stop", when=when, call=call, key=key)

    async def stopped(self) -> str:
        """Wait until a call waits; return its key."""
        return str(await self.call("stopped"))

    async def go(self) -> None:
        """Let go on whatever waits."""
        await self.call("go")

    async def kill(self) -> None:
        """Kill the process, as a power cut would; calls under way raise ConnectionError."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def listen(self) -> None:
        """Hand out answers until the process ends."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            answer = json.loads(line)
            if (waiting := self._waiting.pop(answer["id"], None)) and not waiting.done():
                waiting.set_result(answer)
        await self._process.wait()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionResetError("wal3 has ended"))
        self._waiting.clear()


@contextlib.asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Wal3]:
    """Start wal3 at a log's own directory; at the end it is killed."""
    process = await asyncio.create_subprocess_exec(
        os.environ[DRIVER],
        str(directory),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES,
    )
    wal3 = Wal3(process)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(wal3.listen())
        try:
            yield wal3
        finally:
            await wal3.kill()


def pairs(records: Iterable[Record]) -> list[tuple[int, bytes]]:
    """Return where each record is and what it holds; a fragment of wal3 has one time for all."""
    return [(record.offset, record.value) for record in records]


def numbered(values: Iterable[bytes], start: int = 1) -> list[tuple[int, bytes]]:
    """Return what :func:`pairs` returns for these values in a row."""
    return list(enumerate(values, start))
