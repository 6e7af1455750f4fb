"""Messages: hostile and too large ones cost their sender, and nobody else."""

from __future__ import annotations

import tracemalloc

import pytest

from walstore import LimitExceededError
from walstore.net.wire.errors import pack_error, unpack_error
from walstore.net.wire.message import (
    GREETING_BYTES,
    HEADER,
    MOST_HEAD_CONTAINERS,
    PREAMBLE,
    Decoder,
    Kind,
    ProtocolViolationError,
    encode,
)
from walstore.net.wire.records import pack_options

MOST = 1 << 20


def said(kind: Kind, number: int, head: object, payload: bytes = b"") -> bytes:
    return b"".join(encode(kind, number, head, [payload]))


@pytest.mark.parametrize("piece", [1, 7, 1000, 1 << 16, 1 << 30])
@pytest.mark.parametrize("what", ["head", "payload"])
def test_an_answer_that_is_too_large_fails_its_request_alone(what: str, piece: int) -> None:
    decoder = Decoder(most_bytes=50_000, most_head_bytes=10_000, skips=True)
    large = (bytes(20_000), b"") if what == "head" else (None, bytes(60_000))
    data = PREAMBLE + said(Kind.DONE, 1, "a") + said(Kind.DONE, 2, *large) + said(Kind.DONE, 3, "b")
    found = []
    for at in range(0, len(data), piece):
        found += decoder.feed(data[at : at + piece])
    assert [(one.kind, one.id) for one in found] == [
        (Kind.DONE, 1),
        (Kind.FAILED, 2),
        (Kind.DONE, 3),
    ]
    error = unpack_error(found[1].head)
    assert isinstance(error, LimitExceededError)
    assert error.outcome == "unknown"
    assert not decoder.is_inside


def test_lengths_that_contradict_each_other_end_the_connection_also_of_a_client() -> None:
    decoder = Decoder(most_bytes=MOST, skips=True)
    with pytest.raises(ProtocolViolationError, match="a head of"):
        decoder.feed(PREAMBLE + HEADER.pack(100, 1, 99, Kind.DONE))


def test_before_the_greeting_is_answered_a_message_is_short() -> None:
    decoder = Decoder(most_bytes=MOST, is_greeted=False)
    with pytest.raises(ProtocolViolationError, match="the limit is"):
        decoder.feed(PREAMBLE + HEADER.pack(GREETING_BYTES + 1, 1, 9, Kind.HELLO))


def test_what_follows_the_greeting_is_taken_once_that_is_answered() -> None:
    decoder = Decoder(most_bytes=MOST, is_greeted=False)
    data = PREAMBLE + said(Kind.HELLO, 0, {}) + said(Kind.CALL, 1, "a", bytes(100_000))
    data += said(Kind.CALL, 2, "b")
    decoder.add(data[:50_000])
    hello = decoder.take()
    assert hello is not None
    assert hello.id == 0
    decoder.add(data[50_000:100_000])
    decoder.admit()
    assert decoder.take() is None
    assert decoder.coming_bytes > 100_000
    assert decoder.is_inside
    decoder.add(data[100_000:])
    assert decoder.lengths == (HEADER.size + 2 + 100_000, 2)  # all of it is there
    assert not decoder.is_inside
    assert [one.id for one in decoder.feed(b"")] == [1, 2]
    assert decoder.lengths is None


@pytest.mark.parametrize("part", [b"\xc0", b"\x90", b"\x80", b"\x92\x90\x90", b"\xa2ab"])
def test_a_head_of_millions_of_parts_is_refused(part: bytes) -> None:
    """Each is a byte or a few there, and an object of up to 72 bytes here."""
    count = (16 << 20) // len(part) - 10
    head = b"\x91\xdd" + count.to_bytes(4, "big") + part * count
    whole = HEADER.pack(HEADER.size - 4 + len(head), 1, len(head), Kind.CALL) + head
    decoder = Decoder(most_bytes=32 << 20)
    with pytest.raises(ProtocolViolationError, match="not msgpack"):
        decoder.feed(PREAMBLE + whole)


@pytest.mark.parametrize("part", [b"\x90", b"\x80", b"\x92\x01\x01"])
def test_a_head_has_fewer_arrays_and_maps_than_elements(part: bytes) -> None:
    """Each takes as long as twenty elements, and nobody else is served meanwhile."""
    for count, is_taken in ((MOST_HEAD_CONTAINERS - 2, True), (MOST_HEAD_CONTAINERS + 1, False)):
        head = b"\xdd" + count.to_bytes(4, "big") + part * count
        data = PREAMBLE + HEADER.pack(HEADER.size - 4 + len(head), 1, len(head), Kind.CALL) + head
        decoder = Decoder(most_bytes=32 << 20)
        if is_taken:
            assert len(decoder.feed(data)[0].head) == count
        else:
            with pytest.raises(ProtocolViolationError, match="arrays and maps"):
                decoder.feed(data)


def test_the_largest_heads_of_a_client_are_taken() -> None:
    jobs = ["group", ["leave", "jobs", {}, b"member", [[1 << 40, 1]] * 10_000]]
    rows = [(b"key", "stream", b"\x80", 1 << 50)] * 65_536
    for head in (jobs, [None, bytes(4 * 65_536), pack_options(rows)]):
        decoder = Decoder(most_bytes=16 << 20)
        assert decoder.feed(PREAMBLE + said(Kind.CALL, 1, head))[0].head[:1] == head[:1]


def test_what_an_error_says_has_a_limit() -> None:
    """Arguments that a client sent come back in it."""
    error = LimitExceededError("x" * (1 << 20), limit=1)
    error.__dict__.update(expected="y" * (1 << 20), actual=[b"z" * (1 << 20)] * 1000)
    assert sum(map(len, encode(Kind.FAILED, 1, pack_error(error)))) < 2 << 20
    again = unpack_error(pack_error(LimitExceededError("short", limit=1)))
    assert str(again) == "short"


def test_what_follows_a_large_message_does_not_keep_it() -> None:
    decoder = Decoder(most_bytes=32 << 20)
    data = PREAMBLE + said(Kind.CALL, 1, "a", bytes(8 << 20)) + said(Kind.CALL, 2, "b")
    tracemalloc.start()
    try:
        decoder.add(data[:100_000])
        decoder.add(data[100_000:-1])
        assert decoder.take() is not None
        assert decoder.take() is None
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
        assert [one.id for one in decoder.feed(data[-1:])] == [2]
    finally:
        tracemalloc.stop()
