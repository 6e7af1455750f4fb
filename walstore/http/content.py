"""Content: what a body means as records, and records as a body or as server-sent events. Pure."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from walstore.http.protocol import RefusedError

JSON: Final = "application/json"
_MOST_MEMBERS: Final = 16
"""Of a gzip body: each costs as much as all that follow it."""
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_LINE_END: Final = re.compile(r"\r\n|\r|\n")


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Numbers are not converted: their digits are kept as they came, however many there are.
_DECODER: Final = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=_refuse)


def decode_body(coding: str, body: bytes, most_bytes: int) -> bytes:
    """Return a body as it was before its ``Content-Encoding``: ``gzip``, ``deflate`` or ``identity``.

    RefusedError for another one, and for a body that does not match, is not whole, or too large then.
    """
    name = coding.strip().lower()
    if name == "identity":
        return body
    if name in {"gzip", "x-gzip"}:
        window = 16 + zlib.MAX_WBITS
    elif name == "deflate":  # in a wrapper, as the standard says, or without, as some do
        window = zlib.MAX_WBITS if body[0] & 15 == zlib.DEFLATED else -zlib.MAX_WBITS
    else:
        raise RefusedError(400, f"a body may have the coding gzip or deflate, not {coding[:100]!r}")
    found = bytearray()
    for _ in range(_MOST_MEMBERS if name != "deflate" else 1):
        decoder = zlib.decompressobj(window)
        try:
            found += decoder.decompress(body, most_bytes - len(found) + 1)
        except zlib.error as error:
            raise RefusedError(400, f"the body is not {name}: {error}") from None
        if len(found) > most_bytes:
            raise RefusedError(413, f"the body has more than {most_bytes} bytes")
        body = decoder.unused_data
        if not decoder.eof:
            raise RefusedError(400, f"the body is not {name}: its end is missing")
        if not body:
            return bytes(found)
    raise RefusedError(400, f"the body is not {name}: something follows its end")


def split_body(content_type: str, body: bytes) -> list[bytes]:
    """Return the records of a body: the elements of a JSON array, or the body as it is.

    An element's text is kept as it came. RefusedError if JSON is announced and it is none.
    """
    if content_type != JSON:
        return [body] if body else []
    try:
        text = body.decode()
        return [part.encode() for part in _messages(text)]
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the body is not JSON: {error}") from None


def _messages(text: str) -> list[str]:
    begin = _after_space(text, 0)
    if not text.startswith("[", begin):
        end = _value_end(text, begin)
        if _after_space(text, end) != len(text):
            raise ValueError(f"something follows the value at character {end}")
        return [text[begin:end]]
    messages: list[str] = []
    at = _after_space(text, begin + 1)
    if not text.startswith("]", at):
        while True:
            end = _value_end(text, at)
            messages.append(text[at:end])
            at = _after_space(text, end)
            if not text.startswith(",", at):
                break
            at = _after_space(text, at + 1)
    if not text.startswith("]", at) or _after_space(text, at + 1) != len(text):
        raise ValueError(f"the array does not end at character {at}")
    return messages


def _value_end(text: str, at: int) -> int:
    found: tuple[Any, int] = _DECODER.raw_decode(text, at)
    return found[1]


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def join_records(content_type: str, values: Sequence[bytes]) -> bytes:
    """Return records as a body: a JSON array, or their bytes one after the other."""
    if content_type != JSON:
        return b"".join(values)
    return b"[" + b",".join(values) + b"]"


def is_text(content_type: str) -> bool:
    """Return whether events hold the content as text; anything else is base64."""
    return content_type == JSON or content_type.startswith("text/")


def data_event(content_type: str, values: Sequence[bytes]) -> bytes:
    """Return a server-sent event with the content of records, which cannot end it early."""
    body = join_records(content_type, values)
    if is_text(content_type):
        lines = _LINE_END.split(body.decode(errors="replace"))
    else:
        lines = [base64.b64encode(body).decode()]
    return ("event: data\n" + "".join(f"data:{_keep(line)}\n" for line in lines) + "\n").encode()


def _keep(line: str) -> str:
    """Return a line so that a client, which takes off one space, gets it as it is."""
    return f" {line}" if line.startswith(" ") else line


def control_event(fields: dict[str, Any]) -> bytes:
    """Return the event that follows each data event."""
    return f"event: control\ndata:{json.dumps(fields, separators=(',', ':'))}\n\n".encode()
