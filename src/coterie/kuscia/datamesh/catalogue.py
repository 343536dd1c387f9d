"""The domain's DomainData, DomainDataSources and DomainDataGrants, with Kuscia's rules for what callers leave out.

Everything lies in the domain's own namespace, and what is created here is the domain's. Who may do what is decided by
`permits`, before anything here is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric import rsa

from coterie.base.log import logger
from coterie.kube.api.errors import AlreadyExists, ApiError, Invalid, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.names import dns_subdomain_faults
from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.types.data import (
    DEFAULT_SOURCE,
    DOMAIN_DATA_GRANTS,
    DOMAIN_DATA_SOURCES,
    DOMAIN_DATAS,
    DataColumn,
    DomainData,
    DomainDataGrant,
    DomainDataSource,
)
from coterie.kuscia.datamesh import columns
from coterie.kuscia.datamesh.errors import GrpcStatusName, MeshError, MeshErrorCode, NotPermitted
from coterie.kuscia.identity.domain_identity import DomainIdentity
from coterie.kuscia.sources import catalogue_entries, grant_entries, local_roots, sealed_sources
from coterie.kuscia.sources.protocol import SourceInfo

log = logger("datamesh.catalogue")


class DataCatalogue:
    def __init__(self, client: Client, identity: DomainIdentity, *, only_data_directory: bool = False) -> None:
        """`only_data_directory`: local sources elsewhere need the operator's consent (of a lite: at its master)."""
        self._client = client
        self._only_data_directory = only_data_directory
        self._identity = identity
        self.domain = identity.domain

    # Data.

    async def data(self, name: str, code: MeshErrorCode = MeshErrorCode.GET_DATA) -> DomainData:
        _check_name("domaindata_id", name)
        try:
            return await self._client.get(DOMAIN_DATAS, name, self.domain)
        except NotFound as problem:
            raise MeshError(code, f'there is no DomainData "{name}"', GrpcStatusName.NOT_FOUND) from problem
        except (ApiError, TransportError) as problem:
            raise _refused(code, problem) from problem

    async def find_data(self, name: str) -> DomainData | None:
        _check_name("domaindata_id", name)
        try:
            found: DomainData = await self._client.get(DOMAIN_DATAS, name, self.domain)
            return found
        except NotFound:
            return None
        except (ApiError, TransportError) as problem:
            raise _refused(MeshErrorCode.GET_DATA, problem) from problem

    async def all_data(self) -> Sequence[DomainData]:
        try:
            return (await self._client.list(DOMAIN_DATAS, self.domain)).items
        except (ApiError, TransportError) as problem:
            raise _refused(MeshErrorCode.GET_DATA, problem) from problem

    async def create_data(self, name: str, spec: Mapping[str, Any], marks: Mapping[str, str]) -> str:
        """The new one's name. `spec`: what was asked for, as the API has it; what is missing gets its default."""
        name, full = await self.completed_data(name, spec)
        await self.create_completed(name, full, marks)
        return name

    async def completed_data(self, name: str, spec: Mapping[str, Any]) -> tuple[str, Object]:
        """Name and spec of a new one, checked and with what was left out."""
        name = name or catalogue_entries.new_name(str(spec.get("name") or ""))
        _check_name("domaindata_id", name)
        return name, await self._complete(name, spec)

    async def create_completed(self, name: str, full: Mapping[str, Any], marks: Mapping[str, str]) -> None:
        try:
            await self._client.create(DOMAIN_DATAS.as_dynamic, catalogue_entries.entry(name, full, marks), self.domain)
        except (ApiError, TransportError) as problem:
            raise _refused(MeshErrorCode.CREATE_DATA, problem) from problem

    async def update_data(self, data: DomainData, spec: Mapping[str, Any]) -> None:
        """What `spec` does not name stays."""
        full = await self._complete(data.metadata.name, catalogue_entries.merged(data, spec))
        await self._patch(data.metadata.name, catalogue_entries.change(data, full))

    async def _patch(self, name: str, patch: Object) -> None:
        try:
            await self._client.patch(DOMAIN_DATAS, name, self.domain, patch)
        except (ApiError, TransportError) as problem:
            raise _refused(MeshErrorCode.PATCH_DATA, problem) from problem

    async def delete_data(self, data: DomainData) -> None:
        try:
            await self._client.delete(DOMAIN_DATAS, data.metadata.name, self.domain, uid=data.metadata.uid)
        except (ApiError, TransportError) as problem:
            raise _refused(MeshErrorCode.DELETE_DATA, problem) from problem

    async def _complete(self, name: str, given: Mapping[str, Any]) -> Object:
        source = await self.source(catalogue_entries.chosen_source(given))
        with _mesh_errors():
            full = catalogue_entries.completed(given, name, self.domain, source.spec.type)
        if full["type"] == "table":
            columns.schema_of(msgspec.convert(full.get("columns") or (), tuple[DataColumn, ...]))
        return full

    # Sources.

    @property
    def public_key(self) -> rsa.RSAPublicKey:
        """With which settings of sources are encrypted."""
        return self._identity.key.public_key()

    async def source(self, name: str) -> DomainDataSource:
        _check_name("datasource_id", name or DEFAULT_SOURCE)
        try:
            return await self._client.get(DOMAIN_DATA_SOURCES, name or DEFAULT_SOURCE, self.domain)
        except NotFound as problem:
            raise MeshError(
                MeshErrorCode.SOURCE_NOT_THERE, f'there is no DomainDataSource "{name}"', GrpcStatusName.NOT_FOUND
            ) from problem
        except (ApiError, TransportError) as problem:
            raise _refused(MeshErrorCode.GET_SOURCE, problem) from problem

    async def source_info(self, name: str) -> SourceInfo:
        """With secrets; stays inside of the data mesh."""
        source = await self.source(name)
        try:
            info = await asyncio.to_thread(
                sealed_sources.source_info, source, self._identity.key, await self._configs(source)
            )
        except sealed_sources.NotReadable as problem:
            raise MeshError(MeshErrorCode.DECODE_INFO, str(problem), GrpcStatusName.FAILED_PRECONDITION) from None
        # A plug-in that is given a path reads files as `localfs` does, so it may have the same ones.
        if (info.kind == "localfs" or info.path) and (fault := self._directory_fault(source, info.path)):
            log.warning("A data source was refused", source=name, rule="path", why=fault)
            raise NotPermitted(MeshErrorCode.DECODE_INFO, f'data source "{source.metadata.name}": {fault}')
        return info

    async def proxied_source(self, name: str) -> Object:
        """The message DomainDataSource with its settings, secrets included: for a data proxy and nobody else."""
        source = await self.source(name)
        try:
            info = await asyncio.to_thread(
                sealed_sources.info_of, source, self._identity.key, await self._configs(source)
            )
        except sealed_sources.NotReadable as problem:
            raise MeshError(MeshErrorCode.DECODE_INFO, str(problem), GrpcStatusName.FAILED_PRECONDITION) from None
        spec = source.spec
        return {
            "datasource_id": source.metadata.name,
            "name": spec.name,
            "type": spec.type,
            "status": "Available",
            "info": info,
            "access_directly": False,
        }

    def _directory_fault(self, source: DomainDataSource, path: str) -> str:
        home = self._identity.home
        if fault := local_roots.directory_fault(path, home):
            return fault
        allowed = local_roots.OUTSIDE_ANNOTATION in (source.metadata.annotations or {})
        if self._only_data_directory and not allowed and not local_roots.within_data(path, home):
            return (
                f"{path} is outside of the domain's data directory; the operator of the control plane must allow it with "
                f"the annotation {local_roots.OUTSIDE_ANNOTATION}"
            )
        return ""

    async def shown_info(self, source: DomainDataSource) -> Object:
        """What engines are told. A path only where they may go there themselves."""
        info = await asyncio.to_thread(
            sealed_sources.public_settings, source, self._identity.key, await self._configs(source)
        )
        return {part: fields for part, fields in info.items() if part != "localfs" or source.spec.access_directly}

    async def _configs(self, source: DomainDataSource) -> Mapping[str, str]:
        if not source.spec.info_key:
            return {}
        try:
            return (await self._client.get(CONFIG_MAPS, sealed_sources.CONFIG_STORE, self.domain)).data or {}
        except NotFound:
            return {}
        except (ApiError, TransportError) as problem:
            raise _refused(MeshErrorCode.GET_SOURCE, problem) from problem

    # Grants.

    async def grants_of(self, data: str) -> Sequence[DomainDataGrant]:
        """Those that the domain itself gave."""
        try:
            found = (await self._client.list(DOMAIN_DATA_GRANTS, self.domain)).items
        except (ApiError, TransportError) as problem:
            raise _refused(MeshErrorCode.QUERY_GRANT, problem) from problem
        return [each for each in found if each.spec.domain_data_id == data and each.spec.author == self.domain]

    async def grant(self, name: str) -> DomainDataGrant:
        _check_name("domaindatagrant_id", name)
        try:
            return await self._client.get(DOMAIN_DATA_GRANTS, name, self.domain)
        except NotFound as problem:
            sentence = f'there is no DomainDataGrant "{name}"'
            raise MeshError(MeshErrorCode.GRANT_NOT_THERE, sentence, GrpcStatusName.NOT_FOUND) from problem
        except (ApiError, TransportError) as problem:
            raise _refused(MeshErrorCode.QUERY_GRANT, problem) from problem

    async def create_grant(self, name: str, spec: Mapping[str, Any]) -> str:
        name = name or grant_entries.new_name()
        _check_name("domaindatagrant_id", name)
        await self.data(str(spec.get("domainDataID") or ""), MeshErrorCode.CREATE_GRANT)
        signed = self.signed({**spec, "author": self.domain})
        try:
            await self._client.create(DOMAIN_DATA_GRANTS.as_dynamic, grant_entries.grant(name, signed), self.domain)
        except AlreadyExists as problem:
            raise MeshError(MeshErrorCode.GRANT_EXISTS, f'there is a DomainDataGrant "{name}" already') from problem
        except (ApiError, TransportError) as problem:
            raise _refused(MeshErrorCode.CREATE_GRANT, problem) from problem
        return name

    async def update_grant(self, grant: DomainDataGrant, spec: Mapping[str, Any]) -> None:
        merged = {**msgspec.to_builtins(grant.spec), **catalogue_entries.without_empty(spec)}
        steps = grant_entries.change(grant, self.signed({**merged, "author": self.domain}))
        try:
            await self._client.patch(DOMAIN_DATA_GRANTS, grant.metadata.name, self.domain, steps, type="json")
        except (ApiError, TransportError) as problem:
            raise _refused(MeshErrorCode.UPDATE_GRANT, problem) from problem

    async def delete_grant(self, grant: DomainDataGrant) -> None:
        try:
            await self._client.delete(DOMAIN_DATA_GRANTS, grant.metadata.name, self.domain, uid=grant.metadata.uid)
        except (ApiError, TransportError) as problem:
            raise _refused(MeshErrorCode.DELETE_GRANT, problem) from problem

    def signed(self, spec: Mapping[str, Any]) -> Object:
        """The spec of a grant with the domain's signature."""
        with _mesh_errors():
            return grant_entries.signed(grant_entries.completed(spec), self._identity.key)


# Pure.


@contextmanager
def _mesh_errors() -> Iterator[None]:
    try:
        yield
    except catalogue_entries.InvalidEntry as problem:
        raise MeshError(MeshErrorCode.INVALID, str(problem)) from problem


def _check_name(field: str, name: str) -> None:
    if not name:
        raise MeshError(MeshErrorCode.INVALID, f"{field} is missing")
    if dns_subdomain_faults(name):
        raise MeshError(
            MeshErrorCode.INVALID,
            f'{field} "{name[:100]}" is no valid name; take lower-case letters, digits, "-" and "."',
        )


def _refused(code: MeshErrorCode, problem: Exception) -> MeshError:
    if isinstance(problem, Invalid):
        return MeshError(MeshErrorCode.INVALID, str(problem))
    kind = GrpcStatusName.INTERNAL if isinstance(problem, ApiError) else GrpcStatusName.UNAVAILABLE
    return MeshError(code, f"the domain's API refuses: {problem}", kind)
