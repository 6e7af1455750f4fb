"""A network between machines of a cluster, their etcd and clients, in which any way can be cut.

Two kinds. :class:`Namespaces` gives each machine a network namespace of the kernel's, on a bridge: what is
cut is lost on its way, and nobody is told. That needs root. :class:`Proxies` passes bytes on between Unix
sockets, for everybody; it can hold them, lose them, or end the connections. It knows who connects by the
process.

A way has a direction. Cut only one, and a machine hears others that do not hear it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import functools
import os
import shutil
import socket
import ssl
import struct
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any, Final, Literal

MACHINES: Final = ("a", "b", "c")
STORE: Final = "store"
CLIENTS: Final = "clients"
EVERYBODY: Final = (*MACHINES, STORE, CLIENTS)

How = Literal["lose", "hold", "reset"]
"""Bytes are lost; or arrive once the way is open again; or connections end, and new ones, too."""

Way = tuple[str, str]
"""From whom to whom."""


class Network(ABC):
    """Who reaches whom."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        """What ``connect`` needs besides the addresses."""
        self.environment: dict[str, str] = {}
        """What machines need."""

    @abstractmethod
    def address(self, machine: str) -> str:
        """Return where others reach a machine."""

    @abstractmethod
    def store(self, machine: str) -> str:
        """Return where a machine reaches etcd."""

    @abstractmethod
    def command(self, machine: str, serve: Sequence[str]) -> list[str]:
        """Return the command that serves there, of the one that serves anywhere."""

    @abstractmethod
    def started(self, machine: str, process: int) -> None:
        """Take note of a machine's process."""

    @abstractmethod
    async def cut(self, ways: Sequence[Way], how: How = "lose") -> None:
        """Cut some ways."""

    @abstractmethod
    async def heal(self) -> None:
        """Open all ways."""


def between(these: str | Sequence[str], others: str | Sequence[str]) -> list[Way]:
    """Return the ways between two sides, in both directions."""
    ways = from_to(these, others)
    return [*ways, *((two, one) for one, two in ways)]


def from_to(these: str | Sequence[str], others: str | Sequence[str]) -> list[Way]:
    """Return the ways from one side to another."""
    sources, targets = ([one] if isinstance(one, str) else one for one in (these, others))
    return [(one, two) for one in sources for two in targets if one != two]


def _dies_with_us(command: Sequence[str]) -> list[str]:
    """Let the system kill a command when this program dies, where there is a program for that."""
    setpriv = shutil.which("setpriv")
    return [*((setpriv, "--pdeathsig", "KILL") if setpriv else ()), *command]


# -- proxies -----------------------------------------------------------------------------------


