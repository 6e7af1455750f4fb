"""walstore logs apply --adopt: what the machines have is looked at before a list of copies is taken."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from walstore.cli.cluster_change import Planned, plan_changes, spec_row, write_changes
from walstore.cli.cluster_specs import Change
from walstore.cli.errors import UsageError
from walstore.cli.location import TOKEN_VARIABLE
from walstore.cli.report import Listing, Report
from walstore.cluster.machine_looks import LogLooks, MachineQuestions
from walstore.cluster.replication.replication import Replication
from walstore.cluster.view import ClusterView
from walstore.core.runtime.clock import SystemClock
from walstore.topology.documents import LogSpec
from walstore.topology.key_values import KeyValues


def ask_machines(keys: KeyValues, view: ClusterView) -> MachineQuestions:
    """Return what asks the machines that a command line sees, with its token."""
    token = os.environ.get(TOKEN_VARIABLE) or None
    reached = Replication(nodes=[], replicas=1, token=token)
    return MachineQuestions(keys, view, reached, SystemClock())


async def check_made(keys: KeyValues, view: ClusterView, planned: Mapping[str, Planned]) -> None:
    """InvalidSettingsError if a log is to be made over records, as :meth:`MachineQuestions.check_made`."""
    questions = ask_machines(keys, view)
    for name, (before, new) in planned.items():
        if name not in view.specs and not new.source:
            await questions.check_made(name, before, new)


class Adoption(NamedTuple):
    """What becomes of the logs whose lists of copies are taken."""

    rows: Sequence[dict[str, Any]]
    """The logs as they are then, or would be."""
    looks: Sequence[LogLooks]
    is_done: bool
    refused: str | None
    """Why the lists are not taken."""


async def adopt(
    keys: KeyValues, wanted: dict[str, Change], *, is_confirmed: bool, gives_up: bool
) -> Adoption:
    """Look at the machines of all lists that change, and take the lists if that is confirmed and safe.

    A spec that somebody changes after the look is not replaced: ContentionError.
    """
    view = ClusterView(keys, clock=SystemClock())
    await view.look()
    planned = await plan_changes(keys, view, wanted)
    questions = ask_machines(keys, view)
    looks = [
        await questions.look(name, before, new)
        for name, (before, new) in planned.items()
        if new.copies and _placed(before) != _placed(new)
    ]
    refused = None if gives_up else next(filter(None, (one.trouble() for one in looks)), None)
    if is_confirmed and refused is None:
        return Adoption(await write_changes(keys, view, planned), looks, is_done=True, refused=None)
    rows = [spec_row(name, one.new) for name, one in planned.items()]
    return Adoption(rows, looks, is_done=False, refused=refused)


def report_adoption(found: Adoption) -> Report:
    """Return what was found and done; UsageError, once it is printed, if it was refused."""
    looked = [(one.name, machine) for one in found.looks for machine in one.machines]
    machines = [machine.described(name) for name, machine in looked]
    rows = [
        (name, machine.address, "in" if machine.is_listed else "left out", machine.shown())
        for name, machine in looked
    ]
    list_is = "has now" if found.is_done else "would get"
    notes = [
        f"{one.name}: {machine.address}, which is left out, does not answer; whether it has more is "
        "known from etcd at most"
        for one in found.looks
        for machine in one.silent
    ]
    if not found.is_done:
        notes.append("nothing was changed; give --confirm to take the lists")
    return Report(
        {"adopted": found.is_done, "logs": list(found.rows), "machines": machines},
        Listing(("log", "machine", "list", "copy"), rows),
        *([(f"{row['name']} {list_is}", ", ".join(row["copies"]))] for row in found.rows),
        notes=notes,
        refusal=None if found.refused is None else UsageError(found.refused),
    )


def _placed(spec: LogSpec) -> tuple[Any, ...]:
    return spec.copies, spec.generation, dict(spec.joined)
