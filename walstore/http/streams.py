"""Streams: the streams of the protocol by name, each a log of a store. Creates, expires and deletes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

from walstore.core.ports import Clock
from walstore.core.runtime.keyed_locks import KeyedLocks
from walstore.errors import InvalidSettingsError, LogNotFoundError, WalError
from walstore.http.content import JSON
from walstore.http.protocol import RefusedError, parse_expiry, parse_offset
from walstore.http.stream import Stream, StreamConfig
from walstore.log.wal import Wal
from walstore.serve.fetching import Fetching
from walstore.store.log_catalog import LogCatalog

_RESERVED: Final = "__ds"
"""First part of names that the protocol keeps for itself."""


class Streams:
    """The streams of a store, of a cluster, or the one of a log."""

    def __init__(self, logs: LogCatalog, clock: Clock, fetching: Fetching | None = None) -> None:
        """Serve ``logs``, which stay the caller's; ``fetching`` reads them."""
        self._logs = logs
        self._fetching = fetching or Fetching()
        self._clock = clock
        self._open: dict[str, Stream] = {}
        self._locks = KeyedLocks(1)
        self.is_ending = False
        """Whether the server stops: live readers shall go, also before they have read everything."""

    async def find(self, name: str, *, is_use: bool = True) -> Stream:
        """Return a stream. Its time to live begins anew if this is a use.

        RefusedError with 404 if there is none or its time is over, with 410 if it is kept for its forks only.
        """
        stream = await self._look(name)
        if stream is None or await self._removed_if_over(stream):
            raise RefusedError(404, "no such stream")
        if stream.is_deleted:
            raise RefusedError(410, "the stream was deleted")
        if is_use:
            stream.touched = self._clock.monotonic()
        return stream

    async def create(
        self, name: str, asked: StreamConfig, values: Sequence[bytes], *, is_closed: bool
    ) -> tuple[Stream, bool]:
        """Create a stream, or find it as it would be; return it, and whether it is new.

        RefusedError with 409 if it is there and different.
        """
        store = self._logs
        if not store.can_create:
            why = "a server of one log creates no streams"
            raise RefusedError(405, why, {"Allow": "GET, HEAD, POST"})
        if not store.has_lifetimes and (asked.source is not None or asked.has_lifetime):
            raise RefusedError(400, "streams of a cluster have no lifetime, and no forks")
        before = await self._look(name)
        if before is not None:
            await self._removed_if_over(before)
        async with self._locked(name, asked.source):
            found = await self._look(name)
            if found is not None and not found.is_new:
                _check_same(found, asked, is_closed=is_closed)
                found.touched = self._clock.monotonic()
                return found, False
            config, first, source = asked, list[bytes](), None
            if asked.source is not None:
                config, first, source = await self._plan_fork(name, asked)

            async def begin(wal: Wal) -> Stream:
                if source is not None:
                    await source.note_fork(name, wal.log_id)
                made = Stream(name, wal, source, self._fetching)
                await made.create(config, [*first, *values], is_closed=is_closed)
                return made

            stream = await _make(store, name, begin)
            stream.touched = self._clock.monotonic()
            return self._kept(stream), True

    async def delete(self, name: str) -> None:
        """Delete a stream; keep its records while it has forks. RefusedError as :meth:`find`."""
        self._check_removable()
        await self._remove(await self.find(name, is_use=False))

    async def expire(self) -> None:
        """Delete the streams whose time is over, of those that were looked at since the server began."""
        for stream in list(self._open.values()):
            if stream.is_usable:
                await self._removed_if_over(stream)

    async def load(self) -> None:
        """Look at every stream once, so that those expire that nobody asks for, and remains are removed."""
        if not self._logs.has_lifetimes:
            return
        for name in await self._logs.logs():
            try:
                stream = await self._look(name)
                if stream is not None and stream.is_deleted:
                    await self._remove(stream)
            except (RefusedError, WalError):
                continue  # whoever asks for it is told

    def end_all(self) -> None:
        """Let all live readers go, also those of streams that are being opened."""
        self.is_ending = True
        for stream in self._open.values():
            stream.end()

    # -- looking -----------------------------------------------------------------------------

    async def _look(self, name: str) -> Stream | None:
        """Return a stream, deleted or not; None if there is no log of this name."""
        found = self._open.get(name)
        if found is not None and found.is_usable:
            return found
        self._open.pop(name, None)
        if name.split("/", 1)[0] == _RESERVED:
            raise RefusedError(404, f"names that begin with {_RESERVED} are reserved")
        wal = await self._logs.find(name)
        if wal is None:
            return None
        made = Stream(name, wal, None, self._fetching)
        if made.config.source is not None:
            made.source = await self._look(made.config.source)
            if made.source is None or made.source.wal.log_id != made.config.source_id:
                raise RefusedError(410, "the stream that this is a fork of was removed")
        made.touched = self._clock.monotonic()
        return self._open.get(name) or self._kept(made)

    def _kept(self, stream: Stream) -> Stream:
        self._open[stream.name] = stream
        if self.is_ending:
            stream.end()
        return stream

    def _check_removable(self) -> None:
        if self._logs.has_lifetimes:
            return
        if self._logs.can_create:
            why = "take a log out of its cluster with 'walstore logs remove'"
            raise RefusedError(405, why, {"Allow": "GET, HEAD, POST, PUT"})
        why = "a server of one log deletes no streams"
        raise RefusedError(405, why, {"Allow": "GET, HEAD, POST"})

    @asynccontextmanager
    async def _locked(self, *names: str | None) -> AsyncIterator[None]:
        """Let nobody else create or delete streams of these names meanwhile. No task takes it twice."""
        async with AsyncExitStack() as stack:
            for name in sorted({name for name in names if name is not None}):
                await stack.enter_async_context(self._locks.pass_through(name))
            yield

    # -- the end of a stream -------------------------------------------------------------------

    async def _removed_if_over(self, stream: Stream) -> bool:
        """Return whether the time of a stream is over, and delete it then."""
        config = stream.config
        is_over = False
        if config.ttl_seconds is not None:
            is_over = self._clock.monotonic() - stream.touched >= config.ttl_seconds
        if config.expires_at is not None:
            at = parse_expiry(config.expires_at)
            assert at is not None
            is_over = is_over or self._clock.now_us() >= at.timestamp() * 1e6
        if is_over and not stream.is_deleted:
            await self._remove(stream)
        return is_over and not stream.is_deleted

    async def _remove(self, stream: Stream) -> None:
        """Delete a stream, or keep it for its forks; then those that were kept for this one only."""
        self._check_removable()
        is_asked = True
        while is_asked or stream.is_deleted:
            async with self._locked(stream.name):
                if self._open.get(stream.name) is not stream or not stream.is_usable:
                    return  # somebody else did
                if await self._has_forks(stream):
                    if not stream.is_deleted:
                        await stream.delete_softly()
                    return
                stream.end()
                with suppress(LogNotFoundError):
                    await self._logs.delete(stream.name)
                if self._open.get(stream.name) is stream:  # nobody who looked for it has noticed
                    del self._open[stream.name]
            if stream.source is None or not stream.source.is_usable:
                return
            await stream.source.forget_fork(stream.name)
            stream, is_asked = stream.source, False

    async def _has_forks(self, stream: Stream) -> bool:
        for name, log_id in stream.forks().items():
            with suppress(RefusedError, WalError):
                fork = await self._look(name)
                if fork is not None and fork.wal.log_id == log_id and not fork.is_new:
                    return True
        return False

    # -- forks ---------------------------------------------------------------------------------

    async def _plan_fork(
        self, name: str, asked: StreamConfig
    ) -> tuple[StreamConfig, list[bytes], Stream]:
        """Return what a fork is created with: its configuration, first records, and its source."""
        assert asked.source is not None
        source = await self._look(asked.source) if asked.source != name else None
        if source is None:
            raise RefusedError(404, "no such stream to fork")
        if source.is_deleted:
            raise RefusedError(409, "the stream to fork was deleted")
        if asked.content_type not in {"", source.config.content_type}:
            raise RefusedError(409, f"the stream to fork has {source.config.content_type}")
        tail = source.tail
        at = tail if asked.fork_offset is None else parse_offset(asked.fork_offset)
        if not source.head <= at <= tail:
            raise RefusedError(400, "the stream to fork has no such offset")
        if asked.sub_offset and asked.fork_offset is None:
            raise RefusedError(400, "a sub-offset needs an offset")
        base, first = await _cut(source, at, asked.sub_offset)
        ttl, expires = asked.ttl_seconds, asked.expires_at
        if ttl is None and expires is None:
            ttl, expires = source.config.ttl_seconds, source.config.expires_at
        config = StreamConfig(
            content_type=source.config.content_type,
            ttl_seconds=ttl,
            expires_at=expires,
            source=source.name,
            source_id=source.wal.log_id,
            fork_offset=asked.fork_offset,
            sub_offset=asked.sub_offset,
            base=base,
        )
        return config, first, source


