"""walstore rebuild: the manifest of a chain made again from the names of its fragments."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import typer

from walstore.cli.errors import UsageError
from walstore.cli.location import to_url
from walstore.cli.options import AsJson, Confirm, StoredAt
from walstore.cli.output import complain, format_bytes, format_count, print_fields, print_json
from walstore.cli.running import run_async

EXAMPLES = """\b
Examples:
  walstore rebuild s3://bucket/orders
  walstore rebuild s3://bucket/orders --exclude shard00/0000000000000007_61_70_5b….parquet
  walstore rebuild s3://bucket/orders --log-id 5f0c7b1e9a3d4c2b8e6f00112233aabb --confirm
"""

_WRITER: Final = "walstore rebuild"
_LOG_ID: Final = re.compile(r"[0-9a-fA-F]{32}")
_MOST_SHOWN: Final = 10


def rebuild(
    url: StoredAt,
    *,
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
            help="Identity of the log directory that is to go on shipping there, see inspect.",
        ),
    ] = None,
    confirm: Confirm = False,
    as_json: AsJson = False,
) -> None:
    """Begin a new chain of manifests with the fragments that are there. A dry run without --confirm.

    For a log of the layout "chain" whose manifests are lost or damaged. Stop all writers first: what one of
    them publishes meanwhile is lost. Look at what is left out before you confirm. Where two fragments
    could stand in the same place one must be excluded (exit code 2 until then). Without --log-id the log
    is one that is written straight to the store from then on.
    """
    place, writer = to_url(url, "rebuild"), _writer(log_id)
    done = run_async(_rebuild(place, writer, frozenset(exclude or ()), is_confirmed=confirm))
    if as_json:
        print_json(done)
    else:
        left_out = done["left_out"]
        more = [f"and {len(left_out) - _MOST_SHOWN} more"] if len(left_out) > _MOST_SHOWN else []
        print_fields(
            [
                ("location", done["location"]),
                ("offsets", f"[{done['start']}, {done['limit']})"),
                ("records", format_count(done["limit"] - done["start"])),
                ("fragments", format_count(done["fragments"])),
                ("size", format_bytes(done["fragment_bytes"])),
                ("setsum", done["setsum"]),
                ("left out", "\n".join([*left_out[:_MOST_SHOWN], *more]) or "nothing"),
            ]
        )
    if not confirm:
        complain("nothing was changed; give --confirm to do this")


def _writer(log_id: str | None) -> str:
    from uploader.writing.ownership import writer_name

    if log_id is None:
        return _WRITER
    if not _LOG_ID.fullmatch(log_id):
        raise UsageError("--log-id takes the 32 hex digits that inspect shows for the directory")
    return writer_name(bytes.fromhex(log_id))


async def _rebuild(
    url: str, writer: str, exclude: frozenset[str], *, is_confirmed: bool
) -> dict[str, Any]:
    from uploader import open_store, rebuild
    from walstore.errors import LogNotFoundError

    store = open_store(url)
    try:
        try:
            found = await rebuild(store, writer, write=is_confirmed, exclude=exclude)
        except LogNotFoundError:
            raise LogNotFoundError(
                f"there are no fragments of a chain at {store.url}", location=store.url
            ) from None
        manifest = found.manifest
        return {
            "location": store.url,
            "applied": is_confirmed,
            "start": manifest.oldest_offset,
            "limit": manifest.next_offset,
            "fragments": len(manifest.fragments),
            "fragment_bytes": sum(entry.num_bytes for entry in manifest.fragments),
            "setsum": manifest.setsum.hexdigest(),
            "left_out": list(found.left_out),
        }
    finally:
        await store.aclose()
