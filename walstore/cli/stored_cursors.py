"""Cursors of a log in object storage, for ``walstore cursors``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from walstore.cli.output import complain
from walstore.cli.source import check_offset
from walstore.errors import CorruptionError, LogNotFoundError
from walstore.files.locks import this_process

if TYPE_CHECKING:
    from uploader import CloudCursor, CloudCursors
    from uploader.format.manifest import Manifest
    from uploader.layouts.log_session import LogSession


async def show(url: str) -> dict[str, Any]:
    """Return the cursors of a log as the verb's JSON."""
    async with _open(url) as (found, cursors):
        return await _to_json(found, cursors)


async def move(
    url: str, name: str, offset: int, *, seconds: float | None, is_confirmed: bool
) -> dict[str, Any]:
    """Set a cursor to an offset, for some time or for good; return all cursors."""
    async with _open(url) as (found, cursors):
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
        return await _to_json(found, cursors)


async def remove(url: str, name: str, *, is_confirmed: bool) -> dict[str, Any]:
    """Remove a cursor, damaged or not; return those that are left."""
    async with _open(url) as (found, cursors):
        try:
            before = await cursors.load(name)
        except CorruptionError as error:
            await _remove_damaged(cursors, name, error, is_confirmed=is_confirmed)
            return await _to_json(found, cursors)
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
        return await _to_json(found, cursors)


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
async def _open(url: str) -> AsyncIterator[tuple[LogSession, CloudCursors]]:
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


async def _to_json(found: LogSession, cursors: CloudCursors) -> dict[str, Any]:
    manifest, now_us = found.root.manifest, found.clock.now_us()
    entries = [_entry(one, manifest.next_offset, now_us) for one in await cursors.list()]
    return {
        "location": found.store.url,
        "head": manifest.oldest_offset,
        "tail": manifest.next_offset,
        "cursors": entries,
    }


def _entry(cursor: CloudCursor, tail: int, now_us: int) -> dict[str, Any]:
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
