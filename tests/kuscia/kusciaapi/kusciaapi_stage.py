"""A small world that calls can be about: three domains, and one of everything that alice has. Made by the API itself.

alice initiates the job and the service, bob takes part in both, carol in nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from google.protobuf import json_format
from kusciaapi_kit import World, operation

from coterie.kube.api.errors import AlreadyExists
from coterie.kube.api.meta import Object
from coterie.kuscia.api.types.data import DOMAIN_DATA_SOURCES
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.kusciaapi.authorization import OPERATOR, ApiCaller
from coterie.kuscia.kusciaapi.operations import ApiOperation, Mode

PARTIES = [{"domain_id": "alice"}, {"domain_id": "bob"}]
JOB: Object = {
    "job_id": "job",
    "initiator": "alice",
    "tasks": [{"app_image": "engine", "alias": "one", "parties": PARTIES}],
}
ROUTE: Object = {
    "authentication_type": "None",
    "source": "alice",
    "destination": "bob",
    "endpoint": {"host": "10.0.0.2", "ports": [{"name": "http", "port": 1080, "protocol": "HTTP"}]},
}
DATA: Object = {"domaindata_id": "table", "domain_id": "alice", "type": "table", "relative_uri": "table.csv"}
SOURCE: Object = {
    "datasource_id": "disk",
    "domain_id": "alice",
    "type": "mysql",
    "info": {"database": {"endpoint": "db:3306", "user": "u", "database": "d"}},
}
GRANT: Object = {
    "domaindatagrant_id": "grant",
    "domain_id": "alice",
    "domaindata_id": "table",
    "grant_domain": "bob",
}
IMAGE: Object = {
    "name": "engine",
    "image": {"name": "engine", "tag": "1"},
    "deploy_templates": [{"name": "engine", "replicas": 1, "containers": [{"name": "engine", "command": ["true"]}]}],
}
SERVING: Object = {
    "serving_id": "serving",
    "initiator": "alice",
    "serving_input_config": "{}",
    "parties": [{"domain_id": "alice", "app_image": "engine"}, {"domain_id": "bob", "app_image": "engine"}],
}
CONFIG: Object = {"data": [{"key": "colour", "value": "blue"}]}
_MADE = (
    ("CreateAppImage", IMAGE),
    ("CreateDomainRoute", ROUTE),
    ("CreateDomainData", DATA),
    ("CreateDomainDataSource", SOURCE),
    ("CreateDomainDataGrant", GRANT),
    ("CreateConfig", CONFIG),
    ("CreateJob", JOB),
    ("CreateServing", SERVING),
)


_ON_ALICE: Object = {"domain_id": "alice"}
_TABLE: Object = {**_ON_ALICE, "domaindata_id": "table"}
_DISK: Object = {**_ON_ALICE, "datasource_id": "disk"}
_GRANTED: Object = {**_ON_ALICE, "domaindatagrant_id": "grant"}
_WAY: Object = {"source": "alice", "destination": "bob"}
_SERVICE: Object = {"serving_id": "serving"}
_IT: Object = {"job_id": "job"}
REQUESTS: dict[str, Object] = {
    "healthZ": {},
    "CreateDomain": {"domain_id": "dave"},
    "QueryDomain": _ON_ALICE,
    "UpdateDomain": _ON_ALICE,
    "DeleteDomain": {"domain_id": "carol"},
    "BatchQueryDomain": {"domain_ids": ["alice"]},
    "CreateDomainRoute": {**ROUTE, "source": "carol"},
    "DeleteDomainRoute": _WAY,
    "QueryDomainRoute": _WAY,
    "BatchQueryDomainRouteStatus": {"route_keys": [_WAY]},
    "CreateJob": {**JOB, "job_id": "another"},
    "PlanJob": {**JOB, "job_id": "planned", "wait_seconds": 61},
    "QueryJob": _IT,
    "BatchQueryJobStatus": {"job_ids": ["job"]},
    "StopJob": _IT,
    "RestartJob": _IT,
    "SuspendJob": _IT,
    "CancelJob": _IT,
    "DeleteJob": _IT,
    "ApproveJob": {**_IT, "result": "APPROVE_RESULT_ACCEPT"},
    "WatchJob": {"timeout_seconds": 1},
    "QueryBandwidth": _ON_ALICE,
    "SetBandwidthCapacity": {**_ON_ALICE, "peer_id": "bob", "capacity": "100Mbps"},
    "SetBandwidthLimit": {**_IT, **_ON_ALICE, "destination_id": "bob", "limit_kbps": 100},
    "ListEvidence": {"filter": {"kind": "log."}},
    "QueryEvidence": {"index": 0},
    "ProveEvidence": {"index": 0},
    "ExportEvidence": {"filter": {"job_id": "job"}},
    "QueryEvidenceState": {"verify": True},
    "QueryLog": {"task_id": "t"},
    "QueryPodNode": {"task_id": "t", "domain": "alice"},
    "SearchLog": {"job_id": "job", "domain_id": "alice"},
    "AskPartnerLog": {**_IT, **_ON_ALICE, "owner_id": "bob", "reason": "it failed"},
    "QueryPartnerLog": {**_ON_ALICE, "request_id": "asked"},
    "ListPartnerLog": _ON_ALICE,
    "ReviewPartnerLog": {**_ON_ALICE, "request_id": "asked", "decision": "Reject"},
    "DeletePartnerLog": {**_ON_ALICE, "request_id": "asked"},
    "CreateDomainData": {**DATA, "domaindata_id": "another"},
    "UpdateDomainData": DATA,
    "DeleteDomainData": _TABLE,
    "DeleteDomainDataAndRaw": _TABLE,
    "QueryDomainData": {"data": _TABLE},
    "BatchQueryDomainData": {"data": [_TABLE]},
    "ListDomainData": {"data": _ON_ALICE},
    "CreateDomainDataSource": {**SOURCE, "datasource_id": "another"},
    "UpdateDomainDataSource": SOURCE,
    "DeleteDomainDataSource": _DISK,
    "QueryDomainDataSource": _DISK,
    "BatchQueryDomainDataSource": {"data": [_DISK]},
    "ListDomainDataSource": _ON_ALICE,
    "CreateDomainDataGrant": {**GRANT, "domaindatagrant_id": "another"},
    "UpdateDomainDataGrant": GRANT,
    "DeleteDomainDataGrant": _GRANTED,
    "QueryDomainDataGrant": _GRANTED,
    "BatchQueryDomainDataGrant": {"data": [_GRANTED]},
    "ListDomainDataGrant": {"data": _ON_ALICE},
    "CreateServing": {**SERVING, "serving_id": "another"},
    "UpdateServing": {"serving_id": "serving", "serving_input_config": "{}"},
    "DeleteServing": _SERVICE,
    "QueryServing": _SERVICE,
    "BatchQueryServingStatus": {"serving_ids": ["serving"]},
    "CreateAppImage": {**IMAGE, "name": "another"},
    "UpdateAppImage": IMAGE,
    "DeleteAppImage": {"name": "engine"},
    "QueryAppImage": {"name": "engine"},
    "BatchQueryAppImage": {"names": ["engine"]},
    "ListAppImage": {},
    "CreateConfig": {"data": [{"key": "shape", "value": "round"}]},
    "QueryConfig": {"key": "colour"},
    "UpdateConfig": CONFIG,
    "DeleteConfig": {"keys": ["colour"]},
    "BatchQueryConfig": {"keys": ["colour"]},
    "GenerateKeyCerts": {"common_name": "engine"},
}
"""For each operation one that an operator can well make."""


async def prepare(world: World, operations: Sequence[ApiOperation]) -> None:
    """What is missing of it is made; what is there stays as it is."""
    for name in ("alice", "bob", "carol"):
        await _make(world, DOMAINS, {"metadata": {"name": name}, "spec": {}})
        spec = {"name": "default-data-source", "type": "localfs", "uri": str(world.here.paths.data)}
        source = {"metadata": {"name": "default-data-source", "namespace": name}, "spec": spec}
        await _make(world, DOMAIN_DATA_SOURCES, source)
    known = {each.method for each in operations}
    for method, request in _MADE:
        if method in known and (world.here.mode is not Mode.MASTER or method != "CreateDomainDataSource"):
            await call(world, operations, method, request)


async def _make(world: World, kind: Any, obj: Object) -> None:
    resource = kind.resource
    with contextlib.suppress(AlreadyExists):
        await world.client.create(kind.as_dynamic, {"apiVersion": resource.api_version, "kind": resource.kind, **obj})


async def call(
    world: World, operations: Sequence[ApiOperation], method: str, request: Object, caller: ApiCaller = OPERATOR
) -> Object:
    """The answer as JSON."""
    chosen = operation(operations, method)
    asked = json_format.ParseDict(request, chosen.request())
    return json_format.MessageToDict(await chosen.run(world.here, caller, asked), preserving_proto_field_name=True)
