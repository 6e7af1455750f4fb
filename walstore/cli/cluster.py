"""walstore logs: the logs of a cluster, their leaders, and where their copies are."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import typer

from walstore.cli.cluster_adopt import Adoption, adopt, check_made, report_adoption
from walstore.cli.cluster_change import log_row, plan_changes, spec_fields, write_changes
from walstore.cli.cluster_remove import remove_log
from walstore.cli.cluster_specs import Change, parse_specs
from walstore.cli.errors import UsageError
from walstore.cli.location import to_url
from walstore.cli.options import Confirm, argument, option
from walstore.cli.output import complain
from walstore.cli.report import Listing, Report
from walstore.cli.running import run_async
from walstore.cluster.view import ClusterView
from walstore.core.runtime.clock import SystemClock
from walstore.errors import LogNotFoundError
from walstore.net.wire.address import parse_address
from walstore.topology.documents import (
    LogSpec,
    check_log_name,
    is_selected,
    parse_selector,
)
from walstore.topology.etcd import EtcdKeyValues
from walstore.topology.key_values import KeyValues

CLUSTER_VARIABLE: Final = "WALSTORE_CLUSTER"

LIST_LOGS_EXAMPLES = """\
  walstore logs list --cluster etcd://10.0.0.1:2379
  walstore logs list --selector env=prod,!archived --json
"""
APPLY_EXAMPLES = """\
  walstore logs apply orders --cluster etcd://10.0.0.1:2379
  walstore logs apply orders --replicas 5 --label env=prod
  walstore logs apply scratch --replicas 1
  walstore logs apply orders --tier s3://bucket/orders --set retention_bytes=10000000000
  walstore logs apply partners --source s3://their-bucket/orders
  walstore logs list --json | jq -c '.logs[]' | walstore logs apply --from -
"""
EDIT_EXAMPLES = """\
  EDITOR=vi walstore logs edit
  EDITOR=vi walstore logs edit --selector env=prod
"""
MOVE_EXAMPLES = """\
  walstore logs move orders tls://10.0.0.2:7430
  walstore logs move orders tls://10.0.0.2:7430 --cluster etcd://10.0.0.1:2379
"""
SUSPEND_EXAMPLES = """\
  walstore logs suspend orders
  walstore logs suspend orders --cluster etcd://10.0.0.1:2379
"""
RESUME_EXAMPLES = """\
  walstore logs resume orders
  walstore logs resume orders --cluster etcd://10.0.0.1:2379
"""
REMOVE_EXAMPLES = """\
  walstore logs remove orders
  walstore logs remove orders --confirm
