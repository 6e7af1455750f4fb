"""EtcdStream: an answer of etcd that does not end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Self, TypeVar

from walstore.core.runtime.time_limit import within
from walstore.topology.etcd_gateway import EtcdGateway, check_size
from walstore.topology.etcd_messages import Body, EtcdEndpointError

if TYPE_CHECKING:
    from aiohttp import ClientResponse

_T = TypeVar("_T")


class EtcdStream:
    """A request whose answer goes on, line by line, until the block ends.

    No generator: an event loop that ends closes all of them, those that others are in the midst of, too.
    """

    def __init__(self, gateway: EtcdGateway, endpoint: str, path: str, body: Body) -> None:
        self._gateway = gateway
        self._endpoint = endpoint
        self._path = path
        self._body = body
        # aiohttp raises RuntimeError if the session was closed.
        self._faults: tuple[type[Exception], ...] = (*gateway.faults, RuntimeError)
        self._answer: ClientResponse | None = None
        self._buffer = bytearray()
        self._searched = 0

    async def __aenter__(self) -> Self:
        try:
            await self._gateway.begin(self._endpoint, self._path, self._body, self._begun)
        except BaseException:  # cancelled just when it began
            self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _begun(self, answer: ClientResponse) -> None:
        self._answer = answer
        self._gateway.closing.add(self.close)

    def close(self) -> None:
        """End the request; a call of :meth:`next` that waits raises EtcdEndpointError. Twice is allowed."""
        self._gateway.closing.discard(self.close)
        if self._answer is not None:
            self._answer.close()

    async def next(self, decode: Callable[[Body], _T], seconds: float) -> _T | None:
        """Return the next line, decoded; None if none comes within some seconds. Nothing is lost then.

        EtcdEndpointError if the connection is lost, LimitExceededError for an endless line.
        """
        assert self._answer is not None
        while (end := self._buffer.find(b"\n", self._searched)) < 0:
            self._searched = len(self._buffer)
            try:
                reading = self._answer.content.readany()
                data = await within(seconds, reading, sleep=self._gateway.sleep)
            except TimeoutError:
                return None
            except self._faults as error:
                raise self._gateway.failed(self._endpoint, error) from error
            if not data:
                raise EtcdEndpointError(f"{self._endpoint}: it ended the connection", is_open=False)
            self._buffer += data
            check_size(len(self._buffer))
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return await self._gateway.parse(self._endpoint, line, decode)
