"""Rounds of walstore prove on a disk and a store that do what they promise."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests import programs
from tests.effort import first_seed
from walstore.cli.prove.flips import flip_bits
from walstore.cli.prove.full_disk import fill_disk
from walstore.cli.prove.power import fail_power

SEED = first_seed("prove")
PAUSES = """
import sys
from collections import Counter
from pathlib import Path
from walstore.cli.prove.kills import KillRound
from walstore.cli.prove.writers import SCENES, Scene
counts, seed = Counter(), int(sys.argv[2])
KillRound(Scene(SCENES[seed % 8], Path(sys.argv[1]), seed), counts, has_pauses=True).run(8)
assert counts["kills"] == 8 and counts["pauses"] == counts["second_writers_refused"], counts
assert counts["acknowledged"] and counts["checked"], counts
"""
BUCKET = """
import sys
from collections import Counter
from pathlib import Path
from walstore.cli.prove.bucket import BucketRound
from walstore.cli.prove.bucket_writers import BucketScene
counts, seed = Counter(), int(sys.argv[2])
scene = BucketScene(Path(sys.argv[1], "store").as_uri(), seed, "faults" in sys.argv)
BucketRound(scene, counts, has_pauses="pauses" in sys.argv).run(2)
assert counts["acknowledged"] and counts["checked"], counts
assert counts["lost_answers"] or "faults" not in sys.argv, counts
assert counts["pauses"] or "pauses" not in sys.argv, counts
"""


@pytest.mark.slow
def test_power_failures(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    fail_power(tmp_path, SEED, counts)
    assert counts["power_outcomes"] == 8 * counts["power_failures"]
    assert counts["checks"] == counts["power_outcomes"]


@pytest.mark.slow
def test_full_disks(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    fill_disk(tmp_path, SEED, counts)
    assert counts["full_disks"]
    assert counts["checks"]


@pytest.mark.slow
def test_flipped_bits(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    flip_bits(tmp_path, SEED, counts, flips=12)
    assert counts["flips"] == counts["flips_detected"] + counts["flips_without_effect"] == 12
    assert counts["flips_detected"]
    assert counts["repairs"]


@pytest.mark.slow
@pytest.mark.kill
def test_paused_writers(tmp_path: Path) -> None:
    done = programs.run(PAUSES, tmp_path, SEED)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.parametrize("how", ["kills", "pauses", "faults"])
def test_writers_to_a_store(tmp_path: Path, how: str) -> None:
    done = programs.run(BUCKET, tmp_path, SEED, how)
    assert done.returncode == 0, done.stderr
