"""LogCatalog: the logs that a server serves, by name: one log, those of a store, or those of a cluster.

A server asks what can be done with the logs, and never of which kind they are. Programs have a
:class:`walstore.WalStore`, which has none of these questions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from walstore.errors import InvalidSettingsError, LogNotFoundError
from walstore.log.wal import Wal

_T = TypeVar("_T")
_MOST_CHARS: Final = 200


class LogCatalog(ABC):
    """Logs by name. The logs stay their owner's. Belongs to their event loop."""

    can_create = True
    """Whether a log is made by naming it."""
    default: str | None = None
    """Name of the log of those who name none; None if they have to."""
    has_lifetimes = True
    """Whether logs can be deleted here, now or when their time is over."""

    @property
    @abstractmethod
    def is_closing(self) -> bool:
        """Whether there are no logs any more, or not yet."""

    @abstractmethod
    def opened(self) -> Mapping[str, Wal]:
        """Return the logs that are open here now."""

    def failed(self) -> list[Wal]:
        """Return the logs here that failed, or whose shipping ended or waits for an operator."""
        return [wal for wal in self.opened().values() if has_failed(wal)]

    @abstractmethod
    async def logs(self) -> list[str]:
        """Return the names of all logs, open or not, in order."""

    @abstractmethod
    async def wal(self, name: str) -> Wal:
        """Return a log, made if there is none and :attr:`can_create`. As :meth:`walstore.WalStore.wal`."""

    @abstractmethod
    async def find(self, name: str) -> Wal | None:
        """As :meth:`wal`, but None if there is no log of this name; none is made.

        One step: a log that is deleted meanwhile is found, or it is not.
        """

    async def make(self, name: str, handler: Callable[[Wal], Awaitable[_T]]) -> _T:
        """Make a log, and return what ``handler`` makes of it."""
        return await handler(await self.wal(name))

    async def delete(self, name: str) -> None:
        """Delete a log, where logs have lifetimes. LogNotFoundError if there is none."""
        raise InvalidSettingsError("logs are not deleted here")

    async def announce(self, where: str | None) -> None:  # noqa: B027 - where nobody can find it locked
        """Let a WalLockedError of others say where the logs are served, or no longer."""

    @property
    def cluster(self) -> dict[str, Any] | None:
        """The machines of a cluster and its logs, for the page; None elsewhere."""
        return None


def has_failed(wal: Wal) -> bool:
    """Return whether a log, or its shipping, does not go on by itself."""
    now = wal.statistics()
    return now.failure is not None or now.tier_failure is not None


class OneLog(LogCatalog):
    """One log, whose name is that of its directory."""

    can_create = has_lifetimes = False

    def __init__(self, wal: Wal) -> None:
        """Of a log that is open."""
        self._wal = wal
        self.default = wal.path.name

    @property
    def is_closing(self) -> bool:
        """Whether the log is closed, or about to be."""
        return self._wal.is_closing

    def opened(self) -> Mapping[str, Wal]:
        """Return the log, also if it is closed."""
        return {self._wal.path.name: self._wal}

    async def logs(self) -> list[str]:
        """Return its name."""
        return [self._wal.path.name]

    async def wal(self, name: str) -> Wal:
        """Return it, also if it is closed. LogNotFoundError for another name."""
        if name != self.default:
            text = f"this server serves the log {self.default!r}"
            raise LogNotFoundError(text, location=name[:_MOST_CHARS])
        return self._wal

    async def find(self, name: str) -> Wal | None:
        """Return it, if that is its name."""
        return self._wal if name == self.default else None

    async def announce(self, where: str | None) -> None:
        """As :meth:`LogCatalog.announce`."""
        await self._wal.announce(where)


class ManyLogs(ABC):
    """What a program has that has many logs."""

    @property
    @abstractmethod
    def catalog(self) -> LogCatalog:
        """Not for callers: the logs, as a server has them."""


def catalog_of(logs: Wal | ManyLogs) -> LogCatalog:
    """Return the catalog of what a program gave a server to serve."""
    return logs.catalog if isinstance(logs, ManyLogs) else OneLog(logs)
