"""A web application in several worker processes that append to one log.

``walstore serve`` owns the log, each worker connects to it when it starts. ``app`` is an ASGI application
without a framework; with Starlette or FastAPI the lifespan is the same. Run as a program, this starts the
server and ``uvicorn --workers 2``, posts events, and kills a worker and the server with SIGKILL.
Needs ``pip install walstore[cli] uvicorn``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from walstore import OutcomeUnknownError, RemoteWal, StorageUnavailableError, Wal, connect

PAUSE = threading.Event()
ADDRESS = "EVENTS_LOG"
"""Environment variable with the address of the log."""


class Application:
    """POST appends the body and answers 201 with the offset and this worker's process once it is on disk."""

    wal: RemoteWal

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        """Serve the lifespan of the worker, or one request."""
        if scope["type"] == "lifespan":
            await receive()
            self.wal = await connect(os.environ[ADDRESS])
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self.wal.aclose()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            status, text = await self.post(await read_body(receive))
            headers = [(b"content-length", b"%d" % len(text.encode()))]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": text.encode()})

    async def post(self, body: bytes) -> tuple[int, str]:
        """Append an event. 503: it was not written, send it again. 500: it may have been."""
        try:
            return 201, f"{await self.wal.append(body)} {os.getpid()}"
        except OutcomeUnknownError as error:
            return 500, str(error)
        except StorageUnavailableError as error:
            return 503, str(error)


async def read_body(receive: Callable[[], Awaitable[Any]]) -> bytes:
    """Return the whole body of a request."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


app = Application()


# -- trying it out -----------------------------------------------------------------------------------------


async def post(socket: str, event: bytes) -> tuple[int, str]:
    """Post one event over a connection of its own."""
    reader, writer = await asyncio.open_unix_connection(socket)
    head = (
        f"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(event)}\r\n\r\n"
    )
    writer.write(head.encode() + event)
    answer = await reader.read()
    writer.close()
    status, _, rest = answer.decode().partition("\r\n")
    return int(status.split()[1]), rest.rpartition("\r\n\r\n")[2]


async def post_until_taken(socket: str, event: bytes) -> tuple[int, int]:
    """Post an event until it is acknowledged; return its offset and the worker."""
    while True:
        with contextlib.suppress(OSError, IndexError):  # a worker that was killed answers nothing
            status, text = await post(socket, event)
            if status == 201:
                offset, worker = text.split()
                return int(offset), int(worker)
        await asyncio.to_thread(PAUSE.wait, 0.02)


def start_server(log: Path) -> subprocess.Popen[str]:
    """Start the owner of the log, and return once it can be reached."""
    command = [sys.executable, "-m", "walstore", "serve", str(log), "--unix", f"{log}.sock"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    server.stdout.readline()
    return server


async def main() -> None:
    """Run it all once."""
    with tempfile.TemporaryDirectory() as name:
        log, socket = Path(name) / "events", f"{name}/http.sock"
        server = start_server(log)
        web = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "uvicorn",
                "web_workers:app",
                "--workers=2",
                f"--uds={socket}",
                "--lifespan=on",
                "--log-level=critical",
            ],
            cwd=Path(__file__).parent,
            env={**os.environ, ADDRESS: f"unix://{log}.sock"},
        )
        acknowledged: dict[int, bytes] = {}
        workers: set[int] = set()
        try:
            for number in range(300):
                event = b"event %d" % number
                offset, worker = await post_until_taken(socket, event)
                acknowledged[offset] = event
                workers.add(worker)
                if number == 100:
                    os.kill(worker, signal.SIGKILL)
                if number == 200:
                    server.kill()
                    server.communicate()
                    server = start_server(log)
        finally:
            web.terminate()
            web.wait()
            server.terminate()
            server.communicate()
        async with Wal.open(log) as wal, wal.reader(follow=False) as reader:
            found = {record.offset: record.value async for record in reader}
        print("acknowledged", len(acknowledged), "by several workers:", len(workers) > 1)
        print("missing", len(acknowledged.items() - found.items()))


if __name__ == "__main__":
    asyncio.run(main())
