"""What walstore serve is set to: names, places and their order, and what is refused."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.walstore.cli.conftest import Cli
from walstore import Settings
from walstore.cli.configuration import Configuration, configure, parse_file, variable_of
from walstore.cli.errors import UsageError

MIB = 1 << 20


def test_the_last_place_counts() -> None:
    file = {"log": {"cache_bytes": MIB, "linger_seconds": 0.5, "retention_bytes": 7}}
    environment = {"WALSTORE_LOG_CACHE_BYTES": "2 MiB", "WALSTORE_LOG_RETENTION_BYTES": "none"}
    found = Configuration(
        file=file,
        file_name="w.toml",
        environment=environment,
        given=["log.cache_bytes = 3MiB"],
    )
    assert found.log == Settings(cache_bytes=3 * MIB, linger_seconds=0.5)
    shown = found.as_json()
    assert shown["log.cache_bytes"] == {
        "value": 3 * MIB,
        "source": "--set, not WALSTORE_LOG_CACHE_BYTES",
    }
    assert shown["log.linger_seconds"]["source"] == "w.toml"
    assert shown["log.retention_bytes"] == {
        "value": None,
        "source": "WALSTORE_LOG_RETENTION_BYTES, not w.toml",
    }
    assert shown["store.max_open_logs"] == {"value": 256, "source": "default"}


def test_every_field_of_every_section_can_be_set() -> None:
    """By the text that shows its default, in each of the places."""
    found = Configuration()
    shown = tomllib.loads(found.as_toml({}))
    names = found.as_json()
    again = Configuration(file=shown, file_name="w.toml")
    for section in ("log", "store", "upload", "serve", "http"):
        assert getattr(again, section) == getattr(found, section)
    assert {entry["source"] for entry in again.as_json().values()} == {"w.toml"}
    texts = {}
    for name in names:
        value = shown
        for part in name.split("."):
            value = value[part]
        texts[name] = str(value).lower() if isinstance(value, bool) else str(value)
    environment = {variable_of(name): text for name, text in texts.items()}
    options = [f"{name}={text}" for name, text in texts.items()]
    for other in (Configuration(environment=environment), Configuration(given=options)):
        assert [entry["value"] for entry in other.as_json().values()] == [
            entry["value"] for entry in names.values()
        ]


def test_sections_are_the_settings() -> None:
    names = Configuration().as_json()
    for field in dataclasses.fields(Settings):
        assert f"log.{field.name}" in names
    assert "upload.roll_up.fragments_per_snapshot" in names


def test_a_part_of_settings_is_set() -> None:
    found = Configuration(given=["upload.roll_up.fragments_per_snapshot=128"]).upload
    assert found.roll_up.fragments_per_snapshot == 128
    assert found.fragment_bytes == 8 * MIB


@given(st.integers(0, 2**62))
def test_sizes_are_written_in_units_or_bytes(number: int) -> None:
    found = Configuration(given=[f"log.retention_bytes={number}"])
    again = Configuration(file=tomllib.loads(found.as_toml({})), file_name="w")
    assert again.log.retention_bytes == found.log.retention_bytes == number


@pytest.mark.parametrize(
    ("file", "said"),
    [
        pytest.param(
            {"version": 2},
            "w.toml is of version 2; this walstore reads version 1",
            id="another version",
        ),
        pytest.param({"logs": {}}, "no table [logs]; did you mean [log]", id="an unknown table"),
        pytest.param(
            {"log": {"cache": 1}}, "w.toml: there is no setting log.cache", id="an unknown name"
        ),
        pytest.param({"log": 7}, "log must be a table, [log]", id="no table"),
        pytest.param({"cache_bytes": 7}, "there is no setting cache_bytes", id="a lone value"),
        pytest.param(
            {"log": {"cache_bytes": [1]}}, "log.cache_bytes must be a whole number", id="a list"
        ),
        pytest.param(
            {"log": {"cache_bytes": True}}, "log.cache_bytes must be a whole number", id="a flag"
        ),
        pytest.param(
            {"log": {"cache_bytes": {"a": 1}}},
            "no table [log.cache_bytes]",
            id="a table in a value",
        ),
        pytest.param(
            {"log": {"cache_bytes": "7 MB"}}, "log.cache_bytes must be a whole number", id="a size"
        ),
    ],
)
def test_a_wrong_file_is_refused(file: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        Configuration(file=file, file_name="w.toml")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param(["log.cache_bytes"], "--set takes NAME=VALUE", id="no value"),
        pytest.param(["=7"], "--set takes NAME=VALUE", id="no name"),
        pytest.param(
            ["log.cache_bytes=1", "log.cache_bytes=2"],
            "log.cache_bytes is given twice",
            id="given twice",
        ),
        pytest.param(["log.cachebytes=1"], "did you mean log.cache_bytes", id="unknown"),
        pytest.param(["log.cache_bytes=-1"], "--set: log.cache_bytes must be", id="out of range"),
        pytest.param(
            ["log.durability=tape"], "--set: log.durability must be 'memory'", id="no word of it"
        ),
        pytest.param(
            ["log.cache_bytes=none"], "log.cache_bytes must be", id="none where there is always one"
        ),
        pytest.param(
            ["log.channel_bytes=1MiB"],
            "[log]: channel_bytes must be at least",
            id="two that differ",
        ),
    ],
)
def test_a_wrong_option_is_refused(given: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        Configuration(given=given)


def test_a_variable_that_names_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=re.escape("did you mean WALSTORE_LOG_CACHE_BYTES")):
        Configuration(environment={"WALSTORE_LOG_CACHE_BYTE": "1"})


def test_variables_of_others_are_left_aside() -> None:
    """An empty one counts as none; Kubernetes makes the others for a service named walstore-log."""
    environment = {
        "WALSTORE_LOG_CACHE_BYTES": "",
        "WALSTORE_TOKEN": "t",
        "WALSTORE_LOG_SERVICE_HOST": "10.0.0.1",
        "WALSTORE_LOG_SERVICE_PORT_HTTP": "7421",
        "WALSTORE_LOG_PORT": "tcp://10.0.0.1:7420",
        "WALSTORE_LOG_PORT_7420_TCP_ADDR": "10.0.0.1",
    }
    found = Configuration(environment=environment)
    assert {entry["source"] for entry in found.as_json().values()} == {"default"}


def test_a_setting_of_what_is_not_served_is_refused() -> None:
    Configuration(environment={"WALSTORE_HTTP_CONNECTIONS": "7"}).check_used({"http": "--http"})
    with pytest.raises(UsageError, match=re.escape("--set http.connections needs --http")):
        Configuration(given=["http.connections=7"]).check_used({"http": "--http"})


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape("w.toml is no TOML file")):
        parse_file(b"[log", "w.toml")
    with pytest.raises(UsageError, match=re.escape("w.toml is no TOML file")):
        parse_file(b"\xff", "w.toml")
    with pytest.raises(UsageError, match=r"cannot read --config .*: No such file"):
        configure(tmp_path / "missing.toml", [], None)


def test_numbers_of_too_many_digits_and_deep_nesting_are_refused(tmp_path: Path) -> None:
    for value in ("9" * 5000, "9" * 5000 + "GiB", "[" * 5000):
        with pytest.raises(UsageError, match=r"log\.cache_bytes must be") as told:
            Configuration(given=[f"log.cache_bytes={value}"])
        assert len(str(told.value)) < 1000
        with pytest.raises(UsageError, match=r"w\.toml"):
            content = parse_file(f"[log]\ncache_bytes = {value}".encode(), "w.toml")
            Configuration(file=content, file_name="w.toml")
    with pytest.raises(UsageError, match=r"w\.toml is no TOML file"):
        parse_file(b"version = " + b"9" * 5000, "w.toml")


def test_a_byte_order_mark_is_no_part_of_the_file() -> None:
    assert parse_file("[log]\n".encode("utf-8-sig"), "w.toml") == {"log": {}}


def test_a_name_of_a_file_cannot_add_settings(tmp_path: Path) -> None:
    path = tmp_path / "a\nmin_free_bytes = 0 #.toml"
    path.write_text("[log]\ncache_bytes = 7\n")
    found = configure(path, [], None)
    again = tomllib.loads(found.as_toml({}))
    assert again["log"]["min_free_bytes"] == "64 MiB"
    assert r"a\nmin_free_bytes" in found.as_json()["log.cache_bytes"]["source"]


def test_the_time_to_drain_is_one_setting_of_two_sections() -> None:
    found = configure(None, [], 7.0)
    assert (found.serve.drain_seconds, found.http.drain_seconds) == (7.0, 7.0)
    assert found.as_json()["serve.drain_seconds"]["source"] == "--drain-seconds"
    found.check_used({"http": "--http"})  # nobody gave that one alone
    assert (configure(None, [], None).http.drain_seconds) == 10.0
    with pytest.raises(UsageError, match=re.escape("--drain-seconds is for serve.drain_seconds")):
        configure(None, ["serve.drain_seconds=3"], 7.0)


def test_show_config_serves_nothing(cli: Cli, tmp_path: Path) -> None:
    directory = tmp_path / "log"
    config = tmp_path / "w.toml"
    config.write_text('[log]\nretention_bytes = "10 GiB"\n')
    arguments = ("serve", directory, "--config", config, "--show-config")
    shown = cli(*arguments).out.decode()
    assert f'retention_bytes = "10 GiB"  # {config}' in shown
    assert "[upload]  # not used without --tier URL" in shown
    found = cli(*arguments, "--json").json
    assert found["log.retention_bytes"]["value"] == 10 << 30
    assert not directory.exists()
