"""walstore repair and rebuild: a damaged log, in a directory or a store, made to work again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from walstore.care.repair import (
    KEPT_NAME,
    Copy,
    Interval,
    Keep,
    RepairPlan,
    apply_repair,
    plan_repair,
)
from walstore.cli.errors import CORRUPTION, OK, UsageError
from walstore.cli.holder import find_holder
from walstore.cli.location import to_directory, to_url
from walstore.cli.options import Confirm, Directory, StoredAt, option
from walstore.cli.output import format_bytes, format_count, progress_bar, terminal
from walstore.cli.report import UNCHANGED, Fields, Report
from walstore.errors import WalLockedError

if TYPE_CHECKING:
    from uploader import RebuildPlan
    from uploader.stores import ObjectStore

REPAIR_EXAMPLES = """\
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
        option(
            "--keep WHAT",
            "Records to keep around damage: before it, after it, or those around an offset.",
        ),
    ] = None,
    from_tier: Annotated[
        bool,
        option("--from-tier", "Take damaged and missing records from the log's tier."),
    ] = False,
    from_url: Annotated[
        str | None,
        option("--from URL", "Take them from this store URL, which must contain this log."),
    ] = None,
    confirm: Confirm = False,
) -> Report:
    """Repair a log that does not open, and report lost records. A dry run without --confirm.

    Reads every byte. --from-tier and --from copy damaged or missing records from object storage, bit for
    bit where possible. Offsets stay contiguous, so if records in the middle are lost, --keep chooses the
    part that stays. Nothing is deleted: replaced and discarded files are moved to the log's directory
    'damaged'. Another run finishes an interrupted repair. The exit code is 2 if damage was found and not
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
    notes, code = _conclude_repair(plan, again, is_applied=confirm)
    found = _repair_json(plan, is_applied=confirm and plan.is_needed)
    return Report(found, _repair_fields(plan, path), notes=notes, code=code)


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


def _parse_keep(text: str | None, *, digits: int = 19) -> Keep | None:
    if text is None or text in ("before", "after"):
        return text  # type: ignore[return-value]
    if text.isdecimal() and len(text) <= digits:
        return int(text)
    raise UsageError(f"--keep takes 'before', 'after' or an offset, not {text!r}")


def _conclude_repair(
    plan: RepairPlan, again: RepairPlan | None, *, is_applied: bool
) -> tuple[list[str], int]:
    """Return what to do next, and the exit code.

    ``again`` is what is to be repaired behind an interrupted repair that was finished.
    """
    if not plan.is_needed:
        return [], OK
    if is_applied:
        done = f"repaired; what was replaced is in {Path(plan.path) / KEPT_NAME}"
        if again is None or not again.is_needed:
            return [done], OK
        more = f"more is damaged than that repair knew ({again.damages[0]}); repair again"
        return [done, more], CORRUPTION
    notes = [UNCHANGED]
    if plan.needs_choice:
        stretches = " or ".join(map(str, plan.choices))
        notes = [
            f"nothing was changed; choose with --keep before, --keep after, or --keep OFFSET in {stretches}"
        ]
    could_heal = any(one.start < plan.uploaded_limit for one in plan.unreadable)
    if plan.source is None and plan.tier_url and could_heal:
        notes.insert(0, f"with --from-tier the records come from {plan.tier_url}")
    return notes, CORRUPTION


def _repair_fields(plan: RepairPlan, path: Path) -> Fields:
    """Return a plan for people, with paths as they were given."""
    fields: Fields = [("location", plan.path), ("log id", plan.log_id or "lost")]
    fields += [("damaged", damage) for damage in plan.damages] or [("damaged", "nothing")]
    fields += [("unreadable", one) for one in plan.unreadable]
    fields += [("readable", one) for one in plan.choices]
    if plan.is_needed and not plan.needs_choice:
        fields += [("step", step) for step in plan.steps]
        fields += [("restored", one) for one in plan.restored]
        fields += [("lost", one) for one in plan.lost] or [("lost", "nothing")]
        fields.append(("offsets then", Interval(plan.head, plan.limit)))
    fields += [("note", note) for note in plan.notes]
    return [(name, str(value).replace(plan.path, str(path))) for name, value in fields]


def _repair_json(plan: RepairPlan, *, is_applied: bool) -> dict[str, Any]:
    return {
        "location": plan.path,
        "log_id": plan.log_id,
        "needed": plan.is_needed,
        "applied": is_applied,
        "keep": plan.keep,
        "needs_choice": plan.needs_choice,
        "damages": [asdict(one) for one in plan.damages],
        "unreadable": [asdict(one) for one in plan.unreadable],
        "choices": [asdict(one) for one in plan.choices],
        "steps": [{**asdict(one), "lossy": one.is_lossy} for one in plan.steps],
        "from": plan.source,
        "restored": [asdict(one) for one in plan.restored],
        "lost": [asdict(one) for one in plan.lost],
        "reassigned": asdict(plan.reassigned) if plan.reassigned else None,
        "head": plan.head,
        "limit": plan.limit,
        "epoch": plan.epoch,
        "uploaded_limit": plan.uploaded_limit or None,
        "tier_url": plan.tier_url,
        "notes": list(plan.notes),
        "kept_in": str(Path(plan.path) / KEPT_NAME) if plan.is_needed else None,
    }


REBUILD_EXAMPLES = """\
  walstore rebuild s3://bucket/orders
  walstore rebuild s3://bucket/orders --confirm
  walstore rebuild s3://bucket/orders --keep after --json
  walstore rebuild s3://bucket/orders --exclude shard00/0000000000000007_61_70_5b….parquet
  walstore rebuild s3://bucket/orders --log-id 5f0c7b1e9a3d4c2b8e6f00112233aabb --confirm
