"""Programs that collect, fork, seal and destroy."""

from __future__ import annotations

from tests.sim.cloud.scene import Scene, _opened
from uploader import CollectorSettings, GarbageCollector, destroy, fork, seal
from walstore.errors import OffsetError, WalError


async def collect(scene: Scene) -> None:
    """Collect some times."""
    random, plan = scene.random, scene.plan
    settings = CollectorSettings(
        interval_seconds=plan.interval_seconds,
        max_fragments=random.choice([2, 10_000]),
        max_drop_fraction=random.choice([0.95, 1.0]),
        delete_batch=random.choice([1, 100]),
        max_wait_seconds=random.choice([None, 0.0]),
        keep_bytes=random.choice([0, 0, 2000]),
        keep_seconds=random.choice([0.0, 0.0, 60.0]),
    )
    opening = GarbageCollector.open(scene.url, settings=settings, **scene.options())
    collector = await scene.call("open a collector", _opened(opening))
    if collector is None:
        return
    try:
        for _ in range(random.randint(1, 5)):
            collected = await scene.call("collect", collector.collect())
            if collected is not None:
                scene.trace(f"collected up to {collected.head}, {len(collected.deleted)} objects")
                scene.ledger.check_head(collected.head)
                scene.ledger.head = max(scene.ledger.head, collected.head)
            await scene.pause(1.0, 100.0, 4000.0)
    finally:
        await collector.aclose()


async def fork_it(scene: Scene) -> None:
    """Make a fork, again until it is made; then let others use it."""
    history, random, ledger = scene.history, scene.random, scene.ledger
    await scene.pause(1.0, 10.0, 100.0)
    target = f"{ledger.name}-{scene.process.name.partition('.')[0]}"
    for _ in range(4):
        try:
            made = await fork(
                ledger.name,
                target,
                concurrency=random.choice([1, 4]),
                source_store=scene.store(),
                target_store=scene.store(target),
                retry=scene.retry(),
                clock=scene.clock,
            )
        except OffsetError as error:
            scene.trace(f"fork: {error!r}")
            return
        except WalError as error:
            scene.trace(f"fork: {error!r}")
            if target in history.ledgers and history.ledgers[target].may_be_destroyed:
                return  # it was made, and another one was told so
            scene.judge("fork", error)
            await scene.pause(1.0, 100.0)
            continue
        scene.trace(f"forked {made}")
        history.forked(ledger, target, made.start, made.limit)
        return


async def seal_it(scene: Scene) -> None:
    """Seal the log, again until that is done."""
    ledger = scene.ledger
    await scene.pause(1.0, 10.0, 100.0)
    for _ in range(4):
        ledger.may_be_sealed = True
        limit = await scene.call("seal", seal(scene.url, **scene.options()))
        if limit is not None:
            ledger.sealed(limit)
            return
        await scene.pause(1.0, 100.0)


async def destroy_it(scene: Scene) -> None:
    """Destroy the log, again until that is done."""
    ledger = scene.ledger
    await scene.pause(1.0, 10.0, 100.0, 4000.0)
    for _ in range(4):
        ledger.may_be_sealed = ledger.may_be_destroyed = True
        done = await scene.call("destroy", destroy(scene.url, confirm=True, **scene.options()))
        if done is not None:
            ledger.is_destroyed = True
            return
        await scene.pause(1.0, 100.0)
