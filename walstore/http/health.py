"""Health: what a server says of itself to those that watch it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from walstore.http.json_answer import json_answer
from walstore.http.routes import add_get
from walstore.net.wire.access_scope import READ_ONLY

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from walstore.store.log_catalog import LogCatalog


class Health:
    """Answers ``/health``, ``/ready`` and, with a registry, ``/metrics``."""

    def __init__(
        self,
        logs: LogCatalog | None,
        is_stopping: Callable[[], bool],
        registry: CollectorRegistry | None,
    ) -> None:
        """``logs``: what is served; None where there are only copies."""
        self._logs = logs
        self._is_stopping = is_stopping
        self._registry = registry

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        add_get(app, "/health", self._health, None)
        add_get(app, "/ready", self._ready, None)
        if self._registry is not None:
            add_get(app, "/metrics", self._metrics, READ_ONLY)

    async def _health(self, request: web.Request) -> web.Response:
        """The process answers."""
        return json_answer({"status": "ok"})

    async def _ready(self, request: web.Request) -> web.Response:
        """Streams can be appended to and read, and what is appended is shipped, or will be by itself.

        No log is named: this needs no token.
        """
        why = self._trouble()
        answer: dict[str, Any] = (
            {"status": "not ready", "reason": why} if why else {"status": "ready"}
        )
        return json_answer(answer, 503 if why else 200)

    def _trouble(self) -> str:
        if self._is_stopping():
            return "the server stops"
        if self._logs is None:
            return ""
        if self._logs.is_closing:
            return "the logs are closed, or not open yet"
        failed = len(self._logs.failed())
        return (
            f"{failed} log(s) failed, or are not shipped until an operator acts" if failed else ""
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        """What Prometheus scrapes."""
        from prometheus_client import exposition

        assert self._registry is not None
        text = await asyncio.get_running_loop().run_in_executor(
            None, exposition.generate_latest, self._registry
        )
        return web.Response(body=text, headers={"Content-Type": exposition.CONTENT_TYPE_LATEST})
