"""Pages: the page to look at logs, and the JSON that it asks for."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any, Final

from aiohttp import web

from walstore.http.looking import PAGES, Looking
from walstore.http.protocol import CONTENT_POLICY, NAME_PATTERN

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
            app.router.add_get(path, self._page)
        add = app.router.add_get
        add("/v1/look", self._answer(lambda _: self._looking.logs()))
        add(f"/v1/look/{_LOG}", self._answer(lambda request: self._looking.log(_name(request))))
        add(
            f"/v1/records/{_LOG}",
            self._answer(lambda request: self._looking.records(_name(request), request.query)),
        )
        add(
            f"/v1/collections/{{name:{NAME_PATTERN}}}",
            self._answer(lambda request: self._looking.collection(request.match_info["name"])),
        )

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
