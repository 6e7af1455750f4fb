"""What walstore prove is for: a defect below the log makes a round fail, which says what is wrong."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tests.walstore.cli.prove.defects import LyingFileSystem
from walstore import CorruptionError
from walstore.cli.prove import flips
from walstore.cli.prove.full_disk import fill_disk
from walstore.cli.prove.power import fail_power
from walstore.cli.prove.promises import BrokenPromiseError
from walstore.core.files.posix import PosixFileSystem

KILLS = """
import sys
from collections import Counter
from pathlib import Path
from tests.walstore.cli.prove.defects import LyingFileSystem
from walstore.cli.prove.kills import KillRound
from walstore.cli.prove.writers import Scene
from walstore.core.files.posix import PosixFileSystem
fs = LyingFileSystem(PosixFileSystem(), lost_write=5)
KillRound(Scene("log", Path(sys.argv[1]), 2, fs), Counter()).run(6)
"""
BUCKET = """
import sys
from collections import Counter
from pathlib import Path
from tests.walstore.cli.prove.defects import LosingStore
from walstore.cli.prove.bucket import BucketRound
from walstore.cli.prove.bucket_writers import BucketScene
url = Path(sys.argv[1], "store").as_uri()
scene = BucketScene(url, 2, False, lambda store: LosingStore(store, 3))
BucketRound(scene, Counter()).run(2)
"""
CORRUPTION = ("walstore.errors.CorruptionError: ",)
NOTICED = (BrokenPromiseError, CorruptionError)


@pytest.mark.slow
def test_syncs_that_do_nothing_lose_records_with_the_power(tmp_path: Path) -> None:
    with pytest.raises(NOTICED):
        fail_power(tmp_path, 0, Counter(), above=LyingFileSystem)
    assert (tmp_path / "outcome").is_dir()  # the evidence


@pytest.mark.slow
def test_writes_that_a_disk_loses_are_missed(tmp_path: Path) -> None:
    fs = LyingFileSystem(PosixFileSystem(), lost_write=7)
    with pytest.raises(NOTICED):
        fill_disk(tmp_path, 3, Counter(), fs=fs)


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.parametrize("program", [KILLS, BUCKET])
def test_a_kill_shows_what_was_acknowledged_and_is_lost(tmp_path: Path, program: str) -> None:
    done = programs.run(program, tmp_path)
    assert done.returncode == 1
    last = done.stderr.rstrip().splitlines()[-1]
    assert last.startswith(("walstore.cli.prove.promises.BrokenPromiseError: ", *CORRUPTION)), last


@pytest.mark.slow
def test_a_repair_that_loses_more_than_it_says_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_repair, apply_repair = flips.plan_repair, flips.apply_repair

    def plan(log: Path, **options: Any) -> Any:
        return dataclasses.replace(plan_repair(log, **options), lost=())

    def apply(given: Any) -> None:
        apply_repair(plan_repair(given.path, keep=given.keep))

    monkeypatch.setattr(flips, "plan_repair", plan)
    monkeypatch.setattr(flips, "apply_repair", apply)
    with pytest.raises(BrokenPromiseError, match="the repair lost offset") as caught:
        flips.flip_bits(tmp_path, 0, Counter())
    assert "was flipped" in caught.value.__notes__[0]
    assert (tmp_path / "flipped").is_dir()  # the evidence
