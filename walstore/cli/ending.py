"""walstore seal and destroy: the end of a stored log."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from walstore.cli.errors import UsageError
from walstore.cli.location import to_url
from walstore.cli.options import AsJson, Confirm, StoredAt
from walstore.cli.output import (
    complain,
    format_bytes,
    format_count,
    print_result,
)
from walstore.cli.running import run_async

SEAL_EXAMPLES = """\b
Examples:
  walstore seal s3://bucket/orders
  walstore seal s3://bucket/orders --confirm
  walstore seal file:///srv/bucket/orders --confirm --json
"""


def seal(url: StoredAt, *, confirm: Confirm = False, as_json: AsJson = False) -> None:
    """Let a stored log take no more records, for good. A dry run without --confirm.

    No append commits afterwards, whoever makes it; there is no way back. It can be read, collected, forked
    and destroyed as before. Writers end with exit code 4. Sealing a sealed log changes nothing.
    """
    done = run_async(_seal(to_url(url, "seal"), is_confirmed=confirm))
    fields = [
        ("location", done["location"]),
        ("offsets", f"[{done['head']}, {done['tail']})"),
        ("records", format_count(done["tail"] - done["head"])),
        ("sealed", "yes" if done["sealed"] else "no"),
    ]
    print_result(done, fields, as_json=as_json)
    if not confirm and not done["sealed"]:
        complain("nothing was changed; give --confirm to do this")


async def _seal(url: str, *, is_confirmed: bool) -> dict[str, Any]:
    from uploader import seal
    from uploader.layouts.log_session import open_session

    async with open_session(url) as found:
        found.check_found()
        if is_confirmed:
            await seal(url)
            await found.root.load()
        manifest = found.root.manifest
        return {
            "location": found.store.url,
            "applied": is_confirmed,
            "head": manifest.oldest_offset,
            "tail": manifest.next_offset,
            "sealed": manifest.is_sealed,
        }


DESTROY_EXAMPLES = """\b
Examples:
  walstore destroy s3://bucket/orders
  walstore seal s3://bucket/orders --confirm && walstore destroy s3://bucket/orders --confirm
  walstore destroy s3://bucket/scratch --unsealed --confirm --json
"""


def destroy(
    url: StoredAt,
    *,
    unsealed: Annotated[
        bool, typer.Option("--unsealed", help="Also if the log is not sealed: it is sealed first.")
    ] = False,
    confirm: Confirm = False,
    as_json: AsJson = False,
) -> None:
    """Remove a stored log and all its objects for good. A dry run without --confirm.

    Only a sealed log is removed, unless --unsealed is given, since another may be in use. A tombstone
    stays, so that no writer begins a log there again by accident. Objects that are no part of a log stay.
    After an interruption, the same command continues.
    """
    done = run_async(_destroy(to_url(url, "destroy"), even_unsealed=unsealed, is_confirmed=confirm))
    print_result(done, _destroyed_fields(done), as_json=as_json)
    if not confirm:
        complain("nothing was changed; give --confirm to do this")


async def _destroy(url: str, *, even_unsealed: bool, is_confirmed: bool) -> dict[str, Any]:
    from uploader.format import layout
    from uploader.layouts.log_session import open_session

    async with open_session(url) as found:
        manifest = found.root.manifest
        location, is_known = found.store.url, found.root.is_known
        if not is_confirmed:
            found.check_found()
        is_buried = await found.store.head(layout.TOMBSTONE) is not None
        if is_known and not (manifest.is_sealed or even_unsealed or is_buried):
            raise UsageError(
                f"{location} is not sealed and may be in use; seal it first, or give --unsealed"
            )
        live_bytes = sum(one.num_bytes for one in manifest.snapshots)
        live_bytes += sum(one.num_bytes for one in manifest.fragments)
    done: dict[str, Any] = {
        "location": location,
        "applied": is_confirmed,
        "head": manifest.oldest_offset if is_known else None,
        "tail": manifest.next_offset if is_known else None,
        "bytes": live_bytes if is_known else None,
        "objects": None,
        "object_bytes": None,
        "left": [],
    }
    if is_confirmed:
        from uploader import destroy

        removed = await destroy(url, confirm=even_unsealed)
        done["objects"], done["object_bytes"] = removed.objects, removed.object_bytes
        done["left"] = list(removed.left)
    return done


def _destroyed_fields(done: dict[str, Any]) -> list[tuple[str, Any]]:
    fields: list[tuple[str, Any]] = [("location", done["location"])]
    if done["head"] is not None:
        fields.append(("offsets", f"[{done['head']}, {done['tail']})"))
        fields.append(("fragments", format_bytes(done["bytes"])))
    if done["applied"]:
        size = format_bytes(done["object_bytes"])
        fields.append(("removed", f"{format_count(done['objects'])} objects, {size}"))
    fields += [("left", key) for key in done["left"]]
    return fields
