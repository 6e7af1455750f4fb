"""What fits a table and a session, without Spark."""

from __future__ import annotations

import pytest

from walstore.errors import InvalidSettingsError, WalError
from walstore.spark.sidecar import session
from walstore.spark.sidecar.sidecar_settings import SidecarSettings, TableFormat, local_path
from walstore.spark.sidecar.tables import check_columns, columns_of, quoted

LOG = {"value": "binary", "offset": "bigint"}


def settings(**options) -> SidecarSettings:
    return SidecarSettings(**{"location": "s3://b/orders", "table": "/t/orders", **options})


def test_columns_are_those_of_the_log_and_of_the_division():
    found = columns_of(settings(partition_by=("stream", "date"), has_headers=False))
    assert found["offset"] == "bigint"
    assert found["date"] == "date"
    assert "headers" not in found
    assert "hour" not in found
    assert columns_of(settings())["headers"] == "array<struct<key:string,value:binary>>"


def test_a_table_may_have_more_columns_and_other_capitals():
    check_columns("/t", LOG, {"Value": "binary", "note": "string", "OFFSET": "bigint"})
    check_columns("/t", {**LOG, "date": "date"}, {**LOG, "date": "date"})


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ({"value": "binary"}, "it lacks offset bigint"),
        ({"value": "string", "offset": "bigint"}, "value is string and not binary"),
        ({"value": "string"}, "it lacks offset bigint; value is string"),
        ({**LOG, "date": "date", "hour": "int"}, "has date and hour, which would stay empty"),
    ],
)
def test_columns_that_do_not_fit(there, message):
    with pytest.raises(InvalidSettingsError, match=message):
        check_columns("/t", LOG, there)


def test_names_for_sql():
    assert quoted("lake.db.orders") == "`lake`.`db`.`orders`"
    assert quoted("lake.d`b.x") == "`lake`.`db`.`x`"


def test_paths_of_this_machine():
    assert local_path("/t/o") == "/t/o"
    assert local_path("file:/t/o") == local_path("file:///t/o") == "/t/o"
    assert [local_path(place) for place in ("s3a://b/o", "lake.db.o", "", "file://host/o")] == [
        None,
        None,
        None,
        None,
    ]


def test_the_users_settings_are_above_ours_and_extensions_are_added():
    given = {"spark.sql.extensions": "a.B, c.D", "spark.sql.session.timeZone": "CET"}
    found = session.session_config(settings(table_format=TableFormat.DELTA, config=given))
    assert found["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension,a.B,c.D"
    assert found["spark.sql.session.timeZone"] == "CET"
    assert "spark.sql.catalog.spark_catalog" in found
    assert session.session_config(settings(config=given))["spark.sql.extensions"] == "a.B, c.D"


def test_jars_are_those_of_this_spark():
    delta = "file:/jars/io.delta_delta-spark_4.2_2.13-4.4.0.jar"
    session.check_jar(delta, "4.2")
    session.check_jar("file:/jars/delta-spark_2.13-4.0.0.jar", "4.0")
    session.check_jar("", "4.0")
    with pytest.raises(
        WalError, match=r"4\.4\.0.jar was made for Spark 4.2, and this is Spark 4.3"
    ):
        session.check_jar(delta, "4.3")
    with pytest.raises(WalError, match=r"made for Spark 4\.1"):
        session.check_jar("iceberg-spark-runtime-4.1_2.13-1.12.0.jar", "4.2")


def test_a_java_process_that_did_not_start():
    assert "perhaps a:b:1 cannot be found" in session._explain_start("a:b:1")
    assert "perhaps" not in session._explain_start(None)
