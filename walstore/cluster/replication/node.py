"""ReplicaNode: the copies of other machines' logs in a directory of this one, for their primaries.

A primary reaches it through a :class:`walstore.serve.Server`. Every call names the log, and all but the
first the primary and its epoch, which the copy has promised to obey. ``remote_copy.py`` is the other side.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from walstore.cluster.replication.copy_log import CopyLog
from walstore.cluster.replication.copy_look import LOOK, look_at_copy
from walstore.cluster.replication.copy_trouble import CopyTroubles
from walstore.cluster.replication.held_replica import LOOK_SECONDS, HeldReplica
from walstore.cluster.replication.messages import check_message
from walstore.cluster.replication.position import Place
from walstore.cluster.replication.promise import Promise
from walstore.core.files.directory import PROMISE_NAME
from walstore.core.files.locks import lock_copies, this_process
from walstore.core.files.posix import PosixFileSystem
from walstore.core.ports import Clock, FileSystem, Lock
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.error_mapping import describe_open
from walstore.core.runtime.resource import LoopGuard, MustClose, Opening, Unclosed
from walstore.core.runtime.tasks import run_to_end, start_task
from walstore.core.runtime.threads import Worker
from walstore.core.validation.arguments import as_directory
from walstore.errors import (
    CorruptionError,
    LogNotFoundError,
    StorageUnavailableError,
    WalClosedError,
    WalError,
)
from walstore.topology.documents import check_log_name

logger = logging.getLogger("walstore.replication")

SERVICE: Final = "replication"
"""What a primary asks a server for."""
_MOST_READ_BYTES: Final = 4 << 20
_TAG_BYTES: Final = 8


class ReplicaNode(MustClose):
    """The copies below one directory. Belongs to the event loop. Made by :meth:`open`."""

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> Opening[ReplicaNode]:
        """Take the copies below ``directory``, each in a directory with its log's name, made when it is
        needed.

        Serve it with ``Server.open(None, replicas=node, tcp=...)``. A copy is locked from the first call of a
        primary on, until the node is closed. If its directory is removed, emptied or moved meanwhile, a new
        one is made there within some seconds, which its primary fills from the other copies.

        WalLockedError if another node has the directory; StorageUnavailableError and the like as for a log.
        """
        place = as_directory(directory, "ReplicaNode.open()")

        async def open_it() -> ReplicaNode:
            files, worker = fs or PosixFileSystem(), Worker("node")
            try:
                lock = await worker.run_owned(
                    lambda: lock_copies(files, place, this_process()), lambda made: made.release()
                )
            except BaseException as error:
                worker.close()
                if isinstance(error, OSError):
                    raise describe_open(error, place) from error
                raise
            return cls(place, files, lock, worker, clock or SystemClock())

        return Opening(open_it)

    def __init__(
        self, directory: Path, fs: FileSystem, lock: Lock, lane: Worker, clock: Clock
    ) -> None:
        """Not for callers; see :meth:`open`."""
        self.directory = directory
        """Where the copies are."""
        self.tag: Final = os.urandom(_TAG_BYTES).hex()
        """Of this opening: in the greeting of its server, so that a machine knows itself."""
        self._fs = fs
        self._lock, self._is_locked = lock, True
        self._lane = lane
        """Looks at copies that are not open."""
        self._clock = clock
        self._looking: set[asyncio.Task[None]] = set()
        self._held: dict[str, HeldReplica] = {}
        self._troubles = CopyTroubles()
        self._damaged: dict[str, set[int]] = {}
        """Segments of copies that are damaged or missing, as was found, and not replaced since."""
        self._unopened: set[str] = set()
        """Logs whose copies cannot be used, since they are damaged."""
        self._led: set[str] = set()
        self._opening = asyncio.Lock()
        self._home = LoopGuard("node")
        self._is_closed = False
        self.check_used: Callable[[str], None] = lambda _: None
        """Not for callers: raises for a log that is not to be opened."""

    @property
    def logs(self) -> list[str]:
        """Names of the logs that primaries have asked for."""
        return sorted(self._held)

    def call(
        self, payload: memoryview, verb: object, name: object, *arguments: Any
    ) -> Callable[[], Awaitable[Any]]:
        """Not for callers: return what does what a primary asks for, and returns the answer.

        A write is begun by this, so that it is done in the order of the calls. InvalidSettingsError, with
        nothing done, for a call that no primary sends.
        """
        name = check_message(verb, name, arguments, payload.nbytes)
        if verb == LOOK:
            return partial(self._look_at, name)
        known = self._held.get(name)
        if known is not None and self._clock.monotonic() >= known.look_at:
            self._look_soon(name, known)
        if verb == "write" and known is not None:
            return self._begin_write(name, known, payload, *arguments)
        handler = VERBS.get(str(verb))

        async def begin() -> Any:
            if handler is _obey and known is not None:  # a write may have failed for that
                await self._look(name, known)
            held = await self._find(name)
            if handler is None:
                return await self._begin_write(name, held, payload, *arguments)()
            with self._noting_damage(name, handler, arguments):
                call = partial(handler, held, payload, *arguments)
                return await self._noting(name, handler, call)

        return begin

    async def _look_at(self, name: str) -> list[Any] | None:
        """Return a packed :class:`CopyLook`, None without a copy. Nothing is made or locked for it."""
        path = self.directory / name
        try:
            found = await self._lane.run(look_at_copy, self._fs, path)
        except OSError as error:
            raise describe_open(error, path) from error
        return None if found is None else found.pack()

    async def _noting(self, name: str, handler: object, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return what a call returns. As for writes, only a copy that takes part is sent what to show."""
        try:
            answer = await call()
        except WalError as error:
            if handler in (_check, _read) and isinstance(error, CorruptionError):
                self._troubles.warn(name, error)  # it counts, and is repaired
            else:
                self._troubles.note(name, error, is_look=handler in (_obey, _extents, _frames))
            raise
        if handler is _show:
            self._troubles.end(name)
        return answer

    def _begin_write(
        self,
        name: str,
        held: HeldReplica,
        payload: memoryview,
        epoch: int,
        primary: str,
        place: Sequence[int],
        seals: object,
        shown: int = 0,
        checks: object = 0,
    ) -> Callable[[], Awaitable[Any]]:
        """Begin a write; return what waits for it, and returns the answer."""
        by = Promise(epoch, primary)
        writing = held.copy.begin_write(
            Place(*place), [payload], seals=bool(seals), checks=bool(checks), by=by, floor=shown
        )

        async def answer() -> Any:
            try:
                durable = await writing
            except WalError as error:
                self._troubles.note(name, error)
                raise
            self._troubles.end(name)
            if held.replica.promise.author == by.author:
                held.log.show(shown)
            return [*durable, held.log.is_watched]

        return answer

    def is_damaged(self, name: str) -> bool:
        """Not for callers: return whether a copy is known to be damaged, so that another one should lead."""
        return name in self._unopened or bool(self.damaged(name))

    def note_mended(self, name: str, start: int) -> None:
        """Not for callers: take note that a segment is whole."""
        self._damaged.get(name, set()).discard(start)

    def damaged(self, name: str) -> Sequence[int]:
        """Not for callers: return the segments of a copy that are known to be damaged here."""
        held = self._held.get(name)
        first = 0 if held is None else held.replica.end.first  # retention deletes damage, too
        return sorted(start for start in self._damaged.get(name, ()) if start >= first)

    @contextlib.contextmanager
    def _noting_damage(
        self, name: str, handler: object, arguments: Sequence[Any]
    ) -> Iterator[None]:
        """Note in which segment a check or a read of another machine meets damage, until it is replaced."""
        try:
            yield
        except CorruptionError:
            if handler in (_check, _read):
                start = arguments[2] if handler is _check else arguments[2][0]
                self._damaged.setdefault(name, set()).add(start)
            raise
        if handler is _mend:  # if there is more, the next check finds it
            self.note_mended(name, arguments[2][0])
        elif handler is _cut:
            self._damaged.pop(name, None)

    async def log(self, name: str) -> CopyLog:
        """Return the copy of a log for readers. It ends when this machine leads the log, or the node closes.

        LogNotFoundError if there is no copy here, StorageUnavailableError if this machine leads the log, or
        there is nothing of it yet.
        """
        if check_log_name(name) not in self._held and name not in self._led:
            path = self.directory / name
            try:
                names = await self._lane.run(self._fs.list, path)
            except (FileNotFoundError, NotADirectoryError):
                names = []
            except OSError as error:
                raise describe_open(error, path) from error
            if PROMISE_NAME not in names:
                text = f"this machine has no copy of the log {name!r}"
                raise LogNotFoundError(text, location=str(path))
        found = (await self._find(name)).log
        await found.begin()
        return found

    @asynccontextmanager
    async def leading(self, name: str) -> AsyncIterator[Path]:
        """Not for callers: unlock a copy while this program is the log's primary; yields its directory.

        Primaries on other machines are refused meanwhile.
        """
        check_log_name(name)
        if self._is_closed:
            raise WalClosedError("the node is closed")
        self._led.add(name)
        try:
            async with self._opening:
                held = self._held.pop(name, None)
                if held is not None:
                    await held.aclose()
            yield self.directory / name
        finally:
            self._led.discard(name)

    async def forget(self, name: str) -> None:
        """Not for callers: unlock a copy that no primary needs here any more; its files stay."""
        self._troubles.forget(name)
        self._damaged.pop(name, None)
        self._unopened.discard(name)
        async with self._opening:
            held = self._held.pop(name, None)
            if held is not None:
                await held.aclose()

    async def aclose(self) -> None:
        """Close all copies; twice is allowed. Once cancelled it still does, before it raises."""
        self._is_closed = True
        await run_to_end(self._close_all())

    async def _close_all(self) -> None:
        async with self._opening:
            held, self._held = self._held, {}
            try:
                for one in held.values():
                    await one.aclose()
            finally:
                if self._is_locked:
                    self._is_locked = False
                    await self._lane.run_through(self._lock.release)
                    self._lane.close()
        if self._looking:  # they find nothing to look for
            await asyncio.wait(self._looking)

    def _left_open(self) -> Unclosed | None:
        if getattr(self, "_is_closed", True) or self._home.is_inherited:
            return None
        return Unclosed(f"the node with the copies below {self.directory}")

    async def _find(self, name: str) -> HeldReplica:
        known = self._held.get(name)
        if known is not None:
            return known
        self._check_open(name)
        async with self._opening:
            self._check_open(name)
            found = self._held.get(name)
            if found is None:
                look_at = self._clock.monotonic() + LOOK_SECONDS
                try:
                    path = self.directory / name
                    found = await HeldReplica.open(self._fs, path, look_at=look_at)
                except WalError as error:
                    if isinstance(error, CorruptionError):
                        self._unopened.add(name)
                    self._troubles.note(name, error, is_look=True)
                    raise
                self._unopened.discard(name)
                self._damaged.setdefault(name, set()).update(found.replica.damaged)
                self._held[name] = found
            return found

    def _look_soon(self, name: str, held: HeldReplica) -> None:
        """Look for the directory of a copy beside what is asked of it."""
        held.look_at = self._clock.monotonic() + LOOK_SECONDS
        task = start_task(self._look(name, held), name=f"walstore place of {name}")
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    async def _look(self, name: str, held: HeldReplica) -> None:
        """Give a copy up whose directory is not at its path any more: the next call makes a new one there."""
        async with self._opening:
            if self._held.get(name) is not held or await held.is_in_place():
                return
            del self._held[name]
            logger.warning(
                "the copy of %s is made again: its directory was removed, emptied or moved", name
            )
            self._damaged.pop(name, None)
            with contextlib.suppress(WalError):  # what it cannot write is lost anyway
                await held.aclose(is_lost=True)

    def _check_open(self, name: str) -> None:
        if self._is_closed:
            raise WalClosedError("the node is closed")
        if name in self._led:
            raise StorageUnavailableError(
                f"this machine leads the log {name!r}, as far as it knows"
            )
        self.check_used(name)


