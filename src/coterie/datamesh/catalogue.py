"""The domain's DomainData, DomainDataSources and DomainDataGrants, with Kuscia's rules for what callers leave out.

Everything lies in the domain's own namespace, and what is created here is the domain's. Who may do what is decided by
`permits`, before anything here is called.
"""

from __future__ import annotations

import asyncio
import base64
import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from coterie.api import grants, labels
from coterie.api.errors import AlreadyExists, ApiError, Invalid, NotFound
from coterie.api.meta import Object
from coterie.api.names import dns_subdomain_faults
from coterie.api.types.core import CONFIG_MAPS
from coterie.api.types.kuscia_data import (
    DATA_TYPES,
    DEFAULT_SOURCE,
    DOMAIN_DATA_GRANTS,
    DOMAIN_DATA_SOURCES,
    DOMAIN_DATAS,
    DomainData,
    DomainDataGrant,
    DomainDataGrantSpec,
    DomainDataSource,
    DomainDataSpec,
)
from coterie.base import signatures
from coterie.base.clock import rfc3339
from coterie.base.identity import DomainIdentity
from coterie.client.client import Client
from coterie.client.transport import TransportError
from coterie.datamesh import columns
from coterie.datamesh.problems import Code, Kind, MeshProblem
from coterie.sources import stored
from coterie.sources.protocol import FileFormat, SourceInfo

_API_VERSION = "kuscia.secretflow/v1alpha1"
_NAME_PART = 16
_FILES = ("localfs", "oss")


