"""ClusterView: what the key-value store says of a cluster, kept up to date by a watch.

A store that is set back to an earlier state tells a watch nothing: what was taken back has no change of its
own. So everything is read again now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shlex
from collections.abc import Callable
from contextlib import aclosing
from typing import Final, TypeVar

from walstore.cluster.replication.copy_trouble import printable
from walstore.core.ports import Clock
from walstore.core.runtime.time_limit import within
from walstore.errors import (
    CorruptionError,
    FormatVersionError,
    InvalidSettingsError,
    WalError,
)
from walstore.net.wire.address import parse_address
from walstore.topology import documents
from walstore.topology.documents import PREFIX, Leader, LogSpec, Member, Synced, check_log_name
from walstore.topology.key_values import HistoryCompactedError, KeyValue, KeyValues

logger = logging.getLogger("walstore.cluster")

_PAUSE_SECONDS: Final = 0.2
_LOOK_SECONDS: Final = 5.0
"""How long it trusts the watch alone."""

_D = TypeVar("_D")


class ClusterView:
    """The newest state that is known. Belongs to the event loop; :meth:`run` keeps it new."""

    def __init__(self, keys: KeyValues, *, clock: Clock, prefix: str = PREFIX) -> None:
        """Of the cluster below ``prefix``."""
        self.prefix = prefix
        """Of all keys."""
        self.specs: dict[str, LogSpec] = {}
        """By name of the log."""
        self.leaders: dict[str, Leader] = {}
        """By name of the log; logs without a leader are missing."""
        self.revisions: dict[str, int] = {}
        """Of each key that is there."""
        self.members: dict[str, Member] = {}
        """By address."""
        self.left_out: dict[str, str] = {}
        """Keys that say nothing that can be used, and why: what was known before stays."""
        self.revision = 0
        """Of the store, when this was true; 0 before the first look."""
        self._keys = keys
        self._clock = clock
        self._items: dict[str, KeyValue] = {}
        """What was taken, of each key that is there."""
        self._subscribers: set[asyncio.Event] = set()

    def key(self, folder: str, name: str) -> str:
        """Return the key of a document."""
        return f"{self.prefix}{folder}{name}"

    def is_idle(self, name: str) -> bool:
        """Return whether a log is suspended, and its leader has closed it."""
        spec = self.specs.get(name)
        return spec is not None and spec.suspended and name not in self.leaders

    async def look(self) -> None:
        """Read everything again. Raises what the store raises."""
        snapshot = await self._keys.list(self.prefix)
        for key in self._items.keys() - snapshot.items.keys():
            self._take(key, None)
        for key, item in snapshot.items.items():
            if self._items.get(key) != item:
                self._take(key, item)
        self.revision = snapshot.revision
        self.notify()

    async def run(self) -> None:
        """Follow the store until cancelled; a store that does not answer is tried again."""
        while True:
            try:
                if not self.revision:
                    await self.look()
                await within(_LOOK_SECONDS, self._follow(), sleep=self._clock.sleep)
            except TimeoutError:
                with contextlib.suppress(WalError):  # the watch waits for the store
                    await self.look()
            except HistoryCompactedError:
                self.revision = 0
            except WalError as error:
                logger.warning("the cluster's store does not answer: %s", error)
                await self._clock.sleep(_PAUSE_SECONDS)

    async def _follow(self) -> None:
        marks = self.key(documents.SYNCED, "")  # only a takeover looks at them
        async with aclosing(self._keys.watch(self.prefix, after=self.revision)) as changes:
            async for events in changes:
                for event in events:
                    self._take(event.key, event.now)
                self.revision = events[-1].revision
                if any(not event.key.startswith(marks) for event in events):
                    self.notify()

    # -- waiting -----------------------------------------------------------------------------

    def subscribe(self) -> asyncio.Event:
        """Return an event that each change sets; clear it before looking."""
        event = asyncio.Event()
        self._subscribers.add(event)
        return event

    def unsubscribe(self, event: asyncio.Event) -> None:
        """Forget an event."""
        self._subscribers.discard(event)

    def notify(self) -> None:
        """Wake all that wait for a change."""
        for event in self._subscribers:
            event.set()

    async def wait(self, holds: Callable[[], bool]) -> None:
        """Return when something holds."""
        event = self.subscribe()
        try:
            while not holds():
                event.clear()
                await event.wait()
        finally:
            self.unsubscribe(event)

    # -- inside ------------------------------------------------------------------------------

    def _take(self, key: str, item: KeyValue | None) -> None:
        folder, slash, name = key.removeprefix(self.prefix).partition("/")
        if item is None:
            self._items.pop(key, None)
            self.revisions.pop(key, None)
        else:
            self._items[key] = item
            self.revisions[key] = item.revision
        left_out = self.left_out.pop(key, None)
        try:
            match folder + slash:
                case documents.LOGS:
                    _put(self.specs, check_log_name(name), item, LogSpec.decode)
                case documents.LEADERS:
                    _put(self.leaders, check_log_name(name), item, _decode_leader)
                case documents.MEMBERS:
                    _check_member(name)
                    _put(self.members, name, item, Member.decode)
                case documents.REMOVED:  # read when it is needed
                    _put({}, check_log_name(name), item, LogSpec.decode)
                case documents.SYNCED:
                    _put({}, check_log_name(name), item, Synced.decode)
                case other:
                    raise InvalidSettingsError(f"there are no keys below {self.prefix}{other}")
        except (CorruptionError, FormatVersionError, InvalidSettingsError) as error:
            if item is None:
                return
            why = self.left_out[key] = printable(f"{error}; {_advice(folder + slash, key, error)}")
            if left_out != why:
                logger.error("the key %s of the cluster is left out: %s", printable(key), why)


def _put(
    known: dict[str, _D], name: str, item: KeyValue | None, decode: Callable[[bytes, str], _D]
) -> None:
    if item is None:
        known.pop(name, None)
    else:
        known[name] = decode(item.value, item.key)


def _decode_leader(data: bytes, key: str) -> Leader:
    found = Leader.decode(data, key)
    if found.address:  # clients are sent there
        parse_address(found.address)
    return found


def _check_member(name: str) -> None:
    """Raise InvalidSettingsError unless a name is an address as machines write theirs."""
    if str(parse_address(name)) != name or not name.isprintable():
        raise InvalidSettingsError("no machine writes its address like that")


_ADVICE: Final = {
    documents.LOGS: "what was known of the log stays; write it again with 'walstore logs apply', once it is "
    "gone: {delete}",
    documents.LEADERS: "what was known of the leader stays, and nobody takes over; remove it: {delete}",
    documents.MEMBERS: "it counts as no machine; remove it: {delete}",
    documents.REMOVED: "a log is not made again under that name before it is gone: {delete}",
    documents.SYNCED: "the leader of the log writes it again; until then it tells of no copy that was "
    "put back from an older state",
}
"""What to do about a key that cannot be used, by its folder."""


def _advice(folder: str, key: str, error: Exception) -> str:
    if isinstance(error, FormatVersionError):
        return "update walstore on this machine"
    delete = f"etcdctl del {shlex.quote(key)}"
    other = "nothing uses it; a newer version may, or else remove it: {delete}"
    return _ADVICE.get(folder, other).format(delete=delete)


async def removed_spec(keys: KeyValues, name: str, prefix: str = PREFIX) -> LogSpec | None:
    """Return what a log had that was taken out of the cluster; None if there was none of that name."""
    key = f"{prefix}{documents.REMOVED}{name}"
    found = await keys.get(key)
    return None if found is None else LogSpec.decode(found.value, key)
