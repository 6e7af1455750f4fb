"""A real S3 server for tests: Ceph's gateway over one monitor and one disk in memory, without systemd.

    python tests/s3/rgw.py run COMMAND [ARGUMENT …]     # start, run the command, stop
    python tests/s3/rgw.py install                      # only install what is missing

The command finds the server in WALSTORE_S3_ENDPOINT. The server is stopped when the command ends, however
it ends; if this program is killed, the system kills the server with it. What lies in memory then is
removed by the next start.

Exit status: the command's; 77 if there can be no server here, after saying why.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

ENDPOINT = "WALSTORE_S3_ENDPOINT"
ACCESS_KEY, SECRET_KEY = "testing", "secret-of-the-tests"
"""The user that makes the buckets, with whose credentials the tests come."""

OTHERS = {"reader": "key-of-reader", "writer": "key-of-writer", "collector": "key-of-collector"}
"""Users that may do what a bucket's policy allows them, and their access keys; the secret is the same."""

PACKAGES = {
    "ceph-mon": "ceph-mon",
    "ceph-osd": "ceph-osd",
    "radosgw": "radosgw",
    "radosgw-admin": "radosgw",
    "ceph": "ceph-common",
}
"""Which of Debian's packages has which program."""

CANNOT = 77
START_SECONDS = 180
STOP_SECONDS = 10

_PR_SET_PDEATHSIG = 1
_PREFIX = "walstore-rgw-"

CONFIGURATION = """
[global]
fsid = {fsid}
mon initial members = a
mon host = v1:127.0.0.1:{monitor_port}
auth cluster required = none
auth service required = none
auth client required = none
ms bind msgr2 = false
ms bind ipv6 = false
public addr = 127.0.0.1
mon data = {directory}/mon
osd data = {directory}/osd
run dir = {directory}
admin socket = {directory}/$name.asok
log file = {directory}/$name.log
# One copy of everything, in memory.
mon allow pool size one = true
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd crush update on start = false
osd objectstore = memstore
memstore device bytes = 4294967296
rgw frontends = beast endpoint=127.0.0.1:{port}
rgw enable usage log = false
# Data of deleted objects goes at once, not after two hours: the memory is small.
rgw gc obj min wait = 1
rgw gc processor period = 10
"""


class CannotRunError(Exception):
    """There can be no server on this machine; the text says why."""


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


class Gateway:
    """The processes of one server, below one directory."""

    def __init__(self, directory: Path) -> None:
        """Nothing is started yet. The directory's path must be short: sockets lie in it."""
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._port, monitor_port = _free_ports(2)
        self._fsid, self._disk_id = str(uuid.uuid4()), str(uuid.uuid4())
        self._monitor = f"v1:127.0.0.1:{monitor_port}"
        configuration = CONFIGURATION.format(
            fsid=self._fsid, directory=directory, port=self._port, monitor_port=monitor_port
        )
        (directory / "ceph.conf").write_text(configuration)
        self._environment = {**os.environ, "CEPH_CONF": str(directory / "ceph.conf")}

    @property
    def endpoint_url(self) -> str:
        """Where requests go."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Return when the server answers and knows its users."""
        for name in ("mon", "osd"):
            (self._directory / name).mkdir()
        monitors = str(self._directory / "monitors")
        self._run(
            "monmaptool", "--create", "--addv", "a", self._monitor, "--fsid", self._fsid, monitors
        )
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monitors)
        self._spawn("ceph-mon", "-f", "-i", "a")
        self._run("ceph", "--connect-timeout", "60", "osd", "new", self._disk_id, "0")
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", self._disk_id)
        self._run("ceph", "osd", "crush", "add", "osd.0", "1.0", "root=default", "host=localhost")
        self._spawn("ceph-osd", "-f", "-i", "0")
        self._spawn("radosgw", "-f", "-n", "client.rgw")
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            self._check_processes()
            if time.monotonic() > deadline:
                raise CannotRunError(f"no answer from {self.endpoint_url}; {self._last_words()}")
            time.sleep(0.1)
        # Not before: while the gateway makes its pools, the program was seen to wait for it for minutes.
        for user, key in {"tests": ACCESS_KEY, **OTHERS}.items():
            self._run(
                *("radosgw-admin", "user", "create", f"--uid={user}", f"--display-name={user}"),
                *(f"--access-key={key}", f"--secret={SECRET_KEY}"),
            )

    def stop(self) -> None:
        """End all processes, the gateway first."""
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.endpoint_url, timeout=START_SECONDS):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    def _run(self, *command: str) -> None:
        try:
            done = subprocess.run(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                timeout=START_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CannotRunError(
                f"{command[0]} did not end in {START_SECONDS} s; {self._last_words()}"
            ) from None
        if done.returncode:
            raise CannotRunError(
                f"{command[0]} failed: {done.stderr.strip()}; {self._last_words()}"
            )

    def _spawn(self, *command: str) -> None:
        process = subprocess.Popen(
            command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Not killed by the Ctrl-C that is meant for us; we stop them in order.
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - no threads here
        )
        self._processes.append(process)

    def _check_processes(self) -> None:
        for process in self._processes:
            if process.poll() is not None:
                raise CannotRunError(f"{process.args} ended; {self._last_words()}")

    def _last_words(self) -> str:
        logs = sorted(self._directory.glob("*.log"))
        return " | ".join(line for log in logs for line in log.read_text().splitlines()[-2:])


def _die_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]


def _remove_left_overs(parent: Path) -> None:
    """Remove the directories of servers whose program was killed; their processes are dead, too."""
    for path in parent.glob(f"{_PREFIX}*-*"):
        program = path.name.removeprefix(_PREFIX).partition("-")[0]
        if program.isdigit() and not Path("/proc", program).exists():
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def running() -> Iterator[Gateway]:
    """Start a server in a directory of its own; stop it and remove the directory at the end."""
    memory = Path("/dev/shm")
    parent = memory if memory.is_dir() else Path(tempfile.gettempdir())
    _remove_left_overs(parent)
    with tempfile.TemporaryDirectory(
        dir=parent, prefix=f"{_PREFIX}{os.getpid()}-", ignore_cleanup_errors=True
    ) as directory:
        gateway = Gateway(Path(directory))
        try:
            gateway.start()
            yield gateway
        finally:
            gateway.stop()


def _run_command(command: list[str]) -> int:
    began = time.monotonic()
    with running() as gateway:
        print(
            f"Ceph's gateway answers at {gateway.endpoint_url} after {time.monotonic() - began:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        environment = {**os.environ, ENDPOINT: gateway.endpoint_url}
        with subprocess.Popen(
            command,
            env=environment,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - no threads here
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
    match sys.argv[1:]:
        case ["install"]:
            command = []
        case ["run", *command] if command:
            pass
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    try:
        began = time.monotonic()
        install()
        print(f"the packages are there after {time.monotonic() - began:.0f} s", file=sys.stderr)
        return _run_command(command) if command else 0
    except CannotRunError as error:
        print(f"no S3 server here: {error}", file=sys.stderr)
        return CANNOT


if __name__ == "__main__":
    sys.exit(main())
