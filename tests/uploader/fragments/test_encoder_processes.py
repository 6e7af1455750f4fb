"""Processes that encode: when they run, and that nothing depends on them."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cloud import cloud_values, tier
from tests.frames import batch_of, build, values_only
from tests.waiting import until, wait_until
from uploader import CloudTier, UploadSettings
from uploader.fragments import encoder_processes as module
from uploader.fragments.encoder_processes import (
    LEAST_BYTES,
    EncoderProcesses,
    encoder_processes,
)
from uploader.fragments.fragment_builder import EncodedFragment, encode_fragment
from uploader.stores import MemoryStore
from walstore import Wal
from walstore.core.batches.frame_batch import FrameBatch
from walstore.testing import ManualClock

TIME_US = 1_234_567_890_123_456
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def large() -> FrameBatch:
    return batch_of(build(values_only(*(os.urandom(1024) for _ in range(1100)))))


@pytest.fixture(scope="module")
def expected(large: FrameBatch) -> EncodedFragment:
    return encode_fragment([large], timestamp_us=TIME_US)


@pytest.fixture
def processes() -> Iterator[EncoderProcesses]:
    """One process, in use."""
    found = EncoderProcesses(1)
    with found.used():
        yield found


def encode(processes: EncoderProcesses, batch: FrameBatch) -> EncodedFragment | None:
    return processes.encode([batch], timestamp_us=TIME_US, writer=None, closings=None)


def wait_ready(processes: EncoderProcesses, batch: FrameBatch) -> int:
    """Return the process once it encodes."""
    wait_until(lambda: encode(processes, batch) is not None)
    (pid,) = processes.pids
    return pid


def is_gone(pid: int) -> bool:
    """Return whether a process has ended and was waited for."""
    return not Path(f"/proc/{pid}").exists()


def test_it_makes_the_same_fragment(processes, large, expected) -> None:
    """Once it has begun to work; until then the caller does it."""
    assert encode(processes, large) is None
    wait_ready(processes, large)
    assert encode(processes, large) == expected


def test_appends_go_first(processes, large) -> None:
    pid = wait_ready(processes, large)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, own + 10)


def test_small_ones_start_none(processes) -> None:
    assert encode(processes, batch_of(build(values_only(b"v")))) is None
    assert processes.pids == []


def test_what_is_no_frame_is_encoded_here(processes, large) -> None:
    selected = large.select_stream("s")
    assert selected.nbytes > LEAST_BYTES
    assert processes.encode([selected], timestamp_us=1, writer=None, closings=None) is None
    assert processes.pids == []


def test_nobody_uses_them(large) -> None:
    found = EncoderProcesses(1)
    assert encode(found, large) is None
    assert found.pids == []


def test_they_end_with_their_last_user(large) -> None:
    found = EncoderProcesses(1)
    with found.used():
        with found.used():
            pid = wait_ready(found, large)
        assert encode(found, large) is not None
    assert found.pids == []
    wait_until(lambda: is_gone(pid))
    with found.used():
        assert wait_ready(found, large) != pid


def test_as_many_as_wanted(large, expected) -> None:
    """Two requests at a time to each."""
    found = EncoderProcesses(2)
    with found.used(), ThreadPoolExecutor(4) as threads:

        def all_of_them() -> list[EncodedFragment | None]:
            return list(threads.map(lambda _: encode(found, large), range(12)))

        wait_until(lambda: None not in all_of_them())
        assert len(found.pids) == 2
        assert all_of_them() == [expected] * 12


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_its_parent_does_not_stop_it(processes, large, expected, number) -> None:
    """The log still ships when it closes."""
    pid = wait_ready(processes, large)
    assert os.getpgid(pid) != os.getpgid(0)
    os.kill(pid, number)
    assert encode(processes, large) == expected
    assert processes.pids == [pid]


def test_one_that_is_killed(
    large, expected, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller encodes meanwhile, and another one is started later."""
    clock = ManualClock()
    monkeypatch.setattr(module, "SystemClock", lambda: clock)
    found = EncoderProcesses(1)
    with found.used():
        pid = wait_ready(found, large)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: is_gone(pid))
        assert encode(found, large) is None
        assert encode(found, large) is None
        assert found.pids == []
        assert len(caplog.records) == 1
        clock.advance(10)
        assert wait_ready(found, large) != pid
        assert encode(found, large) == expected


def test_one_that_does_not_answer(
    large, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 1)
    found = EncoderProcesses(1)
    with found.used():
        pid = wait_ready(found, large)
        os.kill(pid, signal.SIGSTOP)
        assert encode(found, large) is None
        assert "failed" in caplog.text
        wait_until(lambda: is_gone(pid))