async def _make(logs: LogCatalog, name: str, begin: Callable[[Wal], Awaitable[Stream]]) -> Stream:
    """Make the log of a new stream; what a store made for it is gone if a full disk refuses the rest."""
    try:
        return await logs.make(name, begin)
    except InvalidSettingsError as error:
        if isinstance(error.__cause__, (FileExistsError, NotADirectoryError)):
            raise RefusedError(409, "the name is that of a file of the server's own") from None
        raise


async def _cut(source: Stream, at: int, sub_offset: int) -> tuple[int, list[bytes]]:
    """Return where a fork's own records begin, and the part of a message that it takes over as its first."""
    if not sub_offset:
        return at, []
    messages, size = await source.following(at)
    is_json = source.config.content_type == JSON
    if sub_offset > (messages if is_json else size):
        raise RefusedError(400, "the sub-offset goes beyond the message")
    if is_json:
        return at + sub_offset, []
    if sub_offset == size:
        return at + 1, []
    chunk = await source.read(at, 1)
    return at, [chunk.values[0][:sub_offset]]


def _check_same(found: Stream, asked: StreamConfig, *, is_closed: bool) -> None:
    """RefusedError unless a stream is what somebody asked to create."""
    config = found.config
    if found.is_deleted:
        raise RefusedError(409, "a deleted stream of this name is kept for its forks")
    if asked.content_type not in {config.content_type} | ({""} if asked.source else set()):
        raise RefusedError(409, f"the stream is there, with content type {config.content_type}")
    if (asked.source, asked.fork_offset, asked.sub_offset) != (
        config.source,
        config.fork_offset,
        config.sub_offset,
    ):
        raise RefusedError(409, "the stream is there, and forked in another way")
    is_inherited = asked.source is not None and asked.ttl_seconds is None and not asked.expires_at
    if not is_inherited and (asked.ttl_seconds, asked.expires_at) != (
        config.ttl_seconds,
        config.expires_at,
    ):
        raise RefusedError(409, "the stream is there, with another lifetime")
    if found.is_closed != is_closed:
        raise RefusedError(
            409, f"the stream is there, and {'' if found.is_closed else 'not '}closed"
        )
