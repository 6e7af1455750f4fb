"""walstore group: the groups of a log, removing one, and giving it its dead letters again."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Annotated, Any

from walstore import GroupInfo, Redriven, Wal
from walstore.cli.errors import UsageError
from walstore.cli.location import connect_to, to_directory
from walstore.cli.options import Confirm, argument, option
from walstore.cli.output import complain, format_count
from walstore.cli.report import Listing, Report
from walstore.core.files.directory import PROMISE_NAME
from walstore.core.files.log_files import LogSnapshot
from walstore.core.runtime.clock import SystemClock
from walstore.errors import LogNotFoundError
from walstore.location import is_address, is_url
from walstore.positions.cursors.kept import list_all_cursors
from walstore.positions.groups.group_mixin import list_groups
from walstore.positions.groups.group_settings import check_group_name
from walstore.positions.groups.journal import look_at_journals

GROUP_EXAMPLES = """\
  walstore group data/orders
  walstore group unix:///run/orders.sock --json
  walstore group unix:///run/orders.sock --delete old-workers --confirm
  walstore group unix:///run/orders.sock --redrive workers --limit 100
  walstore group s3://bucket/orders
"""


async def group(
    location: Annotated[
        str, argument("LOCATION", "A log directory, the address of a server, or a store URL.")
    ],
    *,
    delete: Annotated[str | None, option("--delete NAME", "Remove the group.")] = None,
    redrive: Annotated[
        str | None, option("--redrive NAME", "Make the group's dead letters jobs again.")
    ] = None,
    letter: Annotated[
        list[int] | None,
        option("--letter OFFSET", "With --redrive: only this letter; may be repeated."),
    ] = None,
    limit: Annotated[
        int | None, option("--limit N", "With --redrive: at most so many, oldest first.", min=1)
    ] = None,
    dead_letters: Annotated[
        str | None, option("--dead-letters STREAM", "With --redrive: where they are [NAME.dead].")
    ] = None,
    confirm: Confirm = False,
) -> Report:
    """List the groups of a log, remove one with all its state, or make its dead letters jobs again.

    A served log also reports the members' current work. While a program has a directory open, its floor may
    be some seconds old. --delete is a dry run without --confirm; the records stay. Only the log's owner can
    remove a group or redrive: use its address, or a directory that no program has open (else exit code 4).
    In a store any program can remove a group, and none redrive. A letter is redriven once, however often.
    """
    if delete is not None:
        _check_name(delete)
    given = {"--letter": letter, "--limit": limit, "--dead-letters": dead_letters}
    if redrive is not None:
        _check_name(redrive)
        if delete is not None:
            raise UsageError("give --delete or --redrive, not both")
        options = {"offsets": letter or None, "limit": limit, "dead_letters": dead_letters}
        found, redriven = await _redrive(location, redrive, options)
    elif name := next((name for name, value in given.items() if value), None):
        raise UsageError(f"{name} needs --redrive NAME")
    else:
        found, redriven = await _change(location, delete, is_confirmed=confirm), None
    groups = [_fields(one) for one in found]
    report: dict[str, Any] = {"location": location, "groups": groups}
    notes = []
    if redriven is not None:
        report["redriven"] = {"group": redrive, **redriven._asdict()}
        complain(f"{_count(redriven.letters)} of group {redrive!r} redriven, {redriven.left} left")
        notes += [
            f"letter {offset} lacks its value, and its record is gone or too large"
            for offset in redriven.skipped
        ]
    if not groups:
        return Report(report, remarks=[f"there are no groups in {location}"], notes=notes)
    notes += [f"group {one.name}: {one.problem}" for one in found if one.problem is not None]
    names = ("floor", "behind", "pending", "unsettled", "delivered", "dead")
    rows = [[_or_dash(one[name]) for name in ("name", *names)] for one in groups]
    return Report(report, Listing(("group", *names), rows), notes=notes)


async def _change(location: str, delete: str | None, *, is_confirmed: bool) -> list[GroupInfo]:
    if is_address(location):
        async with await connect_to(location) as wal:
            await _delete(wal, location, delete, is_confirmed=is_confirmed)
            return await wal.groups()
    if is_url(location):
        from uploader import CloudLog

        async with CloudLog.open(location) as log:
            await _delete(log, location, delete, is_confirmed=is_confirmed)
            return await log.groups()
    path = to_directory(location, "group")
    if delete is not None and is_confirmed:
        await asyncio.to_thread(lambda: LogSnapshot.open(path).close())  # else one would be made
        async with Wal.open(path) as wal:
            await _delete(wal, location, delete, is_confirmed=True)
    found = await asyncio.to_thread(_look, path)
    if delete is not None and not is_confirmed:
        _check(delete, [one.name for one in found], location)
    return found


async def _redrive(
    location: str, name: str, options: dict[str, Any]
) -> tuple[list[GroupInfo], Redriven]:
    """Redrive, and list the groups. LogNotFoundError if there is neither the group nor a letter of it."""
    if is_url(location) and not is_address(location):
        raise UsageError(
            "a log in a store is appended to where it is written: redrive at its directory or its server"
        )
    if is_address(location):
        opened: Any = await connect_to(location)
    else:
        path = to_directory(location, "group")
        await asyncio.to_thread(lambda: LogSnapshot.open(path).close())  # else one would be made
        opened = Wal.open(path)
    async with opened as wal:
        redriven = await wal.redrive_group(name, **options)
        found = await wal.groups()
    if not any(redriven) and name not in [one.name for one in found]:
        raise LogNotFoundError(f"there is no group {name!r} in {location}", location=location)
    return found, redriven


def _count(letters: list[int]) -> str:
    return f"{len(letters)} dead letter{'' if len(letters) == 1 else 's'}"


def _check_name(name: str) -> None:
    try:
        check_group_name(name)
    except ValueError as error:
        raise UsageError(str(error)) from None


async def _delete(log: Any, location: str, name: str | None, *, is_confirmed: bool) -> None:
    if name is None:
        return
    if not is_confirmed:
        _check(name, [one.name for one in await log.groups()], location)
    elif not await log.delete_group(name):
        raise LogNotFoundError(f"there is no group {name!r} in {location}", location=location)


def _check(name: str, names: list[str], location: str) -> None:
    if name not in names:
        raise LogNotFoundError(f"there is no group {name!r} in {location}", location=location)
    complain(f"nothing was changed; give --confirm to remove group {name!r}")


def _look(path: Path) -> list[GroupInfo]:
    view = LogSnapshot.open(path)
    try:
        found = list_all_cursors(view.fs, path, SystemClock().now_us())
        is_copy = PROMISE_NAME in view.fs.list(path)
        journals = None if is_copy else look_at_journals(view.fs, path)
        return list_groups(found, journals, {}, view.durable_limit)
    finally:
        view.close()


def _fields(info: GroupInfo) -> dict[str, Any]:
    now = {} if info.statistics is None else dataclasses.asdict(info.statistics)
    return {
        "name": info.name,
        "floor": info.floor,
        "behind": info.behind,
        "in_use": info.statistics is not None,
        "problem": None if info.problem is None else str(info.problem),
        **{
            name: now.get(name)
            for name in ("lag", "pending", "unsettled", "delivered", "redelivered", "dead")
        },
    }


def _or_dash(value: Any) -> Any:
    return "-" if value is None else format_count(value) if isinstance(value, int) else value
