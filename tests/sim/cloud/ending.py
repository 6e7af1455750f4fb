"""The end of a history: nothing fails any more, all that was sent has arrived, and all is looked at."""

from __future__ import annotations

from typing import Any, Final

from tests.sim.cloud.ledger import CloudViolationError
from tests.sim.cloud.machines import DIRECTORY, Machine, close_wal, log_options
from tests.sim.cloud.machines import append as append_local
from tests.sim.cloud.reading import read_whole
from tests.sim.cloud.scene import Scene, _opened
from tests.sim.cloud.writing import append, close
from uploader import (
    CloudLog,
    CloudWriter,
    CollectorSettings,
    GarbageCollector,
    Scrubber,
    destroy,
    seal,
)
from uploader.format import layout
from uploader.format.findings import Finding, Severity
from uploader.format.inventory import Part, part_of
from walstore import Wal
from walstore.errors import (
    CollectionRefusedError,
    ContentionError,
    CorruptionError,
    FencedError,
    LogNotFoundError,
    WalError,
)

_HOLE: Final = "behind records that were never uploaded"


async def end_all(scene: Scene) -> None:
    """End what was begun and look at what is left of one log."""
    ledger = scene.ledger
    scene.cancels = 0.0
    if ledger.may_be_destroyed:
        await _end_destroyed(scene)
        return
    if not ledger.is_begun and not await _exists(scene):
        return
    if ledger.may_be_sealed:
        ledger.sealed(await well(seal(scene.url, **scene.options())))
    elif scene.plan.ships and ledger.parent is None:
        await _ship(scene)
    else:
        await _append(scene)
    await _look(scene)
    await _collect(scene)
    await _look(scene)


async def well(call: Any) -> Any:
    """Return what a call returns that nothing keeps from going well."""
    try:
        return await call
    except WalError as error:
        raise CloudViolationError("goes-well", f"{error!r}") from error


async def _exists(scene: Scene) -> bool:
    try:
        log = await CloudLog.open(scene.url, **scene.options())
    except LogNotFoundError:
        return False
    await log.aclose()
    return True


async def _append(scene: Scene) -> None:
    opening = CloudWriter.open(scene.url, chain=scene.plan.chain(scene.random), **scene.options())
    log = await well(_opened(opening))
    for _ in range(2):
        if not await append(scene, log, "append"):
            raise CloudViolationError("goes-well", "an append failed")
    await close(scene, log)


async def _ship(scene: Scene) -> None:
    """Ship from a new directory, or from the one without which some fragments lie behind a hole."""
    new = Machine(f"last disk {scene.plan.seed}")
    for machine in (new, *scene.history.machines.values()):
        try:
            wal = await Wal.open(DIRECTORY, **log_options(scene, machine))
        except (ContentionError, FencedError) as error:
            scene.trace(f"open: {error!r}")
            if machine is new and _HOLE not in str(error):
                raise CloudViolationError("goes-well", f"{error!r}") from error
            continue
        except WalError as error:
            raise CloudViolationError("goes-well", f"{error!r}") from error
        if not await append_local(scene, machine, wal, "cloud"):
            raise CloudViolationError("goes-well", "an append to a local log failed")
        await close_wal(scene, machine, wal)
        return
    scene.trace("only the disk that was lost has what lies before some fragments")


async def _look(scene: Scene) -> None:
    """Read all, verify and scrub."""
    log = await scene.open_log()
    if log is None:
        raise CloudViolationError("goes-well", "it cannot be opened")
    try:
        if not await read_whole(scene, log):
            raise CloudViolationError("goes-well", "it cannot be read")
        try:
            await log.verify()
        except CorruptionError as error:
            raise CloudViolationError("sums", f"{error!r}") from error
    finally:
        await log.aclose()
    scrubber = await Scrubber.open(scene.url, **scene.options())
    try:
        report = await well(scrubber.scrub())
    finally:
        await scrubber.aclose()
    bad = [str(found) for found in report.findings if not _is_left_over(scene, found)]
    if bad:
        raise CloudViolationError("scrubs", "; ".join(bad))


def _is_left_over(scene: Scene, found: Finding) -> bool:
    """Return whether a finding is none of a defect."""
    if "its records are older than some" in found.what:
        # Writers without a disk, where several fragments are put at once: docs/cloud_writer.md.
        plan = scene.plan
        return not plan.ships and (plan.parallel_puts or plan.layout == "chain")
    if scene.plan.parallel_puts and "does not continue the log" in found.what:
        return True  # one behind a hole: docs/cloud_writer.md
    return found.severity is Severity.NOTE


async def _collect(scene: Scene) -> None:
    settings = CollectorSettings(interval_seconds=scene.plan.interval_seconds)
    opening = GarbageCollector.open(scene.url, settings=settings, **scene.options())
    collector = await well(_opened(opening))
    try:
        try:
            collected = await collector.collect()
        except CollectionRefusedError as error:
            scene.trace(f"refused: {error}")
            return
        except WalError as error:
            raise CloudViolationError("goes-well", f"collecting: {error!r}") from error
        scene.trace(f"collected up to {collected.head}, {len(collected.deleted)} objects")
        scene.ledger.check_head(collected.head)
    finally:
        await collector.aclose()


async def _end_destroyed(scene: Scene) -> None:
    """Destroy the log once more: nothing is left of it, and it does not come back."""
    try:
        await destroy(scene.url, confirm=True, **scene.options())
    except LogNotFoundError as error:
        if scene.ledger.is_destroyed or scene.ledger.is_begun:
            raise CloudViolationError("goes-well", f"{error!r}") from error
        return
    except WalError as error:
        raise CloudViolationError("goes-well", f"destroying: {error!r}") from error
    scene.ledger.is_destroyed = True
    for what, opening in (
        ("read", CloudLog.open(scene.url, **scene.options())),
        ("written", CloudWriter.open(scene.url, **scene.options())),
    ):
        try:
            await opening
        except LogNotFoundError:
            continue
        raise CloudViolationError("destroyed", f"it can be {what}")
    left = scene.history.world.bucket(scene.url).objects
    odd = [key for key in left if key != layout.TOMBSTONE and not _may_stay(scene, key)]
    if layout.TOMBSTONE not in left or odd:
        raise CloudViolationError("destroyed", f"left are {odd}")


def _may_stay(scene: Scene, key: str) -> bool:
    if key.startswith(("walstore-probe/", "walstore-mark/")):
        return True
    is_chain = scene.plan.layout == "chain" and scene.ledger.parent is None
    return is_chain and part_of(key) is Part.MANIFEST
