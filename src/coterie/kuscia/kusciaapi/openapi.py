"""The HTTP side of KusciaAPI told as an OpenAPI 3.1 document. Pure: from the table of operations and their messages.

    document(OPERATIONS) ──> GET /openapi.json, `coterie api openapi`

What is said of a message is what protobuf-JSON takes and gives: a number of 64 bits is text in answers and may be
either in requests, an enumeration is its name, in streams its number. Which fields must be given is the one thing that
messages do not tell; `REQUIRED` does, and a test asks the services whether they agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from coterie import __version__
from coterie.kube.api.meta import Object
from coterie.kuscia.kusciaapi.operations import ApiOperation, OnLite

VERSION = "3.1.0"
_ANY = "google.protobuf.Any"
_INTRODUCTION = """\
Every call is a POST with a JSON body; `application/x-protobuf` is taken and given too. Names may be written as here or in
lowerCamelCase; fields that are not known are ignored. What is refused is answered with HTTP 200 and a `status.code` other
than 0: 11100 for a field that is wrong, which `status.message` names, 11101 for a body that cannot be read. Without the right
`Token` the answer is 401 without a body."""
_STREAM = (
    "The answer is a stream: JSON objects, one behind the other without anything between them, each of this form. "
    "Fields without a value are left out and enumerations are numbers. A stream that fails ends with an object that "
    "has a `status`."
)
_ON_LITE = {
    OnLite.HERE: "",
    OnLite.FORWARD: "A lite asks its master.",
    OnLite.REFUSE: "Not to be had on a lite (11104).",
}

REQUIRED: dict[str, tuple[str, ...]] = {
    "CreateDomainRequest": ("domain_id",),
    "QueryDomainRequest": ("domain_id",),
    "UpdateDomainRequest": ("domain_id",),
    "DeleteDomainRequest": ("domain_id",),
    "BatchQueryDomainRequest": ("domain_ids",),
    "CreateDomainRouteRequest": ("authentication_type", "source", "destination"),
    "DeleteDomainRouteRequest": ("source", "destination"),
    "QueryDomainRouteRequest": ("source", "destination"),
    "BatchQueryDomainRouteStatusRequest": ("route_keys",),
    "DomainRouteKey": ("source", "destination"),
    "RouteEndpoint": ("host", "ports"),
    "EndpointPort": ("port",),
    "CreateJobRequest": ("job_id", "initiator", "tasks"),
    "PlanJobRequest": ("job_id", "initiator", "tasks"),
    "Task": ("app_image", "alias", "parties"),
    "Party": ("domain_id",),
    "BandwidthLimit": ("destination_id", "limit_kbps"),
    "QueryJobRequest": ("job_id",),
    "BatchQueryJobStatusRequest": ("job_ids",),
    "StopJobRequest": ("job_id",),
    "RestartJobRequest": ("job_id",),
    "SuspendJobRequest": ("job_id",),
    "CancelJobRequest": ("job_id",),
    "DeleteJobRequest": ("job_id",),
    "ApproveJobRequest": ("job_id", "result"),
    "QueryBandwidthRequest": ("domain_id",),
    "SetBandwidthCapacityRequest": ("domain_id",),
    "SetBandwidthLimitRequest": ("job_id", "domain_id", "destination_id"),
    "QueryLogRequest": ("task_id",),
    "QueryPodNodeRequest": ("task_id",),
    "SearchLogRequest": ("job_id",),
    "AskPartnerLogRequest": ("domain_id", "owner_id", "job_id", "reason"),
    "QueryPartnerLogRequest": ("domain_id", "request_id"),
    "ListPartnerLogRequest": ("domain_id",),
    "ReviewPartnerLogRequest": ("domain_id", "request_id", "decision"),
    "DeletePartnerLogRequest": ("domain_id", "request_id"),
    "CreateDomainDataRequest": ("domain_id", "type", "relative_uri"),
    "UpdateDomainDataRequest": ("domain_id", "domaindata_id"),
    "DeleteDomainDataRequest": ("domain_id", "domaindata_id"),
    "QueryDomainDataRequest": ("data",),
    "QueryDomainDataRequestData": ("domain_id", "domaindata_id"),
    "BatchQueryDomainDataRequest": ("data",),
    "ListDomainDataRequest": ("data",),
    "ListDomainDataRequestData": ("domain_id",),
    "CreateDomainDataSourceRequest": ("domain_id", "type"),
    "UpdateDomainDataSourceRequest": ("domain_id", "datasource_id"),
    "DeleteDomainDataSourceRequest": ("domain_id", "datasource_id"),
    "QueryDomainDataSourceRequest": ("domain_id", "datasource_id"),
    "BatchQueryDomainDataSourceRequest": ("data",),
    "QueryDomainDataSourceRequestData": ("domain_id", "datasource_id"),
    "ListDomainDataSourceRequest": ("domain_id",),
    "CreateDomainDataGrantRequest": ("domain_id", "domaindata_id", "grant_domain"),
    "UpdateDomainDataGrantRequest": ("domain_id", "domaindatagrant_id"),
    "DeleteDomainDataGrantRequest": ("domain_id", "domaindatagrant_id"),
    "QueryDomainDataGrantRequest": ("domain_id", "domaindatagrant_id"),
    "BatchQueryDomainDataGrantRequest": ("data",),
    "QueryDomainDataGrantRequestData": ("domain_id", "domaindatagrant_id"),
    "ListDomainDataGrantRequest": ("data",),
    "ListDomainDataGrantRequestData": ("domain_id",),
    "CreateAppImageRequest": ("name", "image", "deploy_templates"),
    "UpdateAppImageRequest": ("name", "image"),
    "AppImageInfo": ("name", "tag"),
    "DeployTemplate": ("name", "containers"),
    "Container": ("name",),
    "DeleteAppImageRequest": ("name",),
    "QueryAppImageRequest": ("name",),
    "BatchQueryAppImageRequest": ("names",),
    "CreateServingRequest": ("serving_id", "initiator", "parties"),
    "ServingParty": ("domain_id",),
    "UpdateServingRequest": ("serving_id",),
    "QueryServingRequest": ("serving_id",),
    "DeleteServingRequest": ("serving_id",),
    "BatchQueryServingStatusRequest": ("serving_ids",),
    "CreateConfigRequest": ("data",),
    "UpdateConfigRequest": ("data",),
    "ConfigData": ("key",),
    "QueryConfigRequest": ("key",),
    "DeleteConfigRequest": ("keys",),
    "BatchQueryConfigRequest": ("keys",),
    "GenerateKeyCertsRequest": ("common_name",),
}
"""Fields without which a request is refused (11100), by message."""
EITHER: dict[str, tuple[str, ...]] = {
    "CreateDomainRouteRequest": ("endpoint", "transit"),
    "SetBandwidthCapacityRequest": ("node_name", "peer_id"),
    "CreateDomainDataSourceRequest": ("info", "info_key"),
}
"""Fields of which one is required."""


def document(operations: Sequence[ApiOperation]) -> Object:
    named: dict[str, Object] = {}
    paths = {each.path: {"post": _operation(each, named)} for each in operations}
    services = dict.fromkeys(each.service for each in operations)
    return {
        "openapi": VERSION,
        "info": {
            "title": "KusciaAPI of Coterie",
            "version": __version__,
            "summary": "What platforms drive a domain by",
            "description": _INTRODUCTION,
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "tags": [{"name": service} for service in services],
        "paths": paths,
        "components": {
            "schemas": {name: named[name] for name in sorted(named)},
            "securitySchemes": {
                "token": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Token",
                    "description": "What `var/certs/token` of the node says. With `protocol: MTLS` a client "
                    "certificate signed by the domain is needed as well; with `protocol: NOTLS` neither is asked for.",
                }
            },
        },
    }


def _operation(operation: ApiOperation, named: dict[str, Object]) -> Object:
    request, response = operation.request.DESCRIPTOR, operation.response.DESCRIPTOR
    streams = operation.stream is not None
    answer: Object = {
        "description": _STREAM if streams else "Done, or refused: see `status.code`.",
        "content": _content(response, named),
    }
    if streams:
        answer["x-stream"] = True
    return {
        "operationId": operation.method,
        "tags": [operation.service],
        "summary": split_camel_case(operation.method),
        "description": _description(operation),
        "requestBody": {"required": True, "content": _content(request, named)},
        "responses": {
            "200": answer,
            "401": {"description": "The token is missing or wrong, or is not for this operation."},
        },
        "x-failure-code": int(operation.failure),
    }


def _description(operation: ApiOperation) -> str:
    sentences = [
        f"`{operation.service}/{operation.method}` of the gRPC port.",
        _ON_LITE[operation.on_lite],
        "" if operation.on_master else "Not to be had on a master (11105).",
        "Other domains may call it through the gateway, for what is their own." if operation.for_domains else "",
        f"What fails without a code of its own has {int(operation.failure)}.",
    ]
    return " ".join(filter(None, sentences))


def split_camel_case(name: str) -> str:
    """`BatchQueryDomainData` -> `Batch query domain data`."""
    return " ".join(re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)).capitalize()


def _content(message: Descriptor, named: dict[str, Object]) -> Object:
    return {"application/json": {"schema": _reference(message, named)}}


# Schemas of messages.


def _reference(of: Descriptor | EnumDescriptor, named: dict[str, Object]) -> Object:
    """To the schema of that name, which is made when it is not there yet. Messages may contain themselves."""
    name = short(of.full_name)
    if name not in named:
        named[name] = {}
        named[name] = _enumeration(of) if isinstance(of, EnumDescriptor) else _message(of, named)
    return {"$ref": f"#/components/schemas/{name}"}


def short(full_name: str) -> str:
    """Without the package: `kuscia.proto.api.v1alpha1.kusciaapi.JobState.State` -> `JobState.State`."""
    parts = full_name.split(".")
    return ".".join(part for part in parts if part[:1].isupper()) or parts[-1]


def _message(of: Descriptor, named: dict[str, Object]) -> Object:
    if of.full_name == _ANY:
        return {
            "type": "object",
            "properties": {"@type": {"type": "string", "description": "Which message it is."}},
            "required": ["@type"],
        }
    out: Object = {"type": "object", "properties": {each.name: _field(each, named) for each in of.fields}}
    required = REQUIRED.get(short(of.full_name), ())
    if required:
        out["required"] = list(required)
    if either := EITHER.get(short(of.full_name)):
        out["anyOf"] = [{"required": [name]} for name in either]
    return out


def _field(field: FieldDescriptor, named: dict[str, Object]) -> Object:
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        value = _single(entry.fields_by_name["value"], named)
        return {"type": "object", "additionalProperties": value}
    one = _single(field, named)
    return {"type": "array", "items": one} if _repeated(field) else one


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated)


_UNSIGNED, _SIGNED = r"^\d{1,20}$", r"^-?\d{1,19}$"
_SCALARS: dict[int, Object] = {
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    FieldDescriptor.TYPE_FLOAT: {"type": "number", "format": "float"},
    FieldDescriptor.TYPE_DOUBLE: {"type": "number", "format": "double"},
    FieldDescriptor.TYPE_INT32: {"type": "integer", "format": "int32", "minimum": -(2**31), "maximum": 2**31 - 1},
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "format": "int64", "minimum": 0, "maximum": 2**32 - 1},
    FieldDescriptor.TYPE_INT64: {
        "anyOf": [
            {"type": "string", "format": "int64", "pattern": _SIGNED},
            {"type": "integer", "format": "int64", "minimum": -(2**63), "maximum": 2**63 - 1},
        ]
    },
    FieldDescriptor.TYPE_UINT64: {
        "anyOf": [
            {"type": "string", "format": "uint64", "pattern": _UNSIGNED},
            {"type": "integer", "format": "uint64", "minimum": 0, "maximum": 2**64 - 1},
        ]
    },
}


def _single(field: FieldDescriptor, named: dict[str, Object]) -> Object:
    of: Any = field.message_type or field.enum_type
    return _reference(of, named) if of is not None else dict(_SCALARS[field.type])


def _enumeration(of: EnumDescriptor) -> Object:
    names = [value.name for value in of.values]
    numbers = sorted({value.number for value in of.values})
    return {
        "anyOf": [{"type": "string", "enum": names}, {"type": "integer", "enum": numbers}],
        "description": _listed(f"{value.number} {value.name}" for value in of.values),
    }


def _listed(items: Iterable[str]) -> str:
    return ", ".join(items)
