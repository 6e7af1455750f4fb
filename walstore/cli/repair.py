"""walstore repair: what is damaged, what can be saved, and saving it."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from walstore.cli.errors import CORRUPTION, UsageError
from walstore.cli.holder import find_holder
from walstore.cli.location import to_directory, to_url
from walstore.cli.options import AsJson, Confirm, Directory
from walstore.cli.output import complain, print_fields, print_json, terminal
from walstore.errors import WalLockedError
from walstore.repair import KEPT_NAME, Copy, Interval, Keep, RepairPlan, apply_repair, plan_repair

EXAMPLES = """\b
Examples:
  walstore repair data/orders
  walstore repair data/orders --confirm
  walstore repair data/orders --from-tier --confirm
  walstore repair data/orders --from s3://bucket/orders
  walstore repair data/orders --keep before --confirm
  walstore repair data/orders --keep after --json
"""


def repair(
    directory: Directory,
    *,
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep",
            metavar="WHAT",
            help="Records to keep around damage: before it, after it, or those around an offset.",
        ),
    ] = None,
    from_tier: Annotated[
        bool,
        typer.Option(
            "--from-tier", help="Take damaged and missing records from where the log is shipped to."
        ),
    ] = False,
    from_url: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="URL",
            help="Take them from this store URL, which must be of this log.",
        ),
    ] = None,
    confirm: Confirm = False,
    as_json: AsJson = False,
) -> None:
    """Make a log that does not open work again, and report what is lost. A dry run without --confirm.

    Looks at every byte. --from-tier and --from copy damaged or missing records from object storage, bit for
    bit where possible. Offsets stay contiguous, so where records in the middle are lost, --keep chooses which
    part stays. Nothing is deleted: what is replaced or given up is in the directory 'damaged' of the log
    afterwards. An interrupted repair is finished by another. Exit code 2 if something is damaged and was not
    repaired.
    """
    path = to_directory(directory, "repair")
    choice = _parse_keep(keep)
    holder = find_holder(path)
    if holder is not None:
        raise WalLockedError(
            f"the log is open for writing elsewhere ({holder.note}): {path}; close it there",
            path=str(path),
            owner=holder.note,
        )
    with contextlib.ExitStack() as stack:
        copy = _open_copy(stack, path, from_url, from_tier=from_tier)
        with terminal().status(f"reading {path}"):
            plan = plan_repair(path, keep=choice, copy=copy)
        if confirm and plan.is_needed:
            with terminal().status(f"repairing {path}"):
                apply_repair(plan, copy=copy)
    again = plan_repair(path) if confirm and plan.is_begun else None
    if as_json:
        print_json(_to_json(plan, is_applied=confirm and plan.is_needed))
    else:
        _print(plan, path)
    _conclude(plan, again, is_applied=confirm)


def _open_copy(
    stack: contextlib.ExitStack, path: Path, url: str | None, *, from_tier: bool
) -> Copy | None:
    """Return the stored records to repair with, if that is asked for and something is damaged."""
    if url is None and not from_tier:
        return None
    if url is not None and from_tier:
        raise UsageError("give --from-tier or --from, not both")
    if url is not None:
        to_url(url, "--from")
    with terminal().status(f"reading {path}"):
        found = plan_repair(path)
    if not found.is_needed or found.is_begun:
        return None
    source = url or found.tier_url
    if source is None:
        raise UsageError("the checkpoint does not say where the log is shipped to; give --from URL")
    from uploader import StoredCopy

    return stack.enter_context(StoredCopy(source))


def _parse_keep(text: str | None) -> Keep | None:
    if text is None or text in ("before", "after"):
        return text  # type: ignore[return-value]
    if re.fullmatch(r"\d{1,19}", text):
        return int(text)
    raise UsageError(f"--keep takes 'before', 'after' or an offset, not {text!r}")


def _conclude(plan: RepairPlan, again: RepairPlan | None, *, is_applied: bool) -> None:
    """Say on stderr what to do next, and end with the right code.

    ``again`` is what is to be repaired behind an interrupted repair that was finished.
    """
    if not plan.is_needed:
        return
    if is_applied:
        complain(f"repaired; what was replaced is in {Path(plan.path) / KEPT_NAME}")
        if again is not None and again.is_needed:
            complain(f"more is damaged than that repair knew ({again.damages[0]}); repair again")
            raise typer.Exit(CORRUPTION)
        return
    if plan.source is None and plan.tier_url and _could_heal(plan):
        complain(f"with --from-tier the records come from {plan.tier_url}")
    if plan.needs_choice:
        complain(
            "nothing was changed; choose with --keep before, --keep after, or --keep OFFSET in "
            + " or ".join(str(one) for one in plan.choices)
        )
    else:
        complain("nothing was changed; give --confirm to do this")
    raise typer.Exit(CORRUPTION)


def _could_heal(plan: RepairPlan) -> bool:
    """Return whether the tier holds some of the records that cannot be read."""
    return any(one.start < plan.uploaded_limit for one in plan.unreadable)


def _print(plan: RepairPlan, path: Path) -> None:
    """Print a plan, with paths as they were given."""
    fields: list[tuple[str, Any]] = [("location", plan.path), ("log id", plan.log_id or "lost")]
    fields += [("damaged", damage) for damage in plan.damages] or [("damaged", "nothing")]
    fields += [("unreadable", one) for one in plan.unreadable]
    fields += [("readable", one) for one in plan.choices]
    if plan.is_needed and not plan.needs_choice:
        fields += [("step", step) for step in plan.steps]
        fields += [("restored", one) for one in plan.restored]
        fields += [("lost", one) for one in plan.lost] or [("lost", "nothing")]
        fields.append(("offsets then", Interval(plan.head, plan.limit)))
    fields += [("note", note) for note in plan.notes]
    print_fields([(name, str(value).replace(plan.path, str(path))) for name, value in fields])


def _to_json(plan: RepairPlan, *, is_applied: bool) -> dict[str, Any]:
    return {
        "location": plan.path,
        "log_id": plan.log_id,
        "needed": plan.is_needed,
        "applied": is_applied,
        "keep": plan.keep,
        "needs_choice": plan.needs_choice,
        "damages": [
            {"path": one.path, "position": one.position, "message": one.message}
            for one in plan.damages
        ],
        "unreadable": _intervals(plan.unreadable),
        "choices": _intervals(plan.choices),
        "steps": [
            {
                "kind": str(one.kind),
                "path": one.path,
                "message": one.message,
                "lossy": one.is_lossy,
            }
            for one in plan.steps
        ],
        "from": plan.source,
        "restored": _intervals(plan.restored),
        "lost": _intervals(plan.lost),
        "reassigned": _intervals([plan.reassigned])[0] if plan.reassigned else None,
        "head": plan.head,
        "limit": plan.limit,
        "epoch": plan.epoch,
        "uploaded_limit": plan.uploaded_limit or None,
        "tier_url": plan.tier_url,
        "notes": list(plan.notes),
        "kept_in": str(Path(plan.path) / KEPT_NAME) if plan.is_needed else None,
    }


def _intervals(found: Any) -> list[dict[str, int]]:
    return [{"start": one.start, "limit": one.limit} for one in found]
