"""ChainSettings: how one program writes a chain. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from uploader.format.layout import MOST_SHARDS
from uploader.format.link import MOST_ALPHA
from walstore.validation.fields import check_fields, described, whole


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSettings:
    """How one program writes a chain. Others, before and after, may do it with other settings."""

    alpha: int = whole(
        8,
        """Manifests under way at once. Each may be put before the one before it is durable, so that
        publishing takes one round trip however often it happens. Recovery takes that many reads.""",
        low=1,
        high=MOST_ALPHA,
    )

    shards: int = whole(
        1,
        """Prefixes that new fragments are spread over: stores limit the requests for each prefix. Readers
        accept any number; to change it, close the log and open it again.""",
        low=1,
        high=MOST_SHARDS,
    )

    def __post_init__(self) -> None:
        """Check the fields; InvalidSettingsError."""
        check_fields(self)
