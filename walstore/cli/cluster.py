"""walstore logs: the logs of a cluster, their leaders, and where their copies are."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from walstore.cli.errors import UsageError
from walstore.cli.location import to_url
from walstore.cli.options import AsJson, Confirm
from walstore.cli.output import complain, print_json, print_result, print_table
from walstore.cli.running import run_async
from walstore.cluster.view import ClusterView, removed_spec
from walstore.errors import ContentionError, InvalidSettingsError, LogNotFoundError
from walstore.runtime.clock import SystemClock
from walstore.topology.documents import (
    LEADERS,
    LOGS,
    REMOVED,
    SYNCED,
    LogSpec,
    check_log_name,
    is_selected,
    parse_selector,
)
from walstore.topology.etcd import EtcdKeyValues
from walstore.topology.key_values import KeyValues
from walstore.wire.address import parse_address

CLUSTER_VARIABLE: Final = "WALSTORE_CLUSTER"
_CLOSING_SECONDS: Final = 30.0
"""So long a log that is taken out may take to be closed."""
_PAUSE_SECONDS: Final = 0.1

LIST_LOGS_EXAMPLES = """\b
Examples:
  walstore logs list --cluster etcd://10.0.0.1:2379
  walstore logs list --selector env=prod,!archived --json
"""
APPLY_EXAMPLES = """\b
Examples:
  walstore logs apply orders --cluster etcd://10.0.0.1:2379
  walstore logs apply orders --replicas 5 --label env=prod
  walstore logs apply scratch --replicas 1
  walstore logs apply orders --tier s3://bucket/orders --set retention_bytes=10000000000
  walstore logs apply partners --source s3://their-bucket/orders
  walstore logs list --json | jq -c '.logs[]' | walstore logs apply --from -
"""
EDIT_EXAMPLES = """\b
Examples:
  EDITOR=vi walstore logs edit
  EDITOR=vi walstore logs edit --selector env=prod
"""
MOVE_EXAMPLES = """\b
Examples:
  walstore logs move orders tls://10.0.0.2:7430
  walstore logs move orders tls://10.0.0.2:7430 --cluster etcd://10.0.0.1:2379
"""
SUSPEND_EXAMPLES = """\b
Examples:
  walstore logs suspend orders
  walstore logs suspend orders --cluster etcd://10.0.0.1:2379
"""
RESUME_EXAMPLES = """\b
Examples:
  walstore logs resume orders
  walstore logs resume orders --cluster etcd://10.0.0.1:2379
"""
REMOVE_EXAMPLES = """\b
Examples:
  walstore logs remove orders
  walstore logs remove orders --confirm
