"""ClientConnection: one client of a server, from its greeting to its end.

Appends of one client are accepted in the order in which they arrive. All else runs side by side, each
request in a task of its own. Nothing here waits for a client: what it may have in progress is bounded, and
beyond that its bytes stay unread, or packed (:mod:`walstore.serve.turns`).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Protocol, cast

from walstore.cluster.replication.node import SERVICE, ReplicaNode
from walstore.core.append.budgets import ChannelBudget
from walstore.core.runtime.tasks import start_task
from walstore.errors import (
    AccessDeniedError,
    LogNotFoundError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalError,
)
from walstore.log.wal import Wal
from walstore.net.remote.client import READ_SERVICE
from walstore.net.remote.served_logs import LIST_SERVICE
from walstore.net.wire.access_scope import ADMIN, ANY, APPEND_ONLY, READ_ONLY, Needs
from walstore.net.wire.address import Address
from walstore.net.wire.errors import pack_error
from walstore.net.wire.message import (
    MOVES,
    NO_REQUEST,
    NOT_BEGUN,
    PREAMBLE,
    UNDECIDED,
    VERSION,
    Decoder,
    Kind,
    Message,
    ProtocolViolationError,
    encode,
)
from walstore.net.wire.verbs import APPEND, READ, find_verb
from walstore.serve.access_tokens import AccessTokens, Principal
from walstore.serve.audit_trail import DONE, REFUSED, AuditTrail, outcome_of
from walstore.serve.fetching import Fetching
from walstore.serve.figures import ServerFigures
from walstore.serve.greeting import Greeting, read_greeting
from walstore.serve.incoming import Incoming
from walstore.serve.outgoing import Outgoing
from walstore.serve.reading import begin_read
from walstore.serve.responder import Responder
from walstore.serve.running_requests import RunningRequests
from walstore.serve.serve_settings import ServeSettings
from walstore.serve.services import Asked, LogService, NodeService, ReadService, Service
from walstore.serve.stalls import NEED_SECONDS, Taking
from walstore.serve.transaction_room import TransactionRoom
from walstore.serve.tunnel import Tunnel, pass_on
from walstore.serve.turns import SHORT_HEAD_BYTES, Turns

logger = logging.getLogger("walstore.serve")


_AHEAD_BYTES: Final = 64 << 10
"""How much may be there behind a request that waits for its turn until no more is read."""
_SAY_SECONDS: Final = 3.0
"""How long a client hears nothing while nothing is read of it: it takes a server for dead after 10 s."""
_SEND_SECONDS: Final = 3.0
"""How long a client may send nothing of a large message that has its room, while others wait for room."""

Begin = Callable[[], Awaitable[Any]]


class ConnectionOwner(Protocol):
    """What a connection needs of its server."""

    settings: ServeSettings
    figures: ServerFigures
    incoming: ChannelBudget
    turns: Turns
    transaction_room: TransactionRoom
    outgoing: ChannelBudget
    fetching: Fetching
    tokens: AccessTokens | None
    version: str

    @property
    def is_stopping(self) -> bool:
        """Whether the server takes no more requests."""

    @property
    def monotonic(self) -> Callable[[], float]:
        """Seconds that never go back."""

    def name_of(self, name: str | None) -> str | None:
        """Return the name of the log that a client asked for; None if it has to name one."""

    async def log(self, name: str | None, *, after: int, creates: bool) -> Wal | Address:
        """Return the log of that name, or where it is led: with an epoch above ``after``, if it soon is.

        With ``creates`` a store makes one that it does not have.
        """

    async def readable(self, name: str | None) -> ReadService[Any]:
        """Return the records of a log that can be read here."""

    async def listed(self) -> list[list[Any]]:
        """Return the logs that clients may name."""

    async def moved(self, name: str | None, address: Address) -> None:
        """Return when another machine than the one at an address leads a log."""

    @property
    def trust(self) -> ssl.SSLContext | None:
        """Trust for the other machines of the cluster."""

    def replicas(self) -> ReplicaNode:
        """Return the copies that are served; AccessDeniedError if there are none."""

    def joined(self, connection: ClientConnection) -> bool:
        """Take a connection in; False if there are too many."""

    def left(self, connection: ClientConnection) -> None:
        """Forget a connection that is lost."""


class ClientConnection(asyncio.Protocol):
    """The server's side of one connection. Belongs to the event loop of the server."""

    def __init__(self, owner: ConnectionOwner) -> None:
        """Serve the logs of ``owner``."""
        self._owner, self._monotonic = owner, owner.monotonic
        settings, self._figures = owner.settings, owner.figures
        self._decoder = Decoder(most_bytes=settings.message_bytes, is_greeted=False)
        self._transport: asyncio.Transport | None = None
        self._service: Service | None = None
        # Who the client is, at a server with tokens, and the log that it uses.
        self._principal: Principal | None = None
        self._trail = AuditTrail(None, "walstore")
        self._log: str | None = None
        self._tunnel: Tunnel | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._incoming = Incoming(owner.incoming, settings.credit_bytes, self._balance)
        self._turns = owner.turns
        # What the heads of its requests hold, by the request.
        self._heads: dict[int, int] = {}
        self._outgoing = Outgoing(owner.outgoing, settings.write_buffer_bytes)
        self._responder = Responder(self._outgoing, self._figures, self._monotonic, self._on_full)
        self._running = RunningRequests(self._responder.write, self._settle)
        self._reads_paused = False
        self._greeting: int | None = None
        """Number of the greeting while it is being answered."""
        # Whether the client ends the connection itself after a GOODBYE, and whether it got one.
        self._moves = self._is_leaving = False
        self._is_aborted = False
        self._is_used = False
        """Whether a request followed the greeting and what belongs to it."""
        now = self._monotonic()
        self._heard_at = now
        self._taking = Taking(now)
        self.since = now
        """When it last made progress: nothing half received and nothing that the client does not take."""
        self.peer = "a client"
        """Who it is, for people."""

    # -- transport ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet, and wait for the client's greeting."""
        self._transport = cast("asyncio.Transport", transport)
        self.peer = str(transport.get_extra_info("peername") or "a local client")
        self._trail = AuditTrail(transport, "walstore")
        self._responder.begin(self._transport, self.peer)
        if not self._owner.joined(self):
            self._transport.write(PREAMBLE)
            self._responder.refuse(
                0, StorageUnavailableError("the server has too many connections")
            )
            self._outgoing.close()
            return
        self._transport.write(PREAMBLE)

    def data_received(self, data: bytes) -> None:
        """Take what arrived."""
        was_inside = self._decoder.is_inside
        self._figures.received_bytes += len(data)
        if self._tunnel is not None:
            self._tunnel.send(data)
            return
        self._decoder.add(data)
        self._heard_at = self._monotonic()
        if not was_inside:
            self.since = self._heard_at
        self.take_turn()

    def pause_writing(self) -> None:
        """The client has not taken its answers yet."""
        self._outgoing.pause()
        if self._tunnel is not None:
            self._tunnel.pause(is_paused=True)

    def resume_writing(self) -> None:
        """The client takes its answers again."""
        self._outgoing.resume()
        if self._tunnel is not None:
            self._tunnel.pause(is_paused=False)
            return
        self._balance()

    def eof_received(self) -> bool:
        """The client sends no more: it is gone, as far as the protocol goes."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Drop what nobody waits for any more. Appends that were received are finished."""
        if self._tunnel is not None:
            self._tunnel.close()
        if self._leaving is not None:
            self._leaving.cancel()
        close = None
        if self._service is not None:
            if (count := self._service.appended) and self._log is not None:
                self._trail.appended(self._log, count)
            is_told = self._is_leaving or self._owner.is_stopping
            close = partial(self._service.aclose, is_told=is_told)
        self._trail.ended()
        self._running.abandon(close)
        self._outgoing.end()
        self._turns.leave(self)
        self._decoder.drop()
        self._incoming.drop()
        self._owner.left(self)

    # -- for the server ----------------------------------------------------------------------

    @property
    def _is_stuck(self) -> bool:
        """Whether it is in a state that a live client leaves at once: see ``stall_seconds``."""
        is_inside = not self._is_greeted or (self._decoder.is_inside and not self._reads_paused)
        return is_inside or self._is_leaving or not self._outgoing.is_writable

    def stall(self, now: float) -> str | None:
        """Return why to disconnect the client, if there is a reason."""
        seconds = self._owner.settings.stall_seconds
        is_in_need = self._owner.outgoing.waiting and self._outgoing.held_bytes
        why = self._taking.stall(
            self._outgoing.taken_bytes,
            now,
            most_seconds=seconds,
            need_seconds=NEED_SECONDS if is_in_need else seconds,
        )
        if why is None and self._is_stuck and now - self.since > seconds:
            why = f"it left something half done for {seconds:g} s"
        is_needed = self._owner.incoming.waiting and self._incoming.holds_room
        idle_seconds = now - max(self._heard_at, self.since)
        is_coming = self._decoder.is_inside and not self._reads_paused
        if why is None and is_needed and is_coming and idle_seconds > _SEND_SECONDS:
            why = f"it sent nothing of a large message for {_SEND_SECONDS:g} s; others wait for its room"
        return why

    def reassure(self, now: float) -> None:
        """Tell a client that the server lives, every few seconds in which nothing is read of it.

        What it asks to find out waits, too. It was greeted, and waits for nothing that belongs to that.
        """
        is_unread = self._reads_paused or self._decoder.lengths is not None
        is_greeted = self._is_used or self._decoder.number != NO_REQUEST
        is_due = (
            now - self._responder.said_at >= _SAY_SECONDS and self._outgoing.taken_bytes is None
        )
        if is_unread and is_greeted and is_due and self._service is not None:
            self._responder.write(encode(Kind.DONE, NO_REQUEST, None))

    @property
    def used_bytes(self) -> int:
        """What its requests in progress take of its credit."""
        return self._incoming.used_bytes

    @property
    def requests(self) -> int:
        """How many requests have no answer yet."""
        return self._running.count

    def say_goodbye(self) -> None:
        """Tell the client that no more requests are taken; waiting reads end."""
        self._say_goodbye(None)
        self.take_turn()
        self._running.cancel_all()

    def drop(self, why: str) -> None:
        """End the connection now, also if what was written is still to be sent."""
        if self._transport is not None and not self._is_aborted:
            self._is_aborted = True
            self._figures.dropped += 1
            logger.warning("%s is disconnected: %s", self.peer, why)
            self._transport.abort()

    async def ended(self) -> None:
        """Return when nothing of it runs any more."""
        if self._tunnel is not None:
            if self._transport is not None and not self._transport.is_closing():
                self._transport.pause_reading()
            await self._tunnel.drained()
        await self._running.ended()

    def close(self) -> None:
        """End the connection once what is written has been sent."""
        self._outgoing.close()

    def _make_room(self, number: int, why: bool | None) -> None:  # noqa: FBT001
        """Let the client look elsewhere with a request: the log is closed here.

        It ends the connection once it has the answers of what is under way, and knows by then that the log
        moves; one that does not know of that is disconnected.
        """
        if self._moves:
            self._say_goodbye(MOVES)
        if self._moves or why is NOT_BEGUN:
            self._responder.write(encode(Kind.FAILED, number, why))
        if not self._moves:
            self.close()

    def _say_goodbye(self, why: bool | None) -> None:  # noqa: FBT001
        if not self._is_leaving:
            self._is_leaving, self.since = True, self._monotonic()
            self._responder.write(encode(Kind.GOODBYE, 0, why))

    # -- requests ----------------------------------------------------------------------------

    @property
    def _is_greeted(self) -> bool:
        return self._service is not None or self._tunnel is not None

    @property
    def _is_over(self) -> bool:
        return self._service is not None and self._service.is_over

    def take_turn(self) -> None:
        """Begin what arrived, as far as it has its turn and there is room."""
        try:
            while (held := self._next_holds()) is not None:
                self._begin_next(held)
        except ProtocolViolationError as error:
            self._violated(error)
        self._balance()

    def _begin_next(self, held: int) -> None:
        """Begin the next request, whose head holds so much."""
        try:
            message = self._decoder.take()
            assert message is not None
        except BaseException:
            self._turns.release(held)
            raise
        self.since = self._monotonic()
        self._is_used |= self._is_greeted and message.id != NO_REQUEST
        cost, is_running = self._incoming.begin(message.size), False
        if held and message.kind != Kind.APPEND:
            held = self._turns.settle(held, message.size - len(message.payload), message.parts)
        if held:
            self._heads[message.id] = self._heads.get(message.id, 0) + held
        try:
            is_running = self._begin(message, cost)
        finally:
            if not is_running:
                self._end(message.id, cost)

    def _next_holds(self) -> int | None:
        """Return what the next request holds while it runs; None if none can begin."""
        lengths = None
        while self._decoder.left_bytes and self._is_open:
            lengths = self._decoder.lengths
            if lengths is None or not self._is_greeted or not self._drop_cancelled():
                break
            lengths = None
        if lengths is None:
            return None
        if self._owner.is_stopping or self._is_over:  # it is refused
            return 0
        if not self._incoming.takes(lengths[0]):
            return None
        return self._turns.begin(self, lengths[1], is_first=not self._heads)

    def _drop_cancelled(self) -> bool:
        """Refuse the next append if its CANCEL has arrived, so it never begins; return whether it has."""
        dropped = self._decoder.drop_cancelled()
        if dropped is None:
            return False
        self._incoming.drop()
        self._turns.leave(self)
        self._responder.write(encode(Kind.FAILED, dropped, _NOT_WRITTEN))
        return True

    @property
    def _is_open(self) -> bool:
        """Whether the client may be asked for more, as far as what it sent and takes goes."""
        is_closing = self._transport is None or self._transport.is_closing()
        is_here = self._greeting is None and self._tunnel is None and not is_closing
        return is_here and self._outgoing.is_writable

    def _accepted(self, number: int) -> None:
        """Note that nothing is left of what an append was sent with."""
        if self._heads:
            self._turns.release(self._heads.pop(number, 0))

    def _end(self, number: int, cost: int) -> None:
        """Note that a request is over."""
        self._accepted(number)
        self._incoming.release(cost)

    def _settle(self, number: int, cost: int) -> None:
        """Note that a request that ran is over, and read on if that waited for it."""
        self._end(number, cost)
        if self._reads_paused:
            self._balance()

    def _begin(self, message: Message, cost: int) -> bool:
        """Begin a request; False if it is over already."""
        if not self._is_greeted and message.kind != Kind.HELLO:
            raise ProtocolViolationError("another message than a greeting at the beginning")
        if self._owner.is_stopping and message.kind not in (Kind.CANCEL, Kind.HELLO):
            self._responder.write(encode(Kind.FAILED, message.id, NOT_BEGUN))
            return False
        if self._is_over:
            self._make_room(message.id, NOT_BEGUN)
            return False
        if message.kind in _ANSWERED:
            if message.id in self._running.wanted:
                raise ProtocolViolationError(f"two requests with the number {message.id}")
            return self._ask(message, cost)
        match message.kind:
            case Kind.CANCEL:
                self._running.cancel(message.id)
                return False
            case Kind.HELLO:
                if self._is_greeted or self._running.wanted:
                    raise ProtocolViolationError("a second greeting")
                self._greeting = message.id
                greet = partial(self._greet, message)
                self._running.start(message.id, self._answer(message.id, greet), cost)
            case _:
                raise ProtocolViolationError(f"a request of kind {message.kind}")
        return True

    def _ask(self, message: Message, cost: int) -> bool:
        """Begin an append, a call or a read, or refuse it: then return False."""
        service = self._service
        assert service is not None
        try:
            match message.head:
                case _ if message.kind == _APPEND:
                    self._check(APPEND.needs)
                    asked = service.append(message)
                case _ if message.kind == _READ:
                    self._check(READ.needs)
                    asked = Asked(self._read(service, message.head), READ.name)
                case [str(name), list(arguments)]:
                    asked = self._call(service, message, name, arguments)
                case _:
                    raise ProtocolViolationError(
                        "a call that is none: its head is name and arguments"
                    )
        except (WalError, ValueError, TypeError) as error:
            self._responder.refuse(message.id, error)
            return False
        self._figures.requests[asked.label] += 1
        work = self._answer(message.id, asked.begin)
        self._running.start(message.id, work, cost, is_kept=asked.is_kept)
        return True

    async def _answer(self, number: int, begin: Begin) -> None:
        try:
            answer = await begin()
            if self._tunnel is not None:
                return  # the other machine answers
            await self._responder.send(number, answer)
            if number == self._greeting and self._is_greeted:
                self._go_on()
        except Exception as error:  # noqa: BLE001 - the client gets it
            if isinstance(error, ProtocolViolationError) and not self._is_greeted:
                self._violated(error)
            elif self._is_over:  # what became of the request is known to the next primary
                self._make_room(number, UNDECIDED)
            else:
                self._responder.refuse(number, error)
                if not self._is_greeted:
                    self.close()

    # -- the requests themselves -------------------------------------------------------------

    def _check(self, needs: Needs) -> None:
        """AccessDeniedError unless the client may do now what needs some scopes."""
        if self._principal is not None:
            self._principal.check(needs, self._log)

    def _call(self, service: Service, message: Message, name: str, given: list[Any]) -> Asked:
        """Begin a call; what only an administrator may do is audited, whatever becomes of it."""
        verb = find_verb(name, given)
        if verb is None or verb.needs != ADMIN or not isinstance(service, LogService):
            self._check(service.needs(name, given))
            return service.call(message, name, given)
        facts = dict(zip(verb.parameters, given, strict=False))
        token, log = self._token, self._log

        def act(outcome: str) -> None:
            self._trail.acted(verb.name, token, outcome, log=log, **facts)

        try:
            self._check(verb.needs)
            asked = service.call(message, name, given)
        except (WalError, ValueError, TypeError) as error:
            act(REFUSED if isinstance(error, AccessDeniedError) else outcome_of(error))
            raise
        return asked._replace(begin=partial(_audited, act, asked.begin))

    @property
    def _token(self) -> str | None:
        return None if self._principal is None else self._principal.name

    async def _greet(self, message: Message) -> dict[str, Any] | None:
        """Answer the greeting, and say who connected, or why not."""
        try:
            welcome = await self._welcome(message)
        except WalError as error:
            self._trail.refused(type(error).__name__, self._token)
            raise
        self._trail.connected(self._token, log=self._log)
        return welcome

    async def _welcome(self, message: Message) -> dict[str, Any] | None:
        owner, settings = self._owner, self._owner.settings
        greeting = read_greeting(message.head, owner.tokens, self.peer)
        self._moves, self._principal = greeting.moves, greeting.principal
        welcome = {
            "version": VERSION,
            "server": owner.version,
            "message_bytes": settings.message_bytes,
            "credit_bytes": settings.credit_bytes,
        }
        if greeting.service == SERVICE:
            if self._principal is not None:
                self._principal.check_all_logs(ADMIN)
            node = owner.replicas()
            self._service = NodeService(node, self.peer)
            return {**welcome, "node": node.tag}
        if greeting.service == LIST_SERVICE:
            self._service = Service()
            return {**welcome, "logs": self._seen(await owner.listed())}
        self._log = owner.name_of(greeting.log)
        if greeting.service == READ_SERVICE:
            self._check(READ_ONLY)
            self._service = readable = await owner.readable(greeting.log)
            return {**welcome, "log": readable.describe()}
        self._check(ANY)
        wal = await self._find(greeting)
        if isinstance(wal, Address):
            await self._lead_to(wal, greeting, message)
            return None
        self._service = served = LogService(
            wal, settings, owner.transaction_room, self._accepted, greeting.again
        )
        return {**welcome, "log": await served.describe()}

    async def _find(self, greeting: Greeting) -> Wal | Address:
        """Return the log that the client asked for, made if it is missing and the client may make it."""
        find = partial(self._owner.log, greeting.log, after=greeting.after)
        try:
            return await find(creates=False)
        except LogNotFoundError:
            if not greeting.creates or not self._may(APPEND_ONLY):
                raise
        made = await find(creates=True)
        self._trail.acted("create_log", self._token, DONE, log=self._log)
        return made

    def _may(self, needs: Needs) -> bool:
        """Return whether the client may do now what needs some scopes."""
        return self._principal is None or self._principal.may(needs, self._log)

    def _seen(self, listed: list[list[Any]]) -> list[list[Any]]:
        """Return those of some logs that the client may use."""
        who = self._principal
        return listed if who is None else [one for one in listed if who.may(ANY, one[0])]

    def _go_on(self) -> None:
        """Take what followed the greeting, once that is answered."""
        self._greeting = None
        self._decoder.admit()
        self.take_turn()

    async def _lead_to(self, address: Address, greeting: Greeting, message: Message) -> None:
        """Let the machine that leads the log serve this client."""
        if greeting.is_direct:
            raise StorageUnavailableError(f"the log is led at {address}")
        assert self._transport is not None
        tunnel = Tunnel(self._transport)
        seconds = self._owner.settings.stall_seconds
        await tunnel.connect(address, self._owner.trust, message, seconds)
        self._tunnel, self._greeting = tunnel, None
        self._figures.passed_on += 1
        self._leaving = start_task(self._leave(greeting.log, address))
        pass_on(tunnel, (), self._decoder.take_rest())
        if self._reads_paused and not self._transport.is_closing():
            self._transport.resume_reading()
        if self._transport.is_closing():
            tunnel.close()
            self._leaving.cancel()

    async def _leave(self, name: str | None, address: Address) -> None:
        """End the connection when another machine leads the log: the client is passed on to that one then.

        The machine that led it may stand still, or be cut off, and would keep the client waiting.
        """
        await self._owner.moved(name, address)
        self.close()

    def _read(self, service: Service, head: Any) -> Begin:
        return begin_read(self._owner.fetching, service, head, self._owner.settings.read_bytes)

    def _violated(self, error: ProtocolViolationError) -> None:
        """End a connection that does not speak the protocol, and tell the other side why.

        Only where it is not known which request is meant: a client repeats what it sent when a connection
        is lost.
        """
        if self._transport is None or self._transport.is_closing():
            return
        self._figures.dropped += 1
        logger.warning("%s is disconnected: it sent %s", self.peer, error)
        refusal = OutcomeUnknownError(f"the server ended the connection: it received {error}")
        self._responder.write(encode(Kind.FAILED, NO_REQUEST, pack_error(refusal)))
        self._outgoing.close()

    # -- budget ------------------------------------------------------------------------------

    def _on_full(self) -> None:
        """Read no more: the client has to take what it was sent."""
        self.since = self._monotonic()
        self._balance()

    def _balance(self) -> None:
        """Read from the client while it has credit and takes its answers; begin what waits for that."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        try:
            is_waiting = False
            if self._greeting is not None:  # read on, so that it is noticed if the client leaves
                is_reading = self._decoder.left_bytes <= SHORT_HEAD_BYTES
            elif is_reading := self._tunnel is None and self._outgoing.is_writable:
                is_reading = self._incoming.takes(self._decoder.coming_bytes)
                is_waiting = is_reading and self._decoder.lengths is not None
        except ProtocolViolationError as error:
            self._violated(error)
            return
        if is_waiting:
            self._turns.join(self)
            # What waits longer than a few passes may be cancelled meanwhile.
            is_reading = self._turns.is_long(self) and self._decoder.ahead_bytes <= _AHEAD_BYTES
        if not is_reading and not self._reads_paused:
            transport.pause_reading()
        elif self._reads_paused and is_reading:
            self.since = self._monotonic()
            transport.resume_reading()
        self._reads_paused = not is_reading


async def _audited(act: Callable[[str], None], begin: Begin) -> Any:
    """Return what a request is answered with, and say what came of it."""
    failure: BaseException | None = None
    try:
        return await begin()
    except BaseException as error:
        failure = error
        raise
    finally:
        act(outcome_of(failure))


_NOT_WRITTEN: Final = pack_error(
    WalError("the client cancelled the append before it began; nothing was written")
)
_APPEND: Final = Kind.APPEND
_READ: Final = Kind.READ
"""Of each request: to look up a member takes as long as two calls."""
_ANSWERED: Final = frozenset((Kind.APPEND, Kind.READ, Kind.CALL))
