"""Options of collections: what is given, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from walstore import InvalidSettingsError
from walstore.spark.options import Budget
from walstore.spark.pyspark_walstore_collection import DefaultSource
from walstore.spark.versioned.options import (
    APPEND_OPTIONS,
    parse_batch_options,
    parse_stream_options,
    parse_write_options,
)
from walstore.spark.versioned.source import CollectionSource

URL = "file:///store/people"


def test_spark_finds_the_format() -> None:
    assert DefaultSource is CollectionSource
    assert DefaultSource.name() == "walstore.collection"


def test_defaults() -> None:
    batch = parse_batch_options({"path": URL, "asOf": "Latest"})
    assert (batch.as_of, batch.min_partitions, batch.lease_seconds) == (None, 1, 3600)
    stream = parse_stream_options({"path": URL, "reader": "r"})
    assert (stream.starting, stream.poll_seconds, stream.most) == (0, 0.5, Budget())
    write = parse_write_options({"path": URL}, APPEND_OPTIONS)
    assert (write.writer, write.lower, write.upper) == ("main", None, None)


def test_parameters_of_the_store() -> None:
    found = parse_batch_options({"path": "s3://b/c", "store.endpoint_url": "http://h"})
    assert found.location.text == "s3://b/c?endpoint_url=http%3A%2F%2Fh"


@pytest.mark.parametrize(
    ("parse", "options", "message"),
    [
        (parse_batch_options, {}, "name the collection"),
        (parse_batch_options, {"path": "/a/directory"}, "in an object store"),
        (parse_batch_options, {"path": "memory://here"}, "cannot read a memory"),
        (parse_batch_options, {"path": URL, "asOf": "-1"}, "asOf must be latest, or a time"),
        (parse_batch_options, {"path": URL, "asOf": str(2**64 - 1)}, "asOf must be"),
        (parse_batch_options, {"path": URL, "minPartitions": "0"}, "minPartitions must be"),
        (parse_batch_options, {"path": URL, "leaseSeconds": "0"}, "leaseSeconds must be"),
        (parse_batch_options, {"path": URL, "leaseSeconds": "9" * 12}, "100 years"),
        (parse_batch_options, {"path": URL, "reader": "r"}, "unknown option reader"),
        (parse_stream_options, {"path": URL}, "needs the option reader"),
        (parse_stream_options, {"path": URL, "reader": "a b"}, "reader must be"),
        (parse_stream_options, {"path": URL, "reader": "r", "asOf": "1"}, "unknown option asof"),
        (
            parse_stream_options,
            {"path": URL, "reader": "r", "startingFrom": "now"},
            "startingFrom must be earliest, latest, or a time",
        ),
        (
            parse_stream_options,
            {"path": URL, "reader": "r", "maxRowsPerTrigger": "0"},
            "maxRowsPerTrigger must be",
        ),
    ],
)
def test_what_is_refused(
    parse: Callable[[dict[str, str]], Any], options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidSettingsError, match=message):
        parse(options)
