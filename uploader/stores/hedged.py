"""HedgedStore: sends a second request when an answer is late, within a budget, and takes the first answer.

Object stores answer most requests quickly and a few very late. A second identical request costs little
and usually overtakes the late one. Only calls that may be made twice are hedged: reads, and put-if-absent.
Swaps, deletes and listings pass through. A call gets at most one second request, and a budget per second
bounds them all, so that a store that is slow as a whole does not get twice the work.

The threshold is learned from the last latencies of the same kind of call and about the same size.

A put-if-absent that was sent twice may be refused because of its own twin. So a refusal counts only once it
is clear that our object did not cause it: the twin was refused or did not happen either, or the object
holds other bytes. If it holds exactly our bytes while the twin stays unanswered, the outcome is unknown, as
after any lost answer; ``uploader.root.cas`` takes such an object for ours. In detail, a put is settled by

* a success: the object is ours;
* two failures: if either put may have happened the outcome is unknown, else a refusal was about another
  writer's object;
* the object itself, once one request was refused while the other is unanswered: other bytes are another
  writer's. Equal bytes may be ours or not, so the other request gets some more time to answer; after that
  the outcome is unknown.

A read is settled by the first answer that is not a transient fault.

Cancellation: the slower request is cancelled, which the store may or may not notice. A put that still
arrives is refused because the object exists. If the object was deleted in the meantime, the put recreates it.
Do not delete objects while a request of their put can still be in flight.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar, cast

from uploader.runtime.task_groups import task_group
from uploader.stores.port import ObjectStore, PreconditionFailedError, StoredObject, get_bounded
from uploader.stores.retry import is_transient
from uploader.stores.wrapper import Kind, Request, StoreWrapper
from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.core.validation.arguments import as_settings
from walstore.core.validation.fields import check_fields, described, flag, number, seconds, whole
from walstore.errors import CorruptionError, InvalidSettingsError, StorageUnavailableError, WalError


class Latencies:
    """The last ``window`` latencies of one kind of request. Adding one and a lookup cost microseconds."""

    def __init__(self, window: int) -> None:
        """Begin without samples."""
        self._window = window
        self._by_age: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._by_age)

    def add(self, seconds: float) -> None:
        """Add a sample; the oldest one goes once the window is full."""
        if len(self._by_age) == self._window:
            del self._sorted[bisect_left(self._sorted, self._by_age.popleft())]
        self._by_age.append(seconds)
        insort(self._sorted, seconds)

    def quantile(self, fraction: float) -> float:
        """Return the smallest sample that at least this fraction of the samples does not exceed."""
        return self._sorted[max(math.ceil(fraction * len(self._sorted)), 1) - 1]


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Answer(Generic[_T]):
    """What a request returned, or the error it ended with."""

    value: _T | None
    error: WalError | None = None

    def get(self) -> _T:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return cast("_T", self.value)

    @property
    def is_final(self) -> bool:
        """Whether the answer is final: anything but a transient fault."""
        return self.error is None or not is_transient(self.error)

    @property
    def is_refusal(self) -> bool:
        """Whether a put was refused because the object exists."""
        return isinstance(self.error, PreconditionFailedError)

    @property
    def may_have_happened(self) -> bool:
        """Whether a put that failed may have happened."""
        return self.error is not None and self.error.outcome != "not_written"


async def ask(request: Callable[[], Awaitable[_T]]) -> Answer[_T]:
    """Make a request and return its answer; raises nothing that a store may raise."""
    try:
        return Answer(await request())
    except WalError as error:
        return Answer(None, error)


async def settle_read(
    first: asyncio.Task[Answer[_T]],
    second: asyncio.Task[Answer[_T]],
    _pause: Callable[[], Awaitable[None]],
) -> Answer[_T]:
    """Return the first final answer; the first request's if both had transient faults."""
    pending = {first, second}
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in (first, second):
            if task in done and task.result().is_final:
                return task.result()
    return first.result()


