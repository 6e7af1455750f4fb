"""A real etcd cluster for tests: nodes on this machine, each of which can be killed, stopped and restarted.

    python tests/etcd.py run [--nodes 3] COMMAND [ARGUMENT …]    # start, run the command, stop
    python tests/etcd.py install                                 # only install what is missing

The command finds the nodes in WALSTORE_ETCD, as ``etcd://127.0.0.1:PORT,…``. They are stopped when the
command ends, however it ends; if this program is killed, the system kills them with it.

Exit status: the command's; 77 if there can be no etcd here, after saying why.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

ADDRESS = "WALSTORE_ETCD"
PACKAGES = {"etcd": "etcd-server", "etcdctl": "etcd-client"}
"""Which of Debian's packages has which program."""

CANNOT = 77
START_SECONDS = 60
NODE_BYTES = 200 << 20
"""How much a node may write: twice 64 MiB of its log are reserved at once."""

_PR_SET_PDEATHSIG = 1
_PREFIX = "walstore-etcd-"


class CannotRunError(Exception):
    """There can be no etcd on this machine; the text says why."""


def install() -> None:
    """Install the missing packages, as root on Debian; otherwise say what is missing."""
    missing = sorted({package for name, package in PACKAGES.items() if not shutil.which(name)})
    if not missing:
        return
    wanted = f"the packages {' '.join(missing)} are missing"
    apt = shutil.which("apt-get")
    if apt is None:
        raise CannotRunError(f"{wanted}, and this is no Debian")
    if os.geteuid() != 0:
        raise CannotRunError(f"{wanted}; as root: apt-get install {' '.join(missing)}")
    print(f"installing {' '.join(missing)}", file=sys.stderr)
    command = [apt, "install", "--yes", "--no-install-recommends", *missing]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = _quietly(command, environment)
    if done.returncode:
        # A fresh machine has no lists of packages, or outdated ones.
        _quietly([apt, "update"], environment)
        done = _quietly(command, environment)
    if done.returncode:
        last = done.stdout.strip().splitlines()[-1:]
        raise CannotRunError(f"{wanted}, and cannot be installed: {' '.join(last)}")


@functools.cache
def _problem() -> str | None:
    try:
        install()
    except CannotRunError as error:
        return f"no etcd here: {error}"
    return None


def require_etcd() -> None:
    """Skip the test where there is no etcd and none can be installed."""
    import pytest

    if problem := _problem():
        pytest.skip(problem)


