"""Routes: what an HTTP server answers, and which scopes a token needs for each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from walstore.net.wire.access_scope import ANY, Needs

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ROUTES: Final = web.AppKey("routes", dict[web.AbstractRoute, Needs | None])
"""All routes of a server with the scopes that a token needs; None for those that need no token."""


def add_route(
    app: web.Application, method: str, path: str, handler: Handler, needs: Needs | None, **more: Any
) -> None:
    """Add a route that needs some scopes, of the log that its path names, if it names one."""
    if ROUTES not in app:
        app[ROUTES] = {}
    route = app.router.add_resource(path).add_route(method, handler, **more)
    app[ROUTES][route] = needs


def add_get(app: web.Application, path: str, handler: Handler, needs: Needs | None) -> None:
    """Add a route for GET and HEAD."""
    for method in ("GET", "HEAD"):
        add_route(app, method, path, handler, needs)


def needs_of(request: web.Request) -> Needs | None:
    """Return the scopes that a request needs; None if it needs no token. Any token for what is not there."""
    match = request.match_info
    return request.app[ROUTES][match.route] if match.http_exception is None else ANY


def log_of(request: web.Request) -> str | None:
    """Return the log, or the collection, that the path of a request names; None if it names none."""
    return next(iter(request.match_info.values()), None)
