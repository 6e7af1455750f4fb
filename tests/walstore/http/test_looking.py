"""What the page asks for: logs, records, collections. The page itself is tested in a browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest

from tests.cases import case
from tests.waiting import until
from uploader import CloudTier, Collection
from walstore import Wal, WalStore
from walstore.http import HttpServer


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Wal, aiohttp.ClientSession]]:
    """A shipped log with records of all kinds, served."""
    async with (
        Wal.open(tmp_path / "log", tier=CloudTier((tmp_path / "store").as_uri())) as wal,
        HttpServer.open(wal, "127.0.0.1:0") as server,
        aiohttp.ClientSession(server.addresses[0]) as client,
    ):
        for n in range(10):
            await wal.append(b"v%d" % n, key=b"k%d" % (n % 2), stream="s" if n < 3 else None)
        await wal.append(b"\xff\x00", headers={"h": "ü".encode()}, durability="cloud")
        await wal.append("ü".encode() * 3000)
        yield wal, client


async def ask(client: aiohttp.ClientSession, path: str, status: int = 200) -> Any:
    async with client.get(path) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


async def test_a_log(served: Any) -> None:
    wal, client = served
    await (await wal.cursor("report")).commit(4)
    async with wal.group("workers") as group:
        await group.fetch()
        found = await ask(client, "/v1/look/log")
    assert found["statistics"]["durable_limit"] == 13
    assert found["statistics"]["groups"]["workers"]["pending"] == 1
    assert [one["kind"] for one in found["segments"]] == ["active"]
    assert found["stored"][0]["start"] == 1
    assert found["stored"][-1]["limit"] == found["statistics"]["uploaded_limit"]
    assert {one["name"]: one["position"] for one in found["cursors"]}["report"] == 4
    assert found["deletable_limit"] == 1  # the group's cursor
    assert (await ask(client, "/v1/look"))["logs"][0]["limit"] == 13
    await ask(client, "/v1/look/other", 404)


async def test_records(served: Any) -> None:
    _, client = served
    for query, offsets, following in (
        ("", [*range(1, 13)], 13),
        ("from=earliest&count=2", [1, 2], 3),
        ("from=5&count=2", [5, 6], 7),
        ("from=-3", [10, 11, 12], 13),
        ("from=999", [], 13),
        ("from=2020-01-01&count=1", [1], 2),
        ("from=2999-01-01T00:00Z", [], 13),
        ("from=earliest&stream=s", [1, 2, 3], 13),
        ("from=earliest&key=k1", [2, 4, 6, 8, 10], 13),
        ("from=earliest&key=k1&count=2", [2, 4], 5),
        ("from=earliest&key=none", [], 13),
    ):
        with case(query):
            found = await ask(client, f"/v1/records/log?{query}")
            assert [one["offset"] for one in found["records"]] == offsets
            assert found["next"] == following
    many = "0" * 18 + "50999999"
    for query in ("count=0", "count=201", "count=x", "count=²", "from=soon", "from=--1",
                  f"count={many}", "count=" + "0" * 5000, "count=1%0A"):  # fmt: skip
        with case(query):
            assert "error" in await ask(client, f"/v1/records/log?{query}", 400)


async def test_values_are_text_or_base64_and_cut_between_characters(served: Any) -> None:
    _, client = served
    many = await ask(client, "/v1/records/log?from=-2")
    binary, long = many["records"]
    assert binary["value"] == {"base64": "/wA="}
    assert binary["headers"] == {"h": {"text": "ü"}}
    assert long["value"]["text"] == "ü" * 1024
    assert long["value_bytes"] == 6000
    (whole,) = (await ask(client, "/v1/records/log?from=-1&count=1"))["records"]
    assert whole["value"]["text"] == "ü" * 3000


async def test_a_store_names_its_logs_and_opens_only_what_is_looked_at(tmp_path: Path) -> None:
    async with WalStore.open(tmp_path) as store:
        for name in ("a", "b/c"):
            await (await store.wal(name)).append(b"v")
            await store.close_log(name)
        async with (
            HttpServer.open(store, "127.0.0.1:0") as server,
            aiohttp.ClientSession(server.addresses[0]) as client,
        ):
            # A server looks at every stream once, for those whose time is over.
            await until(lambda: set(store.opened()) == {"a", "b/c"})
            await store.close_log("a")
            found = await ask(client, "/v1/look")
            assert [(one["name"], one["open"]) for one in found["logs"]] == [
                ("a", False),
                ("b/c", True),
            ]
            assert (await ask(client, "/v1/look/b%2Fc"))["statistics"]["tail"] == 2
            await ask(client, "/v1/look/no", 404)
            await ask(client, "/v1/records/no", 404)
            assert not await store.exists("no")


async def test_a_collection(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    async with (
        Wal.open(tmp_path / "log") as wal,
        Collection.open((tmp_path / "people").as_uri(), create=True, schema=schema) as people,
        HttpServer.open(wal, "127.0.0.1:0", collections={"people": people}) as server,
        aiohttp.ClientSession(server.addresses[0]) as client,
    ):
        await people.writer().append(pa.table({"id": [1, 2]}), lower=0, upper=7)
        async with await people.reader("report"):
            found = await ask(client, "/v1/collections/people")
        assert (found["upper"], found["pending"]["rows"]) == (7, 2)
        assert [(one["name"], one["holds"]) for one in found["readers"]] == [("report", True)]
        assert (await ask(client, "/v1/look"))["collections"] == ["people"]
        await ask(client, "/v1/collections/no", 404)


async def test_a_token_protects_the_data_and_not_the_page(tmp_path: Path) -> None:
    async with (
        Wal.open(tmp_path / "log") as wal,
        HttpServer.open(wal, "127.0.0.1:0", token="secret") as server,
        aiohttp.ClientSession(server.addresses[0]) as client,
    ):
        for path in ("/v1/look", "/v1/look/log", "/v1/records/log", "/v1/collections/x"):
            await ask(client, path, 401)
        for path, kind in (
            ("/", "text/html"),
            ("/page/page.js", "text/javascript"),
            ("/page/page.css", "text/css"),
        ):
            async with client.get(path) as answer:
                assert (answer.status, answer.content_type) == (200, kind)
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
                assert b"secret" not in await answer.read()
