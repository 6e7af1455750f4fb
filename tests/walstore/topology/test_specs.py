"""Specs of logs: how the list of copies changes, how many are needed, and how logs are selected."""

from __future__ import annotations

import pytest

from tests.cases import case
from walstore.core.settings import Settings
from walstore.errors import InvalidSettingsError
from walstore.topology.documents import LogSpec, check_log_name, is_selected, parse_selector

SPEC = LogSpec(3, copies=("a", "b", "c"), preferred="b", generation=5, joined={"a": 2, "b": 5})
LABELS = {"env": "prod", "team": "data", "empty": ""}


def test_another_list_of_copies_is_of_the_next_generation() -> None:
    found = SPEC.with_copies(["c", "b", "d"])
    assert found.copies == ("c", "b", "d")
    assert found.generation == 6
    assert found.preferred == "b"
    assert found.joined == {"c": 0, "b": 5, "d": 6}


def test_a_copy_that_comes_back_joins_again() -> None:
    without = SPEC.with_copies(["b", "c"])
    assert "a" not in without.joined
    assert without.with_copies(["a", "b", "c"]).joined == {"a": 7, "b": 5, "c": 0}


def test_a_machine_without_a_copy_is_not_preferred() -> None:
    assert SPEC.with_copies(["a", "c"]).preferred == ""


def test_another_order_is_no_change_of_the_copies() -> None:
    assert SPEC.led_first_by("c") == SPEC._replace(copies=("c", "a", "b"))
    assert SPEC.led_first_by("a") == SPEC


@pytest.mark.parametrize(
    ("quorum", "needed"),
    [
        (None, [0, 1, 2, 2, 3, 3]),
        (3, [0, 1, 2, 3, 3, 3]),
        (5, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_more_than_half_of_the_copies_are_needed(quorum: int | None, needed: list[int]) -> None:
    spec = LogSpec(5, quorum).check()
    found = [spec._replace(copies=tuple("abcde"[:count])).needed for count in range(6)]
    assert found == needed


def test_settings_of_a_log_come_before_those_of_its_machine() -> None:
    machine = Settings(linger_seconds=1, segment_bytes=1 << 20)
    spec = SPEC._replace(settings={"segment_bytes": 1 << 21})
    assert spec.over(machine) == Settings(linger_seconds=1, segment_bytes=1 << 21)
    assert SPEC.over(machine) == machine


@pytest.mark.parametrize(
    ("text", "parsed", "selects"),
    [
        ("", [], True),
        (" , ", [], True),
        ("env", [("env", None, True)], True),
        ("zone", [("zone", None, True)], False),
        ("env=prod", [("env", "prod", True)], True),
        ("env=test", [("env", "test", True)], False),
        ("zone=a", [("zone", "a", True)], False),
        ("empty=", [("empty", "", True)], True),
        ("env=", [("env", "", True)], False),
        ("!env", [("env", None, False)], False),
        ("!zone", [("zone", None, False)], True),
        ("env!=prod", [("env", "prod", False)], False),
        ("env!=test", [("env", "test", False)], True),
        ("zone!=a", [("zone", "a", False)], True),
        (" env=prod , team", [("env", "prod", True), ("team", None, True)], True),
        ("env=prod,!team", [("env", "prod", True), ("team", None, False)], False),
        ("env=prod,env=test", [("env", "prod", True), ("env", "test", True)], False),
        ("k8s.io/app-1_x", [("k8s.io/app-1_x", None, True)], False),
    ],
)
def test_selectors(text: str, parsed: list[tuple[str, str | None, bool]], selects: bool) -> None:
    assert parse_selector(text) == parsed
    assert is_selected(LABELS, parsed) is selects


@pytest.mark.parametrize(
    "text",
    [
        "=",
        "=a",
        "!",
        "!=",
        "!=a",
        "!!env",
        "env!",
        "env==a",
        "env=a=b",
        "env = a",
        "a b",
        "é",
        "a=é",
    ],
)
def test_selectors_that_are_none(text: str) -> None:
    for selector in (text, f"env,{text}"):
        with case(selector), pytest.raises(InvalidSettingsError):
            parse_selector(selector)


def test_names_of_logs() -> None:
    for name in ("a", "_", "0", "orders.v2-x_Y", "a" * 100):
        assert check_log_name(name) == name
    for name in ("", ".", "..", ".a", "-a", "a/b", "a b", "é", "a\n", "a" * 101):
        with case(name), pytest.raises(ValueError, match="1 to 100 letters"):
            check_log_name(name)
    with pytest.raises(TypeError):
        check_log_name(b"orders")
