"""Servers that take appends on this machine: walstore's and those of others, and what each acknowledges.

``nats-server`` and ``redis-server`` are Debian's; the option of JetStream that syncs every write came later
than Debian 12. The clients ``nats-py`` and ``redis`` come from PyPI. The reference server of the Durable
Streams protocol needs node; WALSTORE_BENCH_DURABLE_STREAMS names the directory where npm installed it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.peer_clients import OCTETS
from bench.report.systems import SYNCED

STREAM: Final = "/v1/stream/bench"
NATS: Final = "nats-server"
REDIS: Final = "redis-server"
REFERENCE: Final = "@durable-streams/server"
REFERENCE_PLACE: Final = "WALSTORE_BENCH_DURABLE_STREAMS"
REFERENCE_PROGRAM: Final = f"""
import {{ DurableStreamTestServer }} from "{REFERENCE}"
const server = new DurableStreamTestServer({{ port: Number(process.argv[2]), dataDir: process.argv[3] }})
console.log(await server.start())
"""


class PeerServer(NamedTuple):
    """A server."""

    name: str
    promise: str
    """What an acknowledgement means."""
    run: Callable[[Path], AbstractAsyncContextManager[str]]
    """Runs it with its files in a directory; yields the address for its clients."""
    lacks: Callable[[], str | None]
    """Returns what is not installed, if something is not."""


# -- processes -------------------------------------------------------------------------------


def program_path(name: str) -> str | None:
    """Return where a program is; Debian's servers are where only root looks."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")


def lacking(program: str, module: str) -> str | None:
    """Return what a server needs, unless its program and the module of its client are installed."""
    if program_path(program) and importlib.util.find_spec(module):
        return None
    return f"{program}, and the module {module} for Python"


def free_port() -> int:
    """Return a port that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@asynccontextmanager
async def running(command: list[str], ready: Callable[[], Awaitable[Any]]) -> AsyncIterator[Any]:
    """Run a server; yield what ``ready()`` returns once it does not raise."""
    program, *arguments = command
    server = await asyncio.create_subprocess_exec(
        *(program_path(program) or program, *arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(1000):
            try:
                found = await ready()
                break
            except OSError:
                await asyncio.sleep(0.01)
        else:
            raise TimeoutError(command[0])
        yield found
    finally:
        server.terminate()
        await server.wait()


async def reach(port: int) -> None:
    """Connect to a port, or raise OSError."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()


async def _reach_socket(place: Path) -> None:
    _, writer = await asyncio.open_unix_connection(str(place))
    writer.close()


# -- servers ---------------------------------------------------------------------------------


@asynccontextmanager
async def _serve_walstore(path: Path) -> AsyncIterator[str]:
    place = path / "s.sock"
    command = [sys.executable, "-m", "walstore", "serve", str(path / "log"), "--unix", str(place)]
    async with running(command, lambda: _reach_socket(place)):
        yield f"unix://{place}"


def _synced_jetstream(path: Path, port: int) -> list[str]:
    """Write a file of settings; return the command that uses it."""
    file = path / "server.conf"
    stored = json.dumps(str(path / "jetstream"))
    settings = f"jetstream {{ store_dir: {stored}, sync_interval: always }}"
    file.write_text(f"listen: 127.0.0.1:{port}\n{settings}\n")
    return [NATS, "-c", str(file)]


@asynccontextmanager
async def _serve_jetstream(path: Path, *, is_synced: bool) -> AsyncIterator[str]:
    import nats

    port = free_port()
    command = [NATS, "-js", "-sd", str(path), "-a", "127.0.0.1", "-p", str(port)]
    if is_synced:
        command = _synced_jetstream(path, port)
    async with running(command, lambda: reach(port)):
        client = await nats.connect(f"nats://127.0.0.1:{port}")
        await client.jetstream().add_stream(name="bench", subjects=["bench"])
        await client.close()
        yield f"nats://127.0.0.1:{port}"


