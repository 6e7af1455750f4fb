"""A served log beside servers of others, from the same clients: appends of 1 KiB, each awaited.

    python -m bench.served_peers [--seconds 3] [--rounds 3] [--directory DIR] [--reference DIR]

256 producers in four processes: JetStream (a stream in a file; it syncs every two minutes) and Redis Streams
(``appendfsync always``), each with its own asyncio client. Then 64 producers over HTTP beside the reference
server of the Durable Streams protocol, in a file, and how many messages a second reach ten live readers.
Rounds are interleaved. A peer that is not installed is skipped: ``nats-server`` and ``redis-server`` are
Debian's, ``nats-py`` and ``redis`` come from PyPI, and ``--reference`` names a directory where npm installed
``@durable-streams/server``.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from bench.served import CLIENTS, PRODUCERS, VALUE, appends_a_second
from walstore import connect

READERS: Final = 10
HTTP_PRODUCERS: Final = 64
STREAM: Final = "/v1/stream/bench"
Append = Callable[[bytes], Awaitable[Any]]
REFERENCE: Final = """
import { DurableStreamTestServer } from "@durable-streams/server"
const server = new DurableStreamTestServer({ port: Number(process.argv[2]), dataDir: process.argv[3] })
console.log(await server.start())
"""


def free_port() -> int:
    """Return a port that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


# -- clients ---------------------------------------------------------------------------------


