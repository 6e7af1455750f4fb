"""IcebergTable: one table of an Iceberg catalog, changed exactly once. Blocks: for a thread.

Owns all that touches pyiceberg. Each commit carries *marks*: properties of its snapshot that say where its
rows are from and how far they reach. A commit succeeds only on the snapshot whose marks its caller has read,
so of two programs that go on from the same marks one loses, and a commit that arrives late changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from uploader.iceberg.iceberg_target import IcebergTarget
from walstore.core.runtime.extras import needs_extra
from walstore.errors import (
    InvalidSettingsError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalError,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Snapshot

logger = logging.getLogger("walstore.iceberg")

Marks: TypeAlias = Mapping[str, str]

PREFIX: Final = "walstore."
SOURCE: Final = "walstore.source"
"""Where the rows are from. Also a property of the table, which has rows of nothing else."""

_OUR_OWN: Final = {
    # Each commit writes the metadata anew, and otherwise keeps all earlier ones.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
}


class CommitLostError(Exception):
    """Another program changed the table first; nothing was committed. Read the marks, and begin again."""


class IcebergTable:
    """An open table. Not for several threads at a time.

    All methods raise StorageUnavailableError if the catalog or the table's storage does not answer as it
    should.
    """

    def __init__(self, catalog: Catalog, table: Table, target: IcebergTarget) -> None:
        """Not for callers; see :meth:`open`."""
        self.target = target
        self._catalog = catalog
        self._table = table
        self._table.catalog = _OneAttempt(catalog)

    @classmethod
    def open(
        cls,
        target: IcebergTarget,
        *,
        source: str,
        schema: pa.Schema,
        properties: Mapping[str, str],
        create: bool = True,
    ) -> IcebergTable | None:
        """Open the table for the rows of ``source``; create it, and its namespace, if it is not there.

        None if it is not there and ``create`` is false. ``schema`` and ``properties`` are those of a new
        table. InvalidSettingsError if the table is there and was not made for ``source``, or if the catalog
        is not configured; MissingExtraError without pyiceberg.
        """
        with needs_extra("iceberg", "an Iceberg table"):
            from pyiceberg.catalog import load_catalog
            from pyiceberg.exceptions import NoSuchTableError
        with _explained(target):
            try:
                catalog = load_catalog(target.catalog, **target.properties)
            except ValueError as error:
                raise InvalidSettingsError(
                    f"the catalog of {target} is not configured: {_in_one_line(error)}; give its uri, or "
                    "write it into ~/.pyiceberg.yaml"
                ) from error
        try:
            with _explained(target):
                try:
                    table = catalog.load_table(target.table)
                except NoSuchTableError:
                    if not create:
                        catalog.close()
                        return None
                    table = _create(
                        catalog, target, schema, {**_OUR_OWN, **properties, SOURCE: source}
                    )
            found = table.properties.get(SOURCE)
            if found != source:
                raise InvalidSettingsError(
                    f"{target} has "
                    + ("other rows" if found is None else f"the rows of {found}")
                    + f", not those of {source}; nothing was changed; give it a table of its own"
                )
            if len(table.spec().fields):
                raise InvalidSettingsError(
                    f"{target} is partitioned; rows from here need a table without partitions"
                )
        except BaseException:
            catalog.close()
            raise
        return cls(catalog, table, target)

    @property
    def uuid(self) -> str:
        """The table's own id, as 32 hex digits."""
        return str(self._table.metadata.table_uuid.hex)

    def refresh(self) -> dict[str, str]:
        """Read the table again, and return the marks of the newest commit that has any.

        Empty if nothing was ever put there. Other programs may have committed since, such as a compaction.
        If the snapshot with the marks was expired, those of the table's properties count.
        """
        with _explained(self.target):
            self._table.refresh()
        return self._marks()

    def commit(self, change: Callable[[Transaction, dict[str, str]], None], marks: Marks) -> None:
        """Commit what ``change`` does with a transaction, on what :meth:`refresh` has read.

        ``change`` gives the marks that it gets to the snapshot that it makes, and makes one.

        Raises:
            CommitLostError: Another program was first.
            OutcomeUnknownError: It happened or not, and may still happen. If it does, a later commit from the
                same marks loses.
        """
        before = self._table.current_snapshot()
        transaction = self._table.transaction()
        with _explained(self.target):
            change(transaction, dict(marks))
            transaction.set_properties(dict(marks))
        staged = transaction.table_metadata.current_snapshot()
        try:
            transaction.commit_transaction()
        except Exception as error:
            if self._has_happened(staged, error):
                return
            if self._table.current_snapshot() != before:  # on which it would have to be
                self._discard(staged)
                raise CommitLostError from error
            raise OutcomeUnknownError(
                f"the catalog did not say whether {self.target} was changed ({_in_one_line(error)}); "
                "nothing is lost or counted twice; run it again"
            ) from error

    def write(self, name: str, rows: pa.Table) -> str:
        """Write rows into a file in the table's folder for data. No snapshot has it yet."""
        location = self._table.location_provider().new_data_location(name)
        with (
            _explained(self.target),
            self._table.io.new_output(location).create() as stream,
            pq.ParquetWriter(stream, rows.schema, compression="zstd", store_schema=False) as file,
        ):
            file.write_table(rows)
        return str(location)

    def put(
        self, files: Sequence[str], schema: pa.Schema, marks: Marks, *, replaces: bool, refusal: str
    ) -> None:
        """Commit files of :meth:`write`, beside all others or in their place, with the columns of ``schema``.

        Errors as of :meth:`commit`; InvalidSettingsError that begins with ``refusal`` if the table cannot
        have the columns.
        """
        self.commit(partial(self._put, files, schema, replaces, refusal), marks)

    def remove(self, locations: Sequence[str]) -> None:
        """Remove files of :meth:`write` that no commit can have; what cannot be removed stays as garbage."""
        for location in locations:
            with suppress(Exception):
                self._table.io.delete(location)

    def data_files(self, condition: Any = None) -> list[DataFile]:
        """Return the files that may have rows that fulfil a condition of pyiceberg's, or all files."""
        with _explained(self.target):
            scan = self._table.scan() if condition is None else self._table.scan(condition)
            return [task.file for task in scan.plan_files()]

    def close(self) -> None:
        """Release the catalog's connections; idempotent."""
        self._catalog.close()

    def _put(
        self,
        files: Sequence[str],
        schema: pa.Schema,
        replaces: bool,  # noqa: FBT001 - for a partial
        refusal: str,
        transaction: Transaction,
        marks: dict[str, str],
    ) -> None:
        """Add the columns and files as one snapshot.

        A deletion with ``add_files`` after it would be two, of which the first shows an empty table.
        """
        from pyiceberg.exceptions import ValidationError

        try:
            with transaction.update_schema() as update:
                update.union_by_name(schema)
            added = self._described(transaction, files)
        except (ValidationError, ValueError) as error:
            raise InvalidSettingsError(f"{refusal}: {error}") from error
        change = transaction.update_snapshot(snapshot_properties=marks)
        with change.overwrite() if replaces else change.fast_append() as snapshot:
            for old in self.data_files() if replaces else ():
                snapshot.delete_data_file(old)
            for new in added:
                snapshot.append_data_file(new)

    def _described(self, transaction: Transaction, locations: Sequence[str]) -> list[DataFile]:
        """Return what a manifest says of Parquet files, as in ``add_files``; ValueError for wrong columns."""
        from pyiceberg.io.pyarrow import parquet_files_to_data_files

        metadata = transaction.table_metadata
        if (
            metadata.name_mapping() is None
        ):  # by which files without Iceberg's column numbers are read
            mapping = metadata.schema().name_mapping.model_dump_json()
            transaction.set_properties({"schema.name-mapping.default": mapping})
        found = parquet_files_to_data_files(self._table.io, transaction.table_metadata, locations)
        return list(found)

    def _marks(self) -> dict[str, str]:
        snapshot = self._table.current_snapshot()
        while snapshot is not None:
            found = {} if snapshot.summary is None else snapshot.summary.additional_properties
            if SOURCE in found:
                return _ours(found)
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self._table.snapshot_by_id(parent)
        found = _ours(self._table.properties)
        return found if len(found) > 1 else {}  # more than the source

    def _has_happened(self, staged: Snapshot, error: Exception) -> bool:
        """Return whether a snapshot was committed; OutcomeUnknownError if that cannot be seen."""
        try:
            self.refresh()
        except WalError:
            raise OutcomeUnknownError(
                f"the catalog did not say whether {self.target} was changed ({_in_one_line(error)}), and "
                "cannot be read now; nothing is lost or counted twice; run it again"
            ) from error
        return self._table.snapshot_by_id(staged.snapshot_id) is not None

    def _discard(self, staged: Snapshot) -> None:
        """Remove the metadata files of a snapshot that was not committed, and cannot be any more."""
        with suppress(Exception):  # what stays is garbage
            for manifest in staged.manifests(self._table.io):
                if manifest.added_snapshot_id == staged.snapshot_id:
                    self._table.io.delete(manifest.manifest_path)
            self._table.io.delete(staged.manifest_list)


