"""walstore verify and scrub: is every stored byte as it was written?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from walstore.care.verify import VerifyReport, verify_directory
from walstore.cli.errors import CORRUPTION, FAILED, OK
from walstore.cli.location import is_store, to_directory, to_url
from walstore.cli.options import Location, StoredAt, option
from walstore.cli.output import format_bytes, format_count, progress_bar, terminal
from walstore.cli.report import Fields, Report
from walstore.cli.running import run_async
from walstore.core.files.directory import PROMISE_NAME, REMAKE
from walstore.core.format import checkpoint, segment
from walstore.errors import CorruptionError, WalError

if TYPE_CHECKING:
    from uploader import ScrubReport, ScrubTally

VERIFY_EXAMPLES = """\
  walstore verify data/orders
  walstore verify s3://bucket/orders --json
"""


def verify(location: Location) -> Report:
    """Check every byte of a log and name each damaged place. Changes nothing, takes no lock.

    For a directory: headers, every batch's CRC and chain, offsets, indexes, footers, and the checkpoint
    against the segments. For a store: the manifest, and every fragment's length, offsets and setsum.
    The exit code is 2 if there is damage.
    """
    if is_store(location):
        found = run_async(_verify_store(location))
    else:
        found = _verify_directory(to_directory(location, "verify"))
    code = OK if found["ok"] else CORRUPTION
    return Report(found, _verified_fields(found), notes=_advice(location, found), code=code)


def _advice(location: str, found: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong, and what to do about it."""
    for problem in found["problems"]:
        where = problem["path"]
        if problem["position"] is not None:
            where += f" at byte {problem['position']}"
        yield f"{where}: {problem['message']}"
    hidden = found["problem_count"] - len(found["problems"])
    if hidden:
        yield f"and {hidden} more problems"
    if found.get("healable"):
        names = ", ".join(found["healable"])
        yield (
            f"'walstore repair {location} --from-tier' puts back what {found['tier_url']} holds of {names}"
        )
    is_directory = found["kind"] == "directory"
    if not found["ok"] and is_directory and (Path(location) / PROMISE_NAME).exists():
        yield f"it is a copy of a replicated log: {REMAKE}"


def _verify_directory(path: Path) -> dict[str, Any]:
    with terminal().status(f"verifying {path}") as status:
        report = verify_directory(
            path, on_progress=lambda segment: status.update(f"verifying {segment}")
        )
    tier_url, healable = _healable(path, report)
    return {
        "ok": report.is_ok,
        "location": report.path,
        "kind": "directory",
        "log_id": report.log_id,
        "head": report.head,
        "limit": report.limit,
        "segments": report.segments,
        "batches": report.batches,
        "records": report.records,
        "bytes": report.size_bytes,
        "unfinished_bytes": report.unfinished_bytes,
        "problem_count": report.problem_count,
        "problems": [asdict(problem) for problem in report.problems],
        "tier_url": tier_url,
        "healable": healable,
    }


def _healable(path: Path, report: VerifyReport) -> tuple[str | None, list[str]]:
    """Return where the log is shipped to, and the damaged segments of which records are there.

    Reads the checkpoint only, no store.
    """
    try:
        place = path / checkpoint.FILE_NAME
        hint = checkpoint.decode_checkpoint(place.read_bytes(), str(place))
    except (OSError, WalError):
        return None, []
    if hint is None or hint.tier_url is None:
        return None, []
    names = dict.fromkeys(Path(problem.path).name for problem in report.problems)
    starts = {name: segment.parse_file_name(name) for name in names}
    shipped = hint.uploaded_limit
    return hint.tier_url, [
        name for name, start in starts.items() if start is not None and start < shipped
    ]


