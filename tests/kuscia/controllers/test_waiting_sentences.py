"""Every state in which something waits says for whom or what, since when, and what to do. The table is complete."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from job_world import an_image
from msgspec.structs import replace as changed

from coterie.kube.api.labels import COTERIE_IDLE
from coterie.kube.api.meta import Condition, ObjectKey, ObjectMeta
from coterie.kube.api.types.pods import Pod
from coterie.kuscia.api import labels
from coterie.kuscia.api.jobs.conditions import PORTS_ALLOCATED, RESOURCE_CREATED, STALLED, WAITING
from coterie.kuscia.api.jobs.phases import JOB_ENDED, TASK_ENDED
from coterie.kuscia.api.partner_policy import AdmissionDecision, Reason, Verdict
from coterie.kuscia.api.types.deployment import KusciaDeployment, PartyDeploymentStatus, ServingPhase
from coterie.kuscia.api.types.domain import Domain
from coterie.kuscia.api.types.job import (
    ACCEPTED,
    AppImage,
    GroupPhase,
    JobPhase,
    JobStage,
    KusciaJob,
    KusciaJobStatus,
    KusciaTask,
    KusciaTaskStatus,
    PartyTaskStatus,
    TaskPhase,
    TaskResourceGroup,
)
from coterie.kuscia.api.types.task_resource import ReservationPhase, TaskResource
from coterie.kuscia.api.waiting import (
    Waiting,
    WaitReason,
    group_waiting,
    pod_waiting,
    public_reason,
    reservation_waiting,
    waiting_since,
    with_waiting,
)
from coterie.kuscia.control.partner_quotas import QuotaRefusal
from coterie.kuscia.controllers.kusciadeployment.status import whole_status
from coterie.kuscia.controllers.kusciajob import plan as jobs
from coterie.kuscia.controllers.kusciatask import plan as tasks
from coterie.kuscia.controllers.kusciatask.party_workloads import party_workloads

NOW = datetime(2026, 11, 16, 18, 0, 0, tzinfo=UTC)
AT = "2026-11-16T18:00:00Z"
EARLIER = "2026-11-16T17:00:00Z"


# Jobs.


def _domain(name: str, *, partner: bool = False) -> Domain:
    return msgspec.convert({"metadata": {"name": name}, "spec": {"role": "partner"} if partner else {}}, Domain)


IMAGE = msgspec.convert(an_image(), AppImage)


def job_view(phase: JobPhase, *, own: str = "alice", **status: Any) -> jobs.JobView:
    task = {
        "alias": "psi",
        "taskID": "t",
        "appImage": "engine",
        "taskInputConfig": "{}",
        "parties": [{"domainID": "alice"}, {"domainID": "bob"}],
        "scheduleConfig": {"retry": {"count": 2, "backoffSeconds": 60}},
    }
    job = msgspec.convert(
        {
            "metadata": {"name": "j", "namespace": "cross-domain", "uid": "u"},
            "spec": {"initiator": "alice", "tasks": [task]},
        },
        KusciaJob,
    )
    marks = {labels.KUSCIA_SELF_AS_INITIATOR: "true" if own == "alice" else "false"}
    job = changed(
        job,
        metadata=changed(job.metadata, annotations=marks),
        status=KusciaJobStatus(phase=str(phase), **status),
    )
    domains = {name: _domain(name, partner=name != own) for name in ("alice", "bob")}
    return jobs.JobView(
        job=job,
        domains=domains,
        images={"engine": IMAGE},
        ungranted=(),
        tasks={},
        foreign_tasks=frozenset(),
        age=0.0,
        now=AT,
    )


def job_sentence(view: jobs.JobView) -> str:
    made = jobs.plan(view).status
    assert waiting_since(made.conditions) is not None
    return made.message


def _with_task(view: jobs.JobView, **status: Any) -> jobs.JobView:
    task = msgspec.convert(
        {
            "metadata": {"name": "t", "uid": "tu"},
            "spec": {"initiator": "alice", "taskInputConfig": "", "parties": []},
        },
        KusciaTask,
    )
    return replace(view, tasks={"t": changed(task, status=KusciaTaskStatus(**status))})


def _restarting(view: jobs.JobView) -> jobs.JobView:
    command = {labels.KUSCIA_JOB_STAGE: "Restart", labels.KUSCIA_JOB_STAGE_VERSION: "1"}
    meta = changed(view.job.metadata, labels=command)
    handled = (Condition(type="JobStageHandled", status="True", message="Restart/1"),)
    status = changed(view.job.status, conditions=handled, stage_status={"alice": JobStage.RESTART.done})
    return replace(view, job=changed(view.job, metadata=meta, status=status))


def _ask(view: jobs.JobView) -> jobs.JobView:
    return replace(
        view, admission=AdmissionDecision(Verdict.ASK, (Reason("appImages", "there is no policy for alice"),))
    )


def _refused_task() -> str:
    view = job_view(JobPhase.RUNNING)
    status, again = jobs.task_refused(view, view.job.status, "exceeded quota: pods", lasting=False)
    assert again is not None
    return status.message


STALLED_TASK = "Waiting for the engines of alice (since 2026-11-16T17:00:00Z). Run `coterie job logs j`."
JOBS: dict[tuple[JobPhase, str], Callable[[], str]] = {
    (JobPhase.INITIALIZED, "an AppImage is missing"): lambda: job_sentence(
        replace(job_view(JobPhase.INITIALIZED), images={})
    ),
    (JobPhase.AWAITING_APPROVAL, "a partner"): lambda: job_sentence(
        job_view(JobPhase.AWAITING_APPROVAL, approve_status={"alice": ACCEPTED})
    ),
    (JobPhase.AWAITING_APPROVAL, "our own"): lambda: job_sentence(
        _ask(job_view(JobPhase.AWAITING_APPROVAL, own="bob", approve_status={"alice": ACCEPTED}))
    ),
    (JobPhase.PENDING, "a partner creates it"): lambda: job_sentence(
        job_view(JobPhase.PENDING, stage_status={"alice": JobStage.CREATE.done})
    ),
    (JobPhase.RUNNING, "a partner restarts"): lambda: job_sentence(_restarting(job_view(JobPhase.RUNNING))),
    (JobPhase.RUNNING, "the initiator names the task"): lambda: job_sentence(
        _unnamed(job_view(JobPhase.RUNNING, own="bob"))
    ),
    (JobPhase.RUNNING, "a task is refused"): _refused_task,
    (JobPhase.RUNNING, "a task waits"): lambda: job_sentence(
        _with_task(
            job_view(JobPhase.RUNNING),
            phase="Running",
            message=STALLED_TASK,
            conditions=(
                Condition(type=WAITING, status="True", reason="Stalled", message="alice", last_transition_time=EARLIER),
            ),
        )
    ),
    (JobPhase.RUNNING, "a retry"): lambda: job_sentence(_recorded(job_view(JobPhase.RUNNING))),
    (JobPhase.RUNNING, "the initiator decides on a retry"): lambda: job_sentence(
        _with_task(job_view(JobPhase.RUNNING, own="bob"), phase="Failed", reason="TaskFailed")
    ),
    (JobPhase.SUSPENDED, "a restart"): lambda: job_sentence(job_view(JobPhase.SUSPENDED)),
}


def _unnamed(view: jobs.JobView) -> jobs.JobView:
    (task,) = view.job.spec.tasks
    spec = changed(view.job.spec, tasks=(changed(task, task_id=""),))
    return replace(view, job=changed(view.job, spec=spec))


def _recorded(view: jobs.JobView) -> jobs.JobView:
    """The failure was recorded by the reconcile before."""
    view = _with_task(view, phase="Failed", reason="TaskFailed", message="party bob: exited with 1")
    status = jobs.plan(view).status
    assert status.task_attempts is not None
    return replace(view, job=changed(view.job, status=status))


# Tasks.


def task_view(**status: Any) -> tasks.TaskView:
    plain = {
        "metadata": {
            "name": "t",
            "namespace": "cross-domain",
            "uid": "u",
            "annotations": {labels.KUSCIA_JOB_ID: "j", labels.KUSCIA_TASK_ALIAS: "psi"},
        },
        "spec": {
            "initiator": "alice",
            "taskInputConfig": "",
            "parties": [{"domainID": name, "appImageRef": "engine"} for name in ("alice", "bob")],
        },
    }
    given: dict[str, Any] = {"phase": "Pending", "start_time": AT, **status}
    task = changed(msgspec.convert(plain, KusciaTask), status=KusciaTaskStatus(**given))
    parties = party_workloads(task, {"engine": IMAGE})
    return tasks.TaskView(
        task=task,
        parties=parties,
        fault="",
        own=parties[:1],
        initiates=True,
        pods={},
        group=None,
        routes=(),
        age=1.0,
        left_behind=False,
        now=NOW,
        default_stall_seconds=300,
    )


ALLOTTED = (Condition(type=PORTS_ALLOCATED, status="True", last_transition_time=AT),)
MADE = (*ALLOTTED, Condition(type=RESOURCE_CREATED, status="True", last_transition_time=AT))


def _pod(phase: str, *conditions: Condition, **status: Any) -> Pod:
    plain = {"metadata": {"name": "t-0", "namespace": "alice", "creationTimestamp": EARLIER}, "status": status}
    pod = msgspec.convert(plain, Pod)
    return changed(pod, status=changed(pod.status, phase=phase, conditions=conditions))


UNPLACED = Condition(
    type="PodScheduled",
    status="False",
    reason="Unschedulable",
    message="0/1 nodes are available: 1 Insufficient cpu",
    last_transition_time=EARLIER,
)
PLACED = Condition(type="PodScheduled", status="True", last_transition_time=EARLIER)
IDLE = Condition(type=COTERIE_IDLE, status="True", last_transition_time=EARLIER)


def _parties(**phases: Any) -> Any:
    entries = [{"domainID": name, **fields} for name, fields in phases.items()]
    return msgspec.convert(entries, tuple[PartyTaskStatus, ...])


def task_sentence(made: tasks.Plan) -> str:
    assert waiting_since(made.status.conditions) is not None
    return made.status.message


def _with_pod(view: tasks.TaskView, pod: Pod) -> tasks.TaskView:
    return replace(view, pods={ObjectKey("alice", "t-0"): pod})


TASKS: dict[tuple[TaskPhase, str], Callable[[], str]] = {
    (TaskPhase.PENDING, "the engine is missing"): lambda: task_sentence(
        tasks.plan(replace(task_view(), fault='there is no AppImage "engine"'))
    ),
    (TaskPhase.PENDING, "routes"): lambda: task_sentence(
        tasks.plan(replace(task_view(conditions=ALLOTTED), routes=("the route from alice to bob is not ready",)))
    ),
    (TaskPhase.PENDING, "quota"): lambda: task_sentence(
        tasks.plan(replace(task_view(conditions=ALLOTTED), over_quota=QuotaRefusal("alice has 32 tasks", False)))
    ),
    (TaskPhase.PENDING, "objects are refused"): lambda: task_sentence(
        tasks.refused(
            task_view(conditions=ALLOTTED),
            task_view(conditions=ALLOTTED).task.status,
            [tasks.Refusal("alice", "", "Pod t-0", "quota", "exceeded quota", False)],
        )
    ),
    (TaskPhase.PENDING, "objects of an earlier attempt"): lambda: task_sentence(
        tasks.earlier_object(task_view(), "Pod alice/t-0")
    ),
    (TaskPhase.PENDING, "the label that keeps it back"): lambda: tasks.unschedulable(task_view().task, AT).message,
    (TaskPhase.PENDING, "our own pods"): lambda: task_sentence(
        tasks.plan(_with_pod(task_view(conditions=MADE), _pod("Pending", UNPLACED)))
    ),
    (TaskPhase.RUNNING, "a partner begins"): lambda: task_sentence(
        tasks.plan(
            _with_pod(
                task_view(
                    phase="Running",
                    conditions=MADE,
                    party_task_status=_parties(
                        alice={"phase": "Running"}, bob={"phase": "Pending", "message": "no free CPU"}
                    ),
                ),
                _pod("Running", PLACED),
            )
        )
    ),
    (TaskPhase.RUNNING, "routes"): lambda: task_sentence(
        tasks.plan(
            replace(
                _with_pod(
                    task_view(
                        phase="Running",
                        conditions=MADE,
                        party_task_status=_parties(alice={"phase": "Running"}, bob={"phase": "Running"}),
                    ),
                    _pod("Running", PLACED),
                ),
                routes=("the route from alice to bob is not ready",),
            )
        )
    ),
    (TaskPhase.RUNNING, "silent engines"): lambda: task_sentence(
        tasks.plan(
            _with_pod(
                task_view(
                    phase="Running",
                    conditions=MADE,
                    party_task_status=_parties(
                        alice={"phase": "Running"}, bob={"phase": "Running", "idleSince": EARLIER}
                    ),
                ),
                _pod("Running", PLACED, IDLE),
            )
        )
    ),
}


# The others.


def reservation(phase: str) -> str:
    meta = ObjectMeta(name="t-r", namespace="alice", creation_timestamp=EARLIER)
    found = reservation_waiting(
        changed(TaskResource(metadata=meta), status=changed(TaskResource().status, phase=phase))
    )
    assert found is not None
    return found.sentence


def group(phase: str) -> str:
    plain = {
        "metadata": {"name": "t", "creationTimestamp": EARLIER},
        "spec": {
            "minReservedMembers": 2,
            "initiator": "alice",
            "parties": [{"domainID": "alice"}],
            "outOfControlledParties": [{"domainID": "bob"}],
        },
        "status": {"phase": phase},
    }
    found = group_waiting(msgspec.convert(plain, TaskResourceGroup))
    assert found is not None
    return found.sentence


def pod_sentence(pod: Pod) -> str:
    found = pod_waiting(pod)
    assert found is not None
    return found.sentence


CREATING = {"containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}]}
PODS: dict[str, Callable[[], str]] = {
    "new": lambda: pod_sentence(_pod("")),
    "unplaced": lambda: pod_sentence(_pod("Pending", UNPLACED)),
    "starting": lambda: pod_sentence(_pod("Pending", PLACED, **CREATING)),
    "placed": lambda: pod_sentence(_pod("Pending", PLACED)),
    "idle": lambda: pod_sentence(_pod("Running", PLACED, IDLE)),
}


def deployment(**entry: Any) -> str:
    plain = {
        "metadata": {"name": "scores", "namespace": "cross-domain", "creationTimestamp": EARLIER},
        "spec": {
            "initiator": "alice",
            "inputConfig": "",
            "parties": [{"domainID": "bob", "appImageRef": "engine"}],
        },
    }
    found = msgspec.convert(plain, KusciaDeployment)
    numbers = {"replicas": 1, "updatedReplicas": 1, "availableReplicas": 0, "unavailableReplicas": 1}
    parties = {"bob": {"scores": {**numbers, **entry}}} if entry else {}
    status = whole_status(found, msgspec.convert(parties, dict[str, dict[str, PartyDeploymentStatus]]), {}, None)
    return status.message


APPROVAL = [{"type": "Waiting", "status": "True", "reason": "AwaitingApproval", "message": "there is no policy"}]
DEPLOYMENTS: dict[tuple[ServingPhase, str], Callable[[], str]] = {
    (ServingPhase.PROGRESSING, "not reported"): deployment,
    (ServingPhase.PROGRESSING, "approval"): lambda: deployment(phase="Progressing", conditions=APPROVAL),
    (ServingPhase.PROGRESSING, "replicas"): lambda: deployment(phase="Progressing"),
    (ServingPhase.PARTIAL, "replicas"): lambda: deployment(phase="PartialAvailable"),
}
TABLE: dict[str, Callable[[], str]] = {
    **{f"KusciaJob {phase}: {why}": make for (phase, why), make in JOBS.items()},
    **{f"KusciaTask {phase}: {why}": make for (phase, why), make in TASKS.items()},
    **{
        f"TaskResource {phase}": (lambda phase=phase: reservation(phase))  # type: ignore[misc]
        for phase in ReservationPhase
        if phase is not ReservationPhase.SCHEDULABLE
    },
    **{
        f"TaskResourceGroup {phase}": (lambda phase=phase: group(phase))  # type: ignore[misc]
        for phase in GroupPhase
        if phase not in (GroupPhase.RESERVED, GroupPhase.FAILED)
    },
    **{f"Pod {why}": make for why, make in PODS.items()},
    **{f"KusciaDeployment {phase}: {why}": make for (phase, why), make in DEPLOYMENTS.items()},
}
SENTENCE = re.compile(r"Waiting for .+ \(since 2026-11-16T1[78]:00:00(\.0+)?Z\)\. .+\.", re.DOTALL)


@pytest.mark.parametrize("state", TABLE)
def test_each_waiting_state_has_a_sentence(state: str) -> None:
    sentence = TABLE[state]()
    assert SENTENCE.fullmatch(sentence), sentence
    step = sentence.partition("). ")[2]
    assert "`coterie " in step, f"no command in: {step}"


def test_the_table_names_every_state_that_is_no_end() -> None:
    assert {phase for phase, _ in JOBS} == set(JobPhase) - {JobPhase(each) for each in JOB_ENDED}
    assert {phase for phase, _ in TASKS} == set(TaskPhase) - {TaskPhase(each) for each in TASK_ENDED}
    assert {phase for phase, _ in DEPLOYMENTS} == {ServingPhase.PROGRESSING, ServingPhase.PARTIAL}


def test_the_beginning_stays_while_the_same_is_waited_for() -> None:
    asked = Waiting(WaitReason.APPROVAL, "bob, carol", "the approval of bob, carol", "Ask them")
    conditions, first = with_waiting(None, asked, EARLIER)
    again, second = with_waiting(conditions, replace(asked, who="bob", what="the approval of bob"), AT)
    assert EARLIER in first and EARLIER in second and waiting_since(again) == EARLIER
    other, third = with_waiting(again, Waiting(WaitReason.PARTNER, "bob", "bob to create the job", "Ask"), AT)
    assert AT in third and waiting_since(other) == AT
    assert with_waiting(other, None, AT) == (None, "")


@pytest.mark.parametrize(
    ("detail", "words"),
    [
        ("0/3 nodes are available: 3 Insufficient cpu", "no free CPU"),
        ("0/1 nodes are available: 1 Insufficient memory", "no free memory"),
        ("0/1 nodes are available: 1 Insufficient kuscia.io/bandwidth", "not enough free bandwidth"),
        ("0/1 nodes are available: 1 Insufficient nvidia.com/gpu", "no free GPU"),
        ("container main: ErrImagePull: registry.internal refused", "the engine's image is not there yet"),
        ("something about machine db-7.internal", "its pods are being placed"),
    ],
)
def test_partners_are_told_a_class_only(detail: str, words: str) -> None:
    assert public_reason(detail) == words


def test_our_own_side_sees_the_detail_and_the_partner_the_class() -> None:
    made = tasks.plan(_with_pod(task_view(conditions=MADE), _pod("Pending", UNPLACED))).status
    assert "0/1 nodes are available" in made.message
    assert [party.message for party in made.party_task_status or ()] == ["no free CPU", ""]


def test_a_party_that_works_keeps_a_task_from_being_stalled() -> None:
    view = _with_pod(
        task_view(
            phase="Running",
            conditions=MADE,
            party_task_status=_parties(alice={"phase": "Running"}, bob={"phase": "Running"}),
        ),
        _pod("Running", PLACED, IDLE),
    )
    status = tasks.plan(view).status
    assert not [each for each in status.conditions or () if each.type == STALLED]
    assert [party.idle_since for party in status.party_task_status or ()] == [EARLIER, None]


@pytest.mark.parametrize(("busy", "since"), [(True, None), (False, "2026-11-16T17:30:00Z")])
def test_traffic_of_its_links_keeps_a_party_from_being_idle(busy: bool, since: str | None) -> None:
    view = _with_pod(task_view(phase="Running", conditions=MADE), _pod("Running", PLACED, IDLE))
    links = {"alice": tasks.LinkActivity("2026-11-16T17:30:00Z", busy)}
    made = tasks.plan(replace(view, link_activity=links))
    assert (made.status.party_task_status or ())[0].idle_since == since
    assert (made.after == tasks.LINKS_RECHECK) is busy, "nobody else says when the links fall silent"


def test_a_party_that_holds_its_resources_is_not_blamed_for_another_without_room() -> None:
    parties_ = _parties(alice={"phase": "Pending"}, bob={"phase": "Pending", "message": "no free CPU"})
    view = _with_pod(task_view(conditions=MADE, party_task_status=parties_), _pod("Pending"))
    message = tasks.plan(view).status.message
    assert message.startswith("Waiting for party bob: no free CPU (since ") and "Ask bob" in message
    assert "alice" not in message
