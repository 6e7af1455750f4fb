"""Report: what a command found or did, as JSON for programs and in lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import typer

from walstore.cli.errors import OK
from walstore.cli.output import complain, print_fields, print_json, print_table, writing
from walstore.errors import WalError

UNCHANGED: Final = "nothing was changed; give --confirm to do this"

Fields: TypeAlias = list[tuple[str, Any]]
"""Names and values, printed a pair a line."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows that are printed in columns under their names."""

    names: Sequence[str]
    rows: Iterable[Sequence[Any]]


Part: TypeAlias = Fields | Listing | str
"""What people see of a report; a text is a line."""


class Report:
    """What a command returns; :meth:`print` is the one place that prints it."""

    def __init__(
        self,
        found: Any,
        *shown: Part,
        remarks: Iterable[str] = (),
        notes: Iterable[str] = (),
        is_dry_run: bool = False,
        refusal: WalError | None = None,
        code: int = OK,
    ) -> None:
        """Make a report of ``found``, which is printed as JSON.

        People see ``shown`` instead, and ``remarks`` on stderr. ``notes`` go to stderr in both cases; after
        a dry run the last one is how to do it. ``refusal`` is raised instead of them.
        """
        self._found, self._shown, self._code = found, shown, code
        self._remarks, self._refusal = remarks, refusal
        self._notes = [*notes, *([UNCHANGED] if is_dry_run else [])]

    def print(self, *, as_json: bool) -> None:
        """Print it; raise the refusal, or typer.Exit if the exit code is not 0."""
        if as_json:
            print_json(self._found)
        else:
            for part in self._shown:
                _print_part(part)
            for remark in self._remarks:
                complain(remark)
        if self._refusal is not None:
            raise self._refusal
        for note in self._notes:
            complain(note)
        if self._code != OK:
            raise typer.Exit(self._code)


def _print_part(part: Part) -> None:
    if isinstance(part, str):
        with writing() as stdout:
            stdout.write(f"{part}\n")
    elif isinstance(part, Listing):
        print_table(part.names, part.rows)
    else:
        print_fields(part)