class Catalogue:
    def __init__(self, client: Client, identity: DomainIdentity) -> None:
        self._client = client
        self._identity = identity
        self.domain = identity.domain

    # Data.

    async def data(self, name: str, code: Code = Code.GET_DATA) -> DomainData:
        _check_name("domaindata_id", name)
        try:
            return await self._client.get(DOMAIN_DATAS, name, self.domain)
        except NotFound as problem:
            raise MeshProblem(code, f'there is no DomainData "{name}"', Kind.NOT_FOUND) from problem
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
            raise _refused(Code.GET_DATA, problem) from problem

    async def all_data(self) -> Sequence[DomainData]:
        try:
            return (await self._client.list(DOMAIN_DATAS, self.domain)).items
        except (ApiError, TransportError) as problem:
            raise _refused(Code.GET_DATA, problem) from problem

    async def create_data(self, name: str, spec: Mapping[str, Any], marks: Mapping[str, str]) -> str:
        """The new one's name. `spec`: what was asked for, as the API has it; what is missing gets its default."""
        name = name or new_name(str(spec.get("name") or ""))
        _check_name("domaindata_id", name)
        full = await self._complete(name, spec)
        obj: Object = {
            "apiVersion": _API_VERSION,
            "kind": "DomainData",
            "metadata": {
                "name": name,
                "labels": _labels(full),
                "annotations": {labels.KUSCIA_INITIATOR: self.domain, **marks},
            },
            "spec": full,
        }
        try:
            await self._client.create(DOMAIN_DATAS.as_dynamic, obj, self.domain)
        except (ApiError, TransportError) as problem:
            raise _refused(Code.CREATE_DATA, problem) from problem
        return name

    async def update_data(self, data: DomainData, spec: Mapping[str, Any]) -> None:
        """What `spec` does not name stays."""
        full = await self._complete(data.metadata.name, {**msgspec.to_builtins(data.spec), **_given(spec)})
        patch = {
            "metadata": {"labels": _labels(full), "resourceVersion": data.metadata.resource_version},
            # A merge would keep attributes that are gone.
            "spec": {**{key: None for key in ("attributes", "partitions", "columns")}, **full},
        }
        patch["spec"]["attributes"] = _replaced(data.spec.attributes, full.get("attributes"))
        await self._patch(data.metadata.name, patch)

    async def mark_data(self, name: str, marks: Mapping[str, str]) -> None:
        await self._patch(name, {"metadata": {"annotations": dict(marks)}})

    async def _patch(self, name: str, patch: Object) -> None:
        try:
            await self._client.patch(DOMAIN_DATAS, name, self.domain, patch)
        except (ApiError, TransportError) as problem:
            raise _refused(Code.PATCH_DATA, problem) from problem

    async def delete_data(self, data: DomainData) -> None:
        try:
            await self._client.delete(DOMAIN_DATAS, data.metadata.name, self.domain, uid=data.metadata.uid)
        except (ApiError, TransportError) as problem:
            raise _refused(Code.DELETE_DATA, problem) from problem

    async def _complete(self, name: str, given: Mapping[str, Any]) -> Object:
        out = _given(given)
        out.setdefault("name", name)
        out.setdefault("relativeURI", name)
        out.setdefault("type", "unknown")
        out.setdefault("dataSource", DEFAULT_SOURCE)
        out.setdefault("vendor", "manual")
        out["author"] = self.domain
        source = await self.source(out["dataSource"])
        if source.spec.type not in _FILES:
            out["fileFormat"] = "unknown"
        out.setdefault("fileFormat", "unknown")
        _check(name, out)
        return out

    # Sources.

    async def source(self, name: str) -> DomainDataSource:
        _check_name("datasource_id", name or DEFAULT_SOURCE)
        try:
            return await self._client.get(DOMAIN_DATA_SOURCES, name or DEFAULT_SOURCE, self.domain)
        except NotFound as problem:
            raise MeshProblem(
                Code.SOURCE_NOT_THERE, f'there is no DomainDataSource "{name}"', Kind.NOT_FOUND
            ) from problem
        except (ApiError, TransportError) as problem:
            raise _refused(Code.GET_SOURCE, problem) from problem

    async def source_info(self, name: str) -> SourceInfo:
        """With secrets; stays inside of the data mesh."""
        source = await self.source(name)
        try:
            return await asyncio.to_thread(stored.source_info, source, self._identity.key, await self._configs(source))
        except stored.NotReadable as problem:
            raise MeshProblem(Code.DECODE_INFO, str(problem), Kind.FAILED_PRECONDITION) from None

    async def shown_info(self, source: DomainDataSource) -> Object:
        """What engines are told. A path only where they may go there themselves."""
        info = await asyncio.to_thread(stored.shown, source, self._identity.key, await self._configs(source))
        return {part: fields for part, fields in info.items() if part != "localfs" or source.spec.access_directly}

    async def _configs(self, source: DomainDataSource) -> Mapping[str, str]:
        if not source.spec.info_key:
            return {}
        try:
            return (await self._client.get(CONFIG_MAPS, stored.CONFIG_STORE, self.domain)).data or {}
        except NotFound:
            return {}
        except (ApiError, TransportError) as problem:
            raise _refused(Code.GET_SOURCE, problem) from problem

    # Grants.

    async def grants_of(self, data: str) -> Sequence[DomainDataGrant]:
        """Those that the domain itself gave."""
        try:
            found = (await self._client.list(DOMAIN_DATA_GRANTS, self.domain)).items
        except (ApiError, TransportError) as problem:
            raise _refused(Code.QUERY_GRANT, problem) from problem
        return [each for each in found if each.spec.domain_data_id == data and each.spec.author == self.domain]

    async def grant(self, name: str) -> DomainDataGrant:
        _check_name("domaindatagrant_id", name)
        try:
            return await self._client.get(DOMAIN_DATA_GRANTS, name, self.domain)
        except NotFound as problem:
            sentence = f'there is no DomainDataGrant "{name}"'
            raise MeshProblem(Code.GRANT_NOT_THERE, sentence, Kind.NOT_FOUND) from problem
        except (ApiError, TransportError) as problem:
            raise _refused(Code.QUERY_GRANT, problem) from problem

    async def create_grant(self, name: str, spec: Mapping[str, Any]) -> str:
        name = name or f"domaindatagrant-{uuid.uuid4()}"
        _check_name("domaindatagrant_id", name)
        await self.data(str(spec.get("domainDataID") or ""), Code.CREATE_GRANT)
        signed = self.signed({**spec, "author": self.domain})
        obj: Object = {
            "apiVersion": _API_VERSION,
            "kind": "DomainDataGrant",
            "metadata": {
                "name": name,
                "labels": {
                    labels.KUSCIA_INTERCONN_PROTOCOL_TYPE: "kuscia",
                    labels.KUSCIA_DOMAINDATA_ID: signed["domainDataID"],
                },
                "annotations": {labels.KUSCIA_INITIATOR: self.domain},
            },
            "spec": signed,
        }
        try:
            await self._client.create(DOMAIN_DATA_GRANTS.as_dynamic, obj, self.domain)
        except AlreadyExists as problem:
            raise MeshProblem(Code.GRANT_EXISTS, f'there is a DomainDataGrant "{name}" already') from problem
        except (ApiError, TransportError) as problem:
            raise _refused(Code.CREATE_GRANT, problem) from problem
        return name

    async def update_grant(self, grant: DomainDataGrant, spec: Mapping[str, Any]) -> None:
        merged = {**msgspec.to_builtins(grant.spec), **_given(spec)}
        # Not a merge, which would keep those limits that the new ones do not name.
        steps: list[Object] = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": grant.metadata.resource_version},
            {"op": "replace", "path": "/spec", "value": self.signed({**merged, "author": self.domain})},
        ]
        try:
            await self._client.patch(DOMAIN_DATA_GRANTS, grant.metadata.name, self.domain, steps, type="json")
        except (ApiError, TransportError) as problem:
            raise _refused(Code.UPDATE_GRANT, problem) from problem

    async def delete_grant(self, grant: DomainDataGrant) -> None:
        try:
            await self._client.delete(DOMAIN_DATA_GRANTS, grant.metadata.name, self.domain, uid=grant.metadata.uid)
        except (ApiError, TransportError) as problem:
            raise _refused(Code.DELETE_GRANT, problem) from problem

    def signed(self, spec: Mapping[str, Any]) -> Object:
        """The spec of a grant with the domain's signature."""
        plain = {key: value for key, value in _given(spec).items() if key != "signature"}
        if not plain.get("grantDomain") or plain["grantDomain"] == plain["author"]:
            raise MeshProblem(Code.INVALID, "grant_domain must name another domain")
        try:
            typed = msgspec.convert(plain, DomainDataGrantSpec)
        except msgspec.ValidationError as problem:
            raise MeshProblem(Code.INVALID, f"the grant is not complete: {problem}") from problem
        signature = signatures.sign(grants.signed_text(typed), self._identity.key)
        return {**plain, "signature": base64.b64encode(signature).decode()}


