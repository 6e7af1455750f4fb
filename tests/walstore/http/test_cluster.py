"""A cluster over HTTP: any machine answers for all logs, and passes on what another one leads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.connecting import try_once
from tests.waiting import until
from tests.walstore.cluster.machines import Machine, Machines
from tests.walstore.http.test_answering import check_headers
from walstore import (
    AccessDeniedError,
    InvalidSettingsError,
    LogNotFoundError,
    StorageUnavailableError,
    connect,
    connect_readonly,
)
from walstore.cluster.member import ClusterMember
from walstore.core.files.directory import PROMISE_NAME
from walstore.http import HttpServer, HttpSettings
from walstore.http.protocol import RefusedError
from walstore.http.proxy import Proxy
from walstore.serve import AccessScope, AccessToken, AccessTokens, Server
from walstore.serve.access_token import sha256_of
from walstore.topology.documents import check_web
from walstore.topology.memory import MemoryKeyValues

pytestmark = pytest.mark.timeout(60)
PATH = "/v1/stream/orders"
TEXT = {"Content-Type": "text/plain"}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Machines]:
    web = {"settings": HttpSettings(drain_seconds=60)}
    async with Machines(tmp_path, web=web) as machines:
        await until(lambda: all(len(one.member.view.members) == 3 for one in machines.all))  # type: ignore[union-attr]
        yield machines


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        yield session


def at(machine: Machine, path: str = PATH) -> str:
    assert machine.web is not None
    return machine.web.addresses[0] + path


@asynccontextmanager
async def serving(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[TestServer]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(app) as server:
        yield server


async def create(cluster: Machines, client: aiohttp.ClientSession, by: int = 0) -> Machine:
    async with client.put(at(cluster.all[by]), headers=TEXT, data=b"one") as answer:
        assert answer.status == 201, await answer.text()
        assert answer.headers["Location"] == at(cluster.all[by])
    return await cluster.led(by=cluster.all[by])


def others(cluster: Machines) -> list[Machine]:
    return [one for one in cluster.all if one is not cluster.leader()]


async def test_a_stream_is_made_anywhere_and_used_everywhere(
    cluster: Machines, client: aiohttp.ClientSession
) -> None:
    await create(cluster, client, by=1)
    assert len(cluster.spec().copies) == 3
    for number, machine in enumerate(cluster.all):
        async with client.post(at(machine), headers=TEXT, data=b"-%d" % number) as answer:
            assert answer.status == 204
    for machine in cluster.all:
        async with client.get(at(machine)) as answer:
            assert (answer.status, await answer.text()) == (200, "one-0-1-2")
            assert answer.headers["Stream-Up-To-Date"] == "true"
        async with client.head(at(machine)) as answer:
            assert answer.headers["Content-Type"] == "text/plain"
        async with client.put(at(machine), headers=TEXT) as answer:
            assert answer.status == 200  # it is there
        async with client.put(at(machine), headers={"Content-Type": "text/html"}) as answer:
            assert answer.status == 409


async def test_a_suspended_log_is_refused_and_shown(
    cluster: Machines, client: aiohttp.ClientSession
) -> None:
    """Not as a server that is away: whoever asks has to resume it."""
    await create(cluster, client)
    await cluster.apply(suspended=True)
    await until(lambda: all(not one.led() and not one.member.node.logs for one in cluster.all))  # type: ignore[union-attr]
    for machine in cluster.all:
        for answered in (
            client.post(at(machine), headers=TEXT, data=b"two"),
            client.get(at(machine)),
            client.put(at(machine), headers=TEXT),
        ):
            async with answered as answer:
                assert (answer.status, "Retry-After" in answer.headers) == (409, False)
                assert "walstore logs resume orders" in await answer.text()
        async with client.get(at(machine, "/v1/look")) as answer:
            (log,) = (await answer.json())["cluster"]["logs"]
        assert (log["suspended"], log["leader"], log["present"]) == (True, None, [])
    await cluster.apply(suspended=False)
    async with client.get(at(cluster.all[1])) as answer:
        assert (answer.status, await answer.text()) == (200, "one")


async def test_why_a_copy_is_missing_is_shown(
    cluster: Machines, client: aiohttp.ClientSession
) -> None:
    """By any machine, of the logs of all: as the leader last published it."""
    await create(cluster, client)
    leader = await cluster.led()
    bad, other = (one for one in cluster.all if one is not leader)
    await bad.stop()
    (bad.path / "orders" / PROMISE_NAME).write_bytes(b"garbage")
    await bad.start()

    async def look() -> dict[str, Any]:
        async with client.get(at(other, "/v1/look")) as answer:
            (log,) = (await answer.json())["cluster"]["logs"]
        return cast(dict[str, Any], log)

    log = await look()
    while "promise" not in log["missing"].get(bad.address, ""):
        log = await look()
    assert bad.address not in log["present"]
    async with client.get(at(leader, "/v1/look/orders")) as answer:
        copies = (await answer.json())["statistics"]["copies"]
    assert "promise" in next(one["trouble"] for one in copies if one["address"] == bad.address)


async def test_a_log_that_is_read_from_a_store_is_not_served_over_http(
    cluster: Machines, client: aiohttp.ClientSession
) -> None:
    await cluster.apply(source="s3://bucket/orders")
    await until(lambda: all("orders" in one.member.view.specs for one in cluster.all))  # type: ignore[union-attr]
    for answered in (client.get(at(cluster.all[0])), client.put(at(cluster.all[1]), headers=TEXT)):
        async with answered as answer:
            assert answer.status == 501
            assert "walstore.connect_readonly()" in await answer.text()
    async with client.get(at(cluster.all[0], "/v1/look")) as answer:
        (log,) = (await answer.json())["cluster"]["logs"]
    assert (log["source"], log["leader"], log["copies"]) == ("s3://bucket/orders", None, [])


async def test_an_idempotent_producer_through_two_machines(
    cluster: Machines, client: aiohttp.ClientSession
) -> None:
    await create(cluster, client)
    headers = {**TEXT, "Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
    statuses = []
    for machine in cluster.all[1:]:
        async with client.post(at(machine), headers=headers, data=b"-once") as answer:
            statuses.append(answer.status)
    assert statuses == [200, 204]
    async with client.get(at(cluster.all[1])) as answer:
        assert await answer.text() == "one-once"


async def test_a_live_reader_at_another_machine(
    cluster: Machines, client: aiohttp.ClientSession
) -> None:
    await create(cluster, client)
    other = others(cluster)[0]
    async with client.get(at(other) + "?offset=now&live=sse") as live:
        assert live.headers["Content-Type"].startswith("text/event-stream")
        await live.content.readuntil(b"\n\n")  # where it begins
        async with client.post(at(cluster.all[0]), headers=TEXT, data=b"two") as answer:
            assert answer.status == 204
        async with asyncio.timeout(60):
            assert b"two" in await live.content.readuntil(b"\n\n")
        # A server that stops ends what it passes on.
        assert other.web is not None
        async with asyncio.timeout(30):
            await other.web.aclose()
        with pytest.raises(aiohttp.ClientError):
            await live.content.read()


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("query", ["", "?offset=now", "?offset=-1&live=sse"])
async def test_a_leader_that_may_not_lead_any_more_does_not_say_that_it_is_up_to_date(
    cluster: Machines, client: aiohttp.ClientSession, method: str, query: str
) -> None:
    leader = await create(cluster, client)
    for machine in others(cluster):
        await machine.stop()
    async with client.request(method, at(leader) + query) as answer:
        assert answer.status == 503
        assert "Stream-Up-To-Date" not in answer.headers


async def test_after_a_takeover_the_next_leader_has_the_stream(
    cluster: Machines, client: aiohttp.ClientSession
) -> None:
    first = await create(cluster, client)
    asked = others(cluster)[0]
    await first.stop()
    await until(lambda: cluster.leader() not in (None, first))

    async def read() -> str:
        async with client.get(at(asked)) as answer:
            return await answer.text() if answer.status == 200 else ""

    async with asyncio.timeout(60):
        while await read() != "one":
            pass
    async with client.post(at(asked), headers=TEXT, data=b"-two") as answer:
        assert answer.status == 204


async def test_what_a_cluster_does_not_do(cluster: Machines, client: aiohttp.ClientSession) -> None:
    for name, value in (("Stream-TTL", "60"), ("Stream-Forked-From", "/v1/stream/other")):
        async with client.put(at(cluster.all[0]), headers={**TEXT, name: value}) as answer:
            assert answer.status == 400, await answer.text()
            assert "no lifetime, and no forks" in await answer.text()
    async with client.put(at(cluster.all[0], "/v1/stream/a/b"), headers=TEXT) as answer:
        assert answer.status == 400
    assert not cluster.store.list("walstore/logs/").items
    await create(cluster, client)
    for machine in cluster.all:
        async with client.delete(at(machine)) as answer:
            assert answer.status == 405
            assert "walstore logs remove" in await answer.text()
    async with client.get(at(cluster.all[0], "/v1/stream/no")) as answer:
        assert answer.status == 404


async def test_a_leader_that_is_not_reached_over_http(
    cluster: Machines, client: aiohttp.ClientSession
) -> None:
    leader = await create(cluster, client)
    assert leader.web is not None
    await leader.web.aclose()
    async with client.get(at(others(cluster)[0])) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert "does not answer" in await answer.text()


async def test_what_was_passed_on_is_not_passed_on_again(
    cluster: Machines, client: aiohttp.ClientSession
) -> None:
    await create(cluster, client)
    headers = {"Walstore-Passed-On": "1"}
    async with client.get(at(others(cluster)[0]), headers=headers) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")


async def test_the_page_shows_machines_and_logs(
    cluster: Machines, client: aiohttp.ClientSession
) -> None:
    leader = await create(cluster, client)

    async def look(machine: Machine, path: str) -> Any:
        async with client.get(at(machine, path)) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    for machine in cluster.all:
        found = await look(machine, "/v1/look")
        assert [one["name"] for one in found["logs"]] == ["orders"]
        assert found["logs"][0]["open"] is (machine is leader)
        shown = found["cluster"]
        assert shown["address"] == machine.address
        (log,) = shown["logs"]
        assert (log["leader"], log["replicas"], log["quorum"]) == (leader.address, 3, 2)
        members = {one["address"]: one for one in shown["members"]}
        assert members[leader.address]["leads"] == 1
        assert all(one["copies"] == 1 and one["web"] for one in members.values())
        assert (await look(machine, "/v1/look/orders"))["statistics"]["tail"] == 2
        records = await look(machine, "/v1/records/orders?from=earliest")
        assert [one["value"] for one in records["records"]] == [{"text": "one"}]
        assert await look(machine, "/health") == {"status": "ok"}


async def test_a_token_is_asked_for_at_each_machine(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    async with Machines(tmp_path, web={"token": "t"}, token="t") as machines:
        headers = {**TEXT, "Authorization": "Bearer t"}
        await until(lambda: len(machines.all[0].member.view.members) == 3)  # type: ignore[union-attr]
        async with client.put(at(machines.all[0]), headers=headers) as answer:
            assert answer.status == 201
        for machine in machines.all:
            async with client.post(at(machine), headers=TEXT, data=b"x") as answer:
                assert answer.status == 401
            async with client.post(at(machine), headers=headers, data=b"x") as answer:
                assert answer.status == 204


async def test_tokens_with_scopes_count_at_each_machine(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    """Over both protocols, whichever machine leads; a token of an administrator is that of the machines."""
    scopes = {"client": {AccessScope.APPEND}, "machine": set(AccessScope)}
    tokens = [
        AccessToken(name=name, sha256=sha256_of(name), scopes=frozenset(some))
        for name, some in scopes.items()
    ]
    web = {"tokens": AccessTokens(tokens)}
    async with Machines(tmp_path, web=web, token="machine") as machines:
        headers = {**TEXT, "Authorization": "Bearer client"}
        await until(lambda: len(machines.all[0].member.view.members) == 3)  # type: ignore[union-attr]
        async with client.put(at(machines.all[0]), headers=headers) as answer:
            assert answer.status == 201
        for machine in machines.all:
            async with client.post(at(machine), headers=headers, data=b"x") as answer:
                assert answer.status == 204
            async with client.get(at(machine), headers=headers) as answer:
                assert (answer.status, "'read'" in await answer.text()) == (403, True)
            assert machine.server is not None
            address = str(machine.server.addresses[0])
            async with connect(address, log="orders", token="client") as remote:
                await remote.append(b"y")
                with pytest.raises(AccessDeniedError, match="lacks the scope 'admin'"):
                    await remote.trim(1)


async def test_a_ticket_reads_what_another_machine_leads(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    async with Machines(tmp_path, web={"token": "t"}, token="t") as machines:
        headers = {**TEXT, "Authorization": "bearer t"}
        await until(lambda: len(machines.all[0].member.view.members) == 3)  # type: ignore[union-attr]
        async with client.put(at(machines.all[0]), headers=headers, data=b"one") as answer:
            assert answer.status == 201
        await machines.led(by=machines.all[0])
        first, second = others(machines)
        async with client.post(at(first, "/v1/ticket/orders"), headers=headers) as answer:
            ticket = (await answer.json())["ticket"]
        for machine, status in ((first, 200), (second, 401)):
            async with client.get(at(machine) + f"?ticket={ticket}&offset=-1") as answer:
                assert (answer.status, await answer.text() == "one") == (status, status == 200)
        async with client.post(at(first) + f"?ticket={ticket}", headers=TEXT, data=b"x") as answer:
            assert answer.status == 401


async def test_what_is_passed_on_has_the_headers_of_every_answer(
    cluster: Machines, client: aiohttp.ClientSession
) -> None:
    async with client.put(at(cluster.all[0]), headers={"Content-Type": "text/html"}, data=b"<b>"):
        pass
    await cluster.led()
    for machine in cluster.all:
        for method, query in (
            ("GET", ""), ("HEAD", ""), ("GET", "?offset=-1&live=sse"), ("GET", "?offset=-1&live=long-poll"),
            ("GET", "?offset=x"), ("DELETE", ""), ("PUT", ""), ("POST", ""),
        ):  # fmt: skip
            async with client.request(method, at(machine) + query) as answer:
                check_headers(answer.headers)


async def test_a_stream_made_at_three_machines_at_once(
    cluster: Machines, client: aiohttp.ClientSession
) -> None:
    for number in range(3):
        path = f"/v1/stream/s{number}"
        answers = await asyncio.gather(
            *(client.put(at(machine, path), headers=TEXT) for machine in cluster.all)
        )
        assert {answer.status for answer in answers} <= {200, 201, 503}
        assert 201 in {answer.status for answer in answers}


async def test_before_it_has_joined_a_machine_is_not_ready(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    store = MemoryKeyValues()
    async with (
        ClusterMember.open(tmp_path, store.client()) as member,
        HttpServer.open(None, "127.0.0.1:0", cluster=member) as server,
        Server.open(None, cluster=member, unix=tmp_path / "s"),
    ):
        for path, status in (("/ready", 503), (PATH, 503), ("/health", 200)):
            async with client.get(server.addresses[0] + path) as answer:
                assert answer.status == status
        for connecting in (connect, connect_readonly):
            with pytest.raises(StorageUnavailableError, match="is starting"):
                await try_once(connecting, f"unix://{tmp_path}/s", log="orders")
        await member.join(f"unix://{tmp_path}/s")
        async with client.get(server.addresses[0] + "/ready") as answer:
            assert answer.status == 200
        async with client.get(server.addresses[0] + PATH) as answer:
            assert answer.status == 404


async def test_a_copy_of_an_earlier_time_is_not_read(cluster: Machines) -> None:
    await cluster.apply(replicas=3)
    await cluster.led()
    async with await cluster.connect() as remote:
        await remote.append(b"one")
    await cluster.apply(replicas=2)
    await until(lambda: len(cluster.spec().copies) == 2)
    (given_up,) = (one for one in cluster.all if one.address not in cluster.spec().copies)
    await until(lambda: "orders" not in given_up.member.node.logs)  # type: ignore[union-attr]
    with pytest.raises(LogNotFoundError, match="on other machines"):
        await connect_readonly(given_up.address, log="orders")
    async with connect_readonly([one.address for one in cluster.all], log="orders") as log:
        assert (await anext(log.follow())).value == b"one"
    with pytest.raises(LogNotFoundError, match="no such log"):
        await connect_readonly(given_up.address, log="no")


async def test_a_machine_alone_makes_no_stream(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    async with (
        Machines(tmp_path, size=1, web={}) as machines,
        client.put(at(machines.all[0]), headers=TEXT) as answer,
    ):
        assert answer.status == 503
        assert "no second machine" in await answer.text()


async def test_a_stream_is_not_made_over_records_that_a_machine_has(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    """Etcd lost what it knew of the log."""
    async with Machines(tmp_path, web={}) as machines:
        await until(lambda: all(len(one.member.view.members) == 3 for one in machines.all))  # type: ignore[union-attr]
        await create(machines, client)
    async with Machines(tmp_path, web={}) as machines:
        await until(lambda: all(len(one.member.view.members) == 3 for one in machines.all))  # type: ignore[union-attr]
        async with client.put(at(machines.all[0]), headers=TEXT) as answer:
            assert (answer.status, "--adopt" in await answer.text()) == (409, True)
        assert machines.store.get("walstore/logs/orders") is None


async def test_arguments(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingsError, match="logs, or cluster="):
        await HttpServer.open(None, "127.0.0.1:0")
    for wrong in ("10.0.0.1:1", "http://", "http://a/b", "ftp://a:1", "http://u@a:1"):
        with pytest.raises(InvalidSettingsError, match="address of an HTTP server"):
            check_web(wrong)


async def test_a_leader_that_stands_still_is_left_when_another_one_leads(
    client: aiohttp.ClientSession,
) -> None:
    """It would keep its clients waiting. What it did is unknown, and a reader sees that there is no end."""
    asked, moved = asyncio.Event(), asyncio.Event()

    async def stand_still(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        if request.method == "GET":
            await answer.prepare(request)
            await answer.write(b"some")
        asked.set()
        await asyncio.Event().wait()
        return answer

    async def until_moved() -> None:
        await moved.wait()

    async def pass_on(request: web.Request) -> web.StreamResponse:
        try:
            return await proxy.pass_on(request, str(leader.make_url("")).rstrip("/"), until_moved)
        except RefusedError as error:
            return web.Response(status=error.status, text=str(error), headers=error.headers)

    proxy = Proxy(None)
    async with serving(stand_still) as leader, serving(pass_on) as other:
        async with asyncio.TaskGroup() as group:
            post = group.create_task(client.post(other.make_url("/v1/stream/x"), data=b"v"))
            await asked.wait()
            moved.set()
            answer = await post
            assert (answer.status, "is unknown" in await answer.text()) == (502, True)
        asked.clear()
        moved.clear()
        async with client.get(other.make_url("/v1/stream/x")) as live:
            assert await live.content.readexactly(4) == b"some"
            moved.set()
            with pytest.raises(aiohttp.ClientError):
                await live.content.read()
    await proxy.aclose()
