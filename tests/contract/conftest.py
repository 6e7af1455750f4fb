"""The fixtures: one way to have a log, with a neighbour on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.faces import FACES, Face
from tests.contract.neighbour import beside


@pytest.fixture
async def face(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Face]:
    """The log, as one face has it. A neighbour uses the same handle all the time."""
    async with FACES[request.param](tmp_path) as found, beside(found, request.node.name):
        yield found


@pytest.fixture
def log(face: Face) -> Any:
    """What the program has."""
    return face.log
