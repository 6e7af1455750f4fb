"""Tests of extras that are not installed fail, or are skipped with ``--skip-missing-extras``."""

from __future__ import annotations

import pytest

OURS = {"bench", "tests", "tools", "uploader", "walstore"}


def missing_package(error: BaseException | None) -> str | None:
    """Return the name of the package that could not be imported, or None if it is something else."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            name = (error.name or "").partition(".")[0]
            return name if name not in OURS else None
        error = error.__cause__ or error.__context__
    return None


def skip_if_missing(
    config: pytest.Config, report: pytest.CollectReport | pytest.TestReport, call: pytest.CallInfo
) -> None:
    """Make a failure a skip if all that failed is the import of a package of an extra."""
    if not (config.getoption("skip_missing_extras") and report.failed and call.excinfo):
        return
    if name := missing_package(call.excinfo.value):
        report.outcome = "skipped"
        report.longrepr = (report.nodeid, 0, f"Skipped: {name} is not installed")