class _RefusedError(Exception):
    """The catalog refused a commit, or says so."""


class _OneAttempt:
    """A catalog whose refusals pyiceberg does not act on.

    It would commit a lost change once more, on top of what it lost to, so that rows are added twice. And
    after the last refusal it removes the manifests, although a refusal may follow a commit that happened:
    then its first answer was lost, and the request was sent again.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def commit_table(self, *arguments: Any, **options: Any) -> Any:
        from pyiceberg.exceptions import CommitFailedException

        try:
            return self._catalog.commit_table(*arguments, **options)
        except CommitFailedException as error:
            raise _RefusedError(str(error)) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)


def _ours(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name.startswith(PREFIX)}


def _create(
    catalog: Catalog, target: IcebergTarget, schema: pa.Schema, properties: dict[str, str]
) -> Table:
    """Create the table and its namespace, or return the one that another program has just created."""
    from pyiceberg.exceptions import (
        NamespaceAlreadyExistsError,
        NoSuchNamespaceError,
        TableAlreadyExistsError,
    )

    try:
        try:
            return catalog.create_table(target.table, schema=schema, properties=properties)
        except NoSuchNamespaceError:
            with suppress(NamespaceAlreadyExistsError):
                catalog.create_namespace(target.namespace)
            return catalog.create_table(target.table, schema=schema, properties=properties)
    except TableAlreadyExistsError:
        return catalog.load_table(target.table)


@contextmanager
def _explained(target: IcebergTarget) -> Iterator[None]:
    """Raise what pyiceberg, a catalog or a file system raises as StorageUnavailableError."""
    try:
        yield
    except (WalError, CommitLostError):
        raise
    except ModuleNotFoundError as error:
        raise InvalidSettingsError(
            f"the catalog of {target} needs a package that is not installed: {error.name}"
        ) from error
    except Exception as error:
        raise StorageUnavailableError(
            f"the Iceberg catalog of {target}, or where its files are, failed; nothing was changed: "
            f"{_in_one_line(error)}"
        ) from error


def _in_one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