@asynccontextmanager
async def open_appends(kind: str, place: str) -> AsyncIterator[list[Append]]:
    """Yield a way to append for each producer of a process."""
    count = PRODUCERS // CLIENTS
    async with AsyncExitStack() as stack:
        if kind == "walstore":
            log = await stack.enter_async_context(connect(place))
            yield [log.append] * count
        elif kind == "JetStream":
            import nats

            client = await nats.connect(place)
            stack.push_async_callback(client.close)
            stream = client.jetstream()
            yield [lambda value: stream.publish("bench", value)] * count
        elif kind == "Redis":
            import redis.asyncio

            made = []
            for _ in range(count):  # a connection each: a command waits for its answer
                one = redis.asyncio.Redis.from_url(place, single_connection_client=True)
                stack.push_async_callback(one.aclose)
                made.append(lambda value, one=one: one.xadd("bench", {"v": value}))
            yield made
        else:
            import aiohttp

            connector = aiohttp.TCPConnector(limit=0)
            session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
            headers = {"Content-Type": "application/octet-stream"}

            async def post(value: bytes) -> None:
                async with session.post(place + STREAM, data=value, headers=headers) as answer:
                    assert answer.status in (200, 204), answer.status

            yield [post] * (HTTP_PRODUCERS // CLIENTS)


async def client(
    kind: str, place: str, seconds: float, opener: Callable[[str, str], Any] = open_appends
) -> None:
    """Wait for a line on stdin, append, and print the rate: what each client process runs."""
    async with opener(kind, place) as appends:
        await asyncio.gather(*(append(VALUE) for append in appends))
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        rates = [appends_a_second(append, 1, seconds) for append in appends]
        print(sum(await asyncio.gather(*rates)), flush=True)


async def clients_rate(
    kind: str, place: str, seconds: float, module: str = "bench.served_peers"
) -> float:
    """Start the client processes of a benchmark, let them begin together, and add up their rates."""
    command = [sys.executable, "-m", module, "--client", kind, place]
    clients = [
        await asyncio.create_subprocess_exec(
            *command, "--seconds", str(seconds), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(CLIENTS)
    ]
    for one in clients:
        assert one.stdout is not None
        assert await one.stdout.readline() == b"ready\n"
    outputs = await asyncio.gather(*(one.communicate(b"\n") for one in clients))
    return sum(float(out) for out, _ in outputs)


# -- servers ---------------------------------------------------------------------------------


@asynccontextmanager
async def running(command: list[str], ready: Callable[[], Awaitable[Any]]) -> AsyncIterator[Any]:
    """Run a server; yield what ``ready()`` returns once it does not raise."""
    server = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
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


@asynccontextmanager
async def serve(kind: str, directory: Path, reference: Path | None) -> AsyncIterator[str]:
    """Run a server of a kind; yield where it is."""
    port = free_port()
    path = directory / kind.replace(" ", "-")
    path.mkdir()
    match kind:
        case "walstore":
            place = path / "s.sock"
            command = [
                sys.executable,
                "-m",
                "walstore",
                "serve",
                str(path / "log"),
                "--unix",
                str(place),
            ]
            async with running(command, lambda: _reach_socket(place)):
                yield f"unix://{place}"
        case "JetStream":
            import nats

            command = ["nats-server", "-js", "-sd", str(path), "-p", str(port)]
            async with running(command, lambda: reach(port)):
                client = await nats.connect(f"nats://127.0.0.1:{port}")
                await client.jetstream().add_stream(name="bench", subjects=["bench"])
                await client.close()
                yield f"nats://127.0.0.1:{port}"
        case "Redis":
            command = ["redis-server", "--port", str(port), "--dir", str(path), "--save", ""]
            command += ["--appendonly", "yes", "--appendfsync", "always"]
            async with running(command, lambda: reach(port)):
                yield f"redis://127.0.0.1:{port}"
        case "HTTP":
            command = [sys.executable, "-m", "walstore", "serve", str(path / "store"), "--store"]
            async with running([*command, "--http", f"127.0.0.1:{port}"], lambda: reach(port)):
                yield f"http://127.0.0.1:{port}"
        case _:
            assert reference is not None
            program = reference / "bench.mjs"
            program.write_text(REFERENCE)
            command = ["node", str(program), str(port), str(path)]
            async with running(command, lambda: reach(port)):
                yield f"http://127.0.0.1:{port}"


async def _reach_socket(place: Path) -> None:
    _, writer = await asyncio.open_unix_connection(str(place))
    writer.close()


# -- rounds ----------------------------------------------------------------------------------


async def events_a_second(place: str, seconds: float) -> float:
    """Return how many messages a second reach all live readers, while 16 producers append."""
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(place, connector=connector) as session:
        read = 0

        async def follow() -> None:
            nonlocal read
            async with session.get(f"{STREAM}?offset=now&live=sse") as answer:
                async for line in answer.content.iter_any():
                    read += len(line)

        readers = [asyncio.ensure_future(follow()) for _ in range(READERS)]
        await asyncio.sleep(0.2)
        headers = {"Content-Type": "application/octet-stream"}

        async def post(value: bytes) -> None:
            async with session.post(STREAM, data=value, headers=headers) as answer:
                await answer.read()

        before = read
        await appends_a_second(post, 16, seconds)
        rate = (read - before) / len(VALUE) / seconds
        for one in readers:
            one.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        return rate


async def create_stream(place: str) -> None:
    """Make the stream of bytes."""
    import aiohttp

    async with (
        aiohttp.ClientSession(place) as session,
        session.put(STREAM, headers={"Content-Type": "application/octet-stream"}) as answer,
    ):
        assert answer.status in (200, 201), answer.status


async def measure(
    kinds: list[str], directory: Path, seconds: float, reference: Path | None
) -> dict[str, float]:
    """Return the rates of one round."""
    found: dict[str, float] = {}
    for kind in kinds:
        async with serve(kind, directory, reference) as place:
            if place.startswith("http"):
                await create_stream(place)
            found[f"{kind}, appends/s"] = await clients_rate(kind, place, seconds)
            if place.startswith("http"):
                found[f"{kind}, events/s"] = await events_a_second(place, seconds)
    return found


def installed(reference: Path | None) -> list[str]:
    """Return the servers that can run here; say which cannot."""
    kinds = ["walstore"]
    for kind, program, module in (
        ("JetStream", "nats-server", "nats"),
        ("Redis", "redis-server", "redis"),
    ):
        if shutil.which(program) and importlib.util.find_spec(module):
            kinds.append(kind)
        else:
            print(f"{kind} is skipped: it needs {program}, and the package of {module} for Python")
    kinds.append("HTTP")
    if reference is not None and shutil.which("node"):
        kinds.append("HTTP reference")
    else:
        print("the reference server is skipped: it needs node, and --reference DIRECTORY")
    return kinds


async def main(rounds: int, seconds: float, parent: Path | None, reference: Path | None) -> None:
    """Measure and print a table."""
    os.environ["PATH"] += ":/usr/sbin"
    kinds, found = installed(reference), []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=parent) as name:
            began = time.monotonic()
            found.append(await measure(kinds, Path(name), seconds, reference))
            print(f"round {len(found)}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    for what in found[0]:
        rates = [one[what] for one in found]
        base = (
            "HTTP" + what[what.index(",") :] if what.startswith("HTTP") else "walstore, appends/s"
        )
        ratio = statistics.median(one[base] / one[what] for one in found)
        print(
            f"{what:<28} {statistics.median(rates):>10,.0f}   {base.split(',')[0]} is {ratio:.2f} of it"
        )
    print(json.dumps(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--client", nargs=2)
    given = parser.parse_args()
    if given.client:
        asyncio.run(client(*given.client, given.seconds))
    else:
        asyncio.run(main(given.rounds, given.seconds, given.directory, given.reference))
