"""Settings: defaults are valid, every bound is checked, mistakes are named."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pickle
from itertools import pairwise

import pytest

from walstore import settings as module
from walstore.errors import InvalidSettingsError
from walstore.records import Durability
from walstore.settings import GIB, KIB, MIB, Settings, parse_durability

ALLOWED = [
    ("segment_bytes", 64 * KIB),
    ("segment_bytes", 2 * GIB),
    ("segment_age_seconds", 0.001),
    ("segment_age_seconds", None),
    ("cache_bytes", 0),
    ("channel_bytes", 16 * MIB),
    ("channel_bytes", 1 * GIB),
    ("channel_records", 1),
    ("max_record_bytes", 1),
    ("max_record_bytes", 64 * MIB),
    ("batch_bytes", 4 * KIB),
    ("batch_bytes", 256 * MIB),
    ("checkpoint_bytes", 64 * KIB),
    ("read_ahead_bytes", 4 * KIB),
    ("read_ahead_bytes", 64 * MIB),
    ("retention_bytes", 0),
    ("retention_bytes", None),
    ("retention_seconds", 0.001),
    ("retention_seconds", None),
    ("max_timestamp_lead_seconds", 0),
    ("sync", "batch"),
    ("sync", "os"),
    ("sync", 0.001),
    ("sync", 3600),
    ("linger_seconds", 0),
    ("linger_seconds", 10),
    ("compression", None),
    ("compression", "zstd"),
    ("transaction_memory_bytes", 1),
    ("producer_window", 1),
    ("producer_window", 10_000),
    ("max_producers", 1),
    ("min_free_bytes", 0),
]

REFUSED = [
    ("segment_bytes", 64 * KIB - 1),
    ("segment_bytes", 2 * GIB + 1),
    ("segment_bytes", "64 MiB"),
    ("segment_bytes", True),
    ("segment_bytes", None),
    ("segment_age_seconds", 0),
    ("segment_age_seconds", -1.0),
    ("segment_age_seconds", float("nan")),
    ("cache_bytes", -1),
    ("channel_bytes", 16 * MIB - 1),
    ("channel_bytes", GIB + 1),
    ("channel_records", 0),
    ("max_record_bytes", 0),
    ("max_record_bytes", 512 * MIB + 1),
    ("batch_bytes", 4 * KIB - 1),
    ("batch_bytes", 256 * MIB + 1),
    ("checkpoint_bytes", 64 * KIB - 1),
    ("read_ahead_bytes", 4 * KIB - 1),
    ("read_ahead_bytes", 64 * MIB + 1),
    ("retention_bytes", -1),
    ("retention_bytes", "all"),
    ("retention_seconds", 0),
    ("retention_seconds", float("nan")),
    ("max_timestamp_lead_seconds", -0.1),
    ("max_timestamp_lead_seconds", float("nan")),
    ("sync", "never"),
    ("sync", 0),
    ("sync", 3601),
    ("sync", True),
    ("sync", None),
    ("linger_seconds", -1),
    ("linger_seconds", 11),
    ("compression", "gzip"),
    ("transaction_memory_bytes", 0),
    ("producer_window", 0),
    ("producer_window", 10_001),
    ("max_producers", 0),
    ("min_free_bytes", -1),
    ("durability", "fast"),
    ("durability", None),
    ("durability", "replicated"),
]


def test_defaults_are_valid_and_immutable() -> None:
    settings = Settings()
    assert settings.durability is Durability.DISK
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.cache_bytes = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        Settings(Durability.DISK)  # type: ignore[misc]


@pytest.mark.parametrize(("name", "value"), ALLOWED)
def test_bounds_are_allowed(name: str, value: object) -> None:
    assert getattr(Settings().replace(**{name: value}), name) == value


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_values_outside_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidSettingsError, match=name) as caught:
        Settings(**{name: value})  # type: ignore[arg-type]
    assert repr(value) in str(caught.value)


def test_every_setting_is_bounded_by_these_tests() -> None:
    names = {field.name for field in dataclasses.fields(Settings)}
    assert names == {name for name, _ in REFUSED}


def test_every_setting_is_documented() -> None:
    tree = ast.parse(inspect.getsource(module))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef))
    for field, follower in pairwise(body):
        if isinstance(field, ast.AnnAssign):
            assert isinstance(follower, ast.Expr), f"{ast.unparse(field)} has no docstring"
            assert isinstance(follower.value, ast.Constant)


def test_a_record_must_fit_the_channel() -> None:
    with pytest.raises(InvalidSettingsError, match="channel_bytes"):
        Settings(max_record_bytes=100 * MIB)
    assert Settings(max_record_bytes=100 * MIB, channel_bytes=100 * MIB).channel_bytes == 100 * MIB


def test_replace_changes_only_what_is_named() -> None:
    changed = Settings().replace(cache_bytes=0, durability="memory")
    assert changed == Settings(cache_bytes=0, durability=Durability.MEMORY)
    assert changed.durability is Durability.MEMORY
    with pytest.raises(TypeError):
        Settings().replace(no_such_setting=1)


def test_settings_can_be_pickled() -> None:
    settings = Settings(cache_bytes=5)
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize("name", ["memory", "disk", "cloud", "replicated"])
def test_levels_are_given_as_words_or_members(name: str) -> None:
    assert parse_durability(name) is parse_durability(Durability(name)) is Durability(name)