"""
Cluster = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="ETCD",
        envvar=CLUSTER_VARIABLE,
        help="The etcd that the machines share: etcd://host:2379,host2:2379; etcds:// for TLS.",
        show_default=False,
    ),
]
Selector = Annotated[
    str,
    typer.Option(
        "--selector", metavar="LABELS", help="Only logs with these labels: env=prod,!old,zone!=a."
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The log's name.", show_default=False)]


def list_logs(*, cluster: Cluster, selector: Selector = "", as_json: AsJson = False) -> None:
    """List the logs of a cluster: their leaders, where their copies are, which of those have caught up."""
    wanted = parse_selector(selector)
    view = run_async(_look(cluster))
    rows = [
        _fields(view, name)
        for name in sorted(view.specs)
        if is_selected(view.specs[name].labels, wanted)
    ]
    if as_json:
        members = [one._asdict() for one in view.members.values()]
        left_out = [{"key": key, "why": why} for key, why in sorted(view.left_out.items())]
        print_json({"logs": rows, "members": members, "left_out": left_out})
        return
    if not rows:
        complain("there are no such logs; make one with 'walstore logs apply NAME'")
        return
    print_table(
        ("log", "leader", "epoch", "copies", "present", "labels"),
        [
            [
                row["name"],
                row["leader"] or ("suspended" if row["suspended"] else row["source"] or "nobody"),
                "–" if row["epoch"] is None else str(row["epoch"]),
                "–" if row["source"] else f"{len(row['copies'])} of {row['replicas']}",
                "–" if row["present"] is None else str(row["present"]),
                " ".join(f"{label}={value}" for label, value in row["labels"].items()),
            ]
            for row in rows
        ],
    )
    for row in rows:
        for address, why in row["missing"].items():
            complain(f"{row['name']}: the copy at {address} does not count: {why}")


def apply(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The log's name.", show_default=False)
    ] = None,
    *,
    cluster: Cluster,
    replicas: Annotated[
        int | None,
        typer.Option("--replicas", metavar="N", help="Copies in all, 1 to 16; 3 for a new log."),
    ] = None,
    quorum: Annotated[
        int | None,
        typer.Option(
            "--quorum", metavar="N", help="Copies that must have a record; else more than half."
        ),
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label", metavar="NAME=VALUE", help="Set a label; NAME= removes it. Repeatable."
        ),
    ] = None,
    tier: Annotated[
        str | None,
        typer.Option("--tier", metavar="URL", help="Ship it to a store; cannot be changed later."),
    ] = None,
    reads: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="URL",
            help="Read it from a store that others write; it has no copies then.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of its own, such as retention_bytes=1000000000; NAME= removes it. Repeatable.",
        ),
    ] = None,
    source: Annotated[
        typer.FileText | None,
        typer.Option("--from", metavar="FILE", help="Specs as JSON lines; - for stdin."),
    ] = None,
    adopts: Annotated[
        bool,
        typer.Option(
            "--adopt",
            help="With --from: take newer lists of copies than the cluster stores, after it was set back.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a log of a cluster, or change what is wanted of it. Machines for its copies are chosen.

    What is not given stays as it is. The number of copies changes one at a time, while all others have
    caught up. A log whose settings change is opened again: its clients wait meanwhile. A log with one copy is
    led by its machine or by nobody.
    """
    if (name is None) is (source is None):
        raise UsageError("give the NAME of a log, or --from FILE")
    if adopts and source is None:
        raise UsageError("--adopt goes with --from FILE")
    wanted: dict[str, Callable[[LogSpec], LogSpec]]
    if source is not None:
        given = (replicas, quorum, tier, reads, labels or None, settings or None)
        if any(one is not None for one in given):
            raise UsageError("--from FILE goes without the other options")
        wanted = _parse_specs(source.read(), adopts=adopts)
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
    done = run_async(_change(cluster, wanted))
    _print_changed(done, as_json=as_json)


def edit(*, cluster: Cluster, selector: Selector = "", as_json: AsJson = False) -> None:
    """Change specs in the editor that EDITOR names, a log a line. Logs that are left out stay."""
    chosen = parse_selector(selector)
    view = run_async(_look(cluster))
    lines = [
        json.dumps(_spec_fields(name, spec))
        for name, spec in sorted(view.specs.items())
        if is_selected(spec.labels, chosen)
    ]
    if not lines:
        raise LogNotFoundError("there are no such logs", location=cluster.rpartition("@")[2])
    text = _edited("".join(f"{line}\n" for line in lines))
    if text.split("\n") == [*lines, ""]:
        complain("nothing was changed")
        return
    _print_changed(run_async(_change(cluster, _parse_specs(text))), as_json=as_json)


def move(
    name: Name,
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="The machine that should lead it.")
    ],
    *,
    cluster: Cluster,
    as_json: AsJson = False,
) -> None:
    """Let another machine with a copy lead a log. Appends wait while it is handed over."""
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

    wanted: dict[str, Callable[[LogSpec], LogSpec]] = {check_log_name(name): change}
    _print_changed(run_async(_change(cluster, wanted, makes=False)), as_json=as_json)


def suspend(name: Name, *, cluster: Cluster, as_json: AsJson = False) -> None:
    """Let nobody lead a log until it is resumed. Its leader closes it in order; its copies and files stay.

    Appends and readers are refused meanwhile, and no machine has a file or a task for it.
    """
    wanted = {check_log_name(name): lambda spec: spec._replace(suspended=True)}
    _print_changed(run_async(_change(cluster, wanted, makes=False)), as_json=as_json)


def resume(name: Name, *, cluster: Cluster, as_json: AsJson = False) -> None:
    """Let a log that was suspended be led again, with everything that was acknowledged."""
    wanted = {check_log_name(name): lambda spec: spec._replace(suspended=False)}
    _print_changed(run_async(_change(cluster, wanted, makes=False)), as_json=as_json)


def remove(
    name: Name, *, cluster: Cluster, confirm: Confirm = False, as_json: AsJson = False
) -> None:
    """Take a log out of its cluster: nobody leads it any more. The files of its copies stay.

    A dry run without --confirm.
    """
    check_log_name(name)
    found = run_async(_remove(cluster, name, is_confirmed=confirm))
    if not confirm:
        complain(f"nothing was changed; give --confirm to take {name!r} out of the cluster")
    print_result(
        {"removed": confirm, **found},
        [("log", name), *((("copy at", one)) for one in found["copies"])],
        as_json=as_json,
    )


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


