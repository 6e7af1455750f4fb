"""Clients of the servers in ``peer_servers.py``: four processes, whose producers await each append of 1 KiB.

``python -m bench.peer_clients ADDRESS --seconds 3`` is what each process runs. The scheme of the address
determines the client.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final

from bench.served import CLIENTS, PRODUCERS, VALUE, appends_a_second
from walstore import connect

HTTP_PRODUCERS: Final = 64
OCTETS: Final = {"Content-Type": "application/octet-stream"}
Append = Callable[[bytes], Awaitable[Any]]


@asynccontextmanager
async def open_appends(address: str) -> AsyncIterator[list[Append]]:
    """Yield a way to append for each producer of a process."""
    count = PRODUCERS // CLIENTS
    async with AsyncExitStack() as stack:
        match address.partition(":")[0]:
            case "nats":
                yield [await _open_jetstream(stack, address)] * count
            case "redis":
                yield [await _open_redis(stack, address) for _ in range(count)]
            case "http":
                yield [await _open_http(stack, address)] * (HTTP_PRODUCERS // CLIENTS)
            case _:
                log = await stack.enter_async_context(connect(address))
                yield [log.append] * count


async def _open_jetstream(stack: AsyncExitStack, address: str) -> Append:
    import nats

    client = await nats.connect(address)
    stack.push_async_callback(client.close)
    stream = client.jetstream()
    return lambda value: stream.publish("bench", value)


async def _open_redis(stack: AsyncExitStack, address: str) -> Append:
    """Open a connection of its own: a command waits for its answer."""
    import redis.asyncio

    client = redis.asyncio.Redis.from_url(address, single_connection_client=True)
    stack.push_async_callback(client.aclose)
    return lambda value: client.xadd("bench", {"v": value})


async def _open_http(stack: AsyncExitStack, address: str) -> Append:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))

    async def post(value: bytes) -> None:
        async with session.post(address, data=value, headers=OCTETS) as answer:
            assert answer.status in (200, 204), answer.status

    return post


async def client(opened: AbstractAsyncContextManager[Sequence[Append]], seconds: float) -> None:
    """Wait for a line on stdin, append, and print the rate: what each client process runs."""
    async with opened as appends:
        await asyncio.gather(*(append(VALUE) for append in appends))
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        rates = [appends_a_second(append, 1, seconds) for append in appends]
        print(sum(await asyncio.gather(*rates)), flush=True)


async def clients_rate(command: Sequence[str], seconds: float) -> float:
    """Run a module in each client process, let them begin together, and add up their rates."""
    clients = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *command, "--seconds", str(seconds)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(CLIENTS)
    ]
    for one in clients:
        assert one.stdout is not None
        assert await one.stdout.readline() == b"ready\n"
    outputs = await asyncio.gather(*(one.communicate(b"\n") for one in clients))
    return sum(float(out) for out, _ in outputs)


async def appends_rate(address: str, seconds: float) -> float:
    """Return how many appends a second the producers at a server make."""
    return await clients_rate(["bench.peer_clients", address], seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    asyncio.run(client(open_appends(given.address), given.seconds))
