"""Report: what goes to stdout and stderr, for people and for programs; and how options are declared."""

from __future__ import annotations

import pytest
import typer

from walstore.cli.errors import CORRUPTION, UsageError
from walstore.cli.options import option
from walstore.cli.report import Listing, Report


def test_people_and_programs(capsys: pytest.CaptureFixture[str]) -> None:
    listing = Listing(("name", "size"), [("a", 1), ("bc", 20)])
    shown = [("location", "here"), ("records", 3)]
    report = Report({"b": 1, "a": None}, shown, "", listing, remarks=["odd"], notes=["next"])
    report.print(as_json=False)
    told = capsys.readouterr()
    assert told.out == "location  here\nrecords   3\n\nname  size\na        1\nbc      20\n"
    assert told.err == "walstore: odd\nwalstore: next\n"
    report.print(as_json=True)
    assert capsys.readouterr() == ('{"b":1,"a":null}\n', "walstore: next\n")


def test_the_exit_code_comes_last(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as raised:
        Report({}, notes=["damaged"], is_dry_run=True, code=CORRUPTION).print(as_json=True)
    assert raised.value.exit_code == CORRUPTION
    last = "walstore: nothing was changed; give --confirm to do this"
    assert capsys.readouterr() == ("{}\n", f"walstore: damaged\n{last}\n")


def test_a_refusal_is_raised_once_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="more there"):
        Report([1], notes=["done"], refusal=UsageError("more there")).print(as_json=True)
    assert capsys.readouterr() == ("[1]\n", "")


@pytest.mark.parametrize(
    ("usage", "names", "metavar"),
    [
        ("--follow -f", ["--follow", "-f"], None),
        ("--set NAME OFFSET", ["--set"], "NAME OFFSET"),
        ("--config --conf NAME=VALUE", ["--config", "--conf"], "NAME=VALUE"),
    ],
)
def test_an_option_as_its_help_shows_it(usage: str, names: list[str], metavar: str | None) -> None:
    found = option(usage, "What it does.", min=1)
    assert ([found.default, *found.param_decls], found.metavar) == (names, metavar)
    assert (found.help, found.min) == ("What it does.", 1)
