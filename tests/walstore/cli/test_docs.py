"""docs/cli.md names every verb, option, JSON field and exit code that the program has, and no others."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from typer.main import get_command

from tests.cases import case
from tests.walstore.cli.conftest import Cli
from uploader import Collection
from uploader.format.findings import Severity
from walstore.cli import errors
from walstore.cli.app import app
from walstore.cli.demo.checks import ReadBack, ReadTally, Story, judge
from walstore.cli.records import ValueEncoding
from walstore.cli.soak.child import SoakJob
from walstore.cli.soak.run import Soak

PAGE = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()


def _verbs(group: Any, prefix: str = "") -> dict[str, Any]:
    """Return the verbs of the program; those of a group with its name before them."""
    found = {}
    for name, command in group.commands.items():
        is_group = hasattr(command, "commands")
        found |= _verbs(command, f"{name} ") if is_group else {prefix + name: command}
    return found


VERBS = _verbs(get_command(app))


def _section(verb: str) -> str:
    return PAGE.partition(f"\n### {verb}\n")[2].partition("\n### ")[0]


def _quoted(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def test_verbs() -> None:
    assert re.findall(r"^### ([\w -]+)$", PAGE, re.MULTILINE) == list(VERBS)
    rows = re.findall(r"^\| \[`([\w -]+)`\]\(#([\w-]+)\)", PAGE, re.MULTILINE)
    assert rows == [(verb, verb.replace(" ", "-")) for verb in VERBS]


def test_options() -> None:
    for verb, command in VERBS.items():
        with case(verb):
            options = {
                name
                for parameter in command.params
                for name in parameter.opts
                if name.startswith("-") and name != "--help"
            }
            rows = re.findall(r"^\| (`-.*?`) \|", _section(verb), re.MULTILINE)
            named = {word for row in rows for quoted in _quoted(row) for word in quoted.split()[:1]}
            assert named == options


def test_arguments() -> None:
    for verb, command in VERBS.items():
        with case(verb):
            arguments = [p.metavar for p in command.params if not p.opts[0].startswith("-")]
            assert f"`walstore {' '.join([verb, *arguments])}`" in _section(verb)


def _fields(value: Any) -> set[str]:
    """Return the names of a JSON value's fields, and of the objects in its lists and fields."""
    if isinstance(value, list):
        return set().union(*map(_fields, value))
    if not isinstance(value, dict):
        return set()
    inner = [_fields(item) for name, item in value.items() if name != "headers"]
    return set(value).union(*inner)


