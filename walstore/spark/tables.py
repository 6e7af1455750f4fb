"""Tables of Spark's catalog: ``CREATE TABLE orders USING walstore LOCATION '/logs/orders'``.

Spark passes a table's options to the source once, when the table is created, among properties of the catalog.
It stores only the columns; a query on the table gets the columns and no options. So the options are stored
with the columns, in the metadata of the first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from pyspark.sql.types import StructField, StructType

_METADATA: Final = "walstore.options"
_OPTION: Final = "option."
"""Prefix of an option's name in the catalog, which distinguishes it from properties."""
_MARK: Final = "provider"
"""A property of every table that a read without a table never has."""
_DEEPEST: Final = 3


def table_options(options: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options among what the catalog passes, by lower-case name; None if it is no table.

    The path is in the form for ``load``. Reads the directory that it names.
    """
    given = {name.lower(): value for name, value in options.items()}
    if _MARK not in given:
        return None
    found = {
        name.removeprefix(_OPTION): value
        for name, value in given.items()
        if name.startswith(_OPTION)
    }
    if "path" in given:
        found["path"] = _plain(given["path"])
    return found


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the columns of a table with its options in their metadata."""
    first, *others = schema.fields
    metadata = {_METADATA: json.dumps(options)}
    return StructType([StructField(first.name, first.dataType, metadata=metadata), *others])


def all_options(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of a read: those in the columns of the table, if any, and those of the query."""
    found: dict[str, str] = {}
    for field in schema.fields:
        found |= json.loads((field.metadata or {}).get(_METADATA, "{}"))
    return found | {name.lower(): value for name, value in options.items()}


def _plain(path: str) -> str:
    """Return the path or URL that the user gave: the catalog turns either into ``file:/dir``.

    The directory of a log, or of several, has ``.wal`` files in it or below it; any other is a store.
    """
    scheme, _, rest = path.partition(":")
    if scheme != "file" or not rest.startswith("/"):
        return path
    directory = unquote("/" + rest.lstrip("/"))
    patterns = ["*/" * depth + "*.wal" for depth in range(_DEEPEST)]
    if any(True for pattern in patterns for _ in Path(directory).glob(pattern)):
        return directory
    return f"file:///{rest.lstrip('/')}"
