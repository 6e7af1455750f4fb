"""A served log beside servers of others, from the same clients: appends of 1 KiB, each awaited.

    python -m bench.served_peers [--seconds 3] [--rounds 3] [--directory DIR]

256 producers in four processes, each server with its own asyncio client. Then 64 producers over HTTP, and how
many messages a second reach ten live readers. Rounds are interleaved. ``peer_servers.py`` lists the servers
and what each needs; one that is not installed is skipped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.peer_clients import OCTETS, appends_rate
from bench.peer_servers import HTTP_SERVERS, SERVERS, PeerServer
from bench.served import VALUE, appends_a_second

READERS: Final = 10


async def events_a_second(address: str, seconds: float) -> float:
    """Return how many messages a second reach all live readers, while 16 producers append."""
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        read = 0

        async def follow() -> None:
            nonlocal read
            async with session.get(f"{address}?offset=now&live=sse") as answer:
                async for line in answer.content.iter_any():
                    read += len(line)

        readers = [asyncio.ensure_future(follow()) for _ in range(READERS)]
        await asyncio.sleep(0.2)

        async def post(value: bytes) -> None:
            async with session.post(address, data=value, headers=OCTETS) as answer:
                await answer.read()

        before, begun = read, time.monotonic()
        await appends_a_second(post, 16, seconds)
        rate = (read - before) / len(VALUE) / (time.monotonic() - begun)
        for one in readers:
            one.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        return rate


async def measure(
    servers: list[PeerServer], directory: Path, seconds: float
) -> dict[str, dict[str, float]]:
    """Return the rates of one round: by what was measured, then by server."""
    found: dict[str, dict[str, float]] = {}
    for number, server in enumerate(servers):
        path = directory / str(number)
        path.mkdir()
        async with server.run(path) as address:
            is_http = server in HTTP_SERVERS
            what = "appends/s over HTTP" if is_http else "appends/s"
            found.setdefault(what, {})[server.name] = await appends_rate(address, seconds)
            if is_http:
                rate = await events_a_second(address, seconds)
                found.setdefault("events/s", {})[server.name] = rate
    return found


def installed() -> list[PeerServer]:
    """Return the servers that can run here; say which cannot."""
    for server in (*SERVERS, *HTTP_SERVERS):
        if need := server.lacks():
            print(f"{server.name} is skipped: it needs {need}")
    return [server for server in (*SERVERS, *HTTP_SERVERS) if not server.lacks()]


async def main(rounds: int, seconds: float, parent: Path | None) -> None:
    """Measure and print a table."""
    servers, found = installed(), []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=parent) as name:
            began = time.monotonic()
            found.append(await measure(servers, Path(name), seconds))
            print(f"round {len(found)}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    for what, by_server in found[0].items():
        base = next(iter(by_server))
        for server in by_server:
            rates = [one[what][server] for one in found]
            ratio = statistics.median(one[what][base] / one[what][server] for one in found)
            label = f"{server}, {what}"
            print(f"{label:<52} {statistics.median(rates):>9,.0f}   {base} is {ratio:.2f} of it")
    print(json.dumps(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    asyncio.run(main(given.rounds, given.seconds, given.directory))
