"""Client: requests to a server over connections that may break, each answered once or failed with its fate.

A request that may be repeated is sent again on the next connection. Any other that may have reached the
server fails: with OutcomeUnknownError if it may have changed the log, as nothing tells whether it did. What
was under way when the server ended the connection for a violation is never repeated: it would do so again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Sequence
from itertools import count
from math import inf
from typing import Any, Final

from walstore.core.ports import Clock
from walstore.core.runtime.backoff import Backoff
from walstore.core.runtime.error_mapping import copy_error
from walstore.core.runtime.resource import LoopGuard, abandon_in_children
from walstore.core.runtime.tasks import shield, start_task
from walstore.errors import (
    LimitExceededError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalClosedError,
    WalError,
)
from walstore.net.remote.question import Question
from walstore.net.remote.server_connection import ServerConnection, check_version, connect_to
from walstore.net.remote.server_search import FoundServer, epoch_of, find_server
from walstore.net.wire.address import Address
from walstore.net.wire.errors import unpack_error
from walstore.net.wire.message import (
    MOST_HEAD_BYTES,
    MOVES,
    NO_REQUEST,
    NOT_BEGUN,
    UNDECIDED,
    Kind,
    Message,
    encode,
)
from walstore.net.wire.verbs import LIMITS, Fate, Verb

logger = logging.getLogger("walstore.client")

_CLOSED: Final = "the connection is closed"
_PAUSES: Final = (0.02, 1.0)
"""The first and the longest between attempts to connect, in seconds."""
_LASTS_SECONDS: Final = 1.0
"""A connection that is made again and lost earlier was of no use. So long takes the last attempt at least."""
_SILENCE_SECONDS: Final = 10.0
"""How long a server says nothing, while requests wait for it, until it is asked something: a reader waits
longer for records, and asking every few seconds costs nobody anything."""
_LOOK_SECONDS: Final = 1.0
"""The same with several addresses, and how often the others are asked while there is no answer. Also how
often is looked whether what was asked has left this program, behind what was sent before it."""

_SEARCH_SECONDS: Final = 2.0
"""How long a search among several addresses waits at first for those that say nothing, and twice as long each
time: a server that refused at once may have the log meanwhile."""

_LONG_SECONDS: Final = 2.0
"""How long a write has no answer until other addresses are asked whether the log is led there now."""

Answer = tuple[Any, memoryview]
"""Head and payload of an answer."""


READ_SERVICE: Final = "read"
"""What a client asks a server for that only reads; None asks for a log."""


class PendingRequest:
    """A request that has no answer yet."""

    __slots__ = (
        "fate",
        "future",
        "is_under_way",
        "is_withdrawn",
        "is_write",
        "may_be_done",
        "message",
        "number",
        "since",
    )

    def __init__(
        self,
        number: int,
        message: list[bytes | memoryview],
        fate: Fate,
        *,
        is_write: bool,
        since: float,
    ) -> None:
        self.since = since
        """When it was asked."""
        self.number = number
        self.message = message
        self.fate = fate
        self.is_write = is_write
        """As of its :class:`Verb`."""
        self.is_under_way = False
        """Whether the present connection is to answer it."""
        self.may_be_done = False
        """Whether it was under way on a connection that was lost."""
        self.is_withdrawn = False
        """Whether the server was told that nobody waits for it."""
        self.future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    @property
    def is_sent_write(self) -> bool:
        """Whether it may have changed the log."""
        return self.is_write and (self.is_under_way or self.may_be_done)


class Client:
    """The requests of one client. Belongs to the event loop that made it."""

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        token: str | None,
        tls: ssl.SSLContext | None,
        log: str | None,
        connect_seconds: float,
        reconnect_seconds: float,
        clock: Clock,
        make_tag: Callable[[], bytes],
        service: str | None = None,
        creates: bool = True,
    ) -> None:
        self.address = addresses[0]
        """Where the server is; of several places the one where it was found last."""
        self.welcome: dict[str, Any] = {}
        """What the server said of itself and the log, on the newest connection."""
        self.on_welcome: Callable[[dict[str, Any]], None] = lambda _: None
        """Called with it for each connection."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called when a connection is lost, after its requests have failed or wait."""
        self._addresses = addresses
        self._token = token
        self._tls = tls
        self._log = log
        self._service = service
        self._creates = creates
        self._connect_seconds = connect_seconds
        self._reconnect_seconds = reconnect_seconds
        self._clock = clock
        self.make_tag = make_tag
        """Returns eight bytes that no other client has."""
        self._numbers = count(1)
        self._requests: dict[int, PendingRequest] = {}
        self._link: ServerConnection | None = None
        self._is_leaving = False
        """Whether the server of the present connection takes nothing new."""
        self._connecting: asyncio.Task[None] | None = None
        # Not all clients of a restarted server at the same moment.
        self._pauses = Backoff(*_PAUSES, jitter=lambda: 0.5 + self.make_tag()[0] / 512)
        self._lost_at = 0.0
        """Since when requests wait for a connection that lasts."""
        self._reconnected_at = -inf
        self._watching: asyncio.Task[None] | None = None
        self._is_doubtful = False
        """Whether the server lately said that it cannot do something for want of others."""
        self._left_epoch = 0
        """Of the log, if the last server said that it goes on with a later one."""
        self._newest_epoch = 0
        """Of the log, as far as this client knows."""
        self._failure: WalError | None = None
        self._is_ending = False
        """Whether it takes nothing new, and waits for what is in progress."""
        self._refusal: str | None = None
        """Why the server ends the connection, if it said so."""
        self.reconnects = 0
        """How often a lost connection was replaced."""
        self._guard = LoopGuard("connection")
        abandon_in_children(self)

    async def connect(self) -> None:
        """Make the first connection; raises as :func:`walstore.net.remote.server_connection.connect_to`.

        Tries again for ``connect_seconds``: the server may be starting, too. What a server said is raised
        rather than that the last try had too little time.
        """
        deadline = self._clock.monotonic() + self._connect_seconds
        said: WalError | None = None
        pauses, searches = Backoff(*_PAUSES), self._search_limits()
        while True:
            try:
                left = deadline - self._clock.monotonic()
                self._join(await self._new_link(min(searches.next_seconds(), left)))
                if self._service in (None, READ_SERVICE):  # replication has a patience of its own
                    self._watching = start_task(
                        self._watch(), name=f"walstore watch of {self._log or 'a log'}"
                    )
                return
            except WalError as error:
                if said is None or not isinstance(error.__cause__, TimeoutError):
                    said = error
                left = deadline - self._clock.monotonic()
                if not error.retriable or left <= _PAUSES[0]:
                    raise said from said.__cause__
            await self._clock.sleep(min(pauses.next_seconds(), left / 2))

    def check_home(self) -> None:
        """Raise the error that ended this client, or WrongLoopError for another event loop or thread."""
        if self._failure is not None:
            raise copy_error(self._failure)
        self._guard.check()
        if self._is_ending:
            raise WalClosedError(_CLOSED)

    def check_owner(self) -> None:
        """Raise WrongLoopError for another event loop or thread, WalClosedError in a forked child."""
        self._guard.check()

    @property
    def is_closing(self) -> bool:
        """Whether it was closed, or cannot go on."""
        return self._is_ending or self._failure is not None

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self._link is not None

    # -- requests ----------------------------------------------------------------------------

    def send(
        self,
        verb: Verb,
        *arguments: object,
        payload: Sequence[bytes | memoryview] = (),
        fate: Fate | None = None,
    ) -> PendingRequest:
        """Send a request now, or with the next connection. Its future gets the answer or the error.

        ``fate`` is that of this one request. LimitExceededError if the server would not take it.
        """
        self.check_home()
        return self._send(verb, arguments, payload, fate)

    def _send(
        self,
        verb: Verb,
        arguments: Sequence[object],
        payload: Sequence[bytes | memoryview] = (),
        fate: Fate | None = None,
    ) -> PendingRequest:
        number = next(self._numbers)
        message = encode(verb.kind, number, verb.head(arguments), payload)
        most_bytes = min(MOST_HEAD_BYTES, self.welcome.get("message_bytes", MOST_HEAD_BYTES))
        if len(message[0]) > most_bytes:
            raise LimitExceededError(
                f"a request of {len(message[0])} bytes, beside its records; the server takes {most_bytes}: "
                "do it in parts",
                limit=most_bytes,
            )
        since = self._clock.monotonic()
        request = PendingRequest(
            number, message, fate or verb.fate, is_write=verb.is_write, since=since
        )
        self._requests[number] = request
        if self._link is None:
            self._reconnect()
        elif not self._is_leaving:
            request.is_under_way = True
            self._link.send(request.message)
        return request

    async def wait(self, request: PendingRequest) -> Answer:
        """Return the answer of a request. If cancelled, the server is told that nobody waits."""
        try:
            return await request.future
        except asyncio.CancelledError:
            self.forget(request)
            raise

    async def call(
        self,
        verb: Verb,
        *arguments: object,
        payload: Sequence[bytes | memoryview] = (),
        fate: Fate | None = None,
    ) -> Any:
        """Ask the server for something and return its answer; raises what that raises there.

        Cancelling does not stop a write that was sent.
        """
        request = self.send(verb, *arguments, payload=payload, fate=fate)
        answer = await (shield(request.future) if verb.is_write else self.wait(request))
        return verb.answer.unpack(*answer)

    def forget(self, request: PendingRequest) -> None:
        """Drop a request whose answer nobody wants; it must not change the log."""
        was_there = self._requests.pop(request.number, None) is not None
        if was_there and request.is_under_way and self._link is not None:
            self._link.send(encode(Kind.CANCEL, request.number, None))
            self._leave_if_answered()

    def forget_soon(self, request: PendingRequest) -> None:
        """As :meth:`forget`, from any thread: for what is collected there."""
        if not request.future.done() and not self.is_closing:
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                request.future.get_loop().call_soon_threadsafe(self.forget, request)

    def withdraw(self, request: PendingRequest) -> None:
        """Ask the server not to do a request any more; it must not change the log.

        Its future has its answer nevertheless: the server may have done it, and says so.
        """
        if request.number not in self._requests or request.is_withdrawn:
            return
        request.is_withdrawn, request.fate = True, Fate.DROPPED
        if request.is_under_way and self._link is not None:
            self._link.send(encode(Kind.CANCEL, request.number, None))
        else:
            self._lose(request, "the request was cancelled", is_refused=False)

    # -- closing -----------------------------------------------------------------------------

    async def aclose(self) -> None:
        """End the connection, once writes in progress are answered; nothing else begins. Twice is allowed."""
        self._is_ending = True
        try:
            waiting = [request.future for request in self._requests.values() if request.is_write]
            if waiting and self._failure is None:
                await asyncio.wait(waiting)
        finally:  # also if the caller does not wait any longer
            self._fail(WalClosedError(_CLOSED))
            tasks = [task for task in (self._connecting, self._watching) if task is not None]
            self._connecting = self._watching = None
            for task in tasks:
                task.cancel()
            link, self._link = self._link, None
            if link is not None and link.unsent_bytes:
                link.abort()  # nobody waits for it, and it may take for ever
            elif link is not None:
                link.close()
        if tasks:
            await asyncio.wait(tasks)

    def abandon(self, error: WalClosedError) -> None:
        """Refuse everything in a child process; see :mod:`walstore.core.runtime.resource`."""
        self._failure = error
        if self._link is not None:
            self._link.abandon()

    def _fail(self, error: WalError) -> None:
        """Refuse everything from now on."""
        if self._failure is None:
            self._failure = error
        self._fail_requests(lambda request: self._lost(request, str(error), error))

    # -- connections -------------------------------------------------------------------------

    def _search_limits(self) -> Backoff:
        first = self._connect_seconds if len(self._addresses) == 1 else _SEARCH_SECONDS
        return Backoff(first, self._connect_seconds)

    async def _new_link(self, seconds: float) -> FoundServer:
        # Only the first search: if nobody takes the log over, the refusals of a second one say why.
        after, self._left_epoch = self._left_epoch, 0
        return await find_server(
            self._addresses, lambda address: self._link_to(address, seconds, after=after)
        )

    async def _link_to(self, address: Address, seconds: float, *, after: int = 0) -> FoundServer:
        made: list[ServerConnection] = []

        def said(message: Message) -> None:
            self._on_message(made, message)

        def lost(why: str) -> None:
            self._on_lost(made, why)

        link, welcome = await connect_to(
            address,
            token=self._token,
            log=self._log,
            tls=self._tls,
            on_message=said,
            on_lost=lost,
            monotonic=self._clock.monotonic,
            seconds=seconds,
            service=self._service,
            exists=bool(self.welcome) or not self._creates,
            is_direct=len(self._addresses) > 1,
            after=after,
            again=max(
                (one.number for one in self._requests.values() if one.is_sent_write), default=0
            ),
        )
        made.append(link)
        server = FoundServer(address, link, welcome)
        try:
            check_version(welcome, address)
            self._check_log(server)
        except BaseException:
            link.abort()
            raise
        return server

    def _check_log(self, server: FoundServer) -> None:
        """Raise unless it is the log of the last connection, and no older state of it."""
        known = self.welcome.get("log", {}).get("log_id")
        found = server.welcome.get("log", {}).get("log_id")
        if known is not None and found != known:
            raise WalClosedError(
                f"the server at {server.address} now serves another log ({found}, not {known}); "
                "connect again to use that one",
                reason="failed",
            )
        if server.epoch < self._newest_epoch:
            raise StorageUnavailableError(
                f"the server at {server.address} has the log of epoch {server.epoch}, and epoch "
                f"{self._newest_epoch} was seen: another program took it over, or it is an old copy"
            )

    def _join(self, server: FoundServer) -> None:
        """Use a new connection: first for what has no answer yet, in the order in which it was asked."""
        self.address, link, self.welcome = server
        self._newest_epoch = max(self._newest_epoch, server.epoch)
        self.on_welcome(self.welcome)
        self._link, self._refusal, self._is_leaving = link, None, False
        for request in self._requests.values():
            request.is_under_way = True
            link.send(request.message)

    async def _watch(self) -> None:
        """Notice that the connection is dead; and with several addresses a takeover while the last server
        stands still, or is cut off, from here or its copies."""
        has_others = len(self._addresses) > 1
        pause = _LOOK_SECONDS if has_others else _SILENCE_SECONDS
        question: Question | None = None
        left = pause
        while self._failure is None:
            await self._clock.sleep(left if left > 0 else pause)
            left = pause
            if has_others and (self._is_doubtful or self._waits_long()):
                self._is_doubtful = False
                await self._look_elsewhere()
            now, link = self._clock.monotonic(), self._link
            if question is not None and question.is_settled(link):
                question = None
            if link is None:
                continue
            if question is None:
                left = link.heard_at + pause - now
                if left <= 0 and (has_others or self._requests):
                    question = Question(link, self._send(LIMITS, ()).future, now)
            else:
                left = question.seconds_left(now)
                if left <= 0:
                    self._leave(link, "the server says nothing any more")
                elif has_others:
                    await self._look_elsewhere()
            if question is not None and (has_others or not question.has_left):
                left = _LOOK_SECONDS

    def _waits_long(self) -> bool:
        """Whether a write has no answer yet, of a server that answers else: its copies may be lost to it."""
        oldest = next((one for one in self._requests.values() if one.is_write), None)
        return oldest is not None and self._clock.monotonic() - oldest.since > _LONG_SECONDS

    def _leave(self, link: ServerConnection, why: str) -> None:
        link.abort()
        self._on_lost([link], why)

    async def _look_elsewhere(self) -> None:
        """Leave the server if another one has a newer epoch of the log."""
        others = [address for address in self._addresses if address != self.address]
        try:
            server = await find_server(others, lambda one: self._link_to(one, _LOOK_SECONDS))
        except WalError:
            return  # nobody took the log over, as far as one can see
        server.link.abort()
        left = self._link
        if server.epoch > self._newest_epoch and left is not None:
            self._newest_epoch = server.epoch
            self._leave(left, f"{server.address} has taken over the log")

    def _on_lost(self, made: Sequence[ServerConnection], why: str) -> None:
        if self._link is None or self._link not in made:
            return
        self._link = None
        is_refused, why = self._refusal is not None, self._refusal or why
        for request in list(self._requests.values()):
            self._lose(request, why, is_refused=is_refused)
        if self._failure is None:
            logger.info("the connection to %s is lost: %s", self.address, why)
            self._reconnect()
        self.on_lost()

    def _lose(self, request: PendingRequest, why: str, *, is_refused: bool) -> None:
        """Take note that the present connection does not answer a request; if it is final, fail it."""
        is_final = request.is_under_way and (is_refused or request.fate is Fate.UNKNOWN)
        request.may_be_done |= request.is_under_way
        request.is_under_way = False
        if request.fate is Fate.DROPPED or is_final:
            self._requests.pop(request.number, None)
            _set_error(request.future, self._lost(request, why, None))

    def _reconnect(self) -> None:
        if self._connecting is None or self._connecting.done():
            self._connecting = start_task(
                self._keep_connecting(), name=f"walstore connection {self.address}"
            )

    async def _keep_connecting(self) -> None:
        """Connect again, or fail the requests: after ``reconnect_seconds``, or at once with what waiting does
        not change, as a wrong token or another log. A later request tries again: it may be mended by then.

        A connection that is lost at once counts as an attempt.
        """
        now = self._clock.monotonic()
        if now - self._reconnected_at >= _LASTS_SECONDS:
            self._lost_at = now
            self._pauses.reset()
        elif now >= self._lost_at + self._reconnect_seconds:
            self._reconnected_at = -inf  # what is asked later tries again
            text = f"{self.address} ends each connection before it is of use"
            self._give_up(StorageUnavailableError(text))
            return
        else:
            await self._clock.sleep(self._pauses.next_seconds())
        deadline = self._lost_at + self._reconnect_seconds
        searches = self._search_limits()
        while True:
            left = deadline - self._clock.monotonic()
            try:
                server = await self._new_link(
                    min(searches.next_seconds(), max(left, _LASTS_SECONDS))
                )
            except WalError as error:
                left = deadline - self._clock.monotonic()
                if not error.retriable or left <= 0:
                    self._give_up(error)
                    return
            else:
                self.reconnects += 1
                self._reconnected_at = self._clock.monotonic()
                self._join(server)
                return
            await self._clock.sleep(min(self._pauses.next_seconds(), left))

    def _give_up(self, cause: WalError) -> None:
        """Fail what waits for a connection; what is asked later tries again."""
        self._fail_requests(lambda request: self._lost(request, str(cause), cause))

    def _fail_requests(self, error: Callable[[PendingRequest], WalError]) -> None:
        requests, self._requests = self._requests, {}
        for request in requests.values():
            _set_error(request.future, error(request))

    def _lost(self, request: PendingRequest, why: str, cause: WalError | None) -> WalError:
        """Return the error of a request that gets no answer."""
        error: WalError
        if request.is_sent_write:
            error = OutcomeUnknownError(
                f"the connection was lost before the answer, so it may or may not have happened ({why}); "
                "read before submitting anything again, or use a producer"
            )
        elif cause is not None and not cause.retriable:
            return copy_error(cause)
        else:
            error = StorageUnavailableError(f"{why}; nothing was written")
        error.__cause__ = cause
        return error

    # -- answers -----------------------------------------------------------------------------

    def _on_message(self, made: Sequence[ServerConnection], message: Message) -> None:
        if self._link in made:
            self._is_leaving |= message.kind == Kind.GOODBYE or self._is_turned_away(message)
            if message.kind == Kind.GOODBYE and message.head is MOVES:
                self._left_epoch = epoch_of(self.welcome)
        if message.kind == Kind.FAILED and message.id == NO_REQUEST:
            self._refusal = str(unpack_error(message.head))
        elif message.kind != Kind.GOODBYE:
            self._take_answer(message)
        self._leave_if_answered()

    def _is_turned_away(self, message: Message) -> bool:
        """Whether the server did not take a request, or will not say what became of it: it stops.

        A request that was withdrawn is never sent again, so that says nothing of it.
        """
        request = self._requests.get(message.id)
        is_over = message.kind == Kind.FAILED and not isinstance(message.head, list)
        return is_over and request is not None and not request.is_withdrawn

    def _leave_if_answered(self) -> None:
        """End a connection whose server takes nothing new, once nothing is under way there.

        The server does not: what it has not read yet would make its system throw answers away.
        """
        link = self._link
        if not self._is_leaving or link is None:
            return
        if not any(request.is_under_way for request in self._requests.values()):
            self._leave(link, "the server stops, or the log moves")

    def _take_answer(self, message: Message) -> None:
        request = self._requests.get(message.id)
        if request is None:
            return  # nobody waits for it any more
        if self._is_turned_away(message) and message.head is NOT_BEGUN:
            request.is_under_way = False
            return
        if self._is_turned_away(message) and message.head is UNDECIDED:
            self._lose(request, "the log moves", is_refused=False)
            return
        del self._requests[message.id]
        if request.future.done():
            return
        if message.kind == Kind.DONE:
            request.future.set_result((message.head, message.payload))
        else:
            error = unpack_error(message.head)
            self._is_doubtful |= isinstance(error, StorageUnavailableError)
            _set_error(request.future, error)


def _set_error(future: asyncio.Future[Answer], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # a caller cancelled at this moment never retrieves it
