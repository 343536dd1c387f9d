"""Which output belongs to which task, after crashes and after the pods are gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.kuscia.api import labels
from coterie.kuscia.control import log_index
from coterie.kuscia.control.log_index import LoggedPod, PodLogIndex, parse
from coterie.kuscia.engine.log_index_plugin import entry_of

POD = LoggedPod(1767323045, "alice", "job-1", "job-1-psi", "job-1-psi-0", "8d4f7c52-6a40-4b5e-9c7a-3f1f0f3d2a11")


def with_output(stdout: Path, *pods: LoggedPod) -> PodLogIndex:
    index = PodLogIndex.of(stdout)
    for pod in pods:
        (stdout / "pods" / pod.directory).mkdir(parents=True, exist_ok=True)
        index.add(pod)
    return index


def pod(number: int, **more: Any) -> LoggedPod:
    fields: dict[str, Any] = {"job": f"j-{number}", "task": f"j-{number}-t", "pod": f"j-{number}-t-0", **more}
    return LoggedPod(1767323045 + number, "alice", uid=f"uid-{number}", **fields)


def test_pods_are_found_by_job_or_task_after_a_restart(tmp_path: Path) -> None:
    with_output(tmp_path, pod(1), pod(2), pod(3, job="j-1"))
    index = PodLogIndex.of(tmp_path)
    assert [each.uid for each in index.find("alice", job="j-1")] == ["uid-3", "uid-1"]
    assert [each.uid for each in index.find("alice", tasks=frozenset({"j-2-t"}))] == ["uid-2"]
    assert index.find("bob", job="j-1") == []
    assert index.find("alice") == []


def test_a_pod_takes_about_100_bytes(tmp_path: Path) -> None:
    with_output(tmp_path, POD)
    assert (tmp_path / "index").stat().st_size <= 110


def test_a_pod_is_entered_once(tmp_path: Path) -> None:
    index = with_output(tmp_path, pod(1))
    index.add(pod(1))
    PodLogIndex.of(tmp_path).add(pod(1))
    assert (tmp_path / "index").read_text().count("\n") == 1


def test_every_cut_of_the_file_leaves_the_whole_lines_readable_and_writable(tmp_path: Path) -> None:
    with_output(tmp_path, pod(1), pod(2))
    whole = (tmp_path / "index").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "index").write_bytes(whole[:length])
        index = with_output(tmp_path, pod(3))
        found = {each.uid for number in (1, 2, 3) for each in index.find("alice", job=f"j-{number}")}
        assert found == {"uid-3", *["uid-1", "uid-2"][: whole[:length].count(b"\n")]}
        assert PodLogIndex.of(tmp_path).find("alice", job="j-3")


def test_what_was_removed_is_not_found_and_the_file_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_index, "MAX_PODS", 50)
    monkeypatch.setattr(log_index, "_SLACK", 10)
    index = with_output(tmp_path, *(pod(number) for number in range(200)))
    assert (tmp_path / "index").read_text().count("\n") <= 61
    assert index.find("alice", job="j-199")
    (tmp_path / "pods" / pod(199).directory).rmdir()
    assert not index.find("alice", job="j-199")


def test_another_process_sees_what_is_added_and_changes_nothing(tmp_path: Path) -> None:
    reader = PodLogIndex.of(tmp_path, shared=True)
    assert reader.find("alice", job="j-1") == []
    with_output(tmp_path, pod(1))
    with (tmp_path / "index").open("a") as file:
        file.write("177 torn")
    before = (tmp_path / "index").read_bytes()
    assert [each.uid for each in reader.find("alice", job="j-1")] == ["uid-1"]
    assert (tmp_path / "index").read_bytes() == before


@pytest.mark.parametrize(
    "line",
    [
        "",
        "x alice j t p u",
        "1 alice j t p",
        "1 alice j t p ../u",
        "1 alice j ../t p u",
        "1 ../alice j t p u",
        "1 alice j t p/q u",
        "1 alice j t p u s more",
        "1 Alice j t p u",
    ],
)
def test_damaged_lines_are_skipped(line: str) -> None:
    assert parse(line) is None


def engine(**changes: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "job-1-psi-0",
            "namespace": "alice",
            "uid": "u-1",
            "labels": {labels.KUSCIA_CONTROLLER: labels.KUSCIA_CONTROLLER_TASK},
            "annotations": {labels.KUSCIA_TASK_ID: "job-1-psi", labels.KUSCIA_JOB_ID: "job-1"},
            **changes,
        },
        "spec": {"containers": []},
    }


def test_engines_of_tasks_are_entered() -> None:
    found = entry_of(engine(), "alice", 5, lambda kind, name: None)
    assert found == LoggedPod(5, "alice", "job-1", "job-1-psi", "job-1-psi-0", "u-1")


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": {}},
        {"annotations": {labels.KUSCIA_JOB_ID: "job-1"}},
        {"namespace": "default"},
        {"annotations": {labels.KUSCIA_TASK_ID: "a b"}},
        {"annotations": {labels.KUSCIA_TASK_ID: "../x"}},
    ],
)
def test_other_pods_are_not_entered(changes: dict[str, Any]) -> None:
    assert entry_of(engine(**changes), "alice", 5, lambda kind, name: None) is None


def test_services_with_shortened_names_are_remembered() -> None:
    values = {
        "data": {
            "TASK_CLUSTER_DEFINE": '{"parties": [{"services": [{"endpoints": ["job-1-psi-0-fed.bob.svc:80", '
            '"svc-job-1-x-0a1b2c3d-fed.bob.svc"]}]}]}'
        }
    }
    marks = {labels.KUSCIA_TASK_ID: "job-1-psi", labels.KUSCIA_CONFIG_TEMPLATE_VALUE_CM: "values"}
    found = entry_of(engine(annotations=marks), "alice", 5, lambda kind, name: values)
    assert found is not None
    assert found.services == ("svc-job-1-x-0a1b2c3d-fed",)
    assert parse(found.line().rstrip("\n")) == found
