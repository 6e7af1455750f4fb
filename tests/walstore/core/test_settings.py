"""Settings: defaults are valid, every bound is checked, mistakes are named."""

from __future__ import annotations

import dataclasses
import enum
import math
import pickle
import pydoc
import re

import pytest

import uploader
import uploader.stores
import walstore
from tests.cases import case
from uploader.partitioned.sink_settings import SinkSettings
from walstore import StoreSettings
from walstore.core.settings import GIB, KIB, MIB, Settings, parse_durability
from walstore.core.validation.fields import Rule, check_fields, default_of, number, rule_of
from walstore.errors import InvalidSettingsError
from walstore.records import Durability

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
    ("max_append_bytes_per_second", 1),
    ("max_append_bytes_per_second", None),
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
    ("max_append_bytes_per_second", 0),
    ("max_append_bytes_per_second", 0.5),
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
    ("segment_bytes", 1e6),
    ("segment_bytes", float(64 * MIB)),
    ("channel_records", 1e6),
    ("producer_window", 64.0),
    ("retention_bytes", 1e9),
    ("cache_bytes", float("inf")),
    ("cache_bytes", 1 << 63),
    ("cache_bytes", 10**400),
    ("checkpoint_bytes", 10**30),
    ("retention_bytes", 10**30),
    ("max_timestamp_lead_seconds", float("inf")),
    ("max_timestamp_lead_seconds", 10**400),
    ("max_timestamp_lead_seconds", True),
    ("max_timestamp_lead_seconds", "1"),
    ("retention_seconds", float("inf")),
    ("retention_seconds", True),
    ("retention_seconds", "1"),
    ("segment_age_seconds", float("inf")),
    ("segment_age_seconds", 1e300),
    ("segment_age_seconds", "1"),
    ("linger_seconds", float("nan")),
    ("sync", float("nan")),
    ("sync", [1]),
    ("durability", ["disk"]),
    ("durability", "fast"),
    ("durability", None),
]

EVERY_KIND = sorted(
    {
        found
        for module in (walstore, uploader, uploader.stores)
        for name in module.__all__
        if dataclasses.is_dataclass(found := getattr(module, name))
        and name.endswith(("Settings", "Policy", "Prices"))
    }
    | {SinkSettings},
    key=lambda kind: kind.__name__,
)
"""All classes of settings, found by their names."""
NO_VALUES = {"clock", "jitter"}
"""Fields that take an object of the caller's, with methods."""
BESIDE = {"first_wait_seconds": {"longest_wait_seconds": 1e12}}
"""Other fields that must be set with one of so high a value."""
WRONG = [
    8.0,
    1.5,
    True,
    "8",
    "",
    b"8",
    None,
    math.nan,
    math.inf,
    -math.inf,
    -1,
    1 << 63,
    10**400,
    1e300,
    [],
    {},
    5j,
    object(),
]
"""What is refused everywhere but where a rule says in so many words that it may be."""


def is_allowed(rule: Rule, value: object) -> bool:
    """Whether the kind of a field has such a value, said apart from the code that checks it."""
    if value is None:
        return rule.optional
    if rule.kind == "flag":
        return value is True
    if rule.kind not in {"seconds", "number"} or type(value) is not float:
        return False
    most = 1e12 if rule.high is None else rule.high
    return math.isfinite(value) and rule.low < value <= most


def test_defaults_are_valid_and_immutable() -> None:
    settings = Settings()
    assert settings.durability is Durability.DISK
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.cache_bytes = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        Settings(Durability.DISK)  # type: ignore[misc]


def test_bounds_are_allowed() -> None:
    for name, value in ALLOWED:
        with case(name, value):
            assert getattr(Settings().replace(**{name: value}), name) == value


def test_values_outside_are_refused_by_name() -> None:
    for name, value in REFUSED:
        with case(name, value):
            with pytest.raises(InvalidSettingsError, match=name) as caught:
                Settings(**{name: value})  # type: ignore[arg-type]
            assert repr(value) in str(caught.value)


