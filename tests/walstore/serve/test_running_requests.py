"""The requests of one client that run: each has one end, and one answer at the most."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.local import turns
from walstore.errors import OutcomeUnknownError
from walstore.net.wire.errors import unpack_error
from walstore.net.wire.message import NOT_BEGUN, PREAMBLE, Decoder, Kind
from walstore.serve.running_requests import RunningRequests


class Client:
    """What it is told, and the ends of its requests."""

    def __init__(self) -> None:
        self.decoder = Decoder(most_bytes=1 << 20, is_greeted=True)
        self.decoder.add(PREAMBLE)
        self.ended: list[tuple[int, int]] = []
        self.running = RunningRequests(self._write, lambda *end: self.ended.append(end))

    def _write(self, pieces: Sequence[bytes | memoryview]) -> None:
        self.decoder.add(b"".join(pieces))

    def told(self) -> list[tuple[int, object]]:
        """Return the failures that were written since the last call, by number."""
        found = []
        while (message := self.decoder.take()) is not None:
            assert message.kind == Kind.FAILED
            found.append((message.id, message.head))
        return found


async def work(ends: asyncio.Event) -> None:
    await ends.wait()


async def test_each_request_ends_once() -> None:
    client, ends = Client(), asyncio.Event()
    for number in (1, 2):
        client.running.start(number, work(ends), 10 * number)
    assert (client.running.count, set(client.running.wanted)) == (2, {1, 2})
    ends.set()
    await client.running.ended()
    assert (client.running.count, client.running.wanted) == (0, {})
    assert (client.ended, client.told()) == ([(1, 10), (2, 20)], [])


async def test_one_that_its_client_cancels_before_its_first_step_is_answered() -> None:
    client, ends = Client(), asyncio.Event()
    client.running.start(1, work(ends), 10)
    client.running.cancel(1)
    client.running.cancel(1)  # there is none any more
    await client.running.ended()
    ((number, head),) = client.told()
    assert number == 1
    assert isinstance(unpack_error(head), OutcomeUnknownError)
    assert client.ended == [(1, 10)]


async def test_a_number_may_come_again_while_the_cancelled_one_ends() -> None:
    client, ends = Client(), asyncio.Event()
    client.running.start(1, work(ends), 10)
    client.running.cancel(1)
    client.running.start(1, work(ends), 20)
    await turns()
    assert client.ended == [(1, 10)]
    assert set(client.running.wanted) == {1}
    ends.set()
    await client.running.ended()
    assert client.ended == [(1, 10), (1, 20)]


async def test_a_server_that_stops_tells_which_did_not_begin() -> None:
    client, ends = Client(), asyncio.Event()
    client.running.start(1, work(ends), 10)
    client.running.start(2, work(ends), 20, is_kept=True)
    client.running.cancel_all()
    await turns()
    assert client.told() == [(1, NOT_BEGUN)]
    assert (client.running.count, client.ended) == (1, [(1, 10)])  # the kept one goes on
    ends.set()
    await client.running.ended()


async def test_thousands_of_a_lost_connection_end_in_several_passes_and_then_its_service() -> None:
    client, ends, closed = Client(), asyncio.Event(), asyncio.Event()
    for number in range(1000):
        client.running.start(number, work(ends), 1)

    async def close() -> None:
        assert not client.running.wanted
        closed.set()

    client.running.abandon(close)
    assert 0 < len(client.running.wanted) < 1000
    await client.running.ended()
    assert closed.is_set()
    assert len(client.ended) == 1000
