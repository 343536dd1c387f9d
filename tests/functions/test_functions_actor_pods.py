"""The objects of actors: what their pods are given, and what they are not."""

from __future__ import annotations

import base64
import copy
from typing import Any

import msgspec
import pytest

from coterie.engines.actor.settings import read_settings
from coterie.functions.actor_pods import (
    actor_pod,
    claimed_variables,
    code_config_map,
    spare_key,
    spare_pod,
    token_secret,
)
from coterie.functions.model import partner_pool
from coterie.kube.agent.pods.security_context import refused_container
from coterie.kube.api.rules import RULES
from coterie.kube.api.rules.podspec import check_pod_spec
from coterie.kuscia.api.functions.types import ACTION_LABEL, VERSION_LABEL, Action

ACTION = {
    "apiVersion": "coterie.io/v1alpha1",
    "kind": "Action",
    "metadata": {"name": "score", "namespace": "alice", "uid": "u-1"},
    "spec": {"script": "x", "next": ["add", "bob/rate"], "concurrency": 4, "timeoutSeconds": 20},
}


def action(**spec: Any) -> Action:
    whole = copy.deepcopy(ACTION)
    whole["spec"] |= spec  # type: ignore[operator]
    return msgspec.convert(whole, Action)


def variables(pod: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in pod["spec"]["containers"][0]["env"]}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"script": "", "archive": "eA=="},
        {"script": "", "image": "word-count:1", "command": ["/bin/count"]},
        {"resources": {"cpu": "2", "memory": "1Gi"}, "env": [{"name": "A", "value": "b"}]},
    ],
)
def test_a_pod_is_valid_and_has_few_rights(spec: dict[str, Any]) -> None:
    pod = actor_pod(action(**spec), "v1", "score-abc")
    RULES["", "Pod"].default(pod)
    assert not list(check_pod_spec(pod["spec"]))
    assert not refused_container(pod["spec"]["containers"][0])
    inside, container = pod["spec"], pod["spec"]["containers"][0]
    assert inside["automountServiceAccountToken"] is False and inside["restartPolicy"] == "Never"
    context = container["securityContext"]
    assert context["runAsNonRoot"] and context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
    assert inside["terminationGracePeriodSeconds"] > 20
    assert pod["metadata"]["labels"] == {ACTION_LABEL: "score", VERSION_LABEL: "v1"}
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "u-1"


def test_limits_and_requests() -> None:
    def resources(**spec: Any) -> dict[str, Any]:
        found: dict[str, Any] = actor_pod(action(**spec), "v1", "p")["spec"]["containers"][0]["resources"]
        return found

    assert resources() == {
        "limits": {"cpu": "1", "memory": "256Mi", "ephemeral-storage": "256Mi"},
        "requests": {"cpu": "50m", "memory": "64Mi", "ephemeral-storage": "16Mi"},
    }
    more = resources(resources={"cpu": "2", "memory": "1Gi"})
    assert more["limits"]["cpu"] == more["requests"]["cpu"] == "2"
    assert more["limits"]["memory"] == more["requests"]["memory"] == "1Gi"


def test_the_environment_is_what_an_actor_reads() -> None:
    pod = actor_pod(action(env=[{"name": "A", "value": "b"}, {"name": "COTERIE_ACTION", "value": "other"}]), "v1", "p")
    found = variables(pod)
    assert found["A"] == "b"
    assert found["COTERIE_ACTOR_TOKEN"] == {"secretKeyRef": {"name": "action-score-token", "key": "token"}}
    settings = read_settings({**found, "COTERIE_ACTOR_TOKEN": "t"})
    assert (settings.action, settings.version, settings.handler) == ("score", "v1", "action.action")
    assert (settings.next, settings.concurrency, settings.timeout) == ({"add", "bob/rate"}, 4, 20)
    assert settings.port == pod["spec"]["containers"][0]["ports"][0]["containerPort"]
    assert settings.code in [each["mountPath"] for each in pod["spec"]["containers"][0]["volumeMounts"]]


