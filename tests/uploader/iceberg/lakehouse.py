"""An Iceberg catalog in a directory, with tables that tests read back, and a catalog that fails on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import duckdb
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from uploader import IcebergTarget

Commit = Callable[[], Any]


class Killed(BaseException):
    """The process is dead."""


class FaultyCatalog(SqlCatalog):
    """Lets a test act instead of a commit: ``faults`` are taken one for each commit, in order."""

    faults: ClassVar[list[Callable[[Commit], Any]]] = []
    is_down: ClassVar[bool] = False

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> Any:
        def commit() -> Any:
            return super(FaultyCatalog, self).commit_table(table, requirements, updates)

        return self.faults.pop(0)(commit) if self.faults else commit()

    def load_table(self, identifier: Any) -> Table:
        if self.is_down:
            raise ConnectionError("nobody answers (injected)")
        return super().load_table(identifier)


def fail_before(error: BaseException) -> Callable[[Commit], Any]:
    """The commit does not happen, and the error is reported."""

    def fault(commit: Commit) -> Any:
        raise error

    return fault


def happen_then_fail(error: BaseException) -> Callable[[Commit], Any]:
    """The commit happens, and the error is reported."""

    def fault(commit: Commit) -> Any:
        commit()
        raise error

    return fault


def after(action: Callable[[], Any]) -> Callable[[Commit], Any]:
    """Something else happens just before the commit."""

    def fault(commit: Commit) -> Any:
        action()
        return commit()

    return fault


def in_another_process(make: Callable[[], Any]) -> Callable[[], Any]:
    """Return what runs a coroutine on an event loop of its own, as another process would."""
    return lambda: asyncio.run(make())


class Lakehouse:
    """A catalog in a SQLite file, and a warehouse in a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.properties = {
            "uri": f"sqlite:///{path / 'catalog.db'}",
            "warehouse": (path / "warehouse").as_uri(),
        }

    def target(self, table: str = "shop.orders", *, faulty: bool = False) -> IcebergTarget:
        more = {"py-catalog-impl": f"{__name__}.FaultyCatalog"} if faulty else {}
        return IcebergTarget(table=table, properties=self.properties | more)

    @contextmanager
    def catalog(self) -> Iterator[Catalog]:
        catalog = load_catalog(**self.properties)
        try:
            yield catalog
        finally:
            catalog.close()

    @contextmanager
    def table(self, name: str = "shop.orders") -> Iterator[Table]:
        with self.catalog() as catalog:
            yield catalog.load_table(name)

    def files(self, name: str = "shop.orders") -> list[Path]:
        """Return the data files of the table's present state."""
        with self.table(name) as table:
            return [Path(urlsplit(task.file.file_path).path) for task in table.scan().plan_files()]

    def rows(self, name: str = "shop.orders") -> list[dict[str, Any]]:
        """Return what pyiceberg reads, after a check that DuckDB reads the same."""
        with self.table(name) as table:
            found = table.scan().to_arrow()
        files = [str(path) for path in self.files(name)]
        if files:
            with duckdb.connect() as database:
                table = database.sql(
                    "select * from read_parquet($files, union_by_name = true)",
                    params={"files": files},
                ).to_arrow_table()
            names = found.column_names
            key = names[0]
            missing = set(names) - set(table.column_names)
            ours = found.drop_columns(list(missing)).sort_by(key).to_pylist()
            theirs = table.select([n for n in names if n not in missing]).sort_by(key).to_pylist()
            assert ours == theirs
        return found.to_pylist()
