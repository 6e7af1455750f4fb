"""At most so many logs have their files open."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from walstore.core.files.open_files import FileSlot, OpenFiles


class Log:
    """A log as OpenFiles sees it."""

    def __init__(self, files: OpenFiles) -> None:
        self.slot: FileSlot = files.slot(self.park)
        self.is_open = False
        self.users = 0

    def park(self) -> None:
        assert self.users == 0
        self.is_open = False

    def use(self) -> None:
        with self.slot:
            self.users += 1
            assert self.users == 1
            self.is_open = True
            self.users -= 1


def test_the_log_used_longest_ago_is_parked() -> None:
    files = OpenFiles(2)
    a, b, c = (Log(files) for _ in range(3))
    a.use()
    b.use()
    a.use()
    c.use()
    assert (a.is_open, b.is_open, c.is_open) == (True, False, True)
    assert (len(files), files.parkings) == (2, 1)


def test_a_log_in_use_is_passed_over() -> None:
    files = OpenFiles(2)
    a, b, c, d = (Log(files) for _ in range(4))
    a.use()
    b.use()
    with a.slot:
        c.use()
        assert (a.is_open, b.is_open, c.is_open) == (True, False, True)
        with c.slot:
            d.use()
            assert len(files) == 3  # as many as are in use, and one more
    b.use()
    assert (a.is_open, b.is_open, c.is_open, d.is_open) == (False, True, False, True)


def test_a_log_that_closed_its_files_takes_no_room() -> None:
    files = OpenFiles(1)
    a, b = Log(files), Log(files)
    a.use()
    with a.slot:
        a.is_open = False
        a.slot.close()
    assert len(files) == 0
    b.use()
    assert files.parkings == 0


def test_a_slot_is_let_go_when_its_user_fails() -> None:
    files = OpenFiles(1)
    a = Log(files)

    def fail() -> None:
        with a.slot:
            raise OSError

    with pytest.raises(OSError):
        fail()
    a.use()
    assert a.is_open


def test_many_threads_never_touch_a_log_at_the_same_time() -> None:
    files = OpenFiles(3)
    logs = [Log(files) for _ in range(10)]
    most = 0
    guard = threading.Lock()

    def work(seed: int) -> None:
        nonlocal most
        for step in range(500):
            logs[(seed * 7 + step * (seed + 1)) % 10].use()
            with guard:
                most = max(most, len(files))

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, seed) for seed in range(4)]:
            done.result()
    assert most <= 3 + 4
    assert files.parkings > 100
