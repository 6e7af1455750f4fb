"""IcebergTarget: which table of which Iceberg catalog. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from walstore.core.validation.arguments import as_text
from walstore.errors import InvalidSettingsError

SCHEME: Final = "iceberg:"
_PART: Final = re.compile(r"[^\s./:]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergTarget:
    """A table in an Iceberg catalog, which pyiceberg opens. InvalidSettingsError for a name that is none."""

    table: str
    """``namespace.table``; the namespace may have several parts."""
    catalog: str | None = None
    """Name of the catalog in pyiceberg's own configuration: ``~/.pyiceberg.yaml``, and environment variables
    such as ``PYICEBERG_CATALOG__PROD__URI``. Default: its default catalog."""
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of the catalog that come before those of the configuration: ``uri``, ``warehouse``, ``type``,
    ``s3.endpoint``. They may hold credentials, so no message shows them."""

    def __post_init__(self) -> None:
        """Check the name."""
        parts = as_text(self.table, "table").split(".")
        if len(parts) < 2 or not all(_PART.fullmatch(part) for part in parts):
            raise InvalidSettingsError(
                f"an Iceberg table is named namespace.table, without spaces, not {self.table!r}"
            )
        if self.catalog is not None and not _PART.fullmatch(as_text(self.catalog, "catalog")):
            raise InvalidSettingsError(f"this cannot be the name of a catalog: {self.catalog!r}")

    @classmethod
    def parse(cls, text: str, properties: Mapping[str, str] | None = None) -> IcebergTarget:
        """Return the table that ``iceberg:[catalog/]namespace.table`` names."""
        if not text.startswith(SCHEME):
            raise InvalidSettingsError(
                f"give a table as iceberg:namespace.table or iceberg:catalog/namespace.table, not {text!r}"
            )
        catalog, slash, table = text.removeprefix(SCHEME).rpartition("/")
        return cls(table=table, catalog=catalog if slash else None, properties=properties or {})

    @property
    def namespace(self) -> tuple[str, ...]:
        """The parts of the namespace."""
        return tuple(self.table.split(".")[:-1])

    def __str__(self) -> str:
        """Return what :meth:`parse` takes."""
        return f"{SCHEME}{'' if self.catalog is None else f'{self.catalog}/'}{self.table}"


def as_target(target: object) -> IcebergTarget:
    """Return a target, parsed if it is text; TypeError or InvalidSettingsError."""
    if isinstance(target, IcebergTarget):
        return target
    return IcebergTarget.parse(as_text(target, "target"))
