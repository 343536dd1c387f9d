"""Whatever a partner writes into a job or a deployment, our pods are as if we had begun the same ourselves: only the listed
fields of the request can change them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.kube.api.meta import ObjectMeta
from coterie.kuscia.api import labels
from coterie.kuscia.api.partner_requests import (
    PartnerRequestError,
    deployment_digest,
    deployment_taken,
    job_taken,
)
from coterie.kuscia.api.types.deployment import KusciaDeployment, KusciaDeploymentSpec
from coterie.kuscia.api.types.job import APP_IMAGES, AppImage, KusciaJob, KusciaTask
from coterie.kuscia.controllers.kusciadeployment import render as serving
from coterie.kuscia.controllers.kusciadeployment.party_workloads import party_deployments
from coterie.kuscia.controllers.kusciajob import launch
from coterie.kuscia.controllers.kusciajob.plan import JobView
from coterie.kuscia.controllers.kusciatask import render as tasks
from coterie.kuscia.controllers.kusciatask.party_workloads import party_workloads
from coterie.kuscia.interconn import deployment_mirror, job_mirror

IMAGE = msgspec.convert(
    {
        "metadata": {"name": "engine", "uid": "u"},
        "spec": {
            "image": {"name": "engine", "tag": "1.0", "id": "sha256:" + "ab" * 32},
            "configTemplates": {"task.conf": "{{.TASK_INPUT_CONFIG}}"},
            "deployTemplates": [
                {
                    "name": "any",
                    "replicas": 1,
                    "spec": {
                        "restartPolicy": "Never",
                        "containers": [
                            {
                                "name": "main",
                                "command": ["engine"],
                                "args": ["--run"],
                                "workingDir": "/work",
                                "env": [{"name": "OURS", "value": "1"}],
                                "ports": [{"name": "rpc", "scope": "Cluster", "protocol": "GRPC"}],
                                "configVolumeMounts": [{"mountPath": "/c", "subPath": "task.conf"}],
                                "securityContext": {"readOnlyRootFilesystem": True},
                                "resources": {"limits": {"cpu": "1"}},
                            },
                            {"name": "side", "command": ["side"]},
                        ],
                    },
                }
            ],
        },
    },
    AppImage,
)
assert APP_IMAGES.resource.kind == "AppImage"

KEYS = st.sampled_from(
    [
        "command",
        "args",
        "env",
        "envFrom",
        "image",
        "imagePullPolicy",
        "volumes",
        "volumeMounts",
        "securityContext",
        "ports",
        "livenessProbe",
        "lifecycle",
        "hostNetwork",
        "hostPID",
        "nodeName",
        "nodeSelector",
        "tolerations",
        "affinity",
        "serviceAccountName",
        "initContainers",
        "restartPolicy",
        "runtimeClassName",
        "priorityClassName",
        "schedulerName",
        "strategy",
        "template",
        "spec",
        "workingDir",
        "configVolumeMounts",
        "metricProbe",
        "replicas",
        "containers",
        "name",
        "annotations",
        "labels",
        "finalizers",
        "ownerReferences",
        "taskID",
    ]
)
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from(["", "/bin/sh", "$(SECRET)", "root", "main", "side"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
HOSTILE = {
    "command": ["/bin/sh", "-c", "id"],
    "args": ["x"],
    "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "domain-key", "key": "k"}}}],
    "image": "evil:1",
    "securityContext": {"privileged": True},
    "volumeMounts": [{"name": "host", "mountPath": "/host"}],
    "ports": [{"name": "extra", "scope": "Cluster", "port": 22}],
    "livenessProbe": {"exec": {"command": ["sh"]}},
}
QUANTITY = st.sampled_from(["1", "250m", "1Gi", 2, "0"])
AMOUNTS = st.dictionaries(
    st.sampled_from(
        [
            "cpu",
            "memory",
            "ephemeral-storage",
            "kuscia.io/bandwidth",
            "nvidia.com/gpu",
            "example.com/gpu",
            "hugepages-2Mi",
        ]
    ),
    QUANTITY,
    max_size=4,
).map(lambda amounts: {name: "1" if name == "nvidia.com/gpu" else amount for name, amount in amounts.items()})
RESOURCES = st.fixed_dictionaries({}, optional={"requests": AMOUNTS, "limits": AMOUNTS, "claims": JUNK})
EXTRA = st.dictionaries(
    KEYS.filter(lambda key: key not in ("name", "replicas", "template", "spec", "strategy", "taskID")), JUNK, max_size=4
)


def with_junk(known: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(EXTRA, st.booleans(), known).map(
        lambda each: {**each[0], **(HOSTILE if each[1] else {}), **each[2]}
    )


CONTAINER = with_junk(
    st.fixed_dictionaries({"name": st.sampled_from(["main", "side", "new", ""])}, optional={"resources": RESOURCES})
)
POD_SPEC = with_junk(st.fixed_dictionaries({}, optional={"containers": st.lists(CONTAINER, max_size=3)}))
TEMPLATE = with_junk(
    st.fixed_dictionaries(
        {}, optional={"replicas": st.integers(0, 4), "spec": POD_SPEC, "strategy": st.dictionaries(KEYS, JUNK)}
    )
)
PARTIES = st.tuples(
    with_junk(st.fixed_dictionaries({"domainID": st.just("alice"), "appImageRef": st.just("engine")})),
    with_junk(
        st.fixed_dictionaries(
            {"domainID": st.just("bob"), "appImageRef": st.just("engine")}, optional={"template": TEMPLATE}
        )
    ),
).map(list)
META = with_junk(
    st.fixed_dictionaries(
        {
            "name": st.just("serve"),
            "labels": st.dictionaries(st.sampled_from([labels.KUSCIA_APP_TYPE, "x"]), st.sampled_from(["scql", "y"])),
            "annotations": st.dictionaries(
                st.sampled_from([labels.KUSCIA_AFFINITY_MODE, labels.COTERIE_APPROVED, labels.KUSCIA_ALLOCATED_PORTS]),
                st.sampled_from(["affinity", "none", "[]"]),
            ),
        }
    )
)
DEPLOYMENT = st.fixed_dictionaries(
    {
        "metadata": META,
        "spec": with_junk(
            st.fixed_dictionaries(
                {"initiator": st.just("alice"), "inputConfig": st.sampled_from(["{}", "$(SECRET)"]), "parties": PARTIES}
            )
        ),
        "status": JUNK,
    }
)
JOB_PARTY = {"domainID": st.just("bob"), "role": st.just("")}
JOB = st.fixed_dictionaries(
    {
        "metadata": META,
        "spec": with_junk(
            st.fixed_dictionaries(
                {
                    "initiator": st.just("alice"),
                    "tasks": st.lists(
                        with_junk(
                            st.fixed_dictionaries(
                                {
                                    "alias": st.just("t"),
                                    "taskID": st.just("chosen-by-the-partner"),
                                    "appImage": st.just("engine"),
                                    "taskInputConfig": st.sampled_from(["{}", "$(SECRET)"]),
                                    "parties": st.lists(
                                        with_junk(st.fixed_dictionaries(JOB_PARTY, optional={"resources": RESOURCES})),
                                        min_size=1,
                                        max_size=1,
                                    ),
                                }
                            )
                        ),
                        min_size=1,
                        max_size=1,
                    ),
                }
            )
        ),
    }
)


def counted(resources: dict[str, Any] | None) -> set[str]:
    return {name for amounts in (resources or {}).values() for name in amounts}


def without_listed(spec: dict[str, Any]) -> dict[str, Any]:
    """A pod spec without what a request may change: the amounts of counted resources, and the input."""
    containers = [
        {
            **{key: value for key, value in each.items() if key != "resources"},
            "env": [entry for entry in each["env"] if entry["name"] not in ("INPUT_CONFIG", "CLUSTER_DEFINE")],
        }
        for each in spec["containers"]
    ]
    for each in spec["containers"]:
        listed = {"cpu", "memory", "ephemeral-storage", "kuscia.io/bandwidth", "nvidia.com/gpu"}
        assert counted(each.get("resources")) <= listed
        assert set(each.get("resources") or {}) <= {"requests", "limits"}
    return {**spec, "containers": containers}


def serving_pods(body: dict[str, Any]) -> dict[str, Any]:
    meta = ObjectMeta(
        name=body["metadata"]["name"],
        namespace="cross-domain",
        uid="u",
        labels=body["metadata"].get("labels"),
        annotations=body["metadata"].get("annotations"),
    )
    deployment = KusciaDeployment(metadata=meta, spec=msgspec.convert(body["spec"], KusciaDeploymentSpec))
    parties = party_deployments(deployment, {"engine": IMAGE})
    place = next(index for index, party in enumerate(parties) if party.domain == "bob")
    return serving.deployment_of(deployment, parties, place, {"rpc": 20000})


OWN_DEPLOYMENT = {
    "metadata": {"name": "serve"},
    "spec": {
        "initiator": "alice",
        "inputConfig": "{}",
        "parties": [{"domainID": "alice", "appImageRef": "engine"}, {"domainID": "bob", "appImageRef": "engine"}],
    },
}


@settings(deadline=None, max_examples=150)
@given(DEPLOYMENT)
def test_a_partners_deployment_changes_no_field_of_our_pods_but_the_listed(mirror):
    try:
        copied = deployment_mirror.working_copy(mirror, "alice", "bob")
    except PartnerRequestError:
        return  # it cannot be read, and is refused as a whole
    made, ours = serving_pods(copied), serving_pods(OWN_DEPLOYMENT)
    assert without_listed(made["spec"]["template"]["spec"]) == without_listed(ours["spec"]["template"]["spec"])
    assert made["spec"]["strategy"] == ours["spec"]["strategy"]
    assert made["spec"]["template"]["metadata"] == ours["spec"]["template"]["metadata"]
    assert 0 <= made["spec"]["replicas"] <= 4


def task_pod(body: dict[str, Any]) -> dict[str, Any]:
    meta = ObjectMeta(
        name=body["metadata"]["name"],
        namespace="cross-domain",
        uid="u",
        labels=body["metadata"].get("labels"),
        annotations=body["metadata"].get("annotations"),
    )
    job = msgspec.convert({"metadata": msgspec.to_builtins(meta), "spec": body["spec"]}, KusciaJob)
    (template,) = job.spec.tasks
    template = msgspec.structs.replace(template, task_id="t1")
    view = JobView(
        job=job,
        domains={},
        images={"engine": IMAGE},
        ungranted=(),
        tasks={},
        foreign_tasks=frozenset(),
        age=0.0,
        now="",
    )
    made = launch.task_of(view, template)
    task = msgspec.convert({**made, "metadata": {**made["metadata"], "uid": "t"}}, KusciaTask)
    (party,) = party_workloads(task, {"engine": IMAGE})
    (pod,) = party.pods
    numbers = {("bob", f"{pod.name}/rpc"): 20000}
    return tasks.pod(task, party, pod, numbers, tasks.Reservation("r", "ru", "gu"))


OWN_JOB = {
    "metadata": {"name": "serve"},
    "spec": {
        "initiator": "alice",
        "tasks": [
            {"alias": "t", "appImage": "engine", "taskInputConfig": "{}", "parties": [{"domainID": "bob"}]},
        ],
    },
}


@settings(deadline=None, max_examples=150)
@given(JOB)
def test_a_partners_job_changes_no_field_of_our_pods_but_the_listed(mirror):
    body = job_mirror.working_copy(mirror, "alice", "bob", ["bob"])
    assert all("taskID" not in task for task in body["spec"]["tasks"])
    assert set(body["metadata"]) <= {"name", "namespace", "annotations", "labels"}
    made, ours = task_pod(body), task_pod(OWN_JOB)
    assert without_listed(made["spec"]) == without_listed(ours["spec"])
    assert made["metadata"] == ours["metadata"]


@settings(deadline=None, max_examples=200)
@given(st.recursive(JUNK, lambda inner: st.dictionaries(st.sampled_from(["initiator", "tasks", "parties"]), inner)))
@pytest.mark.parametrize("taken", [job_taken, deployment_taken])
def test_what_cannot_be_read_is_refused_with_a_sentence(taken, spec):
    try:
        taken(spec)
    except PartnerRequestError as problem:
        assert str(problem)


@pytest.mark.parametrize("amount", ["-1", "lots", "1e", -3])
def test_amounts_that_are_none_are_refused(amount):
    parties = [{"domainID": "bob", "resources": {"limits": {"cpu": amount}}}]
    task = {"alias": "t", "appImage": "engine", "taskInputConfig": "{}", "parties": parties}
    with pytest.raises(PartnerRequestError, match="cpu"):
        job_taken({"initiator": "alice", "tasks": [task]})


def test_gpus_are_asked_for_in_whole_numbers():
    def job(amount):
        parties = [{"domainID": "bob", "resources": {"limits": {"nvidia.com/gpu": amount, "example.com/x": "1"}}}]
        task = {"alias": "t", "appImage": "engine", "taskInputConfig": "{}", "parties": parties}
        return job_taken({"initiator": "alice", "tasks": [task]})

    taken = job("2").tasks[0].parties[0].resources
    assert taken is not None and taken.limits == {"nvidia.com/gpu": "2"}
    with pytest.raises(PartnerRequestError, match=r"nvidia.com/gpu: 500m is no whole number"):
        job("500m")


def test_an_approval_names_what_was_approved():
    before = deployment_taken(OWN_DEPLOYMENT["spec"])
    other = msgspec.structs.replace(before, input_config="{ }")
    assert deployment_digest(before) == deployment_digest(deployment_taken(msgspec.to_builtins(before)))
    assert deployment_digest(before) != deployment_digest(other)
