"""walstore logs apply --adopt: what the machines have is looked at before a list of copies is taken."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from walstore.cli.cluster_change import Planned, plan_changes, spec_row, write_changes
from walstore.cli.cluster_specs import Change
from walstore.cli.errors import UsageError
from walstore.cli.location import TOKEN_VARIABLE
from walstore.cli.output import complain, print_fields, print_json, print_table
from walstore.cluster.view import ClusterView
from walstore.errors import InvalidSettingsError, WalError
from walstore.remote.client import Fate
from walstore.replication.copy_look import LOOK, CopyLook
from walstore.replication.copy_marks import read_marks
from walstore.replication.remote_copy import client_of
from walstore.replication.settings import Replication
from walstore.runtime.clock import SystemClock
from walstore.topology.documents import SYNCED, LogSpec, Synced
from walstore.topology.key_values import KeyValues
from walstore.wire.address import parse_address

_PATIENCE_SECONDS: Final = 5.0
"""How long a machine may take to answer: all are asked at the same time."""


class MachineLook(NamedTuple):
    """What one machine has of a log, or why that is not known."""

    address: str
    is_listed: bool
    """Whether it is in the list that is to be taken."""
    found: CopyLook | None
    """None for no copy."""
    trouble: str | None
    mark: int
    """Below which offset it had what is replicated, as etcd knows; 0 if it knows nothing."""

    def shown(self) -> str:
        """Return what is said of its copy."""
        had = f"; it had offsets below {self.mark}, as etcd knows" if self.mark else ""
        if self.trouble is not None:
            return f"not known: {self.trouble}{had}"
        if self.found is None:
            return f"no copy{had}"
        if not self.found.limit:
            return f"nothing of the log yet{had}"
        counts = "" if self.found.is_whole else "; does not count: it is new, or was put back"
        return (
            f"log {self.found.log_id.hex()}, offsets {self.found.first} to {self.found.limit - 1}, epoch "
            f"{self.found.epoch}{counts}{had}"
        )

    def described(self, name: str) -> dict[str, Any]:
        """Return it for JSON."""
        found = self.found
        copy = found and {**found._asdict(), "log_id": found.log_id.hex()}
        return {
            "log": name,
            "address": self.address,
            "listed": self.is_listed,
            "copy": copy,
            "trouble": self.trouble,
            "mark": self.mark,
        }


class LogLooks(NamedTuple):
    """What is known of one log before its list of copies is taken."""

    name: str
    machines: Sequence[MachineLook]
    """Those of the list first."""
    marks: Synced | None
    """What etcd knows of the copies."""

    @property
    def silent(self) -> list[MachineLook]:
        """Machines that are left out, of which it is not known what they have."""
        return [one for one in self.machines if not one.is_listed and one.trouble is not None]

    def trouble(self) -> str | None:
        """Return what the machines of the list lack, or why that is not known; None if the list is good."""
        why = self.lacks()
        return why and (
            f"{why}. Put the machines that have it into the list, and start them; or give it up with "
            "--give-up-records. Nothing was changed"
        )

    def lacks(self) -> str | None:
        """Return the same in short."""
        name, marks = self.name, self.marks
        best = _best([one for one in self.machines if one.is_listed])
        if best is None:
            is_new = all(
                one.trouble is None and not one.mark and not (one.found and one.found.limit)
                for one in self.machines
            )
            return None if is_new else f"no machine of the list has a copy of {name!r} that counts"
        for one in self.machines:
            found = one.found
            if found is None or one.is_listed or not found.limit:
                continue
            if found.log_id != best.log_id:
                return (
                    f"{one.address}, which is left out, has another log {name!r}, {found.log_id.hex()}: the "
                    f"list has {best.log_id.hex()}"
                )
            if found.limit > best.limit or found.epoch > best.epoch:
                return (
                    f"{one.address}, which is left out, has {name!r} up to offset {found.limit - 1} in epoch "
                    f"{found.epoch}, and the list up to {best.limit - 1} in epoch {best.epoch}"
                )
        if marks is None or not marks.limits:
            return None
        if marks.log_id != best.log_id.hex():
            return (
                f"etcd knows another log {name!r}, {marks.log_id}: the list has {best.log_id.hex()}"
            )
        address, mark = max(marks.limits.items(), key=lambda one: one[1])
        if mark <= best.limit:
            return None
        return (
            f"{address} had {name!r} up to offset {mark - 1}, as etcd knows, and the list has it up to "
            f"{best.limit - 1}"
        )


async def look_at_machines(
    keys: KeyValues,
    view: ClusterView,
    name: str,
    planned: Planned,
    *,
    only_others: bool = False,
) -> LogLooks:
    """Ask all machines that may have a copy of a log: those of both lists, and those that etcd knows.

    ``only_others``: not those of the new list.
    """
    before, new = planned
    marks = read_marks(await keys.get(view.key(SYNCED, name)))
    limits = {} if marks is None else marks.limits
    leader = view.leaders.get(name)
    known = [*before.copies, *limits, *view.members, *([leader.address] if leader else [])]
    listed = () if only_others else new.copies
    asked = [*listed, *sorted({one for one in known if one} - set(new.copies))]
    answers = await asyncio.gather(*(_ask(one, name) for one in asked))
    machines = [
        MachineLook(one, one in new.copies, found, trouble, limits.get(one, 0))
        for one, (found, trouble) in zip(asked, answers, strict=True)
    ]
    return LogLooks(name, machines, marks)


async def check_made(keys: KeyValues, view: ClusterView, planned: Mapping[str, Planned]) -> None:
    """UsageError if a log is to be made that etcd has not, and a machine without a copy has more records.

    A machine that does not answer has none, as far as is known. Those that are to have the copies are asked
    only if another one has records.
    """
    for name, one in planned.items():
        if name in view.specs or one.new.source:
            continue
        others = await look_at_machines(keys, view, name, one, only_others=True)
        having = [each for each in others.machines if each.found and each.found.limit > 1]
        if not having:
            continue
        if one.new.copies:
            why = (await look_at_machines(keys, view, name, one)).lacks()
        else:
            machine = max(having, key=lambda each: (each.found.epoch, each.found.limit))  # type: ignore[union-attr]
            why = f"{machine.address} has {machine.shown()}, and etcd has no such log"
        if why is not None:
            raise UsageError(
                f"the log {name!r} has records: {why}. If etcd was set back, give its copies with 'walstore "
                "logs apply --from FILE --adopt'; else give the new log another name, or move its directory "
                "on that machine away. Nothing was changed"
            )


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
    looks = [
        await look_at_machines(keys, view, name, one)
        for name, one in planned.items()
        if one.new.copies and _placed(one.before) != _placed(one.new)
    ]
    refused = None if gives_up else next(filter(None, (one.trouble() for one in looks)), None)
    if is_confirmed and refused is None:
        return Adoption(await write_changes(keys, view, planned), looks, is_done=True, refused=None)
    rows = [spec_row(name, one.new) for name, one in planned.items()]
    return Adoption(rows, looks, is_done=False, refused=refused)


def print_adoption(found: Adoption, *, as_json: bool) -> None:
    """Write what was found and done; UsageError if it was refused."""
    if as_json:
        machines = [machine.described(one.name) for one in found.looks for machine in one.machines]
        print_json({"adopted": found.is_done, "logs": list(found.rows), "machines": machines})
    else:
        print_table(
            ("log", "machine", "list", "copy"),
            [
                [
                    one.name,
                    machine.address,
                    "in" if machine.is_listed else "left out",
                    machine.shown(),
                ]
                for one in found.looks
                for machine in one.machines
            ],
        )
        for row in found.rows:
            list_is = "has now" if found.is_done else "would get"
            print_fields([(f"{row['name']} {list_is}", ", ".join(row["copies"]))])
    if found.refused is not None:
        raise UsageError(found.refused)
    for one in found.looks:
        for machine in one.silent:
            complain(
                f"{one.name}: {machine.address}, which is left out, does not answer; whether it has more is "
                "known from etcd at most"
            )
    if not found.is_done:
        complain("nothing was changed; give --confirm to take the lists")


def _placed(spec: LogSpec) -> tuple[Any, ...]:
    return spec.copies, spec.generation, dict(spec.joined)


def _best(listed: Sequence[MachineLook]) -> CopyLook | None:
    """Return what the best copy of the list has that counts; None if there is none."""
    found = [
        one.found
        for one in listed
        if one.found is not None and one.found.is_whole and one.found.limit >= one.mark
    ]
    having = [one for one in found if one.log_id]
    return max(having, key=lambda one: (one.epoch, one.limit), default=None)


async def _ask(address: str, name: str) -> tuple[CopyLook | None, str | None]:
    """Return what a machine says of its copy, and why it says nothing."""
    try:
        place = parse_address(address)
        settings = Replication(
            nodes=[str(place)],
            token=os.environ.get(TOKEN_VARIABLE) or None,
            patience_seconds=_PATIENCE_SECONDS,
        )
    except (InvalidSettingsError, TypeError) as error:
        return None, str(error)
    client = client_of(place, settings, clock=SystemClock(), make_tag=lambda: os.urandom(8))
    try:
        async with asyncio.timeout(2 * _PATIENCE_SECONDS):
            await client.connect()
            return CopyLook.unpack(await client.call(LOOK, name, fate=Fate.DROPPED)), None
    except TimeoutError:
        return None, "it does not answer"
    except (WalError, ValueError) as error:
        return None, str(error)
    finally:
        await client.aclose()