# -- what a primary may ask for, as ``messages.py`` has it -------------------------------------


async def _obey(
    held: HeldReplica,
    _: memoryview,
    epoch: int,
    primary: str,
    is_elected: object,
    generation: int = 0,
    joined: int = 0,
) -> Any:
    end = await held.copy.obey(
        epoch,
        primary,
        generation=generation,
        joined=joined,
        is_elected=bool(is_elected),
    )
    return [end.pack(), held.copy.is_whole]


async def _confirm(held: HeldReplica, _: memoryview, epoch: int, primary: str) -> Any:
    held.replica.promise.check_same(epoch, primary)
    return held.copy.is_whole


async def _show(held: HeldReplica, _: memoryview, epoch: int, primary: str, limit: int) -> Any:
    held.replica.promise.check_same(epoch, primary)
    held.log.show(limit)
    await held.copy.note_floor(limit, by=Promise(epoch, primary))
    return held.log.is_watched


async def _make_whole(held: HeldReplica, _: memoryview, epoch: int, primary: str) -> Any:
    await held.copy.make_whole(by=Promise(epoch, primary))


async def _extents(held: HeldReplica, _: memoryview, epoch: int, primary: str) -> Any:
    held.replica.promise.check_same(epoch, primary)
    return [list(extent) for extent in await held.copy.extents()]