class _Relay:
    """Listens for one of the network, and passes on what comes if the way is open."""

    def __init__(self, network: Proxies | None, target: str, connect: Any) -> None:
        self._network = network
        self._target = target
        self._connect = connect
        self.source = CLIENTS
        """Who connects, if that cannot be seen."""
        self._passed: list[tuple[Way, asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, **place: Any) -> asyncio.Server:
        """Listen at a place."""
        if "path" in place:
            self._server = await asyncio.start_unix_server(self._serve, **place)
        else:
            self._server = await asyncio.start_server(self._serve, **place)
        return self._server

    async def aclose(self) -> None:
        """End all."""
        if self._server is not None:
            self._server.close()
        self.end(lambda _: True)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def end(self, is_meant: Any) -> None:
        """End connections, by their way."""
        for way, *writers in self._passed:
            if is_meant(way):
                for writer in writers:
                    writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._pass_both(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _pass_both(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        source = self.source
        if self._network is not None:
            source = self._network.who(writer.get_extra_info("socket"), source)
        way, back = (source, self._target), (self._target, source)
        if self._network is not None and self._network.is_reset(way):
            return
        there, target = await self._connect()
        entry = (way, writer, target)
        self._passed.append(entry)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(way, reader, target))
                group.create_task(self._pass(back, there, writer))
        except* OSError:
            pass
        finally:
            self._passed.remove(entry)
            target.transport.abort()

    async def _pass(
        self, way: Way, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        while data := await source.read(1 << 16):
            if self._network is None or await self._network.passes(way):
                sink.write(data)
                await sink.drain()
        if self._network is not None:
            await self._network.passes(way)  # that a connection has ended is said in bytes, too
        sink.transport.abort()


class Proxies(Network):
    """Between machines that are processes with Unix sockets, and etcd at this machine."""

    def __init__(self, directory: Path, etcd: str) -> None:
        super().__init__()
        self._directory = directory
        self._etcd_port = int(etcd.rpartition(":")[2])
        self._relays: list[_Relay] = []
        self._stores: dict[str, int] = {}
        self._processes: dict[int, str] = {}
        self._cut: dict[Way, How] = {}
        self._lossy: set[Way] = set()
        self._opened = asyncio.Event()

    async def open(self) -> None:
        """Listen for all machines."""

        def to_machine(name: str) -> Any:
            return lambda: asyncio.open_unix_connection(self._directory / f"{name}.own")

        for name in MACHINES:
            relay = _Relay(self, name, to_machine(name))
            self._relays.append(relay)
            await relay.listen(path=self._directory / f"{name}.sock")
            relay = _Relay(
                self, STORE, lambda: asyncio.open_connection("127.0.0.1", self._etcd_port)
            )
            relay.source = name
            self._relays.append(relay)
            server = await relay.listen(host="127.0.0.1", port=0)
            self._stores[name] = server.sockets[0].getsockname()[1]

    async def aclose(self) -> None:
        """End all connections."""
        for relay in self._relays:
            await relay.aclose()

    def address(self, machine: str) -> str:
        return f"unix://{self._directory}/{machine}.sock"

    def store(self, machine: str) -> str:
        return f"etcd://127.0.0.1:{self._stores[machine]}"

    def command(self, machine: str, serve: Sequence[str]) -> list[str]:
        places = ["--unix", f"{self._directory}/{machine}.own"]
        return _dies_with_us([*serve, *places, "--advertise", self.address(machine)])

    def started(self, machine: str, process: int) -> None:
        self._processes[process] = machine

    async def cut(self, ways: Sequence[Way], how: How = "lose") -> None:
        self._cut.update(dict.fromkeys(ways, how))
        if how == "reset":
            self._end(set(ways))

    async def heal(self) -> None:
        self._cut.clear()
        lossy, self._lossy = self._lossy, set()
        self._end(lossy)
        self._opened.set()
        self._opened = asyncio.Event()

    def _end(self, ways: set[Way]) -> None:
        for relay in self._relays:
            relay.end(lambda way: way in ways or way[::-1] in ways)

    def who(self, peer: Any, otherwise: str) -> str:
        """Return who has connected."""
        if peer.family != socket.AF_UNIX:
            return otherwise
        peer_of = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return self._processes.get(struct.unpack("3i", peer_of)[0], otherwise)

    def is_reset(self, way: Way) -> bool:
        """Return whether nobody can connect this way."""
        return "reset" in (self._cut.get(way), self._cut.get(way[::-1]))

    async def passes(self, way: Way) -> bool:
        """Return whether bytes arrive, once they do; False if they are lost."""
        while self._cut.get(way) == "hold":
            await self._opened.wait()
        if way in self._cut:
            self._lossy.add(way)
            return False
        return True


# -- namespaces --------------------------------------------------------------------------------

_PREFIX: Final = "walstore-"
"""Of namespaces."""
_LINKS: Final = "wst-"
"""Of links, whose names are short."""
_SUBNET: Final = "198.18.85"
"""For tests of networks, by RFC 2544."""
_HOSTS: Final = {CLIENTS: 1, STORE: 2, "a": 11, "b": 12, "c": 13}
_PORT: Final = 7430
_NOBODY: Final = "02:57:53:54:ff:ff"
_TOKEN: Final = "of-partitions"
_CLONE_NEWNET: Final = 0x40000000


def _place(name: str) -> str:
    return f"{_SUBNET}.{_HOSTS[name]}"


def _hardware(name: str) -> str:
    return f"02:57:53:54:00:{_HOSTS[name]:02x}"


def _device(name: str) -> str:
    return f"{_LINKS}bridge" if name == CLIENTS else "eth0"


def _inside(name: str) -> list[str]:
    """Return the command ``ip`` of a machine."""
    return ["ip"] if name == CLIENTS else ["ip", "-n", f"{_PREFIX}{name}"]


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _batch(ip: Sequence[str], lines: Sequence[str]) -> None:
    """Do several things of ``ip`` at once."""
    command = [*ip, "-batch", "-"]
    done = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(f"{'; '.join(lines)}: {done.stderr.strip()}")


def _remove_all() -> None:
    """Remove what is there of a network, with the processes in it: also of a program that was killed."""
    for line in _run("ip", "netns", "list").splitlines():
        name = line.split()[0]
        if name.startswith(_PREFIX):
            for process in _run("ip", "netns", "pids", name).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), 9)
            _run("ip", "netns", "delete", name)
    for line in _run("ip", "-brief", "link", "show").splitlines():
        name = line.split()[0].partition("@")[0]
        if name.startswith(_LINKS):
            with contextlib.suppress(OSError):  # one end may be gone with the other
                _run("ip", "link", "delete", name)


def _make_all() -> None:
    links = [f"link add {_LINKS}bridge address {_hardware(CLIENTS)} type bridge"]
    for name in (*MACHINES, STORE):
        space = f"{_PREFIX}{name}"
        ends = f"{_LINKS}{name} type veth peer name eth0 address {_hardware(name)}"
        links += [
            f"netns add {space}",
            f"link add {ends} netns {space}",
            f"link set {_LINKS}{name} master {_LINKS}bridge up",
        ]
    links += [
        f"link set {_LINKS}bridge up",
        f"address add {_place(CLIENTS)}/24 dev {_LINKS}bridge",
    ]
    for line in links:  # what a batch does to another namespace, a later line of it may not see
        _run("ip", *line.split())
    for name in (*MACHINES, STORE):
        address = f"address add {_place(name)}/24 dev eth0"
        _batch(_inside(name), ["link set lo up", "link set eth0 up", address])


def _point(ways: Mapping[Way, bool]) -> None:
    """Let packets go to whom they are for, or to nobody."""
    for source in EVERYBODY:
        lines = [
            f"neighbour replace {_place(target)} dev {_device(source)} nud permanent "
            f"lladdr {_hardware(target) if is_open else _NOBODY}"
            for (one, target), is_open in ways.items()
            if one == source
        ]
        if lines:
            _batch(_inside(source), lines)


def _listener_in(namespace: str, host: str, port: int) -> socket.socket:
    """Return a socket that listens in a namespace, whoever uses it."""

    def make() -> socket.socket:
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/run/netns", namespace).open() as file:
            if libc.setns(file.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns to {namespace}")
        listener = socket.create_server((host, port))
        listener.setblocking(False)
        return listener

    with ThreadPoolExecutor(1) as thread:  # that ends there
        return thread.submit(make).result()


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other program has such a network."""
    with Path(tempfile.gettempdir(), "walstore-partitions.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@functools.cache
def problem() -> str | None:
    """Return why there can be no namespaces here; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "openssl", "unshare") if not shutil.which(name)]
    if missing:
        return f"missing: {', '.join(missing)}"
    tried = (
        "link add one type bridge",
        "link add two type veth peer name three",
        "link set two master one",
    )
    try:
        _batch(["unshare", "--net", "ip"], tried)  # which is gone at once
    except OSError as error:
        return f"no network namespaces here: {error}"
    return None