def _lacks_synced_jetstream() -> str | None:
    if missing := lacking(NATS, "nats"):
        return missing
    with tempfile.TemporaryDirectory() as name:
        program, *arguments = _synced_jetstream(Path(name), free_port())
        command = [program_path(program) or program, *arguments, "-t"]
        is_known = subprocess.run(command, capture_output=True, check=False).returncode == 0
    return None if is_known else f"a {NATS} that knows sync_interval: always"


@asynccontextmanager
async def _serve_redis(path: Path, *, sync: str) -> AsyncIterator[str]:
    port = free_port()
    command = [REDIS, "--port", str(port), "--dir", str(path), "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", sync]
    async with running(command, lambda: reach(port)):
        yield f"redis://127.0.0.1:{port}"


@asynccontextmanager
async def _serve_http(path: Path, command: Callable[[Path, int], list[str]]) -> AsyncIterator[str]:
    """Run a server of Durable Streams, and make a stream of bytes."""
    import aiohttp

    port = free_port()
    address = f"http://127.0.0.1:{port}{STREAM}"
    async with running(command(path, port), lambda: reach(port)):
        async with aiohttp.ClientSession() as session, session.put(address, headers=OCTETS) as made:
            assert made.status in (200, 201), made.status
        yield address


def _walstore_http(path: Path, port: int) -> list[str]:
    command = [sys.executable, "-m", "walstore", "serve", str(path / "store"), "--store"]
    return [*command, "--http", f"127.0.0.1:{port}"]


def _reference_http(path: Path, port: int) -> list[str]:
    program = _reference_place() / "bench.mjs"
    program.write_text(REFERENCE_PROGRAM)
    return ["node", str(program), str(port), str(path)]


def _reference_place() -> Path:
    return Path(os.environ.get(REFERENCE_PLACE, ""))


def _reference_package() -> Path:
    return _reference_place() / "node_modules" / REFERENCE / "package.json"


def _lacks_reference() -> str | None:
    if os.environ.get(REFERENCE_PLACE) and program_path("node") and _reference_package().exists():
        return None
    return f"node, and {REFERENCE} of npm in the directory {REFERENCE_PLACE}"


def _lacks_aiohttp() -> str | None:
    return None if importlib.util.find_spec("aiohttp") else "the module aiohttp for Python"


SERVERS: Final = (
    PeerServer("walstore, served", SYNCED, _serve_walstore, lambda: None),
    PeerServer(
        "JetStream",
        "in memory; synced every two minutes",
        partial(_serve_jetstream, is_synced=False),
        partial(lacking, NATS, "nats"),
    ),
    PeerServer(
        "JetStream, synced",
        f"{SYNCED} (sync_interval: always)",
        partial(_serve_jetstream, is_synced=True),
        _lacks_synced_jetstream,
    ),
    PeerServer(
        "Redis Streams",
        f"{SYNCED} (appendfsync always)",
        partial(_serve_redis, sync="always"),
        partial(lacking, REDIS, "redis"),
    ),
    PeerServer(
        "Redis Streams, everysec",
        "in memory; synced every second (appendfsync everysec)",
        partial(_serve_redis, sync="everysec"),
        partial(lacking, REDIS, "redis"),
    ),
)
"""Servers with a protocol of their own: 256 producers."""
HTTP_SERVERS: Final = (
    PeerServer(
        "walstore, HTTP", SYNCED, partial(_serve_http, command=_walstore_http), _lacks_aiohttp
    ),
    PeerServer(
        "Durable Streams' reference server",
        f"{SYNCED} (dataDir)",
        partial(_serve_http, command=_reference_http),
        _lacks_reference,
    ),
)
"""Servers of the Durable Streams protocol: 64 producers over HTTP."""


def versions() -> dict[str, str]:
    """Return the versions of the servers that are installed."""
    found = {}
    for name in (REDIS, NATS):
        if program := program_path(name):
            said = subprocess.run(
                [program, "--version"], capture_output=True, text=True, check=False
            )
            if number := re.search(r"\bv=?(\d[\w.-]*)", said.stdout):
                found[name] = number[1]
    if _lacks_reference() is None:
        found[REFERENCE] = json.loads(_reference_package().read_text())["version"]
    return found
