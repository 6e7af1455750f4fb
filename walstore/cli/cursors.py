"""walstore cursors: how far who has read, and changing that."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walstore import CursorInfo
from walstore.cli.errors import UsageError
from walstore.cli.location import check_offset, is_url, to_directory
from walstore.cli.options import AsJson, Confirm, Location
from walstore.cli.output import complain, print_json, print_table
from walstore.cli.running import run_async
from walstore.cursors.directory import hold_cursors, list_cursors
from walstore.cursors.file import TAG_BYTES, CursorState, check_name
from walstore.cursors.queue import patiently
from walstore.errors import CorruptionError, LogNotFoundError
from walstore.files.locks import this_process
from walstore.files.log_snapshot import LogSnapshot
from walstore.records import from_timestamp_us
from walstore.runtime.clock import SystemClock

if TYPE_CHECKING:
    from uploader import CloudCursor, CloudCursors
    from uploader.format.manifest import Manifest
    from uploader.layouts.log_session import LogSession

CURSORS_EXAMPLES = """\b
Examples:
  walstore cursors data/orders
  walstore cursors data/orders --set billing 1200 --confirm
  walstore cursors data/orders --delete old-job --confirm
  walstore cursors s3://bucket/orders --set report 5000 --lease 86400 --confirm
"""

_PATIENCE_SECONDS = 2.0


def cursors(
    location: Location,
    *,
    move: Annotated[
        tuple[str, int] | None,
        typer.Option("--set", metavar="NAME OFFSET", help="Make the cursor stand at an offset."),
    ] = None,
    delete: Annotated[
        str | None, typer.Option("--delete", metavar="NAME", help="Remove the cursor and its pin.")
    ] = None,
    lease: Annotated[
        float | None,
        typer.Option(
            "--lease",
            metavar="SECONDS",
            help="With --set, in a store: hold what is behind it for so long only.",
        ),
    ] = None,
    confirm: Confirm = False,
    as_json: AsJson = False,
) -> None:
    """List the named cursors of a log, or move or remove one. May run next to the writer.

    A cursor's position is the offset of the next record to read; nothing from there on is removed by
    retention or collection. With --set or --delete it is a dry run without --confirm. --set creates a missing
    cursor; it keeps a lease, and in a directory extends it. Consumers that have the cursor open
    fail with their next commit, and continue from its new position once they are started again.
    """
    if move is not None and delete is not None:
        raise UsageError("give --set or --delete, not both")
    if lease is not None and (move is None or not is_url(location)):
        raise UsageError("--lease goes with --set, and with a store")
    if is_url(location):
        found = run_async(_change_stored(location, move, delete, lease, is_confirmed=confirm))
    else:
        found = _change_local(to_directory(location, "cursors"), move, delete, is_confirmed=confirm)
    if as_json:
        print_json(found)
    else:
        _print(found)


async def _change_stored(
    url: str,
    move: tuple[str, int] | None,
    delete: str | None,
    lease_seconds: float | None,
    *,
    is_confirmed: bool,
) -> dict[str, Any]:
    if move is not None:
        return await _move_stored(url, *move, seconds=lease_seconds, is_confirmed=is_confirmed)
    if delete is not None:
        return await _remove_stored(url, delete, is_confirmed=is_confirmed)
    return await _show_stored(url)


def _change_local(
    path: Path, move: tuple[str, int] | None, delete: str | None, *, is_confirmed: bool
) -> dict[str, Any]:
    view = LogSnapshot.open(path)
    if move is not None or delete is not None:
        name = _checked(move[0] if move else delete or "")
        if move is not None:
            check_offset(move[1], view.head, view.durable_limit)
        before = _find(view, name)
        if before is None and move is None:
            raise LogNotFoundError(f"there is no cursor {name!r} in {path}", location=str(path))
        if is_confirmed:
            run_async(_change_patiently(view, name, move[1] if move else None))
        else:
            complain(f"nothing was changed; give --confirm to {_verb(name, move, before)}")
    found = list_cursors(view.fs, view.path, SystemClock().now_us())
    return {
        "location": str(path),
        "head": view.head,
        "durable_limit": view.durable_limit,
        "cursors": [_local_entry(view, one) for one in found],
    }


def _verb(name: str, move: tuple[str, int] | None, before: CursorInfo | None) -> str:
    stands = "there is none yet" if before is None else f"it stands at {before.position}"
    if move is None:
        return f"remove cursor {name!r} ({stands})"
    return f"set cursor {name!r} to {move[1]} ({stands})"


def _checked(name: str) -> str:
    try:
        return check_name(name)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _find(view: LogSnapshot, name: str) -> CursorInfo | None:
    found = list_cursors(view.fs, view.path, SystemClock().now_us())
    return next((one for one in found if one.name == name), None)


async def _change_patiently(view: LogSnapshot, name: str, offset: int | None) -> None:
    """Change a cursor; wait while other processes hold the cursors, which takes milliseconds."""
    await patiently(
        SystemClock(),
        lambda: asyncio.to_thread(_change, view, name, offset),
        seconds=_PATIENCE_SECONDS,
    )


def _change(view: LogSnapshot, name: str, offset: int | None) -> None:
    """Move a cursor, or remove it if ``offset`` is None. Damaged ones are replaced."""
    owner = f"walstore cursors, {this_process()}"
    with hold_cursors(view.fs, view.path, owner=owner) as held:
        if offset is None:
            held.remove(name)
        else:
            if offset < held.head():
                now = LogSnapshot.open(view.path, fs=view.fs)
                check_offset(offset, now.head, now.durable_limit)
            now_us = SystemClock().now_us()
            info = _find(view, name)
            state = info.state if info is not None else None
            lease_us, revision = (state.lease_us, state.revision) if state else (0, 0)
            deadline_us = now_us + lease_us if lease_us else 0
            tag = os.urandom(TAG_BYTES)
            made = CursorState(offset, revision + 1, tag, now_us, lease_us, deadline_us, owner)
            held.write(name, made)
        held.sync()


def _print(found: dict[str, Any]) -> None:
    entries = found["cursors"]
    if not entries:
        complain(f"there are no cursors in {found['location']}")
        return
    print_table(
        ("name", "position", "behind", "pins", "updated", "owner"),
        [
            (
                one["name"],
                "-" if one["position"] is None else one["position"],
                "-" if one["behind"] is None else one["behind"],
                "yes" if one["pins"] else "no",
                _time(one["updated_us"]),
                one["problem"] or one["owner"],
            )
            for one in entries
        ],
    )


def _local_entry(view: LogSnapshot, info: CursorInfo) -> dict[str, Any]:
    state = info.state
    return {
        "name": info.name,
        "position": state.position if state else None,
        "behind": max(view.durable_limit - state.position, 0) if state else None,
        "pins": not info.is_expired,
        "lease_seconds": state.lease_us / 1e6 if state and state.lease_us else None,
        "expires_us": state.deadline_us if state and state.deadline_us else None,
        "updated_us": state.updated_us if state else None,
        "owner": state.owner if state else None,
        "problem": str(info.problem) if info.problem else None,
    }


def _time(timestamp_us: int | None) -> str:
    return "-" if timestamp_us is None else f"{from_timestamp_us(timestamp_us):%Y-%m-%d %H:%M:%S}"


async def _show_stored(url: str) -> dict[str, Any]:
    """Return the cursors of a log as the verb's JSON."""
    async with _open_stored(url) as (found, cursors):
        return await _stored_json(found, cursors)


