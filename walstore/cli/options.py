"""Arguments and options that several verbs share, and how a stored log is to be laid out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from walstore.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from uploader import IcebergTarget


def option(usage: str, about: str, **more: Any) -> Any:
    """Return an option of a command, described as its help shows it: ``--limit N``, ``--follow -f``.

    ``about`` is its help; ``more`` are arguments of :func:`typer.Option`.
    """
    words = usage.split(" ")
    names = [word for word in words if word.startswith("-")]
    metavar = " ".join(words[len(names) :]) or None
    return typer.Option(*names, metavar=metavar, help=about, **more)


def argument(metavar: str, about: str, **more: Any) -> Any:
    """Return an argument of a command; ``more`` are arguments of :func:`typer.Argument`."""
    return typer.Argument(metavar=metavar, help=about, **more)


Location = Annotated[
    str,
    argument("LOCATION", "A log directory, or a store URL: s3://bucket/prefix, file:///directory."),
]

AnyLocation = Annotated[
    str,
    argument(
        "LOCATION", "A log directory, the address of a server, or a store URL: s3://bucket/prefix."
    ),
]

LocalOrServed = Annotated[str, argument("LOCATION", "A log directory, or the address of a server.")]

Directory = Annotated[str, argument("DIRECTORY", "A log directory.")]

StoreUrl = Annotated[
    str, argument("URL", "Where to ship to: s3://bucket/prefix or file:///directory.")
]

StoredAt = Annotated[
    str, argument("URL", "Where the log is: s3://bucket/prefix or file:///directory.")
]

CollectionAt = Annotated[
    str,
    argument(
        "URL",
        "Where the collection is: s3://bucket/prefix or file:///directory.",
        show_default=False,
    ),
]

ColumnTypes = Annotated[
    list[str] | None,
    option(
        "--column NAME:TYPE",
        "A column with Arrow's name of its type; NAME:TYPE:null if nullable. Repeatable.",
        show_default=False,
    ),
]

LikeFile = Annotated[str | None, option("--like FILE", "The columns of this Parquet file instead.")]

KeyColumns = Annotated[
    str | None, option("--key A,B", "Key columns. An upsert collection must have some.")
]

TakeControl = Annotated[
    bool,
    option(
        "--take-over",
        "Even if another controller is active; that one is fenced.",
    ),
]

Stream = Annotated[
    str | None,
    option("--stream NAME", "Only records of this stream. -N then means its last N records."),
]

TakeOver = Annotated[
    bool,
    option(
        "--take-over",
        "Take the prefix back from the directory that took it over, which then stops shipping. Only if "
        "this directory has every record in the store.",
    ),
]

AsJson = Annotated[bool, option("--json", "Write JSON to stdout; the fields are in docs/cli.md.")]

Confirm = Annotated[bool, option("--confirm", "Apply the change. Without this, only show it.")]


IcebergName = Annotated[
    str,
    option("--to TABLE", "The table: iceberg:namespace.table, or iceberg:catalog/namespace.table."),
]

CatalogUri = Annotated[
    str | None,
    option(
        "--catalog-uri URI",
        "The catalog's URI for pyiceberg. Default: pyiceberg's configuration.",
    ),
]

Warehouse = Annotated[
    str | None,
    option("--warehouse URL", "Location of new tables. Default: pyiceberg's configuration."),
]


def iceberg_target(name: str, uri: str | None, warehouse: str | None) -> IcebergTarget:
    """Return the table that the options name; InvalidSettingsError for a name that is none."""
    from uploader import IcebergTarget

    given = (("uri", uri), ("warehouse", warehouse))
    properties = {option: value for option, value in given if value is not None}
    return IcebergTarget.parse(name, properties)


LayoutName: TypeAlias = Literal["swap", "chain"]

LayoutOption = Annotated[
    LayoutName | None,
    option(
        "--layout",
        "Layout of a new stored log, default swap (wal3's). An existing log must have it.",
    ),
]

Alpha = Annotated[
    int | None,
    option("--alpha N", "Manifests of a chain in progress at once, 1 to 32; default 8."),
]

Shards = Annotated[
    int | None,
    option("--shards N", "Prefixes that a chain's fragments are spread over, 1 to 12; default 1."),
]


def layout_arguments(
    layout: LayoutName | None, alpha: int | None, shards: int | None
) -> Mapping[str, Any]:
    """Return the arguments ``layout`` and ``chain`` of CloudTier and CloudWriter.

    InvalidSettingsError for numbers that a chain cannot have.
    """
    chosen = {
        name: value for name, value in (("alpha", alpha), ("shards", shards)) if value is not None
    }
    if chosen and layout == "swap":
        raise UsageError("--alpha and --shards are for --layout chain")
    if layout is None and not chosen:
        return {}
    from uploader import ChainSettings

    return {"layout": layout, "chain": ChainSettings(**chosen) if chosen else None}
