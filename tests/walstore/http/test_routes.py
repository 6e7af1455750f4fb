"""Each route of an HTTP server states what a token needs for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from tests.walstore.http.conftest import serving
from walstore.http.routes import ROUTES
from walstore.net.wire.access_scope import ADMIN, APPEND_ONLY, READ_ONLY, AccessScope
from walstore.serve import AccessToken, AccessTokens
from walstore.serve.access_token import sha256_of

NEEDS: Final = {
    "/": None,
    "/page/page.js": None,
    "/page/page.css": None,
    "/health": None,
    "/ready": None,
    "/metrics": READ_ONLY,
    "/v1/look": READ_ONLY,
    "/v1/look/{log}": READ_ONLY,
    "/v1/records/{log}": READ_ONLY,
    "/v1/collections/{name}": READ_ONLY,
    "/v1/stream/{log}": READ_ONLY,
    "/v1/ticket/{stream}": READ_ONLY,
}
"""Of GET, HEAD, and the POST of a ticket."""
CHANGES: Final = {"PUT": APPEND_ONLY, "POST": APPEND_ONLY, "DELETE": ADMIN}


async def test_all_routes_state_what_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[web.Application] = []
    setup = web.AppRunner.setup

    async def keep(runner: web.AppRunner) -> None:
        made.append(runner.app)
        await setup(runner)

    monkeypatch.setattr(web.AppRunner, "setup", keep)
    async with serving(tmp_path, token="t", registry=CollectorRegistry()):
        (app,) = made
        routes = list(app.router.routes())
        assert set(routes) == app[ROUTES].keys()
        seen = set()
        for route in routes:
            assert route.resource is not None
            path = route.resource.canonical
            seen.add(path)
            is_change = path == "/v1/stream/{log}" and route.method in CHANGES
            wanted = CHANGES[route.method] if is_change else NEEDS[path]
            assert app[ROUTES][route] == wanted, (route.method, path)
            assert path.count("{") <= 1
        assert seen == NEEDS.keys()


def tokens_for_eu() -> AccessTokens:
    scopes = {"reader": {AccessScope.READ}, "writer": {AccessScope.APPEND}}
    few = [
        AccessToken(name=name, sha256=sha256_of(name), scopes=frozenset(some), logs=("eu-*",))
        for name, some in scopes.items()
    ]
    return AccessTokens(
        [*few, AccessToken(name="all", sha256=sha256_of("all"), scopes=frozenset(AccessScope))]
    )


async def test_the_page_lists_the_logs_of_a_token(tmp_path: Path) -> None:
    async with serving(tmp_path, tokens=tokens_for_eu()) as served:
        for name in ("eu-1", "us-1"):
            await served.store.wal(name)
        base = served.server.addresses[0]
        for token, status, names in (
            ("reader", 200, ["eu-1"]),
            ("all", 200, ["eu-1", "us-1"]),
            ("writer", 403, []),
        ):
            headers = {"Authorization": f"Bearer {token}"}
            async with served.session.get(f"{base}/v1/look", headers=headers) as answer:
                assert answer.status == status
                found = (await answer.json()).get("logs", [])
            assert [one["name"] for one in found] == names


async def test_a_fork_needs_to_read_its_source(tmp_path: Path) -> None:
    async with serving(tmp_path, tokens=tokens_for_eu()) as served:
        for name in ("eu-1", "us-1"):
            await served.store.wal(name)
        for token, source, status in (
            ("writer", "eu-1", 403),
            ("all", "us-1", 201),
        ):
            named = {
                "Authorization": f"Bearer {token}",
                "Stream-Forked-From": f"/v1/stream/{source}",
            }
            assert await served.status("PUT", f"eu-{token}", **named) == status


async def test_a_ticket_is_worth_what_its_token_is(tmp_path: Path) -> None:
    """It ends with the token, before its minute is over."""
    file = tmp_path / "tokens.toml"
    table = '[[token]]\nname = "{0}"\nsha256 = "{1}"\nscopes = ["read"]\n'
    file.write_text(table.format("one", sha256_of("one")))
    tokens = await asyncio.to_thread(AccessTokens.read, file)
    async with serving(tmp_path / "store", tokens=tokens) as served:
        await served.store.wal("a")
        base, headers = served.server.addresses[0], {"Authorization": "Bearer one"}
        async with served.session.post(f"{base}/v1/ticket/a", headers=headers) as answer:
            ticket = (await answer.json())["ticket"]
        query = f"?ticket={ticket}"
        assert (await served.send("GET", "a", query=query))[0] == 200
        file.write_text(table.format("two", sha256_of("two")))
        await tokens.reload()
        assert (await served.send("GET", "a", query=query))[0] == 403
