"""plan_rebuild and apply_rebuild: a damaged log of the default layout, made to work again.

The model is the repair of a local log: a plan says everything before anything is changed, and is carried out
as it was seen, or not at all.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

from uploader.format import layout
from uploader.layouts.log_session import LogSession
from uploader.rebuilding import plan as planning
from uploader.rebuilding.apply import Rebuild
from uploader.rebuilding.plan import Keep, RebuildPlan
from uploader.rebuilding.survey import Progress, survey
from uploader.root.write_guard import check_not_destroyed, destroyed
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.errors import ContentionError, InvalidSettingsError
from walstore.ports import Clock
from walstore.runtime.threads import Worker
from walstore.validation.arguments import as_count

_LOOKS: Final = 3
"""How often to read a log that changes during the read."""


async def plan_rebuild(
    url: str,
    *,
    keep: Keep | None = None,
    exclude: AbstractSet[str] = frozenset(),
    writer: str | None = None,
    parallel: int = 4,
    progress: Progress | None = None,
    store: ObjectStore | None = None,
    clock: Clock | None = None,
) -> RebuildPlan:
    """Read all of the log under ``url``, and return what is damaged and what can be kept. Changes nothing.

    Every record is hashed. Kept is what the fragments prove: that they continue each other, in numbers and in
    offsets, and hold what was published as far as anything says so. Memory grows with the number of
    fragments, about 1 kB for each.

    Raises LogNotFoundError if there is neither a manifest nor a fragment, or the log was destroyed;
    InvalidSettingsError for a log of the layout ``chain`` (see :func:`uploader.rebuild`), and for a ``keep``
    that names no stretch; FormatVersionError if a newer version wrote something of it; ContentionError if it
    changed all the time while it was read; and the store's errors: what cannot be read is not given up.

    Args:
        url: The log's location.
        keep: Where damage leaves several stretches, which one stays the log: ``"before"``, the first, which
            is the default; ``"after"``, the last; or an offset in it.
        exclude: Keys of fragments to treat as damaged.
        writer: The writer for the manifest, instead of the one in the manifest or the fragments.
        parallel: Fragments read at the same time; memory is about three times as many. 1 to 64.
        progress: Called after each fragment with how many were read, and how many there are.
        store: Replaces the store that the URL names, and stays open.
        clock: Says which pins are over.
    """
    as_count(parallel, "parallel", high=64)
    if isinstance(keep, str) and keep not in {"before", "after"}:
        raise InvalidSettingsError(f"keep must be 'before', 'after' or an offset, not {keep!r}")
    session = LogSession(
        url, store=store, clock=clock, worker=Worker("rebuild", threads=2), leaves_store_open=True
    )
    async with session:
        used, worker = session.store, session.worker
        for _ in range(_LOOKS):
            await check_not_destroyed(used)
            found = await survey(
                used,
                worker,
                exclude=exclude,
                parallel=parallel,
                now_us=session.clock.now_us(),
                progress=progress,
            )
            if found.manifest is not None and found.manifest.is_destroyed:
                raise destroyed(used.url)
            plan = await worker.run(planning.plan, found, keep, writer)
            if not plan.is_needed or await _is_unchanged(used, found.manifest_etag):
                return plan
        raise ContentionError(
            f"the log at {used.url} changes while it is read; stop its writers and collectors"
        )


async def apply_rebuild(
    plan: RebuildPlan,
    *,
    store: ObjectStore | None = None,
    retry: RetryPolicy | None = None,
    clock: Clock | None = None,
) -> None:
    """Carry out a plan; does nothing if the plan is empty.

    The new manifest replaces only the one that the plan was made from: ContentionError if that, or anything
    else to be replaced, has changed since. Interrupted anywhere, the log is either
    the damaged one or the rebuilt one; call again, or make another plan, which knows what is left to do. What
    is replaced or given up is kept below ``plan.kept_in``.

    Raises LogNotFoundError if the log was destroyed meanwhile, OutcomeUnknownError if the store does not say
    whether something was put, and its other errors: make another plan then.

    Args:
        plan: What :func:`plan_rebuild` returned.
        store: Replaces the store that the plan names, and stays open.
        retry: How conditional puts are repeated.
        clock: Sleeps between the attempts.
    """
    if not plan.is_needed:
        return
    session = LogSession(
        plan.location, store=store, retry=retry, clock=clock, leaves_store_open=True
    )
    async with session:
        await Rebuild(session.store, session.retry, plan).run()


async def _is_unchanged(store: ObjectStore, etag: str | None) -> bool:
    found = await store.head(layout.MANIFEST)
    return (None if found is None else found.etag) == etag
