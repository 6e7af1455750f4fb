"""Writer: the one task that owns the tail. Takes batch builders, commits them, publishes, acknowledges.

While one commit syncs on the writer thread, the next batch accumulates in the channel: group commit
needs no timer. Everything in this file runs on the event loop; everything that blocks is in
``tail.py``.

Invariants (tests/walstore/core/append/test_writer.py)
  W1  An append at level ``disk`` returns only after the sync that covers it has returned.
  W2  The limits change in offset order: the durable limit after the sync, and the cache no later.
  W3  After a failed call the log has failed permanently: every waiter gets the outcome of its records.
  W4  Cancelling the task does not end it: it starts closing, which writes everything accepted.
  W5  Every request is answered, whatever is raised.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from walstore.core.append.channel import Channel
from walstore.core.append.log_state import Commit, Reached, TailError
from walstore.core.append.tail import Tail
from walstore.core.batches.batch_builder import BatchBuilder
from walstore.core.files.segment_file import Segment
from walstore.core.files.unlinked_file import UnlinkedFile, free_at_once, free_blocks
from walstore.core.ports import Clock
from walstore.core.replication_port import SegmentTee
from walstore.core.runtime.error_mapping import copy_error, to_wal_error
from walstore.core.runtime.statistics import UNOBSERVED, LogObserver
from walstore.core.runtime.tasks import wait_ended, wake
from walstore.core.runtime.threads import Lane
from walstore.core.settings import Settings
from walstore.errors import FencedError, Outcome, WalClosedError, WalError

_T = TypeVar("_T")

_LEAST_SLEEP_SECONDS = 1e-6
COMMIT_BYTES = 16 << 20
"""Maximum bytes of one commit (one write, one sync); the rest waits for the next."""


class Listener(Protocol):
    """Receives what was written and became durable. All calls come on the event loop, in order."""

    @property
    def wants_disk(self) -> bool:
        """Whether a caller waits for a sync."""

    def on_commit(self, commit: Commit) -> list[asyncio.Future[None]]:
        """Records were written, and synced if the commit says so; returns its waiters, to be woken last."""

    def on_sync(self, durable_limit: int) -> None:
        """Everything written became durable."""

    def on_rotate(self, sealed: Segment, active: Segment) -> None:
        """The active segment was sealed without a commit."""

    def on_drop(self, starts: list[int], head: int) -> None:
        """Sealed segments were deleted; ``head`` is the first offset still on disk."""

    def on_failure(
        self,
        reached: Reached,
        make_error: Callable[[int], WalError],
        make_settled_error: Callable[[int], WalError],
    ) -> None:
        """The log failed: what is durable in ``reached`` is safe. Waiters for other records get
        ``make_error`` of their limit, waiters for a change of the ledger ``make_settled_error`` of its
        serial."""


class Writer:
    """Runs commits and everything else that touches the tail, one at a time."""

    def __init__(
        self,
        *,
        tail: Tail,
        channel: Channel,
        listener: Listener,
        settings: Settings,
        clock: Clock,
        worker: Lane,
        freeing: Lane | None,
    ) -> None:
        self._tail = tail
        self._channel = channel
        self._listener = listener
        self._clock = clock
        self._worker = worker
        self._freeing = freeing
        self._age_seconds = settings.segment_age_seconds
        self._linger_seconds = settings.linger_seconds
        self._syncs_always = settings.sync == "batch"
        self._sync_seconds = None if isinstance(settings.sync, str) else settings.sync
        # Owned by the writer task.
        self._aging_from = clock.monotonic()
        self._requests: list[tuple[Callable[[], Awaitable[None]], asyncio.Future[None]]] = []
        self._unlinked: list[UnlinkedFile] = []
        """Deleted segments whose blocks are not freed."""
        self._removing = asyncio.Lock()
        self._trimming = 0
        """How many callers wait in :meth:`advance_head`: each frees what is deleted meanwhile."""
        self._is_checkpoint_due = self._stopping = False
        self._ended = False
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once :meth:`run` has begun; before that, cancelling its task ends it."""
        self.on_cancel: Callable[[], None] = lambda: None
        self.on_failed: Callable[[], None] = lambda: None
        """Called when the task is cancelled; must close the log."""
        self._has_unsynced = asyncio.Event()
        self._has_records = asyncio.Event()
        if not tail.is_empty:
            self._has_records.set()
        self.observer: LogObserver = UNOBSERVED
        """Gets the durations of commits and syncs; set before the first append."""
        self.unsynced_since: float | None = None
        """When the oldest record written and not synced was accepted; monotonic."""
        self.failure: WalError | None = None
        self.commits = 0
        self.rotations = 0

    async def run(self) -> None:
        """Serve until :meth:`stop`, then until the channel is empty.

        Started by the log's supervisor. Never raises: it fails the log instead. Cancelling it calls
        :attr:`on_cancel`, and it continues.
        """
        if not self.started.done():
            self.started.set_result(None)
        try:
            while self.failure is None and not (self._stopping and self._is_done):
                await self._guarded(self._serve)
        finally:
            self._ended = True
            self._refuse_requests()

    @property
    def _is_done(self) -> bool:
        """Whether nothing is left to do before the log closes."""
        if self._requests:
            return False
        return self._channel.is_empty and not self._tail.has_unsynced

    async def _serve(self) -> None:
        """Do what there is to do until the log closes or has failed; raises as an action does."""
        while self.failure is None and not (self._stopping and self._is_done):
            commit: asyncio.Future[Commit] | None = None
            if self._is_checkpoint_due:
                await self._checkpoint()
            try:
                if self._linger_seconds and not self._stopping and not self._channel.is_empty:
                    await self._channel.wait_full(self._linger_seconds)
                if self._requests:
                    await self._serve_requests()
                builders = self._channel.take(COMMIT_BYTES)
                if builders:
                    commit = self._begin_commit(builders)
                    await commit
                elif self._tail.has_unsynced and (self._stopping or self._listener.wants_disk):
                    await self._sync()
                elif not self._stopping:
                    await self._channel.wait_ready()
            except asyncio.CancelledError:
                self.on_cancel()
                if commit is not None:  # done, as it refuses to be cancelled
                    commit.result()

    async def run_age_limit(self) -> None:
        """Seal segments that reach the age limit; started only if there is one, cancelled at the end.
        Asleep while the active segment is empty."""
        assert self._age_seconds is not None
        while True:
            await self._has_records.wait()
            left = self._aging_from + self._age_seconds - self._clock.monotonic()
            if left >= _LEAST_SLEEP_SECONDS:
                await self._clock.sleep(left)
                continue  # a rotation by size may have begun a younger segment meanwhile
            try:
                await self.rotate()
            except WalError:
                return  # the log failed; _fail reports it to the waiters

    async def run_sync_interval(self) -> None:
        """Sync records written that long ago; started only with such an interval, cancelled at the end.
        Asleep while nothing is unsynced."""
        assert self._sync_seconds is not None
        while True:
            await self._has_unsynced.wait()
            await self._clock.sleep(self._sync_seconds)
            try:
                await self._request(self._sync)
            except WalError:
                return

    def request_sync(self) -> None:
        """Sync unsynced writes soon: a caller waits for the disk."""
        if not self._syncs_always:
            self._channel.poke()

    async def rotate(self) -> None:
        """Seal the active segment with everything accepted so far, durably; return when that is done.

        Does nothing to an empty segment.
        """
        await self._request(partial(self._rotate, self._channel.tail))

    async def advance_head(self, decide: Callable[[Tail], list[int]]) -> None:
        """Run ``decide`` on the writer's thread, between two commits, and remove the segments whose
        first offsets it returns; ``decide`` has made the head after them durable.

        Their blocks are freed when this returns, which commits do not wait for; all at once if the caller
        is cancelled, the log closes or no thread can be had.

        WalError if the log failed or closes before. Cancelling does not stop it.
        """

        async def advance() -> None:
            starts = await self._run(decide, self._tail)
            if not self._tail.has_unsynced:
                self._note_synced()
            self._listener.on_drop(starts, self._tail.head)
            if starts:
                await self._remove(starts)

        self._trimming += 1
        try:
            await self._request(advance)
            with contextlib.suppress(WalError):  # the head has moved; the rest is only deletion
                await self._free_removed()
        finally:
            self._trimming -= 1
            self._free_at_once()

    async def _remove(self, starts: Sequence[int] = ()) -> None:
        """Delete some files. As a request it is served also after its caller was cancelled."""
        if self._unlinked:
            await self._run(self._tail.give_up, starts)  # until those are freed
        else:
            in_parts = self._freeing is not None
            found = await self._run(partial(self._tail.remove, starts, in_parts=in_parts))
            self._unlinked.extend(found)
        if not self._trimming:
            self._free_at_once()

    async def _free_removed(self) -> None:
        """Free the blocks of deleted files, and delete the rest, some between two commits."""
        async with self._removing:
            await self._free_unlinked()
            while self._tail.is_removing:
                await self._request(self._remove)
                await self._free_unlinked()

    async def _free_unlinked(self) -> None:
        while self._unlinked and self._freeing is not None:
            await free_blocks(self._unlinked[0], self._freeing)
            self._unlinked = [file for file in self._unlinked if not file.is_freed]

    def _free_at_once(self) -> None:
        """Let threads free and delete what is left: nobody waits for it."""
        if self._freeing is not None:
            free_at_once(self._unlinked, self._freeing, self._worker)
        if self._tail.is_removing and self.failure is None and not self._ended:
            with contextlib.suppress(WalError):
                self._worker.begin_through(self._tail.remove_left)

    async def attach(self, tee: SegmentTee, look: Callable[[], None]) -> None:
        """Let ``look()`` see the files, and tell ``tee`` what is written from then on.

        WalError if the log failed or closes.
        """

        def attach() -> None:
            look()
            self._tail.tee = tee

        await self._request(partial(self._run_alone, attach))

    async def checkpoint(self) -> None:
        """Write a checkpoint of everything written; durable when this returns. Raises as :meth:`attach`."""
        await self._request(self._checkpoint)

    async def mark_epoch(self) -> None:
        """Write a frame of this opening's epoch; durable when this returns. Raises as :meth:`attach`."""

        async def mark() -> None:
            await self._run(self._tail.mark)
            self._note_synced()

        await self._request(mark)

    async def _run_alone(self, call: Callable[[], None]) -> None:
        await self._run(call)

    def note_uploaded(self, limit: int) -> None:
        """Remember the uploaded limit for the next checkpoint."""
        self._tail.uploaded_limit = limit

    def stop(self) -> None:
        """Let :meth:`run` return once everything accepted is durable."""
        self._stopping = True
        self._channel.poke()

    def fail(self, cause: Exception) -> None:
        """Fail the log because of a defect elsewhere, or because another directory took it over
        (FencedError); records being written may be on disk."""
        if self.failure is None:
            self._fail(cause, self._tail.reached.in_doubt())

    def close_tail(self) -> None:
        """Close the tail after :meth:`run` returned; blocking, for the writer's thread. OSError."""
        for file in self._unlinked.copy():
            file.close()
        self._tail.close(clean=self.failure is None and self._ended)

    def abandon(self, error: WalClosedError) -> None:
        """Refuse every request; see :mod:`walstore.core.runtime.resource`."""
        self.failure = error
        self._ended = True

    # -- inside ------------------------------------------------------------------------------

    def _run(self, call: Callable[..., _T], *args: object) -> Awaitable[_T]:
        """Run a call on the tail to its end, even if this task is cancelled."""
        return self._worker.run_through(call, *args, on_cancel=self.on_cancel)

    def _begin_commit(self, builders: list[BatchBuilder]) -> asyncio.Future[Commit]:
        sync = self._syncs_always or self._listener.wants_disk
        then = partial(self._committed, builders, self._clock.monotonic())
        return self._worker.begin_through(
            partial(self._tail.commit, builders, sync=sync), then=then
        )

    def _committed(self, builders: list[BatchBuilder], began: float, commit: Commit) -> None:
        """Publish a commit. Its waiters run when all else is done here, up to their next wait."""
        self.commits += 1
        self.rotations += len(commit.sealed)
        waiters = self._listener.on_commit(commit)
        try:
            self._channel.release(builders)
            if commit.wants_checkpoint:
                self._is_checkpoint_due = True
            if self.observer is not UNOBSERVED:
                self._observe(builders, commit, began)
            if self._age_seconds is not None:
                self._note_age(commit)
            if not self._syncs_always:
                self._note_unsynced(builders, commit)
        finally:
            wake(waiters, None)

    def _note_age(self, commit: Commit) -> None:
        if commit.sealed or not self._has_records.is_set():
            self._aging_from = self._clock.monotonic()
        if self._tail.is_empty:
            self._has_records.clear()
        else:
            self._has_records.set()

    def _note_unsynced(self, builders: list[BatchBuilder], commit: Commit) -> None:
        if commit.is_synced:
            self._has_unsynced.clear()
            self.unsynced_since = None
        else:
            self._has_unsynced.set()
            if self.unsynced_since is None:
                self.unsynced_since = builders[0].accepted_at

    def _observe(self, builders: list[BatchBuilder], commit: Commit, began: float) -> None:
        now, accepted_at = self._clock.monotonic(), builders[0].accepted_at
        assert accepted_at is not None
        self.observer.on_commit(
            commit.limit - builders[0].start, commit.size_bytes, now - accepted_at, now - began
        )
        if commit.sync_seconds is not None:
            self.observer.on_sync(commit.sync_seconds)

    async def _sync(self) -> None:
        """Sync unsynced writes."""
        if not self._tail.has_unsynced:
            return
        seconds = await self._run(self._tail.sync)
        self.observer.on_sync(seconds)
        self._note_synced()

    def _note_synced(self) -> None:
        self._has_unsynced.clear()
        self.unsynced_since = None
        self._listener.on_sync(self._tail.durable_limit)

    async def _checkpoint(self) -> None:
        self._is_checkpoint_due = False
        await self._run(self._tail.checkpoint)
        self._note_synced()

    async def _rotate(self, limit: int) -> None:
        while self._tail.written_limit < limit:
            commit = self._begin_commit(self._channel.take(COMMIT_BYTES))
            if await wait_ended(commit):
                self.on_cancel()
            commit.result()
        if self._tail.is_empty:
            return
        sealed = await self._run(self._tail.rotate)
        self._has_records.clear()
        self.rotations += 1
        self._note_synced()
        self._listener.on_rotate(sealed, self._tail.active)
        await self._checkpoint()

    async def _request(self, action: Callable[[], Awaitable[None]]) -> None:
        """Pass an action to the writer task and wait for it; cancelling does not undo it."""
        self._channel.check_loop()
        if self._ended:
            raise copy_error(self.failure or WalClosedError("the log is closed"))
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests.append((action, future))
        self._channel.poke()
        await future

    async def _serve_requests(self) -> None:
        while self._requests:
            action, future = self._requests[0]
            error = await self._guarded(action)
            del self._requests[0]
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)
                    future.exception()  # a caller cancelled at this moment never retrieves it

    async def _guarded(self, action: Callable[[], Awaitable[None]]) -> WalError | None:
        """Run an action on the tail; any error fails the log. Return why it was not done."""
        if self.failure is not None:
            return copy_error(self.failure)
        cause: BaseException
        try:
            await action()
        except TailError as error:
            cause, reached = error.cause, error.reached
        except Exception as error:  # noqa: BLE001 - a defect here must not leave waiters hanging
            cause, reached = error, self._tail.reached.in_doubt()
        else:
            return None
        self._fail(cause, reached)
        return to_wal_error(cause, "unknown")

    def _refuse_requests(self) -> None:
        for _, future in self._requests:
            if not future.done():
                future.set_exception(
                    copy_error(self.failure or WalClosedError("the log is closed"))
                )
                future.exception()
        self._requests.clear()

    def _fail(self, cause: BaseException, reached: Reached) -> None:
        """Fail the log permanently, and fail every waiter with the outcome of its records."""
        is_fenced = isinstance(cause, FencedError)
        # It is on this disk; only a log that continues elsewhere shows whether it has the record.
        may_be_cut = is_fenced or self._tail.tee is not None

        def error_of(outcome: Outcome) -> WalError:
            outcome = "unknown" if outcome == "durable" and may_be_cut else outcome
            if not isinstance(cause, FencedError):
                return to_wal_error(cause, outcome)
            error = copy_error(cause)
            error.outcome = outcome
            return error

        def make_error(target: int) -> WalError:
            return error_of(reached.outcome(target))

        def make_settled_error(serial: int) -> WalError:
            return error_of(reached.settled_outcome(serial))

        self.failure = WalClosedError(
            f"the log was taken over by another directory: {cause}"
            if is_fenced
            else f"the log failed and must be opened again: {cause}",
            reason="fenced" if is_fenced else "failed",
        )
        self.failure.__cause__ = cause
        self._channel.close(self.failure)
        self._channel.drop()
        self._listener.on_failure(reached, make_error, make_settled_error)
        self.on_failed()
