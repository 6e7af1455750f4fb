"""What a process that encodes is told and answers: the fragment is the one that would be made here."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import batch_of, build, record_lists, values_only
from uploader.fragments import encoder
from uploader.fragments.encoder import GREETING
from uploader.fragments.fragment_builder import EncodedFragment, encode_fragment
from walstore.core.batches.frame_batch import FrameBatch

TIME_US = 1_234_567_890_123_456


@pytest.fixture(scope="module")
def served() -> Iterator[socket.socket]:
    """A connection to an encoder on a thread."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=encoder.serve, args=(theirs.detach(), threading.Lock()))
    thread.start()
    assert encoder.receive_greeting(ours) == GREETING
    yield ours
    ours.close()
    thread.join(20)
    assert not thread.is_alive()


def ask(connection: socket.socket, *batches: FrameBatch, **options: object) -> EncodedFragment:
    chosen = {"timestamp_us": TIME_US, "writer": "w", "closings": None, **options}
    return encoder.request(connection, batches, **chosen)  # type: ignore[arg-type]


@given(records=record_lists(), data=st.data())
def test_the_same_bytes_as_here(served: socket.socket, records, data) -> None:
    """Of all kinds of columns, and of parts of frames."""
    batch = batch_of(build(records))
    low = data.draw(st.integers(batch.start, batch.limit - 1))
    part = batch.slice(low, data.draw(st.integers(low + 1, batch.limit)))
    found = ask(served, part)
    assert found == encode_fragment([part], timestamp_us=TIME_US, writer="w")


def test_many_frames(served: socket.socket) -> None:
    """More pieces than the system takes together."""
    batches = [batch_of(build(values_only(b"%d" % at, start=at))) for at in range(1, 2001)]
    assert ask(served, *batches) == encode_fragment(batches, timestamp_us=TIME_US, writer="w")


def test_more_than_the_system_holds(served: socket.socket) -> None:
    batch = batch_of(build(values_only(*(os.urandom(4096) for _ in range(2000)))))
    found = ask(served, batch)
    assert found == encode_fragment([batch], timestamp_us=TIME_US, writer="w")
    assert type(found.data) is bytes


def test_what_is_refused_there_is_refused(served: socket.socket) -> None:
    """And the next request is answered."""
    one, other = (batch_of(build(values_only(b"v", start=at))) for at in (1, 3))
    with pytest.raises(RuntimeError, match=r"ValueError.*does not follow"):
        ask(served, one, other)
    assert ask(served, one).limit == 2


def test_closings_are_in_the_footer(served: socket.socket) -> None:
    batch = batch_of(build([values_only(b"v")[0]._replace(stream="s")]))
    assert ask(served, batch, closings=3).data != ask(served, batch).data


@pytest.mark.parametrize("size", [0, 1, 4, 100])
def test_one_that_ends_in_the_middle(size: int) -> None:
    """At each place of a message."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            encoder.send(theirs, ["head"], [bytes(200)])
            whole = ours.recv(1000)
            theirs.sendall(whole[:size])
        with pytest.raises(EOFError):
            encoder.receive(ours)
