"""Audit lines of both protocols: who connected, what was made or removed, and how much was appended."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.local import SMALL
from tests.waiting import until
from tests.walstore.http.conftest import serving as serving_http
from walstore import AccessDeniedError, WalClosedError, WalStore, connect
from walstore.serve import AccessScope, AccessToken, AccessTokens, Server
from walstore.serve.access_token import sha256_of
from walstore.serve.audit_trail import AuditTrail

Lines = list[dict[str, Any]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Lines]:
    """The fields of the audit lines so far."""
    found: Lines = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.__dict__["fields"])

    handler = Keep()
    audit = logging.getLogger("walstore.audit")
    audit.addHandler(handler)
    caplog.set_level(logging.INFO, "walstore.audit")
    yield found
    audit.removeHandler(handler)


def two_tokens() -> AccessTokens:
    writer = AccessToken(
        name="writer", sha256=sha256_of("w"), scopes=frozenset({AccessScope.APPEND})
    )
    return AccessTokens(
        [writer, AccessToken(name="boss", sha256=sha256_of("b"), scopes=frozenset(AccessScope))]
    )


def some(lines: Lines, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(line.get(name) for name in names) for line in lines]


async def test_a_connection_and_what_is_done_over_it(tmp_path: Path, lines: Lines) -> None:
    async with (
        WalStore.open(tmp_path / "store", settings=SMALL) as store,
        Server.open(store, tcp="127.0.0.1:0", tokens=two_tokens()) as server,
    ):
        address = str(server.addresses[0])
        with pytest.raises(AccessDeniedError):
            await connect(address, log="a", token="wrong")
        async with connect(address, log="a", token="w") as writer:
            await writer.append(b"1")
            await writer.append_many([b"2", b"3"])
            async with writer.transaction() as transaction:
                await transaction.append(b"4")
            with pytest.raises(AccessDeniedError, match="lacks the scope 'admin'"):
                await writer.trim(2)
        async with connect(address, log="a", token="b") as boss:
            await boss.trim(2)
            cursor = await boss.cursor("c")
            await cursor.delete()
            await (await store.wal("a")).aclose()
            with pytest.raises(WalClosedError):
                await boss.trim(3)
        await until(lambda: not server.connections)
    assert some(lines, "action", "token", "outcome", "log") == [
        ("connect", None, "refused", None),
        ("create_log", "writer", "done", "a"),
        ("connect", "writer", "done", "a"),
        ("trim", "writer", "refused", "a"),
        ("disconnect", "writer", "done", None),
        ("connect", "boss", "done", "a"),
        ("trim", "boss", "done", "a"),
        ("delete_cursor", "boss", "done", "a"),
        ("trim", "boss", "failed: WalClosedError", "a"),
    ]
    assert [line["appended"] for line in lines if line["action"] == "disconnect"] == [{"a": 4}]
    assert lines[6]["before"] == 2
    assert lines[7]["name"] == "c"
    assert {line["tls"] for line in lines} == {False}
    assert all(line["peer"].startswith("127.0.0.1:") for line in lines)


async def test_http(tmp_path: Path, lines: Lines) -> None:
    """One connection of requests with several tokens has a line for each of them."""
    async with serving_http(tmp_path, tokens=two_tokens()) as served:

        async def send(method: str, token: str, **headers: str) -> int:
            if method in {"PUT", "POST"}:
                headers["Content-Type"] = "text/plain"
            headers["Authorization"] = f"Bearer {token}"
            return await served.status(method, "a", b"x" if method == "POST" else b"", **headers)

        asked = [("PUT", "x"), ("PUT", "w"), ("PUT", "w"), ("POST", "w"), ("POST", "b")]
        assert [await send(*one) for one in asked] == [401, 201, 200, 204, 204]
        assert await send("POST", "w", Stream_Closed="true") == 204
        assert [await send("DELETE", one) for one in ("w", "b", "b")] == [403, 204, 404]
    assert some(lines, "action", "token", "outcome") == [
        ("connect", None, "refused"),
        ("connect", "writer", "done"),
        ("create_log", "writer", "done"),
        ("connect", "boss", "done"),
        ("close_log", "writer", "done"),
        ("delete_log", "writer", "refused"),
        ("delete_log", "boss", "done"),
        ("delete_log", "boss", "failed: 404"),
        ("disconnect", "boss,writer", "done"),
    ]
    assert lines[-1]["appended"] == {"a": 3}
    assert {line["protocol"] for line in lines} == {"http"}


def test_a_line_stays_one_line(lines: Lines, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a client calls its log, and for text as for fields."""
    trail = AuditTrail(None, "walstore")
    trail.ended()  # nothing was appended
    trail.connected(None)
    trail.connected(None)
    trail.acted("trim", "one", "done", log='a b"\n' + "x" * 1000, before=None)
    for number in range(200):
        trail.appended(str(number), 1)
    trail.ended()
    assert [one["action"] for one in lines] == ["connect", "trim", "disconnect"]
    first, second, last = (one.getMessage() for one in caplog.records)
    assert first == "action=connect token=- peer=unknown tls=false protocol=walstore outcome=done"
    assert 'log="a b\\"\\nxxx' in second
    assert "\n" not in second
    assert len(second) < 400
    assert len(lines[-1]["appended"]) == 100
    assert last.startswith("action=disconnect token=- ")
