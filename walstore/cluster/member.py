"""ClusterMember: one machine of a cluster. It keeps copies of logs, and leads those that it is to lead.

A member knows the cluster through the key-value store that all share (``walstore.topology``): which machines
are there, which logs they keep, which of them leads each log. For each log that has a copy here a
:class:`HostedLog` decides. Losing the store stops no log: each leader goes on, and no other takes over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Self

from walstore.cluster.allocation import choose_copies
from walstore.cluster.allocator import allocate
from walstore.cluster.hosted_log import HostedLog, has_copy
from walstore.cluster.joining import check_directory, check_reached
from walstore.cluster.machine_looks import MachineQuestions
from walstore.cluster.member_entry import MemberEntry
from walstore.cluster.member_state import MemberState
from walstore.cluster.replication.node import ReplicaNode
from walstore.cluster.replication.replication import Replication
from walstore.cluster.stored_logs import SourceLog, StoredLog, StoredLogs
from walstore.cluster.view import ClusterView, removed_spec
from walstore.core.ports import Clock, FileSystem
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.resource import LoopGuard, MustClose, Opening, Unclosed
from walstore.core.runtime.statistics import Metrics
from walstore.core.runtime.tasks import start_task
from walstore.core.settings import Settings
from walstore.core.tier_port import Tier
from walstore.errors import (
    AccessDeniedError,
    InvalidSettingsError,
    LogNotFoundError,
    LogSuspendedError,
    StorageUnavailableError,
    WalError,
)
from walstore.log.wal import Wal
from walstore.net.wire.address import Address, parse_address
from walstore.topology.documents import (
    LOGS,
    PREFIX,
    LogSpec,
    check_log_name,
    check_web,
)
from walstore.topology.key_values import KeyValues
from walstore.topology.session import LEASE_SECONDS, Session

logger = logging.getLogger("walstore.cluster")

_PAUSE_SECONDS: Final = 0.5
_FIND_SECONDS: Final = 5.0
"""How long a client waits for somebody to lead the log that it asks for."""
_LATER_SECONDS: Final = 0.25
"""How long one that left a log waits for a later epoch of it, of which this machine may never hear."""


class ClusterMember(MemberState, MustClose):
    """One machine. Belongs to the event loop. Made by :meth:`open`; serves once :meth:`join` was called."""

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        keys: KeyValues,
        *,
        zone: str = "",
        lease_seconds: int = LEASE_SECONDS,
        patience_seconds: float = 10.0,
        replace_seconds: float = 600.0,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        settings: Settings | None = None,
        tier: Callable[[str, str], Tier] | None = None,
        stored: Callable[[str], Awaitable[SourceLog]] | None = None,
        metrics: Metrics | None = None,
        prefix: str = PREFIX,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> Opening[ClusterMember]:
        """Take the copies below ``directory``, each in a directory with its log's name.

        ``keys`` is the store that the cluster shares, such as
        ``walstore.topology.etcd.EtcdKeyValues.open("etcd://…")``; it stays open. ``zone`` names what fails
        together with this machine. ``lease_seconds``, 1 to 3600, is how long the others wait for it once it
        is silent. ``patience_seconds`` is that of :class:`walstore.Replication`, ``token`` and ``tls`` are
        what the machines ask each other for. A copy whose machine has been away for ``replace_seconds``, or
        is there with a copy that its leader has lost, is made again at another one; infinity for never.
        ``settings`` are those of logs that have none of their
        own. ``tier`` makes the tier of a log that has one, of its name and URL, each time it is opened:
        ``lambda name, url: CloudTier(url)``. ``stored`` opens a log that is read from a store, of its URL:
        ``lambda url: CloudLog.open(url)``.

        Serve it with ``Server.open(None, cluster=member, tcp=...)``, then call :meth:`join`.
        """

        async def open_it() -> ClusterMember:
            used = clock or SystemClock()
            session = await Session.open(keys, ttl_seconds=lease_seconds, clock=used)
            try:
                node = await ReplicaNode.open(directory, fs=fs, clock=used)
            except BaseException:
                await session.aclose()
                raise
            view = ClusterView(keys, clock=used, prefix=prefix)
            return cls(
                node,
                keys,
                session,
                view,
                used,
                zone=zone,
                lease_seconds=lease_seconds,
                replace_seconds=replace_seconds,
                replication={"patience_seconds": patience_seconds, "token": token, "tls": tls},
                settings=settings or Settings(),
                tier=tier,
                stored=StoredLogs(view, stored),
                wal={"metrics": metrics, "fs": fs, "clock": used},
            )

        return Opening(open_it)

    def __init__(
        self,
        node: ReplicaNode,
        keys: KeyValues,
        session: Session,
        view: ClusterView,
        clock: Clock,
        *,
        zone: str,
        lease_seconds: int,
        replace_seconds: float,
        replication: dict[str, Any],
        settings: Settings,
        tier: Callable[[str, str], Tier] | None,
        stored: StoredLogs,
        wal: dict[str, Any],
    ) -> None:
        """Not for callers; see :meth:`open`."""
        super().__init__(
            node,
            keys,
            session,
            view,
            clock,
            lease_seconds=lease_seconds,
            replace_seconds=replace_seconds,
            replication=replication,
            settings=settings,
            tier=tier,
            wal=wal,
        )
        self._web = ""
        self._zone = zone
        reached = Replication(nodes=[], replicas=1, **replication)
        self._questions = MachineQuestions(keys, view, reached, clock)
        self.stored: Final = stored
        """The logs that are read from stores here."""
        self._hosted: dict[str, HostedLog] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_directory_own = False
        self._home = LoopGuard("member")
        node.check_used = self._check_used

    async def join(self, address: str, *, web: str = "") -> None:
        """Take part: publish where this machine is, follow and lead. Returns when that has begun.

        ``address`` is where the others reach the server of this member, ``web`` its HTTP server if it has
        one, such as ``https://10.0.0.1:7421``. This connects to the address first, for at most
        ``patience_seconds``: InvalidSettingsError if another program answers there, a warning if nobody does,
        since the others may have a way that this machine has not. If the directory was that of another
        machine, this waits until that one is away, for at most two times ``lease_seconds``: WalLockedError
        if it stays. What the store raises.
        """
        if self._task is not None:
            raise RuntimeError("a member joins once")
        place = parse_address(address)
        self._web = check_web(web)
        await check_reached(self, place, Replication(nodes=[str(place)], **self._replication))
        await self.view.look()
        self.address = str(place)
        await check_directory(self)
        self._is_directory_own = True
        self.session.on_changed = self.view.notify
        self._task = start_task(self._run(), name=f"walstore member at {self.address}")

    async def make_log(
        self,
        name: str,
        *,
        replicas: int = 3,
        quorum: int | None = None,
        labels: Mapping[str, str] | None = None,
        tier: str = "",
        settings: Mapping[str, Any] | None = None,
    ) -> bool:
        """Make a log of the cluster; return False if there is one of that name, which stays as it is.

        ``replicas``, 1 to 16, are its copies in all, ``quorum`` those that must have a record: more than half
        of them, just so many if left out. With one copy nobody else leads the log while its machine is away,
        and what is acknowledged is on that disk alone. ``tier`` is the URL of the store that it is shipped
        to, ``settings`` are fields of :class:`walstore.Settings` that it has of its own. Machines are chosen
        by the cluster; :meth:`find`, and clients, wait for them.

        All machines are asked first, for at most some seconds, unless the cluster has the log:
        InvalidSettingsError if one has records of that name, as after the store lost what it knew. What the
        store raises; after OutcomeUnknownError call again.
        """
        old = await removed_spec(self.keys, check_log_name(name), self.view.prefix) or LogSpec()
        spec = old._replace(
            replicas=replicas,
            quorum=quorum,
            labels=dict(labels or {}),
            tier=tier or old.tier,
            settings=dict(settings or {}),
        ).check()
        return await self._make(name, old, spec)

    async def make_log_here(self, name: str) -> bool:
        """Make a log that this machine leads at first, with up to three copies; else as :meth:`make_log`.

        StorageUnavailableError if no other machine is there.
        """
        old = await removed_spec(self.keys, check_log_name(name), self.view.prefix)
        if old is not None:
            return await self._make(name, old, old)
        copies = choose_copies(self.address, self.view.members, self.view.specs)
        if len(copies) < 2:  # one copy is for those who ask for it
            raise StorageUnavailableError("the cluster has no second machine for a copy now")
        return await self._make(name, LogSpec(), LogSpec(len(copies)).with_copies(copies))

    async def _make(self, name: str, before: LogSpec, spec: LogSpec) -> bool:
        """Make a log unless there is one; ``before`` is what it had when it was taken out of the cluster."""
        key = self.view.key(LOGS, name)
        if await self.keys.get(key) is None:
            try:
                await self._questions.check_made(name, before, spec._replace(copies=before.copies))
            except InvalidSettingsError:
                if await self.keys.get(key) is None:  # else it was made meanwhile
                    raise
        swap = await self.keys.swap(key, spec.encode(), expected=0)
        await self.view.wait(lambda: self.view.revision >= swap.revision)
        return swap.happened

    async def wait_closing(self) -> None:
        """Return when this machine begins to leave: by :meth:`leave`, or because it :attr:`is_replaced`."""
        await self.view.wait(lambda: self.is_closing)

    async def leave(self) -> None:
        """Lead nothing any more: close the logs that are led here, so that others lead them.

        Called before its server stops, this lets clients find the next leader through it. Twice is allowed.
        """
        self.is_closing = True
        self.view.notify()
        if self._task is not None:
            await asyncio.wait([self._task])
        await self.session.aclose()

    async def aclose(self) -> None:
        """Leave, and release the copies. The lease is ended, so nobody waits. Twice is allowed."""
        await self.leave()
        await self.stored.aclose()
        await self.node.aclose()

    def _left_open(self) -> Unclosed | None:
        if not hasattr(self, "_home") or self.is_closing or self._home.is_inherited:
            return None
        return Unclosed(f"the member of a cluster at {self.node.directory}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # -- for the server ----------------------------------------------------------------------

    @property
    def led(self) -> dict[str, Wal]:
        """The logs that this machine leads now."""
        return {name: log.wal for name, log in self._hosted.items() if log.wal is not None}

    async def find(self, name: str | None, *, after: int = 0) -> Wal | Address:
        """Return a log that is led here, or where it is led. Waits a while for a leader, and for a short
        while for one with an epoch above ``after``.

        InvalidSettingsError without a name, LogNotFoundError, LogSuspendedError, AccessDeniedError for a log
        that is only read, StorageUnavailableError if nobody leads it.
        """
        if name is None:
            raise InvalidSettingsError(
                "a cluster has many logs; name one: connect(address, log=NAME), or ADDRESS?log=NAME"
            )
        check_log_name(name)
        self._check_joined()

        if after:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LATER_SECONDS):
                    await self.view.wait(lambda: self._is_later(name, after))

        def is_decided() -> bool:
            spec = self.view.specs.get(name)
            is_led = self._where(name) is not None
            is_known = spec is None or spec.suspended or bool(spec.source) or is_led
            return is_known or self.is_closing

        try:
            async with asyncio.timeout(_FIND_SECONDS):
                await self.view.wait(is_decided)
                while await self._check_not_suspended(name):
                    await self.view.wait(is_decided)
        except TimeoutError:
            raise StorageUnavailableError(f"nobody leads the log {name!r} now") from None
        if (spec := self.view.specs.get(name)) is not None and spec.source:
            raise AccessDeniedError(
                f"the log {name!r} is read from a store, and takes no appends here; "
                "read it with walstore.connect_readonly()"
            )
        found = self._where(name)
        if found is not None:
            return found
        if self.is_closing:
            raise StorageUnavailableError("this machine leaves the cluster; ask another one")
        raise LogNotFoundError(
            f"the cluster has no log {name!r}; make it with 'walstore logs apply'", location=name
        )

    async def _check_not_suspended(self, name: str) -> bool:
        """LogSuspendedError if a log is suspended; return whether it was, as far as was known here.

        The store is asked again: a client that connects after the log was resumed is not refused.
        """
        spec, key = self.view.specs.get(name), self.view.key(LOGS, name)
        if spec is None or not spec.suspended:
            return False
        revision = self.view.revisions.get(key)
        found = await self.keys.get(key)
        if found is not None and LogSpec.decode(found.value, key).suspended:
            raise LogSuspendedError(
                f"the log {name!r} is suspended, and keeps what was acknowledged; "
                f"resume it with 'walstore logs resume {name}'",
                location=name,
            )
        await self.view.wait(lambda: self.view.revisions.get(key) != revision)
        return True

    async def check_has_copy(self, name: str | None) -> None:
        """LogNotFoundError unless this machine has a copy of a log: files of an earlier time are none.

        LogSuspendedError if nobody is to use the copies now.
        """
        if name is None:
            return
        self._check_joined()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIND_SECONDS):
                while await self._check_not_suspended(name):
                    pass
        spec = self.view.specs.get(name)
        if spec is None or (self.address not in spec.copies and not spec.source):
            why = "the cluster has no such log" if spec is None else "copies are on other machines"
            raise LogNotFoundError(f"{name!r} is not here: {why}", location=name)

    async def use_stored(self, name: str) -> StoredLog | None:
        """Return a log that is read from a store, for one client; None for any other log.

        StorageUnavailableError if this machine leaves, and what :meth:`StoredLogs.use` raises.
        """
        spec = self.view.specs.get(name)
        if self.is_closing and spec is not None and spec.source:
            raise StorageUnavailableError("this machine leaves the cluster; ask another one")
        return await self.stored.use(name)

    def _check_joined(self) -> None:
        if self._task is None:
            raise StorageUnavailableError("this machine is starting, and knows no logs yet")

    @property
    def is_replaced(self) -> bool:
        """Whether another program serves a cluster at this address now."""
        return bool(self.replaced_by)

    @property
    def is_joined(self) -> bool:
        """Whether it takes part, and knows the logs of the cluster."""
        return self._task is not None

    async def moved(self, name: str, address: Address) -> None:
        """Return when another machine than the one at an address leads a log."""
        await self.view.wait(lambda: self._where(name) not in (None, address))

    def _is_later(self, name: str, epoch: int) -> bool:
        """Return whether nobody leads a log with this epoch any more, as far as is known here."""
        leader = self.view.leaders.get(name)
        return leader is None or leader.epoch == 0 or leader.epoch > epoch

    def _where(self, name: str) -> Wal | Address | None:
        hosted = self._hosted.get(name)
        if hosted is not None and hosted.wal is not None and not hosted.wal.is_closing:
            return hosted.wal
        leader = self.view.leaders.get(name)
        if leader is None or not leader.epoch or leader.address in ("", self.address):
            return None
        return parse_address(leader.address)

    # -- inside ------------------------------------------------------------------------------

    async def _run(self) -> None:
        entry = MemberEntry(self, zone=self._zone, web=self._web)
        async with asyncio.TaskGroup() as group:
            helpers = [
                group.create_task(self._guard(self.view.run, "the view of the cluster")),
                group.create_task(self._guard(entry.keep, "the entry of this machine")),
                group.create_task(self._guard(lambda: allocate(self), "the allocator")),
                group.create_task(self._guard(self.stored.run, "the logs in stores")),
            ]
            changed = self.view.subscribe()
            hosted: set[asyncio.Task[None]] = set()
            while not self.is_closing:
                changed.clear()
                for name in self.view.specs:
                    if name in self._hosted or not has_copy(self.view, name, self.address):
                        continue
                    log = self._hosted[name] = HostedLog(self, name)
                    task = group.create_task(self._host(log))
                    hosted.add(task)
                    task.add_done_callback(hosted.discard)
                # A primary that had not closed yet may have asked for a copy after it was given up.
                for name in self.node.logs:
                    if name not in self._hosted:
                        await self._forget(name)
                await changed.wait()
            if hosted:
                await asyncio.wait(hosted)
            for task in helpers:
                task.cancel()

    def _check_used(self, name: str) -> None:
        """StorageUnavailableError for a log whose files nobody is to open here now, and before this machine
        knows that its directory is no other one's.

        Its leader may have lost its lease, and the store, before the log was suspended. It cannot close it in
        order then; what it acknowledged is safe, and it acknowledges nothing any more.
        """
        if not self._is_directory_own:
            raise StorageUnavailableError("this machine is starting, and opens no copies yet")
        if self.view.is_idle(name):
            raise StorageUnavailableError(f"the log {name!r} is suspended, as far as is known here")

    async def _host(self, log: HostedLog) -> None:
        """Follow and lead a log while it has a copy in use here; then unlock the copy, whose files stay."""
        await self._guard(log.run, f"the log {log.name}")
        if not self.is_closing:
            await self._forget(log.name)
        self._hosted.pop(log.name, None)
        self.view.notify()  # it may be wanted again

    async def _forget(self, name: str) -> None:
        try:
            await self.node.forget(name)
        except WalError as error:  # its disk may have failed; it is unlocked
            logger.warning("closing the copy of %s failed: %s", name, error)

    async def _guard(self, run: Callable[[], Any], what: str) -> None:
        """Run something until it returns; a defect ends none of the others."""
        while True:
            try:
                await run()
                return
            except Exception:
                logger.exception("%s ended by a defect, and begins again", what)
                await self.clock.sleep(_PAUSE_SECONDS)
