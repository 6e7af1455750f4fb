"""Handlers: requests of the Durable Streams protocol, and their answers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiohttp import web

from walstore.http import protocol
from walstore.http.answering import expected_later
from walstore.http.answers import Answers
from walstore.http.bodies import Bodies
from walstore.http.content import (
    control_event,
    data_event,
    is_text,
    join_records,
)
from walstore.http.json_text import SHORT_CHARS
from walstore.http.protocol import (
    CLOSED,
    NEXT_OFFSET,
    UP_TO_DATE,
    RefusedError,
    format_offset,
    is_true,
    parse_offset,
)
from walstore.http.requester import current_principal
from walstore.http.routes import add_route
from walstore.http.stream import Appended, Stream, StreamChunk, StreamConfig
from walstore.http.streams import Streams
from walstore.net.wire.access_scope import ADMIN, APPEND_ONLY, READ_ONLY

if TYPE_CHECKING:
    from walstore.core.ports import Clock
    from walstore.http.http_settings import HttpSettings

_T = TypeVar("_T")
_BEGINNING: Final = "-1"
_NOW: Final = "now"
_LAST_EVENT: Final = "Last-Event-ID"
_CACHED: Final = "max-age=60, stale-while-revalidate=300"


class Handlers:
    """Answers requests on streams."""

    def __init__(
        self,
        streams: Streams,
        bodies: Bodies,
        answers: Answers,
        settings: HttpSettings,
        clock: Clock,
        *,
        is_private: bool,
    ) -> None:
        """``is_private``: shared caches must not keep the content."""
        self._streams = streams
        self._bodies = bodies
        self._answers = answers
        self._settings = settings
        self._clock = clock
        self._cached = f"{'private' if is_private else 'public'}, {_CACHED}"
        # The last event made, for all live readers that need the same.
        self._event: tuple[StreamChunk, bytes] | None = None

    def add_to(self, app: web.Application) -> None:
        """Add the routes of the protocol."""
        path = f"{protocol.PREFIX}{{log:{protocol.NAME_PATTERN}}}"
        later = {"expect_handler": expected_later}
        add_route(app, "PUT", path, self._create, APPEND_ONLY, **later)
        add_route(app, "POST", path, self._append, APPEND_ONLY, **later)
        add_route(app, "GET", path, self._read, READ_ONLY)
        add_route(app, "HEAD", path, self._head, READ_ONLY)
        add_route(app, "DELETE", path, self._delete, ADMIN)

    # -- changing ----------------------------------------------------------------------------

    async def _create(self, request: web.Request) -> web.StreamResponse:
        headers = request.headers
        source = headers.get(protocol.FORKED_FROM)
        fork_offset = headers.get(protocol.FORK_OFFSET)
        if source is None and (fork_offset is not None or protocol.FORK_SUB_OFFSET in headers):
            raise RefusedError(400, f"{protocol.FORK_OFFSET} needs {protocol.FORKED_FROM}")
        if source is not None:
            if not source.startswith(protocol.PREFIX):
                raise RefusedError(404, "no such stream to fork")
            source = source.removeprefix(protocol.PREFIX)
            if (who := current_principal()) is not None:
                who.check(READ_ONLY, source)
        given = headers.get("Content-Type")
        content_type = "" if source is not None and given is None else protocol.media_type(given)
        expires_at = headers.get(protocol.EXPIRES_AT)
        protocol.parse_expiry(expires_at)
        ttl = protocol.parse_ttl(headers.get(protocol.TTL))
        if ttl is not None and expires_at is not None:
            raise RefusedError(400, f"{protocol.TTL} and {protocol.EXPIRES_AT} exclude each other")
        asked = StreamConfig(
            content_type=content_type,
            ttl_seconds=ttl,
            expires_at=expires_at,
            source=source,
            fork_offset=fork_offset,
            sub_offset=protocol.parse_sub_offset(headers.get(protocol.FORK_SUB_OFFSET)),
        )
        async with self._bodies.whole(request) as body:
            if body and not content_type:  # a fork's content type is that of its source
                found = await self._streams.find(source or "", is_use=False)
                content_type = found.config.content_type
            async with self._bodies.messages(content_type, body) as values:
                stream, is_new = await self._streams.create(
                    request.match_info["log"],
                    asked,
                    values,
                    is_closed=is_true(headers.get(CLOSED)),
                )
        if not is_new and headers.get("If-None-Match", "").strip() == "*":
            raise RefusedError(412, "the stream is there")
        answer = web.Response(status=201 if is_new else 200)
        answer.headers.update(_describe(stream))
        if is_new:
            answer.headers["Location"] = str(request.url.with_query(None))
        return answer

    async def _append(self, request: web.Request) -> web.StreamResponse:
        headers = request.headers
        stream = await self._streams.find(request.match_info["log"])
        producer = protocol.parse_producer(headers)
        sequence = headers.get(protocol.SEQUENCE)
        if sequence is not None:
            protocol.check_text(sequence, protocol.SEQUENCE)
        is_last = is_true(headers.get(CLOSED))
        async with self._bodies.whole(request) as body:
            done, is_full = await self._append_body(
                request, stream, body, producer=producer, sequence=sequence, is_last=is_last
            )
        answer = web.Response(
            status=200 if done.is_new and is_full and producer is not None else 204
        )
        answer.headers[NEXT_OFFSET] = format_offset(done.tail)
        if done.is_closed:
            answer.headers[CLOSED] = "true"
        if done.mark is not None:
            answer.headers[protocol.PRODUCER_EPOCH] = str(done.mark.epoch)
            answer.headers[protocol.PRODUCER_SEQUENCE] = str(done.mark.sequence)
        return answer

    async def _append_body(
        self,
        request: web.Request,
        stream: Stream,
        body: bytes,
        *,
        producer: protocol.ProducerMark | None,
        sequence: str | None,
        is_last: bool,
    ) -> tuple[Appended, bool]:
        """Append what a body holds; also return whether that was anything."""
        headers = request.headers
        kept = b""
        if body:
            if "Content-Type" not in headers:
                raise RefusedError(400, "a body needs a Content-Type")
            given = protocol.media_type(headers["Content-Type"])
            if given == stream.config.content_type:
                kept = body
            elif not stream.is_closed:
                raise RefusedError(409, f"the stream has {stream.config.content_type}")
        async with self._bodies.messages(stream.config.content_type, kept) as values:
            if not values and not is_last and not (body and stream.is_closed):
                raise RefusedError(400, "there is nothing to append")
            done = await stream.append(
                values,
                sequence=sequence,
                producer=producer,
                is_last=is_last,
                durability=headers.get(protocol.DURABILITY),
                is_empty=not body,
            )
            return done, bool(values)

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        await self._streams.delete(request.match_info["log"])
        return web.Response(status=204)

    # -- reading -----------------------------------------------------------------------------

    async def _head(self, request: web.Request) -> web.StreamResponse:
        stream = await self._streams.find(request.match_info["log"], is_use=False)
        await stream.wal.refresh()
        answer = web.Response(headers={**_describe(stream), "Cache-Control": "no-store"})
        config = stream.config
        if config.ttl_seconds is not None:
            answer.headers[protocol.TTL] = str(config.ttl_seconds)
        if config.expires_at is not None:
            answer.headers[protocol.EXPIRES_AT] = config.expires_at
        return answer

    async def _read(self, request: web.Request) -> web.StreamResponse:
        offsets = request.query.getall("offset", [])
        live = request.query.get("live")
        if len(offsets) > 1 or live not in {None, "long-poll", "sse"}:
            raise RefusedError(400, "give one offset, and live=long-poll or live=sse or neither")
        if live is not None and not offsets:
            raise RefusedError(400, "live reading needs an offset")
        stream = await self._streams.find(request.match_info["log"])
        word = offsets[0] if offsets else _BEGINNING
        # A browser's EventSource comes back with the address that it began with.
        last = request.headers.get(_LAST_EVENT) if live == "sse" else None
        start = _start(stream, format_offset(parse_offset(last)) if last else word)
        if last and stream.is_closed and start == stream.tail:
            return web.Response(status=204, headers={"Cache-Control": "no-store", CLOSED: "true"})
        await stream.wal.refresh()  # the answer may say that it is up to date
        if live == "sse":
            return await self._send_events(request, stream, start)
        if live == "long-poll":
            return await self._poll(request, stream, start)
        if word == _NOW:
            chunk = StreamChunk((), start, start, is_up_to_date=True, is_closed=stream.is_closed)
            nothing = await _joined(stream, chunk)
            answer = self._answer(request, stream, chunk, len(nothing))
            del answer.headers["ETag"]
            if answer.status == 200:
                await answer.prepare(request)
                await answer.write(nothing)
            return answer
        begin = partial(self._answer, request, stream)
        return (await self._answers.send(request, stream, start, begin, _joined))[0]

    async def _poll(self, request: web.Request, stream: Stream, start: int) -> web.StreamResponse:
        await stream.wait(start, self._settings.poll_seconds)
        await stream.wal.refresh()

        def begin(chunk: StreamChunk, size_bytes: int) -> web.StreamResponse:
            if chunk.is_empty:
                answer: web.StreamResponse = web.Response(status=204)
                answer.headers.update({"Cache-Control": "no-store", **_place(chunk)})
            else:
                answer = self._answer(request, stream, chunk, size_bytes)
            if not chunk.is_closed:
                answer.headers[protocol.CURSOR] = self._cursor(request)
            return answer

        return (await self._answers.send(request, stream, start, begin, _joined))[0]

    def _answer(
        self, request: web.Request, stream: Stream, chunk: StreamChunk, size_bytes: int
    ) -> web.StreamResponse:
        tag = f'"{stream.wal.log_id}:{chunk.start}:{chunk.limit}{":c" if chunk.is_closed else ""}"'
        headers = {
            "ETag": tag,
            # Nothing was found: that may change at any moment.
            "Cache-Control": "no-store" if chunk.is_empty else self._cached,
            **_place(chunk),
        }
        if protocol.is_match(request.headers.getall("If-None-Match", ()), tag):
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = stream.config.content_type
        answer = web.StreamResponse(headers=headers)
        answer.content_length = size_bytes
        return answer

    async def _send_events(
        self, request: web.Request, stream: Stream, start: int
    ) -> web.StreamResponse:
        """Send what there is and what comes, until the stream ends or the client's time is up."""
        answer = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
            }
        )
        if not is_text(stream.config.content_type):
            answer.headers[protocol.SSE_ENCODING] = "base64"
        until = self._clock.monotonic() + self._settings.event_seconds
        at, is_first = start, True

        def end(chunk: StreamChunk) -> bytes:
            is_news = is_first or not chunk.is_empty or chunk.is_closed
            return self._control(request, chunk) if is_news else b""

        while True:
            # What cannot be read is refused before the answer begins.
            _, chunk = await self._answers.send(
                request, stream, at, lambda *_: answer, self._data, end
            )
            at, is_first = chunk.limit, False
            left = until - self._clock.monotonic()
            has_ended = stream.has_ended and chunk.is_up_to_date
            if chunk.is_closed or left <= 0 or has_ended or self._streams.is_ending:
                return answer
            await stream.wait(at, left)

    def _control(self, request: web.Request, chunk: StreamChunk) -> bytes:
        place = format_offset(chunk.limit)
        control: dict[str, Any] = {"streamNextOffset": place}
        if chunk.is_closed:
            control["streamClosed"] = True
        else:
            control["streamCursor"] = self._cursor(request)
        if chunk.is_up_to_date:
            control["upToDate"] = True
        return control_event(control, place)

    async def _data(self, stream: Stream, chunk: StreamChunk) -> bytes:
        if chunk.is_empty:
            return b""
        if self._event is not None and self._event[0] is chunk:
            return self._event[1]
        size = chunk.size_bytes
        made = data_event, stream.config.content_type, chunk.values, format_offset(chunk.limit)
        event = await _maybe_on_thread(size, *made)
        if size <= SHORT_CHARS:
            self._event = chunk, event
        return event

    def _cursor(self, request: web.Request) -> str:
        jitter = 1 + secrets.randbelow(protocol.MOST_JITTER)
        return protocol.cursor(self._clock.now_us() / 1e6, request.query.get("cursor"), jitter)


async def _maybe_on_thread(size: int, call: Callable[..., _T], *args: Any) -> _T:
    """Call a function on another thread, if there is so much to do that the event loop would stand still."""
    if size <= SHORT_CHARS:
        return call(*args)
    return await asyncio.get_running_loop().run_in_executor(None, call, *args)


def _start(stream: Stream, word: str) -> int:
    """Return the offset that a request names."""
    if word == _NOW:
        return stream.tail
    if word == _BEGINNING:
        return stream.head
    start = parse_offset(word)
    if start > stream.tail:
        raise RefusedError(400, "the stream has no such offset")
    return start


def _describe(stream: Stream) -> dict[str, str]:
    found = {"Content-Type": stream.config.content_type, NEXT_OFFSET: format_offset(stream.tail)}
    if stream.is_closed:
        found[CLOSED] = "true"
    return found


def _place(chunk: StreamChunk) -> dict[str, str]:
    found = {NEXT_OFFSET: format_offset(chunk.limit)}
    if chunk.is_up_to_date:
        found[UP_TO_DATE] = "true"
    if chunk.is_closed:
        found[CLOSED] = "true"
    return found


async def _joined(stream: Stream, chunk: StreamChunk) -> bytes:
    return join_records(stream.config.content_type, chunk.values)