def test_one_that_is_ended_while_it_works(large, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the last user, whose shipping was cancelled: a waiting caller gets the error."""
    found = EncoderProcesses(1)
    is_asked = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        with found.used():
            pid = wait_ready(found, large)
            os.kill(pid, signal.SIGSTOP)
            receive = module.encoder.receive

            def noted(connection: socket.socket) -> object:
                is_asked.set()
                return receive(connection)

            monkeypatch.setattr(module.encoder, "receive", noted)
            waiting = threads.submit(encode, found, large)
            assert is_asked.wait(20)
        assert waiting.result(20) is None
    wait_until(lambda: is_gone(pid))


@pytest.mark.parametrize("program", ["import sys; sys.exit(1)", "raise ImportError"])
def test_one_that_cannot_begin(
    large, program, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example because another version was installed since."""
    monkeypatch.setattr(module, "_PROGRAM", program)
    found = EncoderProcesses(1)
    with found.used():
        wait_until(lambda: encode(found, large) is None and bool(caplog.records))
        assert found.pids == []


def test_of_another_version(
    large, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.encoder, "GREETING", b"walstore encoder, of the future\n")
    found = EncoderProcesses(1)
    with found.used():
        wait_until(lambda: encode(found, large) is None and bool(caplog.records))
        assert "another version" in caplog.text
        assert found.pids == []


@pytest.mark.parametrize("fault", ["executable", "frozen", "fork", "threads", "streams"])
def test_none_can_be_started(
    large, fault, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise (OSError("no more") if fault == "fork" else RuntimeError("can't start new thread"))

    if fault == "executable":
        monkeypatch.setattr(sys, "executable", "")
    elif fault == "frozen":  # it would run the application again
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    elif fault == "streams":  # of this program, closed: Popen needs their numbers
        monkeypatch.setattr(module, "_STANDARD_ERROR", 1 << 20)
    elif fault == "fork":
        monkeypatch.setattr(subprocess, "Popen", refuse)
    else:
        monkeypatch.setattr(threading.Thread, "start", refuse)
    found = EncoderProcesses(1)
    before = len(os.listdir("/proc/self/fd"))
    with found.used():
        assert encode(found, large) is None
        assert encode(found, large) is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert len(os.listdir("/proc/self/fd")) == before


PARENT = """
import os, sys
from tests.uploader.fragments.test_encoder_processes import *
found = EncoderProcesses(1)
with found.used():
    batch = batch_of(build(values_only(*(os.urandom(1024) for _ in range(1100)))))
    print(wait_ready(found, batch), flush=True)
    sys.stdin.read()
"""


def test_it_dies_with_its_parent() -> None:
    """It gets no notice when the parent is killed."""
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not is_gone(pid)
        parent.kill()
    wait_until(lambda: not Path(f"/proc/{pid}/cmdline").exists() or _is_zombie(pid))


def _is_zombie(pid: int) -> bool:
    """Return whether a process has ended, and the first process of this machine has not noticed."""
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True


def test_nothing_is_imported_from_the_working_directory(
    large, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may be anybody's, and is none of a script's places."""
    for name in ("json", "signal", "pyarrow"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'found')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    found = EncoderProcesses(1)
    with found.used():
        wait_ready(found, large)
    assert not (tmp_path / "found").exists()


def test_a_path_that_python_passes_over(large, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nowhere"), b"/nowhere"])
    found = EncoderProcesses(1)
    with found.used():
        wait_ready(found, large)


def test_an_environment_that_its_parent_ignores(tmp_path: Path) -> None:
    """It would not find Python's own modules by that one."""
    program = f"import sys; sys.path[:] = {sys.path!r}\n" + PARENT
    command = [sys.executable, "-I", "-c", program]
    environment = {**os.environ, "PYTHONHOME": str(tmp_path)}
    result = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=True
    )
    assert int(result.stdout) > 0
    assert result.stderr == b""


def test_logs_share_them() -> None:
    assert encoder_processes(0) is None
    assert encoder_processes(3) is encoder_processes(3) is not None


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_forked_child_has_none(large) -> None:
    """And ending there does not end the parent's."""
    found = encoder_processes(2)
    assert found is not None
    with found.used():
        wait_until(lambda: encode(found, large) is not None)
        (process, *_) = found._processes
        numbers = [one.socket.fileno() for one in process.connections]
        used = found._free.pop()  # by a thread
        child = os.fork()
        if not child:
            is_right = found.pids == [] and encoder_processes(2) is not found
            is_right &= not any(Path(f"/proc/self/fd/{number}").exists() for number in numbers)
            os._exit(0 if is_right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        used.socket.close()
        assert encode(found, large) is not None


# -- logs ----------------------------------------------------------------------------------------


def shipping(store: MemoryStore) -> CloudTier:
    settings = UploadSettings(encoder_processes=1, fragment_bytes=2 << 20)
    return tier(store, settings=settings)


async def test_a_log_ships_by_one_that_is_killed_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is missing or twice, and nobody waits longer than for the encoding."""
    monkeypatch.setattr(module, "_PAUSE_SECONDS", 0.0)
    store = MemoryStore()
    content = [os.urandom(1024) for _ in range(256)]
    appended: list[bytes] = []
    async with Wal.open(tmp_path / "log", tier=shipping(store)) as wal:
        found = encoder_processes(1)
        assert found is not None
        killed: set[int] = set()

        async def append_some() -> None:
            for _ in range(16):
                appended.extend(content)
                await wal.append_many(content, durability="memory")
            await wal.wait_durable(wal.tail - 1, "cloud")

        while len(killed) < 3:
            await append_some()
            for pid in found.pids:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        await append_some()
    assert await cloud_values(store) == appended
    await until(lambda: all(map(is_gone, killed)))


async def test_none_is_left_when_the_log_is_closed(tmp_path: Path) -> None:
    content = [os.urandom(1024) for _ in range(4096)]
    found = encoder_processes(1)
    assert found is not None
    async with Wal.open(tmp_path / "log", tier=shipping(MemoryStore())) as wal:
        await wal.append_many(content)
        await until(lambda: bool(found.pids))
        (pid,) = found.pids
    assert found.pids == []
    await until(lambda: is_gone(pid))


async def test_without_the_setting_there_is_none(tmp_path: Path) -> None:
    content = [os.urandom(1024) for _ in range(4096)]
    before = set(threading.enumerate())
    settings = UploadSettings(fragment_bytes=2 << 20)
    async with Wal.open(tmp_path / "log", tier=tier(MemoryStore(), settings=settings)) as wal:
        await wal.append_many(content, durability="cloud")
        new = {thread.name for thread in set(threading.enumerate()) - before}
        assert not any("encoder" in name for name in new)
