"""Programs that read: once, or following, some of them from a cursor that they commit."""

from __future__ import annotations

import asyncio

from tests.sim.cloud.ledger import CloudViolationError
from tests.sim.cloud.scene import MOST_OFF_SECONDS, Scene
from uploader import CloudLog
from uploader.positions.cursors.cloud_cursors import CloudCursors
from walstore.errors import (
    CursorMovedError,
    LogNotFoundError,
    OffsetTrimmedError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalError,
)


async def read(scene: Scene) -> None:
    """Read the whole log some times."""
    for _ in range(scene.random.randint(1, 3)):
        log = await scene.open_log()
        if log is not None:
            try:
                await read_whole(scene, log, dawdles=scene.random.choice([0.0, 0.1]))
            finally:
                await log.aclose()
        await scene.pause(0.1, 10.0, 4000.0)


async def read_whole(scene: Scene, log: CloudLog, *, dawdles: float = 0.0) -> bool:
    """Read from the head to the tail, maybe hashing all; return whether it could be read.

    ``dawdles``: how often it waits on the way.
    """
    head, tail = log.head, log.tail
    found: dict[int, bytes] = {}
    try:
        prefetch = scene.random.choice([0, 0, 1 << 20])
        async with log.reader(
            verify=scene.random.random() < 0.5, prefetch_bytes=prefetch
        ) as reader:
            async for record in reader:
                found[record.offset] = record.value
                if scene.random.random() < dawdles:
                    await scene.pause(1.0, 100.0, 5000.0)
    except OffsetTrimmedError:
        scene.trace("was passed by the head")
        return False
    except (StorageUnavailableError, LogNotFoundError) as error:
        scene.trace(f"reading: {error!r}")
        scene.judge("reading", error)
        return False
    if log.manifest.oldest_offset != head:
        head = log.manifest.oldest_offset
    found = {offset: value for offset, value in found.items() if head <= offset < tail}
    scene.ledger.read_all(head, tail, found)
    scene.trace(f"read [{head}, {tail})")
    return True


async def follow(scene: Scene) -> None:
    """Follow the log for a while."""
    log = await scene.open_log()
    if log is None:
        return
    try:
        start = scene.random.choice(["earliest", "latest", log.head, log.tail])
        await _follow(scene, log, start, scene.random.choice([1, 5, 30]))
    finally:
        await log.aclose()


async def _follow(scene: Scene, log: CloudLog, start: int | str, records: int) -> None:
    async with log.follow(start) as reader:
        while records > 0:
            position = reader.position
            try:
                async with asyncio.timeout(scene.random.choice([3.0, 60.0, 600.0])):
                    record = await anext(reader)
            except OffsetTrimmedError:
                scene.trace("was passed by the head")
                reader.seek(log.head)
                continue
            except TimeoutError:
                return
            except StopAsyncIteration:
                if not log.manifest.is_sealed:
                    raise CloudViolationError("readers", "a follower came to an end") from None
                return
            except (StorageUnavailableError, LogNotFoundError) as error:
                scene.trace(f"following: {error!r}")
                scene.judge("following", error)
                records -= 1
                continue
            if isinstance(position, int) and record.offset != position:
                raise CloudViolationError("readers", f"got {record.offset} at {position}")
            scene.ledger.saw(record.offset, record.value)
            records -= 1
            if scene.random.random() < 0.1:
                await scene.pause(1.0, 100.0, 5000.0)


async def consume(scene: Scene) -> None:
    """Read from a cursor of one's own and commit it; now and then remove it, or rewind it."""
    log = await scene.open_log()
    if log is None:
        return
    try:
        await _consume(scene, log, scene.process.name.partition(".")[0])
    finally:
        await log.aclose()


