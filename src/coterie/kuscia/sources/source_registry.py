"""Which kind of source is opened by what: our own, and plug-ins.

A plug-in is a Python package with an entry point in the group `coterie.datasources`. The entry point's name is the kind;
it is called with the SourceInfo and gives a DataSource. It is imported when a source of its kind is opened, not before.
A kind of ours cannot be taken over, and a kind that two packages claim is opened by neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points

from coterie.kuscia.sources.azure_blobs import azure_blobs
from coterie.kuscia.sources.delta import delta
from coterie.kuscia.sources.gcs_objects import gcs_objects
from coterie.kuscia.sources.hive import hive
from coterie.kuscia.sources.http_files import http_files
from coterie.kuscia.sources.iceberg import iceberg
from coterie.kuscia.sources.localfs import localfs
from coterie.kuscia.sources.mysql import mysql
from coterie.kuscia.sources.odps import odps
from coterie.kuscia.sources.postgresql import postgresql
from coterie.kuscia.sources.protocol import DataSource, SourceError, SourceInfo
from coterie.kuscia.sources.s3 import s3

GROUP = "coterie.datasources"
Opener = Callable[[SourceInfo], DataSource]
BUILT_IN: Mapping[str, Opener] = {
    "localfs": localfs,
    "oss": s3,
    "azure": azure_blobs,
    "gcs": gcs_objects,
    "mysql": mysql,
    "postgresql": postgresql,
    "http": http_files,
    "delta": delta,
    "iceberg": iceberg,
    "odps": odps,
    "hive": hive,
}
_METHODS = ("__aenter__", "__aexit__", "schema", "read", "write", "delete")


class PluginFault(SourceError):
    """A plug-in cannot be used. The message names its package and what is wrong with it, but no settings."""


def open_source(info: SourceInfo) -> DataSource:
    """Not yet entered. SourceError when nothing opens this kind, or its settings cannot be right."""
    opener = BUILT_IN.get(info.kind)
    if opener is not None:
        return opener(info)
    found = {_package(each): each for each in entry_points(group=GROUP, name=info.kind)}
    if not found:
        raise SourceError(f"no source of kind {info.kind!r} is known; there are {', '.join(kinds())}")
    if len(found) > 1:
        raise PluginFault(
            f"the packages {' and '.join(sorted(found))} both open sources of kind {info.kind!r}; remove one of them"
        )
    [(package, plugin)] = found.items()
    return _opened(package, plugin, info)


def _opened(package: str, plugin: EntryPoint, info: SourceInfo) -> DataSource:
    who = f"the plug-in {package} for sources of kind {info.kind!r}"
    try:
        opener = plugin.load()
    except Exception as problem:
        raise PluginFault(
            f"{who} cannot be loaded from {plugin.value}: {type(problem).__name__}: {problem}"
        ) from problem
    if not callable(opener):
        raise PluginFault(f"{who} cannot be used: {plugin.value} is not a function that takes a SourceInfo")
    try:
        source: DataSource = opener(info)
    except SourceError:
        raise
    except Exception as problem:
        # Without the problem's words, which may quote settings.
        raise PluginFault(f"{who} failed with {type(problem).__name__} when it was given its settings") from problem
    missing = [name for name in _METHODS if not callable(getattr(source, name, None))]
    if missing:
        raise PluginFault(
            f"{who} gave a {type(source).__name__} without {', '.join(missing)}; see docs/guide/sources.md"
        )
    return source


def _package(plugin: EntryPoint) -> str:
    """Of the distribution, e.g. `coterie-source-sqlite 1.0`."""
    return f"{plugin.dist.name} {plugin.dist.version}" if plugin.dist is not None else plugin.value


def kinds() -> tuple[str, ...]:
    return tuple(dict.fromkeys((*BUILT_IN, *sorted(entry_points(group=GROUP).names))))
