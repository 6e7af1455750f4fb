"""Access: each rule about tokens holds over both protocols, and neighbours of who is refused go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp
import pytest

from tests.clocks import SkippingClock
from tests.local import SMALL
from walstore import AccessDeniedError, WalStore, connect
from walstore.errors import InvalidSettingsError
from walstore.http import HttpServer
from walstore.serve import AccessTokens, Server

ALL: Final = ["read", "append", "admin"]
CHALLENGED: Final = "send Authorization: Bearer TOKEN"


class Client(Protocol):
    """A client that keeps its connection. Each call returns why it was refused; None if it was not."""

    async def read(self) -> str | None: ...

    async def append(self) -> str | None: ...

    async def manage(self) -> str | None: ...


class BinaryClient:
    def __init__(self, address: str, log: str, token: str | None, stack: AsyncExitStack) -> None:
        self._opening = lambda: connect(address, log=log, token=token)
        self._stack = stack
        self._wal: Any = None

    async def _try(self, ask: Callable[[Any], Any]) -> str | None:
        try:
            if self._wal is None:
                self._wal = await self._stack.enter_async_context(self._opening())
            await ask(self._wal)
        except AccessDeniedError as error:
            return str(error)
        return None

    async def read(self) -> str | None:
        async def ask(wal: Any) -> None:
            async for _ in wal.reader(follow=False):
                pass

        return await self._try(ask)

    async def append(self) -> str | None:
        return await self._try(lambda wal: wal.append(b"x"))

    async def manage(self) -> str | None:
        return await self._try(lambda wal: wal.trim(0))


class HttpClient:
    def __init__(
        self,
        address: str,
        log: str,
        token: str | None,
        session: aiohttp.ClientSession,
        store: WalStore,
    ) -> None:
        self._session, self._store, self._log = session, store, log
        self._url = f"{address}/v1/stream/{log}"
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    async def _ask(self, method: str, **more: Any) -> str | None:
        asked = self._session.request(method, self._url, headers=self._headers, **more)
        async with asked as answer:
            if answer.status in {401, 403}:
                text: str = (await answer.json())["error"]
                assert (answer.status == 401) == (CHALLENGED in text)
                return text
            assert answer.status < 300, await answer.text()
            return None

    async def read(self) -> str | None:
        return await self._ask("GET")

    async def append(self) -> str | None:
        return await self._ask("POST", data=b"x")

    async def manage(self) -> str | None:
        refused = await self._ask("DELETE")
        await self._store.wal(self._log)  # made again
        return refused


class Place:
    """A server of both protocols, whose logs ``orders`` and ``app-1`` are there, and its file of tokens."""

    def __init__(self, path: Path, clock: SkippingClock, kind: str, stack: AsyncExitStack) -> None:
        self._path, self._clock, self._kind, self._stack = path, clock, kind, stack
        self.file = path / "tokens.toml"

    def write(self, *tables: str) -> None:
        self.file.write_text("\n".join(f"[[token]]\n{one}" for one in tables))
        self.file.chmod(0o600)

    async def open(self) -> None:
        enter = self._stack.enter_async_context
        self.tokens = await asyncio.to_thread(AccessTokens.read, self.file, clock=self._clock)
        store = self._store = await enter(WalStore.open(self._path / "store", settings=SMALL))
        for name in ("orders", "app-1"):
            await (await store.wal(name)).append(b"first")
        if self._kind == "binary":
            server = await enter(Server.open(store, unix=self._path / "s.sock", tokens=self.tokens))
            self._address = str(server.addresses[0])
        else:
            web = await enter(HttpServer.open(store, "127.0.0.1:0", tokens=self.tokens))
            self._address = web.addresses[0]
            self._session = await enter(aiohttp.ClientSession())

    def client(self, token: str | None, log: str = "orders") -> Client:
        if self._kind == "binary":
            return BinaryClient(self._address, log, token, self._stack)
        return HttpClient(self._address, log, token, self._session, self._store)


def table(name: str, token: str, scopes: Sequence[str] = ALL, more: str = "") -> str:
    return f'name = "{name}"\ntoken = "{token}"\nscopes = {list(scopes)}\n{more}'


@asynccontextmanager
async def at_place(path: Path, kind: str, *tables: str) -> AsyncIterator[tuple[Place, Any]]:
    clock = SkippingClock()
    async with AsyncExitStack() as stack:
        place = Place(path, clock, kind, stack)
        place.write(*tables)
        await place.open()
        yield place, clock


pytestmark = pytest.mark.parametrize("kind", ["binary", "http"])


async def test_without_or_with_a_wrong_token_nothing_is_done(kind: str, tmp_path: Path) -> None:
    async with at_place(tmp_path, kind, table("all", "right")) as (place, _):
        for token in (None, "", "wrong", "right ", "rights"):
            if kind == "http" and token == "right ":
                continue  # spaces around a header's value are no part of it
            client = place.client(token)
            for ask in (client.read, client.append, client.manage):
                refusal = await ask()
                assert refusal is not None
                assert "token" in refusal
                assert token not in ("wrong", "rights") or token not in refusal
        right = place.client("right")
        assert [await right.read(), await right.append(), await right.manage()] == [None] * 3


@pytest.mark.parametrize("scope", ALL)
async def test_a_token_does_what_its_scopes_say_and_nothing_else(
    kind: str, scope: str, tmp_path: Path
) -> None:
    tables = [table("all", "right"), table("some", "half", [scope])]
    async with at_place(tmp_path, kind, *tables) as (place, _):
        client, neighbour = place.client("half"), place.client("right")
        for needed, ask in (
            ("read", client.read),
            ("append", client.append),
            ("admin", client.manage),
        ):
            refusal = await ask()
            if needed == scope:
                assert refusal is None
            else:
                assert refusal is not None
                assert f"the token 'some' lacks the scope '{needed}'" in refusal
            assert await neighbour.append() is None


async def test_a_token_is_for_the_logs_that_its_patterns_match(kind: str, tmp_path: Path) -> None:
    tables = [table("apps", "right", more='logs = ["app-*", "other"]')]
    async with at_place(tmp_path, kind, *tables) as (place, _):
        assert await place.client("right", "app-1").append() is None
        refusal = await place.client("right", "orders").append()
        assert refusal is not None
        assert "the token 'apps' is not for the log 'orders'" in refusal


async def test_a_token_expires_while_its_client_is_connected(kind: str, tmp_path: Path) -> None:
    tables = [
        table("old", "old", more="expires = 2100-01-01T00:00:00Z"),
        table("new", "new"),
    ]
    async with at_place(tmp_path, kind, *tables) as (place, clock):
        client = place.client("old")
        assert await client.append() is None
        clock.shift_wall(200 * 365 * 86_400)
        refusal = await client.append()
        assert refusal is not None
        assert "the token 'old' expired at 2100-01-01T00:00:00+00:00" in refusal
        assert await place.client("old").read() is not None
        assert await place.client("new").append() is None


async def test_a_token_is_rotated_without_a_refusal(kind: str, tmp_path: Path) -> None:
    """Two are valid at once; who keeps the removed one is refused at the next request."""
    async with at_place(tmp_path, kind, table("one", "old")) as (place, _):
        late = place.client("old")
        assert await late.append() is None
        place.write(table("one", "old"), table("two", "new"))
        await place.tokens.reload()
        moved = place.client("new")
        assert [await late.append(), await moved.append()] == [None, None]
        place.write(table("two", "new"))
        await place.tokens.reload()
        assert await late.append() is not None
        assert await late.read() is not None
        assert await moved.append() is None


async def test_a_narrowed_token_counts_as_it_is_now(kind: str, tmp_path: Path) -> None:
    async with at_place(tmp_path, kind, table("one", "t")) as (place, _):
        client = place.client("t")
        assert await client.append() is None
        place.write(table("one", "t", ["read"]))
        await place.tokens.reload()
        refusal = await client.append()
        assert refusal is not None
        assert "lacks the scope 'append'" in refusal
        assert await client.read() is None
        place.write(table("one", "t", ["read"], 'logs = ["app-*"]'))
        await place.tokens.reload()
        refusal = await client.read()
        assert refusal is not None
        assert "is not for the log 'orders'" in refusal
        place.write(table("one", "t"))
        await place.tokens.reload()
        assert await client.append() is None


@pytest.mark.parametrize("content", ["", "[[token]", "[[token]]\nname = 'one'"])
async def test_a_broken_file_keeps_the_tokens(kind: str, content: str, tmp_path: Path) -> None:
    async with at_place(tmp_path, kind, table("one", "t")) as (place, _):
        client = place.client("t")
        assert await client.append() is None
        place.file.write_text(content)
        with pytest.raises(InvalidSettingsError, match=r"tokens\.toml"):
            await place.tokens.reload()
        place.file.unlink()
        with pytest.raises(InvalidSettingsError, match="cannot read the file of tokens"):
            await place.tokens.reload()
        assert await client.append() is None
        assert await place.client("t").append() is None
