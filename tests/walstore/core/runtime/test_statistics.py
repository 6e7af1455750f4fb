"""What counts as an error of a log, and how far its readers are behind."""

from __future__ import annotations

import gc
import threading
import weakref

from walstore import DiskFullError, RecordTooLargeError, WalClosedError, WouldBlock
from walstore.core.runtime.statistics import ErrorCounts, Followers


def test_errors_are_counted_by_type() -> None:
    errors = ErrorCounts()
    errors.count(DiskFullError("full"))
    errors.count(DiskFullError("full"))
    errors.count(RecordTooLargeError("large", size_bytes=2, limit_bytes=1))
    assert errors.snapshot() == {"DiskFullError": 2, "RecordTooLargeError": 1}


def test_waiting_and_closing_are_no_errors() -> None:
    errors = ErrorCounts()
    errors.count(WouldBlock("wait"))
    errors.count(WalClosedError("closed"))
    assert errors.snapshot() == {}


def test_a_snapshot_stays_as_it_is() -> None:
    errors = ErrorCounts()
    before = errors.snapshot()
    errors.count(DiskFullError("full"))
    assert before == {}


class Place:
    """A reader that is nothing but a position."""

    def __init__(self, position: int) -> None:
        self.position = position


def test_the_slowest_counts() -> None:
    followers: Followers[Place] = Followers()
    assert followers.look(100) == (0, 0)
    readers = [Place(100), Place(40), Place(90)]
    for reader in readers:
        followers.add(reader)
    assert followers.look(100) == (3, 60)
    readers[1].position = 95
    assert followers.look(100) == (3, 10)


def test_a_reader_ahead_of_the_limit_is_not_behind() -> None:
    followers = Followers()
    reader = Place(7)
    followers.add(reader)
    assert followers.look(5) == (1, 0)


def test_readers_are_not_kept() -> None:
    followers = Followers()
    reader = Place(1)
    gone = weakref.ref(reader)
    followers.add(reader)
    del reader
    gc.collect()
    assert gone() is None
    assert followers.look(10) == (0, 0)
    assert not followers._references


def test_looking_while_readers_come_and_go() -> None:
    """A look on another thread neither fails nor misses one that stays."""
    followers = Followers()
    stays = Place(0)
    followers.add(stays)
    done = threading.Event()
    found: list[tuple[int, int]] = []
    errors: list[BaseException] = []

    def watch() -> None:
        try:
            while not done.is_set():
                found.append(followers.look(10))
        except BaseException as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    for _ in range(20):
        passing = [Place(5) for _ in range(500)]
        for reader in passing:
            followers.add(reader)
        del passing, reader
    done.set()
    thread.join()
    assert not errors
    assert found
    assert {lag for _, lag in found} == {10}
