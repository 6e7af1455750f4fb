"""Who may import whom: the contracts of pyproject.toml, checked with every test run."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent

IMPORT_CORE = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))  # importing one of these now fails
import walstore
for name in walstore.__all__:
    getattr(walstore, name)
"""


def test_the_import_contracts_hold() -> None:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_core_runs_without_cloud_tier_and_extras() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = config["tool"]["importlinter"]["contracts"]
    absent = next(item["forbidden_modules"] for item in contracts if item["id"] == "core")
    assert {"uploader", "pyarrow"} <= set(absent)
    command = [sys.executable, "-c", IMPORT_CORE, *absent]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
