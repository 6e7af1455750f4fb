"""Offsets as Spark keeps them: order, and what is not ours."""

from __future__ import annotations

import json

import pytest

from walstore.errors import InvalidSettingsError
from walstore.spark.streaming.offsets import from_json, show, to_json


def test_there_and_back():
    offsets = {("orders", 0): 123, ("orders", 1): 7, ("clicks", 0): 1}
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets


def test_the_same_offsets_have_the_same_text():
    """Spark starts a micro-batch whenever the text is another one."""
    names = [("b", 10), ("a", 0), ("b", 9), ("b", 1)]
    one = dict.fromkeys(names, 5)
    other = dict.fromkeys(reversed(names), 5)
    assert json.dumps(to_json(one)) == json.dumps(to_json(other))
    assert json.dumps(to_json(one)) == '{"a": {"0": 5}, "b": {"1": 5, "9": 5, "10": 5}}'


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        [],
        {"orders": 5},
        {"orders": {"0": "5"}},
        {"orders": {"0": 0}},
        {"orders": {"0": True}},
        {"orders": {"x": 5}},
        {"orders": {"-1": 5}},
        {"partition-1": {"index": 3}},
    ],
)
def test_offsets_of_another_source_are_refused(value):
    with pytest.raises(InvalidSettingsError, match="checkpointLocation of its own"):
        from_json(value)


def test_names_for_messages():
    assert [show(("orders", 0)), show(("orders", 3))] == ["orders", "orders/3"]
