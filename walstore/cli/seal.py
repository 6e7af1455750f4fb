"""walstore seal: a stored log that takes no more records."""

from __future__ import annotations

from typing import Any

from walstore.cli.location import to_url
from walstore.cli.options import AsJson, Confirm, StoredAt
from walstore.cli.output import complain, format_count, print_fields, print_json
from walstore.cli.running import run_async

EXAMPLES = """\b
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
    if as_json:
        print_json(done)
    else:
        print_fields(
            [
                ("location", done["location"]),
                ("offsets", f"[{done['head']}, {done['tail']})"),
                ("records", format_count(done["tail"] - done["head"])),
                ("sealed", "yes" if done["sealed"] else "no"),
            ]
        )
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
