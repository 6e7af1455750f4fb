"""Pages: the page to look at logs, and the JSON that it asks for."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any, Final

from aiohttp import web

from walstore.http.looking import PAGES, Looking
from walstore.http.protocol import CONTENT_POLICY, NAME_PATTERN
from walstore.http.requester import may_read
from walstore.http.routes import add_get
from walstore.net.wire.access_scope import READ_ONLY

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_LOG: Final = f"{{log:{NAME_PATTERN}}}"
_CONTENT: Final = {
    path: (files("walstore.http").joinpath("page", name).read_bytes(), kind)
    for path, (name, kind) in PAGES.items()
}


class Pages:
    """Answers requests of the page."""

    def __init__(self, looking: Looking) -> None:
        self._looking = looking

    def add_to(self, app: web.Application) -> None:
        """Add the routes of the page."""
        for path in PAGES:
            add_get(app, path, self._page, None)
        for path, look in (
            ("/v1/look", lambda _: self._looking.logs(may_read)),
            (f"/v1/look/{_LOG}", lambda request: self._looking.log(_name(request))),
            (
                f"/v1/records/{_LOG}",
                lambda request: self._looking.records(_name(request), request.query),
            ),
            (
                f"/v1/collections/{{name:{NAME_PATTERN}}}",
                lambda request: self._looking.collection(request.match_info["name"]),
            ),
        ):
            add_get(app, path, self._answer(look), READ_ONLY)

    async def _page(self, request: web.Request) -> web.Response:
        body, kind = _CONTENT[request.path]
        headers = {CONTENT_POLICY: _POLICY, "Cache-Control": "no-cache"}
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

    @staticmethod
    def _answer(
        look: Callable[[web.Request], Awaitable[dict[str, Any]]],
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            found = await look(request)
            return web.Response(
                body=json.dumps(found).encode(),
                content_type="application/json",
                headers={"Cache-Control": "no-store"},
            )

        return answer


def _name(request: web.Request) -> str:
    return request.match_info["log"]
