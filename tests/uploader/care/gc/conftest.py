"""A log to collect from."""

from __future__ import annotations

import pytest

from tests.uploader.places import Place


@pytest.fixture
async def place() -> Place:
    """A log of twelve fragments with one record each, rolled up, and a cursor at 8."""
    made = await Place.make()
    await made.cursors.commit("billing", 8)
    return made
