"""RemoteGroup: the way of a client's members to a group of a served log; KeptJobs: what came too late."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from walstore.core.runtime.statistics import GroupStatistics
from walstore.errors import StorageUnavailableError, WalError
from walstore.net.remote.client import Answer, Client, PendingRequest
from walstore.net.wire import verbs
from walstore.net.wire.groups import pack_settings
from walstore.net.wire.message import ProtocolViolationError
from walstore.positions.groups.group_settings import GroupSettings
from walstore.records import Record

Jobs = list[tuple[Record, int]]
_KEEP_SECONDS: Final = 1.0
"""How long jobs of a cancelled fetch wait for the next one, at most; others may be waiting for them."""
_WAIT_SECONDS: Final = 30.0
"""How long the server waits for a job before it answers without any."""
_HELD_AT_ONCE: Final = 10_000
"""Jobs in one message."""


class RemoteGroup:
    """A group at the server, for one member. Each call says which group it is about.

    A server that was restarted knows which jobs are leased, and not to whom. So the jobs that the member has
    are kept here, for the call that gives them back.
    """

    def __init__(self, client: Client, name: str, settings: GroupSettings) -> None:
        self._client = client
        self._group = [name, pack_settings(settings)]
        self._member = b""
        self._bound = b""
        """Which group the member entered, as the server says; empty if that is an older one."""
        self._is_there = False
        """Whether the member has entered, and not left."""
        self._most_held = settings.max_ack_pending
        self._kept = KeptJobs(
            self._unpack, self._take_back, lease_seconds=settings.ack_wait_seconds
        )
        self._held: dict[int, int] = {}
        """Deliveries of the jobs that were neither settled nor given back, by offset, oldest lease first."""

    @property
    def identity(self) -> tuple[str, str]:
        """As of :class:`walstore.positions.groups.group.GroupBackend`."""
        return str(self._client.welcome["log"]["log_id"]), str(self._group[0])

    async def open(self, member: bytes) -> None:
        """Make the group usable, and let a member in; raises as the server's."""
        self._member = member
        self._bind(await self._call(verbs.OPEN_GROUP, member))
        self._is_there = True

    def stay(self) -> None:
        """Let the server know on a new connection that the member is there, if it is; without waiting."""
        if self._is_there and not self._client.is_closing:
            request = self._send(verbs.STAY, self._member)
            request.future.add_done_callback(self._stayed)

    async def take(
        self, member: bytes, most: int, max_wait_seconds: float | None
    ) -> list[tuple[Record, int]]:
        """Lease jobs to a member. Of jobs whose answer is lost, the first comes again after its lease.

        If cancelled, jobs whose answer is under way are for the next call.
        """
        jobs = await self._kept.take(most, max_wait_seconds)
        left = max_wait_seconds
        while not jobs:
            seconds = _WAIT_SECONDS if left is None else min(left, _WAIT_SECONDS)
            jobs = await self._take(member, most, seconds)
            if left is not None:
                left -= seconds
                if left <= 0:
                    break
        return jobs

    async def settle(self, offsets: Sequence[int]) -> None:
        """Settle jobs durably; sent again if the connection is lost."""
        await self._call(verbs.SETTLE, list(offsets))
        for offset in offsets:
            self._held.pop(offset, None)

    async def give_back(
        self,
        offset: int,
        deliveries: int,
        delay_seconds: float,
        error: str | None = None,
        *,
        is_final: bool = False,
    ) -> None:
        """End a lease early, because of an error, which an older server does not take; perhaps for good."""
        why = [] if error is None else [error, is_final]
        await self._call(verbs.GIVE_BACK, self._member, offset, deliveries, delay_seconds, *why)
        if self._held.get(offset) == deliveries:
            del self._held[offset]

    async def extend(self, offset: int, deliveries: int) -> None:
        """Begin a lease anew."""
        await self._call(verbs.EXTEND, self._member, offset, deliveries)
        self._hold(offset, deliveries)

    async def leave(self, member: bytes) -> None:
        """Give back all that a member holds."""
        self._is_there = False
        await self._kept.end()
        held, self._held = [list(one) for one in self._held.items()], {}
        for low in range(0, max(len(held), 1), _HELD_AT_ONCE):
            await self._call(verbs.LEAVE, member, held[low : low + _HELD_AT_ONCE])

    def part(self) -> None:
        """Let the member leave, if it is there, as the client is closed; that waits for the answer."""
        if self._is_there and self._client.is_connected and not self._client.is_closing:
            self._is_there = False
            held = [list(one) for one in self._held.items()][:_HELD_AT_ONCE]
            request = self._send(verbs.LEAVE, self._member, held)
            # Without an answer the jobs come again when the connection is missed, or the lease ends.
            request.future.add_done_callback(
                lambda answer: answer.cancelled() or answer.exception()
            )

    async def statistics(self) -> GroupStatistics:
        """Return the group at this moment."""
        return GroupStatistics(**await self._call(verbs.GROUP_STATISTICS))

    async def _take(self, member: bytes, most: int, seconds: float) -> list[tuple[Record, int]]:
        request = self._send(verbs.FETCH, member, most, seconds)
        try:
            await asyncio.wait(
                (request.future,)
            )  # which leaves the future alone if it is cancelled
        except asyncio.CancelledError:
            self._client.withdraw(request)
            self._kept.watch(request.future)
            raise
        return self._unpack(request.future.result())

    def _unpack(self, answer: Answer) -> list[tuple[Record, int]]:
        try:
            jobs: Jobs = verbs.FETCH.answer.unpack(*answer)
        except ProtocolViolationError as error:
            raise StorageUnavailableError(f"the server sent {error}") from error
        for record, deliveries in jobs:
            self._hold(record.offset, deliveries)
        return jobs

    def _take_back(self, jobs: Sequence[tuple[Record, int]]) -> None:
        """Give back jobs that nobody has seen; without waiting, as their leases end in any case."""
        held = [[record.offset, deliveries] for record, deliveries in jobs]
        for offset, _ in held:
            self._held.pop(offset, None)
        if not self._client.is_closing:
            self._send(verbs.TAKE_BACK, self._member, held)

    def _hold(self, offset: int, deliveries: int) -> None:
        """Note a lease that begins now. A group has a limited number; of more, the oldest have ended."""
        self._held.pop(offset, None)
        self._held[offset] = deliveries
        while len(self._held) > self._most_held:
            del self._held[next(iter(self._held))]

    async def _call(self, verb: verbs.Verb, *arguments: object) -> Any:
        asked = [*self._group, *arguments]
        return await self._client.call(verb, *asked, payload=(self._bound,))

    def _send(self, verb: verbs.Verb, *arguments: object) -> PendingRequest:
        return self._client.send(verb, *self._group, *arguments, payload=(self._bound,))

    def _stayed(self, answer: asyncio.Future[Answer]) -> None:
        """Take over what a server that was started anew calls the group."""
        if not answer.cancelled() and answer.exception() is None:
            self._bind(answer.result()[0])

    def _bind(self, bound: object) -> None:
        self._bound = bound if isinstance(bound, bytes) else b""


