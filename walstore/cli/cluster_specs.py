"""Specs of logs as lines of JSON: what ``walstore logs apply --from`` and ``edit`` take."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from walstore.cli.errors import UsageError
from walstore.core.validation.arguments import as_count, as_mapping
from walstore.net.wire.address import parse_address
from walstore.topology.documents import LogSpec, check_log_name

Change = Callable[[LogSpec], LogSpec]
"""Returns what a spec becomes; UsageError."""

_PLACED: Final = ("copies", "generation", "joined")
"""Fields that say where the copies are: what an operator wants is in the others."""
_SPEC: Final = frozenset(LogSpec._fields)
_SEEN: Final = frozenset(("name", "leader", "epoch", "present", "missing"))
"""What 'walstore logs list --json' prints beside a spec."""


def checked(spec: LogSpec) -> LogSpec:
    """Return a spec that can be; UsageError."""
    try:
        return spec.check()
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None


def parse_specs(text: str, *, adopts: bool = False) -> dict[str, Change]:
    """Return the change of each log that is in lines of JSON; what a line leaves out stays.

    Errors of a line, also those of its change, name the line and say what to do.
    """
    wanted: dict[str, Change] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        fields = _parse_line(number, line)
        name = fields["name"]
        if name in wanted:
            raise UsageError(
                f"line {number}: the log {name!r} is there twice, in line {lines[name]}, too: remove one of "
                "the two; nothing was changed"
            )
        lines[name] = number
        wanted[name] = _changing(number, fields, adopts=adopts)
    return wanted


def _parse_line(number: int, line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise TypeError("it is no JSON object")
        if "name" not in fields:
            raise ValueError('it has no "name"')
        check_log_name(fields["name"])
        unknown = sorted(fields.keys() - _SPEC - _SEEN)
        if unknown:
            raise ValueError(
                f"it has a field {unknown[0][:100]!r} that no spec has; there are "
                f"{', '.join(('name', *LogSpec._fields))}"
            )
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(
            f"line {number} is no spec of a log: {error}. Give lines as of "
            "'walstore logs list --json | jq -c .logs[]'; nothing was changed"
        ) from None
    return fields


def _changing(number: int, fields: dict[str, Any], *, adopts: bool) -> Change:
    name = fields["name"]
    wanted = {one: fields[one] for one in fields if one in _SPEC and one not in _PLACED}
    placed: dict[str, Any] = {one: fields[one] for one in _PLACED if one in fields}

    def change(spec: LogSpec) -> LogSpec:
        try:
            return _with_fields(name, wanted, placed, spec, adopts=adopts).check()
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"line {number}, log {name!r}: {error}; correct the line, nothing was changed"
            ) from None

    return change


def _with_fields(
    name: str, wanted: dict[str, Any], placed: dict[str, Any], spec: LogSpec, *, adopts: bool
) -> LogSpec:
    """Return a spec with other fields; one that is made, with the copies that it had before.

    A list of copies that is there is replaced by one with a higher generation only, if ``adopts``: the store
    was set back to an earlier state, and the copies know that list. Anything else is an error.
    """
    changed = spec._replace(**wanted)
    if not placed.get("copies"):
        return changed
    if not isinstance(placed["copies"], list):
        raise UsageError(f"copies must be a list of addresses, not {placed['copies']!r:.100}")
    copies = tuple(str(parse_address(one)) for one in placed["copies"])
    as_mapping(placed.get("joined", {}), "joined must map addresses to numbers")
    as_count(placed.get("generation", 1), "generation")
    found = changed._replace(**{"generation": spec.generation, **placed, "copies": copies})
    if "joined" not in placed and spec.copies:
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
            "cluster stores was set back to an earlier state, take the one given with --adopt"
        )
    return found
