"""plan_rebuild and apply_rebuild: a damaged log of the default layout, made to work again.

The model is the repair of a local log: a plan says everything before anything is changed, and is carried out
as it was seen, or not at all: copies first, then one swap of the manifest, then the objects behind its end.
Between any two calls to the store the process may die, and a call may happen although its answer is lost:

  1. What will be replaced or given up is copied, then noted (``plan.py``). Nothing is changed yet.
  2. An announced collection is cancelled. It was planned for the damaged manifest.
  3. Snapshots are put where there is none, or a damaged one.
  4. The manifest is swapped for the damaged one that was seen, or created if there was none. Until then the
     log is the damaged one, from then on the rebuilt one. A writer that knew another manifest finds its own
     swap refused.
  5. Objects behind the new end are replaced by ones that no program takes for fragments. A writer might
     publish them before that, so until then the new manifest marks the log as sealed: a writer that reads it
     appends nothing, and one that read an older manifest is refused. A second swap removes the mark.

The same plan may repeat every step, and so may a new plan made from the new state.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

from uploader.care.rebuilding.plan import Keep, Note, RebuildPlan, Void
from uploader.care.rebuilding.planning import make_plan
from uploader.care.rebuilding.survey import Progress, survey
from uploader.format import layout
from uploader.format.garbage import Garbage
from uploader.format.manifest import Manifest, blocker
from uploader.layouts.log_session import LogSession
from uploader.root import cas
from uploader.root.orphan_recovery import VOID
from uploader.root.stored_document import MOST_FRAGMENT_BYTES, read_object
from uploader.root.swapped_document import SwappedDocument
from uploader.root.write_guard import check_not_destroyed, destroyed
from uploader.runtime.task_groups import task_group
from uploader.stores.port import ObjectNotFoundError, ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.ports import Clock
from walstore.core.runtime.old_names import renamed
from walstore.core.validation.arguments import as_count, as_texts
from walstore.errors import ContentionError, InvalidSettingsError

_LOOKS: Final = 3
"""How often to read a log that changes during the read."""


@renamed(parallel="concurrency")
async def plan_rebuild(
    url: str,
    *,
    keep: Keep | None = None,
    exclude: AbstractSet[str] = frozenset(),
    writer: str | None = None,
    concurrency: int = 4,
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
        concurrency: Fragments read at the same time; memory is about three times as many. 1 to 64.
        progress: Called after each fragment with how many were read, and how many there are.
        store: Replaces the store that the URL names, and stays open.
        clock: Says which pins are over.
    """
    as_count(concurrency, "concurrency", high=64)
    exclude = frozenset(as_texts(exclude, "exclude"))
    if isinstance(keep, str) and keep not in {"before", "after"}:
        raise InvalidSettingsError(f"keep must be 'before', 'after' or an offset, not {keep!r}")
    async with LogSession.once(url, store=store, clock=clock) as session:
        used, worker = session.store, session.worker
        for _ in range(_LOOKS):
            await check_not_destroyed(used)
            found = await survey(
                used,
                worker,
                exclude=exclude,
                concurrency=concurrency,
                now_us=session.clock.now_us(),
                progress=progress,
            )
            if found.manifest is not None and found.manifest.is_destroyed:
                raise destroyed(used.url)
            plan = await worker.run(make_plan, found, keep, writer)
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
    async with LogSession.once(plan.location, store=store, retry=retry, clock=clock) as session:
        await Rebuild(session.store, session.retry, plan).run()


async def _is_unchanged(store: ObjectStore, etag: str | None) -> bool:
    found = await store.head(layout.MANIFEST)
    return (None if found is None else found.etag) == etag


_COPIES: Final = 4
"""Objects that are copied at the same time; each is in memory."""


