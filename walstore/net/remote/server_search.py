"""Finding the server that has a log, among the places where it may be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from walstore.core.runtime.error_mapping import copy_error
from walstore.errors import (
    AccessDeniedError,
    FormatVersionError,
    InvalidSettingsError,
    LogSuspendedError,
    StorageUnavailableError,
    WalError,
)
from walstore.net.remote.server_connection import ServerConnection
from walstore.net.wire.address import Address

_FINAL: Final = (AccessDeniedError, FormatVersionError, InvalidSettingsError)
"""Refusals that no takeover changes. That a server has no such log is none: it may get it."""


class FoundServer(NamedTuple):
    """A server that has the log."""

    address: Address
    link: ServerConnection
    welcome: dict[str, Any]

    @property
    def epoch(self) -> int:
        """Of the log, how often it was opened; 0 if the server serves something else."""
        return epoch_of(self.welcome)


def epoch_of(welcome: dict[str, Any]) -> int:
    """Return the epoch of the log that a server greets with; 0 if it names none."""
    about = welcome.get("log")
    found = about.get("epoch", 0) if isinstance(about, dict) else 0
    return found if isinstance(found, int) else 0


async def find_server(
    addresses: Sequence[Address], join: Callable[[Address], Awaitable[FoundServer]]
) -> FoundServer:
    """Return the first server that ``join`` succeeds with; all are asked at once.

    Of several that answer at the same moment the one with the newest epoch. Raises the error of the only
    address, or that in which all agree if no takeover could change it, as a wrong token; LogSuspendedError if
    one of them said so. Else it raises StorageUnavailableError with what each of them said, which is
    retriable unless no takeover could change any of it.
    """
    if len(addresses) == 1:
        return await join(addresses[0])
    loop = asyncio.get_running_loop()
    asked = {loop.create_task(_ask(join, address)): address for address in addresses}
    found: list[FoundServer] = []
    refusals: list[tuple[Address, WalError]] = []
    waiting = set(asked)
    try:
        while waiting and not found:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                answer = task.result()
                if isinstance(answer, FoundServer):
                    found.append(answer)
                else:
                    refusals.append((asked[task], answer))
    finally:
        best = max(found, key=lambda one: one.epoch, default=None)
        try:
            await _end(asked, best)
        except BaseException:
            if best is not None:
                best.link.abort()
            raise
    if best is None:
        raise _refused(refusals)
    return best


async def _ask(
    join: Callable[[Address], Awaitable[FoundServer]], address: Address
) -> FoundServer | WalError:
    try:
        return await join(address)
    except WalError as error:
        return error


async def _end(
    asked: dict[asyncio.Task[FoundServer | WalError], Address], best: FoundServer | None
) -> None:
    """End all connections but the best one."""
    for task in asked:
        task.cancel()
    try:
        await asyncio.wait(asked)
    finally:
        for task in asked:
            if task.done() and not task.cancelled() and task.exception() is None:
                answer = task.result()
                if isinstance(answer, FoundServer) and answer is not best:
                    answer.link.abort()


def _refused(refusals: Sequence[tuple[Address, WalError]]) -> WalError:
    for _, one in refusals:
        if isinstance(one, LogSuspendedError):  # the others wait in vain, or are away
            return copy_error(one)
    is_final = all(isinstance(error, _FINAL) for _, error in refusals)
    if is_final and len({type(error) for _, error in refusals}) == 1:
        return copy_error(refusals[0][1])
    said = "; ".join(f"{address}: {error}" for address, error in refusals)
    error = StorageUnavailableError(f"no server has the log: {said}", retriable=not is_final)
    error.__cause__ = refusals[0][1]
    return error
