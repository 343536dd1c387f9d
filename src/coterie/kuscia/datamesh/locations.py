"""Where tasks of other domains may put what they make: where nothing of ours is.

A task that a partner began may register and write new data, and read again what it wrote. If it could register what
lies there already, or write over it, grants would mean nothing. So its place must be free: no other entry of the
catalogue is at it, around it or below it, and nothing unknown to the catalogue either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coterie.base.log import logger
from coterie.kuscia.api.types.data import DEFAULT_SOURCE, DomainData
from coterie.kuscia.datamesh.authentication import EngineCaller
from coterie.kuscia.datamesh.catalogue import DataCatalogue
from coterie.kuscia.datamesh.data_proxy import DataProxies, ProxySource
from coterie.kuscia.datamesh.errors import GrpcStatusName, MeshError, MeshErrorCode, NotPermitted
from coterie.kuscia.datamesh.provenance import DataProvenance
from coterie.kuscia.datamesh.settings import DataProxy
from coterie.kuscia.sources import sealed_sources
from coterie.kuscia.sources.catalogue_entries import file_format
from coterie.kuscia.sources.data_records import foreign_fault
from coterie.kuscia.sources.protocol import (
    DataLocation,
    DataNotFound,
    DataSource,
    SourceError,
    SourceForbidden,
    SourceInfo,
    SourceUnreachable,
)

log = logger("datamesh.places")

Opener = Callable[[SourceInfo], DataSource]


class DataLocations:
    def __init__(
        self,
        catalogue: DataCatalogue,
        provenance: DataProvenance,
        open_source: Opener,
        proxies: Sequence[DataProxy] = (),
    ) -> None:
        self._proxies = DataProxies(proxies)
        self._catalogue = catalogue
        self._provenance = provenance
        self._open = open_source

    async def source(self, data: DomainData) -> DataSource:
        """Not yet entered. MeshProblem when nobody here can open it."""
        if found := await self.proxied(data.spec.data_source, data):
            return found
        return self.open_source(await self._catalogue.source_info(data.spec.data_source))

    async def proxied(self, name: str, data: DomainData | None = None) -> ProxySource | None:
        """The source behind its data proxy; None: it has none."""
        proxy = self._proxies.find((await self._catalogue.source(name)).spec.type)
        return ProxySource(proxy, await self._catalogue.proxied_source(name), data) if proxy is not None else None

    def open_source(self, info: SourceInfo) -> DataSource:
        if (proxy := self._proxies.find(info.kind)) is not None:
            return ProxySource(proxy, {})  # looked at, but neither read nor written
        try:
            return self._open(info)
        except SourceError as problem:
            log.warning("A data source cannot be opened", kind=info.kind, why=str(problem))
            sentence = f'data source type "{info.kind}" cannot be opened without data proxy: {problem}'
            raise MeshError(MeshErrorCode.QUERY_SOURCE, sentence) from problem

    async def check_free(self, caller: EngineCaller, spec: Mapping[str, Any], name: str, code: MeshErrorCode) -> None:
        """For a new entry of a task that another domain began. Raises NotPermitted."""
        uri = str(spec.get("relativeURI") or name)
        if not uri:
            return  # it will get a name of its own, which nobody has
        chosen = str(spec.get("dataSource") or DEFAULT_SOURCE)
        info = await self._catalogue.source_info(chosen)
        await self._check_catalogue(caller, info, chosen, uri, name, code)
        await self._check_source(info, DataLocation(uri, file_format(str(spec.get("fileFormat") or ""))), code)

    async def check_own(self, caller: EngineCaller, spec: Mapping[str, Any], name: str, code: MeshErrorCode) -> None:
        """For a new entry of a task of the domain itself: what a partner's task made is not taken for the domain's."""
        if uri := str(spec.get("relativeURI") or name):
            info = await self._catalogue.source_info(str(spec.get("dataSource") or DEFAULT_SOURCE))
            record = await self._provenance.at(sealed_sources.location(info, uri))
            if fault := foreign_fault(record, caller.domain, uri):
                log.warning("A registration was refused", data=name, task=caller.task, rule="provenance", why=fault)
                raise NotPermitted(code, fault)

    async def check_writable(self, caller: EngineCaller, data: DomainData, code: MeshErrorCode) -> None:
        """Before a task that another domain began writes."""
        uri, chosen = data.spec.relative_uri, data.spec.data_source
        info = await self._catalogue.source_info(chosen)
        await self._check_catalogue(caller, info, chosen, uri, data.metadata.name, code)
        record = await self._provenance.of(data)
        if record is None or not record.written_by:
            await self._check_source(info, DataLocation(uri, file_format(data.spec.file_format)), code)

    async def _check_catalogue(
        self, caller: EngineCaller, info: SourceInfo, chosen: str, uri: str, name: str, code: MeshErrorCode
    ) -> None:
        infos = {chosen: info}
        here = sealed_sources.location(info, uri)
        own: set[tuple[str, ...]] = set()
        for record in await self._provenance.all():
            if record.spec.initiator == caller.initiator:
                own.add(record.spec.location)
            elif sealed_sources.overlap(here, record.spec.location):
                raise self._taken(caller, uri, code)
        for other in await self._catalogue.all_data():
            if other.metadata.name == name or other.spec.author != self._catalogue.domain:
                continue
            source = other.spec.data_source
            if source not in infos:
                try:
                    infos[source] = await self._catalogue.source_info(source)
                except MeshError as problem:
                    if problem.kind is not GrpcStatusName.NOT_FOUND:
                        raise
                    continue
            there = sealed_sources.location(infos[source], other.spec.relative_uri)
            if sealed_sources.overlap(here, there) and there not in own:
                raise self._taken(caller, uri, code)

    def _taken(self, caller: EngineCaller, uri: str, code: MeshErrorCode) -> NotPermitted:
        sentence = f'{caller.describe} of "{caller.initiator}" may not write to {uri}: it is taken'
        log.warning("A place was refused", task=caller.task, initiator=caller.initiator, rule="place", why=sentence)
        return NotPermitted(code, sentence)

    async def _check_source(self, info: SourceInfo, place: DataLocation, code: MeshErrorCode) -> None:
        try:
            async with self.open_source(info) as source:
                await source.schema(place)
        except DataNotFound:
            return
        except (SourceForbidden, SourceUnreachable) as problem:
            raise MeshError(code, str(problem)) from problem
        except SourceError:
            pass  # whatever lies there cannot be read as what was asked for; it is there all the same
        raise NotPermitted(code, f"{place.uri} is taken; choose another relative_uri")