def _spec_fields(name: str, spec: LogSpec) -> dict[str, Any]:
    return {
        "name": name,
        "replicas": spec.replicas,
        "quorum": spec.quorum,
        "labels": dict(spec.labels),
        "preferred": spec.preferred,
        "tier": spec.tier,
        "settings": dict(spec.settings),
        "suspended": spec.suspended,
        "source": spec.source,
    }


def _fields(view: ClusterView, name: str) -> dict[str, Any]:
    spec, leader = view.specs[name], view.leaders.get(name)
    is_led = leader is not None and leader.epoch > 0
    return {
        **_spec_fields(name, spec),
        "copies": list(spec.copies),
        "generation": spec.generation,
        "joined": dict(spec.joined),
        "leader": leader.address if leader is not None and is_led else None,
        "epoch": leader.epoch if leader is not None and is_led else None,
        "present": 1 + len(leader.present) if leader is not None and is_led else None,
        "missing": dict(leader.missing) if leader is not None and is_led else {},
    }


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


def _parse_specs(text: str, *, adopts: bool = False) -> dict[str, Callable[[LogSpec], LogSpec]]:
    """Return the change of each log that is in lines of JSON; what a line leaves out stays."""
    wanted: dict[str, Callable[[LogSpec], LogSpec]] = {}
    placed = ("copies", "generation", "joined")
    allowed = set(LogSpec._fields) - set(placed)
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict) or "name" not in fields:
                raise ValueError("it has no name")
            name = check_log_name(fields["name"])
        except (ValueError, TypeError) as error:
            raise UsageError(f"line {number} is no spec of a log: {error}") from None
        if name in wanted:
            raise UsageError(f"line {number}: the log {name!r} is there twice")
        values = {field: value for field, value in fields.items() if field in allowed}
        where = {field: fields[field] for field in placed if field in fields}
        wanted[name] = partial(_with_fields, name, values, where, adopts=adopts)
    return wanted


def _with_fields(
    name: str, values: dict[str, Any], where: dict[str, Any], spec: LogSpec, *, adopts: bool
) -> LogSpec:
    """Return a spec with other fields; one that is made, with the copies that it had before.

    A list of copies that is there is replaced by one with a higher generation only, if ``adopts``: the store
    was set back to an earlier state, and the copies know that list. Anything else is an error.
    """
    changed = spec._replace(**values)
    if not where.get("copies"):
        return changed
    if not isinstance(where["copies"], list):
        raise UsageError("copies must be a list of addresses")
    copies = tuple(str(parse_address(one)) for one in where["copies"])
    found = changed._replace(**{"generation": spec.generation, **where, "copies": copies})
    if "joined" not in where and spec.copies:
        came = {one: found.generation for one in copies if one not in spec.copies}
        stayed = {one: at for one, at in spec.joined.items() if one in copies}
        if came and len(copies) == 2:  # a takeover would rely on it (``replication/takeover.py``)
            raise UsageError(
                f'the cluster has no copy of {name!r} at {next(iter(came))}; say with "joined" if that is '
                f"to be filled from the other copy, {json.dumps(came)}, or had the log already, {{}}"
            )
        found = found._replace(joined={**stayed, **came})
    if not spec.copies or found == changed:
        return found
    now, given = (f"generation {one.generation}: {', '.join(one.copies)}" for one in (spec, found))
    if found.generation <= spec.generation:
        raise UsageError(
            f"the copies of {name!r} cannot be given, only their number: leave copies, generation and "
            f"joined out. They are {now}; given is {given}"
        )
    if not adopts:
        raise UsageError(
            f"{name!r} has an older list of copies ({now}) than what is given ({given}). If what the "
            "cluster stores was set back to an earlier state, take the one given with --adopt; nothing was "
            "changed"
        )
    return found


