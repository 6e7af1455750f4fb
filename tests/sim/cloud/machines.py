"""Machines with local logs that ship to the store: one directory each, replaced when it has lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

from tests.sim.cloud.ledger import CloudViolationError, Entry
from tests.sim.cloud.scene import Scene
from tests.sim.disk import Disk
from tests.sim.files import SimFileSystem
from tests.sim.surroundings import Nobody
from tests.sim.weather import Weather
from uploader import CloudTier, UploadSettings
from walstore import Settings, Wal
from walstore.core.settings import KIB
from walstore.errors import ContentionError, FencedError, WalError

DIRECTORY = Path("/srv/log")
_FREE_BYTES = 1 << 40


class Machine:
    """A disk, and what was appended to the log on it."""

    def __init__(self, seed: str) -> None:
        self.disk = Disk(Random(seed))
        self.kept: dict[int, Entry] = {}
        """What was appended to this directory, by its offset."""


async def ship(scene: Scene) -> None:
    """Open a log with a tier, append at several levels, and close it."""
    machines, name = scene.history.machines, scene.process.name.partition(".")[0]
    machine = machines.get(name)
    if machine is None or scene.random.random() < 0.15:
        machine = machines[name] = Machine(f"disk {scene.plan.seed} {scene.process.name}")
    elif scene.random.random() < 0.3:
        machine.disk.lose_power()
    wal = await open_wal(scene, machine)
    if wal is None:
        return
    users = [
        asyncio.get_running_loop().create_task(scene.history.guard(_use(scene, machine, wal)))
        for _ in range(scene.plan.actors)
    ]
    try:
        if scene.end == "busy":
            await scene.pause(0.05, 0.5, 5.0)
        else:
            await asyncio.wait(users)
    finally:
        scene.is_ending = True
        await close_wal(scene, machine, wal)
    await asyncio.wait(users)


def log_options(scene: Scene, machine: Machine) -> dict[str, Any]:
    """Return how some program on a machine opens its log."""
    plan, random = scene.plan, scene.random
    tier = CloudTier(
        scene.url,
        settings=UploadSettings(
            fragment_bytes=4096 if plan.small else 8 << 20,
            fragment_age_seconds=random.choice([0.0, 1.0, 60.0]),
            max_in_flight=random.choice([1, 4, 8]),
            parallel_puts=plan.parallel_puts,
            interval_seconds=random.choice([0.0, 0.02]),
            roll_up=plan.roll_up,
            drain_seconds=random.choice([0.0, 30.0, 100.0]),
        ),
        layout=plan.layout,
        chain=plan.chain(random),
        take_over=random.random() < 0.3,
        **scene.options(),
    )
    settings = Settings(
        segment_bytes=64 * KIB, batch_bytes=4 * KIB, max_record_bytes=12 * KIB, min_free_bytes=0
    )
    fs = SimFileSystem(
        machine.disk, Weather.fine(scene.random), scene.process, Nobody(), _FREE_BYTES
    )
    return {"tier": tier, "settings": settings, "fs": fs, "clock": scene.clock}


async def open_wal(scene: Scene, machine: Machine) -> Wal | None:
    """Open the log of a machine; the next one of that name gets another disk if this one has lost."""
    try:
        wal = await Wal.open(DIRECTORY, **log_options(scene, machine))
    except (FencedError, ContentionError) as error:
        scene.trace(f"open: {error!r}")
        scene.judge("open", error)
        scene.history.machines.pop(scene.process.name.partition(".")[0], None)
        return None
    except WalError as error:
        scene.trace(f"open: {error!r}")
        scene.judge("open", error)
        return None
    scene.trace(f"opened {wal!r}")
    return wal


async def close_wal(scene: Scene, machine: Machine, wal: Wal) -> None:
    """Close a log; what it calls uploaded is in the cloud."""
    try:
        await wal.aclose()
        scene.trace("closed")
    except WalError as error:
        scene.trace(f"closing: {error!r}")
    _check_uploaded(scene, machine, wal)


def _check_uploaded(scene: Scene, machine: Machine, wal: Wal) -> None:
    limit = wal.uploaded_limit
    for start, entry in machine.kept.items():
        for at, value in enumerate(entry.values):
            if start + at < limit:
                scene.ledger.saw(start + at, value)


async def _use(scene: Scene, machine: Machine, wal: Wal) -> None:
    random = scene.random
    for _ in range(random.randint(1, scene.plan.calls)):
        await append(scene, machine, wal, random.choice(["disk", "disk", "cloud"]))
        if wal.is_closing:
            return
        _check_uploaded(scene, machine, wal)
        await scene.pause()


async def append(scene: Scene, machine: Machine, wal: Wal, level: str) -> bool:
    """Append a group; return whether it was acknowledged."""
    entry = scene.submit([scene.size() for _ in range(scene.random.randint(1, 3))])
    what = f"append {entry.number} x{len(entry.sizes)} {level}"
    call = wal.append_many(entry.values, durability=level)  # type: ignore[call-overload]
    span = await scene.call(what, call, entry)
    if span is None:
        return False
    before = machine.kept.setdefault(span.start, entry)
    if before is not entry:
        raise CloudViolationError("once", f"{entry!r} and {before!r} are at {span.start}")
    if level == "cloud":
        scene.ledger.acknowledged(entry, span.start)
        scene.ledger.is_begun = True
    else:
        scene.ledger.lost_sight(entry)
    return True