def test_code_and_token() -> None:
    script = code_config_map(action(script="code"), "v1", b"")
    assert (script["metadata"]["name"], script["data"]) == ("action-score-v1", {"action.py": "code"})
    archive = code_config_map(action(script="", archive="eA=="), "v2", b"\x1f\x8b")
    assert base64.b64decode(archive["binaryData"]["archive.000"]) == b"\x1f\x8b"
    secret = token_secret(action(), "t")
    assert base64.b64decode(secret["data"]["token"]) == b"t" and secret["metadata"]["name"] == "action-score-token"
    pod = actor_pod(action(), "v1", "p")
    assert {"name": "code", "configMap": {"name": "action-score-v1"}} in pod["spec"]["volumes"]


def test_a_pool_of_a_partner() -> None:
    pod = actor_pod(action(), "v1", "p", pool=partner_pool("score", "bob"), partner="bob", tables=["b", "a"])
    assert pod["metadata"]["labels"][ACTION_LABEL] == "score.bob"
    assert pod["metadata"]["labels"]["kuscia.secretflow/communication-role-client"] == "true"
    assert pod["metadata"]["annotations"] == {
        "kuscia.secretflow/initiator": "bob",
        "coterie.io/app-image": "action/score",
        "coterie.io/action-tables": "a,b",
    }
    assert variables(pod)["COTERIE_ACTION"] == "score"


def test_a_spare_pod_differs_from_an_actor_only_in_what_a_claim_brings() -> None:
    own, spare = actor_pod(action(), "v1", "p"), spare_pod(action(), "s", "0" * 64)
    mine, other = copy.deepcopy(own["spec"]), copy.deepcopy(spare["spec"])
    RULES["", "Pod"].default(spare)
    assert not list(check_pod_spec(spare["spec"])) and not refused_container(spare["spec"]["containers"][0])
    for each in (mine, other):
        del each["volumes"][1], each["containers"][0]["volumeMounts"][1], each["topologySpreadConstraints"]
        each["containers"][0]["env"] = []
    assert mine == other, "the same limits, user, image and time to end"
    assert "ownerReferences" not in spare["metadata"] and ACTION_LABEL not in spare["metadata"]["labels"]
    assert set(variables(spare)) == {"COTERIE_ACTOR_SPARE", "COTERIE_ACTOR_PORT"}
    given = {**variables(spare), **claimed_variables(action(), "v1", "t")}
    given.pop("COTERIE_ACTOR_SPARE")
    assert given == {**variables(own), "COTERIE_ACTOR_TOKEN": "t"}
    assert read_settings(given) == read_settings({**variables(own), "COTERIE_ACTOR_TOKEN": "t"})


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ({"script": "other", "next": [], "concurrency": 9, "handler": "a.b"}, True),
        ({"script": "", "archive": "eA=="}, True),
        ({"image": "other:1"}, False),
        ({"resources": {"memory": "1Gi"}}, False),
        ({"timeoutSeconds": 21}, False),
        ({"env": [{"name": "A", "value": "b"}]}, None),
        ({"command": ["/bin/count"]}, None),
        ({"tables": ["people"]}, None),
        ({"script": "", "image": "word-count:1"}, None),
    ],
)
def test_which_actions_can_use_the_same_spare_actors(spec: dict[str, Any], same: bool | None) -> None:
    found = spare_key(action(**spec))
    assert bool(found) == (same is not None)
    assert (found == spare_key(action())) == bool(same)


def test_one_that_reads_tables_for_ourselves_is_marked_for_the_data_mesh_alone() -> None:
    """Without an initiator: the files of the domain are open to what it began, and an actor reads the tables that are named, no others."""
    meta = actor_pod(action(), "v1", "a-1", tables=["b", "a"])["metadata"]
    assert meta["labels"]["kuscia.secretflow/communication-role-client"] == "true"
    assert meta["annotations"] == {"coterie.io/action-tables": "a,b", "coterie.io/app-image": "action/score"}
    assert "annotations" not in actor_pod(action(), "v1", "a-1")["metadata"]
