"""EncoderProcesses: processes that encode and hash fragments, so that this one has its interpreter to itself.

Hashing 1 KiB takes 4 µs under the interpreter's lock, and a log that ships what is appended at full speed
spends half of its time on that (docs/performance.md, "Shipping in another process"). A process begins to
work half a second after its start. Until then, if it fails, if it does not answer, and for small fragments,
the caller encodes, as without any. So they change how long something takes, never what is in the store.
"""

from __future__ import annotations

import contextlib
import json
import logging
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from weakref import WeakValueDictionary

from uploader.fragments import encoder
from uploader.fragments.fragment_builder import EncodedFragment
from walstore.core.batches.batch import Batch
from walstore.core.batches.frame_batch import FrameBatch
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.resource import abandon_in_children
from walstore.core.runtime.threads import Lane, Pool
from walstore.errors import WalClosedError

logger = logging.getLogger("walstore.upload")

LEAST_BYTES: Final = 1 << 20
"""Smaller fragments are encoded here: they take a few milliseconds."""
_PATIENCE_SECONDS: Final = 3
_PATIENCE_BYTES: Final = 4 << 20
"""How long one may say nothing: so long, and a second for so many bytes. They take 25 ms, and on a machine
that is busy with other things ten times that. Closing a log may wait twice as long."""
_PAUSE_SECONDS: Final = 10.0
"""After a failure, how long until the next one is started."""
_CONNECTIONS: Final = 2
"""To each process, see :func:`uploader.fragments.encoder.main`."""
_STANDARD_ERROR: Final = 2
_BUFFER_BYTES: Final = 1 << 20
_PROGRAM: Final = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from uploader.fragments.encoder import main
main(*map(int, sys.argv[2:]))
"""


def _is_worth_it(batches: Sequence[Batch]) -> bool:
    are_frames = all(isinstance(batch, FrameBatch) for batch in batches)
    return are_frames and sum(batch.nbytes for batch in batches) >= LEAST_BYTES


class EncoderProcesses:
    """Up to ``count`` processes, for all logs of this one. They run while anybody is inside :meth:`used`."""

    def __init__(self, count: int) -> None:
        """Start nothing yet."""
        self._most = count
        self.is_abandoned = False
        """Whether this is a child process, which has none of them."""
        self._pool = Pool("encoder", count * _CONNECTIONS)
        self._clock = SystemClock()
        self._guard = threading.Lock()
        # Guarded by the lock.
        self._users = 0
        self._processes: list[_Process] = []
        self._starting = 0
        self._free: list[_Connection] = []
        self._resumes_at = 0.0
        abandon_in_children(self)

    @property
    def pids(self) -> list[int]:
        """Those that run."""
        return [process.pid for process in self._processes]

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let them run meanwhile."""
        with self._guard:
            self._users += 1
        try:
            yield
        finally:
            with self._guard:
                self._users -= 1
                if not self._users:
                    self._end(*self._processes)

    def lane_for(self, batches: Sequence[Batch]) -> Lane | None:
        """Return a lane of threads for :meth:`encode`; None if that would do nothing.

        A call that waits for a process takes no thread from calls that have something to do.
        """
        return self._pool.lane() if _is_worth_it(batches) else None

    def encode(
        self,
        batches: Sequence[Batch],
        *,
        timestamp_us: int,
        writer: str | None,
        closings: int | None,
    ) -> EncodedFragment | None:
        """Return the fragment of these records, as FragmentBuilder makes it; None if the caller must.

        Blocks until it is done. Never raises.
        """
        if not _is_worth_it(batches):
            return None
        frames = [batch for batch in batches if isinstance(batch, FrameBatch)]
        one = self._take()
        if one is None:
            return None
        made = None
        try:
            if one.is_ready():
                one.set_patience(sum(batch.nbytes for batch in frames))
                made = encoder.request(
                    one.socket,
                    frames,
                    timestamp_us=timestamp_us,
                    writer=writer,
                    closings=closings,
                )
        except RuntimeError as error:
            logger.warning("an encoder refused a fragment, which is encoded here: %s", error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller can do without
            with self._guard:
                if one.process in self._processes:  # else it was ended
                    why = "no answer" if isinstance(error, BlockingIOError) else repr(error)
                    logger.warning(
                        "an encoder failed, fragments are encoded here meanwhile: %s", why
                    )
                    self._resumes_at = self._clock.monotonic() + _PAUSE_SECONDS
                    self._end(one.process)
            one.socket.close()
            return None
        with self._guard:
            if one.process not in self._processes:
                one.socket.close()
            elif made is None:
                self._free.insert(0, one)  # others may be ready
            else:
                self._free.append(one)
        return made

    def abandon(self, error: WalClosedError) -> None:
        """Forget them: they are the parent's. Its pool refuses."""
        self.is_abandoned = True
        self._guard = threading.Lock()
        for (
            process
        ) in self._processes:  # also what a thread of the parent uses: else it would not end
            for one in process.connections:
                one.socket.close()
        self._free, self._processes = [], []

    # -- inside ------------------------------------------------------------------------------

    def _take(self) -> _Connection | None:
        with self._guard:
            if self._free:
                return self._free.pop()
            is_enough = len(self._processes) + self._starting >= self._most
            if is_enough or not self._users or self._clock.monotonic() < self._resumes_at:
                return None
            self._starting += 1
        process = None
        try:
            process = _Process()  # takes some milliseconds
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller can do without
            logger.warning("no process for encoding could be started: %s", error)
        with self._guard:
            self._starting -= 1
            if process is None:
                self._resumes_at = self._clock.monotonic() + _PAUSE_SECONDS
                return None
            self._processes.append(process)
            self._free += process.connections
            if not self._users:
                self._end(process)
            return self._free.pop() if self._free else None

    def _end(self, *processes: _Process) -> None:
        """End processes, whatever they do: a call that waits for one sees its connection end."""
        free, self._free = self._free, []
        for one in free:
            if one.process in processes:
                one.socket.close()
            else:
                self._free.append(one)
        for process in processes:
            process.kill()
        self._processes = [one for one in self._processes if one not in processes]


class _Connection:
    """One of those to a process."""

    def __init__(self, process: _Process, ours: socket.socket) -> None:
        self.process = process
        self.socket = ours
        self._is_ready = False

    def set_patience(self, size_bytes: int) -> None:
        """Limit how long each call waits for a process that has so much to do. OSError.

        The system does it: with Python's own timeouts the socket would not block, and take more calls.
        """
        limit = struct.pack("@ll", _PATIENCE_SECONDS + size_bytes // _PATIENCE_BYTES, 0)
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            self.socket.setsockopt(socket.SOL_SOCKET, option, limit)

    def is_ready(self) -> bool:
        """Return whether the process has begun to work; OSError or EOFError if it ended instead."""
        if not self._is_ready:
            poll = select.poll()
            poll.register(self.socket, select.POLLIN)
            if not poll.poll(0):
                return False
            if encoder.receive_greeting(self.socket) != encoder.GREETING:
                raise EOFError("it ended, or is of another version")
            self._is_ready = True
        return True


class _Process:
    """A process, and the connections to it."""

    def __init__(self) -> None:
        """Start it; OSError, RuntimeError if there are no threads, ValueError if there is no Python."""
        if not sys.executable or hasattr(sys, "frozen"):
            raise ValueError("it is not known which Python runs this program")
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            self.connections: list[_Connection] = []
            passed: list[int] = []
            for _ in range(_CONNECTIONS):
                pair = socket.socketpair()
                self.connections.append(_Connection(self, ours.enter_context(pair[0])))
                passed.append(theirs.enter_context(pair[1]).fileno())
                if passed[-1] <= _STANDARD_ERROR:  # Popen puts others in their place
                    raise OSError("a standard stream of this program is closed")
                for end in pair:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            # Nothing is imported from elsewhere than here; -P leaves the working directory out.
            ignored = (
                "-I" if sys.flags.isolated else "-EP" if sys.flags.ignore_environment else "-P"
            )
            known: list[object] = list(sys.path)  # Python passes over whatever is no text
            places = json.dumps([entry for entry in known if isinstance(entry, str)])
            command = [sys.executable, ignored, "-c", _PROGRAM, places, *map(str, passed)]
            self._process = subprocess.Popen(  # noqa: S603 - this Python, with code of ours
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=passed,
                process_group=0,  # Ctrl-C is for its parent, which may still ship
            )
            try:
                # Else it would stay a zombie until somebody asks.
                end_of_it = threading.Thread(target=self._process.wait, daemon=True)
                end_of_it.start()
            except RuntimeError:
                self.kill()
                self._process.wait()
                raise
            ours.pop_all()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def kill(self) -> None:
        """End it, whatever it does; twice is allowed."""
        with contextlib.suppress(OSError):
            self._process.kill()


_shared: Final[WeakValueDictionary[int, EncoderProcesses]] = WeakValueDictionary()


def encoder_processes(count: int) -> EncoderProcesses | None:
    """Return the processes that all logs share which want so many; None for 0."""
    if not count:
        return None
    found = _shared.get(count)
    if found is None or found.is_abandoned:
        found = _shared[count] = EncoderProcesses(count)
    return found