class Namespaces(Network):
    """Machines in namespaces of their own, etcd behind a socket in another one; clients are outside."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._certificate = directory / "cert.pem"
        self._key = directory / "key.pem"

    def open(self) -> None:
        """Make it; blocking."""
        names = ",".join(f"IP:{_place(name)}" for name in MACHINES)
        options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
        _run(
            *("openssl", *options.split(), "-subj", "/CN=walstore"),
            *("-addext", f"subjectAltName={names}"),
            *("-keyout", str(self._key), "-out", str(self._certificate)),
        )
        trusted = ssl.create_default_context(cafile=str(self._certificate))
        self.options = {"tls": trusted, "token": _TOKEN}
        self.environment = {"SSL_CERT_FILE": str(self._certificate), "WALSTORE_TOKEN": _TOKEN}
        _make_all()
        _point(dict.fromkeys(permutations(EVERYBODY, 2), True))

    def address(self, machine: str) -> str:
        return f"tls://{_place(machine)}:{_PORT}"

    def store(self, machine: str) -> str:
        return f"etcd://{_place(STORE)}:2379"

    def command(self, machine: str, serve: Sequence[str]) -> list[str]:
        command = [*serve, "--tcp", f"{_place(machine)}:{_PORT}"]
        command += ["--tls-cert", str(self._certificate), "--tls-key", str(self._key)]
        return ["ip", "netns", "exec", f"{_PREFIX}{machine}", *_dies_with_us(command)]

    def started(self, machine: str, process: int) -> None:
        """Nothing: a machine is known by its namespace."""

    async def cut(self, ways: Sequence[Way], how: How = "lose") -> None:
        await asyncio.to_thread(_point, dict.fromkeys(ways, False))

    async def heal(self) -> None:
        await asyncio.to_thread(_point, dict.fromkeys(permutations(EVERYBODY, 2), True))


@asynccontextmanager
async def namespaces(directory: Path, etcd: str) -> AsyncIterator[Network]:
    """Make the network, with etcd in it; remove it in any case, and before that what is there of another."""
    async with AsyncExitStack() as stack:
        lock = _alone()
        await asyncio.to_thread(lock.__enter__)
        stack.callback(lock.__exit__, None, None, None)
        network = Namespaces(directory)
        await asyncio.to_thread(_remove_all)
        stack.push_async_callback(asyncio.to_thread, _remove_all)
        await asyncio.to_thread(network.open)
        host, _, port = etcd.rpartition("/")[2].partition(":")
        relay = _Relay(None, STORE, lambda: asyncio.open_connection(host, int(port)))
        stack.push_async_callback(relay.aclose)
        made = await asyncio.to_thread(_listener_in, f"{_PREFIX}{STORE}", _place(STORE), 2379)
        await relay.listen(sock=made)
        yield network


@asynccontextmanager
async def proxies(directory: Path, etcd: str) -> AsyncIterator[Network]:
    """Make the network."""
    network = Proxies(directory, etcd)
    try:
        await network.open()
        yield network
    finally:
        await network.aclose()