class Rebuild:
    """One attempt to carry out a plan. Belongs to one task."""

    def __init__(self, store: ObjectStore, retry: RetryPolicy, plan: RebuildPlan) -> None:
        self._store = store
        self._retry = retry
        self._plan = plan
        self._changes = plan.changes

    async def run(self) -> None:
        """Do it all. ContentionError if something changed since the plan was made."""
        changes = self._changes
        if changes.manifest is not None:
            await check_not_destroyed(self._store)
        await self._set_aside()
        if changes.garbage_etag is not None:
            await self._put(layout.GARBAGE, Garbage().serialise(), changes.garbage_etag)
        for snapshot, etag in changes.snapshots:
            await self._put(snapshot.path, snapshot.serialise(), etag)
        if changes.manifest is not None:
            await self._put_manifest(changes.manifest)
        for void in changes.voids:
            await self._put_void(void)
        if self._plan.is_marked:
            await self._reopen()

    # -- before ------------------------------------------------------------------------------

    async def _set_aside(self) -> None:
        plan, changes = self._plan, self._changes
        waiting = iter(changes.copies)

        async def copy_on() -> None:
            for key, etag in waiting:
                await self._copy(key, etag)

        async with task_group() as tasks:
            for _ in range(_COPIES):
                tasks.create_task(copy_on())
        if changes.name:
            lost = tuple(f"[{one.start}, {one.stop})" for one in plan.lost)
            note = Note(plan.start, plan.limit, plan.setsum, lost, changes.voids)
            await self._put(layout.rebuild_note(changes.name), note.serialise(), None)

    async def _copy(self, key: str, etag: str) -> None:
        """Copy an object. If it changed, this plan copied it before, or the plan is too old."""
        copy = layout.kept_path(self._changes.name, key)
        try:
            stored = await read_object(self._store, key, most_bytes=MOST_FRAGMENT_BYTES)
        except ObjectNotFoundError:
            stored = None
        if stored is not None and stored.etag == etag:
            await self._put(copy, stored.data, None)
        elif await self._store.head(copy) is None:
            raise self._changed(key)

    # -- the change --------------------------------------------------------------------------

    async def _put_manifest(self, rebuilt: Manifest) -> None:
        manifest = rebuilt.begin_rebuilding() if self._plan.is_marked else rebuilt
        data, etag = manifest.serialise(), self._changes.manifest_etag
        result = await cas.put(self._store, layout.MANIFEST, data, etag, retry=self._retry)
        result.decided(self._store.url, "the manifest was swapped; rebuild again")
        if result.outcome is cas.PutOutcome.LOST and result.data != rebuilt.serialise():
            raise self._changed(layout.MANIFEST)
        if etag is None:
            await check_not_destroyed(self._store)

    # -- behind the end ----------------------------------------------------------------------

    async def _put_void(self, void: Void) -> None:
        """Replace what was seen behind the end. If it has changed by now, its writer handles it."""
        plan = self._plan
        data = VOID
        if plan.is_sealed and void.key == layout.fragment_path(plan.next_seq_no):
            data = blocker(plan.limit)
        await self._try_put(void.key, data, void.etag)

    async def _reopen(self) -> None:
        """Remove the mark from the newest manifest, which a collector may have changed meanwhile."""

        def reopened(found: Manifest | None) -> Manifest | None:
            if found is None:
                raise self._changed(layout.MANIFEST)
            return found.end_rebuilding() if found.is_rebuilding else None

        question = "the log was opened for appends; rebuild again"
        await SwappedDocument[Manifest | None](
            self._store, layout.MANIFEST, Manifest.parse, retry=self._retry, question=question
        ).change(reopened)

    async def _put(self, key: str, data: bytes, etag: str | None) -> None:
        """Put an object where there is none, or the one with that ETag; ContentionError for another one.

        A copy, a note or a snapshot with the same content was put by a rebuild that ran at the same time.
        """
        if not await self._try_put(key, data, etag):
            raise self._changed(key)

    async def _try_put(self, key: str, data: bytes, etag: str | None) -> bool:
        """Return False if another object is there. A late answer is as good as any: what is created here
        is never removed."""
        result = await cas.put(self._store, key, data, etag, retry=self._retry)
        if result.outcome is cas.PutOutcome.UNKNOWN:
            result.decided(self._store.url, f"{key} was put; rebuild again")
        return result.outcome is cas.PutOutcome.COMMITTED

    def _changed(self, key: str) -> ContentionError:
        return ContentionError(
            f"{key} in {self._store.url} changed since the plan was made; stop all writers and collectors, "
            "then make another plan"
        )
