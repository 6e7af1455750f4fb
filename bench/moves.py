"""How long a client cannot append while a log of a cluster moves to another machine in order.

Run from the root of the repository; it takes half a minute, and installs etcd where it is missing, as root on
Debian::

    python -m bench.moves [--rounds 20] [--directory DIR]

Three machines, each a process of ``walstore serve --cluster``, and one node of etcd. A producer with the
addresses of all three awaits every append; the gap is the longest time between two acknowledgements around a
move. The move is asked for in etcd: the command that does so takes longer to start than the move.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from tests.cluster_demo import LOG, Cluster, started
from tests.etcd import CANNOT, CannotRunError, install, running
from tests.waiting import until
from walstore import RemoteWal
from walstore.topology.documents import LEADERS, LOGS, PREFIX, Leader, LogSpec
from walstore.topology.etcd import EtcdKeyValues

_SETTLE_APPENDS = 200
"""Before and after each move."""


async def measure(cluster: Cluster, remote: RemoteWal, rounds: int) -> list[float]:
    """Return the gap of each move, in seconds."""
    acknowledged: list[float] = []

    async def produce() -> None:
        while True:
            await remote.append(bytes(100))
            acknowledged.append(time.monotonic())

    async def more() -> None:
        enough = len(acknowledged) + _SETTLE_APPENDS
        await until(lambda: len(acknowledged) >= enough)

    gaps = []
    producing = asyncio.create_task(produce())
    async with EtcdKeyValues.open(cluster.etcd.address) as keys:
        for _ in range(rounds):
            leader = await cluster.leader()  # with all copies there
            await more()
            number = cluster.machines.index(leader) + 1
            target = cluster.machines[number % len(cluster.machines)].address
            begin = len(acknowledged)
            await move(keys, target)
            while await led_by(keys) != target:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)
            await more()
            gaps.append(max(late - soon for soon, late in pairwise(acknowledged[begin - 1 :])))
    producing.cancel()
    await asyncio.wait([producing])
    return gaps


async def move(keys: EtcdKeyValues, address: str) -> None:
    """Let a machine lead the log, as ``walstore logs move`` does."""
    key = f"{PREFIX}{LOGS}{LOG}"
    found = await keys.get(key)
    assert found is not None
    spec = LogSpec.decode(found.value, key)._replace(preferred=address)
    swap = await keys.swap(key, spec.encode(), expected=found.revision)
    assert swap.happened


async def led_by(keys: EtcdKeyValues) -> str:
    """Return the address of the machine that leads the log and has it open; empty if none does."""
    key = f"{PREFIX}{LEADERS}{LOG}"
    found = await keys.get(key)
    leader = None if found is None else Leader.decode(found.value, key)
    return leader.address if leader is not None and leader.epoch else ""


async def main(cluster: Cluster, rounds: int) -> None:
    """Measure and print."""
    async with started(cluster) as remote:
        gaps = await measure(cluster, remote, rounds)
    low, high = min(gaps) * 1e3, max(gaps) * 1e3
    print(
        f"{rounds} moves: median {statistics.median(gaps) * 1e3:.0f} ms   {low:.0f} to {high:.0f}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    try:
        install()
        with running() as etcd, tempfile.TemporaryDirectory(dir=given.directory) as place:
            asyncio.run(main(Cluster(Path(place), etcd, 2), given.rounds))
    except CannotRunError as error:
        print(f"no etcd here: {error}", file=sys.stderr)
        sys.exit(CANNOT)