"""

_WRITER: Final = "walstore rebuild"
_LOG_ID: Final = re.compile(r"[0-9a-fA-F]{32}")
_MOST_SHOWN: Final = 10


async def rebuild(
    url: StoredAt,
    *,
    keep: Annotated[
        str | None,
        option(
            "--keep WHAT",
            "Records to keep around a hole: before it (default), after it, or those "
            "around an offset.",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        option("--exclude KEY", "Omit this fragment; repeatable."),
    ] = None,
    log_id: Annotated[
        str | None,
        option(
            "--log-id HEX",
            "Identity of the log directory that continues to ship there, see inspect.",
        ),
    ] = None,
    confirm: Confirm = False,
) -> Report:
    """Repair a damaged stored log, and report lost records. A dry run without --confirm.

    Reads the whole log and keeps the records that the fragments prove; offsets do not change. Replaced and
    discarded objects are kept in the log's folder 'rebuilt'. A new manifest replaces the damaged one
    only if that has not changed since. Another run finishes an interrupted rebuild. The exit code is 2 if
    damage was found and not rebuilt.

    For a log of the layout "chain" it begins a new chain from the names of the existing fragments.
    Stop all writers first: records that they publish during the rebuild are lost. If two fragments could
    have the same place, exclude one (exit code 2 until then). Without --log-id the log
    is written directly to the store from then on.
    """
    place, choice = to_url(url, "rebuild"), _parse_keep(keep, digits=20)
    writer = None if log_id is None else _writer(log_id)
    done = await _rebuild(place, choice, writer, frozenset(exclude or ()), is_confirmed=confirm)
    if done["layout"] == "chain":
        return Report(done, _chain_fields(done), is_dry_run=not confirm)
    notes, code = _conclude_rebuild(done, is_confirmed=confirm)
    return Report(done, _rebuild_fields(done), notes=notes, code=code)


def _writer(log_id: str) -> str:
    from uploader.root.ownership import writer_name

    if not _LOG_ID.fullmatch(log_id):
        raise UsageError("--log-id takes the 32 hex digits that inspect shows for the directory")
    return writer_name(bytes.fromhex(log_id))


async def _rebuild(
    url: str,
    keep: Keep | None,
    writer: str | None,
    exclude: frozenset[str],
    *,
    is_confirmed: bool,
) -> dict[str, Any]:
    from uploader import apply_rebuild, open_store, plan_rebuild
    from uploader.care.rebuilding.survey import is_chain

    store = open_store(url)
    try:
        if await is_chain(store):
            if keep is not None:
                raise UsageError("--keep is not for a log of the layout 'chain'")
            return await _rebuild_chain(store, writer, exclude, is_confirmed=is_confirmed)
        with progress_bar("reading") as show:
            plan = await plan_rebuild(
                url,
                keep=keep,
                exclude=exclude,
                writer=writer,
                store=store,
                progress=lambda done, total: show(done, total, "fragments"),
            )
        if is_confirmed:
            await apply_rebuild(plan, store=store)
        return _rebuild_json(plan, is_applied=is_confirmed and plan.is_needed)
    finally:
        await store.aclose()


async def _rebuild_chain(
    store: ObjectStore, writer: str | None, exclude: frozenset[str], *, is_confirmed: bool
) -> dict[str, Any]:
    from uploader import rebuild
    from walstore.errors import LogNotFoundError

    try:
        found = await rebuild(store, writer or _WRITER, write=is_confirmed, exclude=exclude)
    except LogNotFoundError:
        raise LogNotFoundError(
            f"there are no fragments of a chain at {store.url}", location=store.url
        ) from None
    manifest = found.manifest
    return {
        "location": store.url,
        "layout": "chain",
        "applied": is_confirmed,
        "start": manifest.oldest_offset,
        "limit": manifest.next_offset,
        "fragments": len(manifest.fragments),
        "fragment_bytes": sum(entry.num_bytes for entry in manifest.fragments),
        "setsum": manifest.setsum.hexdigest(),
        "left_out": list(found.left_out),
    }


def _rebuild_json(plan: RebuildPlan, *, is_applied: bool) -> dict[str, Any]:
    return {
        "location": plan.location,
        "layout": "swap",
        "needed": plan.is_needed,
        "applied": is_applied,
        "keep": plan.keep,
        "damages": [{"key": one.key, "what": one.what} for one in plan.damages],
        "choices": _ranges(plan.choices),
        "lost": _ranges(plan.lost),
        "reassigned": None if plan.reassigned is None else _ranges([plan.reassigned])[0],
        "start": plan.start,
        "limit": plan.limit,
        "fragments": plan.fragments,
        "fragment_bytes": plan.fragment_bytes,
        "setsum": plan.setsum,
        "writer": plan.writer,
        "sealed": plan.is_sealed,
        "left_out": [key for key in plan.set_aside if key.endswith(".parquet")],
        "set_aside": list(plan.set_aside),
        "kept_in": plan.kept_in,
        "notes": list(plan.notes),
    }


def _ranges(found: Sequence[range]) -> list[dict[str, int]]:
    return [{"start": one.start, "limit": one.stop} for one in found]


def _chain_fields(done: dict[str, Any]) -> Fields:
    return [
        ("location", done["location"]),
        ("offsets", _shown_interval(done)),
        ("records", format_count(done["limit"] - done["start"])),
        ("fragments", format_count(done["fragments"])),
        ("size", format_bytes(done["fragment_bytes"])),
        ("setsum", done["setsum"]),
        ("left out", _first_lines(done["left_out"])),
    ]


def _rebuild_fields(done: dict[str, Any]) -> Fields:
    damages = [f"{one['key']}: {one['what']}" for one in done["damages"]]
    fields: Fields = [("location", done["location"]), ("damaged", _first_lines(damages))]
    if done["needed"]:
        fields += [("proven", _shown_interval(one)) for one in done["choices"]]
        fields += [("lost", _shown_interval(one)) for one in done["lost"]] or [("lost", "nothing")]
    fields += [("offsets then" if done["needed"] else "offsets", _shown_interval(done))]
    if done["kept_in"] is not None:
        fields += [("set aside", _first_lines(done["set_aside"])), ("kept in", done["kept_in"])]
    return [*fields, *(("note", note) for note in done["notes"])]


def _shown_interval(interval: dict[str, Any]) -> str:
    return f"[{interval['start']}, {interval['limit']})"


def _first_lines(lines: Sequence[str]) -> str:
    more = [f"and {len(lines) - _MOST_SHOWN} more"] if len(lines) > _MOST_SHOWN else []
    return "\n".join([*lines[:_MOST_SHOWN], *more]) or "nothing"


def _conclude_rebuild(done: dict[str, Any], *, is_confirmed: bool) -> tuple[list[str], int]:
    """Return what to do next, and the exit code."""
    if not done["needed"]:
        return [], OK
    if not is_confirmed:
        hint = "; --keep says which stretch is kept" if len(done["choices"]) > 1 else ""
        return [f"{UNCHANGED}{hint}"], CORRUPTION
    kept = done["kept_in"]
    return [
        "rebuilt" if kept is None else f"rebuilt; what was replaced or given up is in {kept}"
    ], OK
