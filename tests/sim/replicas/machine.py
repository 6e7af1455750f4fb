"""Machine: a disk, and the process that uses it: a node, or a primary."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.sim.disk import Disk
from tests.sim.files import SimFileSystem
from tests.sim.loop import OUTSIDE, Process
from tests.sim.surroundings import Nobody
from tests.sim.weather import Weather
from walstore.cluster.replication.node import ReplicaNode
from walstore.cluster.replication.promise import load_promise
from walstore.core.files.directory import SYNCED_NAME
from walstore.core.files.floor import load_note
from walstore.core.format.checkpoint import decode_cell
from walstore.core.format.frame import parse_header
from walstore.core.format.segment import HEADER_BYTES
from walstore.errors import CorruptionError, FormatVersionError
from walstore.net.wire.address import Address
from walstore.topology.memory import MemoryClient

if TYPE_CHECKING:
    from tests.sim.replicas.history import ReplicaHistory
    from tests.sim.replicas.program import PrimaryProgram

LOG: Final = "orders"
DIRECTORY: Final = Path(f"/{LOG}")
_FREE_BYTES: Final = 1 << 40


class Machine:
    """A disk, and the process that uses it: a node, or a primary."""

    def __init__(self, history: ReplicaHistory, number: int) -> None:
        self.history = history
        self.number = number
        self.name = f"m{number}"
        self.address = Address("unix", f"/{self.name}.sock")
        self._is_cut_off = False
        self._keys: MemoryClient | None = None
        self.node: ReplicaNode | None = None
        self.requests: deque[Callable[[], Any]] = deque()
        self.lives = 0
        self.backup: dict[Path, bytes] = {}
        """The files of its copy at an earlier time."""
        self.is_damaged = False
        """Whether something was flipped or removed there."""
        self.is_spoiled = False
        """Whether its copy may be of no use since then."""
        self.replace_disk()
        self.process = Process(f"{self.name}.0")
        self.program: PrimaryProgram | None = None

    @property
    def is_cut_off(self) -> bool:
        """Whether the other machines do not reach it, nor it the topology. Programs on it go on."""
        return self._is_cut_off

    @is_cut_off.setter
    def is_cut_off(self, value: bool) -> None:
        self._is_cut_off = value
        if self._keys is not None:
            self._keys.cut_off = value

    def topology(self) -> MemoryClient | None:
        """Return a new client of the store that the machines share, if there is one."""
        if self.history.plan.has_topology:
            self._keys = self.history.store.client(self.name)
            self._keys.cut_off = self._is_cut_off
        return self._keys

    def replace_disk(self) -> None:
        """Put a new, empty disk in."""
        seed = f"disk {self.history.plan.seed} {self.number} {self.lives}"
        self.disk = Disk(Random(seed))
        self.weather = Weather(Random(f"weather {seed}"))
        self.weather.rate = self.history.plan.rate

    def files(self) -> dict[Path, bytes]:
        """Return the files of its copy as they are now."""
        names = self.disk.names.items()
        return {path: bytes(node.data) for path, node in names if path.parent == DIRECTORY}

    def segments(self) -> tuple[tuple[str, bytes], ...]:
        """Return the names and bytes of its segments, oldest first, without reserved blocks."""
        files = sorted(self.files().items())
        return tuple(
            (path.name, data.rstrip(b"\0")) for path, data in files if path.suffix == ".wal"
        )

    def file_system(self, process: Process) -> SimFileSystem:
        return SimFileSystem(self.disk, self.weather, process, Nobody(), _FREE_BYTES)

    def look(self) -> SimFileSystem:
        """Return a file system that nothing goes wrong with."""
        weather = Weather(Random(0))
        return SimFileSystem(self.disk, weather, Process("look"), Nobody(), _FREE_BYTES)

    def new_process(self, what: str) -> Process:
        self.lives += 1
        self.node = None
        self.requests.clear()
        self.process = Process(f"{self.name}.{self.lives} {what}")
        return self.process

    def kill(self) -> None:
        """End its process at once."""
        if self.process.is_alive:
            self.history.note(OUTSIDE, f"{self.process} is killed")
            self.history.loop.kill(self.process)
        self.node = None

    def begin_requests(self) -> None:
        """Begin what arrived, in order, as tasks of the node's process."""
        while self.requests:
            work = self.requests.popleft()
            self.history.loop.spawn(self.process, self.history.guarded(work()), "request")

    async def serve(self) -> None:
        """Be a node from now on."""
        process = self.new_process("node")

        async def open_it() -> None:
            self.node = await ReplicaNode.open(
                "/", fs=self.file_system(process), clock=self.history.clock
            )

        await asyncio.wait(
            [self.history.loop.spawn(process, self.history.guarded(open_it()), "node")]
        )


def is_whole(machine: Machine) -> bool:
    """Return whether a machine's copy counts: else it is as good as lost, too."""
    try:
        load_note(machine.look(), DIRECTORY)
        return load_promise(machine.look(), DIRECTORY).is_whole
    except (CorruptionError, FormatVersionError):
        return False


def floor_of(machine: Machine) -> int:
    cell = decode_cell(machine.files().get(DIRECTORY / SYNCED_NAME, b""))
    return 0 if cell is None else cell.visible_limit


def limit_of(files: Mapping[Path, bytes]) -> int:
    """Return the offset after the last record in files of a copy."""
    segments = [path for path in files if path.suffix == ".wal"]
    if not segments:
        return 0
    newest = max(segments)
    view, at, limit = memoryview(files[newest]), HEADER_BYTES, int(newest.stem)
    while (header := parse_header(view, at)) is not None:
        at, limit = header.end, header.limit
    return limit
