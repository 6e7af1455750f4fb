"""Tests of extras that are not installed fail, or are skipped with ``--skip-missing-extras``.

A plugin, not a part of conftest.py: pytest asks no conftest.py about a directory that it has not entered.
"""

from __future__ import annotations

import sys
from collections.abc import Generator

import pytest

OURS = {"bench", "tests", "tools", "uploader", "walstore"}


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip modules and directories that import what is not installed."""
    report = yield
    if _skip(report, report.call):  # type: ignore[attr-defined]
        # Who imports from the same module shall not find half of it.
        for name, module in list(sys.modules.items()):
            if getattr(module, "__file__", None) == str(getattr(collector, "path", "")):
                del sys.modules[name]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip tests that import late what is not installed."""
    report = yield
    _skip(report, call)
    return report


def _skip(report: pytest.CollectReport | pytest.TestReport, call: pytest.CallInfo) -> bool:
    """Make a failure a skip if what failed is the import of a package that is not ours."""
    name = _missing(call.excinfo.value) if report.failed and call.excinfo else None
    if name:
        report.outcome = "skipped"
        report.longrepr = (report.nodeid, 0, f"Skipped: {name} is not installed")
    return name is not None


def _missing(error: BaseException | None) -> str | None:
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            name = (error.name or "").partition(".")[0]
            return name if name and name not in OURS else None
        error = error.__cause__ or error.__context__
    return None
