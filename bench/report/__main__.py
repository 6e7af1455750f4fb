"""``python -m bench.report``: measure, and write the page, the figures and the plots.

It takes some ten minutes, and writes up to 2 GiB into a directory that it removes. ``--quick`` takes two,
and is no measurement.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import tempfile
from pathlib import Path
from typing import Final

from bench.report import suites
from bench.report.figures import Report, markdown, short_table, tables
from bench.report.output import PLOTS, machine, machine_table, write

ROOT: Final = Path(__file__).parent.parent.parent
LATEST: Final = ROOT / "docs" / "benchmarks.json"
"""Figures of the run that the documentation shows."""
PICTURE: Final = ROOT / "docs" / "lone_append.svg"
"""Its plot of lone appends, which the README shows."""
BEGIN: Final = "<!-- made by python -m bench.report --readme -->\n"
END: Final = "<!-- end -->"
LEFT_OUT: Final = (
    r"second: (1|5|20)000$| MiB$|^\d+ tails|watermark$|object storage|^memory|100 B|HTTP|Spark"
)
"""Of the README, which is short."""


def run(
    output: Path, directory: Path | None, seconds: float, rounds: int, names: list[str]
) -> Report:
    """Measure rounds of all suites, or of some."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        place = Path(name)
        report = Report(machine(place))
        for number in range(rounds):
            for suite in suites.SUITES:
                if not names or suite.__name__ in names:
                    print(f"round {number + 1} of {rounds}: {suite.__name__}", flush=True)
                    gc.collect()
                    gc.freeze()  # modules of all suites: to look through them takes 120 ms in the middle
                    suite(report, place, seconds)
    for path in write(report, output):
        print(path)
    return report


def pages(report: Report) -> dict[Path, str]:
    """Return the pages that show a run, with its tables between their marks."""
    all_tables = "\n".join(f"### {title}\n\n{markdown(rows)}" for title, rows in tables(report))
    shown = {
        ROOT / "README.md": f"{short_table(report, LEFT_OUT)}\n{_picture(report)}",
        ROOT / "docs" / "performance.md": f"{machine_table(report)}\n{all_tables}",
    }
    made = {}
    for path, text in shown.items():
        before, _, rest = path.read_text().partition(BEGIN)
        made[path] = f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}"
    return made


def _picture(report: Report) -> str:
    """Return the line that shows the plot, if the run has one."""
    title = f"{PLOTS['lone'][0]}: share of appends by time"
    return f"![{title}]({PICTURE.relative_to(ROOT)})\n" if "lone" in report.curves else ""


def main() -> None:
    """Read the arguments, and run."""
    parser = argparse.ArgumentParser(prog="bench.report", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("bench/report/out"))
    parser.add_argument("--directory", type=Path, help="where to write; on the disk in question")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each figure in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--suite", action="append", choices=[one.__name__ for one in suites.SUITES])
    parser.add_argument(
        "--quick", action="store_true", help="one short round, to see that it works"
    )
    parser.add_argument(
        "--readme",
        type=Path,
        metavar="JSON",
        help="show a run in README.md and docs/performance.md",
    )
    given = parser.parse_args()
    if given.readme is not None:
        report = Report.from_json(json.loads(given.readme.read_text()))
        LATEST.write_text(given.readme.read_text())
        plot = given.readme.with_name("lone.svg")
        if plot.exists():
            shutil.copyfile(plot, PICTURE)
        for path, text in pages(report).items():
            path.write_text(text)
        return
    seconds, rounds = (0.1, 1) if given.quick else (given.seconds, given.rounds)
    run(given.output, given.directory, seconds, rounds, given.suite or [])


if __name__ == "__main__":
    main()
