"""walstore logs reset-head and give-up: decide which of two histories a replicated log has."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from walstore.cli import cluster as stores
from walstore.cli.location import to_directory
from walstore.cli.options import Confirm, argument, option
from walstore.cli.report import Fields, Report
from walstore.cli.running import run_async
from walstore.cluster.replication.copy_marks import read_marks
from walstore.core.files.directory import PROMISE_NAME, SYNCED_NAME, pick_segments
from walstore.core.files.floor import NOTHING_NOTED, load_note
from walstore.core.files.locks import this_process
from walstore.core.files.posix import PosixFileSystem
from walstore.core.ports import FileSystem
from walstore.errors import ContentionError, CorruptionError, LogNotFoundError
from walstore.log.entered import Entered, enter_log
from walstore.log.log_end import recover_end
from walstore.topology.documents import PREFIX, SYNCED

RESET_HEAD_EXAMPLES = """\
  walstore logs reset-head /srv/walstore/orders
  walstore logs reset-head /srv/walstore/orders --cluster etcd://10.0.0.1:2379 --confirm
"""
GIVE_UP_EXAMPLES = """\
  walstore logs give-up /srv/walstore/orders
  walstore logs give-up /srv/walstore/orders --confirm
"""

Directory = Annotated[str, argument("DIRECTORY", "The log's directory on this machine.")]
MaybeCluster = Annotated[
    str,
    option(
        "--cluster ETCD",
        "The etcd that the machines share, if any: its state of the copies is removed.",
        envvar=stores.CLUSTER_VARIABLE,
        show_default=False,
    ),
]


def reset_head(
    directory: Directory, *, cluster: MaybeCluster = "", confirm: Confirm = False
) -> Report:
    """Make the copy in a directory the log, after other machines were lost.

    Acknowledged records that only lost machines had are then lost. Stop the machine's
    server, and empty the log's directories on the others, or give them up: with all copies present, this
    one is used. A dry run without --confirm.
    """
    path = to_directory(directory, "logs reset-head").absolute()
    found = run_async(_reset(path, cluster, is_confirmed=confirm))
    notes = _warnings(path, found, has_cluster=bool(cluster), is_confirmed=confirm)
    return Report({"reset": confirm, **found}, _lines(found), notes=notes)


def give_up(directory: Directory, *, confirm: Confirm = False) -> Report:
    """Give up the history of the copy in a directory: its machine then recreates the copy.

    For a copy that does not count because two histories of the log differ, if the other history is to be
    kept. Stop the machine's server, give the copy up, and start the server again. The files are moved to a
    directory next to it and kept. A dry run without --confirm.
    """
    path = to_directory(directory, "logs give-up").absolute()
    move = _move_aside if confirm else _nothing
    found = run_async(asyncio.to_thread(_with_copy, path, move))
    notes = [] if confirm else ["nothing was changed; give --confirm to give this copy up"]
    return Report({"given_up": confirm, **found}, _lines(found), notes=notes)


# -- inside ------------------------------------------------------------------------------------


async def _reset(path: Path, cluster: str, *, is_confirmed: bool) -> dict[str, Any]:
    marks = await _forget_marks(cluster, path.name, is_confirmed=False) if cluster else None
    look = partial(_with_copy, path, is_marked=marks is not None)
    found = await asyncio.to_thread(look, _nothing)
    if is_confirmed:
        # The marks first: if only they are gone, the copies decide as without a cluster.
        if marks is not None:
            await _forget_marks(cluster, path.name, is_confirmed=True)
        await asyncio.to_thread(look, _forget_promise)
    return {**found, "marks": marks}


def _warnings(
    path: Path, found: dict[str, Any], *, has_cluster: bool, is_confirmed: bool
) -> Iterator[str]:
    """Yield what to know before a copy is made the log."""
    if found["first"] is None:
        yield (
            f"{path} has no record of the log: if no other machine has one, the log begins again without "
            "records. Are the disks of all machines mounted?"
        )
    if found["damaged"]:
        yield (
            "what was noted of this copy is damaged, and --confirm removes it: nobody knows whether the copy "
            "lacks what it acknowledged"
        )
    if not is_confirmed:
        yield "nothing was changed; give --confirm to let this copy be the log"
    if not has_cluster:
        yield "if the machines share etcd, give --cluster: it remembers what the lost copies had"


def _lines(found: dict[str, Any]) -> Fields:
    return [(name.replace("_", " "), value) for name, value in found.items() if value is not None]


def _with_copy(
    path: Path, change: Callable[[Entered], dict[str, Any]], *, is_marked: bool = False
) -> dict[str, Any]:
    """Look at a copy, and change it; LogNotFoundError, WalLockedError.

    ``is_marked``: etcd knows copies of the log, so a log that was made here from a bucket is one, too.
    """
    if not (path.is_dir() and (is_marked or _is_copy(path))):
        raise LogNotFoundError(
            f"there is no copy of a replicated log in {path}", location=str(path)
        )
    entered = enter_log(path, fs=PosixFileSystem(), owner=this_process())
    try:
        return {"directory": str(path), **_look(entered), **change(entered)}
    finally:
        entered.release()


def _look(entered: Entered) -> dict[str, Any]:
    """Return what a copy has. If what it noted is damaged, nobody may cut its end, so that is not known."""
    end, note, damaged = None, NOTHING_NOTED, None
    try:
        note = load_note(entered.fs, entered.directory)
    except CorruptionError as error:
        damaged = error.path
    else:
        end = recover_end(entered.fs, entered.directory)
    return {
        "epoch": None if end is None else end.epoch,
        "first": min(pick_segments(entered.directory, entered.names), default=None),
        "limit": None if end is None else end.limit,
        "replicated_limit": note.visible_limit or None,
        "differs_from": note.durable_limit or None,
        "damaged": damaged,
    }


def _is_copy(path: Path) -> bool:
    """Return whether a directory has what only copies have; a reset may have removed the promise alone."""
    return (path / PROMISE_NAME).exists() or _is_note_damaged(PosixFileSystem(), path)


def _is_note_damaged(fs: FileSystem, path: Path) -> bool:
    try:
        load_note(fs, path)
    except CorruptionError:
        return True
    return False


def _nothing(_: Entered) -> dict[str, Any]:
    return {}


def _forget_promise(entered: Entered) -> dict[str, Any]:
    """Remove the promise, durably, and then a damaged note: a copy with a promise would count without it."""
    fs, directory = entered.fs, entered.directory
    with contextlib.suppress(FileNotFoundError):
        fs.remove(directory / PROMISE_NAME)
    fs.sync_directory(directory)
    if _is_note_damaged(fs, directory):
        fs.remove(directory / SYNCED_NAME)
        fs.sync_directory(directory)
    return {}


def _move_aside(entered: Entered) -> dict[str, Any]:
    path, fs = entered.directory, PosixFileSystem()
    places = (path.with_name(f"{path.name}.given-up-{number}") for number in itertools.count(1))
    kept = next(one for one in places if not one.exists())
    path.rename(kept)
    fs.sync_directory(path.parent)
    return {"kept_in": str(kept)}


async def _forget_marks(cluster: str, name: str, *, is_confirmed: bool) -> str | None:
    """Remove what etcd knows of the copies of a log; return its key, None if there is none.

    FormatVersionError for marks of a newer version, which stay.
    """
    key = f"{PREFIX}{SYNCED}{name}"
    async with stores.open_keys(cluster) as keys:
        found = await keys.get(key)
        if found is None:
            return None
        read_marks(found)
        if is_confirmed and not (await keys.swap(key, None, expected=found.revision)).happened:
            raise ContentionError(
                f"{key} was changed by a leader: {name} is led now; nothing was done"
            )
        return key