async def settle_put(
    first: asyncio.Task[Answer[str]],
    second: asyncio.Task[Answer[str]],
    pause: Callable[[], Awaitable[None]],
    *,
    look: Callable[[], Awaitable[StoredObject]],
    data: bytes,
) -> Answer[str]:
    """Return what became of ``data``, which both try to put if absent.

    ``look`` reads the object; CorruptionError if that is longer than ``data``.
    """

    async def is_theirs() -> bool:
        """Return whether another writer's object is there; False only after the pause."""
        found = await ask(look)
        is_longer = isinstance(found.error, CorruptionError)
        if is_longer or (found.error is None and found.get().data != data):
            return True
        await pause()
        return False

    judging: asyncio.Task[bool] | None = None
    waiting: set[asyncio.Task[Answer[str]] | asyncio.Task[bool]] = {first, second}
    async with task_group() as group:
        while True:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            waiting -= done
            answers = [task.result() for task in (first, second) if task.done()]
            answer = _decide(answers)
            if answer is None and judging is None:
                if answers[0].is_refusal:
                    judging = group.create_task(is_theirs())
                    waiting.add(judging)
            elif answer is None and judging is not None and judging.done():
                answer = answers[0] if judging.result() else _OPEN
            if answer is not None:
                if judging is not None:
                    judging.cancel()
                return answer


_OPEN: Answer[str] = Answer(
    None,
    StorageUnavailableError(
        "an object of the same content is there, but which request put it is not known",
        outcome="unknown",
    ),
)


def _decide(answers: list[Answer[str]]) -> Answer[str] | None:
    """Decide the outcome of a put from its one or two answers; None: it needs the other answer."""
    for answer in answers:
        if answer.error is None:
            return answer
    if len(answers) < 2:
        return None
    for answer in answers:
        if answer.may_have_happened:
            return answer
    return next((answer for answer in answers if answer.is_refusal), answers[0])


_READS: tuple[Kind, ...] = ("get", "get_range", "head")

_Settle = Callable[
    [asyncio.Task[Answer[_T]], asyncio.Task[Answer[_T]], Callable[[], Awaitable[None]]],
    Awaitable[Answer[_T]],
]


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class HedgeSettings:
    """When a second request is sent, and how many."""

    hedges_per_second: float = number(
        1.0,
        "The budget: a second request is sent no sooner than 1 / hedges_per_second after the last one.",
        above=True,
    )

    max_under_way: int = whole(4, "Second requests unanswered at the same time.", low=1)

    quantile: float = number(
        0.95,
        "A request that takes longer than this fraction of the last ones is late.",
        high=1,
        above=True,
        below=True,
    )

    window: int = whole(
        100,
        """How many of the last latencies are looked at, for each kind and size. At least
        least_samples.""",
        low=1,
    )

    least_samples: int = whole(20, "Nothing is hedged before so many latencies are known.", low=1)

    least_wait_seconds: float = seconds(
        0.005, "No request is late before this, however quick the others are.", above=True
    )

    settle_seconds: float = seconds(
        1.0,
        """How much longer the other request may take to say whose object it is, after one was refused and
        the object turned out to hold the same bytes.""",
    )

    hedges_puts: bool = flag(
        "Whether put-if-absent is hedged, too; if not, reads alone.", default=True
    )

    def __post_init__(self) -> None:
        """Check the fields; InvalidSettingsError."""
        check_fields(self)
        if self.least_samples > self.window:
            raise InvalidSettingsError(
                f"window must be at least least_samples, which is {self.least_samples}, not {self.window}"
            )


@dataclass(frozen=True, slots=True)
class HedgeStatistics:
    """Counts of hedged calls so far."""

    requests: int
    """Calls that could have been hedged."""

    late: int
    """Of these, calls without an answer at the threshold."""

    hedges: int
    """Second requests sent; fewer than ``late`` where the budget was used up."""

    wins: int
    """Second requests whose answer was taken."""


