"""Programs, each in a process of its own that is forked where the packages they use are imported.

A short program needs most of its time for imports. A server makes them once for all programs of a test run's
process. All that follows is the program's own: its directory, environment, arguments, streams, signals, exit
code, and the end of its interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

CORE: Final = "import asyncio, walstore"
CLOUD: Final = f"{CORE}, pyarrow, uploader"
COMMANDS: Final = f"{CLOUD}, walstore.cli.app"

WALSTORE: Final = "from walstore.__main__ import main; main()"
"""The program that ``python -m walstore`` runs."""

_SERVER: Final = """
import contextlib, gc, json, os, signal, socket, sys, types
requests = socket.socket(fileno=int(sys.argv.pop()))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait for programs
gc.collect()
gc.freeze()
while True:
    text, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 4)
    if not text:
        sys.exit()
    if not os.fork():
        break
    for descriptor in descriptors:
        os.close(descriptor)
requests.close()
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
ended, *streams = descriptors
if child := os.fork():
    for stream in streams:
        os.close(stream)
    os.write(ended, b"%d\\n" % child)
    found = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
    with contextlib.suppress(BrokenPipeError):
        os.write(ended, b"%d\\n" % code)
    os._exit(0)
os.close(ended)
for number, stream in enumerate(streams):
    os.dup2(stream, number)
    os.close(stream)
code, arguments, directory, environment = json.loads(text)
os.chdir(directory)
os.environ.clear()
os.environ.update(environment)
sys.argv[1:] = arguments
program = sys.modules["__main__"] = types.ModuleType("__main__")
exec(compile(code, "<string>", "exec"), program.__dict__)
"""


class Program:
    """A program that was started; it has what tests use of ``subprocess.Popen``."""

    def __init__(self, ended: int, pipes: list[int | None]) -> None:
        """Wait until it is there. ``pipes`` are our ends of its streams."""
        self._ended = os.fdopen(ended, "rb", buffering=0)
        self.returncode: int | None = None
        stdin, stdout, stderr = pipes
        self.stdin = None if stdin is None else os.fdopen(stdin, "wb", buffering=0)
        self.stdout = None if stdout is None else os.fdopen(stdout, "rb")
        self.stderr = None if stderr is None else os.fdopen(stderr, "rb")
        self.pid = int(self._ended.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.communicate()

    def poll(self) -> int | None:
        """Return its exit code, or None as long as it runs."""
        if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
            return self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code once it has ended; that is negative if a signal ended it."""
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0)
            self.returncode = int(self._ended.readline())
            self._ended.close()
        return self.returncode

    def communicate(self) -> tuple[bytes, bytes]:
        """Close its stdin and wait for its end; return what it wrote since. Its stderr shall be little."""
        found = []
        if self.stdin is not None:
            self.stdin.close()
        for stream in (self.stdout, self.stderr):
            found.append(stream.read() if stream is not None and not stream.closed else b"")
            if stream is not None:
                stream.close()
        self.wait()
        return found[0], found[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class _Server:
    """A process that has imported something and forks programs."""

    def __init__(self, imports: str) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"{imports}\n{_SERVER}", str(theirs.fileno())],
                # Its sys.stdin and sys.stdout are those of the programs: they must not take them for files.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self._close)

    def start(self, request: bytes, streams: list[int]) -> int:
        """Start a program; return where its id can be read, and its exit code after that."""
        ended, end = os.pipe()
        try:
            socket.send_fds(self._requests, [request], [end, *streams])
        finally:
            os.close(end)
        return ended

    def _close(self) -> None:
        """Kill it and its programs."""
        self._requests.close()
        with self._process:
            os.killpg(self._process.pid, signal.SIGKILL)


_starting = threading.Lock()


@functools.cache
def _server(imports: str) -> _Server:
    return _Server(imports)


def start(
    code: str,
    *arguments: object,
    imports: str = CORE,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | None = None,
    stderr: int | None = None,
) -> Program:
    """Start a program as ``python -c`` would; its streams are given as for ``subprocess.Popen``.

    It has the environment of this process, and ``environment``.
    """
    words = [str(argument) for argument in arguments]
    variables = {**os.environ, **(environment or {})}
    request = json.dumps([code, words, str(directory or Path.cwd()), variables]).encode()
    with _starting:
        server = _server(imports)
    pipes: list[int | None] = []
    with contextlib.ExitStack() as closing:
        streams = []
        for number, given in enumerate((stdin, stdout, stderr)):
            theirs, ours = _stream(number, given, closing)
            streams.append(theirs)
            pipes.append(ours)
        ended = server.start(request, streams)
    return Program(ended, pipes)


def start_script(path: Path, *arguments: object, **options: Any) -> Program:
    """Start the program in a file."""
    code = f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')"
    return start(code, *arguments, **options)


def _stream(
    number: int, given: int | None, closing: contextlib.ExitStack
) -> tuple[int, int | None]:
    """Return the program's end of a stream, and ours of a pipe."""
    if given == subprocess.PIPE:
        read, write = os.pipe()
        theirs, ours = (read, write) if number == 0 else (write, read)
    elif given == subprocess.DEVNULL:
        theirs, ours = os.open(os.devnull, os.O_RDWR), None
    else:
        return number if given is None else given, None
    closing.callback(os.close, theirs)
    return theirs, ours


def run(
    code: str,
    *arguments: object,
    imports: str = CORE,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; kill it, and fail, if that takes longer."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        program = start(
            code,
            *arguments,
            imports=imports,
            directory=directory,
            environment=environment,
            stdout=out.fileno(),
            stderr=err.fileno(),
        )
        with _killed(program):
            program.wait(seconds)
        for file in (out, err):
            file.seek(0)
        words = [str(argument) for argument in arguments]
        return subprocess.CompletedProcess(words, program.wait(), out.read(), err.read())


@contextlib.contextmanager
def _killed(program: Program) -> Iterator[None]:
    """Kill it if the block fails."""
    try:
        yield
    except BaseException:
        program.kill()
        program.wait()
        raise
