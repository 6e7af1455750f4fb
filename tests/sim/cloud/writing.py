"""Programs that append straight to the store."""

from __future__ import annotations

import asyncio

from tests.sim.cloud.ledger import CloudViolationError
from tests.sim.cloud.scene import Scene, _opened
from uploader import CloudWriter, WriterSettings
from walstore.errors import WalError


async def write(scene: Scene) -> None:
    """Open the log, append in several ways at once, and close it, maybe meanwhile."""
    plan, random = scene.plan, scene.random
    settings = WriterSettings(
        fragment_bytes=4096 if plan.small else 8 << 20,
        interval_seconds=random.choice([0.0, 0.02]),
        max_in_flight=random.choice([1, 4, 16]),
        parallel_puts=plan.parallel_puts,
        pending_records=random.choice([3, 1000]),
        contention_attempts=random.choice([0, 2, 8]),
        patience_seconds=random.choice([5.0, 30.0, 100.0]) + 50 * plan.usual_seconds,
        roll_up=plan.roll_up,
    )
    layout = plan.layout if scene.ledger.parent is None else None
    opening = CloudWriter.open(
        scene.url, settings=settings, layout=layout, chain=plan.chain(random), **scene.options()
    )
    log = await scene.call(f"open a writer {layout or ''}", _opened(opening))
    if log is None:
        return
    scene.ledger.is_begun = True
    users = [
        asyncio.get_running_loop().create_task(scene.history.guard(_use(scene, log)))
        for _ in range(plan.actors)
    ]
    try:
        if scene.end == "busy":
            await scene.pause(0.05, 0.5, 5.0)
        else:
            await asyncio.wait(users)
    finally:
        scene.is_ending = True
        await close(scene, log)
    await asyncio.wait(users)


async def close(scene: Scene, log: CloudWriter) -> None:
    """Close a writer; it may not fail unless the store does."""
    try:
        await log.aclose()
        scene.trace("closed")
    except WalError as error:
        scene.trace(f"closing: {error!r}")
        raise CloudViolationError("fails-for-a-cause", f"aclose raised {error!r}") from error


async def _use(scene: Scene, log: CloudWriter) -> None:
    """Make some calls of any kind."""
    for _ in range(scene.random.randint(1, scene.plan.calls)):
        act = scene.random.choice(scene.plan.acts)
        if act == "flush":
            await scene.call("flush", _succeeds(log.flush()))
        elif act == "burst":
            await asyncio.gather(*(append(scene, log, "append") for _ in range(5)))
        else:
            await append(scene, log, act)
        if scene.is_ending and scene.random.random() < 0.8:
            return
        await scene.pause()


async def append(scene: Scene, log: CloudWriter, act: str) -> bool:
    """Append a record or a group; return whether that was acknowledged."""
    random = scene.random
    sizes = [scene.size() for _ in range(random.randint(1, 4) if act == "many" else 1)]
    expect = log.tail if act == "expect" else None
    entry = scene.submit(sizes, expect)
    what = f"append {entry.number} x{len(sizes)}" + (f" at {expect}" if expect else "")
    if act == "many":
        span = await scene.call(what, log.append_many(entry.values), entry)
        start = None if span is None else span.start
    else:
        call = log.append(entry.value(0), expect_offset=expect)
        start = await scene.call(what, call, entry)
    if start is not None:
        scene.ledger.acknowledged(entry, start)
    return start is not None


async def _succeeds(call: object) -> bool:
    await call  # type: ignore[misc]
    return True
