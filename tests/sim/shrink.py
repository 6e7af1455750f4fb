"""Shrink: look for a plan that breaks the same rule with less in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from tests.sim.plan import Plan

_SEEDS = 40
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
    for at in range(len(plan.ends)):
        if len(plan.ends) > 1:
            yield plan.replace(ends=plan.ends[:at] + plan.ends[at + 1 :])
    if plan.readonly:
        yield plan.replace(readonly=False)
    if plan.followers:
        yield plan.replace(followers=())
        for each in plan.followers:
            if len(plan.followers) > 1:
                yield plan.replace(followers=tuple(f for f in plan.followers if f != each))
    for each in plan.acts:
        if len(plan.acts) > 1:
            yield plan.replace(acts=tuple(act for act in plan.acts if act != each))
    if plan.actors > 1:
        yield plan.replace(actors=1)
        yield plan.replace(actors=plan.actors - 1)
    if plan.calls > 1:
        yield plan.replace(calls=max(1, plan.calls // 2))
    for name in ("cancels", "rate", "read_rate", "stall_rate", "large"):
        if getattr(plan, name):
            yield dataclasses.replace(plan, **{name: 0.0})
    for each in plan.conditions:
        yield plan.replace(conditions=tuple(c for c in plan.conditions if c != each))
    if plan.shuffles:
        yield plan.replace(shuffles=False)
    if plan.sync != "batch":
        yield plan.replace(sync="batch")
    for name, usual in {
        "retention_bytes": None,
        "retention_seconds": None,
        "segment_age_seconds": None,
        "linger_seconds": 0.0,
        "channel_records": 100_000,
        "channel_bytes": 256 << 10,
        "cache_bytes": 64 << 10,
    }.items():
        if plan.settings[name] != usual:
            yield plan.replace(settings={**plan.settings, name: usual})