class KeptJobs:
    """Jobs that were leased to a member whose fetch was cancelled while they were under way.

    The next fetch of the member gets them. If none comes they are given back after a moment, and were no
    delivery: nobody has seen them. Belongs to the member's event loop.
    """

    def __init__(
        self,
        unpack: Callable[[Answer], Jobs],
        give_back: Callable[[Sequence[tuple[Record, int]]], None],
        *,
        lease_seconds: float,
    ) -> None:
        """``unpack`` an answer to jobs; ``give_back`` those that nobody fetched."""
        self._unpack = unpack
        self._give_back = give_back
        self._keep_seconds = min(_KEEP_SECONDS, lease_seconds / 2)
        self._unanswered: set[asyncio.Future[Answer]] = set()
        self._jobs: Jobs = []
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, answer: asyncio.Future[Answer]) -> None:
        """Keep the jobs of a fetch that was cancelled, if its answer has some."""
        if answer.done():
            self._answered(answer)
        else:
            self._unanswered.add(answer)
            answer.add_done_callback(self._answered)

    async def take(self, most: int, max_wait_seconds: float | None) -> Jobs:
        """Return up to ``most`` of them; waits for the answers that are due, as they come at once."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max_wait_seconds):
                while self._unanswered and not self._jobs:
                    await asyncio.wait(self._unanswered, return_when=asyncio.FIRST_COMPLETED)
        taken, self._jobs = self._jobs[:most], self._jobs[most:]
        return taken

    async def end(self) -> None:
        """Give back what nobody fetched, also what is under way."""
        if self._unanswered:
            await asyncio.wait(self._unanswered)
        self._release()

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        jobs, self._jobs = self._jobs, []
        if jobs:
            self._give_back(jobs)

    def _answered(self, answer: asyncio.Future[Answer]) -> None:
        self._unanswered.discard(answer)
        if answer.cancelled() or answer.exception() is not None:
            return  # it leased nothing, or nobody can know
        with contextlib.suppress(WalError):  # an answer that is none
            self._jobs += self._unpack(answer.result())
        if self._jobs and self._timer is None:
            loop = answer.get_loop()
            self._timer = loop.call_later(self._keep_seconds, self._release)
