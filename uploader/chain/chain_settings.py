"""ChainSettings: how one program writes a chain. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from uploader.chain.link import MOST_ALPHA
from uploader.chain.names import MOST_SHARDS
from walstore.errors import InvalidSettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSettings:
    """How one program writes a chain. Others, before and after, may do it with other settings."""

    alpha: int = 8
    """Manifests under way at once, 1 to 32. Each may be put before the one before it is durable, so that
    publishing takes one round trip however often it happens. More cost recovery that many reads."""

    shards: int = 1
    """Prefixes that new fragments are spread over, 1 to 12: stores limit the requests for each prefix.
    Readers do not care; to change it, close the log and open it again."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 1 <= self.alpha <= MOST_ALPHA:
            raise InvalidSettingsError(f"alpha must be 1 to {MOST_ALPHA}, not {self.alpha}")
        if not 1 <= self.shards <= MOST_SHARDS:
            raise InvalidSettingsError(f"shards must be 1 to {MOST_SHARDS}, not {self.shards}")
