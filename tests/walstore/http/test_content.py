"""Bodies, records and events."""

from __future__ import annotations

import base64
import gzip
import json
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import case
from walstore.http.content import (
    JSON,
    MOST_MESSAGES,
    data_event,
    decode_body,
    join_records,
    split_body,
)
from walstore.http.protocol import RefusedError

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(st.lists(VALUES, max_size=5), st.sampled_from([None, 1]))
def test_the_elements_of_an_array_are_messages(values: list[object], indent: int | None) -> None:
    messages = split_body(JSON, json.dumps(values, indent=indent).encode())
    assert [json.loads(message) for message in messages] == values
    assert json.loads(join_records(JSON, messages)) == values


def test_text_is_kept_as_it_came() -> None:
    for body, messages in (
        (b' {"a": 1.00} ', [b'{"a": 1.00}']),
        (b"[1e400,1.10, 12345678901234567890123]", [b"1e400", b"1.10", b"12345678901234567890123"]),
        (b'[{"a":1,"a":2}]', [b'{"a":1,"a":2}']),
        (b"[[1,2],[[3]]]", [b"[1,2]", b"[[3]]"]),  # one level only
        (b"9" * 5000, [b"9" * 5000]),
        (b"[ ]", []),
    ):
        assert split_body(JSON, body) == messages


def test_messages_are_taken_apart_whatever_their_letters() -> None:
    values = ['"é"', '{"ключ":"😀"}', '["\u2028\x85\xa0", 1]']
    for text in (f"[{','.join(values)}]", f" [ {' , '.join(values)} ] " + " " * 9000):
        assert split_body(JSON, text.encode()) == [value.encode() for value in values]
    assert split_body(JSON, '"😀"'.encode()) == ['"😀"'.encode()]


def test_one_letter_does_not_make_a_body_take_four_times_as_much() -> None:
    body = ('["😀","' + "a" * (4 << 20) + '"]').encode()
    tracemalloc.start()
    try:
        assert len(split_body(JSON, body)) == 2
        assert tracemalloc.get_traced_memory()[1] < 2.2 * len(body)
    finally:
        tracemalloc.stop()


def test_what_is_no_json_is_refused() -> None:
    for body in (
        b"", b"[", b"[1", b"[1,", b"[1,]", b"[,1]", b"[1 2]", b"{} {}", b"[1]]", b"nul", b"NaN",
        b"[Infinity]", b"\xff", b'"\x00"', b"[" * 100_000, b"'a'", b"{1:2}", b'"\xed\xa0\x80"',
    ):  # fmt: skip
        with pytest.raises(RefusedError, match="not JSON"):
            split_body(JSON, body)


def test_an_array_has_only_so_many_elements() -> None:
    assert len(split_body(JSON, b"[" + b"1," * (MOST_MESSAGES - 1) + b"1]")) == MOST_MESSAGES
    for body in (b"[" + b"1," * MOST_MESSAGES + b"1]", b"[" + b"1," * 8_000_000 + b"1]"):
        with pytest.raises(RefusedError, match="in several requests") as refused:
            split_body(JSON, body)
        assert refused.value.status == 413


def test_other_bodies_are_one_message() -> None:
    assert split_body("text/plain", b"[1,2]") == [b"[1,2]"]
    assert split_body("text/plain", b"") == []
    assert join_records("image/png", [b"a", b"", b"b"]) == b"ab"


def raw_deflate(data: bytes) -> bytes:
    encoder = zlib.compressobj(wbits=-15)
    return encoder.compress(data) + encoder.flush()


def test_bodies_are_decoded() -> None:
    for coding, body in (
        ("gzip", gzip.compress(b"hello")), (" X-GZIP ", gzip.compress(b"hello")), ("identity", b"hello"),
        ("gzip", gzip.compress(b"he") + gzip.compress(b"llo")), ("deflate", zlib.compress(b"hello")),
        ("Deflate", raw_deflate(b"hello")),
    ):  # fmt: skip
        assert decode_body(coding, body, 5) == b"hello"
        if coding != "identity":
            with pytest.raises(RefusedError) as refused:
                decode_body(coding, body, 4)
            assert refused.value.status == 413
    bomb = gzip.compress(bytes(50 << 20))
    with pytest.raises(RefusedError):
        decode_body("gzip", bomb, 1000)


def test_what_does_not_match_its_coding_is_refused() -> None:
    whole = gzip.compress(b"hello")
    damaged = whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:]
    for coding, body in (
        ("br", b"x"), ("gzip, gzip", whole), ("", b"x"), ("utf-8", b"x"), ("gzip", b"hello"),
        ("gzip", whole[:-1]), ("gzip", whole[:3]), ("gzip", whole + b"x"), ("gzip", damaged),
        ("gzip", zlib.compress(b"x")), ("gzip", gzip.compress(b"") * 17), ("deflate", whole),
        ("deflate", zlib.compress(b"x") + b"x"), ("deflate", zlib.compress(b"x")[:-1]),
        ("deflate", raw_deflate(b"x" * 99)[:-1]),
    ):  # fmt: skip
        with case((coding, body)), pytest.raises(RefusedError) as refused:
            decode_body(coding, body, 1000)
        assert refused.value.status == 400


def read_event(event: bytes) -> tuple[str, str]:
    """Read one event as a browser does."""
    text = event.decode()
    assert text.endswith("\n\n")
    assert text.count("\n\n") == 1
    name, lines = "message", []
    for line in text.removesuffix("\n\n").split("\n"):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            lines.append(value)
        elif field == "id":
            assert value
        else:
            raise AssertionError(line)
    return name, "\n".join(lines)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=4))
def test_text_arrives_but_for_its_line_ends(texts: list[str]) -> None:
    name, data = read_event(data_event("text/plain", [text.encode() for text in texts], "1"))
    whole = "".join(texts)
    assert (name, data) == ("data", whole.replace("\r\n", "\n").replace("\r", "\n"))


@given(st.lists(st.binary(), max_size=4))
def test_bytes_arrive_as_base64(values: list[bytes]) -> None:
    name, data = read_event(data_event("application/octet-stream", values, "1"))
    assert (name, base64.b64decode(data)) == ("data", b"".join(values))


@given(st.binary())
def test_text_that_is_none_ends_no_event(value: bytes) -> None:
    read_event(data_event("text/plain", [value], "1"))