async def _frames(
    held: HeldReplica, _: memoryview, epoch: int, primary: str, start: int, begin: int = 0
) -> Any:
    held.replica.promise.check_same(epoch, primary)
    return [list(frame) for frame in await held.copy.frames(start, begin)]


async def _read(
    held: HeldReplica, _: memoryview, epoch: int, primary: str, place: Sequence[int], size: int
) -> Any:
    held.replica.promise.check_same(epoch, primary)
    return await held.copy.read(Place(*place), min(size, _MOST_READ_BYTES))


async def _cut(
    held: HeldReplica,
    _: memoryview,
    epoch: int,
    primary: str,
    start: int,
    position: int,
    agreed: Sequence[int] = (),
    first: int = 0,
) -> Any:
    held.replica.promise.check_same(epoch, primary)
    at = (agreed[0], agreed[1]) if agreed else None
    if not start:
        held.log.restart()
    await held.copy.cut(
        start,
        position,
        agreed=at,
        first=first,
        by=Promise(epoch, primary),
    )
    if (
        held.replica.end.limit < held.log.limit
    ):  # the primary had it from elsewhere, or from nowhere
        held.log.restart(held.log.head)


async def _keep_hint(
    held: HeldReplica, payload: memoryview, epoch: int, primary: str, place: Sequence[int]
) -> Any:
    where = Place(*place)
    await held.copy.keep_hint(where, bytes(payload), by=Promise(epoch, primary))


async def _check(
    held: HeldReplica,
    _: memoryview,
    epoch: int,
    primary: str,
    start: int,
    begin: int = 0,
    most_bytes: int | None = None,
) -> Any:
    held.replica.promise.check_same(epoch, primary)
    return await held.copy.check(start, begin, most_bytes)


async def _mend(
    held: HeldReplica, payload: memoryview, epoch: int, primary: str, place: Sequence[int]
) -> Any:
    where = Place(*place)
    return await held.copy.mend(where, bytes(payload), by=Promise(epoch, primary))


async def _trim(held: HeldReplica, _: memoryview, epoch: int, primary: str, head: int) -> Any:
    await held.copy.trim(head, by=Promise(epoch, primary))
    if held.log.is_watched:
        held.log.note_head(held.replica.end.first)


VERBS: Final[Mapping[str, Callable[..., Awaitable[Any]]]] = {
    "obey": _obey,
    "confirm": _confirm,
    "make_whole": _make_whole,
    "extents": _extents,
    "frames": _frames,
    "read": _read,
    "cut": _cut,
    "trim": _trim,
    "keep_hint": _keep_hint,
    "show": _show,
    "check": _check,
    "mend": _mend,
}