async def _change(
    cluster: str, wanted: dict[str, Callable[[LogSpec], LogSpec]], *, makes: bool = True
) -> list[dict[str, Any]]:
    async with open_keys(cluster) as keys:
        view = ClusterView(keys, clock=SystemClock())
        await view.look()
        new: dict[str, LogSpec] = {}
        for name, change in wanted.items():  # all are checked before one is changed
            old = view.specs.get(name)
            if old is None and not makes:
                raise LogNotFoundError(f"the cluster has no log {name!r}", location=name)
            before = old or await removed_spec(keys, name) or LogSpec()
            new[name] = _checked(change(before))
            await _check_tier(before, new[name])
            await _check_source(before, new[name])
        for name, spec in new.items():
            if spec == view.specs.get(name):
                continue
            key = view.key(LOGS, name)
            swap = await keys.swap(key, spec.encode(), expected=view.revisions.get(key, 0))
            if not swap.happened:
                raise ContentionError(f"the log {name!r} was changed by somebody else; call again")
        await view.look()
        return [_fields(view, name) for name in new if name in view.specs]


async def _check_tier(before: LogSpec, spec: LogSpec) -> None:
    """Refuse a tier that cannot be reached, or has a log already, and the change of one that is used."""
    if spec.tier == before.tier:
        return
    if before.tier and await _is_used(before.tier, may_be_wrong=True):
        raise UsageError(
            f"the log ships to {before.tier}, which may have records that no copy has any more; "
            "that cannot be changed"
        )
    if spec.tier and await _is_used(spec.tier):
        raise UsageError(f"there is a log at {spec.tier} already; give a prefix of its own")


async def _check_source(before: LogSpec, spec: LogSpec) -> None:
    """Refuse a source where there is no log."""
    if spec.source not in ("", before.source) and not await _is_used(spec.source):
        raise UsageError(f"there is no log at {spec.source}")


async def _is_used(url: str, *, may_be_wrong: bool = False) -> bool:
    """Return whether there is a log at a URL. Raises what the store raises, also for a URL that is none."""
    from uploader import CloudLog

    try:
        async with CloudLog.open(url):
            return True
    except LogNotFoundError:
        return False
    except InvalidSettingsError:
        if not may_be_wrong:
            raise
        return False


def _checked(spec: LogSpec) -> LogSpec:
    try:
        return spec.check()
    except TypeError as error:
        raise UsageError(str(error)) from None


async def _remove(cluster: str, name: str, *, is_confirmed: bool) -> dict[str, Any]:
    async with open_keys(cluster) as keys:
        view = ClusterView(keys, clock=SystemClock())
        await view.look()
        if name not in view.specs:
            raise LogNotFoundError(f"the cluster has no log {name!r}", location=name)
        if is_confirmed:
            key, kept = view.key(LOGS, name), view.key(REMOVED, name)
            # What is made again under this name goes on with the copies that there are, and is led.
            value = view.specs[name]._replace(suspended=False).encode()
            kept_swap = await keys.swap(kept, value, expected=view.revisions.get(kept, 0))
            swap = await keys.swap(key, None, expected=view.revisions[key])
            if not (kept_swap.happened and swap.happened):
                raise ContentionError(f"the log {name!r} was changed by somebody else; call again")
            await _forget_marks(keys, view, name)
        return _fields(view, name)


async def _forget_marks(keys: KeyValues, view: ClusterView, name: str) -> None:
    """Remove what etcd knows of the copies of a log that was taken out: one made again may begin anew.

    A leader writes that once more as it closes the log, so it is waited for.
    """
    clock, leader = SystemClock(), view.key(LEADERS, name)
    deadline = clock.monotonic() + _CLOSING_SECONDS
    while await keys.get(leader) is not None:
        if clock.monotonic() >= deadline:
            complain(
                f"{name!r} is taken out, but not closed yet, so {view.key(SYNCED, name)} stays: before a log "
                "of this name can begin anew, call 'walstore logs reset-head --cluster'"
            )
            return
        await clock.sleep(_PAUSE_SECONDS)
    key = view.key(SYNCED, name)
    while (found := await keys.get(key)) is not None:
        await keys.swap(key, None, expected=found.revision)


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


def _print_changed(rows: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json({"logs": list(rows)})
        return
    for row in rows:
        quorum = "more than half" if row["quorum"] is None else row["quorum"]
        kept = [
            ["replicas", str(row["replicas"])],
            ["quorum", str(quorum)],
            ["copies", " ".join(row["copies"]) or "to be chosen"],
            ["preferred", row["preferred"] or "any"],
            ["tier", row["tier"] or "none"],
        ]
        print_table(
            ("log", row["name"]),
            [
                *([["source", row["source"]]] if row["source"] else kept),
                *([["suspended", "yes"]] if row["suspended"] else []),
                *([name, str(value)] for name, value in row["settings"].items()),
            ],
        )
