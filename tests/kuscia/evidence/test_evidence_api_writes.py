"""Writes to the API are recorded before they happen; what cannot be recorded does not happen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coterie.http.messages import Request, UserInfo
from coterie.kube.api.errors import ServiceUnavailable
from coterie.kube.apiserver import paths
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.apiserver.write_gate import is_write
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.store import MemoryStore
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EventRequest, EvidenceError
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS
from coterie.kuscia.evidence.api_writes import EvidenceGate, request_of
from coterie.kuscia.extensions import apiserver as kuscia_extension

ANNA = UserInfo("anna", ("system:masters", "system:authenticated"))
CONTROLLERS = UserInfo("system:coterie-controllers", ("system:masters", "system:authenticated"))
BOB = UserInfo("system:serviceaccount:bob:bob", ("system:authenticated",))
KUSCIA_API = UserInfo("system:coterie-kusciaapi", ("system:masters", "system:authenticated"))
KUSCIA = "/apis/kuscia.secretflow/v1alpha1"
GRANTS = "/apis/kuscia.secretflow/v1alpha1/namespaces/alice/domaindatagrants"


class Recorder:
    def __init__(self) -> None:
        self.requests: list[EventRequest] = []
        self.broken = False

    async def record(self, *requests: EventRequest) -> None:
        if self.broken:
            raise EvidenceError("the disk is full")
        self.requests += requests

    @property
    def kinds(self) -> list[str]:
        return [each.event.kind for each in self.requests]


ROWS = [
    (ANNA, "POST", GRANTS, True, evidence.GRANT_MADE),
    (ANNA, "DELETE", f"{GRANTS}/g", True, evidence.GRANT_REVOKED),
    (ANNA, "PATCH", "/apis/kuscia.secretflow/v1alpha1/clusterdomainroutes/r", True, evidence.ROUTE_CHANGED),
    (ANNA, "POST", "/apis/kuscia.secretflow/v1alpha1/namespaces/cross-domain/kusciajobs", True, evidence.JOB_CREATED),
    (
        ANNA,
        "PATCH",
        "/apis/kuscia.secretflow/v1alpha1/namespaces/cross-domain/kusciajobs/j/status",
        True,
        evidence.API_WRITE,
    ),
    (ANNA, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", True, evidence.API_WRITE),
    (ANNA, "POST", "/api/v1/namespaces/alice/secrets", True, evidence.API_WRITE),
    (ANNA, "GET", "/api/v1/namespaces/alice/pods/p/exec", True, evidence.API_WRITE),
    (ANNA, "POST", "/api/v1/namespaces/alice/pods", False, evidence.API_WRITE),
    (CONTROLLERS, "POST", GRANTS, True, evidence.GRANT_MADE),
    (CONTROLLERS, "POST", f"{KUSCIA}/namespaces/bob/kusciajobs", False, evidence.JOB_CREATED),
    (CONTROLLERS, "PATCH", f"{KUSCIA}/namespaces/cross-domain/kusciajobs/j", False, evidence.API_WRITE),
    (CONTROLLERS, "POST", f"{KUSCIA}/namespaces/cross-domain/kusciadeployments", True, evidence.API_WRITE),
    (CONTROLLERS, "PATCH", f"{KUSCIA}/namespaces/cross-domain/kusciadeployments/d", True, evidence.API_WRITE),
    (CONTROLLERS, "PATCH", f"{KUSCIA}/namespaces/cross-domain/kusciadeployments/d/status", False, evidence.API_WRITE),
    (CONTROLLERS, "POST", f"{KUSCIA}/namespaces/bob/kusciadeployments", False, evidence.API_WRITE),
    (
        UserInfo("system:serviceaccount:kube-system:anna"),
        "POST",
        "/api/v1/namespaces/alice/secrets",
        True,
        evidence.API_WRITE,
    ),
    (
        UserInfo("system:kube-scheduler"),
        "POST",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        True,
        evidence.API_WRITE,
    ),
    (BOB, "PATCH", f"{KUSCIA}/namespaces/bob/kusciadeploymentsummaries/d", False, evidence.API_WRITE),
    (BOB, "PATCH", f"{KUSCIA}/namespaces/bob/kusciajobsummaries/j", False, evidence.API_WRITE),
    (BOB, "PATCH", f"{KUSCIA}/namespaces/alice/kusciajobsummaries/j", True, evidence.API_WRITE),
    (ANNA, "PATCH", f"{KUSCIA}/namespaces/bob/kusciajobsummaries/j", True, evidence.API_WRITE),
    (CONTROLLERS, "PATCH", f"{GRANTS}/g/status", False, evidence.API_WRITE),
    (KUSCIA_API, "PATCH", f"{GRANTS}/g/status", True, evidence.API_WRITE),
    (KUSCIA_API, "PATCH", "/api/v1/namespaces/alice/configmaps/domain-config", True, evidence.API_WRITE),
    (ANNA, "PATCH", "/api/v1/namespaces/alice/configmaps/other", False, evidence.API_WRITE),
    (ANNA, "POST", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", True, evidence.API_WRITE),
    (ANNA, "POST", "/apis/kuscia.secretflow/v1alpha1/appimages", True, evidence.ENGINE_CHANGED),
    (ANNA, "PATCH", "/apis/kuscia.secretflow/v1alpha1/domains/bob", True, evidence.CERTIFICATE_CHANGED),
    (ANNA, "POST", f"{KUSCIA}/namespaces/bob/logrequests", True, evidence.LOGS_ASKED),
    (ANNA, "POST", f"{KUSCIA}/namespaces/alice/jobplanrequests", True, evidence.PLAN_ASKED),
    (CONTROLLERS, "POST", f"{KUSCIA}/namespaces/bob/jobplanrequests", True, evidence.PLAN_ASKED),
    (CONTROLLERS, "PATCH", f"{KUSCIA}/namespaces/alice/jobplanrequests/p/status", True, evidence.PLAN_ANSWERED),
    (ANNA, "DELETE", f"{KUSCIA}/namespaces/alice/jobplanrequests/p", True, evidence.API_WRITE),
    (ANNA, "PATCH", f"{KUSCIA}/namespaces/bob/logrequests/r", True, evidence.API_WRITE),
    (ANNA, "POST", "/api/v1/namespaces/alice/serviceaccounts/a/token", True, evidence.API_WRITE),
    (ANNA, "POST", "/api/v1/namespaces/alice/pods/p/portforward", True, evidence.API_WRITE),
    (CONTROLLERS, "POST", "/api/v1/namespaces/alice/secrets", False, evidence.API_WRITE),
    (
        UserInfo("system:apiserver"),
        "POST",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        False,
        evidence.API_WRITE,
    ),
]


@pytest.mark.parametrize(("user", "method", "path", "recorded", "kind"), ROWS)
def test_what_is_recorded(user: UserInfo, method: str, path: str, recorded: bool, kind: str) -> None:
    target = paths.parse(method, path)
    assert target is not None
    assert is_write(target)
    assert EvidenceGate(Recorder()).wants(user, target) is recorded
    assert request_of(user, target, b"{}").event.kind == kind


def test_neither_body_nor_names_are_in_the_event() -> None:
    target = paths.parse("POST", GRANTS)
    assert target is not None
    request = request_of(ANNA, target, b'{"metadata": {"name": "salaries"}, "spec": {"password": "hunter2"}}')
    written = evidence.encode(request.event)
    assert not [word for word in (b"anna", b"salaries", b"hunter2", b"alice") if word in written]
    assert request.object_name.startswith("alice/salaries#")


def test_a_changed_engine_is_recorded_with_version_and_digest() -> None:
    target = paths.parse("POST", f"{KUSCIA}/appimages")
    assert target is not None
    body = b"""{"metadata": {"name": "x", "annotations": {"coterie.io/engine": "psi", "coterie.io/engine-version": "0.6", "a": "b"}},
        "spec": {"image": {"name": "y", "tag": "z", "id": "sha256:12"}}}"""
    event = request_of(ANNA, target, body).event
    assert event.kind == evidence.ENGINE_CHANGED
    assert event.more == {"engine": "psi", "version": "0.6", "digest": "sha256:12"}
    assert request_of(ANNA, target, b"not json").event.more == {}


def test_tables_that_an_action_may_read_are_recorded_with_it() -> None:
    actions = "/apis/coterie.io/v1alpha1/namespaces/alice/actions"
    body = b'{"metadata": {"name": "spend"}, "spec": {"script": "x", "tables": ["customers", "orders"]}}'
    for method, path, given, wanted in (
        ("POST", actions, body, ("customers", "orders")),
        ("PATCH", f"{actions}/spend", b'{"spec": {"tables": ["orders"]}}', ("orders",)),
        ("PATCH", f"{actions}/spend", b'{"spec": {"tables": null}}', ()),
        ("POST", actions, b'{"spec": {"script": "x"}}', ()),
        ("POST", actions, b'{"spec": {"tables": 5}}', ()),
        ("POST", "/apis/coterie.io/v1alpha1/namespaces/alice/triggers", body, ()),
        ("DELETE", f"{actions}/spend", b"", ()),
    ):
        target = paths.parse(method, path)
        assert target is not None and EvidenceGate(Recorder()).wants(ANNA, target)
        request = request_of(ANNA, target, given)
        assert (request.event.kind, request.tables) == (evidence.API_WRITE, wanted)
        assert b"orders" not in evidence.encode(request.event)


@pytest.fixture
async def server() -> Any:
    recorder = Recorder()
    store = MemoryStore()
    await store.open()
    made = ApiServer(store, Settings(extensions=[kuscia_extension.KUSCIA], write_gate=EvidenceGate(recorder)))
    await made.start()
    recorder.requests.clear()
    yield made, recorder
    await made.stop()
    await store.close()


async def test_before_the_write_and_not_without_it(server: tuple[ApiServer, Recorder]) -> None:
    made, recorder = server
    client = Client(InProcessTransport(made.handle, ANNA))
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "alice"}}
    request = Request("POST", "/api/v1/namespaces", body=json.dumps(namespace).encode(), user=ANNA)
    assert (await made.call(request)).status == 201
    assert recorder.kinds == [evidence.API_WRITE]
    recorder.broken = True
    spec = {"author": "alice", "domainDataID": "t", "grantDomain": "bob"}
    grant = {"metadata": {"name": "g", "namespace": "alice"}, "spec": spec}
    with pytest.raises(ServiceUnavailable, match="disk is full"):
        await client.create(DOMAIN_DATA_GRANTS.as_dynamic, grant)
    recorder.broken = False
    assert await client.list(DOMAIN_DATA_GRANTS.as_dynamic, "alice") is not None
    await client.create(DOMAIN_DATA_GRANTS.as_dynamic, grant)
    assert recorder.kinds == [evidence.API_WRITE, evidence.GRANT_MADE]


async def test_a_dry_run_is_no_event(server: tuple[ApiServer, Recorder]) -> None:
    made, recorder = server
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "dry"}}
    request = Request("POST", "/api/v1/namespaces", query="dryRun=All", body=json.dumps(namespace).encode(), user=ANNA)
    assert (await made.call(request)).status == 201
    assert recorder.kinds == []


async def test_acting_as_a_controller_does_not_hide_who_acts(server: tuple[ApiServer, Recorder]) -> None:
    made, recorder = server
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "r"}, "rules": []}
    request = Request(
        "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", body=json.dumps(role).encode(), user=CONTROLLERS
    )
    request.impersonator = ANNA
    assert (await made.call(request)).status == 201
    assert [each.person for each in recorder.requests] == ["anna"]
