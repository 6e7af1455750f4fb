"""A node of etcd's JSON gateway over a store in memory, which fails when told to."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from enum import Enum
from typing import Any
from weakref import WeakSet

from aiohttp import web

from walstore.topology.key_values import Event, HistoryCompactedError, KeyValue, LeaseLostError
from walstore.topology.memory import MemoryKeyValues

Body = dict[str, Any]
Handler = Callable[[Body], Body]


class Fault(Enum):
    """What a node does wrong."""

    RESET = "resets the connection before it does anything"
    LOST = "does it, and resets the connection instead of answering"
    UNAVAILABLE = "says that it may have done it"
    BUSY = "says that it has too many requests, and does nothing"
    NOT_ETCD = "is a web server of another kind"
    FULL = "says that it has no space"
    PROXY = "is behind a proxy that cannot reach it"
    GARBAGE = "does it, and answers nonsense"
    OTHER_JSON = "does it, and answers with JSON of something else"
    SILENT = "never answers, and does nothing"
    LATE = "never answers, and does it"
    DENIED = "permits nothing"
    HUGE = "does it, and answers without end"
    CUT = "resets the connection of a watch after a part of what it tells"
    DEAF = "answers, and tells nothing to those that watch"


ERRORS = {
    Fault.UNAVAILABLE: (503, {"error": "etcdserver: request timed out", "code": 14}),
    Fault.BUSY: (429, {"error": "etcdserver: too many requests", "code": 8}),
    Fault.FULL: (429, {"error": "etcdserver: mvcc: database space exceeded", "code": 8}),
    Fault.DENIED: (403, {"error": "etcdserver: permission denied", "code": 7}),
    Fault.NOT_ETCD: (404, None),
    Fault.PROXY: (502, None),
}


class FakeEtcd:
    """One node. Its faults are by the path of requests."""

    def __init__(self, store: MemoryKeyValues) -> None:
        self.store = store
        self.endpoint = ""
        self.requests: list[str] = []
        self.faults: dict[str, Fault] = {}
        """What happens to every request."""
        self.once: dict[str, Fault] = {}
        """What happens to the next request."""
        self.then: Callable[[], object] = lambda: None
        """Called when a connection was reset, before anybody can know."""
        self.user: tuple[str, str] | None = None
        self.tokens: set[str] = set()
        self.part_events = 1 << 30
        """How many events are in a part of a watch."""
        self._transports: WeakSet[asyncio.Transport] = WeakSet()
        self._handlers: dict[str, Handler] = {
            "/v3/kv/range": self._range,
            "/v3/kv/txn": self._txn,
            "/v3/lease/grant": self._grant,
            "/v3/lease/keepalive": self._keep_alive,
            "/v3/lease/revoke": self._revoke,
            "/v3/auth/authenticate": self._authenticate,
        }

    def reset_all(self) -> None:
        """Reset all connections."""
        for transport in list(self._transports):
            transport.abort()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        assert request.transport is not None
        self._transports.add(request.transport)
        self.requests.append(path)
        body = json.loads(await request.read())
        fault = self.once.pop(path, None) or self.faults.get(path)
        match fault:
            case Fault.RESET:
                return self._reset(request)
            case Fault.SILENT:
                await asyncio.Event().wait()
            case None | Fault.DEAF | Fault.CUT:
                pass
            case _ if fault in ERRORS:
                status, said = ERRORS[fault]
                return (
                    web.json_response(said, status=status) if said else web.Response(status=status)
                )
        if self.user and path != "/v3/auth/authenticate":
            token = request.headers.get("Authorization", "")
            if token not in self.tokens:
                said, code = ("invalid auth token", 16) if token else ("user name is empty", 3)
                return _error(401 if token else 400, said, code)
        if path == "/v3/watch":
            return await self._watch(request, body["create_request"], fault)
        try:
            result = self._handlers[path](body)
        except LeaseLostError:
            return _error(404, "requested lease not found", 5)
        except HistoryCompactedError:
            return _error(400, "mvcc: required revision has been compacted", 11)
        except PermissionError as error:
            return _error(400, str(error), 3)
        except LookupError as error:
            return _error(412, str(error), 9)
        return await self._give(request, fault, {"header": self._header(), **result})

    async def _give(
        self, request: web.Request, fault: Fault | None, result: Body
    ) -> web.StreamResponse:
        match fault:
            case Fault.LOST:
                return self._reset(request)
            case Fault.LATE:
                await asyncio.Event().wait()
            case Fault.GARBAGE:
                return web.Response(body=b'{"header": {"rev\xff')
            case Fault.OTHER_JSON:
                return web.json_response([1])
            case Fault.HUGE:
                return web.Response(body=b" " * (17 << 20))
        if request.path != "/v3/lease/keepalive":
            return web.json_response(result)
        stream = web.StreamResponse()
        await stream.prepare(request)
        await stream.write(json.dumps({"result": result}).encode() + b"\n")
        return stream

    # -- requests ----------------------------------------------------------------------------

    def _range(self, body: Body) -> Body:
        begin, end = _bytes(body["key"]), _bytes(body.get("range_end", ""))
        revision = int(body.get("revision", 0))
        if revision:
            return {"kvs": self._then(begin.decode(), revision)}
        items = [
            item
            for key, item in self.store.list("").items.items()
            if _is_within(key, begin, end or begin + b"\0")
        ]
        if body.get("sort_order") == "DESCEND":
            items.sort(key=lambda item: item.revision, reverse=True)
        return {"kvs": [_kv(item) for item in items[: int(body.get("limit", 0)) or None]]}

    def _then(self, key: str, revision: int) -> list[Body]:
        """What a key was at a revision."""
        events = self.store.events("", revision if self.store.compacted else 0)
        events = [one for one in events if one.key == key and one.revision <= revision]
        return [_kv(events[-1].now)] if events and events[-1].now else []

    def _txn(self, body: Body) -> Body:
        (compare,), (success,) = body["compare"], body["success"]
        expected = int(compare["mod_revision"])
        key = _bytes(compare["key"]).decode()
        put = success.get("request_put")
        swap = self.store.swap(
            key, _bytes(put["value"]) if put else None, expected, int(put["lease"]) if put else 0
        )
        if swap.happened:
            return {"succeeded": True, "responses": [{}]}
        found = [_kv(swap.found)] if swap.found else []
        return {"responses": [{"response_range": {"kvs": found}}]}

    def _grant(self, body: Body) -> Body:
        return {"ID": str(self.store.grant(int(body["TTL"]))), "TTL": body["TTL"]}

    def _keep_alive(self, body: Body) -> Body:
        try:
            return {"ID": body["ID"], "TTL": str(int(self.store.keep_alive(int(body["ID"]))))}
        except LeaseLostError:
            return {"ID": body["ID"]}

    def _revoke(self, body: Body) -> Body:
        lease = int(body["ID"])
        if lease not in self.store.leases:
            raise LeaseLostError("gone", lease=lease)
        self.store.revoke(lease)
        return {}

    def _authenticate(self, body: Body) -> Body:
        if self.user is None:
            raise LookupError("authentication is not enabled")
        if (body["name"], body["password"]) != self.user:
            raise PermissionError("authentication failed, invalid user ID or password")
        token = f"token-{len(self.requests)}"
        self.tokens.add(token)
        return {"token": token}

    # -- watches -----------------------------------------------------------------------------

    async def _watch(
        self, request: web.Request, body: Body, fault: Fault | None
    ) -> web.StreamResponse:
        begin, end = _bytes(body["key"]), _bytes(body["range_end"])
        start = int(body["start_revision"])
        stream = web.StreamResponse()
        await stream.prepare(request)

        async def say(**fields: Any) -> None:
            result = {"header": self._header(), **fields}
            await stream.write(json.dumps({"result": result}).encode() + b"\n")

        await say(created=True)
        if fault is Fault.DEAF:
            await asyncio.Event().wait()
        # A store that is compacted up to a revision has lost what was deleted there.
        reached = start - (start > self.store.compacted)
        while True:
            try:
                events = self.store.events("", reached)
            except HistoryCompactedError as error:
                await say(canceled=True, compact_revision=str(error.compacted))
                return stream
            reached = max([reached, *(event.revision for event in events)])
            told = [_event(event) for event in events if _is_within(event.key, begin, end)]
            while told:
                part, told = told[: self.part_events], told[self.part_events :]
                await say(events=part, **({"fragment": True} if told else {}))
                if fault is Fault.CUT:
                    return self._reset(request)
            await self.store.wait_change()

    def _reset(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        self.then()
        return web.Response()

    def _header(self) -> Body:
        return {"cluster_id": "1", "member_id": "2", "revision": str(self.store.revision)}


@asynccontextmanager
async def serving(*nodes: FakeEtcd, tls: ssl.SSLContext | None = None) -> AsyncIterator[list[str]]:
    """Serve nodes on free ports until the block ends."""
    async with AsyncExitStack() as stack:
        for node in nodes:
            app = web.Application(client_max_size=1 << 24)
            app.router.add_post("/{path:.*}", node.answer)
            runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
            await site.start()
            host, port = runner.addresses[0][:2]
            node.endpoint = f"{'https' if tls else 'http'}://{host}:{port}"
        yield [node.endpoint for node in nodes]


def _error(status: int, said: str, code: int) -> web.Response:
    said = f"etcdserver: {said}"
    return web.json_response({"error": said, "message": said, "code": code}, status=status)


def _is_within(key: str, begin: bytes, end: bytes) -> bool:
    return begin <= key.encode() and (end == b"\0" or key.encode() < end)


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _kv(item: KeyValue) -> Body:
    found = {"key": _text(item.key.encode()), "mod_revision": str(item.revision)}
    if item.value:
        found["value"] = _text(item.value)
    if item.lease:
        found["lease"] = str(item.lease)
    return found


def _event(event: Event) -> Body:
    if event.now is not None:
        return {"kv": _kv(event.now)}
    return {
        "type": "DELETE",
        "kv": {"key": _text(event.key.encode()), "mod_revision": str(event.revision)},
    }
