"""walstore scrub: everything that is wrong with a stored log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from walstore.cli.errors import CORRUPTION, FAILED
from walstore.cli.location import to_url
from walstore.cli.options import AsJson, StoredAt
from walstore.cli.output import complain, format_bytes, format_count, print_fields, print_json
from walstore.cli.progress import progress_bar
from walstore.cli.running import run_async

if TYPE_CHECKING:
    from uploader import ScrubReport, ScrubTally

EXAMPLES = """\b
Examples:
  walstore scrub s3://bucket/orders
  walstore scrub s3://bucket/orders --max-fragments 1000 --json
  walstore scrub s3://bucket/orders --start 5000001
"""

_SHOWN: Final = 100


def scrub(
    url: StoredAt,
    *,
    start: Annotated[
        int | None,
        typer.Option("--start", metavar="OFFSET", help="Begin with the fragment of this offset."),
    ] = None,
    max_fragments: Annotated[
        int | None,
        typer.Option(
            "--max-fragments", metavar="N", min=1, help="Look at so many fragments at the most."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read all of a stored log and report everything that is wrong with it. Changes nothing.

    Every record is hashed; manifest, snapshots, fragments and the objects next to them are checked. Unlike
    'walstore verify', it continues after damage, gives advice for it, and may run in parts. Exit code 2 if
    records are lost or damaged, 1 if the store kept it from reading everything.
    """
    location, report = run_async(_scrub(to_url(url, "scrub"), start, max_fragments))
    if as_json:
        print_json(_to_json(location, report))
    else:
        _print(location, report)
        for finding in report.findings[:_SHOWN]:
            complain(str(finding))
        if len(report.findings) > _SHOWN:
            complain(f"and {len(report.findings) - _SHOWN} more findings; --json has all")
    if not report.is_complete:
        complain(f"not all of it was looked at; go on with --start {report.next_start}")
    if not report.is_sound:
        raise typer.Exit(CORRUPTION)
    if not report.is_complete and report.fragments != max_fragments:
        raise typer.Exit(FAILED)


async def _scrub(url: str, start: int | None, max_fragments: int | None) -> tuple[str, ScrubReport]:
    from uploader import Scrubber

    async with Scrubber.open(url) as scrubber:
        with progress_bar("scrubbing") as show:
            begin: list[int] = []

            def on_progress(tally: ScrubTally) -> None:
                begin[:] = begin or [tally.position]
                done, total = tally.position - begin[0], tally.limit - begin[0]
                show(done, total, f"{len(tally.findings)} findings")

            report = await scrubber.scrub(
                start=start, max_fragments=max_fragments, progress=on_progress
            )
        return scrubber.url, report


def _to_json(location: str, report: ScrubReport) -> dict[str, Any]:
    return {
        "ok": report.is_sound,
        "location": location,
        "complete": report.is_complete,
        "next_start": report.next_start,
        "limit": report.limit,
        "fragments": report.fragments,
        "records": report.records,
        "bytes": report.fragment_bytes,
        "snapshots": report.snapshots,
        "setsum": report.setsum,
        "findings": [
            {
                "severity": str(one.severity),
                "key": one.key,
                "what": one.what,
                "advice": one.advice,
                "expected": None if one.expected is None else str(one.expected),
                "found": None if one.found is None else str(one.found),
            }
            for one in report.findings
        ],
    }


def _print(location: str, report: ScrubReport) -> None:
    errors = len(report.errors)
    print_fields(
        [
            ("location", location),
            ("fragments", f"{report.fragments}, {format_bytes(report.fragment_bytes)}"),
            ("records", format_count(report.records)),
            ("snapshots", report.snapshots),
            ("setsum", report.setsum),
            ("looked at", f"everything below {report.limit}"),
            ("errors", errors),
            ("other findings", len(report.findings) - errors),
        ]
    )
