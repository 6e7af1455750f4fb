"""walstore cursors: how far who has read, and changing that."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from walstore import Cursor, CursorInfo, RemoteWal
from walstore.cli.errors import UsageError
from walstore.cli.location import connect_to, to_directory
from walstore.cli.options import AnyLocation, Confirm, option
from walstore.cli.output import complain, format_time
from walstore.cli.report import Listing, Report
from walstore.core.files.locks import this_process
from walstore.core.files.log_files import LogSnapshot
from walstore.core.offset_range import OffsetRange
from walstore.core.runtime.clock import SystemClock
from walstore.errors import CorruptionError, LogNotFoundError, OffsetTrimmedError
from walstore.location import is_address, is_url
from walstore.positions.cursor_state import TAG_BYTES, CursorState, check_name
from walstore.positions.cursors.directory import hold_cursors
from walstore.positions.cursors.kept import list_all_cursors, refuse_copy
from walstore.positions.cursors.queue import patiently

if TYPE_CHECKING:
    from uploader import CloudCursor
    from uploader.layouts.log_session import LogSession

CURSORS_EXAMPLES = """\
  walstore cursors data/orders
  walstore cursors data/orders --set billing 1200 --confirm
  walstore cursors data/orders --delete old-job --confirm
  walstore cursors unix:///run/orders.sock --set billing 1200 --confirm
  walstore cursors s3://bucket/orders --set report 5000 --lease 86400 --confirm
"""

_PATIENCE_SECONDS = 2.0


async def cursors(
    location: AnyLocation,
    *,
    move: Annotated[
        tuple[str, int] | None, option("--set NAME OFFSET", "Set the cursor to an offset.")
    ] = None,
    delete: Annotated[str | None, option("--delete NAME", "Remove the cursor and its pin.")] = None,
    lease: Annotated[
        float | None,
        option(
            "--lease SECONDS", "With --set, in a store: how long the cursor holds later records."
        ),
    ] = None,
    confirm: Confirm = False,
) -> Report:
    """List the named cursors of a log, or move or remove one. May run next to the writer.

    A cursor's position is the offset of the next record to read; retention and collection remove no record
    from there on. --set and --delete are a dry run without --confirm. --set creates a missing
    cursor; it keeps a lease, and in a directory extends it. Consumers that have the cursor open
    fail at their next commit, and continue from the new position when restarted.
    """
    if move is not None and delete is not None:
        raise UsageError("give --set or --delete, not both")
    if lease is not None and (move is None or is_address(location) or not is_url(location)):
        raise UsageError("--lease goes with --set, and with a store")
    found = await _change(location, move, delete, lease, is_confirmed=confirm)
    if not found["cursors"]:
        return Report(found, remarks=[f"there are no cursors in {found['location']}"])
    names = ("name", "position", "behind", "pins", "updated", "owner")
    return Report(found, Listing(names, map(_cells, found["cursors"])))


async def _change(
    location: str,
    move: tuple[str, int] | None,
    delete: str | None,
    lease_seconds: float | None,
    *,
    is_confirmed: bool,
) -> dict[str, Any]:
    """Move or remove a cursor, or say what would be done; return all cursors as the verb's JSON."""
    async with open_cursors(location) as log:
        if move is not None:
            name, offset = move
            before = await log.position(name)
            log.offsets.check_position(offset, not_written=log.not_written)
            if is_confirmed:
                await log.change(name, offset, lease_seconds)
            else:
                _complain_unchanged(f"set cursor {name!r} to {offset}", before)
        elif delete is not None:
            try:
                before = await log.position(delete)
            except CorruptionError as error:
                if not isinstance(log, _StoredCursors):
                    raise
                await log.remove_damaged(delete, error, is_confirmed=is_confirmed)
                return await log.to_json()
            if before is None:
                raise LogNotFoundError(
                    f"there is no cursor {delete!r} {log.where}", location=log.location
                )
            if is_confirmed:
                await log.change(delete, None)
            else:
                _complain_unchanged(f"remove cursor {delete!r}", before)
        return await log.to_json()