async def _consume(scene: Scene, log: CloudLog, name: str) -> None:
    ledger, random = scene.ledger, scene.random
    for _ in range(random.randint(1, scene.plan.calls)):
        try:
            found = await log.cursors.load(name)
        except (StorageUnavailableError, LogNotFoundError) as error:
            scene.judge("load a cursor", error)
            continue
        if not ledger.may_be_destroyed:
            ledger.found_cursor(name, None if found is None else found.position)
        low = log.head if found is None else found.position
        if found is not None and ledger.holds[name].is_certain:
            await _read_from(scene, log, found.position)
        if found is not None and random.random() < 0.1:
            await _delete(scene, log.cursors, name)
        else:
            position = random.choice([log.tail, random.randint(low, max(low, log.tail))])
            position = max(low, position)
            await commit(scene, log.cursors, name, position)
        await scene.pause(0, 1.0, 30.0, 3000.0)
        try:
            await log.refresh()
        except WalError as error:
            scene.judge("refresh", error)


async def _read_from(scene: Scene, log: CloudLog, position: int) -> None:
    """Read on from a cursor: what it holds is there."""
    try:
        async with log.reader(position) as reader:
            async for record in reader:
                scene.ledger.saw(record.offset, record.value)
    except OffsetTrimmedError as error:
        if not scene.ledger.may_be_destroyed:
            raise CloudViolationError("held", f"{position} is gone: {error!r}") from error
    except (StorageUnavailableError, LogNotFoundError) as error:
        scene.judge("read from a cursor", error)


async def commit(scene: Scene, cursors: CloudCursors, name: str, position: int) -> None:
    """Move a cursor, and write down what became of it."""
    ledger = scene.ledger
    before = ledger.holds.get(name)
    was = None if before is None else (before.least, before.most, before.is_certain)
    held = ledger.asks(name, position)
    is_rewind = scene.random.random() < 0.1
    move = cursors.rewind if is_rewind else cursors.commit
    scene.trace(f"commit {name} {position} …")
    try:
        made = await move(name, position)
    except OffsetTrimmedError as error:
        scene.trace(f"commit {name} {position}: {error!r}")
        if was is not None and was[2] and was[1] <= position and not ledger.may_be_destroyed:
            raise CloudViolationError("held", f"{name} was at {was}: {error!r}") from error
        if was is None:
            held.is_certain = False
        return
    except ValueError as error:
        scene.trace(f"commit {name} {position}: {error!r}")
        if was is None or position >= was[1]:
            raise CloudViolationError("cursors", f"{name} was at {was}: {error!r}") from error
        return
    except (StorageUnavailableError, OutcomeUnknownError, LogNotFoundError) as error:
        scene.trace(f"commit {name} {position}: {error!r}")
        scene.judge("commit", error)
        return
    scene.trace(f"commit {name} {position} -> {made.position}")
    if made.position != position:
        raise CloudViolationError("cursors", f"{name} was put at {made.position}, not {position}")
    ledger.is_at(name, position)


async def _delete(scene: Scene, cursors: CloudCursors, name: str) -> None:
    held = scene.ledger.holds[name]
    held.is_certain = False
    scene.trace(f"delete {name} …")
    try:
        await cursors.delete(name)
    except (StorageUnavailableError, OutcomeUnknownError, LogNotFoundError) as error:
        scene.judge("delete a cursor", error)
        return
    scene.trace(f"delete {name} -> done")
    del scene.ledger.holds[name]


async def pin(scene: Scene) -> None:
    """Pin the log for some time, and read what is pinned before that is over."""
    log = await scene.open_log()
    if log is None:
        return
    name = scene.process.name.replace(".", "_")
    seconds = scene.random.choice([600.0, 20_000.0])
    try:
        held = scene.ledger.asks(name, log.head)
        since = asyncio.get_running_loop().time()
        try:
            made = await log.cursors.pin(name, log.head, seconds=seconds)
        except (
            StorageUnavailableError,
            OutcomeUnknownError,
            LogNotFoundError,
            OffsetTrimmedError,
            CursorMovedError,
        ) as error:
            scene.trace(f"pin: {error!r}")
            held.is_certain = False
            return
        until = since + seconds - MOST_OFF_SECONDS
        scene.ledger.is_at(name, made.position, until)
        scene.trace(f"pinned {made.position} until {until:.0f}")
        await scene.pause(1.0, 200.0)
        if asyncio.get_running_loop().time() < until - 100:
            await _read_from(scene, log, made.position)
    finally:
        await log.aclose()