def test_every_setting_is_bounded_by_these_tests() -> None:
    names = {field.name for field in dataclasses.fields(Settings)}
    assert names == {name for name, _ in REFUSED}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_help_shows_each_field_with_what_it_may_be(kind) -> None:
    page = pydoc.plain(pydoc.render_doc(kind))
    for field in dataclasses.fields(kind):
        if field.name in NO_VALUES:
            continue
        _, _, entry = page.partition(f" {field.name}:\n")
        entry = re.split(r"\n \| *\n", entry)[0]  # without blanks from Python 3.14 on
        entry = " ".join(entry.replace("|", "").split())
        rule = rule_of(field)
        assert rule is not None, field.name
        meaning = " ".join(rule.meaning.split())
        assert entry.startswith(meaning), field.name
        facts = f"{rule.range}. Default: {default_of(field)}."
        assert entry.removeprefix(meaning).strip().lower() == facts.lower(), field.name


def test_a_range_has_a_unit_and_both_ends() -> None:
    page = Settings.__doc__
    assert page is not None
    assert "A whole number of bytes, from 64 KiB to 2 GiB. Default: 64 MiB." in page
    assert "A number of seconds, more than 0, or None. Default: None." in page
    assert "'batch', 'os', or a number of seconds, more than 0, 3600 at most." in page
    assert "'memory', 'disk', 'cloud' or 'replicated'. Default: 'disk'." in page


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


class _Lying(int):
    """A number that says it is small."""

    def __le__(self, other):
        return True

    __lt__ = __ge__ = __gt__ = __le__


def test_numbers_are_kept_in_their_plain_types() -> None:
    class Size(enum.IntEnum):
        MIB = MIB

    settings = Settings(cache_bytes=Size.MIB, segment_age_seconds=60)
    assert type(settings.cache_bytes) is int
    assert (settings.cache_bytes, settings.segment_age_seconds) == (MIB, 60)
    with pytest.raises(InvalidSettingsError, match="batch_bytes"):
        Settings(batch_bytes=_Lying(1))


def test_numbers_of_a_store_are_checked_the_same_way() -> None:
    for value in (1e6, True, "8", 0, 10**30):
        with pytest.raises(InvalidSettingsError, match="writer_threads"):
            StoreSettings(writer_threads=value)  # type: ignore[arg-type]


def test_all_classes_of_settings_are_found() -> None:
    names = {kind.__name__ for kind in EVERY_KIND}
    assert names == {
        "ChainSettings",
        "CollectorSettings",
        "ControllerSettings",
        "HedgeSettings",
        "MaterializerSettings",
        "Prices",
        "RetryPolicy",
        "RollUpSettings",
        "Settings",
        "SinkSettings",
        "StoreSettings",
        "UploadSettings",
        "WriterSettings",
    }


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_field_of_every_class_refuses_what_it_cannot_be(kind) -> None:
    for field in dataclasses.fields(kind):
        if field.name in NO_VALUES:
            continue
        rule = rule_of(field)
        assert rule is not None, field.name
        for value in WRONG:
            if is_allowed(rule, value):
                made = kind(**BESIDE.get(field.name, {}) | {field.name: value})
                assert getattr(made, field.name) == value
                continue
            with pytest.raises(InvalidSettingsError, match=f"{field.name} must be ") as caught:
                kind(**{field.name: value})
            assert rule.range in str(caught.value)


def test_settings_within_settings_are_of_their_class() -> None:
    with pytest.raises(InvalidSettingsError, match="roll_up must be an object of the class Roll"):
        uploader.WriterSettings(roll_up=uploader.ChainSettings())  # type: ignore[arg-type]
    shorter = uploader.RollUpSettings(fragments_per_snapshot=2)
    assert uploader.UploadSettings(roll_up=shorter).roll_up is shorter


def test_a_number_may_be_bounded_from_both_sides() -> None:
    @dataclasses.dataclass(frozen=True)
    class Half:
        part: float = number(0.5, "A part.", high=1, above=True, below=True)

        def __post_init__(self) -> None:
            check_fields(self)

    for value in (0, 1, 1.0):
        with pytest.raises(
            InvalidSettingsError, match="part must be a number, more than 0, less than 1"
        ):
            Half(value)
    assert Half(0.25).part == 0.25