class HedgedStore(StoreWrapper):
    """The port over another store, with second requests. Belongs to one event loop."""

    def __init__(
        self,
        inner: ObjectStore,
        settings: HedgeSettings | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        """Wrap ``inner``, which may repeat failed requests by itself."""
        super().__init__(inner)
        self._settings = as_settings(settings, HedgeSettings)
        self._clock = clock or SystemClock()
        self._latencies: dict[tuple[Kind, int], Latencies] = {}
        self._next_hedge_at = self._clock.monotonic()
        self._under_way = 0
        self._requests = self._late = self._hedges = self._wins = 0

    def statistics(self) -> HedgeStatistics:
        """Return the current counts."""
        return HedgeStatistics(self._requests, self._late, self._hedges, self._wins)

    def late_after_seconds(self, kind: Kind, size_bytes: int = 0) -> float | None:
        """Return the threshold for such a request; None while there are too few samples."""
        known = self._known(kind, size_bytes)
        if len(known) < self._settings.least_samples:
            return None
        return max(known.quantile(self._settings.quantile), self._settings.least_wait_seconds)

    async def put_if_absent(self, key: str, data: bytes) -> str:
        """Create an object; the module docstring defines what a refusal means."""
        put: Request[str] = Request(
            "put_if_absent", key, len(data), 0, lambda: self.inner.put_if_absent(key, data)
        )
        if not self._settings.hedges_puts:
            return await put()
        look = partial(get_bounded, self.inner, key, len(data))
        return await self._hedged(put, partial(settle_put, look=look, data=data))

    async def _call(self, request: Request[_T]) -> _T:
        if request.kind not in _READS:
            return await request()
        return await self._hedged(request, settle_read)

    async def _hedged(self, request: Request[_T], settle: _Settle[_T]) -> _T:
        self._requests += 1
        late_after = self.late_after_seconds(request.kind, _size_bytes(request))
        if late_after is None:
            return (await self._ask(request)).get()
        async with task_group() as group:
            answer = await self._race(group, request, late_after, settle)
        return answer.get()

    async def _race(
        self,
        group: asyncio.TaskGroup,
        request: Request[_T],
        late_after: float,
        settle: _Settle[_T],
    ) -> Answer[_T]:
        began = self._clock.monotonic()
        first = group.create_task(self._ask(request))
        if not await self._may_hedge(group, first, late_after):
            return first.result()
        second = group.create_task(ask(request))
        self._under_way += 1
        self._hedges += 1
        pause = partial(self._clock.sleep, self._settings.settle_seconds)
        try:
            answer = await settle(first, second, pause)
        finally:
            self._under_way -= 1
            first.cancel()
            second.cancel()
        if not first.done():
            # It takes at least this long. Left out, the threshold would sink with every win.
            self._note(request, self._clock.monotonic() - began)
        self._wins += second.done() and answer is second.result()
        return answer

    async def _may_hedge(
        self, group: asyncio.TaskGroup, first: asyncio.Task[Answer[_T]], late_after: float
    ) -> bool:
        """Return True when the request is late and the budget allows a second one; False once the
        request has its answer."""
        wait_seconds = late_after
        is_late = False
        while wait_seconds:
            timer = group.create_task(self._clock.sleep(wait_seconds))
            await asyncio.wait((first, timer), return_when=asyncio.FIRST_COMPLETED)
            timer.cancel()
            if first.done():
                return False
            self._late += not is_late
            is_late = True
            wait_seconds = self._take_from_budget()
        return True

    def _take_from_budget(self) -> float:
        """Return 0 if a second request may be sent now, else the seconds to wait before asking again."""
        now = self._clock.monotonic()
        pause = 1 / self._settings.hedges_per_second
        if now < self._next_hedge_at:
            return self._next_hedge_at - now
        if self._under_way >= self._settings.max_under_way:
            return max(pause, self._settings.least_wait_seconds)
        self._next_hedge_at = now + pause
        return 0.0

    async def _ask(self, request: Request[_T]) -> Answer[_T]:
        """Make a request and record its latency."""
        began = self._clock.monotonic()
        answer = await ask(request)
        if answer.is_final:
            self._note(request, self._clock.monotonic() - began)
        return answer

    def _note(self, request: Request[_T], seconds: float) -> None:
        self._known(request.kind, _size_bytes(request)).add(seconds)

    def _known(self, kind: Kind, size_bytes: int) -> Latencies:
        """Return the latencies of a kind, and of sizes within a factor of sixteen."""
        where = kind, size_bytes.bit_length() // 4
        if where not in self._latencies:
            self._latencies[where] = Latencies(self._settings.window)
        return self._latencies[where]


def _size_bytes(request: Request[_T]) -> int:
    return request.sent_bytes + request.wanted_bytes
