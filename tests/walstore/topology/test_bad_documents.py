"""Documents that somebody else wrote, or forged: damage, and never another error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from walstore.errors import CorruptionError, InvalidSettingsError
from walstore.topology.documents import Leader, LogSpec, Synced, parse_selector

SPEC = LogSpec(3, copies=("a", "b"))


def changed(document: Any, **fields: Any) -> bytes:
    return json.dumps({**json.loads(document.encode()), **fields}).encode()


@pytest.mark.parametrize(
    "fields",
    [
        {"labels": {"\ud800": "x"}},
        {"labels": {"x": "\ud800"}},
        {"copies": ["\ud800"], "preferred": "\ud800"},
    ],
)
def test_a_spec_with_a_lone_surrogate_is_damage(fields: dict[str, Any]) -> None:
    with pytest.raises(CorruptionError):
        LogSpec.decode(changed(SPEC, **fields), "k")


@pytest.mark.parametrize("text", ["!env!=prod"])
def test_a_selector_with_two_negations_is_none(text: str) -> None:
    with pytest.raises(InvalidSettingsError):
        parse_selector(text)


@pytest.mark.parametrize(
    "fields",
    [{"copies": [None, 7]}, {"copies": [["a"]]}, {"labels": {"x": None}}, {"copies": [""]}],
)
def test_values_that_are_no_text_are_damage(fields: dict[str, Any]) -> None:
    with pytest.raises(CorruptionError):
        LogSpec.decode(changed(SPEC, **fields), "k")


@pytest.mark.parametrize(
    "fields",
    [{"epoch": -3}, {"epoch": True}, {"present": [{}]}, {"missing": ["b"]}, {"missing": {"b": 1}}],
)
def test_a_leader_that_cannot_be_is_damage(fields: dict[str, Any]) -> None:
    with pytest.raises(CorruptionError):
        Leader.decode(changed(Leader("a", "t"), **fields), "k")


@pytest.mark.parametrize(
    "fields",
    [{"epoch": -3}, {"generation": True}, {"limits": ["a"]}, {"limits": {"a": -1}}, {"log_id": 7}],
)
def test_marks_that_cannot_be_are_damage(fields: dict[str, Any]) -> None:
    with pytest.raises(CorruptionError):
        Synced.decode(changed(Synced("ab", 1, 1, {"a": 3}), **fields), "k")


@pytest.mark.parametrize("copies", ["ab", (1, 2), ("",)])
def test_a_spec_whose_copies_are_no_addresses_is_refused(copies: Any) -> None:
    with pytest.raises((TypeError, InvalidSettingsError)):
        LogSpec(3, copies=copies).check()


@pytest.mark.parametrize("version", [True, 0, -1])
def test_versions_that_never_were_are_damage(version: object) -> None:
    with pytest.raises(CorruptionError):
        LogSpec.decode(changed(SPEC, version=version), "k")
