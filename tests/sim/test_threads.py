"""Threads of simulated processes: a real lock between them is found, not waited for."""

from __future__ import annotations

import threading
from random import Random

import pytest

from tests.sim import threads
from tests.sim.loop import SimLoop
from walstore.core.files import anchor, open_files, unlinked_file
from walstore.log import retention
from walstore.positions.cursors import kept


def test_a_thread_that_waits_for_a_real_lock_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "STUCK_SECONDS", 0.1)
    taken = threading.Lock()

    def wait_for_the_lock() -> None:
        with taken:
            pass

    with taken:
        body = threads.Body.take(wait_for_the_lock)
        with pytest.raises(RuntimeError, match="in wait_for_the_lock"):
            body.step()
    assert body.back.acquire(timeout=60)  # it ends, and is free for the next one


def test_all_locks_of_the_log_are_simulated() -> None:
    """Also those that a thread holds while it frees parts of a file."""
    found = threads.modules_with_locks()
    for module in (open_files, unlinked_file, anchor, retention, kept):
        assert module in found
    loop = SimLoop(Random(0), shuffles=False)
    with threads.simulated_threads(Random(0), loop):
        assert isinstance(unlinked_file.threading.Lock(), threads.SimLock)
    loop.close()
