"""Prove page: what ``walstore prove`` tried and found, as one HTML page. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

from walstore.cli.output import format_count
from walstore.cli.page import html_page, html_table

_STYLE: Final = """\
.verdict { border-left: 6px solid; font-size: 17px; padding: 4px 12px; }
.held { border-color: #2a9d4a; } .broken { border-color: #d1242f; }
code { overflow-wrap: anywhere; }
"""
_FIRST: Final = ("appended", "acknowledged", "refused", "checks", "checked")
"""Counts that most kinds have."""
_ABOUT_SEEDS: Final = """\
A seed decides the work, the damage, the faults and how each process is killed. The exact moment of a kill is
the system's, so a round of kills may need to be repeated some times."""


def prove_page(report: Mapping[str, Any], trials: Mapping[str, tuple[str, str]]) -> str:
    """Return the page of a report, whose fields docs/cli.md describes.

    ``trials`` has what rounds of each kind do, and the rule that they check.
    """
    parts = [
        *_verdict(report),
        "<h2>What was tried</h2>",
        html_table((), _rounds(report, trials)),
        "<h2>Counts</h2>",
        html_table((), _counts(report["counts"])),
        "<h2>Seeds</h2>",
        html_table((), _seeds(report)),
        f"<p>{_ABOUT_SEEDS}</p>",
        "<h2>Machine</h2>",
        html_table((), report["environment"].items()),
        "<h2>Not tried here</h2>",
        html_table((), ((one["what"], one["why"]) for one in report["not_tried"])),
    ]
    return html_page("walstore prove", parts, style=_STYLE)


def _verdict(report: Mapping[str, Any]) -> Iterator[str]:
    rounds, minutes = sum(report["rounds"].values()), report["seconds"] / 60
    tried = f"{format_count(rounds)} rounds in {minutes:.1f} minutes"
    if report["interrupted"]:
        tried += ", ended early"
    if report["ok"]:
        yield f'<p class="verdict held">All rules held: {tried}.</p>'
        return
    yield f'<p class="verdict broken">A rule was broken after {tried}.</p>'
    for problem in report["problems"]:
        yield f"<p>{escape(problem)}</p>"
    if report["rule"] is not None:
        yield f"<p>The rule: {escape(report['rule'])}</p>"
    if report["repeat"] is not None:
        yield f"<p>Repeat it: <code>{escape(report['repeat'])}</code></p>"
    if report["evidence"] is not None:
        yield f"<p>Its files: <code>{escape(report['evidence'])}</code></p>"


def _rounds(
    report: Mapping[str, Any], trials: Mapping[str, tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    for kind in report["counts"]:
        what, rule = trials[kind]
        number = format_count(report["rounds"].get(kind, 0))
        yield f"{kind}, {number} rounds", f"{what} Rule: {rule}"


def _counts(counts: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[str, str]]:
    for kind, found in counts.items():
        names = [*(name for name in _FIRST if name in found), *sorted(found.keys() - set(_FIRST))]
        yield (
            kind,
            ", ".join(f"{name.replace('_', ' ')} {format_count(found[name])}" for name in names),
        )


def _seeds(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "location", report["location"]
    yield "first seed", str(report["seed"])
    yield "last seed", "-" if report["last_seed"] is None else str(report["last_seed"])
    yield "kinds", "one after another, in this order: " + ", ".join(report["kinds"])
