"""walstore logs scrub: all copies of a log are read now; and what is shown of rounds of the scrub."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, Final

from walstore import RemoteWal
from walstore.cli import cluster
from walstore.cli.cluster import Cluster, Name
from walstore.cli.errors import CORRUPTION, FAILED, OK, UsageError
from walstore.cli.location import connect_to
from walstore.cli.output import complain, format_bytes, format_time
from walstore.cli.report import Listing, Report
from walstore.cli.running import run_async
from walstore.cluster.view import ClusterView
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.statistics import CopyScrub, ScrubRound, Statistics
from walstore.errors import (
    InvalidSettingsError,
    LogNotFoundError,
    LogSuspendedError,
    StorageUnavailableError,
)
from walstore.net.wire.verbs import BEGIN_SCRUB
from walstore.topology.documents import check_log_name

SCRUB_EXAMPLES = """\
  walstore logs scrub orders
  walstore logs scrub orders --cluster etcd://10.0.0.1:2379 --json
"""

_LOOK_SECONDS: Final = 0.2
"""From one question whether the round has ended to the next."""


def scrub(name: Name, *, cluster: Cluster) -> Report:
    """Read all copies of a log now, replace damage from an intact copy, and wait for the end.

    The log's leader continues even if this command is interrupted; a second command waits for the same round.
    The exit code is 2 if damage remains, and 1 if a copy was unavailable.
    """
    check_log_name(name)
    try:
        leader, found = run_async(_scrub(cluster, name))
    except KeyboardInterrupt:
        complain(f"the scrub of {name!r} goes on; the same command waits for its end")
        raise
    copies = [
        {**dataclasses.asdict(one), "left": dict(one.left), "address": one.address or leader}
        for one in found.copies
    ]
    rows = [
        (
            one["address"],
            format_bytes(one["checked_bytes"]),
            one["damaged_segments"],
            format_bytes(one["mended_bytes"]),
            len(one["left"]),
        )
        for one in copies
    ]
    notes, code = _verdict(name, copies)
    return Report(
        {"name": name, "leader": leader, **dataclasses.asdict(found), "copies": copies},
        Listing(("copy", "checked", "damaged segments", "replaced", "stay damaged"), rows),
        notes=notes,
        code=code,
    )


def _verdict(name: str, copies: list[dict[str, Any]]) -> tuple[list[str], int]:
    """Return what is not whole, and the exit code."""
    notes, code = [], OK
    for one in copies:
        if one["trouble"] is not None:
            notes.append(f"{name}: the copy at {one['address']} was not checked: {one['trouble']}")
            code = code or FAILED
        for file, why in one["left"].items():
            notes.append(f"{name}: {file} at {one['address']} stays damaged: {why}")
            code = CORRUPTION
    return notes, code


async def _scrub(address: str, name: str) -> tuple[str, ScrubRound]:
    """Let the leader begin a round, and return its address and what it found."""
    leader = await _find_leader(address, name)
    async with await connect_to(f"{leader}?log={name}") as wal:
        epoch = (await wal.statistics()).epoch
        number = await _begin(wal)
        return leader, await _until_ended(wal, name, epoch, number)


async def _begin(wal: RemoteWal) -> int:
    try:
        number: int = await wal.client.call(BEGIN_SCRUB)
    except InvalidSettingsError:
        raise
    except ValueError as error:
        raise StorageUnavailableError(
            f"the machine that leads the log cannot scrub it on request; update it ({error})"
        ) from None
    return number


async def _until_ended(wal: RemoteWal, name: str, epoch: int, number: int) -> ScrubRound:
    while True:
        now = await wal.statistics()
        if now.epoch != epoch:
            raise StorageUnavailableError(
                f"another opening leads {name!r} now, and the scrub ended with the one before; call again"
            )
        if now.last_scrub is not None and now.last_scrub.number >= number:
            return now.last_scrub
        await asyncio.sleep(_LOOK_SECONDS)


async def _find_leader(address: str, name: str) -> str:
    async with cluster.open_keys(address) as keys:
        view = ClusterView(keys, clock=SystemClock())
        await view.look()
    spec, leader = view.specs.get(name), view.leaders.get(name)
    if spec is None:
        raise LogNotFoundError(f"the cluster has no log {name!r}", location=name)
    if spec.source:
        raise UsageError(f"{name!r} is read from {spec.source}: it has no copies")
    if spec.suspended and leader is None:
        text = f"the log {name!r} is suspended; 'walstore logs resume {name}' ends that"
        raise LogSuspendedError(text, location=name)
    if leader is None or not leader.epoch:
        raise StorageUnavailableError(f"nobody leads {name!r} now; call again")
    return leader.address


# -- for top -----------------------------------------------------------------------------------


def scrub_notes(now: Statistics) -> list[tuple[str, str]]:
    """Return what is to be shown of the scrub of a log."""
    texts = []
    if now.scrub is not None:
        passed, all_of_it = now.scrub.checked_bytes, now.scrub.total_bytes
        texts.append(f"{format_bytes(passed)} of {format_bytes(all_of_it)} read")
    last = now.last_scrub
    if last is not None:
        texts.append(f"last round ended {format_time(last.ended_us)}")
    notes = [("scrub", ", ".join(texts))] if texts else []
    for one in () if last is None else last.copies:
        if one.damaged_segments or one.trouble is not None:
            notes.append((f"scrub of {one.address or 'this copy'}", _found(one)))
    return notes


def _found(copy: CopyScrub) -> str:
    parts = []
    if copy.damaged_segments:
        mended = format_bytes(copy.mended_bytes)
        parts.append(f"damage in {copy.damaged_segments} segments, {mended} replaced")
    if copy.left:
        parts.append(f"stays damaged: {', '.join(copy.left)}")
    if copy.trouble is not None:
        parts.append(f"not all was checked: {copy.trouble}")
    return "; ".join(parts)
