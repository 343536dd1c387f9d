"""Which kind of source is opened by what: our own, and plug-ins.

A plug-in is an entry point in the group `coterie.datasources`; its name is the kind, and it is called with the
SourceInfo and gives a Source. A kind of ours cannot be taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points

from coterie.kuscia.sources.localfs import localfs
from coterie.kuscia.sources.mysql import mysql
from coterie.kuscia.sources.postgresql import postgresql
from coterie.kuscia.sources.protocol import DataSource, SourceError, SourceInfo
from coterie.kuscia.sources.s3 import s3

GROUP = "coterie.datasources"
Opener = Callable[[SourceInfo], DataSource]
BUILT_IN: Mapping[str, Opener] = {"localfs": localfs, "oss": s3, "mysql": mysql, "postgresql": postgresql}


def open_source(info: SourceInfo) -> DataSource:
    """Not yet entered. SourceError when nothing opens this kind, or its settings cannot be right."""
    opener = BUILT_IN.get(info.kind)
    if opener is not None:
        return opener(info)
    for plugin in entry_points(group=GROUP, name=info.kind):
        source: DataSource = plugin.load()(info)
        return source
    raise SourceError(f"no source of kind {info.kind!r} is known; there are {', '.join(kinds())}")


def kinds() -> tuple[str, ...]:
    return tuple(dict.fromkeys((*BUILT_IN, *sorted(entry_points(group=GROUP).names))))
