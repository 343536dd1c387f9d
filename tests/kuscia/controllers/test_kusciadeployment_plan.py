"""What happens to a deployment next: one row for each line of the table in `plan.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from job_world import an_image
from serving_world import a_party, a_serving

from coterie.kube.api.meta import ApiObject, Object
from coterie.kube.api.types.apps import DEPLOYMENTS, Deployment
from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kube.api.types.network import SERVICES
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.deployment import KusciaDeployment
from coterie.kuscia.api.types.job import AppImage
from coterie.kuscia.controllers.kusciadeployment.plan import (
    Plan,
    View,
    WantedObject,
    allocated_ports,
    failed_status,
    plan,
)
from coterie.kuscia.controllers.kusciadeployment.status import Explanation

NOW = "2026-01-01T00:00:00Z"
KINDS = {kind.resource.plural: kind for kind in (SERVICES, DEPLOYMENTS, CONFIG_MAPS)}


def a_view(body: Object | None = None, *, own: tuple[str, ...] = ("alice",), **meta: Any) -> View:
    """As the controller sees a new deployment. `own`: the domains that are hosted here."""
    body = body or a_serving("alice", "bob")
    body = {**body, "metadata": {**body["metadata"], "uid": "u1", **meta}}
    deployment = msgspec.convert(body, KusciaDeployment)
    return View(
        deployment=deployment,
        own=own,
        initiates=deployment.spec.initiator in own,
        images={"engine": msgspec.convert(an_image(), AppImage)},
        objects={},
        pods=(),
        ports={(each.domain_id, each.role): each.named_port or {} for each in allocated_ports(deployment)},
        now=NOW,
    )


def with_numbers(view: View) -> View:
    """As after the ports were allocated."""
    return replace(
        view,
        ports={
            key: {name: 20000 + place for place, name in enumerate(names)} for key, names in plan(view).allocate.items()
        },
    )


def marked(view: View) -> View:
    """As after the finalizer and the annotations were written."""
    view = with_numbers(view)
    mark = plan(view).mark
    assert mark is not None
    meta = msgspec.structs.replace(
        view.deployment.metadata, annotations=mark["annotations"], finalizers=tuple(mark["finalizers"])
    )
    return replace(view, deployment=msgspec.structs.replace(view.deployment, metadata=meta))


def object_of(wanted: WantedObject) -> ApiObject:
    body = {**wanted.body, "metadata": {**wanted.body["metadata"], "uid": "made"}}
    return msgspec.convert(body, wanted.kind.type, strict=False)  # type: ignore[no-any-return]


def made(view: View) -> View:
    """As after all objects were created."""
    view = marked(view)
    objects: dict[str, dict[tuple[str, str], ApiObject]] = {plural: {} for plural in KINDS}
    for wanted in plan(view).ensure:
        found = object_of(wanted)
        objects[wanted.kind.resource.plural][found.metadata.namespace, found.metadata.name] = found
    return replace(view, objects=objects)


def other_image(view: View) -> View:
    body = an_image()
    body["spec"]["image"]["tag"] = "other"
    return replace(view, images={"engine": msgspec.convert(body, AppImage)})


def scaled_by_hand(view: View) -> View:
    ((place, found),) = view.deployments.items()
    scaled = msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, replicas=7))
    return replace(view, objects={**view.objects, "deployments": {place: scaled}})


def with_leftover(view: View) -> View:
    gone = msgspec.convert({"metadata": {"name": "s-gone", "namespace": "alice", "uid": "x"}}, Deployment)
    places = {**view.objects["deployments"], ("alice", "s-gone"): gone}
    return replace(view, objects={**view.objects, "deployments": places})


def shape(made_plan: Plan) -> tuple[str, ...]:
    """Which parts of a plan are filled, in their order."""
    return tuple(name for name in Plan.__dataclass_fields__ if getattr(made_plan, name))


DELETED: Object = {"deletionTimestamp": NOW}
ROWS: list[tuple[str, Callable[[], View], tuple[str, ...]]] = [
    ("deleted", lambda: a_view(**DELETED, finalizers=[labels.FINALIZER_DEPLOYMENT]), ("remove",)),
    ("deleted, finalizer of another", lambda: a_view(**DELETED, finalizers=["x"]), ()),
    ("nobody is hosted here", lambda: a_view(own=()), ()),
    ("only the initiator is hosted here", lambda: replace(a_view(own=()), initiates=True), ("mark",)),
    ("invalid", lambda: a_view(a_serving("alice", initiator="zoe")), ("failure",)),
    ("no image", lambda: replace(a_view(), images={}), ("failure",)),
    ("new", a_view, ("allocate",)),
    ("ports have numbers", lambda: with_numbers(a_view()), ("mark",)),
    ("marked", lambda: marked(a_view()), ("ensure", "status")),
    ("made", lambda: made(a_view()), ("status",)),
    ("made from another image", lambda: other_image(made(a_view())), ("ensure", "status")),
    ("scaled by hand", lambda: scaled_by_hand(made(a_view())), ("ensure", "status")),
    ("something is left over", lambda: with_leftover(made(a_view())), ("delete", "status")),
]


def test_a_demanded_runtime_class_reaches_the_pods_and_replaces_them() -> None:
    """Whatever the parties say: a class is not among what a partner may name."""
    party = a_party("alice", template={"spec": {"runtimeClassName": "runp"}})
    view = replace(marked(a_view(a_serving(party, "bob", initiator="bob"))), runtime_class="gvisor")
    (body,) = (each.body for each in plan(view).ensure if each.kind is DEPLOYMENTS)
    assert body["spec"]["template"]["spec"]["runtimeClassName"] == "gvisor"
    assert shape(plan(replace(made(a_view()), runtime_class="gvisor"))) == ("ensure", "status")
    (body,) = (each.body for each in plan(replace(view, runtime_class="")).ensure if each.kind is DEPLOYMENTS)
    assert "runtimeClassName" not in body["spec"]["template"]["spec"]


@pytest.mark.parametrize(("view", "parts"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_what_is_next(view: Callable[[], View], parts: tuple[str, ...]) -> None:
    assert shape(plan(view())) == parts


FAILURES = [
    (a_view(a_serving("alice", initiator="zoe")), "ValidateFailed", "zoe must be one of the parties"),
    (a_view(a_serving("alice", "alice")), "ValidateFailed", "twice"),
    (a_view(a_serving(a_party("alice", image="nope"))), "BuildPartyKitInfoFailed", "nope"),
]


@pytest.mark.parametrize(("view", "reason", "text"), FAILURES, ids=["initiator", "party-twice", "no-image"])
def test_why_it_cannot_be_carried_out(view: View, reason: str, text: str) -> None:
    failure = plan(view).failure
    assert failure is not None and failure.reason == reason and text in failure.message
    status = failed_status(view, failure)
    assert (status.phase, status.reason, status.available_parties) == ("Failed", reason, 0)


def test_only_ports_of_our_own_parties_are_allocated() -> None:
    assert list(plan(a_view()).allocate) == [("alice", "")]
    assert list(plan(a_view(own=("alice", "bob"))).allocate) == [("alice", ""), ("bob", "")]


def test_a_new_port_keeps_the_numbers_of_the_others() -> None:
    view = with_numbers(a_view())
    numbers = dict(view.ports["alice", ""])
    name, _ = numbers.popitem()
    assert plan(replace(view, ports={("alice", ""): numbers})).allocate == {("alice", ""): (name,)}


def test_the_deployment_is_made_last_and_only_in_our_own_domain() -> None:
    wanted = plan(marked(a_view())).ensure
    assert [each.kind for each in wanted][-1] is DEPLOYMENTS
    assert {each.body["metadata"]["namespace"] for each in wanted} == {"alice"}


def test_what_is_left_over_is_named() -> None:
    (unwanted,) = plan(with_leftover(made(a_view()))).delete
    assert (unwanted.kind, unwanted.object.metadata.name) == (DEPLOYMENTS, "s-gone")


def test_what_partners_reported_stays_and_what_left_goes() -> None:
    told = {"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1, "unavailableReplicas": 0, "phase": "Available"}
    body = a_serving("alice", "bob")
    body["status"] = {
        "totalParties": 2,
        "availableParties": 1,
        "partyDeploymentStatuses": {"bob": {"s": told}, "carol": {"s": told}},
    }
    for status in (plan(made(a_view(body))).status, failed_status(a_view(body), Explanation("Reason", "words"))):
        assert status is not None and status.party_deployment_statuses is not None
        assert list(status.party_deployment_statuses) == ["alice", "bob"]
        assert status.available_parties == 1
