"""How a stored log is to be laid out: the options of the verbs that may begin one."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walstore.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


class LayoutName(StrEnum):
    """The layouts there are."""

    SWAP = "swap"
    CHAIN = "chain"


LayoutOption = Annotated[
    LayoutName | None,
    typer.Option(
        "--layout",
        help="Layout of a new stored log; swap, wal3's, unless given. Else it must have this one.",
        show_default=False,
    ),
]

Alpha = Annotated[
    int | None,
    typer.Option(
        "--alpha",
        metavar="N",
        help="Manifests of a chain under way at once, 1 to 32; 8 unless given.",
        show_default=False,
    ),
]

Shards = Annotated[
    int | None,
    typer.Option(
        "--shards",
        metavar="N",
        help="Prefixes that a chain's fragments are spread over, 1 to 12; 1 unless given.",
        show_default=False,
    ),
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
    if chosen and layout is LayoutName.SWAP:
        raise UsageError("--alpha and --shards are for --layout chain")
    if layout is None and not chosen:
        return {}
    from uploader import ChainSettings

    return {
        "layout": None if layout is None else str(layout),
        "chain": ChainSettings(**chosen) if chosen else None,
    }
