"""That recorded calls are understood, in whichever way a program names its files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.crash import strace
from tests.crash.disk import Disk
from tests.crash.tracing import NotModelledError, Reader, Tree

PROGRAM = """
import mmap, os, sys, threading
root = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
os.mkdir("inner", dir_fd=root)
inner = os.open("inner", os.O_RDONLY, dir_fd=root)
again = os.dup(inner)
os.close(inner)
a = os.open("a", os.O_RDWR | os.O_CREAT | os.O_EXCL, dir_fd=again)
os.pwritev(a, [b"x" * 600, b"y" * 600], 0)
os.fsync(a)
os.posix_fallocate(a, 0, 4096)
os.rename("a", "b", src_dir_fd=again, dst_dir_fd=root)
os.pwrite(a, b"late", 2000)
os.fsync(root)
os.ftruncate(a, 3000)
os.link("b", "c", src_dir_fd=root, dst_dir_fd=again)
os.unlink("b", dir_fd=root)
log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, dir_fd=root)
for line in (b"one ", b"two ", b"three "):
    os.write(log, line)
os.chdir(sys.argv[1] + "/..")
with open(sys.argv[1] + "/plain", "wb") as plain:
    plain.write(b"0123456789")
    plain.seek(4)
    plain.write(b"....")
threads = [threading.Thread(target=os.fsync, args=(log,)) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
os.truncate(sys.argv[1] + "/plain", 6)
os.rename(sys.argv[1] + "/plain", sys.argv[1] + "/inner/plain")
"""


@pytest.fixture(autouse=True)
def _can_trace() -> None:
    try:
        strace.prepare()
    except strace.CannotTraceError as error:
        pytest.skip(str(error))


def trace(root: Path, program: str) -> list[list]:
    root.mkdir()
    command = [sys.executable, "-c", program, str(root)]
    calls = strace.record(command, cwd=root.parent, environment=dict(os.environ))
    (events,) = Reader([Tree(root)], root.parent).read(calls)
    return events


def test_all_ways_to_name_and_change_a_file(tmp_path: Path) -> None:
    root, disk = tmp_path / "root", Disk()
    for event in trace(root, PROGRAM):
        disk.apply(event)
    assert dict(disk.visible()) == {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }
    assert (root / "inner" / "c").read_bytes()[2000:2004] == b"late"
    durable = disk.contents[disk.durable_names["b"]]
    assert durable.durable == b"x" * 600 + b"y" * 600, "what came after the sync is not durable"
    assert disk.contents[disk.names["log"]].durable == b"one two three "


@pytest.mark.parametrize(
    "call",
    [
        "os.rename(sys.argv[1] + '/d', sys.argv[1] + '/e')",
        "os.symlink('f', sys.argv[1] + '/g')",
        "os.rename(sys.argv[1] + '/f', sys.argv[1] + '/../f')",
        "os.sendfile(os.open(sys.argv[1] + '/f', os.O_WRONLY), os.open('/etc/passwd', 0), 0, 9)",
    ],
)
def test_calls_that_are_not_modelled_are_refused(tmp_path: Path, call: str) -> None:
    program = f"import os, sys\nos.mkdir(sys.argv[1] + '/d')\nopen(sys.argv[1] + '/f', 'w')\n{call}"
    with pytest.raises(NotModelledError):
        trace(tmp_path / "root", program)
