"""Settings of a sidecar: what is refused, and where things lie if nobody says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from walstore.errors import InvalidSettingsError
from walstore.spark.sidecar.sidecar_settings import SidecarSettings, TableFormat


def settings(**options: Any) -> SidecarSettings:
    return SidecarSettings(**{"location": "s3://b/orders", "table": "/t/orders", **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": ""}, "needs the log's location and the table's path"),
        ({"trigger_seconds": -1.0}, "0 seconds or more"),
        ({"trigger_seconds": float("nan")}, "0 seconds or more"),
        ({"max_records": 0}, "one record or more"),
        ({"subscribe": "a", "subscribe_pattern": "b"}, "not both"),
        ({"partition_by": ("value",)}, "divided by stream, topic, partition, date, hour"),
        ({"partition_by": ("date", "date")}, "each once"),
        ({"cursor": "a-b"}, "letters A to Z"),
        ({"table_format": TableFormat.ICEBERG}, "needs a checkpoint outside"),
        ({"table_format": TableFormat.COLLECTION}, "needs an envelope"),
        ({"envelope": "append"}, "an envelope is for collections"),
        (
            {"table_format": TableFormat.COLLECTION, "envelope": "append", "has_headers": False},
            "a table without headers: that is for tables",
        ),
    ],
)
def test_refused(options, message):
    with pytest.raises(InvalidSettingsError, match=message):
        settings(**options)


def test_the_checkpoint_lies_in_the_tables_directory():
    assert settings().checkpoint_place == "/t/orders/_checkpoint"
    assert settings(table="s3a://lake/orders/").checkpoint_place == "s3a://lake/orders/_checkpoint"
    assert settings(checkpoint="s3a://c/o").checkpoint_place == "s3a://c/o"


def test_relative_paths_are_those_of_this_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert settings(table="out").table_place == str(tmp_path / "out")
    assert Path(settings(table="out").checkpoint_place) == tmp_path / "out" / "_checkpoint"


def test_an_iceberg_table_may_be_a_name():
    made = settings(table="lake.db.orders", table_format=TableFormat.ICEBERG, checkpoint="/c")
    assert made.table_place == "lake.db.orders"
    assert made.local_places == ("/c",)


def test_local_places():
    assert settings().local_places == ("/t/orders", "/t/orders/_checkpoint")
    assert settings(table="file:///t/o").local_places == ("/t/o", "/t/o/_checkpoint")
    assert settings(table="s3a://lake/o").local_places == ()
    assert settings(table="hdfs:///o").local_places == ()


def test_the_cursors_name_is_that_of_the_checkpoint():
    name = settings().cursor_name
    assert name == settings(trigger_seconds=1.0).cursor_name
    assert name.startswith("sidecar_orders_")
    assert len({name, settings(table="/u/orders").cursor_name}) == 2
    assert settings(checkpoint="/c/x-1").cursor_name.startswith("sidecar_x_1_")
    assert settings(cursor="mine").cursor_name == "mine"
    assert len(settings(table="/t/" + "ä-" * 200).cursor_name) < 100
