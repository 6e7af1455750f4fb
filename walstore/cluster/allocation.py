"""Which machines have the copies of which logs. Pure.

A plan changes one copy of a log at a time, and only while all others have caught up: then the machines that
remain are enough to take over, and have everything. A copy is replaced once it has been absent for long: its
machine is away, or has not caught up again since it had.

Once the second of two copies has caught up, the same two get one more list: in that they are equals. Before,
the first one is needed to lead, and stays (``replication/takeover.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from walstore.topology.documents import Leader, LogSpec, Member


class CopiesChange(NamedTuple):
    """New copies of one log."""

    name: str
    spec: LogSpec


def plan(
    specs: Mapping[str, LogSpec],
    leaders: Mapping[str, Leader],
    members: Mapping[str, Member],
    lost: AbstractSet[tuple[str, str]],
) -> list[CopiesChange]:
    """Return the changes to make now, in the order of names. A suspended log has none until it is resumed.

    ``lost`` are the copies, as log and address, that have been absent so long that they are replaced.
    """
    load: Counter[str] = Counter(dict.fromkeys(members, 0))
    firsts = Counter(spec.copies[0] for spec in specs.values() if spec.copies)
    for spec in specs.values():
        load.update(address for address in spec.copies if address in members)
    changes = []
    for name in sorted(specs):
        gone = {address for log, address in lost if log == name}
        changed = _change(specs[name], leaders.get(name), members, gone, load)
        if changed is not None:
            if not specs[name].copies:  # the first one leads: each machine leads as many logs
                changed = changed.led_first_by(min(changed.copies, key=lambda one: firsts[one]))
                firsts[changed.copies[0]] += 1
            load.update(set(changed.copies) - set(specs[name].copies))
            changes.append(CopiesChange(name, changed))
    return changes


def _change(
    spec: LogSpec,
    leader: Leader | None,
    members: Mapping[str, Member],
    lost: AbstractSet[str],
    load: Mapping[str, int],
) -> LogSpec | None:
    if spec.source or spec.suspended:  # nobody can say which copies have caught up
        return None
    if not spec.copies:
        return None if leader is not None else _begin(spec, members, load)
    if (
        leader is None or not leader.epoch
    ):  # one that has taken over knows all, and says who is there
        return None
    new, is_settled = spec.new_of_two, _is_settled(spec, leader, set())
    if new is not None and is_settled:
        return spec.with_copies(spec.copies)
    if new is not None and leader.address == new:  # the first one is away, and needed
        return None
    if len(spec.copies) > spec.replicas:
        return _without_one(spec, leader, members, load)
    led = (leader.address, *leader.present)
    gone = [one for one in spec.copies if one in lost and one not in led]
    found = _choose(spec.copies, members, load)
    if found is None:
        return None
    if len(gone) == 1 and _is_settled(spec, leader, set(gone)):
        return spec.with_copies([found if one == gone[0] else one for one in spec.copies])
    if len(spec.copies) < spec.replicas and is_settled:
        return spec.with_copies([*spec.copies, found])
    return None


def _begin(spec: LogSpec, members: Mapping[str, Member], load: Mapping[str, int]) -> LogSpec | None:
    """Choose machines for a new log, of which nobody has anything; all at once, or none."""
    chosen: list[str] = []
    while len(chosen) < spec.replicas:
        found = _choose(chosen, members, load)
        if found is None:
            return None
        chosen.append(found)
    return spec.with_copies(chosen)


def choose_copies(
    first: str, members: Mapping[str, Member], specs: Mapping[str, LogSpec], most: int = 3
) -> list[str]:
    """Return machines for the copies of a new log, the one that leads it first."""
    load: Counter[str] = Counter()
    for spec in specs.values():
        load.update(spec.copies)
    chosen = [first]
    while len(chosen) < most and (found := _choose(chosen, members, load)) is not None:
        chosen.append(found)
    return chosen


def _without_one(
    spec: LogSpec, leader: Leader, members: Mapping[str, Member], load: Mapping[str, int]
) -> LogSpec | None:
    """Give up a copy: one that is away, else one that shares its zone, else that of the fullest machine."""
    away = {one for one in spec.copies if one not in members and one != leader.address}
    if not _is_settled(spec, leader, set(sorted(away)[:1])):
        return None
    zones = Counter(members[one].zone for one in spec.copies if one in members)

    def worth(one: str) -> tuple[bool, bool, int, str]:
        is_alone = one in members and zones[members[one].zone] == 1
        return one not in away, is_alone, -load.get(one, 0), one

    given_up = min((one for one in spec.copies if one != leader.address), key=worth)
    return spec.with_copies([one for one in spec.copies if one != given_up])


def _is_settled(spec: LogSpec, leader: Leader, without: AbstractSet[str]) -> bool:
    """Return whether the leader has these copies, and all of them but some have caught up."""
    if leader.generation not in (0, spec.generation):
        return False
    wanted = set(spec.copies) - {leader.address}
    return set(leader.copies) == wanted and wanted - without <= set(leader.present)


def _choose(
    taken: Sequence[str], members: Mapping[str, Member], load: Mapping[str, int]
) -> str | None:
    """Return the machine for one more copy: in a zone of its own if possible, with the fewest copies."""
    zones = {members[address].zone for address in taken if address in members}
    free = [address for address in members if address not in taken]
    if not free:
        return None
    return min(
        free,
        key=lambda one: (members[one].zone in zones and bool(zones), load.get(one, 0), one),
    )
