"""Iceberg tables in a directory, read-only, through the Python library `pyiceberg` (the extra `iceberg`).

One read is of one snapshot: that of the newest metadata file when it begins. Metadata is written by others. Every file that it names (manifests, data,
deletes) must lie in the table's own directory, and the settings in it, with which the library would load other code or call other stores, are
not used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from coterie.base.lazy_import import lazy_import
from coterie.kuscia.sources.lake_tables import LakeSource, partition_values
from coterie.kuscia.sources.paths import parts_of
from coterie.kuscia.sources.protocol import (
    DataLocation,
    DataNotFound,
    DataSource,
    SourceError,
    SourceForbidden,
    SourceInfo,
)

iceberg_table = lazy_import("pyiceberg.table")
iceberg_serializers = lazy_import("pyiceberg.serializers")
iceberg_catalog = lazy_import("pyiceberg.catalog.noop")
iceberg_arrow = lazy_import("pyiceberg.io.pyarrow")
iceberg_expressions = lazy_import("pyiceberg.expressions")

_METADATA = "metadata"
_HINT = "version-hint.text"
_LARGEST_HINT = 200
_LARGEST_METADATA = 256 << 20
_NUMBERED = re.compile(r"(?:v(\d{1,9})|(\d{1,9})-[0-9A-Za-z-]{1,80})\.metadata\.json")


def iceberg(info: SourceInfo) -> DataSource:
    return IcebergSource.of(info)


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """A `LakeTable`."""

    table: Any
    schema: pa.Schema

    def rows(self, columns: tuple[str, ...], partition: Mapping[str, str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """One data file after the other: the library holds all batches of those that it reads at a time."""
        condition = iceberg_expressions.AlwaysTrue()
        for key, value in partition_values(self.schema, partition).items():
            condition = iceberg_expressions.And(condition, iceberg_expressions.EqualTo(key, value.as_py()))
        table = self.table
        scan = table.scan(row_filter=condition, **({"selected_fields": columns} if columns else {}))
        reader = iceberg_arrow.ArrowScan(table.metadata, table.io, scan.projection(), condition)
        for task in scan.plan_files():
            yield from reader.to_record_batches([task])


class IcebergSource(LakeSource):
    label = "Iceberg"
    package = "pyiceberg"

    def load_library(self) -> None:
        _ = iceberg_table.StaticTable

    def errors(self) -> AbstractContextManager[None]:
        return _iceberg_errors()

    def opened(self, place: DataLocation) -> IcebergTable:
        folder = self.confined(self.root, self.root.joinpath(*parts_of(place.uri)))
        named = self.confined(folder, newest(self.confined(self.root, folder / _METADATA), place.uri))
        with _iceberg_errors():
            if named.stat().st_size > _LARGEST_METADATA:
                raise SourceError("the metadata of the Iceberg table is too large")
            files = self._confined_files(folder)
            table = iceberg_table.StaticTable(
                identifier=("static-table", place.uri),
                metadata=iceberg_serializers.FromInputFile.table_metadata(files.new_input(str(named))),
                metadata_location=str(named),
                # Not what the metadata's own properties ask for.
                io=files,
                catalog=iceberg_catalog.NoopCatalog("static-table"),
            )
            return IcebergTable(table, iceberg_arrow.schema_to_pyarrow(table.schema(), include_field_ids=False))

    def _confined_files(self, folder: Path) -> Any:
        """The library's files, of this folder only."""
        files = iceberg_arrow.PyArrowFileIO({})
        opened = files.new_input

        def confined(location: str) -> Any:
            path = location.removeprefix("file://" if location.startswith("file:///") else "file:")
            if not path.startswith("/") or path.startswith("//"):
                raise SourceForbidden("the Iceberg table names files that are not in its directory")
            return opened(str(self.confined(folder, Path(path))))

        files.new_input = confined
        return files


def newest(folder: Path, uri: str) -> Path:
    """The metadata file of the last version."""
    if not folder.is_dir():
        raise DataNotFound(f"there is no Iceberg table {uri}")
    hint = folder / _HINT
    if hint.is_file():
        text = hint.read_bytes()[:_LARGEST_HINT].decode("utf-8", "replace").strip()
        name = f"v{text}.metadata.json" if text.isdecimal() else text.removesuffix(".metadata.json") + ".metadata.json"
        if "/" in name or not (folder / name).is_file():
            raise SourceError(f"the version hint of the Iceberg table {uri} names no metadata file of it")
        return folder / name
    found: dict[int, list[Path]] = {}
    for each in folder.iterdir():
        if match := _NUMBERED.fullmatch(each.name):
            found.setdefault(int(match[1] or match[2]), []).append(each)
    if not found:
        raise DataNotFound(f"there is no Iceberg table {uri}")
    last = found[max(found)]
    if len(last) > 1:
        raise SourceError(
            f"the Iceberg table {uri} has two last versions, of which only its catalogue knows the right one"
        )
    return last[0]


class _iceberg_errors:
    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None or isinstance(error, (SourceError, GeneratorExit)) or not isinstance(error, Exception):
            return
        if isinstance(error, NotImplementedError):
            raise SourceError("the Iceberg table uses features that cannot be read here") from error
        raise SourceError(f"the Iceberg table cannot be read: {type(error).__name__}") from error
