"""docs/format.md and the code agree on manifests, snapshots and their entries."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tests.format_tables import PAGE, field_names, table
from tests.uploader.documents import manifest_of, snapshot_of
from uploader.format.rollup import RollUpSettings

MANIFEST = dataclasses.replace(manifest_of(3), initial_offset=1, initial_seq_no=1)
SNAPSHOT = snapshot_of(MANIFEST.fragments)
TYPES = {"setsum": str, "text": str, "integer": int, "array": list, "offset": dict}


@pytest.mark.parametrize(
    ("title", "document"),
    [
        ("Manifest", json.loads(MANIFEST.serialise())),
        ("Fragment entry", MANIFEST.fragments[0].to_json()),
        ("Snapshot pointer", SNAPSHOT.pointer().to_json()),
        ("Snapshot", json.loads(SNAPSHOT.serialise())),
    ],
)
def test_the_fields_of_a_document(title: str, document: dict[str, Any]) -> None:
    rows = table(title)
    assert field_names(rows) == list(document)
    for row, value in zip(rows, document.values(), strict=True):
        assert type(value) is TYPES[row["type"]]


def test_the_default_thresholds() -> None:
    text = " ".join(PAGE.read_text().split())
    settings = RollUpSettings()
    assert f"more than {settings.fragments_per_snapshot} fragments" in text
    assert f"{settings.snapshots_per_snapshot} snapshots of one depth" in text
