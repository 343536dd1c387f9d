"""Which pods are engines, for metrics: annotations that anybody can write do not make one."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.kube.api.meta import Object
from coterie.kuscia.api import labels
from coterie.kuscia.engine.engine_metrics import metrics_page, task_labels

MARKS = {
    labels.KUSCIA_TASK_ID: "psi-1",
    labels.KUSCIA_JOB_ID: "psi",
    labels.KUSCIA_SHOULD_BE_SCRAPED: "true",
    labels.KUSCIA_METRIC_PORT: "20000",
    labels.KUSCIA_METRIC_PATH: "/metrics",
}
LABELS = {
    labels.KUSCIA_CONTROLLER: labels.KUSCIA_CONTROLLER_TASK,
    labels.KUSCIA_TASK_UID: "uid",
    labels.KUSCIA_TASK_RESOURCE_UID: "uid-2",
    labels.KUSCIA_COMMUNICATION_ROLE_CLIENT: "true",
}


def a_pod(marks: dict[str, str] = MARKS, known: dict[str, str] = LABELS, **meta: Any) -> Object:
    about = {"name": "psi-1-0", "namespace": "alice", "uid": "u", "labels": known, "annotations": marks, **meta}
    return {"metadata": about, "spec": {}, "status": {"phase": "Running"}}


def test_an_engine() -> None:
    assert task_labels(a_pod(), "alice") == {"job": "psi", "task": "psi-1", "party": "alice"}
    where = {"namespace": "alice", "pod": "psi-1-0", "task": "psi-1", "party": "alice"}
    assert metrics_page(a_pod(), "alice") == (20000, "/metrics", where)


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(known={}),
        *(a_pod(known={key: value for key, value in LABELS.items() if key != left_out}) for left_out in LABELS),
        a_pod(namespace="bob"),
        a_pod(ownerReferences=[{"kind": "ReplicaSet", "name": "fake", "controller": True}]),
    ],
)
def test_an_ordinary_pod_cannot_pretend_to_be_one(pod: Object) -> None:
    assert task_labels(pod, "alice") == {}
    assert metrics_page(pod, "alice") is None


def test_an_engine_of_a_deployment_has_a_page_and_no_task() -> None:
    known = {
        labels.KUSCIA_CONTROLLER: labels.KUSCIA_CONTROLLER_DEPLOYMENT,
        labels.KUSCIA_DEPLOYMENT_NAME: "serving",
        labels.KUSCIA_COMMUNICATION_ROLE_SERVER: "true",
    }
    pod = a_pod(known=known)
    assert task_labels(pod, "alice") == {}
    page = metrics_page(pod, "alice")
    assert page is not None
    assert page[2]["task"] == ""


@pytest.mark.parametrize("port", ["", "0", "65536", "-1", "٣", "1e3", "x"])
def test_a_port_that_is_none(port: str) -> None:
    assert metrics_page(a_pod({**MARKS, labels.KUSCIA_METRIC_PORT: port}), "alice") is None


def test_a_pod_that_does_not_run_is_not_asked() -> None:
    pod = a_pod()
    pod["status"] = {"phase": "Pending"}
    assert metrics_page(pod, "alice") is None