# Pure.


def new_name(text: str) -> str:
    """A name that nobody has: the beginning of what people call it, and 32 random hexadecimal digits."""
    head = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_NAME_PART].strip("-")
    tail = uuid.uuid4().hex
    return f"{head}-{tail}" if head else f"d{tail}"


def file_format(text: str) -> FileFormat:
    return FileFormat.__members__.get(text.upper(), FileFormat.UNKNOWN)


def expiration(seconds: int) -> str | None:
    return rfc3339(datetime.fromtimestamp(seconds, UTC)) if seconds else None


def _given(values: Mapping[str, Any]) -> Object:
    """On the wire nothing tells what is empty from what was left out."""
    return {key: value for key, value in values.items() if value not in ("", None, {}, [], ())}


def _check_name(field: str, name: str) -> None:
    if not name:
        raise MeshProblem(Code.INVALID, f"{field} is missing")
    if dns_subdomain_faults(name):
        raise MeshProblem(
            Code.INVALID, f'{field} "{name[:100]}" is no valid name; take lower-case letters, digits, "-" and "."'
        )


def _labels(spec: Mapping[str, Any]) -> dict[str, str]:
    return {
        labels.KUSCIA_DOMAINDATA_TYPE: _label(spec["type"]),
        labels.KUSCIA_DOMAINDATA_VENDOR: _label(spec["vendor"]),
        labels.KUSCIA_INTERCONN_PROTOCOL_TYPE: "kuscia",
    }


def _label(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[:63].strip("-_.")


def _check(name: str, spec: Mapping[str, Any]) -> None:
    if spec["type"] not in DATA_TYPES:
        raise MeshProblem(Code.INVALID, f'type must be one of {", ".join(DATA_TYPES)}, not "{spec["type"]}"')
    uri = str(spec["relativeURI"])
    if ".." in uri.split("/") or "\0" in uri:
        raise MeshProblem(Code.INVALID, "relative_uri must stay inside of the data source")
    if spec["type"] == "table" and not spec.get("columns"):
        raise MeshProblem(Code.INVALID, "a table needs columns")
    try:
        typed = msgspec.convert(dict(spec), DomainDataSpec)
    except msgspec.ValidationError as problem:
        raise MeshProblem(Code.INVALID, f'DomainData "{name}" is not complete: {problem}') from problem
    if typed.type == "table":
        columns.schema_of(typed.columns or ())
        names = [each.name for each in typed.columns or ()]
        if len(set(names)) < len(names):
            raise MeshProblem(Code.INVALID, "two columns have the same name")


def _replaced(before: Mapping[str, str] | None, after: Any) -> Any:
    """A merge patch that leaves just `after`."""
    return {**dict.fromkeys(before or ()), **(after or {})} if before or after else None


def _refused(code: Code, problem: Exception) -> MeshProblem:
    if isinstance(problem, Invalid):
        return MeshProblem(Code.INVALID, str(problem))
    kind = Kind.INTERNAL if isinstance(problem, ApiError) else Kind.UNAVAILABLE
    return MeshProblem(code, f"the domain's API refuses: {problem}", kind)
