"""EtcdGateway: requests over HTTP to the nodes of an etcd cluster, in turn until one of them answers."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from walstore.core.ports import Clock
from walstore.core.runtime.backoff import Backoff
from walstore.core.runtime.resource import LoopGuard
from walstore.core.runtime.time_limit import within
from walstore.errors import (
    AccessDeniedError,
    LimitExceededError,
    StorageUnavailableError,
    WalClosedError,
)
from walstore.topology import etcd_messages as messages
from walstore.topology.etcd_address import EtcdAddress
from walstore.topology.etcd_messages import Body, EtcdEndpointError, EtcdRefusalError

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

_LARGE_BYTES: Final = 1 << 18
"""Larger requests are sent in pieces, and larger answers parsed on a thread."""
_FIRST_PAUSE_SECONDS: Final = 0.02
MOST_ANSWER_BYTES: Final = 16 << 20
"""Length of the largest answer, and of the largest part of a watch, as JSON."""
_T = TypeVar("_T")


class Sent:
    """Whether a request was sent, in part or whole: as long as it was not, it was certainly not executed."""

    __slots__ = ("is_sent",)

    def __init__(self) -> None:
        self.is_sent = False


def retry_backoff() -> Backoff:
    """Return the pauses between attempts at the nodes."""
    return Backoff(first_seconds=_FIRST_PAUSE_SECONDS, longest_seconds=0.5)


class EtcdGateway:
    """The nodes, and a token for them. Belongs to the event loop."""

    def __init__(
        self,
        session: ClientSession,
        address: EtcdAddress,
        *,
        faults: tuple[type[Exception], ...],
        request_seconds: float,
        clock: Clock,
    ) -> None:
        """``session`` marks what it sends in the :class:`Sent` of a request, and raises ``faults``."""
        self.endpoints: Final = address.endpoints
        self.request_seconds: Final = request_seconds
        self.faults: Final = faults
        self.sleep: Final = clock.sleep
        self._clock = clock
        self.closing: Final[set[Callable[[], None]]] = set()
        """Those that have begun."""
        self._session = session
        self._user = address.user
        self._password = address.password
        self._token: str | None = None
        """"" if none is needed; None if it is not known yet."""
        self._turn = 0
        self._is_closed = False
        self._guard = LoopGuard("client of etcd")

    @property
    def patience_seconds(self) -> float:
        """How long all nodes together may take."""
        return self.request_seconds * len(self.endpoints)

    @property
    def endpoint(self) -> str:
        """The node to ask first: the last one that answered."""
        return self.endpoints[self._turn]

    @property
    def has_user(self) -> bool:
        """Whether it asks in somebody's name."""
        return self._user is not None

    def leave(self, endpoint: str) -> None:
        """Ask another node first."""
        if endpoint == self.endpoint:
            self._turn = (self._turn + 1) % len(self.endpoints)

    def forget_token(self) -> None:
        """Get a new token before the next request."""
        self._token = None

    def check_open(self) -> None:
        """Raise WalClosedError once it is closed, WrongLoopError on another event loop."""
        if self._is_closed:
            raise WalClosedError("this client of etcd is closed")
        self._guard.check()

    async def ask(
        self, path: str, body: Body, decode: Callable[[Body], _T], *, repeat: bool = True
    ) -> _T:
        """Return the answer to a request, decoded, of the first node that gives one.

        They are tried in turn, each for ``request_seconds``, until that is over as often as there are nodes.
        StorageUnavailableError then, EtcdRefusalError if the cluster refuses, AccessDeniedError. Unless
        ``repeat``, EtcdEndpointError if the request may have been executed.
        """
        deadline = self._clock.monotonic() + self.patience_seconds
        failures: dict[str, str] = {}
        backoff = retry_backoff()
        while True:
            endpoint = self.endpoint
            left = deadline - self._clock.monotonic()
            try:
                return await self.ask_at(endpoint, path, body, decode, seconds=left)
            except EtcdEndpointError as error:
                self.leave(endpoint)
                if error.is_open and not repeat:
                    raise
                is_round_over = endpoint in failures or len(self.endpoints) == 1
                failures[endpoint] = str(error)
                cause = error
            if self._clock.monotonic() >= deadline:
                said = "; ".join(failures.values())
                raise StorageUnavailableError(f"no node of etcd does it: {said}") from cause
            if is_round_over:
                await self.sleep(backoff.next_seconds())

    async def ask_at(
        self,
        endpoint: str,
        path: str,
        body: Body,
        decode: Callable[[Body], _T],
        *,
        seconds: float | None = None,
    ) -> _T:
        """Return the answer of one node, decoded, within at most ``request_seconds``.

        EtcdEndpointError, EtcdRefusalError or AccessDeniedError.
        """
        limit = self.request_seconds
        limit = limit if seconds is None else min(limit, max(seconds, _FIRST_PAUSE_SECONDS))
        is_known = self._token is not None
        await self._authenticate(endpoint)
        try:
            return await self._post(endpoint, path, body, decode, limit)
        except EtcdRefusalError as refusal:
            if not (is_known and self.has_user and refusal.is_about_token):
                raise
        self.forget_token()  # it expired
        await self._authenticate(endpoint)
        return await self._post(endpoint, path, body, decode, limit)

    async def begin(
        self, endpoint: str, path: str, body: Body, begun: Callable[[ClientResponse], None]
    ) -> None:
        """Return when the head of an answer is here, after ``begun(answer)``; errors as of :meth:`ask_at`.

        Close what ``begun`` was given in any case.
        """
        await self._authenticate(endpoint)
        sent = Sent()

        async def begin() -> None:
            answer = await self._send(endpoint, path, body, sent)
            begun(answer)
            if answer.status != 200:
                raise messages.failure_of(endpoint, await read_answer(answer), answer.status)

        try:
            await within(self.request_seconds, begin(), sleep=self.sleep)
        except self.faults as error:
            raise self.failed(endpoint, error, sent) from error

    async def aclose(self) -> None:
        """End all requests."""
        self._is_closed = True
        for close in tuple(self.closing):  # aiohttp leaves those waiting that read an answer
            close()
        await self._session.close()

    async def parse(
        self, endpoint: str, answer: bytes, decode: Callable[[Body], _T], *, status: int = 200
    ) -> _T:
        """As :func:`walstore.topology.etcd_messages.parse`, for a large answer on a thread."""
        if len(answer) < _LARGE_BYTES:
            return messages.parse(endpoint, answer, decode, status=status)
        return await asyncio.get_running_loop().run_in_executor(
            None, lambda: messages.parse(endpoint, answer, decode, status=status)
        )

    def failed(
        self, endpoint: str, error: Exception, sent: Sent | None = None
    ) -> EtcdEndpointError:
        """Return the error of a node that did not answer a request, or not to its end."""
        is_sent = sent is None or sent.is_sent
        why = "no answer in time" if isinstance(error, TimeoutError) else str(error)
        return EtcdEndpointError(f"{endpoint}: {why or type(error).__name__}", is_open=is_sent)

    async def _authenticate(self, endpoint: str) -> None:
        """Get a token, if one is needed and there is none."""
        if self._user is None or self._token is not None:
            return
        body = {"name": self._user, "password": self._password}
        try:
            self._token = await self._post(
                endpoint, "/v3/auth/authenticate", body, messages.token_of, self.request_seconds
            )
        except EtcdEndpointError as error:
            # What is asked for has not been sent.
            raise EtcdEndpointError(str(error), is_open=False) from error
        except EtcdRefusalError as refusal:
            if "not enabled" not in refusal.text:
                raise AccessDeniedError(f"etcd refuses this user: {refusal.text}") from None
            self._token = ""

    async def _post(
        self, endpoint: str, path: str, body: Body, decode: Callable[[Body], _T], seconds: float
    ) -> _T:
        sent = Sent()

        async def post() -> tuple[int, bytes]:
            async with await self._send(endpoint, path, body, sent) as answer:
                return answer.status, await read_answer(answer)

        try:
            status, data = await within(seconds, post(), sleep=self.sleep)
        except self.faults as error:
            raise self.failed(endpoint, error, sent) from error
        return await self.parse(endpoint, data, decode, status=status)

    async def _send(self, endpoint: str, path: str, body: Body, sent: Sent) -> ClientResponse:
        self.check_open()
        data = json.dumps(body).encode()
        return await self._session.post(
            endpoint + path,
            # aiohttp sends a file in pieces.
            data=data if len(data) < _LARGE_BYTES else io.BytesIO(data),
            headers={"Authorization": self._token} if self._token else {},
            allow_redirects=False,
            trace_request_ctx=sent,
        )


async def read_answer(answer: ClientResponse) -> bytes:
    """Return an answer up to its end, or its first line."""
    data = bytearray()
    while b"\n" not in data[-1:] and (part := await answer.content.readany()):
        data += part
        check_size(len(data))
    return bytes(data)


def check_size(size: int) -> None:
    """Raise LimitExceededError for a larger answer than is taken."""
    if size > MOST_ANSWER_BYTES:
        raise LimitExceededError(
            f"etcd answers with more than {MOST_ANSWER_BYTES} bytes: too much lies below that prefix",
            limit=MOST_ANSWER_BYTES,
        )
