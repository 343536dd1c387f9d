"""Delta tables in a directory, read-only, through the Python library `deltalake` (the extra `delta`).

One read is of one version of the table. What the table's log names must lie in the table's own directory: a log is
written by others, and a path in it, or a link, must not lead to other files of the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as arrow_dataset

from coterie.base.lazy_import import lazy_import
from coterie.kuscia.sources.lake_tables import LakeSource, partition_values
from coterie.kuscia.sources.paths import parts_of
from coterie.kuscia.sources.protocol import DataLocation, DataNotFound, DataSource, SourceError, SourceInfo

deltalake = lazy_import("deltalake")
deltalake_exceptions = lazy_import("deltalake.exceptions")

_LOG = "_delta_log"
_MOST_FILES = 1_000_000


def delta(info: SourceInfo) -> DataSource:
    return DeltaSource.of(info)


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """A `LakeTable`."""

    dataset: Any

    @property
    def schema(self) -> pa.Schema:
        return self.dataset.schema

    def rows(self, columns: tuple[str, ...], partition: Mapping[str, str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        values = partition_values(self.schema, partition)
        conditions = [arrow_dataset.field(key) == value for key, value in values.items()]
        scanner = self.dataset.scanner(
            columns=list(columns),
            filter=reduce(and_, conditions) if conditions else None,
            batch_size=batch_rows,
            batch_readahead=1,
            fragment_readahead=1,
            use_threads=False,
        )
        yield from scanner.to_batches()


class DeltaSource(LakeSource):
    label = "Delta"
    package = "deltalake"

    def load_library(self) -> None:
        _ = deltalake.DeltaTable

    def errors(self) -> AbstractContextManager[None]:
        return _delta_errors()

    def opened(self, place: DataLocation) -> DeltaTable:
        folder = self.confined(self.root, self.root.joinpath(*parts_of(place.uri)))
        log = self.confined(self.root, folder / _LOG)
        if not log.is_dir():
            raise DataNotFound(f"there is no Delta table {place.uri}")
        for each in log.iterdir():
            self.confined(folder, each)
        with _delta_errors():
            table = deltalake.DeltaTable(str(folder))
            files = table.file_uris()
            if len(files) > _MOST_FILES:
                raise SourceError("the Delta table has too many files")
            for each in files:
                self.confined(folder, Path(each))
            return DeltaTable(table.to_pyarrow_dataset())


class _delta_errors:
    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None or isinstance(error, SourceError):
            return
        if isinstance(error, deltalake_exceptions.TableNotFoundError):
            raise DataNotFound("there is no Delta table of that name") from error
        if isinstance(error, deltalake_exceptions.DeltaProtocolError):
            raise SourceError("the Delta table uses features that cannot be read here") from error
        if isinstance(error, (deltalake_exceptions.DeltaError, pa.ArrowException, OSError, ValueError)):
            raise SourceError(f"the Delta table cannot be read: {type(error).__name__}") from error
