"""Health: what an HTTP server says of itself to those that watch it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from aiohttp import web

from walstore.http.json_answer import json_answer

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Health:
    """Answers ``/health``, ``/ready`` and, with a registry, ``/metrics``."""

    def __init__(self, is_ready: Callable[[], bool], registry: CollectorRegistry | None) -> None:
        """``is_ready``: whether streams can be appended to and read."""
        self._is_ready = is_ready
        self._registry = registry

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get("/health", self._health)
        app.router.add_get("/ready", self._ready)
        if self._registry is not None:
            app.router.add_get("/metrics", self._metrics)

    async def _health(self, request: web.Request) -> web.Response:
        """The process answers."""
        return json_answer({"status": "ok"})

    async def _ready(self, request: web.Request) -> web.Response:
        """Streams can be appended to and read."""
        is_ready = self._is_ready()
        return json_answer(
            {"status": "ready" if is_ready else "not ready"}, 200 if is_ready else 503
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        """What Prometheus scrapes."""
        from prometheus_client import exposition

        assert self._registry is not None
        text = await asyncio.get_running_loop().run_in_executor(
            None, exposition.generate_latest, self._registry
        )
        return web.Response(body=text, headers={"Content-Type": exposition.CONTENT_TYPE_LATEST})
