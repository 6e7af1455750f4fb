"""Arguments and options that several verbs share."""

from __future__ import annotations

from typing import Annotated

import typer

Location = Annotated[
    str,
    typer.Argument(
        metavar="LOCATION",
        help="A log directory, or a store URL: s3://bucket/prefix, file:///directory.",
        show_default=False,
    ),
]

Directory = Annotated[
    str, typer.Argument(metavar="DIRECTORY", help="A log directory.", show_default=False)
]

StoreUrl = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="Where to ship to: s3://bucket/prefix or file:///directory.",
        show_default=False,
    ),
]

StoredAt = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="Where the log is: s3://bucket/prefix or file:///directory.",
        show_default=False,
    ),
]

Stream = Annotated[
    str | None,
    typer.Option(
        "--stream",
        metavar="NAME",
        help="Records of this stream only. -N then means its last N records.",
        show_default=False,
    ),
]

TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Take the prefix back from the directory that took it over; that one ships no more. Only if "
        "this one holds every record that is there.",
    ),
]

AsJson = Annotated[
    bool, typer.Option("--json", help="Write JSON to stdout; the fields are in docs/cli.md.")
]

Confirm = Annotated[
    bool, typer.Option("--confirm", help="Do it. Without this, only show what would be done.")
]
