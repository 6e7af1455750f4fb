"""The suite of Spark: reading all values of a log, next to Spark's own scan of Parquet and a Delta table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.report.figures import Report
from bench.spark_log import VALUE_BYTES
from walstore.spark import problem

RECORDS_A_SECOND: Final = 500_000
"""How long the log is, for each second of a round that the other suites take."""
LEAST_RECORDS: Final = 50_000
MOST_TIMES: Final = 3
"""Scans of each kind in a round, of which the median counts."""
ROOT: Final = Path(__file__).parent.parent.parent


def spark(report: Report, directory: Path, seconds: float) -> None:
    """Count all values and add up their lengths, from files that are not in the page cache."""
    if why := problem():
        report.skipped["Spark"] = f"Java and PySpark: {why}"
        return
    records = max(LEAST_RECORDS, round(seconds * RECORDS_A_SECOND, -5))
    times = min(MOST_TIMES, 1 + int(seconds))
    command = [sys.executable, "-m", "bench.spark_scans", str(directory / "spark")]
    done = subprocess.run(
        [*command, f"--records={records:.0f}", f"--times={times}"],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    found = json.loads(done.stdout)
    report.skipped |= found["skipped"]
    group = f"Spark: count and length of all values, {records:,.0f} x {VALUE_BYTES} B"
    for system, taken in found["seconds"].items():
        report.add(group, system, "records/s", "/s", records / taken, "")
