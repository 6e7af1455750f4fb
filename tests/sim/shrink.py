"""Shrink: look for a plan that breaks the same rule with less in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Final

from tests.sim.plan import Plan

_USUAL: Final = {
    "readonly": False,
    "store": False,
    "shuffles": False,
    "cancels": 0.0,
    "rate": 0.0,
    "read_rate": 0.0,
    "stall_rate": 0.0,
    "large": 0.0,
    "sync": "batch",
}
_USUAL_SETTINGS: Final = {
    "retention_bytes": None,
    "retention_seconds": None,
    "segment_age_seconds": None,
    "linger_seconds": 0.0,
    "channel_records": 100_000,
    "channel_bytes": 256 << 10,
    "cache_bytes": 64 << 10,
}
_SEEDS: Final = 40
"""How many seeds are tried for each smaller plan; another order of events may be needed."""


def shrink(plan: Plan, rule_broken: Callable[[Plan], str | None]) -> Plan:
    """Return a smaller plan that breaks the same rule; the plan itself if there is none."""
    rule = rule_broken(plan)
    if rule is None:
        return plan
    found = True
    while found:
        found = False
        for smaller in _smaller(plan):
            seeds = [plan.seed, *range(_SEEDS)]
            hit = next((s for s in seeds if rule_broken(smaller.replace(seed=s)) == rule), None)
            if hit is not None:
                plan, found = smaller.replace(seed=hit), True
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield plans with one thing less, the greatest simplifications first."""
    for name in ("ends", "followers", "acts", "conditions"):
        parts = getattr(plan, name)
        if len(parts) > (name in ("ends", "acts")):
            for at in range(len(parts)):
                yield dataclasses.replace(plan, **{name: parts[:at] + parts[at + 1 :]})
    for name, usual in _USUAL.items():
        if getattr(plan, name) != usual:
            yield dataclasses.replace(plan, **{name: usual})
    for fewer in {1, plan.actors // 2, plan.actors - 1} - {0, plan.actors}:
        yield plan.replace(actors=fewer)
    if plan.calls > 1:
        yield plan.replace(calls=plan.calls // 2)
    for name, usual in _USUAL_SETTINGS.items():
        if plan.settings[name] != usual:
            yield plan.replace(settings={**plan.settings, name: usual})
