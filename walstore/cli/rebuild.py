"""walstore rebuild: the manifest of a stored log made again from what its fragments prove."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from walstore.cli.errors import CORRUPTION, UsageError
from walstore.cli.location import to_url
from walstore.cli.options import AsJson, Confirm, StoredAt
from walstore.cli.output import complain, format_bytes, format_count, print_fields, print_json
from walstore.cli.progress import progress_bar
from walstore.cli.running import run_async

if TYPE_CHECKING:
    from uploader import RebuildPlan
    from uploader.rebuilding.plan import Keep
    from uploader.stores import ObjectStore

EXAMPLES = """\b
Examples:
  walstore rebuild s3://bucket/orders
  walstore rebuild s3://bucket/orders --confirm
  walstore rebuild s3://bucket/orders --keep after --json
  walstore rebuild s3://bucket/orders --exclude shard00/0000000000000007_61_70_5b….parquet
  walstore rebuild s3://bucket/orders --log-id 5f0c7b1e9a3d4c2b8e6f00112233aabb --confirm
"""

_WRITER: Final = "walstore rebuild"
_LOG_ID: Final = re.compile(r"[0-9a-fA-F]{32}")
_MOST_SHOWN: Final = 10


def rebuild(
    url: StoredAt,
    *,
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep",
            metavar="WHAT",
            help="Records to keep around a hole: before it, which is the default, after it, or those "
            "around an offset.",
            show_default=False,
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude", metavar="KEY", help="Leave this fragment out; may be given repeatedly."
        ),
    ] = None,
    log_id: Annotated[
        str | None,
        typer.Option(
            "--log-id",
            metavar="HEX",
            help="Identity of the log directory that continues to ship there, see inspect.",
        ),
    ] = None,
    confirm: Confirm = False,
    as_json: AsJson = False,
) -> None:
    """Make a damaged stored log work again, and report what is lost. A dry run without --confirm.

    Reads all of it and keeps what the fragments prove; nothing gets another offset. What is replaced or
    given up is kept in the folder 'rebuilt' of the log. A new manifest takes the place of the damaged one
    only if that has not changed meanwhile. An interrupted rebuild is finished by another. Exit code 2 if
    something is damaged and was not rebuilt.

    For a log of the layout "chain" it begins a new chain with the fragments that are there, by their names
    alone. Stop all writers first: what one of them publishes meanwhile is lost. Where two fragments could
    stand in the same place one must be excluded (exit code 2 until then). Without --log-id the log is one
    that is written straight to the store from then on.
    """
    place, choice = to_url(url, "rebuild"), _parse_keep(keep)
    writer = None if log_id is None else _writer(log_id)
    done = run_async(
        _rebuild(place, choice, writer, frozenset(exclude or ()), is_confirmed=confirm)
    )
    if as_json:
        print_json(done)
    elif done["layout"] == "chain":
        _print_chain(done)
    else:
        _print(done)
    _conclude(done, is_confirmed=confirm)


def _parse_keep(text: str | None) -> Keep | None:
    if text is None or text in ("before", "after"):
        return text  # type: ignore[return-value]
    if re.fullmatch(r"\d{1,20}", text):
        return int(text)
    raise UsageError(f"--keep takes 'before', 'after' or an offset, not {text!r}")


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
    from uploader.rebuilding.survey import is_chain

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
        return _to_json(plan, is_applied=is_confirmed and plan.is_needed)
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


def _to_json(plan: RebuildPlan, *, is_applied: bool) -> dict[str, Any]:
    return {
        "location": plan.location,
        "layout": "swap",
        "needed": plan.is_needed,
        "applied": is_applied,
        "keep": plan.keep,
        "damages": [{"key": one.key, "what": one.what} for one in plan.damages],
        "choices": _intervals(plan.choices),
        "lost": _intervals(plan.lost),
        "reassigned": None if plan.reassigned is None else _intervals([plan.reassigned])[0],
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


def _intervals(found: Sequence[range]) -> list[dict[str, int]]:
    return [{"start": one.start, "limit": one.stop} for one in found]


def _print_chain(done: dict[str, Any]) -> None:
    print_fields(
        [
            ("location", done["location"]),
            ("offsets", _shown(done)),
            ("records", format_count(done["limit"] - done["start"])),
            ("fragments", format_count(done["fragments"])),
            ("size", format_bytes(done["fragment_bytes"])),
            ("setsum", done["setsum"]),
            ("left out", _first(done["left_out"])),
        ]
    )


def _print(done: dict[str, Any]) -> None:
    damages = [f"{one['key']}: {one['what']}" for one in done["damages"]]
    fields: list[tuple[str, Any]] = [("location", done["location"]), ("damaged", _first(damages))]
    if done["needed"]:
        fields += [("proven", _shown(one)) for one in done["choices"]]
        fields += [("lost", _shown(one)) for one in done["lost"]] or [("lost", "nothing")]
    fields += [("offsets then" if done["needed"] else "offsets", _shown(done))]
    if done["kept_in"] is not None:
        fields += [("set aside", _first(done["set_aside"])), ("kept in", done["kept_in"])]
    print_fields([*fields, *(("note", note) for note in done["notes"])])


def _shown(interval: dict[str, Any]) -> str:
    return f"[{interval['start']}, {interval['limit']})"


def _first(lines: Sequence[str]) -> str:
    more = [f"and {len(lines) - _MOST_SHOWN} more"] if len(lines) > _MOST_SHOWN else []
    return "\n".join([*lines[:_MOST_SHOWN], *more]) or "nothing"


def _conclude(done: dict[str, Any], *, is_confirmed: bool) -> None:
    """Write to stderr what to do next, and end with the right code."""
    if done["layout"] == "chain":
        if not is_confirmed:
            complain("nothing was changed; give --confirm to do this")
        return
    if not done["needed"]:
        return
    if not is_confirmed:
        hint = "; --keep says which stretch is kept" if len(done["choices"]) > 1 else ""
        complain(f"nothing was changed; give --confirm to do this{hint}")
        raise typer.Exit(CORRUPTION)
    if done["kept_in"] is None:
        complain("rebuilt")
    else:
        complain(f"rebuilt; what was replaced or given up is in {done['kept_in']}")
