"""Figures of a report: what was measured, how the rounds are joined, and the tables. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

OURS: Final = "walstore"
RAW: Final = "raw"
"""Names of systems begin with these."""


@dataclass(slots=True)
class Figure:
    """One number of one system, in each round."""

    group: str
    """What was done, the title of a table."""
    system: str
    name: str
    """Such as ``records/s`` or ``p50``."""
    unit: str
    """``/s``, ``us``, ``s`` or ``KiB``."""
    promise: str = ""
    """What an acknowledgement of the system means."""
    values: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        """Median of the rounds."""
        return median(self.values)


@dataclass(slots=True)
class Report:
    """A run."""

    machine: Mapping[str, str]
    figures: list[Figure] = field(default_factory=list)
    curves: dict[str, dict[str, list[tuple[float, float]]]] = field(default_factory=dict)
    """Points of plots: by plot, then by line."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Systems that were not measured, and what they need."""

    def add(
        self, group: str, system: str, name: str, unit: str, value: float, promise: str
    ) -> None:
        """Take note of a number of this round."""
        for one in self.figures:
            if (one.group, one.system, one.name) == (group, system, name):
                one.values.append(value)
                return
        self.figures.append(Figure(group, system, name, unit, promise, [value]))

    def to_json(self) -> dict[str, Any]:
        """Return it as it is stored."""
        return {
            "machine": dict(self.machine),
            "skipped": self.skipped,
            "figures": [
                {
                    "group": one.group,
                    "system": one.system,
                    "name": one.name,
                    "unit": one.unit,
                    "promise": one.promise,
                    "values": one.values,
                }
                for one in self.figures
            ],
            "curves": self.curves,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Report:
        """Return a stored one."""
        curves = {
            plot: {line: [(x, y) for x, y in points] for line, points in lines.items()}
            for plot, lines in found["curves"].items()
        }
        figures = [Figure(**one) for one in found["figures"]]
        return cls(found["machine"], figures, curves, dict(found["skipped"]))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which a share of an ordered sample is: the nearest one."""
    return ordered[min(len(ordered) - 1, max(0, math.ceil(len(ordered) * share) - 1))]


def schedule(rate: float, seconds: float) -> Iterator[float]:
    """Yield the moments of an open loop, from 0: they do not wait for answers."""
    for number in range(math.floor(rate * seconds)):
        yield number / rate


def format_value(value: float, unit: str) -> str:
    """Return a number for people, with three digits that count."""
    if unit == "us" and value >= 1000:
        return f"{value / 1000:.3g} ms"
    if unit == "/s":
        for size, letter in ((1e6, " M"), (1e3, " k")):
            if value >= size:
                return f"{value / size:.3g}{letter}/s"
        return f"{value:.3g}/s"
    return f"{value:.3g} {'µs' if unit == 'us' else unit}"


def tables(report: Report) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield title and rows of each group: a heading, then a row for each system."""
    for group in dict.fromkeys(one.group for one in report.figures):
        found = [one for one in report.figures if one.group == group]
        names = list(dict.fromkeys(one.name for one in found))
        rows = [["", *names, "walstore is", "an acknowledgement means"]]
        for system in dict.fromkeys(one.system for one in found):
            own = {one.name: one for one in found if one.system == system}
            first = own[names[0]]
            cells = [
                format_value(own[name].value, own[name].unit) if name in own else ""
                for name in names
            ]
            rows.append([system, *cells, ratio(found, first), first.promise])
        yield group, rows


def ratio(found: Iterable[Figure], other: Figure) -> str:
    """Return how walstore's first system compares with another one, by the median of the rounds' ratios."""
    same = [one for one in found if one.name == other.name]
    ours = next((one for one in same if one.system.startswith(OURS)), None)
    if ours is None or ours is other:
        return ""
    pairs = zip(ours.values, other.values, strict=False)
    times = median(own / theirs for own, theirs in pairs if theirs)
    return f"{times:.2f} ×" if other.unit == "/s" else f"{times:.2f} × as long"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def short_table(report: Report, left_out: str = "^$") -> str:
    """Return the README's table: of each group walstore's figures, the disk's, and those of peers.

    Groups whose title matches a pattern are left out.
    """
    rows = [["", "walstore", "this disk alone", "others in the same run"]]
    titles = dict.fromkeys(one.group for one in report.figures)
    for group in (title for title in titles if not re.search(left_out, title)):
        found = [one for one in report.figures if one.group == group]
        name = found[0].name
        ours = [one for one in found if one.system.startswith(OURS)]
        if not ours:
            continue
        own = ", ".join(
            f"{one.name} {format_value(one.value, one.unit)}"
            if "/" not in one.name
            else format_value(one.value, one.unit)
            for one in ours
            if one.system == ours[0].system
        )
        raw = [one for one in found if one.system.startswith(RAW) and one.name == name]
        peers = [one for one in found if one not in (*ours, *raw) and one.name == name]
        rows.append([group, own, _list(raw, RAW), _list(peers, "")])
    return markdown(rows)


def _list(found: Iterable[Figure], prefix: str) -> str:
    return ", ".join(
        f"{one.system.removeprefix(prefix).strip(': ')} {format_value(one.value, one.unit)}".strip()
        for one in found
    )
