"""The fixture ``face``: one way to have a log, with a neighbour on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.faces import FACES, Face


@pytest.fixture
async def face(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Face]:
    async with FACES[request.param](tmp_path) as found:
        yield found
