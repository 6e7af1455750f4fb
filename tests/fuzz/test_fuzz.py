"""A small share of ``make fuzz``: each input through one group of doors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.effort import first_seed, some
from tests.fuzz import bucket_doors, doors, inputs, worker
from tests.fuzz.bases import Base

SHARES = [0, *(pytest.param(share, marks=pytest.mark.slow) for share in range(1, 5))]
INPUTS = some(600)


@pytest.fixture(scope="module", name="bases")
def _bases(tmp_path_factory: pytest.TempPathFactory) -> list[Base]:
    return worker.make_all(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.slow
def test_damaged_and_forged_logs_are_refused_with_typed_errors(
    share: int, bases: list[Base], tmp_path: Path
) -> None:
    wrong = []
    first = first_seed("damaged logs")
    for seed in range(first + share, first + INPUTS, len(SHARES)):
        made = inputs.make(seed, bases)
        chosen = doors.DOORS[seed // 2 % len(doors.DOORS)]
        found = worker.open_input(tmp_path, made, [chosen])
        wrong += [f"seed {seed}: {made.what}: {problem}" for problem in found]
    assert wrong == []


@pytest.mark.slow
def test_logs_that_nobody_damaged_have_no_problems(bases: list[Base], tmp_path: Path) -> None:
    for base in bases:
        assert worker.open_input(tmp_path, inputs.undamaged(base)) == []


@pytest.mark.slow
def test_a_worker_says_what_it_opened(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz.worker", "log", "2", "7", "2", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, check=True)
    lines = [json.loads(text) for text in done.stdout.splitlines()]
    assert [line["seed"] for line in lines if "problems" in line] == [2, 4, 6]


BUCKET_SHARES = [0, *(pytest.param(share, marks=pytest.mark.slow) for share in range(1, 8))]
BUCKETS = some(640)


@pytest.fixture(scope="module", name="buckets")
def _buckets(tmp_path_factory: pytest.TempPathFactory) -> list[Base]:
    return worker.make_all(tmp_path_factory.mktemp("fuzz"), "bucket")


@pytest.mark.parametrize("share", BUCKET_SHARES)
@pytest.mark.slow
def test_damaged_and_hostile_buckets_are_refused_with_typed_errors(
    share: int, buckets: list[Base], tmp_path: Path
) -> None:
    wrong = []
    first = first_seed("damaged buckets")
    for seed in range(first + share, first + BUCKETS, len(BUCKET_SHARES)):
        made = inputs.make_bucket(seed, buckets)
        chosen = bucket_doors.DOORS[seed // 2 % len(bucket_doors.DOORS)]
        found = worker.open_input(tmp_path, made, [chosen])
        wrong += [f"seed {seed}: {made.what}: {problem}" for problem in found]
    assert wrong == []


@pytest.mark.slow
def test_buckets_that_nobody_damaged_have_no_problems(buckets: list[Base], tmp_path: Path) -> None:
    for base in buckets:
        assert worker.open_input(tmp_path, inputs.undamaged(base), bucket_doors.DOORS) == []
