"""Content: what a body means as records, and records as a body or as server-sent events. Pure."""

from __future__ import annotations

import base64
import codecs
import json
import zlib
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from walstore.http.json_text import JsonText
from walstore.http.protocol import RefusedError

JSON: Final = "application/json"
_MOST_MEMBERS: Final = 16
"""Of a gzip body: each costs as much as all that follow it."""
MOST_MESSAGES: Final = 16_384
"""Of one JSON array: each costs as a record, however short it is."""
_CHECKED_BYTES: Final = 64 << 10


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

    An element's text is kept as it came. RefusedError if JSON is announced and it is none, or too many.
    """
    if content_type != JSON:
        return [body] if body else []
    try:
        _check_utf8(body)
        # A character for each byte: one that is not ASCII would make each take four. JSON's own are ASCII.
        return [body[begin:end] for begin, end in _messages(body.decode("latin-1"))]
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the body is not JSON: {error}") from None


def _check_utf8(body: bytes) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(body)
    for at in range(0, len(body), _CHECKED_BYTES):
        decoder.decode(view[at : at + _CHECKED_BYTES])
    decoder.decode(b"", final=True)


def _messages(text: str) -> list[tuple[int, int]]:
    """Return where each message begins and ends."""
    parts = JsonText(text)
    begin = parts.after_space(0)
    if not text.startswith("[", begin):
        end = parts.value_end(begin)
        if parts.after_space(end) != len(text):
            raise ValueError(f"something follows the value at byte {end}")
        return [(begin, end)]
    messages = list(islice(parts.elements(begin), MOST_MESSAGES + 1))
    if len(messages) > MOST_MESSAGES:
        text = f"an array has up to {MOST_MESSAGES} elements; send more in several requests"
        raise RefusedError(413, text)
    return messages


def join_records(content_type: str, values: Sequence[bytes]) -> bytes:
    """Return records as a body: a JSON array, or their bytes one after the other."""
    if content_type != JSON:
        return b"".join(values)
    return b"[" + b",".join(values) + b"]"


def is_text(content_type: str) -> bool:
    """Return whether events hold the content as text; anything else is base64."""
    return content_type == JSON or content_type.startswith("text/")


def data_event(content_type: str, values: Sequence[bytes], place: str) -> bytes:
    """Return a server-sent event with the content of records, which cannot end it early.

    ``place`` is where the next one goes on: a browser's EventSource says it when it comes back.
    """
    body = join_records(content_type, values)
    if is_text(content_type):
        try:
            _check_utf8(body)
        except ValueError:
            body = body.decode(errors="replace").encode()
        # Most bodies have no such line ends, and are not copied for them.
        lines = b"\n" + body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        # A client takes off one space in front of a line.
        lines = lines.replace(b"\n ", b"\n  ").replace(b"\n", b"\ndata:")
    else:
        lines = b"\ndata:" + base64.b64encode(body)
    return b"id: %b\nevent: data%b\n\n" % (place.encode(), lines)


def control_event(fields: dict[str, Any], place: str) -> bytes:
    """Return the event that follows each data event."""
    said = json.dumps(fields, separators=(",", ":"))
    return f"id: {place}\nevent: control\ndata:{said}\n\n".encode()