async def _move_stored(
    url: str, name: str, offset: int, *, seconds: float | None, is_confirmed: bool
) -> dict[str, Any]:
    """Set a cursor to an offset, for some time or for good; return all cursors."""
    async with _open_stored(url) as (found, cursors):
        before = await cursors.load(name)
        manifest = found.root.manifest
        head, tail = manifest.oldest_offset, manifest.next_offset
        check_offset(offset, head, tail, beyond="has not reached the store")
        if not is_confirmed:
            complain(
                f"nothing was changed; give --confirm to set cursor {name!r} to {offset} "
                f"({_stands(before)})"
            )
        elif seconds is None:
            await cursors.rewind(name, offset)
        else:
            await cursors.pin(name, offset, seconds=seconds)
        return await _stored_json(found, cursors)


async def _remove_stored(url: str, name: str, *, is_confirmed: bool) -> dict[str, Any]:
    """Remove a cursor, damaged or not; return those that are left."""
    async with _open_stored(url) as (found, cursors):
        try:
            before = await cursors.load(name)
        except CorruptionError as error:
            await _remove_damaged(cursors, name, error, is_confirmed=is_confirmed)
            return await _stored_json(found, cursors)
        if before is None:
            raise LogNotFoundError(
                f"there is no cursor {name!r} at {found.store.url}", location=found.store.url
            )
        if is_confirmed:
            await cursors.delete(name)
        else:
            complain(
                f"nothing was changed; give --confirm to remove cursor {name!r} ({_stands(before)})"
            )
        return await _stored_json(found, cursors)


async def _remove_damaged(
    cursors: CloudCursors, name: str, error: CorruptionError, *, is_confirmed: bool
) -> None:
    """Remove a cursor that cannot be read, unless another program has replaced it since."""
    if not is_confirmed:
        complain(
            f"nothing was changed; give --confirm to remove cursor {name!r}; cursor {name!r} is damaged, and "
            f"nothing is collected before it is removed or put back ({error})"
        )
    elif await cursors.delete_damaged(name):
        complain(
            f"cursor {name!r} was damaged and is removed; collections no longer wait for it ({error})"
        )
    else:
        complain(f"cursor {name!r} was damaged, but another program has changed it; look again")


@asynccontextmanager
async def _open_stored(url: str) -> AsyncIterator[tuple[LogSession, CloudCursors]]:
    from uploader import CloudCursors
    from uploader.layouts.log_session import open_session

    async with open_session(url) as found:
        found.check_found()

        async def newest() -> Manifest:
            await found.root.load()
            return found.root.manifest

        yield (
            found,
            CloudCursors(
                found.store,
                newest=newest,
                retry=found.retry,
                clock=found.clock,
                writer=f"walstore cursors, {this_process()}",
            ),
        )


async def _stored_json(found: LogSession, cursors: CloudCursors) -> dict[str, Any]:
    manifest, now_us = found.root.manifest, found.clock.now_us()
    entries = [_stored_entry(one, manifest.next_offset, now_us) for one in await cursors.list()]
    return {
        "location": found.store.url,
        "head": manifest.oldest_offset,
        "tail": manifest.next_offset,
        "cursors": entries,
    }


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


def _stands(cursor: CloudCursor | None) -> str:
    return "there is none yet" if cursor is None else f"it stands at {cursor.position}"
