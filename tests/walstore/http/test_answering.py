"""Answering: what every answer of a server says, whatever it answers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from tests.cases import case
from tests.walstore.http.conftest import QUICK, Served, serving
from walstore.http.access import Access
from walstore.http.looking import PAGES

HTML = {"Content-Type": "text/html"}
STORED = b"<script>fetch('/v1/stream/s', {method: 'DELETE'})</script>"


def check_headers(headers: Mapping[str, str], *, is_page: bool = False) -> None:
    """What no answer may lack, so that a browser runs nothing of what streams hold."""
    policy = headers["Content-Security-Policy"]
    if is_page:
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
    else:
        assert policy == "sandbox; default-src 'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "Cross-Origin-Resource-Policy" in headers
    assert headers["Server"] == "walstore"


def routes(served: Served) -> set[tuple[str, str]]:
    """Methods and paths of all that the server answers, for the stream ``s``."""
    assert served.server._runner is not None
    found = set()
    for route in served.server._runner.app.router.routes():
        assert route.resource is not None
        found.add((route.method, re.sub(r"\{\w+\}", "s", route.resource.canonical)))
    return found


async def test_every_route_has_the_headers_of_every_answer(tmp_path: Path) -> None:
    from prometheus_client import CollectorRegistry

    for token in (None, "t"):
        async with serving(
            tmp_path / str(token), token=token, registry=CollectorRegistry()
        ) as served:
            found = routes(served)
            assert {("POST", "/v1/ticket/s"), ("GET", "/metrics"), ("GET", "/")} <= found
            assert len(found) >= 18
            for sent in ({}, {"Authorization": "Bearer t"}):
                for method, path in sorted(found, key=lambda one: (one[0] == "DELETE", one)):
                    with case((token, method, path, sent)):
                        url = served.server.addresses[0] + path
                        async with served.session.request(method, url, headers=sent) as answer:
                            check_headers(answer.headers, is_page=path in PAGES)


async def test_every_kind_of_answer_has_them(served: Served) -> None:
    await served.send("PUT", "s", STORED, Content_Type="text/html")
    await served.send("PUT", "t", b"a", Content_Type="text/plain")
    tag = (await served.send("GET", "s"))[1]["ETag"]
    tail = (await served.send("HEAD", "t"))[1]["Stream-Next-Offset"]
    for status, method, path, sent in (
        (200, "GET", "/v1/stream/s", {}),
        (200, "HEAD", "/v1/stream/s", {}),
        (200, "GET", "/v1/stream/s?offset=now", {}),
        (200, "GET", "/v1/stream/s?offset=-1&live=long-poll", {}),
        (200, "PUT", "/v1/stream/s", HTML),
        (201, "PUT", "/v1/stream/new", HTML),
        (204, "GET", f"/v1/stream/t?offset={tail}&live=long-poll", {}),
        (204, "OPTIONS", "/v1/stream/s", {"Origin": "https://other.example"}),
        (304, "GET", "/v1/stream/s", {"If-None-Match": tag}),
        (304, "GET", "/v1/stream/s", {"If-None-Match": f'"x", W/{tag}'}),
        (400, "GET", "/v1/stream/s?offset=x", {}),
        (400, "GET", "/v1/stream/%0A", {}),
        (403, "DELETE", "/v1/stream/s", {"Origin": "https://other.example"}),
        (404, "GET", "/v1/stream/none", {}),
        (404, "GET", "/none", {}),
        (405, "PATCH", "/v1/stream/s", {}),
        (409, "PUT", "/v1/stream/t", HTML),
        (412, "PUT", "/v1/stream/s", {**HTML, "If-None-Match": "*"}),
        (413, "POST", "/v1/stream/t", {"Content-Length": str(1 << 40)}),
        (417, "POST", "/v1/stream/t", {"Expect": "the impossible"}),
        (421, "GET", "/v1/stream/s", {"Host": "evil.example"}),
    ):  # fmt: skip
        with case((status, method, path)):
            url = URL(served.server.addresses[0] + path, encoded=True)
            async with served.session.request(method, url, headers=sent) as answer:
                assert answer.status == status, await answer.text()
                check_headers(answer.headers)
    async with served.session.get(served.url("s") + "?offset=-1&live=sse") as answer:
        assert answer.content_type == "text/event-stream"
        check_headers(answer.headers)


async def test_what_is_no_http_is_answered_as_any_other_mistake(served: Served) -> None:
    live = b"GET /v1/stream/s?offset=-1&live=sse HTTP/1.1\r\nHost: localhost\r\n"
    for sent in (
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"<b>" * 10_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00" + b"\xff" * 100 + b"\r\n\r\n",
        live + b"Content-Length: -1\r\n\r\n",
        live + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ):
        with case(sent):
            answer = await talk(served, sent)  # all of it: the connection is ended
            assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
            headers = headers_of(answer)
            check_headers(headers)
            assert headers["Content-Type"] == "application/json"
            assert headers["Cache-Control"] == "no-store"
            assert headers.get("Connection", "close") == "close"
            said = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
            assert said.startswith("the request is no HTTP: ")
            assert len(said) < 300


async def test_a_defect_is_answered_in_the_same_form(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("of nobody's concern")

    monkeypatch.setattr(Access, "check", fail)
    async with served.session.get(served.url("s"), headers={"Accept": "text/html"}) as answer:
        assert (answer.status, await answer.json()) == (500, {"error": "Internal Server Error"})
        check_headers(answer.headers)
    (record,) = [one for one in caplog.records if one.name == "aiohttp.server"]
    assert record.exc_info is not None


async def talk(served: Served, sent: bytes) -> bytes:
    """Send bytes; return all that is answered until the server ends the connection."""
    host, port = served.server.addresses[0].removeprefix("http://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    found = await reader.read()
    writer.close()
    return found


def headers_of(answer: bytes) -> dict[str, str]:
    lines = answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    return dict(line.split(": ", 1) for line in lines)


async def test_a_body_that_is_announced_too_large_is_refused_unread(tmp_path: Path) -> None:
    head = "POST /v1/stream/s HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n{}\r\n\r\n"
    async with serving(tmp_path, token="t") as served:
        for length, token, status in (
            (1 << 40, None, 401), (1 << 40, "t", 413), ((16 << 20) + 1, "t", 413), (10**30, "t", 400),
            ("-1", "t", 400), ("9" * 5000, "t", 400), ("0x10", "t", 400),
        ):  # fmt: skip
            with case((str(length)[:20], token)):
                named = [f"Content-Length: {length}", "Expect: 100-continue", "Connection: close"]
                if token:
                    named.append(f"Authorization: Bearer {token}")
                found = await _first_line(served, head.format("\r\n".join(named)).encode())
                assert found.split()[1] == str(status).encode()


async def _first_line(served: Served, sent: bytes) -> bytes:
    host, port = served.server.addresses[0].removeprefix("http://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    found = await reader.readline()
    writer.close()
    return found


async def test_a_client_that_waits_is_asked_for_its_body_once_it_is_let_in(tmp_path: Path) -> None:
    async with serving(tmp_path, token="t") as served:
        url = served.url("s")
        for sent, status in (({}, 401), ({"Authorization": "Bearer t"}, 201)):
            async with served.session.put(
                url, data=b"body", headers={"Content-Type": "text/plain", **sent}, expect100=True
            ) as answer:
                assert answer.status == status
        async with served.session.get(url, headers={"Authorization": "Bearer t"}) as answer:
            assert await answer.read() == b"body"


async def test_a_name_that_is_a_file_of_the_servers_own_is_refused(served: Served) -> None:
    (served.store.path / "serve.sock").touch()
    for method, status in (("GET", 404), ("POST", 404), ("DELETE", 404), ("PUT", 409)):
        found, headers, _ = await served.send(method, "serve.sock", b"x", Content_Type="text/plain")
        assert (method, found) == (method, status)
        assert "Retry-After" not in headers


async def test_names_with_control_characters_are_refused(served: Served) -> None:
    for name in ("%00", "%0A", "a%0Ab", "%0D%0ASet-Cookie:x", "%1B%5B31m", "%7F", "%C2%85"):
        for method in ("GET", "PUT", "POST", "DELETE"):
            with case((name, method)):
                url = URL(served.url("") + name, encoded=True)
                async with served.session.request(method, url) as answer:
                    text = await answer.text()
                    assert answer.status == 400, text
                assert text.rstrip("\n").isprintable()


@pytest.mark.parametrize("prefix", ["bearer", "BEARER", "Bearer", "Bearer  "])
async def test_the_scheme_of_a_token_is_written_as_you_like(tmp_path: Path, prefix: str) -> None:
    async with serving(tmp_path, token="Secret", settings=QUICK) as served:
        options: dict[str, Any] = {"Content_Type": "text/plain"}
        assert await served.status("PUT", "s", Authorization=f"{prefix} Secret", **options) == 201
        for wrong in (f"{prefix} secret", f"{prefix}", "Basic Secret", "Secret", f"{prefix} é"):
            assert await served.status("GET", "s", Authorization=wrong) == 401


async def test_errors_of_the_program_have_them_too(served: Served, monkeypatch: Any) -> None:
    """Not a mistake of the client: what nobody expected is answered by aiohttp itself."""

    async def fail(*_: object) -> None:
        raise RuntimeError("unexpected")

    monkeypatch.setattr(served.server._streams, "find", fail)
    async with served.session.get(served.url("s"), headers={"Accept": "text/html"}) as answer:
        assert answer.status == 500
        check_headers(answer.headers)
