"""Proxy: passes a request on to the machine that leads its log, and the answer back, as they come."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import aiohttp
from aiohttp import hdrs, web
from yarl import URL

from walstore.http.protocol import CONTENT_POLICY, TICKET, RefusedError

PASSED_ON: Final = "Walstore-Passed-On"
"""Header of a request that was passed on once; it is not passed on again."""
_CONNECT_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 60.0
"""How much longer than with a long-poll or an event stream the other server may send nothing."""
_LAST_SECONDS: Final = 2.0
"""How long it has for its answer once another machine leads the log."""
_NOT_ASKED: Final = frozenset(
    {
        hdrs.HOST,
        hdrs.ORIGIN,  # was checked here
        hdrs.EXPECT,
        hdrs.CONNECTION,
        hdrs.KEEP_ALIVE,
        hdrs.TE,
        hdrs.TRANSFER_ENCODING,
        hdrs.UPGRADE,
        hdrs.PROXY_AUTHORIZATION,
        PASSED_ON,
    }
)
_NOT_ANSWERED: Final = frozenset(
    {
        hdrs.CONNECTION,
        hdrs.KEEP_ALIVE,
        hdrs.TRANSFER_ENCODING,
        hdrs.UPGRADE,
        hdrs.DATE,
        hdrs.SERVER,
        CONTENT_POLICY,  # this server's own, whatever that one says
    }
)
_SAFE: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD})


class Proxy:
    """Connections to the HTTP servers of other machines. Belongs to the event loop of its server."""

    def __init__(
        self,
        trust: ssl.SSLContext | None,
        *,
        token: str | None = None,
        live_seconds: float = 0.0,
    ) -> None:
        """``trust``: for servers with TLS; the system's if None. Live answers may be silent so long.

        ``token``: lets requests in there that were let in here; a ticket is known to this server alone.
        """
        self._authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=True if trust is None else trust, limit=0),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=_CONNECT_SECONDS, sock_read=live_seconds + _ANSWER_SECONDS
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        self._live: set[asyncio.Timeout] = set()
        self._is_ending = False

    async def aclose(self) -> None:
        """End all connections."""
        await self._session.close()

    def end_all(self) -> None:
        """End the answers to reading requests; those that change something are finished."""
        self._is_ending = True
        for passing in self._live:
            _end(passing)

    async def pass_on(
        self, request: web.Request, base: str, moved: Callable[[], Coroutine[Any, Any, None]]
    ) -> web.StreamResponse:
        """Let the server at ``base`` answer, as long as ``moved()`` does not return: another one leads then.

        RefusedError if it does not answer: 503 if the request did not get there, else 502, and then the
        outcome of one that changes something is unknown. An answer that was begun is cut off.
        """
        if PASSED_ON in request.headers:
            raise RefusedError(
                503, "another machine leads the log now; send it again", {"Retry-After": "1"}
            )
        answer: web.StreamResponse | None = None
        try:
            async with (
                self._while(request, moved),
                self._session.request(
                    request.method,
                    URL(base + _without_ticket(request.url), encoded=True),
                    headers=_kept(
                        request.headers,
                        {*_NOT_ASKED, *self._authorization},
                        {PASSED_ON: "1", **self._authorization},
                    ),
                    data=request.content if request.body_exists else None,
                    allow_redirects=False,
                    skip_auto_headers=(hdrs.CONTENT_TYPE, hdrs.USER_AGENT, hdrs.ACCEPT_ENCODING),
                ) as found,
            ):
                headers = _kept(found.headers, _NOT_ANSWERED, {})
                if hdrs.LOCATION in found.headers:
                    here = str(request.url.with_query(None))
                    headers = [*_kept(dict(headers), {hdrs.LOCATION}, {}), (hdrs.LOCATION, here)]
                answer = web.StreamResponse(status=found.status, headers=headers)
                await answer.prepare(request)
                async for piece in found.content.iter_any():
                    await answer.write(piece)
                await answer.write_eof()
                return answer
        except aiohttp.ClientConnectorError as error:
            raise RefusedError(
                503,
                f"the machine that leads the log does not answer: {error}",
                {"Retry-After": "1"},
            ) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if answer is not None:
                # What was begun cannot be taken back: the client sees that it has no end.
                if request.transport is not None:
                    request.transport.abort()
                return answer
            if self._is_ending and request.method in _SAFE:
                raise RefusedError(503, "the server is stopping", {"Retry-After": "1"}) from None
            why = f"the machine that leads the log gave no answer ({type(error).__name__}: {error})"
            if request.method in _SAFE:
                raise RefusedError(502, why, {"Retry-After": "1"}) from None
            raise RefusedError(502, f"{why}; whether it did what was asked is unknown") from None

    @asynccontextmanager
    async def _while(
        self, request: web.Request, moved: Callable[[], Coroutine[Any, Any, None]]
    ) -> AsyncIterator[None]:
        """Raise TimeoutError in the block once another machine leads, or this server ends what only reads."""
        loop = asyncio.get_running_loop()
        moving = loop.create_task(moved(), name="walstore http leader")
        try:
            async with asyncio.timeout(None) as passing:
                ended = partial(_end, passing, _LAST_SECONDS)
                moving.add_done_callback(ended)
                if request.method in _SAFE:
                    self._live.add(passing)
                try:
                    yield
                finally:
                    moving.remove_done_callback(ended)
                    self._live.discard(passing)
        finally:
            moving.cancel()


def _end(passing: asyncio.Timeout, seconds: float = 0.0, _: object = None) -> None:
    passing.reschedule(asyncio.get_running_loop().time() + seconds)


def _without_ticket(url: URL) -> str:
    parts = url.raw_query_string.split("&")
    query = "&".join(part for part in parts if part.partition("=")[0] != TICKET)
    return f"{url.raw_path}?{query}" if query else url.raw_path


def _kept(
    headers: Mapping[str, str], without: Collection[str], more: Mapping[str, str]
) -> list[tuple[str, str]]:
    named = headers.get(hdrs.CONNECTION, "").split(",")
    lowered = {name.strip().lower() for name in (*without, *named)}
    kept = [(name, value) for name, value in headers.items() if name.lower() not in lowered]
    return [*kept, *more.items()]
