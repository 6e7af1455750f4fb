"""FastAPI and Starlette: logs that are open while an application runs, and answers for their errors.

``FastAPI(lifespan=open_logs(events=lambda: Wal.open("data/events")))``; a handler takes
``Annotated[Wal, Depends(log("events"))]``.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final

from walstore.core.runtime.extras import needs_extra
from walstore.errors import (
    ContentionError,
    DiskFullError,
    ExpectationError,
    LimitExceededError,
    LogSealedError,
    LogSuspendedError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    RecordTooLargeError,
    StorageUnavailableError,
    StreamClosedError,
    WalClosedError,
    WalError,
    WouldBlock,
)

with needs_extra("fastapi", "walstore.kits.fastapi"):
    from starlette.applications import Starlette
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import JSONResponse

__all__ = ["answer_errors", "log", "open_logs"]

_log: Final = logging.getLogger("walstore.kits")
_RETRY_SECONDS: Final = 1
_ANSWERS: Final[tuple[tuple[type[WalError], int, str], ...]] = (
    (RecordTooLargeError, 413, "too large for the log"),
    (OffsetTrimmedError, 410, "no longer in the log"),
    (OffsetNotWrittenError, 404, "not in the log"),
    (ExpectationError, 409, "the log has changed"),
    (StreamClosedError, 409, "the stream is closed"),
    (LogSealedError, 409, "the log takes no more records"),
    (LogSuspendedError, 409, "the log is suspended"),
    (WouldBlock, 503, "the log has no room now"),
    (DiskFullError, 503, "the log has no room now"),
    (LimitExceededError, 503, "the log has no room now"),
    (ContentionError, 503, "the log is busy"),
    (StorageUnavailableError, 503, "the log cannot be reached"),
    (WalClosedError, 503, "the log is closed"),
    (WalError, 500, "the log has failed"),
)
"""The first class that fits decides."""


def open_logs(
    **logs: Callable[[], AbstractAsyncContextManager[Any]],
) -> Callable[[Starlette], AbstractAsyncContextManager[Mapping[str, Any]]]:
    """Return a lifespan: it opens the logs when the application starts and closes them when it ends.

    Each is a function that returns what ``async with`` opens, such as ``lambda: Wal.open("data/events")``
    or ``lambda: connect("unix:///run/events.sock")``. They are opened in this order and closed in the
    reverse one; if one cannot be opened, those before it are closed and the application does not start.
    Handlers find them by :func:`log`, or as ``request.state.NAME``. A lifespan of your own enters it:
    ``async with open_logs(...)(app) as state: yield {**state, ...}``.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[Mapping[str, Any]]:
        async with AsyncExitStack() as stack:
            opened = {}
            for name, opening in logs.items():
                opened[name] = await stack.enter_async_context(opening())
                setattr(app.state, name, opened[name])
                stack.callback(delattr, app.state, name)
            yield opened

    return lifespan


def log(name: str) -> Callable[[HTTPConnection], Any]:
    """Return a dependency: the log that :func:`open_logs` opened by this name, for requests and websockets.

    ``Events = Annotated[Wal, Depends(log("events"))]``. If the handler is cancelled during an append, the
    record may still enter the log, as :meth:`walstore.Wal.append` says.
    """

    def find(connection: HTTPConnection) -> Any:
        for state in (connection.state, connection.app.state):  # a server's, or httpx alone
            if hasattr(state, name):
                return getattr(state, name)
        raise RuntimeError(
            f"no log {name!r} is open: FastAPI(lifespan=open_logs({name}=...)), and somebody must enter the "
            "lifespan, as a server does; a test does it itself"
        )

    return find


def answer_errors(app: Starlette) -> None:
    """Answer errors of logs that handlers raise: 404, 409, 410, 413, or 503 if it may be tried again.

    An answer with 503 has ``Retry-After``; nothing was written then. What may have been written, or needs
    an operator, is 500. The body is JSON: ``detail`` without paths and names, and ``outcome`` of the error.
    Answers from 500 on are logged by ``walstore.kits``.
    """
    app.add_exception_handler(WalError, _answer)


async def _answer(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, WalError)
    status, detail = next((code, text) for kind, code, text in _ANSWERS if isinstance(error, kind))
    if status == 503 and (error.outcome != "not_written" or _needs_an_operator(error)):
        status = 500
    if status >= 500:
        method, path = request.method, request.url.path
        _log.warning("%s %s is answered with %d: %s", method, path, status, error)
    headers = {"Retry-After": str(_RETRY_SECONDS)} if status == 503 else None
    body = {"detail": detail, "outcome": error.outcome}
    return JSONResponse(body, status_code=status, headers=headers)


def _needs_an_operator(error: WalError) -> bool:
    return isinstance(error, DiskFullError | LimitExceededError) and not error.retriable
