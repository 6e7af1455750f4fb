"""What a machine finds out before it joins a cluster: whether another one has its address or its directory.

Two machines may be started with one copied command line, with one directory on a disk that both see, or with
a directory that was copied. The lock of the directory does not show that everywhere: some file systems lock
nothing between machines, and a copy has a lock of its own. So the directory remembers in a file whose it was.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
from pathlib import Path
from typing import Final, NamedTuple

from walstore.cluster.member_state import MemberState
from walstore.cluster.replication.remote_copy import client_of
from walstore.cluster.replication.replication import Replication
from walstore.core.files.directory import write_durably
from walstore.core.ports import FileSystem
from walstore.core.runtime.threads import Worker
from walstore.errors import (
    InvalidSettingsError,
    StorageUnavailableError,
    WalError,
    WalLockedError,
)
from walstore.net.wire.address import Address, is_unspecified
from walstore.topology.documents import Member

logger = logging.getLogger("walstore.cluster")

FILE_NAME: Final = ".machine"
"""In the directory with the copies: the machine that joined with it last."""
_VERSION: Final = 1
_PAUSE_SECONDS: Final = 0.5
_LEASES: Final = 2
"""For so many times its lease a machine waits for the entry of another one to end."""


class LastMachine(NamedTuple):
    """The machine that joined with a directory last."""

    address: str = ""
    host: str = ""

    @classmethod
    def load(cls, fs: FileSystem, directory: Path) -> LastMachine:
        """Return what a directory remembers; nothing if that is missing or damaged. Blocking; OSError."""
        try:
            match json.loads(fs.read(directory / FILE_NAME)):
                case {"version": 1, "address": str(address), "host": str(host)}:
                    return cls(address, host)
        except (FileNotFoundError, ValueError, RecursionError):
            pass
        return cls()

    def keep(self, fs: FileSystem, directory: Path) -> None:
        """Let a directory remember it. Blocking; OSError, and then the old one or this one is remembered."""
        data = {"version": _VERSION, **self._asdict()}
        write_durably(fs, directory / FILE_NAME, json.dumps(data).encode())


def check_host(host: str) -> None:
    """InvalidSettingsError for a host of which every machine thinks that it is itself."""
    if is_unspecified(host):
        raise InvalidSettingsError(
            f"no other machine reaches this one at {host}; give its own address (--advertise)"
        )


async def check_reached(member: MemberState, place: Address, settings: Replication) -> None:
    """InvalidSettingsError if the server at an address is not the one of a member; a warning if none is."""
    check_host(place.host)
    client = client_of(place, settings, clock=member.clock, make_tag=member.make_tag)
    try:
        await client.connect()
    except StorageUnavailableError as error:
        logger.warning(
            "this machine does not reach itself at %s, where the others look for it: %s",
            place,
            error,
        )
        return
    finally:
        await client.aclose()
    if client.welcome.get("node") != member.node.tag:
        with contextlib.suppress(WalError):
            await member.view.look()
        there = member.view.members.get(str(place))
        who = "" if there is None or not there.home else f", {there.home}"
        raise InvalidSettingsError(
            f"another program answers at {place}{who}: this machine, {member.home}, does not join. Give the "
            "address at which the others reach this machine (--advertise), of its own"
        )


async def check_directory(member: MemberState) -> None:
    """WalLockedError while the machine that had the directory of a member is there, at another place.

    An entry of a machine that was killed ends with its lease, so this waits for that. The directory then
    remembers the member.
    """
    directory, worker = member.node.directory, Worker("joining")
    own = LastMachine(member.address, socket.gethostname())
    try:
        last = await worker.run(LastMachine.load, member.files, directory)
        if last not in (own, LastMachine()):
            await _wait_until_gone(member, last)
        if last != own:
            await worker.run(own.keep, member.files, directory)
    except OSError as error:
        logger.warning("%s does not remember whose it is: %s", directory, error)
    finally:
        worker.close()


async def _wait_until_gone(member: MemberState, last: LastMachine) -> None:
    clock, directory = member.clock, member.node.directory
    seconds = _LEASES * member.lease_seconds
    end, first = clock.monotonic() + seconds, member.view.members.get(last.address)
    if first is not None:
        logger.warning(
            "%s was the directory of the machine at %s, on %s, which may run yet: this machine waits for its "
            "end, for at most %d seconds",
            directory,
            last.address,
            last.host,
            seconds,
        )
    while (there := member.view.members.get(last.address)) is not None:
        if clock.monotonic() >= end:
            raise _in_use(member, last, there)
        await clock.sleep(_PAUSE_SECONDS)
        await member.view.look()
    if last.address != member.address:
        logger.warning(
            "%s was the directory of the machine at %s, which is away. At %s it is another machine, whose "
            "copies count as new; to go on as the old one, start it with --advertise %s",
            directory,
            last.address,
            member.address,
            last.address,
        )


def _in_use(member: MemberState, last: LastMachine, there: Member) -> WalLockedError:
    directory = member.node.directory
    return WalLockedError(
        f"{directory} was the directory of the machine at {last.address}, on {last.host}, and a machine "
        f"runs at that address ({there.home or 'unknown'}): this machine, {member.home} for {member.address},"
        " does not join, and nothing was changed. If both see one directory, give each a directory of its "
        f"own; if this one was copied, empty it, or remove its file {FILE_NAME}",
        path=str(directory),
        owner=there.home or None,
    )
