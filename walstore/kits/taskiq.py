"""taskiq: a broker whose queue is a log. Tasks are records; workers are members of a group.

``broker = WalstoreBroker(lambda: connect("unix:///run/jobs.sock"))``, then ``@broker.task`` and
``taskiq worker MODULE:broker``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING

from walstore.core.runtime.extras import needs_extra
from walstore.log.log import Log
from walstore.positions.groups.delay import delayed
from walstore.records import AnyDurability

with needs_extra("taskiq", "walstore.kits.taskiq"):
    from taskiq import AckableMessage, AsyncBroker

if TYPE_CHECKING:
    from taskiq import BrokerMessage

__all__ = ["WalstoreBroker"]


class WalstoreBroker(AsyncBroker):
    """A taskiq broker over a group of a log.

    A task that was kicked is in the log, as safe as ``durability`` says, and is given to one worker at a
    time until it is acknowledged: by default after its result was saved. A task whose worker was killed
    comes again once ``ack_wait_seconds`` are over, or five seconds after its connection to a served log
    ended; so does one that runs longer than ``ack_wait_seconds``, which then runs twice.
    A worker that is stopped ends what it has begun, and gives back the rest at once.

    taskiq's label ``delay``, in seconds, delays a task as :func:`walstore.delayed` does. Raises what the log
    and :class:`walstore.Group` raise.
    """

    def __init__(
        self,
        log: Callable[[], AbstractAsyncContextManager[Log]],
        *,
        group: str = "taskiq",
        stream: str | None = None,
        durability: AnyDurability | None = None,
        ack_wait_seconds: float = 600.0,
        max_deliver: int | None = None,
    ) -> None:
        """Describe the queue; nothing is opened before :meth:`startup`.

        Args:
            log: Returns what ``async with`` opens, such as ``lambda: connect("unix:///run/jobs.sock")``.
                Workers and clients in several processes need a served log.
            group: Name of the group whose members the workers are.
            stream: The stream of the tasks, for a log with other records, too, or with several queues.
            durability: As of :meth:`walstore.Wal.append`.
            ack_wait_seconds: As of :meth:`walstore.Wal.group`: more than any task takes, waiting in the
                worker included.
            max_deliver: As of :meth:`walstore.Wal.group`: a task that was given out so often without an
                end is appended to the stream ``GROUP.dead``; None gives it out again and again.
        """
        super().__init__()
        self._open_log = log
        self._group = group
        self._stream = stream
        self._durability = durability
        self._ack_wait_seconds = ack_wait_seconds
        self._max_deliver = max_deliver
        self._opened: tuple[Log, AsyncExitStack] | None = None

    async def startup(self) -> None:
        """Open the log, and begin as every broker. Nothing more happens if it is open already."""
        if self._opened is None:
            stack = AsyncExitStack()
            self._opened = await stack.enter_async_context(self._open_log()), stack
        await super().startup()

    async def shutdown(self) -> None:
        """End as every broker, give back what workers here have not acknowledged, and close the log."""
        try:
            await super().shutdown()
        finally:
            if self._opened is not None:
                (_, stack), self._opened = self._opened, None
                await stack.aclose()

    async def kick(self, message: BrokerMessage) -> None:
        """Append a task. If cancelled it may enter the log nevertheless: see :meth:`walstore.Wal.append`.

        A label ``delay`` that is no number of seconds, 0 to ten years, is a ValueError; nothing is appended.
        """
        log, _ = self._started()
        delay = message.labels.get("delay")
        headers = None if delay is None else delayed(float(delay))
        await log.append(
            message.message, stream=self._stream, headers=headers, durability=self._durability
        )

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """Yield tasks as a new member of the group, which it is until :meth:`shutdown`: tasks that still run
        when listening ends are acknowledged afterwards."""
        log, stack = self._started()
        member = log.group(
            self._group,
            stream=self._stream,
            ack_wait_seconds=self._ack_wait_seconds,
            max_deliver=self._max_deliver,
        )
        await stack.enter_async_context(member)
        async for job in member:
            yield AckableMessage(data=job.value, ack=job.ack)

    def _started(self) -> tuple[Log, AsyncExitStack]:
        if self._opened is None:
            raise RuntimeError("the broker is not started: await broker.startup() first")
        return self._opened
