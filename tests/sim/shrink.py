"""Shrink: look for a plan that breaks the same rule with less in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, Protocol, Self, TypeVar

_SEEDS: Final = 40
"""How many seeds are tried for each smaller plan; another order of events may be needed."""


class Shrinkable(Protocol):
    """A plan of any kind of history."""

    seed: int
    PARTS: ClassVar[Mapping[str, int]]
    """Fields of which some may be left out, and how many must stay."""
    USUAL: ClassVar[Mapping[str, Any]]
    """What is simplest, by the field."""
    COUNTS: ClassVar[tuple[str, ...]]
    """Fields that may be as little as 1."""

    def replace(self, **changes: Any) -> Self: ...

    def smaller(self) -> Iterable[Self]:
        """Return plans with one thing less that the fields do not tell."""


_P = TypeVar("_P", bound=Shrinkable)


def shrink(plan: _P, rule_broken: Callable[[_P], str | None]) -> _P:
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


def _smaller(plan: _P) -> Iterator[_P]:
    """Yield plans with one thing less, the greatest simplifications first."""
    for name, least in plan.PARTS.items():
        parts = getattr(plan, name)
        if len(parts) > least:
            for at in range(len(parts)):
                yield plan.replace(**{name: parts[:at] + parts[at + 1 :]})
    for name, usual in plan.USUAL.items():
        if getattr(plan, name) != usual:
            yield plan.replace(**{name: usual})
    for name in plan.COUNTS:
        now = getattr(plan, name)
        for fewer in sorted({1, now // 2, now - 1} - {0, now}):
            yield plan.replace(**{name: fewer})
    yield from plan.smaller()