def _quietly(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


class EtcdCluster:
    """The nodes of a cluster, numbered from 0. Its methods block: in a coroutine call them on a thread."""

    def __init__(self, directory: Path, nodes: int = 1) -> None:
        """Nothing is started yet."""
        self._directory = directory
        ports = _free_ports(2 * nodes)
        self._client_ports, self._peer_ports = ports[:nodes], ports[nodes:]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        # A child dies with the thread that made it.
        self._thread = ThreadPoolExecutor(1)

    @property
    def endpoints(self) -> list[str]:
        """Where requests go, in the order of nodes."""
        return [f"http://127.0.0.1:{port}" for port in self._client_ports]

    @property
    def address(self) -> str:
        """The nodes as one text."""
        return f"etcd://{','.join(f'127.0.0.1:{port}' for port in self._client_ports)}"

    def data_directory(self, node: int) -> Path:
        """Return where a node has what it stores."""
        return self._directory / f"n{node}"

    def start(self) -> None:
        """Return when every node knows a leader."""
        for node in range(len(self._client_ports)):
            self._spawn(node)
        for node in range(len(self._client_ports)):
            self.wait(node)

    def wait(self, node: int) -> None:
        """Return when a node answers and knows a leader."""
        deadline = time.monotonic() + START_SECONDS
        while not self._is_healthy(node):
            if self._processes[node].poll() is not None or time.monotonic() > deadline:
                raise CannotRunError(f"node {node} is not there: {self._last_words(node)}")
            time.sleep(0.02)

    def kill(self, node: int) -> None:
        """Kill a node; what it has stays."""
        process = self._processes[node]
        process.kill()
        process.wait()

    def stop(self, node: int) -> None:
        """Let a node stand still: its connections stay, and nothing answers."""
        self._processes[node].send_signal(signal.SIGSTOP)

    def go_on(self, node: int) -> None:
        """Let a stopped node go on."""
        self._processes[node].send_signal(signal.SIGCONT)

    def restart(self, node: int) -> None:
        """Start a killed node again; return when it answers and knows a leader. A stopped one goes on."""
        if self._processes[node].poll() is None:
            self.go_on(node)
        else:
            self._spawn(node)
        self.wait(node)

    def close(self) -> None:
        """Kill all nodes."""
        for node in self._processes:
            self.kill(node)
        self._thread.shutdown()

    def _spawn(self, node: int) -> None:
        here = "http://127.0.0.1"
        peers = enumerate(self._peer_ports)
        client, peer = (f"{here}:{ports[node]}" for ports in (self._client_ports, self._peer_ports))
        options = {
            "name": f"n{node}",
            "data-dir": str(self.data_directory(node)),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": ",".join(f"n{other}={here}:{port}" for other, port in peers),
            "heartbeat-interval": "50",
            "election-timeout": "300",
            "logger": "zap",
            "log-outputs": str(self._directory / f"n{node}.log"),
        }
        command = ["etcd", *(f"--{name}={value}" for name, value in options.items())]
        self._processes[node] = self._thread.submit(_start, command).result()

    def _is_healthy(self, node: int) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoints[node]}/health", timeout=10) as answer:
                return json.load(answer)["health"] == "true"
        except (OSError, ValueError):
            return False

    def _last_words(self, node: int) -> str:
        log = self._directory / f"n{node}.log"
        return " | ".join(log.read_text().splitlines()[-2:]) if log.exists() else "it says nothing"


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env={name: value for name, value in os.environ.items() if not name.startswith("ETCD_")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Not killed by the Ctrl-C that is meant for us.
        start_new_session=True,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - it only makes a system call
    )


_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]


def _remove_left_overs(parent: Path) -> None:
    """Remove the directories of clusters whose program was killed; their processes are dead, too."""
    for path in parent.glob(f"{_PREFIX}*-*"):
        program = path.name.removeprefix(_PREFIX).partition("-")[0]
        if program.isdigit() and not Path("/proc", program).exists():
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def running(nodes: int = 1) -> Iterator[EtcdCluster]:
    """Start a cluster in a directory of its own, in memory if there is room; remove both at the end."""
    parent, memory = Path(tempfile.gettempdir()), Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 2 * nodes * NODE_BYTES:
        parent = memory
    _remove_left_overs(parent)
    with tempfile.TemporaryDirectory(
        dir=parent, prefix=f"{_PREFIX}{os.getpid()}-", ignore_cleanup_errors=True
    ) as directory:
        cluster = EtcdCluster(Path(directory), nodes)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()


def _run_command(nodes: int, command: list[str]) -> int:
    with running(nodes) as cluster:
        print(f"etcd answers at {cluster.address}", file=sys.stderr, flush=True)
        environment = {**os.environ, ADDRESS: cluster.address}
        with subprocess.Popen(
            command,
            env=environment,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - it only makes a system call
        ) as process:
            try:
                return process.wait()
            finally:
                process.terminate()


def _exit(signal_number: int, _frame: object) -> NoReturn:
    sys.exit(128 + signal_number)


def main() -> int:
    """Do what the command line says."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit)
    nodes = 1
    match sys.argv[1:]:
        case ["install"]:
            command = []
        case ["run", "--nodes", count, *command] if command and count.isdecimal() and int(count):
            nodes = int(count)
        case ["run", *command] if command and not command[0].startswith("-"):
            pass
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    try:
        install()
        return _run_command(nodes, command) if command else 0
    except CannotRunError as error:
        print(f"no etcd here: {error}", file=sys.stderr)
        return CANNOT


if __name__ == "__main__":
    sys.exit(main())
