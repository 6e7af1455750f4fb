"""What is no directory, time or text is refused by the call that got it, with a word on what is meant."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

import pytest

from tests.cases import case
from walstore import InvalidSettingsError, ReadonlyWal, Wal, WalStore
from walstore.core.validation.arguments import (
    as_bytes,
    as_count,
    as_directory,
    as_int,
    as_moment_us,
    as_seconds,
    as_text,
)

OPENINGS: list[Callable[[Any], Awaitable[Any]]] = [
    Wal.open,
    Wal.open_readonly,
    ReadonlyWal.open,
    WalStore.open,
]
URLS = [
    "s3://bucket/x",
    "S3://bucket/x",
    "s3a://bucket/x",
    "gs://bucket/x",
    "file:///srv/x",
    "memory://x",
    "https://example.com/x",
    "anything+odd://x",
]


@pytest.fixture(autouse=True)
def _in_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests may not make anything in the working directory."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.iterdir())


def test_a_url_is_no_directory() -> None:
    for path in (*URLS, *map(Path, URLS[:5])):
        for opening in OPENINGS:
            with case(path, opening):
                with pytest.raises(InvalidSettingsError, match="takes a directory") as caught:
                    opening(path)
                for right in (
                    "CloudLog.open(url)",
                    "CloudWriter.open(url)",
                    "tier=uploader.CloudTier(url)",
                ):
                    assert right in str(caught.value)
                assert str(path) in str(caught.value)


@pytest.mark.parametrize("opening", OPENINGS)
def test_what_is_no_path_is_refused(opening) -> None:
    for path in (b"x", 1, None, ["x"], Path):
        with pytest.raises(TypeError, match="takes a str or a path"):
            opening(path)
    for path, why in (("", "needs a directory"), ("a\0b", "NUL"), ("\ud800", "no file can have")):
        with pytest.raises(InvalidSettingsError, match=why):
            opening(path)


def test_a_home_directory_is_not_expanded() -> None:
    for path in ("~", "~/x", "~root/x", Path("~/x")):
        for opening in OPENINGS:
            message = r"does not expand.*expanduser"
            with case(path, opening), pytest.raises(InvalidSettingsError, match=message):
                opening(path)


def test_other_paths_are_directories() -> None:
    for path in (".", "a", "a~", "a/~", "c:/x", "a:b", "/s3:/x", os.fsdecode(b"\xff"), Path("x")):
        assert as_directory(path, "open()") == Path(path)


async def test_settings_and_tiers_are_objects() -> None:
    with pytest.raises(TypeError, match=r"settings must be walstore\.Settings, not dict"):
        Wal.open("x", settings={"cache_bytes": 0})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"tier=uploader\.CloudTier\('s3://b/x'\)"):
        Wal.open("x", tier="s3://b/x")  # type: ignore[arg-type]


def test_times() -> None:
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    assert as_moment_us(moment) == as_moment_us(1_704_067_200_000_000) == 1_704_067_200_000_000

    class NoZone(tzinfo):
        def utcoffset(self, _):
            return None

    for naive in (datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=NoZone())):
        with pytest.raises(ValueError, match="needs a time zone"):
            as_moment_us(naive)
    for other in (True, 1.5, "2024-01-01", None, moment.date()):
        with pytest.raises(TypeError, match="aware datetime or an int"):
            as_moment_us(other)  # type: ignore[arg-type]


def test_counts_are_whole_numbers_within_bounds() -> None:
    assert (as_count(1, "n"), as_count(64, "n", high=64)) == (1, 64)
    for value in (0, -1, 65, 10**400, -(10**5000)):
        with pytest.raises(InvalidSettingsError, match="n must be 1 to 64, not"):
            as_count(value, "n", high=64)
    with pytest.raises(InvalidSettingsError, match="n must be at least 1, not 0"):
        as_count(0, "n")
    for other in (True, 1.0, "1", None):
        with pytest.raises(TypeError, match="n must be an int"):
            as_count(other, "n")


def test_numbers_of_seconds_are_finite() -> None:
    assert (as_seconds(1, "s"), as_seconds(0.5, "s")) == (1.0, 0.5)
    for value in (float("inf"), float("nan"), 10**400):
        with pytest.raises(InvalidSettingsError, match="s must be a finite number"):
            as_seconds(value, "s")
    for value in (True, "1", None):
        with pytest.raises(TypeError, match="s must be a number of seconds"):
            as_seconds(value, "s")


def test_plain_values_stay_the_same_objects() -> None:
    for value, check in (("text", as_text), (b"bytes", as_bytes), (1 << 70, as_int)):
        assert check(value, "it") is value
