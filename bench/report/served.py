"""The suite of many producers: in the owner's process, at servers, and at servers over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from bench.bare import BareLog
from bench.peer_clients import HTTP_PRODUCERS, appends_rate
from bench.peer_servers import HTTP_SERVERS, SERVERS, PeerServer
from bench.report.figures import Report
from bench.report.systems import SYNCED, fresh
from bench.served import PRODUCERS, appends_a_second
from walstore import Wal

GROUP: Final = f"{PRODUCERS} producers x 1 KiB, each awaiting every record"
HTTP_GROUP: Final = f"{HTTP_PRODUCERS} producers x 1 KiB over HTTP, each awaiting every record"


def producers(report: Report, directory: Path, seconds: float) -> None:
    """Many producers that each await every record."""

    async def own() -> float:
        async with Wal.open(fresh(directory, "own") / "log") as wal:
            return await appends_a_second(wal.append, PRODUCERS, seconds)

    async def bare() -> float:
        with BareLog(fresh(directory, "bare") / "log") as log:
            return await appends_a_second(log.append, PRODUCERS, seconds)

    report.add(GROUP, "walstore", "records/s", "/s", asyncio.run(own()), SYNCED)
    if find_spec("uvloop"):
        import uvloop

        report.add(GROUP, "walstore, on uvloop", "records/s", "/s", uvloop.run(own()), SYNCED)
    report.add(GROUP, "a bare group commit", "records/s", "/s", asyncio.run(bare()), SYNCED)
    _measure(report, GROUP, SERVERS, directory, seconds)
    _measure(report, HTTP_GROUP, HTTP_SERVERS, directory, seconds)


def _measure(
    report: Report, group: str, servers: Iterable[PeerServer], directory: Path, seconds: float
) -> None:
    """Note the rate of each server that is installed, and of the others what they need."""

    async def rate(server: PeerServer) -> float:
        async with server.run(fresh(directory, "served")) as address:
            return await appends_rate(address, seconds)

    for server in servers:
        if need := server.lacks():
            report.skipped[server.name] = need
            continue
        found = asyncio.run(rate(server))
        report.add(group, server.name, "records/s", "/s", found, server.promise)
