"""Who may do what, where: every operation against every role.

Three columns are operators of nodes: on a master, in a domain of its own (autonomy), on a lite. Three are domains that call
the master through its gateway: alice, whose things they are, bob, who takes part in them, and carol, who has nothing
to do with them. See `kusciaapi_stage` for the things.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from kusciaapi_kit import World, domain_caller, here, operation
from kusciaapi_stage import REQUESTS, prepare

from coterie.kube.api.meta import Object
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS, DOMAIN_DATA_SOURCES, DOMAIN_DATAS
from coterie.kuscia.api.types.deployment import KUSCIA_DEPLOYMENTS
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES
from coterie.kuscia.api.types.job import APP_IMAGES, KUSCIA_JOBS
from coterie.kuscia.kusciaapi.authorization import OPERATOR, ApiCaller
from coterie.kuscia.kusciaapi.dispatcher import Dispatcher
from coterie.kuscia.kusciaapi.operations import ApiOperation, Mode
from coterie.kuscia.kusciaapi.table import OPERATIONS

OK = 0
NO, INVALID = 11102, 11100
NOT_ON_LITE, NOT_ON_MASTER = 11104, 11105
ASKS = "asks its master"
ALL, NONE = (OK, OK, OK), (NO, NO, NO)
Cell = int | str


@dataclass(frozen=True)
class Row:
    operators: tuple[Cell, Cell, Cell]
    """On a master, in a domain of its own, on a lite."""
    domains: tuple[Cell, Cell, Cell]
    """alice, bob, carol."""


ROW_OF_JOB = ((OK, OK, ASKS), (OK, OK, NO))
MATRIX: dict[str, Row] = {
    "healthZ": Row(ALL, NONE),
    # Domains: each sees its own, nobody makes or removes any but operators.
    "CreateDomain": Row((OK, OK, NOT_ON_LITE), NONE),
    "QueryDomain": Row((OK, OK, ASKS), (OK, NO, NO)),
    "UpdateDomain": Row((OK, OK, ASKS), (OK, NO, NO)),
    "DeleteDomain": Row((OK, OK, NOT_ON_LITE), NONE),
    "BatchQueryDomain": Row((OK, OK, ASKS), (OK, NO, NO)),
    # Routes: the destination opens them, both ends see them.
    "CreateDomainRoute": Row((OK, OK, ASKS), (NO, OK, NO)),
    "DeleteDomainRoute": Row((OK, OK, ASKS), (NO, OK, NO)),
    "QueryDomainRoute": Row((OK, OK, ASKS), (OK, OK, NO)),
    "BatchQueryDomainRouteStatus": Row((OK, OK, ASKS), (OK, OK, NO)),
    # Jobs: the initiator begins them, whoever takes part does the rest. Strangers are not told whether there is one.
    "CreateJob": Row((OK, OK, ASKS), (OK, NO, NO)),
    # Nobody runs controllers here, so who may ask learns that the wait is too long.
    "PlanJob": Row((INVALID, INVALID, ASKS), (INVALID, NO, NO)),
    "QueryJob": Row((OK, OK, ASKS), (OK, OK, 11202)),
    "BatchQueryJobStatus": Row((OK, OK, ASKS), (OK, OK, 11203)),
    "StopJob": Row(*ROW_OF_JOB),
    "RestartJob": Row((11211, 11211, ASKS), (11211, 11211, NO)),
    "SuspendJob": Row((11210, 11210, ASKS), (11210, 11210, NO)),
    "CancelJob": Row(*ROW_OF_JOB),
    "DeleteJob": Row(*ROW_OF_JOB),
    "ApproveJob": Row((11206, 11206, ASKS), (11206, 11206, NO)),
    "WatchJob": Row(("job", "job", ASKS), ("job", "job", "nothing")),
    # Bandwidth: a domain's own nodes, links and parties. No task of the job runs here.
    "QueryBandwidth": Row((OK, OK, ASKS), (OK, NO, NO)),
    "SetBandwidthCapacity": Row((OK, OK, ASKS), (OK, NO, NO)),
    "SetBandwidthLimit": Row((13901, 13901, ASKS), (13901, NO, NO)),
    # Evidence: the operator's, of this domain. There is no log on the stage.
    "ListEvidence": Row((13920, 13920, 13920), NONE),
    "QueryEvidence": Row((13920, 13920, 13920), NONE),
    "ProveEvidence": Row((13921, 13921, 13921), NONE),
    "ExportEvidence": Row((13922, 13922, 13922), NONE),
    "QueryEvidenceState": Row((13920, 13920, 13920), NONE),
    # Output of tasks stays where it was printed.
    "QueryLog": Row((NOT_ON_MASTER, 13200, 13200), (NOT_ON_MASTER, NOT_ON_MASTER, NOT_ON_MASTER)),
    "QueryPodNode": Row((13201, 13201, ASKS), (13201, NO, NO)),
    "SearchLog": Row((OK, OK, OK), NONE),
    # Log requests: each domain's own. There is none yet.
    "AskPartnerLog": Row((OK, OK, ASKS), (OK, NO, NO)),
    "QueryPartnerLog": Row((13910, 13910, ASKS), (13910, NO, NO)),
    "ListPartnerLog": Row((OK, OK, ASKS), (OK, NO, NO)),
    "ReviewPartnerLog": Row((13912, 13912, ASKS), (13912, NO, NO)),
    "DeletePartnerLog": Row((13912, 13912, ASKS), (13912, NO, NO)),
    # Data: a domain's own. What is granted, and where it lies, is decided at home.
    "CreateDomainData": Row(ALL, (OK, NO, NO)),
    "UpdateDomainData": Row(ALL, (OK, NO, NO)),
    "DeleteDomainData": Row(ALL, (OK, NO, NO)),
    "DeleteDomainDataAndRaw": Row((11501, OK, OK), NONE),
    "QueryDomainData": Row(ALL, (OK, NO, NO)),
    "BatchQueryDomainData": Row(ALL, (OK, NO, NO)),
    "ListDomainData": Row(ALL, (OK, NO, NO)),
    "CreateDomainDataSource": Row((INVALID, OK, OK), NONE),
    "UpdateDomainDataSource": Row((INVALID, OK, OK), NONE),
    "DeleteDomainDataSource": Row((INVALID, OK, OK), NONE),
    "QueryDomainDataSource": Row((INVALID, OK, OK), NONE),
    "BatchQueryDomainDataSource": Row((INVALID, OK, OK), NONE),
    "ListDomainDataSource": Row((INVALID, OK, OK), NONE),
    "CreateDomainDataGrant": Row(ALL, NONE),
    "UpdateDomainDataGrant": Row(ALL, NONE),
    "DeleteDomainDataGrant": Row(ALL, NONE),
    "QueryDomainDataGrant": Row(ALL, NONE),
    "BatchQueryDomainDataGrant": Row(ALL, NONE),
    "ListDomainDataGrant": Row(ALL, NONE),
    # Services: as jobs.
    "CreateServing": Row((OK, OK, ASKS), (OK, NO, NO)),
    "UpdateServing": Row((OK, OK, ASKS), (OK, NO, NO)),
    "DeleteServing": Row((OK, OK, ASKS), (OK, NO, NO)),
    "QueryServing": Row((OK, OK, ASKS), (OK, OK, 11601)),
    "BatchQueryServingStatus": Row((OK, OK, ASKS), (OK, OK, OK)),
    # Engines, values and keys are the operator's.
    "CreateAppImage": Row((OK, OK, NOT_ON_LITE), NONE),
    "UpdateAppImage": Row((OK, OK, NOT_ON_LITE), NONE),
    "DeleteAppImage": Row((OK, OK, NOT_ON_LITE), NONE),
    "QueryAppImage": Row((OK, OK, NOT_ON_LITE), NONE),
    "BatchQueryAppImage": Row((OK, OK, NOT_ON_LITE), NONE),
    "ListAppImage": Row((OK, OK, NOT_ON_LITE), NONE),
    "CreateConfig": Row(ALL, NONE),
    "QueryConfig": Row(ALL, NONE),
    "UpdateConfig": Row(ALL, NONE),
    "DeleteConfig": Row(ALL, NONE),
    "BatchQueryConfig": Row(ALL, NONE),
    "GenerateKeyCerts": Row(ALL, NONE),
}
COLUMNS: dict[str, tuple[Mode, ApiCaller]] = {
    "operator of a master": (Mode.MASTER, OPERATOR),
    "operator of a domain of its own": (Mode.AUTONOMY, OPERATOR),
    "operator of a lite": (Mode.LITE, OPERATOR),
    "alice": (Mode.MASTER, domain_caller("alice")),
    "bob": (Mode.MASTER, domain_caller("bob")),
    "carol": (Mode.MASTER, domain_caller("carol")),
}
_MADE_ANEW = (
    (KUSCIA_JOBS, "cross-domain"),
    (KUSCIA_DEPLOYMENTS, "cross-domain"),
    (DOMAIN_DATA_GRANTS, "alice"),
    (DOMAIN_DATAS, "alice"),
    (DOMAIN_DATA_SOURCES, "alice"),
    (CLUSTER_DOMAIN_ROUTES, ""),
    (APP_IMAGES, ""),
)


METHODS = [each.method for each in OPERATIONS]


def test_every_operation_has_its_row() -> None:
    assert set(METHODS) == set(MATRIX) == set(REQUESTS)


class Master:
    """Stands for the way to a master."""

    async def ask(self, operation: ApiOperation, request: Any) -> Any:
        return operation.response()

    async def listen(self, operation: ApiOperation, request: Any) -> AsyncIterator[Any]:
        yield operation.response()


@pytest.mark.parametrize("column", COLUMNS)
async def test_the_column(column: str, tmp_path: Path) -> None:
    mode, caller = COLUMNS[column]
    at = list(COLUMNS).index(column)
    own = "kuscia-system" if mode is Mode.MASTER else "alice"
    found: dict[str, Cell] = {}
    async with here(tmp_path, mode=mode, domain=own, namespaces=("alice", "bob", "carol")) as world:
        file = world.here.paths.data / "table.csv"
        for method in METHODS:
            await afresh(world)
            file.write_text("id\n1\n")
            found[method] = await outcome(world, caller, operation(OPERATIONS, method), REQUESTS[method])
    assert found == {method: (*row.operators, *row.domains)[at] for method, row in MATRIX.items() if method in METHODS}


async def afresh(world: World) -> None:
    for kind, namespace in _MADE_ANEW:
        await world.client.delete_collection(kind, namespace)
    await prepare(world, OPERATIONS)


async def outcome(world: World, caller: ApiCaller, chosen: ApiOperation, request: Object) -> Cell:
    """The code; of what goes to the master, that it does; of a watch, what is seen first."""
    asked_master: list[str] = []

    class Asked(Master):
        async def ask(self, operation: ApiOperation, request: Any) -> Any:
            asked_master.append(operation.method)
            return await super().ask(operation, request)

        async def listen(self, operation: ApiOperation, request: Any) -> AsyncIterator[Any]:
            asked_master.append(operation.method)
            async for piece in super().listen(operation, request):
                yield piece

    desk = Dispatcher(world.here, Asked() if world.here.mode is Mode.LITE else None)  # type: ignore[arg-type]
    asked = json_format.ParseDict(request, chosen.request())
    answer: Any = None
    if chosen.stream is None:
        answer = await desk.answer(chosen, caller, asked)
    else:
        async with contextlib.aclosing(desk.pieces(chosen, caller, asked)) as pieces:
            answer = await anext(pieces, None)
    if asked_master:
        return ASKS
    if answer is None:
        return "nothing"
    return answer.object.job_id if chosen.method == "WatchJob" else answer.status.code


async def test_what_is_not_ones_own_is_left_out_of_lists(tmp_path: Path) -> None:
    names = ("alice", "bob", "carol")
    async with here(tmp_path, mode=Mode.MASTER, domain="kuscia-system", namespaces=names) as world:
        await prepare(world, OPERATIONS)
        asked = REQUESTS["BatchQueryServingStatus"]
        seen = {
            name: (
                await world.call(OPERATIONS, "BatchQueryServingStatus", caller=domain_caller(name), **asked)
            ).data.servings
            for name in names
        }
        assert {name: [each.serving_id for each in found] for name, found in seen.items()} == {
            "alice": ["serving"],
            "bob": ["serving"],
            "carol": [],
        }
