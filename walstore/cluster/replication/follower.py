"""Follower: keeps the copy at one node equal to the primary's log. One task for each node."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from walstore.cluster.replication.copies import catch_up
from walstore.cluster.replication.copy_marks import put_back
from walstore.cluster.replication.copy_trouble import CopyTrouble
from walstore.cluster.replication.known_copy import KnownCopy
from walstore.cluster.replication.lead import Lead
from walstore.cluster.replication.position import Place, SegmentExtent
from walstore.cluster.replication.remote_copy import RemoteCopy, written_there
from walstore.core.format.packed import MOST_OFFSET
from walstore.core.runtime.backoff import Backoff
from walstore.errors import CorruptionError, FencedError, StorageUnavailableError, WalError
from walstore.net.wire.address import Address

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from walstore.cluster.replication.written import Piece, SentHint
    from walstore.core.ports import Buffer

_CREDIT_BYTES: Final = 8 << 20
"""What may be under way to one node."""
_MOST_HINT_BYTES: Final = 8 << 20
"""Larger checkpoints, of logs with very many producers, are not worth their way."""
_LAST_PLACE: Final = Place(MOST_OFFSET, 0, 0)
_BEAT_SECONDS: Final = 0.5
"""How long nothing is sent to a node until it is asked whether it still obeys."""
_CHECKED_AT_ONCE: Final = 16
_CHECKED_BYTES: Final = 512 << 20
"""A node whose primary is gone reads so much yet, before it answers the next one."""


class Follower(KnownCopy):
    """The copy at one node, as its primary sees it. Belongs to the event loop."""

    def __init__(self, primary: Lead, address: Address) -> None:
        super().__init__(address)
        self.serial = 0
        """What was written up to it is durable there."""
        self.limit = 0
        """Every offset below it is durable there, as far as is known."""
        marks = primary.marks
        self.mark = 0 if marks is None else marks.of(primary.log_id).get(str(address), 0)
        """Every offset below it was replicated and, durably, there, when the copy counted last."""
        self._counted = _LAST_PLACE
        """Up to where it was durable then, if it was seen."""
        self._trouble = CopyTrouble(f"the copy at {address}", "it was not reached yet")
        self._is_stuck = False
        """Whether it was reached, and its copy does not count since that could not be completed."""
        self._head = 0
        """Segments wholly below it can be removed there."""
        self._primary = primary
        self._wake = asyncio.Event()
        self._under_way = 0
        self._place = Place(0, 0, 0)
        self._copy: RemoteCopy | None = None
        """While it counts."""
        self._sent: deque[float] = deque()
        """When what has no answer yet was sent."""
        self._failure: WalError | None = None
        self._shown = 0
        """Up to where readers there may see, as it was sent."""
        self._is_watched = False
        """Whether it has readers."""
        self._durable = self._hinted = Place(0, 0, 0)
        """Up to where the copy is durable, and was sent a checkpoint."""
        self._kept = Place(0, 0, 0)
        """Of the checkpoint that it has."""
        self._hint_kept = asyncio.Event()
        """Set when that changes, or the copy is lost."""

    @property
    def is_present(self) -> bool:
        """Whether the node is connected, and its copy is no further behind than what is under way."""
        return self.trouble is None

    @property
    def trouble(self) -> str | None:
        """Why it is not present; None if it is."""
        return self._trouble.text

    async def run(self) -> None:
        """Copy until the primary ends, or a newer one has taken over. A node that fails is tried again."""
        backoff = Backoff(0.05, 2.0, jitter=lambda: 0.5 + self._primary.make_tag()[0] / 256)
        attempt = 1
        while True:
            error = await self._try_to_follow()
            attempt = 1 if self.is_present else attempt + 1
            self._trouble.keep(error)
            self._hint_kept.set()
            # A newer primary that did not win takes its copy from this one, and no more.
            if isinstance(error, FencedError) and self._primary.is_passed_over(error):
                return
            self._trouble.note(error)
            await self._primary.clock.sleep(backoff.after(attempt))

    async def _try_to_follow(self) -> WalError:
        """Copy until that fails, and return why."""
        try:
            await self._follow()
        except WalError as error:
            return error
        raise AssertionError("copying has no end")

    async def _follow(self) -> None:
        primary, self.serial, self._shown = self._primary, 0, 0
        self._durable = self._hinted = self._kept = Place(0, 0, 0)
        was_stuck, self._is_stuck = self._is_stuck, False
        client = primary.client_of(self.address)
        client.on_lost = self._wake.set
        try:
            await client.connect()
            copy = primary.copy_at(client, primary.epoch)
            end, is_whole = await copy.obey(is_elected=True)
            has_less = end.limit < self.mark and end.place < self._counted
            is_put_back = has_less and end.log_id == primary.log_id
            if is_whole and is_put_back:
                is_whole = False
                self._trouble.note(put_back("it", end.limit, self.mark))
                await copy.give_up_whole(is_elected=True)
            elif not was_stuck:
                self._trouble.keep("it is sent what it lacks")
            self._is_stuck = True
            self.limit, self.reached = end.place.segment, copy
            self._place = await catch_up(
                primary.source, copy, end, log_id=primary.log_id, replaces=is_whole
            )
            if not is_whole:
                await self._check_all(copy)
                await primary.admit(copy)
            self._copy = copy
            self.limit = min(self.limit, self._place.segment)  # what it had was cut, maybe
            self._note(self._place)
            self._trouble.end()
            self._is_stuck = False
            raise await self._stream_and_complete(copy)
        finally:
            self._note_mark()
            self._under_way, self._copy, self._failure = 0, None, None
            self.reached = None
            self._sent.clear()
            await client.aclose()

    async def _check_all(self, copy: RemoteCopy) -> None:
        """Check all of a new copy, and repair it: one with damage is no second one.

        That is, of each segment that the log has up to its end: one that is missing there is sent again.
        Several segments are asked for at once: opening may wait for this, and gives up after a while. What
        was found to be whole the copy does not read again for the next attempt.
        """
        extents = await self._primary.source.extents()
        reached = [one for one in extents if one.start <= self._place.segment]
        failures: list[WalError] = []

        async def check(start: int) -> None:
            try:
                await self._primary.source.check_copy(self, copy, start)
            except WalError as error:
                failures.append(error)

        for starts in _batches(reached):
            async with asyncio.TaskGroup() as checks:
                for start in starts:
                    checks.create_task(check(start))
            if failures:
                raise failures[0]

    async def _stream_and_complete(self, copy: RemoteCopy) -> WalError:
        """Send what is written until that fails, and return why; meanwhile complete it."""
        async with asyncio.TaskGroup() as beside:
            completing = beside.create_task(self._complete(copy))
            try:
                await self._stream(copy)
            except WalError as error:
                completing.cancel()
                return error
        raise AssertionError("sending has no end")

    async def _complete(self, copy: RemoteCopy) -> None:
        """Put the segments before its last one there that it lacks, or has damaged, the newest of them first.

        It may have lost files, and counts all the same: what it lacks is replicated. What fails here is
        logged, and the next round of the scrub tries it again.
        """
        source, last = self._primary.source, self._place.segment
        try:
            theirs = set(await copy.extents())
            lacking = [one.start for one in await source.extents() if one not in theirs]
            for start in sorted(lacking, reverse=True):
                if start < last:
                    with contextlib.suppress(CorruptionError):  # no copy has it
                        await source.check_copy(self, copy, start)
        except WalError as error:
            self._trouble.warn("older segments until the next scrub", error)

    @property
    def _visible(self) -> int:
        """What enough copies have, this one among them."""
        return min(self._primary.replicated_limit, self.limit)

    def _note_mark(self) -> None:
        if self._copy is not None:
            self.mark, self._counted = max(self.mark, self._visible), self._durable

    def show(self) -> None:
        """Let readers there see what is replicated now; if there are none, it goes with the next write."""
        self._note_mark()
        copy, visible = self._copy, self._visible
        if copy is None or not self._is_watched or self._sent or visible <= self._shown:
            return
        self._shown = visible
        with contextlib.suppress(WalError):  # the connection is lost, which is noticed elsewhere
            copy.begin_show(visible).add_done_callback(_look_at)

    def trim(self, head: int) -> None:
        """Let the copy remove the segments wholly below a head."""
        self._head = max(self._head, head)
        self._wake.set()

    async def confirm(self) -> bool:
        """Return whether the copy counts, and obeys this primary now."""
        try:
            return self._copy is not None and await self._copy.confirm()
        except WalError:
            return False

    def push(self) -> None:
        """Send what was written since, if it is in memory; else the task reads and sends it."""
        if self._copy is None:
            return  # the task compares, and copies what there is
        if self._failure is None:
            try:
                if self._send_recent(self._copy) is None and self._hint_to_send() is None:
                    return
            except WalError as error:
                self._failure = error
        self._wake.set()

    async def _stream(self, copy: RemoteCopy) -> None:
        """Send what is written as it is written; answers come while more is sent.

        An idle node is sent what its readers may see; it refuses if it does not obey any more. Otherwise a
        primary without appends, which was passed over while it stood still, would never learn of it.
        """
        primary, head, patience = self._primary, self._head, self._primary.settings.patience_seconds
        beat = min(_BEAT_SECONDS, patience / 4)
        while True:
            self._wake.clear()
            if self._failure is not None:
                raise self._failure
            # Also while there is always more to send: a node that is silent counts for nothing.
            if self._sent and primary.clock.monotonic() - self._sent[0] >= patience:
                raise StorageUnavailableError(
                    f"{self.address} did not answer within {patience:g} s"
                )
            if not copy.client.is_connected:
                raise StorageUnavailableError(f"the connection to {self.address} is lost")
            if self._head > head:
                head = self._head
                copy.begin_trim(head).add_done_callback(_look_at)
            await self._send_hint(copy)
            found = self._send_recent(copy)
            if found is not None:
                data = await primary.source.read(found.place, found.size)
                if len(data) != found.size:
                    raise StorageUnavailableError("the log changed; its copy is compared again")
                self._send(copy, found, [data])
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(beat):
                    await self._wake.wait()
                continue
            if not self._sent:
                self._is_watched = await copy.show(self._visible)

    async def _send_hint(self, copy: RemoteCopy) -> None:
        """Let the copy keep the newest checkpoint, once it has everything that this describes."""
        hint = self._hint_to_send()
        if hint is None:
            return
        self._hinted = hint.place
        if len(hint.data) <= _MOST_HINT_BYTES:
            await copy.keep_hint(hint.place, hint.data)
        self._kept = hint.place
        self._hint_kept.set()

    def _hint_to_send(self) -> SentHint | None:
        hint = self._primary.written.hint
        return hint if hint is not None and self._hinted < hint.place <= self._durable else None

    async def until_hinted(self) -> None:
        """Return when the copy has the newest checkpoint, or is lost."""
        hint = self._primary.written.hint
        while hint is not None and self.is_present and self._kept < hint.place:
            self._hint_kept.clear()
            await self._hint_kept.wait()

    def _send_recent(self, copy: RemoteCopy) -> Piece | None:
        """Send what follows, as far as it is in memory; return the next piece that has to be read."""
        while self._under_way < _CREDIT_BYTES:
            found = self._primary.written.next_piece(self._place)
            if found is None:
                return None
            if found.pieces is None:
                return found
            self._send(copy, found, found.pieces)
        return None

    def _send(self, copy: RemoteCopy, piece: Piece, pieces: Sequence[Buffer]) -> None:
        self._place = piece.place._replace(position=piece.place.position + piece.size)
        self._under_way += piece.size
        self._sent.append(self._primary.clock.monotonic())
        self._shown = max(self._shown, self._visible)
        future = copy.begin_write(
            piece.place,
            pieces,
            seals=piece.seals,
            shown=self._shown,
            checks=piece.pieces is None,
        )
        future.add_done_callback(partial(self._answered, copy, piece.size))

    def _answered(self, copy: RemoteCopy, size: int, future: asyncio.Future[Any]) -> None:
        if copy is not self._copy:
            return  # of a connection that was given up
        self._under_way -= size
        self._sent.popleft()
        if self._failure is not None:
            return  # an earlier write failed, so a later answer does not speak for it
        try:
            durable, self._is_watched = written_there(future.result()[0])
            self._note(durable)
            self.show()
        except WalError as error:
            self._failure = error
        is_full = self._under_way + size >= _CREDIT_BYTES
        if self._failure is not None or is_full or self._hint_to_send() is not None:
            self._wake.set()

    def _note(self, durable: Place) -> None:
        self._durable = max(self._durable, durable)
        serial, limit = self._primary.written.mark_at(durable)
        self.serial, self.limit = max(self.serial, serial), max(self.limit, limit)
        self._primary.count()
        self._note_mark()


def _batches(extents: Sequence[SegmentExtent]) -> Iterator[list[int]]:
    """Yield the first offsets of the segments that a copy is asked to check at once."""
    starts: list[int] = []
    size_bytes = 0
    for extent in extents:
        if len(starts) == _CHECKED_AT_ONCE or size_bytes + extent.size > _CHECKED_BYTES:
            if starts:
                yield starts
            starts, size_bytes = [], 0
        starts.append(extent.start)
        size_bytes += extent.size
    if starts:
        yield starts


def _look_at(future: asyncio.Future[Any]) -> None:
    """Take what became of a call whose answer nobody needs."""
    if not future.cancelled():
        future.exception()
