"""Locks on logs and stores; between processes: tests/scenarios/test_30_store.py."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from walstore.core.files.locks import STORE_NAME, lock_in_store, lock_log, lock_store
from walstore.core.files.posix import PosixFileSystem
from walstore.errors import WalLockedError
from walstore.store.directory import name_of
from walstore.testing import FaultyFileSystem


@pytest.fixture
def fs(tmp_path: Path) -> PosixFileSystem:
    (tmp_path / "log").mkdir()
    (tmp_path / "other").mkdir()
    return PosixFileSystem()


def test_the_name_of_the_lock_is_no_log(fs: PosixFileSystem) -> None:
    assert name_of(STORE_NAME) is None


def test_a_log_outside_of_stores_has_its_own_lock_only(fs, tmp_path: Path) -> None:
    lock = lock_log(fs, tmp_path / "log", "me")
    assert os.listdir(tmp_path / "log") == ["LOCK"]
    with pytest.raises(WalLockedError) as found:
        lock_log(fs, tmp_path / "log", "you")
    assert (found.value.owner, found.value.path) == ("me", str(tmp_path / "log"))
    lock.release()
    lock.release()
    lock_log(fs, tmp_path / "log", "you").release()


def test_a_store_excludes_logs_by_themselves_and_the_other_way_round(fs, tmp_path: Path) -> None:
    store = lock_store(fs, tmp_path, "the store")
    for name in ("log", "other"):
        with pytest.raises(WalLockedError) as found:
            lock_log(fs, tmp_path / name, "me")
        assert (found.value.owner, found.value.path) == ("the store", str(tmp_path / name))
    store.release()
    one, two = (lock_log(fs, tmp_path / name, "me") for name in ("log", "other"))
    one.release()
    with pytest.raises(WalLockedError):
        lock_store(fs, tmp_path, "the store")
    two.release()
    lock_store(fs, tmp_path, "the store").release()


def test_what_a_refused_opener_locked_is_released(fs, tmp_path: Path) -> None:
    store = lock_store(fs, tmp_path, "the store")
    with pytest.raises(WalLockedError):
        lock_log(fs, tmp_path / "log", "me")
    lock_in_store(fs, tmp_path / "log", "the store")
    store.release()
    faulty = FaultyFileSystem(fs)
    faulty.fail("lock_shared", errno.EIO)
    with pytest.raises(OSError):
        lock_log(faulty, tmp_path / "log", "me")
    lock_log(fs, tmp_path / "log", "me").release()


def test_a_store_sees_a_log_that_was_open_before_it(fs, tmp_path: Path) -> None:
    alone = lock_log(fs, tmp_path / "log", "me")
    store = lock_store(fs, tmp_path, "the store")
    with pytest.raises(WalLockedError) as found:
        lock_in_store(fs, tmp_path / "log", "the store")
    assert found.value.owner == "me"
    alone.release()
    lock_in_store(fs, tmp_path / "log", "the store").release()
    lock_in_store(fs, tmp_path / "other", "the store").release()
    store.release()
