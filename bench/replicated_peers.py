"""A replicated log beside other systems with three copies, from the same clients: appends of 1 KiB.

Run from the root of the repository; it takes two minutes::

    python -m bench.replicated_peers [--seconds 3] [--rounds 3] [--directory DIR]

Each system has three processes on this machine, which talk over TCP, and its files in one directory.
256 producers in four client processes are connected to the leader, and each awaits every append. What an
acknowledgement means:

  * walstore: two of three copies have synced the record. Measured through a served log (``connect``), and
    with 256 producers in the primary's own process, for which there is no peer.
  * JetStream R3: two of three servers have it in their page cache; each syncs every two minutes, its default.
  * etcd: two of three nodes have synced it. Puts over gRPC, each producer its own key.
  * Redis, ``WAIT 1``: the primary has synced it (``appendfsync always``), and one of two replicas says that
    it has received it.

Rounds are interleaved. Clients and servers share the processors, so the client library of a peer has a part
in its figure. A peer that is not installed is skipped: ``nats-server``, ``etcd-server`` and ``redis-server``
are Debian's; ``nats-py``, ``grpcio`` and ``redis`` come from PyPI.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from bench import peer_clients
from bench.peer_clients import Append, clients_rate
from bench.peer_servers import free_port, lacking, reach, running
from bench.served import CLIENTS, PRODUCERS, appends_a_second
from tests.etcd import EtcdCluster
from walstore import Replication, Wal

COPIES: Final = 3
START_SECONDS: Final = 60
IN_PROCESS: Final = "walstore, in the primary"
SERVED: Final = "walstore"
PEERS: Final = {
    "JetStream R3": ("nats-server", "nats"),
    "etcd": ("etcd", "grpc"),
    "Redis, WAIT 1": ("redis-server", "redis"),
}
"""The program of each peer, and the module of its client."""


# -- clients ---------------------------------------------------------------------------------


@asynccontextmanager
async def open_appends(kind: str, place: str) -> AsyncIterator[list[Append]]:
    """Yield a way to append for each producer of a process."""
    count = PRODUCERS // CLIENTS
    async with AsyncExitStack() as stack:
        if kind == "etcd":
            yield await _open_puts(stack, place, count)
        elif kind == "Redis, WAIT 1":
            yield [await _open_waiting(stack, place) for _ in range(count)]
        else:
            yield await stack.enter_async_context(peer_clients.open_appends(place))


async def _open_puts(stack: AsyncExitStack, place: str, count: int) -> list[Append]:
    import grpc.aio

    channel = await stack.enter_async_context(grpc.aio.insecure_channel(place))
    put = channel.unary_unary("/etcdserverpb.KV/Put")

    def putting(key: bytes) -> Append:
        # PutRequest: field 1 is the key, field 2 the value.
        head = b"\x0a" + bytes([len(key)]) + key + b"\x12"
        return lambda value: put(head + _varint(len(value)) + value)

    return [putting(b"bench/%d/%d" % (os.getpid(), number)) for number in range(count)]


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


async def _open_waiting(stack: AsyncExitStack, place: str) -> Append:
    """Open a connection of its own: a command waits for its answer."""
    import redis.asyncio

    client = redis.asyncio.Redis.from_url(place, single_connection_client=True)
    stack.push_async_callback(client.aclose)

    async def append(value: bytes) -> None:
        commands = client.pipeline(transaction=False).xadd("bench", {"v": value})
        _, copies = await commands.execute_command("WAIT", 1, 0).execute()
        assert copies >= 1

    return append


# -- servers ---------------------------------------------------------------------------------


@asynccontextmanager
async def serve(kind: str, path: Path) -> AsyncIterator[str]:
    """Run the servers of a kind; yield where the leader is."""
    path.mkdir()
    async with AsyncExitStack() as stack:
        match kind:
            case "walstore":
                yield await _serve_walstore(stack, path)
            case "JetStream R3":
                yield await _serve_jetstream(stack, path)
            case "etcd":
                yield await _serve_etcd(stack, path)
            case _:
                yield await _serve_redis(stack, path)


async def _serve_copies(stack: AsyncExitStack, path: Path) -> list[str]:
    """Run two machines for copies; return where they are."""
    addresses = []
    for name in "bc":
        port = free_port()
        command = [sys.executable, "-m", "walstore", "serve", str(path / name), "--replicate"]
        command += ["--tcp", f"127.0.0.1:{port}"]
        await stack.enter_async_context(running(command, lambda port=port: reach(port)))
        addresses.append(f"tcp://127.0.0.1:{port}")
    return addresses


async def _serve_walstore(stack: AsyncExitStack, path: Path) -> str:
    port = free_port()
    command = [sys.executable, "-m", "walstore", "serve", str(path / "log")]
    for address in await _serve_copies(stack, path):
        command += ["--replica", address]
    command += ["--tcp", f"127.0.0.1:{port}"]
    await stack.enter_async_context(running(command, lambda: reach(port)))
    return f"tcp://127.0.0.1:{port}"


async def _serve_jetstream(stack: AsyncExitStack, path: Path) -> str:
    import nats
    from nats.errors import Error

    ports = [free_port() for _ in range(COPIES)]
    routes = [f"nats://127.0.0.1:{free_port()}" for _ in range(COPIES)]
    for number, port in enumerate(ports):
        command = ["nats-server", "-js", "-sd", str(path / f"n{number}"), "-p", str(port)]
        command += ["-n", f"n{number}", "--cluster_name", "bench", "--cluster", routes[number]]
        command += ["--routes", ",".join(routes)]
        await stack.enter_async_context(running(command, lambda port=port: reach(port)))
    async with asyncio.timeout(START_SECONDS):
        client = await nats.connect(f"nats://127.0.0.1:{ports[0]}")
        stream = client.jetstream()
        while True:
            try:
                await stream.add_stream(name="bench", subjects=["bench"], num_replicas=COPIES)
                cluster = (await stream.stream_info("bench")).cluster
            except Error:  # until the servers have found each other
                await asyncio.sleep(0.1)
                continue
            copies = [] if cluster is None else cluster.replicas or []
            if cluster and cluster.leader and sum(bool(one.current) for one in copies) == 2:
                break
            await asyncio.sleep(0.1)
        await client.close()
    return f"nats://127.0.0.1:{ports[int(cluster.leader.removeprefix('n'))]}"


async def _serve_etcd(stack: AsyncExitStack, path: Path) -> str:
    import aiohttp

    cluster = EtcdCluster(path, COPIES)
    stack.push_async_callback(asyncio.to_thread, cluster.close)
    await asyncio.to_thread(cluster.start)
    async with aiohttp.ClientSession() as session:
        for endpoint in cluster.endpoints:
            async with session.post(f"{endpoint}/v3/maintenance/status", json={}) as answer:
                found = await answer.json()
                if found["leader"] == found["header"]["member_id"]:
                    return endpoint.removeprefix("http://")
    raise RuntimeError("etcd has no leader")


async def _serve_redis(stack: AsyncExitStack, path: Path) -> str:
    import redis.asyncio

    ports = [free_port() for _ in range(COPIES)]
    for number, port in enumerate(ports):
        directory = path / f"r{number}"
        directory.mkdir()
        command = ["redis-server", "--port", str(port), "--dir", str(directory), "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", "always"]
        command += ["--replicaof", "127.0.0.1", str(ports[0])] if number else []
        await stack.enter_async_context(running(command, lambda port=port: reach(port)))
    async with (
        asyncio.timeout(START_SECONDS),
        redis.asyncio.Redis(port=ports[0]) as client,
    ):
        while await client.wait(COPIES - 1, 1000) < COPIES - 1:
            await client.set("begun", 1)
    return f"redis://127.0.0.1:{ports[0]}"


# -- rounds ----------------------------------------------------------------------------------


async def in_process_rate(path: Path, seconds: float) -> float:
    """Return the rate of producers in the primary's process."""
    path.mkdir()
    async with AsyncExitStack() as stack:
        replication = Replication(nodes=await _serve_copies(stack, path))
        wal = await stack.enter_async_context(Wal.open(path / "log", replication=replication))
        return await appends_a_second(wal.append, PRODUCERS, seconds)


