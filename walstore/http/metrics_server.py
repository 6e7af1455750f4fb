"""MetricsServer: ``/metrics``, ``/health`` and ``/ready`` at a place of their own, for those that watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.tasks import wait_ended
from walstore.http.connections import Connections
from walstore.http.http_server import import_server
from walstore.net.wire.address import parse_listen
from walstore.serve.listening import BACKLOG, Listening

if TYPE_CHECKING:
    from aiohttp import web
    from prometheus_client import CollectorRegistry

    from walstore.store.log_catalog import LogCatalog

_CONNECTIONS: Final = 256
_IDLE_SECONDS: Final = 5.0


@asynccontextmanager
async def serve_metrics(
    logs: LogCatalog | None,
    listen: str,
    *,
    registry: CollectorRegistry | None,
    is_stopping: Callable[[], bool],
    listening: Listening | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[str]:
    """Serve them at ``HOST:PORT``, any address of this machine, until the block ends; yield the URL.

    Nothing there needs a token or TLS: names of logs and figures can be read, no record. There are 256
    connections at a time, each with one request and five seconds to send it. InvalidSettingsError for what is
    no place, StorageUnavailableError if another program is there, MissingExtraError if aiohttp is not
    installed.
    """
    await asyncio.get_running_loop().run_in_executor(None, import_server)
    from aiohttp import web

    from walstore.http.health import Health
    from walstore.http.server_log import ServerLog

    @web.middleware
    async def once(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            answer = await handler(request)
        except web.HTTPException as refusal:
            refusal.force_close()
            raise
        answer.force_close()
        return answer

    place, clock = parse_listen(listen), clock or SystemClock()
    async with AsyncExitStack() as stack:
        sockets = listening or Listening()
        stack.push_async_callback(sockets.aclose)
        await sockets.listen(None, place)
        app = web.Application(middlewares=[once], client_max_size=1)
        Health(logs, is_stopping, registry).add_to(app)
        runner = web.AppRunner(app, shutdown_timeout=0.1, logger=ServerLog(), access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        connections = Connections(
            partial(_protocol, runner), most=_CONNECTIONS, idle_seconds=_IDLE_SECONDS, clock=clock
        )
        loop, host, port = asyncio.get_running_loop(), place[0], 0
        for one in sockets.ports:
            port = one.getsockname()[1]
            server = await loop.create_server(connections, sock=one, backlog=BACKLOG)
            stack.callback(server.close)
        sweeping = loop.create_task(connections.sweep(), name="walstore serve metrics")
        stack.push_async_callback(wait_ended, sweeping)
        stack.callback(sweeping.cancel)
        yield f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _protocol(runner: web.AppRunner) -> asyncio.Protocol:
    assert runner.server is not None
    return runner.server()
