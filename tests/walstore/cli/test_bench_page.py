"""The page of a measurement: whole by itself, with every table and plot."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from walstore.cli.bench_page import COLUMNS, bench_page, result_rows
from walstore.cli.measurement import BenchResults, Measured, MeasurePlan

PLAN = MeasurePlan(Path("x"), seconds=5, producers=64, record_bytes=100, has_steps=True)


def measured(name: str, records: int, ms: float = 0.0) -> Measured:
    return Measured(
        name, records, 1.0, tuple(ms * (1 + at / 200) for at in range(201)) if ms else ()
    )


RAW, LONE, MANY = (
    measured("write + fdatasync", 4000, 0.2),
    measured("1 producer", 2000, 0.4),
    measured("64 producers", 40_000, 1.0),
)
RESULTS = BenchResults(
    [RAW, LONE, MANY, measured("append_many", 600_000, 1.5), measured("catching up", 5_000_000)],
    {(1, 100): LONE, (64, 100): MANY, (256, 100): MANY, (64, 1000): LONE, (64, 0): MANY},
)
VOID = {"meta", "path", "circle", "polyline"}


class Page(HTMLParser):
    """Reads a page; AssertionError if an element is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self.headings: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)
        elif self.open and self.open[-1] == "h2":
            self.headings.append(data)


def test_tables_and_plots() -> None:
    page = Page(bench_page(PLAN, RESULTS, {"processor": "fast", "cores": "2"}))
    assert page.rows[:2] == [["processor", "fast"], ["cores", "2"]]
    assert ["producers", "64"] in page.rows
    assert page.rows[-6][: len(COLUMNS)] == list(COLUMNS)
    assert [row[0] for row in page.rows[-5:]] == [one.name for one in RESULTS.parts]
    assert page.tags.count("svg") == 3
    assert [heading.partition(" by ")[0] for heading in page.headings] == [
        "Machine",
        "Figures",
        "Durable appends",
        "Latency of a lone append, 100 B",
        "Throughput",
    ]


def test_ratios_to_the_disk() -> None:
    page = Page(bench_page(PLAN, RESULTS, {}))
    raw, lone, many, _, reading = (row[-3:] for row in page.rows[-5:])
    assert raw == ["1.00", "1.00", "1.00"]
    assert lone == ["0.50", "2.00", "2.00"]
    assert many == ["10.00", "5.00", "5.00"]
    assert reading == ["-", "-", "-"]


def test_nothing_comes_from_elsewhere() -> None:
    text = bench_page(PLAN, RESULTS, {})
    assert not re.search(r"https?:|url\(|@import|\b(src|href)=", text)
    assert not {"script", "link", "img", "iframe"} & set(Page(text).tags)
    assert "color-scheme: light dark" in text


def test_text_is_escaped() -> None:
    odd = "<script>&\"'"
    page = Page(bench_page(PLAN, RESULTS, {"directory": odd, odd: "name"}))
    assert page.rows[:2] == [["directory", odd], [odd, "name"]]
    assert "script" not in page.tags


def test_a_disk_that_was_too_slow_to_measure() -> None:
    nothing = Measured("nothing", 0, 0.0)
    results = BenchResults([nothing] * 5, {(1, 100): nothing, (64, 100): nothing})
    page = Page(bench_page(PLAN, results, {}))
    assert page.rows[-1] == ["nothing", "0", "0", "0.0", *["-"] * 5]


def test_rows_of_the_terminal() -> None:
    assert result_rows(PLAN, RESULTS)[1:3] == [
        ("1 producer", "2 000", "2 000", "0.2", "0.600", "0.796"),
        ("64 producers", "40 000", "40 000", "4.0", "1.500", "1.990"),
    ]
