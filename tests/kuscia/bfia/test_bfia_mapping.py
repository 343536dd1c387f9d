"""DAG and config to a KusciaJob and back; what a partner may not send; the environment of engines."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.kube.api.meta import ObjectMeta
from coterie.kuscia.api.types.job import (
    KusciaJob,
    KusciaJobStatus,
    KusciaTask,
    KusciaTaskSpec,
    KusciaTaskStatus,
    PartyTaskStatus,
)
from coterie.kuscia.bfia import mapping, wire
from coterie.kuscia.bfia.answers import own_part
from coterie.kuscia.bfia.variables import variables
from coterie.kuscia.bfia.wire import BfiaRefused, CreateJobRequest

REQUEST: dict[str, Any] = {
    "job_id": "job-1",
    "flow_id": "flow-1",
    "dag": {
        "version": "2.0.0",
        "components": [
            {
                "code": "psi-image",
                "name": "intersect",
                "module_name": "psi",
                "version": "2.0.0",
                "input": [],
                "output": [{"type": "dataset", "key": "train_data"}],
            },
            {
                "code": "lr-image",
                "name": "train",
                "module_name": "hetero_lr",
                "version": "2.0.0",
                "input": [{"type": "dataset", "key": "intersect.train_data"}],
                "output": [{"type": "model", "key": "model"}],
            },
        ],
    },
    "config": {
        "version": "2.0.0",
        "role": {"guest": ["alice"], "host": ["bob"], "arbiter": ["carol"]},
        "initiator": {"role": "guest", "node_id": "alice"},
        "task_params": {
            "guest": {"0": {"intersect": {"id": "uid"}, "train": {"rounds": 3}}},
            "host": {"0": {"intersect": {"id": "id"}, "train": {}}},
            "arbiter": {"0": {"train": {"key_size": 2048}}},
            "common": {"train": {"rounds": 1, "penalty": "L2"}},
        },
    },
}


def request(**changes: Any) -> CreateJobRequest:
    plain = json.loads(json.dumps(REQUEST))
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = plain
        for name in parents:
            place = place[int(name)] if name.isdecimal() else place[name]
        place[last] = value
    return wire.read(json.dumps(plain).encode(), CreateJobRequest)


def test_a_dag_becomes_a_job() -> None:
    spec = mapping.job_spec(request())
    assert (spec.initiator, spec.flow_id, spec.schedule_mode, spec.max_parallelism) == ("alice", "flow-1", "Strict", 2)
    first, second = spec.tasks
    assert (first.alias, first.app_image, first.dependencies) == ("intersect", "psi-image", None)
    assert [(each.role, each.domain_id) for each in first.parties] == [("host", "bob"), ("guest", "alice")]
    assert second.dependencies == ("intersect",)
    assert [each.domain_id for each in second.parties] == ["bob", "alice", "carol"]
    content = json.loads(second.task_input_config)
    assert content["task_params"]["arbiter"] == {"0": {"train": {"key_size": 2048}}}
    assert content["task_params"]["guest"] == {"0": {"train": {"rounds": 3}}}


def test_and_back() -> None:
    asked = request()
    job = KusciaJob(metadata=ObjectMeta(name="job-1"), spec=mapping.job_spec(asked))
    assert mapping.create_request(job) == asked


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"dag__components": []}, "between 1 and 200 components"),
        ({"dag__components__1__name": "intersect"}, "two components have the name intersect"),
        ({"dag__components__0__code": ""}, "needs a name and a code"),
        ({"dag__components__1__input": [{"type": "dataset", "key": "nobody.x"}]}, "no component has the output"),
        ({"dag__components__1__input": [{"type": "model", "key": "intersect.train_data"}]}, "no component has"),
        ({"dag__components__0__input": [{"type": "model", "key": "train.model"}]}, "in a circle"),
        ({"config__initiator": {"role": "host", "node_id": "alice"}}, "is not a host"),
        ({"config__role": {"guest": ["alice", "alice"]}}, "names a node twice"),
        ({"config__role": {}}, "between 1 and 64 nodes"),
        ({"config__task_params": {"guest": {"0": {"intersect": {}}}}}, "train: config.task_params has parameters of"),
        ({"config__task_params__guest": {"0": "none"}, "config__task_params__host": {}}, "parameters of no node"),
    ],
)
def test_refusals(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(BfiaRefused, match=why):
        mapping.job_spec(request(**changes))


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"job_id": 1}', b"\xff", b"[" * 100_000, b"x" * (5 << 20)])
def test_bodies_that_are_none(body: bytes) -> None:
    with pytest.raises(BfiaRefused):
        wire.read(body, CreateJobRequest)


NAMES = ["a", "b", "c", "d", "e"]


@st.composite
def requests(draw: st.DrawFn) -> CreateJobRequest:
    """A DAG whose components use only what earlier ones give."""
    count = draw(st.integers(1, 5))
    components: list[dict[str, Any]] = []
    for number in range(count):
        outputs = [{"type": "dataset", "key": f"o{each}"} for each in range(draw(st.integers(0, 2)))]
        offered = [
            {"type": each["type"], "key": f"{earlier['name']}.{each['key']}"}
            for earlier in components
            for each in earlier["output"]
        ]
        inputs = draw(st.lists(st.sampled_from(offered), max_size=3)) if offered else []
        components.append({"code": "image", "name": NAMES[number], "input": inputs, "output": outputs})
    nodes = {"guest": ["alice"], "host": draw(st.sampled_from([["bob"], ["bob", "carol"]]))}
    params: dict[str, dict[str, dict[str, Any]]] = {"guest": {"0": {}}, "host": {}}
    for name in NAMES[:count]:
        params["guest"]["0"][name] = draw(st.dictionaries(st.sampled_from("xyz"), st.integers(), max_size=2))
        for index in range(len(nodes["host"])):
            if draw(st.booleans()):
                params["host"].setdefault(str(index), {})[name] = {}
    plain = {
        "job_id": "j",
        "dag": {"components": components},
        "config": {"role": nodes, "initiator": {"role": "guest", "node_id": "alice"}, "task_params": params},
    }
    return wire.read(json.dumps(plain).encode(), CreateJobRequest)


@given(requests())
def test_any_dag_survives_the_way_there_and_back(asked: CreateJobRequest) -> None:
    spec = mapping.job_spec(asked)
    back = mapping.create_request(KusciaJob(metadata=ObjectMeta(name="j"), spec=spec))
    assert msgspec.to_builtins(back) == msgspec.to_builtins(asked)
    assert mapping.job_spec(back) == spec
    order = [task.alias for task in spec.tasks]
    for task in spec.tasks:
        assert all(order.index(each) < order.index(task.alias) for each in task.dependencies or ())


@given(requests(), st.sets(st.sampled_from(["alice", "bob", "carol"]), min_size=1))
def test_a_participant_has_its_own_tasks_and_what_they_need_of_each_other(
    asked: CreateJobRequest, own: set[str]
) -> None:
    whole = {task.alias: task for task in mapping.job_spec(asked).tasks}
    try:
        kept = {task.alias: task for task in own_part(mapping.job_spec(asked), own).tasks}
    except BfiaRefused:
        assert not any(own & {party.domain_id for party in task.parties} for task in whole.values())
        return
    for name, task in whole.items():
        assert (name in kept) == bool(own & {party.domain_id for party in task.parties})
    for name, task in kept.items():
        assert set(task.dependencies or ()) == set(whole[name].dependencies or ()) & set(kept)
        assert (task.app_image, task.parties) == (whole[name].app_image, whole[name].parties)


_ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["", "alice", "bob", "intersect", "guest", "0", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "code", "guest", "0", "key", "type"]), inner, max_size=3)
    ),
    max_leaves=6,
)
_PLACES = ["job_id", "dag", "dag__components", "dag__components__0", "dag__components__0__input", "dag__components__1__output",
           "dag__components__1__name", "config", "config__role", "config__role__guest", "config__initiator", "config__task_params",
           "config__task_params__guest", "config__task_params__guest__0", "config__version"]  # fmt: skip


@given(st.sampled_from(_PLACES), _ANY)
def test_whatever_stands_anywhere_a_request_is_read_or_refused(place: str, value: Any) -> None:
    body = copy.deepcopy(REQUEST)
    *way, last = place.split("__")
    inside: Any = body
    for each in way:
        inside = inside[int(each)] if isinstance(inside, list) else inside[each]
    inside[int(last) if isinstance(inside, list) else last] = value
    try:
        asked = wire.read(json.dumps(body).encode(), CreateJobRequest)
        spec = mapping.job_spec(asked)
    except BfiaRefused:
        return
    assert {party.domain_id for task in spec.tasks for party in task.parties} <= {
        node for role in wire.ROLES for node in asked.config.role.of(role)
    }


def test_null_is_a_field_that_is_missing_but_in_parameters() -> None:
    body = copy.deepcopy(REQUEST)
    body["dag"]["components"][0]["input"] = None
    body["config"]["role"]["arbiter"] = None
    body["config"]["task_params"]["guest"]["0"]["train"] = {"rounds": None}
    del body["config"]["task_params"]["arbiter"]
    asked = wire.read(json.dumps(body).encode(), CreateJobRequest)
    assert asked.dag.components[0].input == ()
    assert asked.config.task_params.guest["0"]["train"] == {"rounds": None}
    mapping.job_spec(asked)


def task(phase: str, **parties: str) -> KusciaTask:
    return KusciaTask(
        metadata=ObjectMeta(name="t"),
        spec=KusciaTaskSpec(initiator="alice", task_input_config="", parties=()),
        status=KusciaTaskStatus(
            phase=phase,
            party_task_status=tuple(
                PartyTaskStatus(domain_id=role, role=role, phase=each) for role, each in parties.items()
            ),
        ),
    )


def test_states() -> None:
    assert mapping.task_state(None) == "PENDING" and mapping.task_state(task("Succeeded")) == "SUCCESS"
    both = task("Running", host="Succeeded", guest="Running")
    assert mapping.party_state(both, "host") == "SUCCESS" and mapping.party_state(both, "guest") == "RUNNING"
    assert mapping.party_state(both, "") == "RUNNING"
    assert mapping.party_state(task("Failed", host="Succeeded", guest="Failed"), "") == "FAILED"
    spec = mapping.job_spec(request())
    tasks = tuple(msgspec.structs.replace(each, task_id=f"{each.alias}-1") for each in spec.tasks)
    job = KusciaJob(metadata=ObjectMeta(name="j"), spec=msgspec.structs.replace(spec, tasks=tasks))
    assert mapping.job_states(job, {"intersect-1": task("Succeeded")}) == {
        "intersect-1": "SUCCESS",
        "train-1": "PENDING",
    }
    failed = msgspec.structs.replace(job, status=KusciaJobStatus(phase="Failed"))
    assert mapping.job_states(failed, {"intersect-1": task("Succeeded")})["train-1"] == "FAILED"


def test_the_environment_of_engines() -> None:
    second = mapping.job_spec(request()).tasks[1]
    content = mapping.task_input("train", second.task_input_config)
    specification = {
        "component.1.name": "psi",
        "component.2.name": "hetero_lr",
        "component.2.input.1.name": "train_set",
        "component.2.output.1.name": "trained",
    }
    found = variables("job-1", "train-1", content, "alice", {"intersect": "intersect-1"}, specification)
    assert found == {
        "config.task_id": "train-1",
        "config.session_id": "session_train-1",
        "config.trace_id": "trace_train-1",
        "config.token": "token_train-1",
        "config.self_role": "guest.0",
        "config.inst_id.host.0": "bob",
        "config.node_id.host.0": "bob",
        "config.inst_id.guest.0": "alice",
        "config.node_id.guest.0": "alice",
        "config.inst_id.arbiter.0": "carol",
        "config.node_id.arbiter.0": "carol",
        "runtime.component.name": "hetero_lr",
        "runtime.component.parameter.rounds": "3",
        "runtime.component.parameter.penalty": "L2",
        "runtime.component.input.train_set": '{"namespace":"job-1-guest-0","name":"intersect-1-train_data"}',
        "runtime.component.output.trained": '{"namespace":"job-1-guest-0","name":"train-1-model"}',
    }
    with pytest.raises(BfiaRefused, match="dave has no role"):
        variables("job-1", "train-1", content, "dave", {}, {})
