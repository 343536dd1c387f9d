"""What engines can ask for beside the data itself: one table of operations, whoever carries them.

    gRPC (8071), HTTP (8070), Flight's DoAction ──> Operation.run(caller, request) ──> response

A failure is an answer too: `status.code` and a sentence, as Kuscia's clients expect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format

from coterie.base.log import logger
from coterie.kube.api.meta import Object
from coterie.kuscia.api.types.data import DomainData, DomainDataGrant
from coterie.kuscia.datamesh import messages
from coterie.kuscia.datamesh.authentication import EngineCaller
from coterie.kuscia.datamesh.authorization import DataAuthorizer
from coterie.kuscia.datamesh.catalogue import DataCatalogue
from coterie.kuscia.datamesh.errors import MeshError, MeshErrorCode
from coterie.kuscia.datamesh.locations import DataLocations
from coterie.kuscia.datamesh.provenance import DataProvenance
from coterie.kuscia.sources import catalogue_entries, grant_entries

log = logger("datamesh")

Work = Callable[[EngineCaller, Any], Awaitable[Object]]


@dataclass(frozen=True, slots=True)
class MeshOperation:
    service: str
    method: str
    path: str
    """Of the HTTP server."""
    work: Work

    @property
    def request(self) -> Any:
        return messages.mesh(f"{self.method}Request")

    @property
    def response(self) -> Any:
        return messages.mesh(f"{self.method}Response")

    async def run(self, caller: EngineCaller, request: Any) -> Any:
        try:
            data = await self.work(caller, request)
        except MeshError as problem:
            return self.failed(problem)
        return json_format.ParseDict({"status": {"message": "success"}, **data}, self.response())

    def failed(self, problem: MeshError) -> Any:
        log.info("Refused", method=self.method, code=int(problem.code), why=str(problem))
        return self.response(status=messages.Status(code=int(problem.code), message=str(problem)))


class MeshServices:
    def __init__(
        self, catalogue: DataCatalogue, provenance: DataProvenance, permits: DataAuthorizer, places: DataLocations
    ) -> None:
        self._catalogue = catalogue
        self._provenance = provenance
        self._permits = permits
        self._places = places

    def operations(self) -> list[MeshOperation]:
        base = "/api/v1/datamesh"
        data, source, grant = "DomainDataService", "DomainDataSourceService", "DomainDataGrantService"
        return [
            MeshOperation(data, "CreateDomainData", f"{base}/domaindata/create", self.create_data),
            MeshOperation(data, "UpdateDomainData", f"{base}/domaindata/update", self.update_data),
            MeshOperation(data, "QueryDomainData", f"{base}/domaindata/query", self.query_data),
            MeshOperation(data, "DeleteDomainData", f"{base}/domaindata/delete", self.delete_data),
            MeshOperation(source, "QueryDomainDataSource", f"{base}/domaindatasource/query", self.query_source),
            MeshOperation(grant, "CreateDomainDataGrant", f"{base}/domaindatagrant/create", self.create_grant),
            MeshOperation(grant, "UpdateDomainDataGrant", f"{base}/domaindatagrant/update", self.update_grant),
            MeshOperation(grant, "QueryDomainDataGrant", f"{base}/domaindatagrant/query", self.query_grant),
            MeshOperation(grant, "DeleteDomainDataGrant", f"{base}/domaindatagrant/delete", self.delete_grant),
        ]

    # Data.

    async def create_data(self, caller: EngineCaller, request: Any) -> Object:
        self._permits.create(caller, MeshErrorCode.CREATE_DATA)
        spec, name = _parse_request(catalogue_entries.spec_of_request, request), request.domaindata_id
        before = await self._catalogue.find_data(name) if name else None
        if before is not None:
            await self._update(caller, before, spec, MeshErrorCode.CREATE_DATA)
        else:
            name, full = await self._catalogue.completed_data(name, spec)
            check = self._places.check_own if caller.at_home else self._places.check_free
            await check(caller, full, name, MeshErrorCode.CREATE_DATA)
            # First: what was registered and is not recorded would count as the domain's own.
            info = await self._catalogue.source_info(full["dataSource"])
            await self._provenance.registered(caller, name, info, full["relativeURI"])
            await self._catalogue.create_completed(name, full, self._permits.marks(caller))
        return {"data": {"domaindata_id": name}}

    async def update_data(self, caller: EngineCaller, request: Any) -> Object:
        before = await self._catalogue.data(request.domaindata_id)
        await self._update(
            caller, before, _parse_request(catalogue_entries.spec_of_request, request), MeshErrorCode.PATCH_DATA
        )
        return {}

    async def _update(self, caller: EngineCaller, before: DomainData, spec: Object, code: MeshErrorCode) -> None:
        await self._permits.write(caller, before, code)
        moved = (spec.get("relativeURI") or before.spec.relative_uri, spec.get("dataSource") or before.spec.data_source)
        if moved != (before.spec.relative_uri, before.spec.data_source):
            place = dict(zip(("relativeURI", "dataSource"), moved, strict=True))
            if caller.at_home:
                await self._places.check_own(caller, place, before.metadata.name, code)
                return await self._catalogue.update_data(before, spec)
            # What was written by the job stays where it was; elsewhere may lie what it may not read.
            raise MeshError(code, "relative_uri and datasource_id of what a task made cannot be changed; make another")
        await self._catalogue.update_data(before, spec)

    async def query_data(self, caller: EngineCaller, request: Any) -> Object:
        found = await self._catalogue.data(request.domaindata_id, MeshErrorCode.QUERY_DATA)
        permit = await self._permits.permit_metadata(caller, found, MeshErrorCode.QUERY_DATA)
        return {"data": catalogue_entries.data_response(found, permit.columns)}

    async def delete_data(self, caller: EngineCaller, request: Any) -> Object:
        found = await self._catalogue.data(request.domaindata_id, MeshErrorCode.DELETE_DATA)
        await self._permits.write(caller, found, MeshErrorCode.DELETE_DATA)
        await self._catalogue.delete_data(found)
        return {}

    # Sources.

    async def query_source(self, caller: EngineCaller, request: Any) -> Object:
        source = await self._catalogue.source(request.datasource_id)
        spec, info = source.spec, await self._catalogue.shown_info(source)
        # Whoever goes to the files passes no grant. So a partner's task comes to us, and engines know how to do both.
        directly = spec.access_directly and caller.at_home and caller.beside_files
        if not directly:
            info.pop("localfs", None)
        return {
            "data": {
                "datasource_id": source.metadata.name,
                "name": spec.name,
                "type": spec.type,
                "status": "Available",
                "info": info,
                "info_key": spec.info_key,
                "access_directly": directly,
            }
        }

    # Grants.

    async def create_grant(self, caller: EngineCaller, request: Any) -> Object:
        self._permits.grant(caller, MeshErrorCode.CREATE_GRANT)
        name = await self._catalogue.create_grant(request.domaindatagrant_id, _parse_request(_grant, request))
        return {"data": {"domaindatagrant_id": name}}

    async def update_grant(self, caller: EngineCaller, request: Any) -> Object:
        self._permits.grant(caller, MeshErrorCode.UPDATE_GRANT)
        await self._catalogue.update_grant(
            await self._own_grant(request, MeshErrorCode.UPDATE_GRANT), _parse_request(_grant, request)
        )
        return {}

    async def query_grant(self, caller: EngineCaller, request: Any) -> Object:
        found = await self._catalogue.grant(request.domaindatagrant_id)
        if found.spec.grant_domain != caller.initiator:
            self._permits.grant(caller, MeshErrorCode.QUERY_GRANT)
        return {"data": grant_entries.grant_response(found, grant_entries.SECOND)}

    async def delete_grant(self, caller: EngineCaller, request: Any) -> Object:
        self._permits.grant(caller, MeshErrorCode.DELETE_GRANT)
        await self._catalogue.delete_grant(await self._own_grant(request, MeshErrorCode.DELETE_GRANT))
        return {}

    async def _own_grant(self, request: Any, code: MeshErrorCode) -> DomainDataGrant:
        found = await self._catalogue.grant(request.domaindatagrant_id)
        if found.spec.author != self._catalogue.domain:
            raise MeshError(code, f'the grant is of "{found.spec.author}", which alone can change it')
        return found


def _parse_request(reader: Callable[[Any], Object], request: Any) -> Object:
    try:
        return reader(request)
    except catalogue_entries.InvalidEntry as problem:
        raise MeshError(MeshErrorCode.INVALID, str(problem)) from problem


def _grant(request: Any) -> Object:
    return grant_entries.spec_of_request(request, grant_entries.SECOND)