async def one_round(peers: list[str], directory: Path, seconds: float) -> dict[str, float]:
    """Return the rates of one round."""
    found = {IN_PROCESS: await in_process_rate(directory / "in-process", seconds)}
    for kind in (SERVED, *peers):
        async with serve(kind, directory / kind.replace(" ", "-")) as place:
            command = ["bench.replicated_peers", "--client", kind, place]
            found[kind] = await clients_rate(command, seconds)
    return found


def installed() -> list[str]:
    """Return the peers that can run here; say which cannot."""
    found = []
    for kind, (program, module) in PEERS.items():
        if need := lacking(program, module):
            print(f"{kind} is skipped: it needs {need}")
        else:
            found.append(kind)
    return found


async def main(rounds: int, seconds: float, parent: Path | None) -> None:
    """Measure and print a table."""
    os.environ["PATH"] += ":/usr/sbin"  # where Debian has etcd
    peers, found = installed(), []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=parent) as name:
            began = time.monotonic()
            found.append(await one_round(peers, Path(name), seconds))
            print(f"round {len(found)}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    for what in found[0]:
        rates = [one[what] for one in found]
        ratio = statistics.median(one[SERVED] / one[what] for one in found)
        print(
            f"{what:<26} {statistics.median(rates):>9,.0f} appends/s   {SERVED} is {ratio:.2f} of it"
        )
    print(json.dumps(found))


def _arguments() -> Any:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--client", nargs=2)
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    if given.client:
        asyncio.run(peer_clients.client(open_appends(*given.client), given.seconds))
    else:
        asyncio.run(main(given.rounds, given.seconds, given.directory))
