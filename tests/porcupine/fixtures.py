"""Fixtures with which histories of a log are checked, by our checker and by Porcupine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.histories import Checker, History, problems
from tests.porcupine import checker


@pytest.fixture(scope="session")
def porcupine(tmp_path_factory: pytest.TempPathFactory) -> Path | str:
    """The program with Porcupine, or why there is none; built once for all workers."""
    own = tmp_path_factory.getbasetemp()
    return checker.build_once(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)


@pytest.fixture
def check_history(porcupine: Path | str) -> Checker:
    """Return what is wrong with a history: what our checker finds, and Porcupine, where it is."""

    def check(history: History, log: Mapping[int, bytes]) -> list[str]:
        found = problems(history, log)
        if isinstance(porcupine, Path):
            said = checker.verdict(porcupine, history, log)
            print(f"Porcupine: {said}")
            found += [] if said == "Ok" else [f"Porcupine: {said}"]
        return found

    return check