"""
Cluster = Annotated[
    str,
    option(
        "--cluster ETCD",
        "The etcd that the machines share: etcd://host:2379,host2:2379; etcds:// for TLS.",
        envvar=CLUSTER_VARIABLE,
        show_default=False,
    ),
]
Selector = Annotated[
    str, option("--selector LABELS", "Only logs with these labels: env=prod,!old,zone!=a.")
]
Name = Annotated[str, argument("NAME", "The log's name.", show_default=False)]


async def list_logs(*, cluster: Cluster, selector: Selector = "") -> Report:
    """List the logs of a cluster: their leaders, their copies, and which copies have caught up."""
    wanted = parse_selector(selector)
    view = await _look(cluster)
    rows = [
        log_row(view, name)
        for name in sorted(view.specs)
        if is_selected(view.specs[name].labels, wanted)
    ]
    members = [one._asdict() for one in view.members.values()]
    left_out = [{"key": key, "why": why} for key, why in sorted(view.left_out.items())]
    remarks = [
        f"{member.address}: {member.home} has taken the place of {member.replaced}; if both are to "
        "be machines, give each an address (--advertise) and a directory of its own"
        for member in view.members.values()
        if member.replaced
    ]
    for row in rows:
        for address, why in row["missing"].items():
            remarks.append(f"{row['name']}: the copy at {address} does not count: {why}")
    found = {"logs": rows, "members": members, "left_out": left_out}
    if not rows:
        remarks.append("there are no such logs; make one with 'walstore logs apply NAME'")
        return Report(found, remarks=remarks)
    names = ("log", "leader", "epoch", "copies", "present", "labels")
    return Report(found, Listing(names, map(_cells, rows)), remarks=remarks)


def _cells(row: dict[str, Any]) -> Sequence[str]:
    return (
        row["name"],
        row["leader"] or ("suspended" if row["suspended"] else row["source"] or "nobody"),
        "–" if row["epoch"] is None else str(row["epoch"]),
        "–" if row["source"] else f"{len(row['copies'])} of {row['replicas']}",
        "–" if row["present"] is None else str(row["present"]),
        " ".join(f"{label}={value}" for label, value in row["labels"].items()),
    )


def apply(
    name: Annotated[str | None, argument("NAME", "The log's name.", show_default=False)] = None,
    *,
    cluster: Cluster,
    replicas: Annotated[
        int | None, option("--replicas N", "Copies in all, 1 to 16; 3 for a new log.")
    ] = None,
    quorum: Annotated[
        int | None, option("--quorum N", "Copies that must have a record; default: more than half.")
    ] = None,
    labels: Annotated[
        list[str] | None, option("--label NAME=VALUE", "Set a label; NAME= removes it. Repeatable.")
    ] = None,
    tier: Annotated[
        str | None, option("--tier URL", "Ship it to a store; cannot be changed later.")
    ] = None,
    reads: Annotated[
        str | None,
        option("--source URL", "Read it from a store that others write; it then has no copies."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        option(
            "--set NAME=VALUE",
            "A setting of this log, like retention_bytes=1000000000; NAME= removes it. Repeatable.",
        ),
    ] = None,
    source: Annotated[
        typer.FileText | None, option("--from FILE", "Specs as JSON lines; - for stdin.")
    ] = None,
    adopts: Annotated[
        bool,
        option(
            "--adopt",
            "With --from: accept newer lists of copies than the cluster stores, after it was set back. "
            "First asks the machines for their copies. A dry run without --confirm.",
        ),
    ] = False,
    gives_up: Annotated[
        bool,
        option(
            "--give-up-records",
            "With --adopt: even if omitted machines have more records, which are then lost.",
        ),
    ] = False,
    confirm: Confirm = False,
) -> Report:
    """Create a log of a cluster, or change its spec. The cluster chooses machines for its copies.

    Omitted options stay as they are. Copies are added or removed one at a time, while all others have
    caught up. A log whose settings change is reopened while its clients wait. Only its own machine leads
    a log with one copy.
    """
    if (name is None) is (source is None):
        raise UsageError("give the NAME of a log, or --from FILE")
    if adopts and source is None:
        raise UsageError("--adopt goes with --from FILE")
    if (gives_up or confirm) and not adopts:
        raise UsageError(
            "--give-up-records and --confirm go with --adopt: other changes need neither"
        )
    wanted: dict[str, Change]
    if source is not None:
        given = (replicas, quorum, tier, reads, labels or None, settings or None)
        if any(one is not None for one in given):
            raise UsageError("--from FILE goes without the other options")
        wanted = parse_specs(_read(source), adopts=adopts)
        if adopts:
            adopting = _adopt(cluster, wanted, is_confirmed=confirm, gives_up=gives_up)
            return report_adoption(run_async(adopting))
    else:
        assert name is not None
        options: dict[str, Any] = {
            "replicas": replicas,
            "quorum": quorum,
            "tier": tier and to_url(tier, "--tier"),
            "source": reads and to_url(reads, "--source"),
        }
        fields = {one: value for one, value in options.items() if value is not None}
        new_labels, new_settings = _pairs(labels or (), "label"), _pairs(settings or (), "set")

        def change(spec: LogSpec) -> LogSpec:
            merged = {**spec.labels, **new_labels}
            own = {**spec.settings, **{one: _value(text) for one, text in new_settings.items()}}
            return spec._replace(
                **fields,
                labels={label: value for label, value in merged.items() if value},
                settings={one: value for one, value in own.items() if value != ""},
            )

        wanted = {check_log_name(name): change}
    return run_async(_change(cluster, wanted))


def edit(*, cluster: Cluster, selector: Selector = "") -> Report | None:
    """Change specs in the editor named by EDITOR, one log per line. Omitted logs stay."""
    chosen = parse_selector(selector)
    view = run_async(_look(cluster))
    lines = [
        json.dumps(spec_fields(name, spec))
        for name, spec in sorted(view.specs.items())
        if is_selected(spec.labels, chosen)
    ]
    if not lines:
        raise LogNotFoundError("there are no such logs", location=cluster.rpartition("@")[2])
    text = _edited("".join(f"{line}\n" for line in lines))
    if text.split("\n") == [*lines, ""]:
        complain("nothing was changed")
        return None
    return run_async(_change(cluster, parse_specs(text)))


async def move(
    name: Name,
    address: Annotated[str, argument("ADDRESS", "The machine that should lead it.")],
    *,
    cluster: Cluster,
) -> Report:
    """Let another machine with a copy lead a log. Appends wait during the handover."""
    place = str(parse_address(address))

    def change(spec: LogSpec) -> LogSpec:
        if place not in spec.copies:
            raise UsageError(
                f"{place} has no copy of {name!r}, so it cannot lead; copies are at "
                f"{', '.join(spec.copies) or 'no machine yet'}. 'walstore logs apply {name} --replicas "
                f"{len(spec.copies) + 1}' makes one more, at a machine that the cluster chooses; move the "
                "log there once 'walstore logs list' says that all are present"
            )
        return spec._replace(preferred=place)

    return await _change(cluster, {check_log_name(name): change}, makes=False)


async def suspend(name: Name, *, cluster: Cluster) -> Report:
    """Close a log until it is resumed: no machine leads it. Its copies and files stay.

    Until then appends and readers are refused, and no machine has an open file or a task for it.
    """
    wanted = {check_log_name(name): lambda spec: spec._replace(suspended=True)}
    return await _change(cluster, wanted, makes=False)


async def resume(name: Name, *, cluster: Cluster) -> Report:
    """Resume a suspended log, with all acknowledged records."""
    wanted = {check_log_name(name): lambda spec: spec._replace(suspended=False)}
    return await _change(cluster, wanted, makes=False)


async def remove(name: Name, *, cluster: Cluster, confirm: Confirm = False) -> Report:
    """Remove a log from its cluster: no machine leads it. The files of its copies stay.

    A dry run without --confirm.
    """
    check_log_name(name)
    async with open_keys(cluster) as keys:
        found = await remove_log(keys, name, is_confirmed=confirm)
    dry = (
        []
        if confirm
        else [f"nothing was changed; give --confirm to take {name!r} out of the cluster"]
    )
    fields = [("log", name), *(("copy at", one) for one in found["copies"])]
    return Report({"removed": confirm, **found}, fields, notes=dry)


# -- for serve ---------------------------------------------------------------------------------


@asynccontextmanager
async def open_keys(address: str) -> AsyncIterator[KeyValues]:
    """Open the store that a cluster shares."""
    async with EtcdKeyValues.open(address) as keys:
        yield keys


# -- inside ------------------------------------------------------------------------------------


async def _look(cluster: str) -> ClusterView:
    async with open_keys(cluster) as keys:
        view = ClusterView(keys, clock=SystemClock())
        await view.look()
        return view


def _pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    found = {}
    for one in texts:
        name, sign, value = one.partition("=")
        if not sign or not name:
            raise UsageError(f"{one!r}: give --{option} NAME=VALUE, or NAME= to remove it")
        found[name] = value
    return found


def _value(text: str) -> Any:
    """Return the value of a setting: a number, null, or a word."""
    try:
        return json.loads(text)
    except ValueError:
        return text


async def _change(cluster: str, wanted: dict[str, Change], *, makes: bool = True) -> Report:
    async with open_keys(cluster) as keys:
        view = ClusterView(keys, clock=SystemClock())
        await view.look()
        planned = await plan_changes(keys, view, wanted, makes=makes)
        await check_made(keys, view, planned)
        rows = await write_changes(keys, view, planned)
    return Report({"logs": rows}, *map(_changed, rows))


async def _adopt(
    cluster: str, wanted: dict[str, Change], *, is_confirmed: bool, gives_up: bool
) -> Adoption:
    async with open_keys(cluster) as keys:
        return await adopt(keys, wanted, is_confirmed=is_confirmed, gives_up=gives_up)


def _read(source: TextIO) -> str:
    try:
        return str(source.read())
    except UnicodeDecodeError as error:
        raise UsageError(
            f"--from: byte {error.start} is not UTF-8, so it is no JSON; nothing was changed"
        ) from None


def _edited(text: str) -> str:
    """Return what the user's editor makes of a text."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        raise UsageError("set EDITOR to the editor to use, for example EDITOR=vi")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "logs.jsonl"
        path.write_text(text)
        try:
            done = subprocess.run([*shlex.split(editor), str(path)], check=False)
        except (OSError, ValueError) as error:
            raise UsageError(f"the editor {editor!r} cannot be run: {error}") from None
        if done.returncode:
            raise UsageError(f"the editor ended with code {done.returncode}; nothing was changed")
        return path.read_text()


def _changed(row: dict[str, Any]) -> Listing:
    quorum = "more than half" if row["quorum"] is None else row["quorum"]
    kept = [
        ("replicas", row["replicas"]),
        ("quorum", quorum),
        ("copies", " ".join(row["copies"]) or "to be chosen"),
        ("preferred", row["preferred"] or "any"),
        ("tier", row["tier"] or "none"),
    ]
    rows = [
        *([("source", row["source"])] if row["source"] else kept),
        *([("suspended", "yes")] if row["suspended"] else []),
        *row["settings"].items(),
    ]
    return Listing(("log", row["name"]), rows)
