"""HttpServer: who may use it, its limits, and what it says of itself."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gzip
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.cases import case
from tests.cloud import FAST, SMALL, URL, tier
from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.http.conftest import QUICK, Served, serving
from tests.walstore.serve.certificates import make_certificate
from uploader import CloudTier
from uploader.stores.memory import MemoryStore
from uploader.testing import faults
from uploader.testing.faults import FaultyStore
from walstore import InvalidSettingsError, StorageUnavailableError, Wal, WalError, WalStore
from walstore.http import HttpServer, HttpSettings
from walstore.testing import FaultyFileSystem

TEXT = {"Content_Type": "text/plain"}


async def ask(
    served: Served, method: str, path: str, **headers: str
) -> tuple[int, Mapping[str, str], bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with served.session.request(
        method, served.server.addresses[0] + path, headers=named
    ) as answer:
        return answer.status, answer.headers, await answer.read()


async def test_a_token(tmp_path: Path) -> None:
    async with serving(tmp_path, token="secret") as served:
        assert await served.status("PUT", "s", **TEXT) == 401
        status, _, body = await served.send("PUT", "s", Authorization="Bearer wrong", **TEXT)
        assert (status, b"the token is not that of this server" in body) == (401, True)
        assert await served.status("PUT", "s", Authorization="Bearer secret", **TEXT) == 201
        _, headers, _ = await served.send("GET", "s", Authorization="Bearer secret")
        assert headers["Cache-Control"] == "no-store"
        await served.send("POST", "s", b"x", Authorization="Bearer secret", **TEXT)
        _, headers, _ = await served.send("GET", "s", Authorization="Bearer secret")
        assert headers["Cache-Control"].startswith("private")
        assert (await ask(served, "GET", "/health"))[0] == 200


async def test_pages_of_others_change_nothing(served: Served) -> None:
    await served.send("PUT", "s", **TEXT)
    own = served.server.addresses[0]
    assert await served.status("POST", "s", b"x", Origin="https://evil.example", **TEXT) == 403
    assert await served.status("DELETE", "s", Origin="null") == 403
    assert await served.status("POST", "s", b"x", Origin=own, **TEXT) == 204
    _, headers, _ = await served.send("GET", "s", Origin="https://evil.example")
    assert "Access-Control-Allow-Origin" not in headers
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    # A name that somebody else made to mean this machine.
    assert await served.status("GET", "s", Host="evil.example:80") == 421
    assert await served.status("GET", "s", Host="localhost:1") == 200


async def sent(served: Served, *lines: str, body: str = "") -> str:
    """Send a request as it is, and return what the server answers until it ends the connection."""
    host, _, port = served.server.addresses[0].removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write("\r\n".join([*lines, "Connection: close", "", body]).encode())
        return (await reader.read()).decode()
    finally:
        writer.close()
        await writer.wait_closed()


HOST = "Host: localhost"
TYPE = "Content-Type: text/plain"


async def test_a_request_that_others_may_read_in_another_way_is_refused(served: Served) -> None:
    await served.send("PUT", "s", **TEXT)
    post = "POST /v1/stream/s HTTP/1.1"
    length = "Content-Length: 1"
    twice = (
        ("Producer-Id: a", "Producer-Id: b"), ("Stream-Seq: a", "stream-seq: b"),
        ("Origin: http://a", "Origin: http://b"), (TYPE,), (HOST,), ("Authorization: a",) * 2,
    )  # fmt: skip
    for more in twice:
        with case(more):
            answer = await sent(served, post, HOST, TYPE, length, *more, body="x")
            assert answer.split()[1] == "400", answer
    for coding in ("gzip, chunked", "identity", "chunked, identity", "xchunked"):
        with case(coding):
            coded = f"Transfer-Encoding: {coding}"
            answer = await sent(served, post, HOST, TYPE, coded, body="1\r\nx\r\n0\r\n\r\n")
            assert answer.split()[1] in {"501", "400"}, answer
    for host in ("localhost@evil.example", "evil.example@localhost", "localhost/x", "[::1"):
        with case(host):
            answer = await sent(served, post, f"Host: {host}", TYPE, length, body="x")
            assert answer.split()[1][0] == "4", answer
    assert await served.content("s") == b""
    answer = await sent(
        served, post, HOST, TYPE, "Transfer-Encoding: Chunked", body="1\r\nx\r\n0\r\n\r\n"
    )
    assert answer.split()[1] == "204", answer


async def test_a_path_that_is_no_text_is_refused(served: Served) -> None:
    for name in ("%ff", "%zz", "a%2", "%"):
        with case(name):
            answer = await sent(served, f"PUT /v1/stream/{name} HTTP/1.1", HOST, TYPE)
            assert answer.split()[1] == "400", answer
    assert await served.status("PUT", "%C3%A4", **TEXT) in {201, 400}


async def test_pages_of_allowed_origins(tmp_path: Path) -> None:
    app = "https://app.example"
    async with serving(tmp_path, allow_origins=[app]) as served:
        assert await served.status("PUT", "s", Origin=app, **TEXT) == 201
        status, headers, _ = await served.send(
            "OPTIONS", "s", Origin=app, Access_Control_Request_Method="PUT"
        )
        assert status == 204
        assert headers["Access-Control-Allow-Origin"] == app
        assert "Producer-Id" in headers["Access-Control-Allow-Headers"]
        _, headers, _ = await served.send("OPTIONS", "s", Origin="https://evil.example")
        assert "Access-Control-Allow-Origin" not in headers


async def test_other_machines_need_tls_and_a_token(tmp_path: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    async with WalStore.open(tmp_path) as store:
        for options in ({}, {"token": "t"}, {"tls": context}, {"tls": context, "token": ""}):
            with pytest.raises(InvalidSettingsError):
                HttpServer.open(store, "0.0.0.0:0", **options)  # type: ignore[arg-type]
        for listen in ("x", "127.0.0.1", ":80", "127.0.0.1:99999"):
            with pytest.raises(InvalidSettingsError):
                HttpServer.open(store, listen)
        with pytest.raises(TypeError):
            HttpServer.open(store, "127.0.0.1:0", allow_origins="*")


async def test_over_tls(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    async with serving(tmp_path / "s", token="t", tls=context) as served:
        (address,) = served.server.addresses
        assert address.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(certificate))
        headers = {"Authorization": "Bearer t"}
        async with served.session.put(
            address + "/v1/stream/s", headers=headers, ssl=trusting
        ) as answer:
            assert answer.status == 201


async def test_a_place_that_is_taken(served: Served) -> None:
    place = served.server.addresses[0].removeprefix("http://")
    with pytest.raises(StorageUnavailableError, match="cannot listen"):
        await HttpServer.open(served.store, place)


async def test_what_it_says_of_itself(tmp_path: Path) -> None:
    from prometheus_client import CollectorRegistry

    from walstore.metrics import PrometheusMetrics

    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    async with (
        Wal.open(tmp_path / "orders", metrics=metrics) as wal,
        HttpServer.open(wal, "127.0.0.1:0", registry=registry, settings=QUICK) as server,
        aiohttp.ClientSession() as session,
    ):
        assert repr(server) == f"<HttpServer at {server.addresses[0]}>"

        async def get(path: str) -> tuple[int, str]:
            async with session.get(server.addresses[0] + path) as answer:
                return answer.status, await answer.text()

        await wal.append(b"v")
        assert await get("/health") == (200, '{"status": "ok"}\n')
        assert await get("/ready") == (200, '{"status": "ready"}\n')
        status, text = await get("/metrics")
        assert status == 200
        assert 'walstore_durable_limit_offset{log="orders"} 2.0' in text
        await wal.aclose()
        assert await get("/health") == (200, '{"status": "ok"}\n')
        assert (await get("/ready"))[0] == 503
        assert (await get("/v1/stream/orders"))[0] in {404, 503}


async def test_without_a_registry_there_are_no_metrics(served: Served) -> None:
    assert (await ask(served, "GET", "/metrics"))[0] == 404


async def test_too_many_requests(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=HttpSettings(connections=1, poll_seconds=5)) as served:
        await served.send("PUT", "s", **TEXT)
        async with served.session.get(served.url("s") + "?offset=now&live=sse") as answer:
            assert answer.status == 200
            status, headers, _ = await served.send("GET", "s")
            assert (status, headers["Retry-After"]) == (503, "1")
            assert (await ask(served, "GET", "/health"))[0] == 200


async def test_half_a_head_and_silence_end_the_connection(tmp_path: Path) -> None:
    limits = HttpSettings(idle_seconds=RUNS_OUT_SECONDS, poll_seconds=1.0)
    async with serving(tmp_path, settings=limits) as served:
        await served.send("PUT", "s", **TEXT)
        for said in (b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: b"):
            with case(said):
                reader, writer = await asyncio.open_connection(*address(served))
                writer.write(said)
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(), 60) == b""
                writer.close()
        # One with a request in progress stays, however long that takes.
        status, _, _ = await served.send("GET", "s", query="?offset=now&live=long-poll")
        assert status == 204


async def test_too_many_connections_are_closed(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=HttpSettings(connections=1)) as served:
        opened = [await asyncio.open_connection(*address(served)) for _ in range(30)]
        ended = [asyncio.ensure_future(reader.read()) for reader, _ in opened]
        await until(lambda: sum(one.done() for one in ended) >= 30 - 18)
        for one in ended:
            one.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
        for _, writer in opened:
            writer.close()
        await until(lambda: not served.server.requests)


def address(served: Served) -> tuple[str, int]:
    host, port = served.server.addresses[0].removeprefix("http://").rsplit(":", 1)
    return host, int(port)


async def test_a_body_that_never_ends(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=HttpSettings(body_seconds=RUNS_OUT_SECONDS)) as served:
        await served.send("PUT", "s", **TEXT)

        async def slow() -> Any:
            yield b"a"
            await asyncio.get_running_loop().create_future()

        async with served.session.post(
            served.url("s"), data=slow(), headers={"Content-Type": "text/plain"}
        ) as answer:
            assert answer.status == 408
        assert await served.content("s") == b""


_HEAD = b"POST /v1/stream/s HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"


async def test_a_client_that_stops_half_way_appends_nothing(served: Served) -> None:
    await served.send("PUT", "s", **TEXT)
    host, port = served.server.addresses[0].removeprefix("http://").split(":")
    for request in (
        _HEAD + b"Content-Length: 9\r\n\r\nhalf",
        _HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhalf",
        b"POST /v1/stre",
        b"\x00\xff" * 100,
        b"\x16\x03\x01\x02\x00",
    ):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(request)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    assert await served.content("s") == b""
    await until(lambda: not served.server.requests)


async def test_a_body_that_is_encoded(served: Served) -> None:
    await served.send("PUT", "s", **TEXT)
    good = gzip.compress(b"hello")
    assert await served.status("POST", "s", good, Content_Encoding="gzip", **TEXT) == 204
    for coding, body, expected in (
        ("gzip", b"notgzip", 400), ("gzip", good[:-3], 400), ("deflate", b"\xff\xff", 400), ("br", b"x", 400),
        ("zstd", b"x", 400), ("gzip", gzip.compress(bytes(20 << 20)), 413),
    ):  # fmt: skip
        with case((coding, expected)):
            status, headers, answer = await served.send(
                "POST", "s", body, Content_Encoding=coding, **TEXT
            )
            assert (status, headers["Content-Type"]) == (expected, "application/json")
            assert "error" in json.loads(answer)
            assert await served.status("PUT", "t", body, Content_Encoding=coding, **TEXT) == status
            assert await served.status("HEAD", "t") == 404
    assert await served.content("s") == b"hello"


async def test_what_is_no_http_costs_a_line_of_the_log(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    await served.send("PUT", "s", **TEXT)
    host, port = address(served)
    for request in (
        _HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
        _HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello!!!\r\n0\r\n\r\n",
        _HEAD + b"Connection: close\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\nx",
        _HEAD + b"Content-Length: -1\r\n\r\n",
        _HEAD + b"Connection: close\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",
        b"GET /v1/stream/s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00" + b"\xff" * 100 + b"\r\n\r\n",
        b"nonsense\r\n\r\n",
    ):
        with case(request):
            caplog.clear()
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(request)
            answer = await reader.read()  # until the server ends the connection
            writer.close()
            await writer.wait_closed()
            assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
            records = [
                one for one in caplog.records if one.name not in {"asyncio", "walstore.audit"}
            ]
            assert [one for one in records if one.exc_info is not None] == []
            assert len(records) <= 1
            assert all("\n" not in one.getMessage() for one in records)
    assert await served.content("s") == b""


async def test_names_of_all_kinds(served: Served) -> None:
    for name, status in (
        ("a%2Fb", 201), ("%C3%A4", 201), ("a/b/c", 201), ("x" * 255, 201), ("x" * 300, 400), ("..", 400),
        ("%2E%2E/x", 400), ("a//b", 400), ("a/", 400), ("%00", 400), ("%FF", 400), ("__ds/x", 404),
        (".hidden", 201), ("x" * 7000, 400),
    ):  # fmt: skip
        url = served.server.addresses[0] + "/v1/stream/" + name
        from yarl import URL

        async with served.session.put(URL(url, encoded=True)) as answer:
            assert answer.status == status, (name[:50], answer.status)


async def test_senseless_requests(served: Served) -> None:
    await served.send("PUT", "s", b"a", **TEXT)
    for query in (
        "?live=x",
        "?offset=",
        "?offset=1&offset=2",
        "?live=sse",
        "?offset=a,b",
        "?offset=%00",
    ):
        assert (await served.send("GET", "s", query=query))[0] == 400, query
    beyond = f"?offset={9:016d}_{0:016d}"
    for live in ("", "&live=sse", "&live=long-poll"):
        assert (await served.send("GET", "s", query=beyond + live))[0] == 400
    assert await served.status("PATCH", "s") == 405
    assert await served.status("POST", "s", b"a", Content_Type="nonsense") == 400
    for path in ("/other", "/v1/stream/", "/v1/other"):
        assert (await ask(served, "GET", path))[0] == 404


async def test_stopping_refuses_and_drains(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.send("PUT", "s", **TEXT)
        appending = [
            asyncio.ensure_future(served.status("POST", "s", b"x", **TEXT)) for _ in range(20)
        ]
        await asyncio.sleep(0)
        await served.server.aclose()
        await served.server.aclose()
        answers = await asyncio.gather(*appending, return_exceptions=True)
        stream = await served.store.wal("s")
        taken = stream.tail - 1
        assert taken >= sum(answer == 204 for answer in answers)


def test_settings_out_of_range() -> None:
    for name, value in (
        ("connections", 0), ("body_bytes", 10), ("read_bytes", 1 << 40), ("poll_seconds", 0),
        ("event_seconds", -1), ("drain_seconds", float("nan")), ("body_seconds", 10**9),
    ):  # fmt: skip
        with pytest.raises(InvalidSettingsError):
            HttpSettings(**{name: value})  # type: ignore[arg-type]


async def test_a_full_disk_is_one_warning_until_it_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    faulty = FaultyFileSystem()
    async with (
        WalStore.open(tmp_path, fs=faulty) as store,
        HttpServer.open(store, "127.0.0.1:0", settings=QUICK) as server,
        aiohttp.ClientSession() as session,
    ):
        served = Served(store, server, session)
        assert await served.status("PUT", "s", **TEXT) == 201
        faulty.fail("pwrite*", errno.ENOSPC, times=None)
        for _ in range(3):
            assert await served.status("POST", "s", b"x", **TEXT) == 507
        said = [one for one in caplog.messages if "a request over HTTP failed" in one]
        assert len(said) == 1
        faulty.heal()
        assert await served.status("POST", "s", b"x", **TEXT) == 204


async def test_a_proxy_of_this_machine_is_named(tmp_path: Path) -> None:
    """A page of somebody else could still make another name mean this machine."""
    async with serving(tmp_path, allow_hosts=["log.example"]) as served:
        assert await served.status("PUT", "s", Host="LOG.example:443", **TEXT) == 201
        assert await served.status("GET", "s", Host="localhost") == 200
        assert await served.status("GET", "s", Host="evil.example") == 421
        assert await served.status("GET", "s", Host="log.example.") == 200
        assert await served.status("GET", "s", Host="localhost.:80") == 200
        for host in (
            *("log.example@evil.example", "127.0.0.1:80.evil.com", "log.example:x"),
            *("[::1].evil.com", "[::1]evil", "log.example:80:80"),
        ):
            with case(host):
                assert await served.status("GET", "s", Host=host) == 421


async def test_behind_a_proxy_a_token_is_enough(tmp_path: Path) -> None:
    async with WalStore.open(tmp_path) as store:
        for options in ({}, {"token": "t"}, {"behind_proxy": True}):
            with pytest.raises(InvalidSettingsError, match="behind_proxy"):
                await HttpServer.open(store, "0.0.0.0:0", **options)
    async with serving(tmp_path, listen="0.0.0.0:0", token="t", behind_proxy=True) as served:
        assert await served.status("PUT", "s", Authorization="Bearer t", **TEXT) == 201
        assert await served.status("GET", "s", Host="log.example") == 401


async def test_it_is_not_ready_while_shipping_waits_for_an_operator(tmp_path: Path) -> None:
    """It is while a store is away: shipping goes on by itself then, and no other server would do better."""
    store = FaultyStore(MemoryStore())
    async with (
        Wal.open(tmp_path / "orders", tier=tier(store)) as wal,
        HttpServer.open(wal, "127.0.0.1:0", settings=QUICK) as server,
        aiohttp.ClientSession() as session,
    ):

        async def ready() -> tuple[int, Any]:
            async with session.get(server.addresses[0] + "/ready") as answer:
                return answer.status, await answer.json()

        assert await ready() == (200, {"status": "ready"})
        is_refusing = True

        async def refuse(request: faults.Request) -> object:
            if is_refusing:
                raise StorageUnavailableError("the token expired", retriable=False)
            return await request()

        store.on("put_if_absent", refuse, times=10**9)
        with pytest.raises(StorageUnavailableError):
            await wal.append(b"v", durability="cloud")
        status, said = await ready()
        assert (status, said["status"]) == (503, "not ready")
        assert said["reason"] == "1 log(s) failed, or are not shipped until an operator acts"
        is_refusing = False
        await wal.wait_durable(1, "cloud")
        assert await ready() == (200, {"status": "ready"})


async def test_it_is_not_ready_once_a_log_of_a_store_was_taken_over(tmp_path: Path) -> None:
    """That log has closed itself, and the server serves the others."""
    inner = MemoryStore()
    store = await WalStore.open(tmp_path / "store", tier=lambda name: tier(inner))
    async with (
        HttpServer.open(store, "127.0.0.1:0", settings=QUICK) as server,
        aiohttp.ClientSession() as session,
    ):
        wal = await store.wal("orders")
        await wal.append(b"v", durability="cloud")
        taker = CloudTier(URL, store=inner, settings=SMALL, retry=FAST, take_over=True)
        async with Wal.open(tmp_path / "other", tier=taker) as other:
            await other.append(b"w", durability="cloud")
        with contextlib.suppress(WalError):
            await wal.append(b"x", durability="cloud")
        await until(lambda: wal.statistics().tier_failure is not None)
        async with session.get(server.addresses[0] + "/ready") as answer:
            assert (answer.status, (await answer.json())["status"]) == (503, "not ready")
    with pytest.raises(WalError, match="taken over"):
        await store.aclose()
