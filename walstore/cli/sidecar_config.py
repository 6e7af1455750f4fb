"""Settings of Spark as a sidecar's command line gives them. Pure."""

from __future__ import annotations

import re
from typing import Final

from walstore.cli.errors import UsageError

_PACKAGES: Final = "spark.jars.packages"
_PACKAGE: Final = re.compile(r"[^:\s]+:[^:\s]+:[^:\s]+")


def parse_config(given: list[str]) -> dict[str, str]:
    """Return settings given as ``NAME=VALUE``; UsageError for others."""
    found = {}
    for text in given:
        name, mark, value = text.partition("=")
        if not mark or not name.strip():
            raise UsageError(f"--config takes NAME=VALUE, not {text!r}")
        found[name.strip()] = value.strip()
    return found


def add_packages(config: dict[str, str], given: list[str]) -> dict[str, str]:
    """Return the settings with these Maven packages besides those that they name; UsageError for others."""
    found = [name.strip() for text in given for name in text.split(",") if name.strip()]
    strange = [name for name in found if not _PACKAGE.fullmatch(name)]
    if strange:
        raise UsageError(f"--packages takes GROUP:NAME:VERSION, not {strange[0]!r}")
    named = [config[_PACKAGES], *found] if _PACKAGES in config else found
    return {**config, _PACKAGES: ",".join(named)} if named else config
