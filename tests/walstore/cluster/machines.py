"""Members of a cluster in one process, with a key-value store in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from tests.clocks import SkippingClock
from tests.waiting import until
from tests.walstore.cluster.replication.cluster import PATIENCE_SECONDS
from walstore import RemoteWal, Settings, Wal, connect
from walstore.cluster.member import ClusterMember
from walstore.http import HttpServer
from walstore.serve import Server
from walstore.testing import ManualClock
from walstore.topology.documents import PREFIX, LogSpec
from walstore.topology.memory import MemoryClient, MemoryKeyValues

SMALL = Settings(segment_bytes=65536)
LEASE_SECONDS = 60


class Machine:
    """One machine: a member and its server."""

    def __init__(
        self,
        path: Path,
        keys: MemoryClient,
        *,
        directory: Path | None = None,
        web: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """With its socket in ``path``, and its copies, too, or in ``directory``."""
        path.mkdir(exist_ok=True)
        self.path = path
        self.directory = directory or path
        self.keys = keys
        self.options = options
        self.web_options = web
        self.clock = SkippingClock(longest_pause=0.3)
        """Leases are renewed often, however long they last."""
        self.web: HttpServer | None = None
        self.member: ClusterMember | None = None
        self.server: Server | None = None

    @property
    def address(self) -> str:
        return f"unix://{self.path}/s.sock"

    async def start(self, address: str = "") -> None:
        """Start and join, at another address perhaps."""
        options = {
            "lease_seconds": LEASE_SECONDS,
            "patience_seconds": PATIENCE_SECONDS,
            "settings": SMALL,
            "clock": self.clock,
            **self.options,
        }
        self.member = await ClusterMember.open(self.directory, self.keys, **options)
        tokens = (self.web_options or {}).get("tokens")
        self.server = await Server.open(
            None, cluster=self.member, unix=self.path / "s.sock", tokens=tokens
        )
        place = ""
        if self.web_options is not None:
            self.web = await HttpServer.open(
                None, "127.0.0.1:0", cluster=self.member, **self.web_options
            )
            place = self.web.addresses[0]
        await self.member.join(address or self.address, web=place)

    async def stop(self) -> None:
        member, self.member = self.member, None
        server, self.server = self.server, None
        web, self.web = self.web, None
        if web is not None:
            await web.aclose()
        if member is not None and server is not None:
            await server.aclose()
            await member.aclose()

    def led(self, name: str = "orders") -> Wal | None:
        return None if self.member is None else self.member.led.get(name)


class Machines:
    """A cluster; use as a context manager. No lease ends by itself, however slow the machine is."""

    def __init__(self, path: Path, size: int = 3, **options: Any) -> None:
        self.store = MemoryKeyValues(ManualClock())
        self.all = [
            Machine(path / f"m{number}", self.store.client(f"machine {number}"), **options)
            for number in range(size)
        ]

    async def __aenter__(self) -> Self:
        for machine in self.all:
            await machine.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for machine in self.all:
            machine.keys.cut_off = machine.keys.hangs = False
        for machine in self.all:
            await machine.stop()

    def end_lease(self, machine: Machine) -> None:
        """End the lease of a machine that does not reach the store, as its time would."""
        assert machine.member is not None
        self.store.revoke(machine.member.session.lease)

    async def apply(self, name: str = "orders", **fields: Any) -> None:
        """Make or change the spec of a log."""
        key = f"{PREFIX}logs/{name}"
        found = self.store.get(key)
        old = LogSpec() if found is None else LogSpec.decode(found.value, key)
        value = old._replace(**fields).check().encode()
        swap = self.store.swap(key, value, 0 if found is None else found.revision, 0)
        assert swap.happened

    def spec(self, name: str = "orders") -> LogSpec:
        key = f"{PREFIX}logs/{name}"
        found = self.store.get(key)
        assert found is not None
        return LogSpec.decode(found.value, key)

    def leader(self, name: str = "orders") -> Machine | None:
        """Return the machine that leads a log, if one has it open."""
        leaders = [one for one in self.all if one.led(name) is not None]
        return leaders[0] if len(leaders) == 1 else None

    async def led(self, name: str = "orders", *, by: Machine | None = None) -> Machine:
        """Wait until a log is led, by one machine or another."""
        await until(lambda: self.leader(name) is not None and by in (None, self.leader(name)))
        found = self.leader(name)
        assert found is not None
        return found

    async def connect(self, name: str = "orders", **options: Any) -> RemoteWal:
        return await connect([machine.address for machine in self.all], log=name, **options)


async def read(machines: Machines, name: str = "orders") -> list[bytes]:
    async with await machines.connect(name) as remote, remote.reader(follow=False) as reader:
        return [record.value async for record in reader]


def present(cluster: Machines) -> list[str]:
    leader = cluster.leader()
    wal = None if leader is None else leader.led()
    if wal is None:
        return []
    return [copy.address for copy in wal.statistics().copies if copy.is_present]
