"""Settings of a store are checked when they are made."""

from __future__ import annotations

import dataclasses

import pytest

from walstore.errors import InvalidSettingsError
from walstore.store.store_settings import StoreSettings


def test_defaults_are_allowed_and_frozen() -> None:
    settings = StoreSettings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.cache_bytes = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    "changes",
    [
        {"cache_bytes": -1},
        {"channel_bytes": 1000},
        {"writer_threads": 0},
        {"reader_threads": 257},
        {"max_open_logs": 0},
        {"max_concurrent_opens": 0},
        {"max_open_logs": True},
        {"cache_bytes": 1.5},
        {"cache_bytes": "1"},
    ],
)
def test_what_is_refused(changes: dict[str, int]) -> None:
    (name,) = changes
    with pytest.raises(InvalidSettingsError, match=name):
        StoreSettings(**changes)
    with pytest.raises(InvalidSettingsError, match=name):
        StoreSettings().replace(**changes)


def test_replace_changes_some() -> None:
    assert StoreSettings().replace(max_open_logs=3) == StoreSettings(max_open_logs=3)
