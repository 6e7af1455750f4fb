"""docs/handbook.md: each alert has its runbook, each command is one of ours, each figure a default."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from typer.main import get_command

from tests.cases import case
from uploader import UploadSettings
from uploader.stores import Prices
from walstore import Settings, StoreSettings
from walstore.cli.app import app
from walstore.core.settings import MIB
from walstore.serve import ServeSettings

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = (ROOT / "docs" / "handbook.md").read_text()
ALERTS: Final = yaml.safe_load((ROOT / "walstore/metrics/alerts.yml").read_text())
PARTS: Final = ["Means", "Data", "Look", "Do", "Over"]
SECTIONS: Final = {
    "log": Settings(),
    "store": StoreSettings(),
    "upload": UploadSettings(),
    "serve": ServeSettings(),
}


def anchor(heading: str) -> str:
    """Return what a link to a heading ends with."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def sections(page: str) -> dict[str, str]:
    """Return the text below each heading, by its anchor."""
    found = re.split(r"^#+ (.+)$", page, flags=re.MULTILINE)[1:]
    return {anchor(heading): text for heading, text in zip(found[::2], found[1::2], strict=True)}


def commands() -> list[str]:
    """Return the command lines of the page: those in lines of their own, and those in a sentence."""
    return re.findall(r"(?:^|`)(walstore [^`\n]+)", PAGE, re.MULTILINE)


def test_each_alert_has_a_runbook() -> None:
    rules = [rule for group in ALERTS["groups"] for rule in group["rules"]]
    found = sections(PAGE)
    for rule in rules:
        with case(rule["alert"]):
            page, _, target = rule["annotations"]["runbook_url"].partition("#")
            assert page == "docs/handbook.md"
            assert target == anchor(rule["alert"])
            assert re.findall(r"^\* \*\*(\w+):\*\* \S", found[target], re.MULTILINE) == PARTS
    named = re.findall(r"^### (Walstore\w+)$", PAGE, re.MULTILINE)
    assert named == [rule["alert"] for rule in rules], "in the order of the rules, and no other"


def test_each_link_to_a_section_leads_there() -> None:
    for page, target in re.findall(r"\]\(([\w.]*)#([\w-]+)\)", PAGE):
        with case(f"{page}#{target}"):
            text = (ROOT / "docs" / page).read_text() if page else PAGE
            assert target in sections(text)


def test_each_command_is_one_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program takes its verb, options and number of arguments; nothing is run."""
    monkeypatch.setenv("WALSTORE_CLUSTER", "etcd://127.0.0.1:1")  # where ``walstore logs`` finds it
    found = commands()
    assert len(found) > 40
    for line in found:
        with case(line):
            command: Any = get_command(app)
            words = shlex.split(line.replace("OFFSET", "7"))[1:]
            while hasattr(command, "commands"):
                command = command.commands[words.pop(0)]
            if words:  # else only the verb is named
                command.make_context(command.name, words).close()


def test_each_setting_has_the_default_that_the_page_computes_with() -> None:
    for name in re.findall(r"`((?:log|store|upload|serve)\.\w+)[`=]", PAGE):
        with case(name):
            section, _, field = name.partition(".")
            assert hasattr(SECTIONS[section], field)
    memory = sections(PAGE)["memory"]
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| (`[^|]+) \|$", memory, re.MULTILINE)
    assert len(rows) == 7
    for figures, names in rows:
        with case(names):
            values = []
            for name in re.findall(r"`(\w+)\.(\w+)`", names):
                value = getattr(SECTIONS[name[0]], name[1])
                values.append(value if value < MIB else value // MIB)
            assert [int(number) for number in re.findall(r"\d+", figures)] == values


def test_each_metric_to_look_at_exists() -> None:
    known = (ROOT / "docs" / "metrics.md").read_text()
    names = set(re.findall(r"`(walstore_\w+)`", PAGE))
    assert len(names) > 20
    assert [name for name in names if f"| `{name}` |" not in known] == []


@pytest.mark.parametrize("name", ["Memory", "Requests and dollars", "Disk"])
def test_the_sums_of_a_page_are_right(name: str) -> None:
    text = sections(PAGE)[anchor(name)]
    if name == "Memory":
        parts, total = re.findall(r"([\d +]+) = (\d+) MiB", text)[0]
        assert sum(map(int, parts.split("+"))) == int(total)
        log, store = SECTIONS["log"], SECTIONS["store"]
        assert isinstance(log, Settings)
        assert isinstance(store, StoreSettings)
        more = store.cache_bytes + store.channel_bytes - log.cache_bytes - log.channel_bytes
        assert f"a store of logs {int(total) + more // MIB} MiB" in text
    elif name == "Disk":
        seconds = 8 * 86_400
        assert f"{round(1208e3 * seconds / 1e9)} GB" in text
        assert f"{round((1008e3 + 10 * 200) * seconds / 1e9)} GB" in text
    else:
        puts = 86_400 * (2 + 1 / 64 + 1 / 2048)
        assert f"{round(puts, -2):,.0f}".replace(",", " ") in text
        assert f"{puts * Prices().per_1000_puts / 1000:.2f} dollars" in text