async def _verify_store(url: str) -> dict[str, Any]:
    from uploader import CloudLog

    try:
        async with CloudLog.open(url) as log:
            found: dict[str, Any] = {
                "ok": True,
                "location": log.url,
                "kind": "store",
                "head": log.head,
                "limit": log.tail,
            }
            with terminal().status(f"verifying {log.url}"):
                verified = await log.verify()
            return found | {
                "fragments": verified.fragments,
                "records": verified.records,
                "bytes": verified.fragment_bytes,
                "setsum": verified.setsum,
                "problem_count": 0,
                "problems": [],
            }
    except CorruptionError as error:
        message = str(error).partition(f": {error.path}")[0]
        problem = {"path": error.path, "position": error.position, "message": message}
        return {
            "ok": False,
            "location": url.partition("?")[0],
            "kind": "store",
            "problem_count": 1,
            "problems": [problem],
        }


def _verified_fields(found: dict[str, Any]) -> Fields:
    names = ("location", "log_id", "segments", "fragments", "batches", "records", "setsum")
    fields = [(name, found[name]) for name in names if name in found]
    if "limit" in found:
        fields.append(("offsets", f"[{found['head']}, {found['limit']})"))
    if "bytes" in found:
        fields.append(("size", format_bytes(found["bytes"])))
    if found.get("unfinished_bytes"):
        fields.append(("unfinished", f"{found['unfinished_bytes']} bytes, never acknowledged"))
    fields.append(("problems", found["problem_count"]))
    return fields


SCRUB_EXAMPLES = """\
  walstore scrub s3://bucket/orders
  walstore scrub s3://bucket/orders --max-fragments 1000 --json
  walstore scrub s3://bucket/orders --start 5000001
"""

_SHOWN_FINDINGS: Final = 100


async def scrub(
    url: StoredAt,
    *,
    start: Annotated[
        int | None, option("--start OFFSET", "Begin with the fragment of this offset.")
    ] = None,
    max_fragments: Annotated[
        int | None, option("--max-fragments N", "Most fragments to check.", min=1)
    ] = None,
) -> Report:
    """Read all of a stored log and report all damage. Changes nothing.

    Hashes every record, and checks manifest, snapshots, fragments and the objects next to them. Unlike
    'walstore verify', it continues after damage, gives advice, and may run in parts. The exit code is 2 if
    records are lost or damaged, and 1 if the store prevented a complete check.
    """
    place = to_url(url, "scrub")
    from uploader import Scrubber

    async with Scrubber.open(place) as scrubber:
        with progress_bar("scrubbing") as show:
            begin: list[int] = []

            def on_progress(tally: ScrubTally) -> None:
                begin[:] = begin or [tally.position]
                done, total = tally.position - begin[0], tally.limit - begin[0]
                show(done, total, f"{len(tally.findings)} findings")

            found = await scrubber.scrub(
                start=start, max_fragments=max_fragments, progress=on_progress
            )
    remarks = [str(finding) for finding in found.findings[:_SHOWN_FINDINGS]]
    if len(found.findings) > _SHOWN_FINDINGS:
        remarks.append(f"and {len(found.findings) - _SHOWN_FINDINGS} more findings; --json has all")
    code, notes = OK if found.is_sound else CORRUPTION, []
    if not found.is_complete:
        notes.append(f"not all of it was looked at; continue with --start {found.next_start}")
        if code == OK and found.fragments != max_fragments:
            code = FAILED
    shown = _scrub_fields(scrubber.url, found)
    return Report(_scrub_json(scrubber.url, found), shown, remarks=remarks, notes=notes, code=code)


def _scrub_json(location: str, report: ScrubReport) -> dict[str, Any]:
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


def _scrub_fields(location: str, report: ScrubReport) -> Fields:
    errors = len(report.errors)
    return [
        ("location", location),
        ("fragments", f"{report.fragments}, {format_bytes(report.fragment_bytes)}"),
        ("records", format_count(report.records)),
        ("snapshots", report.snapshots),
        ("setsum", report.setsum),
        ("looked at", f"everything below {report.limit}"),
        ("errors", errors),
        ("other findings", len(report.findings) - errors),
    ]