@asynccontextmanager
async def open_cursors(
    location: str, verb: str = "cursors"
) -> AsyncIterator[_LocalCursors | _ServedCursors | _StoredCursors]:
    """Open the cursors of a log for the time of a block; ``verb`` is who asks, for messages."""
    if is_address(location):
        async with await connect_to(location) as log:
            yield _ServedCursors(location, log)
        return
    if not is_url(location):
        path = to_directory(location, verb)
        yield _LocalCursors(path, await asyncio.to_thread(LogSnapshot.open, path))
        return
    from uploader.layouts.log_session import open_session

    async with open_session(location) as found:
        found.check_found()
        yield _StoredCursors(found)


def _complain_unchanged(what: str, before: int | None) -> None:
    stands = "there is none yet" if before is None else f"it stands at {before}"
    complain(f"nothing was changed; give --confirm to {what} ({stands})")


class _LocalCursors:
    """The cursors of a log directory."""

    not_written = ""

    def __init__(self, path: Path, view: LogSnapshot) -> None:
        self._view = view
        self.offsets = OffsetRange(view.head, view.durable_limit)
        self.location = str(path)
        self.where = f"in {path}"

    async def position(self, name: str) -> int | None:
        """Return where a cursor stands, 0 if it is damaged, or None if there is none."""
        try:
            check_name(name)
        except ValueError as error:
            raise UsageError(str(error)) from None
        found = await asyncio.to_thread(self._find, name)
        return None if found is None else found.position

    async def change(
        self, name: str, offset: int | None, _lease_seconds: float | None = None
    ) -> None:
        """Set a cursor, or remove it if ``offset`` is None; damaged or not. It keeps its lease, extended.

        Waits while other processes hold the cursors, which takes milliseconds.
        """
        await patiently(
            SystemClock(),
            lambda: asyncio.to_thread(self._change, name, offset),
            seconds=_PATIENCE_SECONDS,
        )

    async def to_json(self) -> dict[str, Any]:
        head, limit = self.offsets
        found = await asyncio.to_thread(self._list)
        entries = [_local_entry(one, limit) for one in found]
        return {"location": self.location, "head": head, "durable_limit": limit, "cursors": entries}

    def _list(self) -> list[CursorInfo]:
        return list_all_cursors(self._view.fs, self._view.path, SystemClock().now_us())

    def _find(self, name: str) -> CursorInfo | None:
        return next((one for one in self._list() if one.name == name), None)

    def _change(self, name: str, offset: int | None) -> None:
        view, owner = self._view, f"walstore cursors, {this_process()}"
        refuse_copy(view.fs, view.path)
        with hold_cursors(view.fs, view.path, owner=owner) as held:
            if offset is None:
                held.remove(name)
            else:
                if offset < held.head():
                    now = LogSnapshot.open(view.path, fs=view.fs)
                    OffsetRange(now.head, now.durable_limit).check_position(offset)
                now_us = SystemClock().now_us()
                info = self._find(name)
                state = info.state if info is not None else None
                lease_us, revision = (state.lease_us, state.revision) if state else (0, 0)
                deadline_us = now_us + lease_us if lease_us else 0
                tag = os.urandom(TAG_BYTES)
                made = CursorState(offset, revision + 1, tag, now_us, lease_us, deadline_us, owner)
                held.write(name, made)
            held.sync()


def _local_entry(info: CursorInfo, limit: int) -> dict[str, Any]:
    state = info.state
    return {
        "name": info.name,
        "position": state.position if state else None,
        "behind": max(limit - state.position, 0) if state else None,
        "pins": not info.is_expired,
        "lease_seconds": state.lease_us / 1e6 if state and state.lease_us else None,
        "expires_us": state.deadline_us if state and state.deadline_us else None,
        "updated_us": state.updated_us if state else None,
        "owner": state.owner if state else None,
        "problem": str(info.problem) if info.problem else None,
    }