def test_json_fields(cli: Cli, log: Path, stored: str, people: str, tmp_path: Path) -> None:
    cli("cursors", log, "--set", "billing", "5", "--confirm")
    cli("upload", log, (tmp_path / "chain").as_uri(), "--layout", "chain")
    catalog = ("--to", "iceberg:a.b", "--catalog-uri", f"sqlite:///{tmp_path}/catalog.db")
    catalog += ("--warehouse", (tmp_path / "lake").as_uri())
    lines: dict[str, list[tuple[Any, ...]]] = {
        "append": [("append", tmp_path / "new", "--json")],
        "dump": [("dump", log, "--limit", "1")],
        "inspect": [("inspect", log, "--json"), ("inspect", stored, "--json")],
        "verify": [("verify", log, "--json"), ("verify", stored, "--json")],
        "upload": [("upload", log, stored, "--json")],
        "segments": [("segments", log, "--json")],
        "cursors": [("cursors", log, "--json")],
        "trim": [("trim", log, "--before", "7", "--json")],
        "repair": [("repair", log, "--json")],
        "bench": [("bench", tmp_path, "--seconds", "0.1", "--json")],
        "fragments": [("fragments", stored, "--times", "--json")],
        "manifest": [("manifest", stored, "--json")],
        "scrub": [("scrub", stored, "--json")],
        "restore": [("restore", stored, tmp_path / "restored", "--json")],
        "fork": [("fork", stored, (tmp_path / "fork").as_uri(), "--json")],
        "rebuild": [
            ("rebuild", (tmp_path / "chain").as_uri(), "--json"),
            ("rebuild", stored, "--json"),
        ],
        "gc": [("gc", "plan", stored, "--json")],
        "table": [
            ("table", stored, *catalog, "--json"),
            ("table", stored, *catalog, "--release", "latest", "--json"),
        ],
        "seal": [("seal", stored, "--json")],
        "destroy": [("destroy", stored, "--unsealed", "--json")],
    }
    lines["append"].append(("append", (tmp_path / "store2").as_uri(), "--json"))
    lines["cursors"].append(("cursors", stored, "--set", "billing", "5", "--confirm", "--json"))
    file = tmp_path / "people.parquet"
    lines |= {
        "collection create": [
            ("create", (tmp_path / "c").as_uri(), "--column", "a:int64", "--json"),
        ],
        "collection read": [("read", people, "--output", file, "--json")],
        "collection write": [("write", people, file, "--json")],
        "collection compact": [
            ("compact", people, "--json"),
            ("compact", people, "--confirm", "--json"),
        ],
        "collection show": [("show", people, "--json")],
        "collection gc": [("gc", people, "--json")],
        "collection expire": [("expire", people, "report", "--json")],
        "collection delete": [("delete", people, "--json")],
    }
    asyncio.run(_leave_a_reader(people))
    for verb, commands in lines.items():
        group = verb.split()[:-1]
        named = _quoted(_section(verb))
        for command in commands:
            missing = _fields(cli(*group, *command).json) - named
            assert not missing, f"{verb}: {missing}"
    assert {"path", "position", "message"} <= _quoted(_section("verify"))
    assert {"kind", "path", "message", "lossy", "start", "limit"} <= _quoted(_section("repair"))
    assert {"name", "bytes", "position"} <= _quoted(_section("trim"))
    assert {"pid", "note"} <= _quoted(_section("inspect"))
    findings = {"severity", "key", "what", "advice", "expected", "found"}
    assert {*findings, *map(str, Severity)} <= _quoted(_section("scrub"))
    assert {"key", "kind", "reason", "at_us"} <= _quoted(_section("gc"))
    assert {"path", "depth", "start", "limit", "bytes"} <= _quoted(_section("manifest"))
    story = Story()
    story.take(["opened", {"tail": 1, "missing_from": None, "truncated_bytes": 0}])
    demo = judge(story, ReadBack(ReadTally(), 1, 1, 1, 0, ""), ReadTally(), "--no-spark")
    assert set(demo) <= _quoted(_section("demo"))
    plan = SoakJob(
        url="file:///store",
        directory=None,
        layout="swap",
        durability="cloud",
        seed=1,
        rate=1,
        collect_seconds=1,
    )
    soak = Soak(plan, tmp_path, seconds=1, kill_seconds=0)
    assert set(soak.report(1.0, 1, 1)) <= _quoted(_section("soak"))


async def _leave_a_reader(url: str) -> None:
    async with Collection.open(url) as collection:
        await collection.critical("report")


def test_values_of_options() -> None:
    assert {str(how) for how in ValueEncoding} <= _quoted(_section("dump"))
    defaults = {
        "tail": {"--from": "-10"},
        "dump": {"--from": "earliest", "--to": "latest"},
        "demo": {"--seconds": "12"},
        "prove": {"--minutes": "10"},
        "soak": {"--minutes": "5", "--rate": "1000", "--kill-seconds": "10"},
        "bench": {"--seconds": "5", "--producers": "64", "--record-bytes": "100"},
        "fragments": {"--from": "earliest", "--to": "latest"},
        "gc": {"--max-fragments": "10000", "--max-fraction": "0.95"},
        "collection create": {"--kind": "diff"},
        "collection write": {"--writer": "main"},
    }
    for verb, expected in defaults.items():
        for parameter in VERBS[verb].params:
            for name in set(parameter.opts) & expected.keys():
                assert str(parameter.default) == expected[name]
                row = next(r for r in _section(verb).splitlines() if r.startswith(f"| `{name}"))
                assert f"default `{expected[name]}`" in row or f"default {expected[name]}" in row


def test_exit_codes() -> None:
    rows = re.findall(r"^\| (\d) \| ([a-z ]+)", PAGE, re.MULTILINE)
    table = {code: meaning.strip() for code, meaning in rows}
    assert table == {
        str(errors.OK): "ok",
        str(errors.FAILED): "bad usage",
        str(errors.CORRUPTION): "corruption",
        str(errors.NOT_FOUND): "not found",
        str(errors.LOCKED): "locked or fenced",
    }
