"""What Spark says about a query's progress, and what offsets say about it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from walstore.errors import InvalidSettingsError
from walstore.spark.bounds import LogName


def count_records(before: Mapping[LogName, int], after: Mapping[LogName, int]) -> int:
    """Return how many records lie between: offsets have no gaps. A log found meanwhile began at 1."""
    return sum(position - before.get(name, 1) for name, position in after.items())


def tails_of(progress: Mapping[str, Any], before: dict[LogName, int]) -> dict[LogName, int]:
    """Return how far the logs reach as the source told Spark, or what was known ``before``."""
    from walstore.spark.streaming.offsets import from_json

    sources = progress["sources"]
    latest = sources[0].get("latestOffset") if sources else None
    try:
        return from_json(json.loads(latest) if isinstance(latest, str) else latest)
    except (ValueError, InvalidSettingsError):
        return before


def seconds_of(progress: Mapping[str, Any] | None) -> float | None:
    """Return how long the last batch took, or None if Spark does not say."""
    duration = None if progress is None else progress["durationMs"].get("triggerExecution")
    return None if duration is None else float(duration) / 1000