class _ServedCursors:
    """The cursors of a served log."""

    not_written = ""

    def __init__(self, location: str, log: RemoteWal) -> None:
        self._log = log
        self.offsets = OffsetRange(log.head, log.limit)
        self.location = location
        self.where = f"at {location}"

    async def position(self, name: str) -> int | None:
        """Return where a cursor stands, 0 if it is damaged, or None if there is none."""
        try:
            check_name(name)
        except ValueError as error:
            raise UsageError(str(error)) from None
        found = await self._log.cursors()
        return next((one.position for one in found if one.name == name), None)

    async def change(
        self, name: str, offset: int | None, _lease_seconds: float | None = None
    ) -> None:
        """Set a cursor, or remove it if ``offset`` is None. It keeps its lease, extended."""
        if offset is None:
            await self._log.delete_cursor(name)
            return
        cursor = await self._log.cursor(name, start=offset)
        if cursor.position != offset:
            await cursor.rewind(offset)

    async def to_json(self) -> dict[str, Any]:
        head, limit = self.offsets
        entries = [_local_entry(one, limit) for one in await self._log.cursors()]
        return {"location": self.location, "head": head, "durable_limit": limit, "cursors": entries}


class _StoredCursors:
    """The cursors of a log in object storage."""

    not_written = "the offset has not reached the store"

    def __init__(self, found: LogSession) -> None:
        from uploader import CloudCursors

        self._found = found
        self._cursors = CloudCursors(
            found.store,
            newest=found.newest,
            retry=found.retry,
            clock=found.clock,
            writer=f"walstore cursors, {this_process()}",
        )
        self.location = found.store.url
        self.where = f"at {self.location}"

    @property
    def offsets(self) -> OffsetRange:
        """Those of the log, as its root was read last."""
        return self._found.root.manifest.offsets

    async def position(self, name: str) -> int | None:
        """Return where a cursor stands, or None if there is none; CorruptionError if it is damaged."""
        found = await self._cursors.load(name)
        return None if found is None else found.position

    async def change(
        self, name: str, offset: int | None, lease_seconds: float | None = None
    ) -> None:
        """Set a cursor, for some time or for good; remove one that can be read if ``offset`` is None."""
        if offset is None:
            await self._cursors.delete(name)
        else:
            await (await self._open(name, offset, lease_seconds)).rewind(offset)

    async def _open(self, name: str, offset: int, lease_seconds: float | None) -> Cursor:
        try:
            return await self._cursors.open(name, start=offset, lease_seconds=lease_seconds)
        except OffsetTrimmedError:
            found = await self._cursors.load(name)
            if found is None or found.position >= offset:
                raise
            # A pin that is over, and what it kept is collected: it is made anew.
            await self._cursors.delete(name)
            return await self._cursors.open(name, start=offset, lease_seconds=lease_seconds)

    async def remove_damaged(
        self, name: str, error: CorruptionError, *, is_confirmed: bool
    ) -> None:
        """Remove a cursor that cannot be read, unless another program has replaced it since."""
        if not is_confirmed:
            complain(
                f"nothing was changed; give --confirm to remove cursor {name!r}; cursor {name!r} is damaged, "
                f"and nothing is collected before it is removed or put back ({error})"
            )
        elif await self._cursors.delete_damaged(name):
            complain(
                f"cursor {name!r} was damaged and is removed; collections no longer wait for it ({error})"
            )
        else:
            complain(f"cursor {name!r} was damaged, but another program has changed it; look again")

    async def to_json(self) -> dict[str, Any]:
        (head, tail), now_us = self.offsets, self._found.clock.now_us()
        entries = [_stored_entry(one, tail, now_us) for one in await self._cursors.list()]
        return {"location": self.location, "head": head, "tail": tail, "cursors": entries}


def _stored_entry(cursor: CloudCursor, tail: int, now_us: int) -> dict[str, Any]:
    return {
        "name": cursor.name,
        "position": cursor.position,
        "behind": max(tail - cursor.position, 0),
        "pins": not cursor.is_expired(now_us),
        "lease_seconds": None,
        "expires_us": cursor.expires_us,
        "updated_us": cursor.epoch_us,
        "owner": cursor.writer,
        "problem": None,
    }


def _cells(entry: dict[str, Any]) -> Sequence[Any]:
    return (
        entry["name"],
        "-" if entry["position"] is None else entry["position"],
        "-" if entry["behind"] is None else entry["behind"],
        "yes" if entry["pins"] else "no",
        format_time(entry["updated_us"]),
        entry["problem"] or entry["owner"],
    )
