"""Logs in FastAPI: open while the application runs, found by handlers, and their errors answered."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, Request, WebSocket
from httpx import ASGITransport, AsyncClient

from walstore import (
    ContentionError,
    DiskFullError,
    ExpectationError,
    LimitExceededError,
    LogNotFoundError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    OutcomeUnknownError,
    RecordTooLargeError,
    Settings,
    StorageUnavailableError,
    StreamClosedError,
    Wal,
    WalClosedError,
    WalError,
    WouldBlock,
)
from walstore.kits.fastapi import answer_errors, log, open_logs
from walstore.testing import FaultyFileSystem, MemoryFileSystem

Events = Annotated[Wal, Depends(log("events"))]


def application(**logs: Callable[[], Any]) -> FastAPI:
    app = FastAPI(lifespan=open_logs(**logs))
    answer_errors(app)

    @app.post("/events", status_code=201)
    async def post(events: Events, request: Request) -> int:
        return await events.append(await request.body())

    @app.get("/events/{offset}")
    async def get(events: Events, offset: int) -> str:
        async for record in events.reader(offset, follow=False):
            return record.value.decode()
        return ""

    return app


@asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[AsyncClient]:
    transport = ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        AsyncClient(transport=transport, base_url="http://test") as client,
    ):
        yield client


async def test_a_log_is_open_while_the_application_runs(tmp_path: Path) -> None:
    app = application(events=lambda: Wal.open(tmp_path / "log"))
    for first in (1, 4):  # it may be started again
        async with running(app) as client:
            answers = await asyncio.gather(
                *(client.post("/events", content=b"%d" % n) for n in range(3))
            )
            assert [answer.status_code for answer in answers] == [201] * 3
            assert sorted(answer.json() for answer in answers) == list(range(first, first + 3))
            assert (await client.get("/events/1")).json() == "0"
        async with Wal.open(tmp_path / "log") as wal:  # it was closed
            assert wal.tail == first + 3


async def test_several_logs_are_closed_in_reverse_order(tmp_path: Path) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def noted(name: str) -> AsyncIterator[str]:
        seen.append(f"+{name}")
        yield name
        seen.append(f"-{name}")

    lifespan = open_logs(a=lambda: noted("a"), b=lambda: noted("b"))
    app = FastAPI(lifespan=lifespan)
    async with lifespan(app) as state:
        assert state == {"a": "a", "b": "b"}
        assert app.state.b == "b"
    assert seen == ["+a", "+b", "-b", "-a"]
    assert not hasattr(app.state, "a")


async def test_if_one_cannot_be_opened_the_others_are_closed(tmp_path: Path) -> None:
    fs = MemoryFileSystem()
    app = application(
        events=lambda: Wal.open("/log", fs=fs), missing=lambda: Wal.open_readonly("/none", fs=fs)
    )
    with pytest.raises(LogNotFoundError):
        async with running(app):
            pass
    async with Wal.open("/log", fs=fs):
        pass


async def test_a_server_keeps_them_in_the_state_of_its_requests() -> None:
    """Also for applications that are mounted below, and websockets."""
    app = FastAPI(lifespan=open_logs(events=lambda: Wal.open("/log", fs=MemoryFileSystem())))
    below = FastAPI()
    app.mount("/below", below)

    @below.websocket("/live")
    async def live(websocket: WebSocket, events: Events) -> None:
        await websocket.accept()
        await websocket.send_text(str(await events.append(b"1")))

    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async with app.router.lifespan_context(app) as state:
        scope = {"type": "websocket", "path": "/below/live", "headers": [], "query_string": b""}
        scope |= {"subprotocols": [], "state": dict(state), "asgi": {"version": "3.0"}}
        await app(scope, receive, send)
    assert [message.get("text") for message in sent[:2]] == [None, "1"]


async def test_a_log_that_is_not_open_is_said() -> None:
    app = application()
    async with running(app) as client:
        with pytest.raises(RuntimeError, match=r"no log 'events' is open: FastAPI\(lifespan="):
            await client.post("/events")


# -- errors -----------------------------------------------------------------------------------

OFFSETS = {"requested": 1, "head": 2, "tail": 3}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RecordTooLargeError("/srv", size_bytes=2, limit_bytes=1), 413),
        (OffsetTrimmedError(**OFFSETS), 410),
        (OffsetNotWrittenError(**OFFSETS), 404),
        (ExpectationError("/srv", expected=1, actual=2), 409),
        (StreamClosedError("/srv", stream="s"), 409),
        (WouldBlock("/srv"), 503),
        (ContentionError("/srv"), 503),
        (DiskFullError("/srv", retriable=True), 503),
        (DiskFullError("/srv"), 500),
        (LimitExceededError("/srv", limit=1, retriable=True), 503),
        (LimitExceededError("/srv", limit=1), 500),
        (StorageUnavailableError("/srv"), 503),
        (StorageUnavailableError("/srv", outcome="unknown"), 500),
        (WalClosedError("/srv"), 503),
        (WalClosedError("/srv", outcome="unknown"), 500),
        (OutcomeUnknownError("/srv"), 500),
        (LogNotFoundError("/srv", location="/srv"), 500),
        (WalError("/srv"), 500),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, WalError) else str(value),
)
async def test_the_answer_for_each_error(
    error: WalError, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    app = FastAPI()
    answer_errors(app)

    @app.get("/")
    async def fail() -> None:
        raise error

    async with AsyncClient(transport=ASGITransport(app), base_url="http://test") as client:
        answer = await client.get("/")
    assert answer.status_code == status
    assert answer.headers.get("Retry-After") == ("1" if status == 503 else None)
    assert answer.json()["outcome"] == error.outcome
    assert "/srv" not in answer.text
    logged = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert logged == ([f"GET / is answered with {status}: {error}"] if status >= 500 else [])


async def test_a_full_disk_is_answered_with_when_to_try_again() -> None:
    disk = FaultyFileSystem(MemoryFileSystem())
    settings = Settings(segment_bytes=64 << 10, batch_bytes=4 << 10, min_free_bytes=1 << 20)
    app = application(events=lambda: Wal.open("/log", fs=disk, settings=settings))
    async with running(app) as client:
        assert (await client.post("/events", content=b"1")).status_code == 201
        disk.limit_space(1 << 20)
        for _ in range(1000):
            answer = await client.post("/events", content=bytes(16 << 10))
            if answer.status_code != 201:
                break
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert answer.json() == {"detail": "the log has no room now", "outcome": "not_written"}
        assert (await client.get("/events/1")).json() == "1"


async def test_other_errors_are_not_taken(tmp_path: Path) -> None:
    app = FastAPI()
    answer_errors(app)

    @app.get("/")
    async def fail() -> None:
        raise ValueError("mine")

    async with AsyncClient(transport=ASGITransport(app), base_url="http://test") as client:
        with pytest.raises(ValueError, match="mine"):
            await client.get("/")


async def test_a_cancelled_handler_appends_what_the_log_has_accepted() -> None:
    disk = FaultyFileSystem(MemoryFileSystem())
    app = application(events=lambda: Wal.open("/log", fs=disk))
    async with running(app) as client:
        hold = disk.hold("datasync")
        posting = asyncio.ensure_future(client.post("/events", content=b"1"))
        await hold.wait_entered()
        posting.cancel()
        hold.release()
        with pytest.raises(asyncio.CancelledError):
            await posting
        assert (await client.post("/events", content=b"2")).json() == 2
        assert (await client.get("/events/1")).json() == "1"


def test_without_fastapi_the_error_names_the_extra() -> None:
    code = "import sys\nsys.modules['starlette'] = None\nimport walstore.kits.fastapi"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "walstore.kits.fastapi needs the extra 'fastapi'" in done.stderr.splitlines()[-1]
