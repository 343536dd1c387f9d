"""What makes a job invalid: one row for each rule, with the field that is named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coterie.kube.api.meta import Object
from coterie.kuscia.api.jobs.references import reference_problems
from coterie.kuscia.api.jobs.validation import Problem, job_problems, quantity_problem
from coterie.kuscia.api.types.domain import Domain
from coterie.kuscia.api.types.job import AppImage, KusciaJobSpec


def a_task(alias: str = "a", *after: str, **more: Any) -> Object:
    parties = [{"domainID": "alice"}, {"domainID": "bob"}]
    task: Object = {"alias": alias, "appImage": "engine", "taskInputConfig": "{}", "parties": parties, **more}
    return {**task, "dependencies": list(after)} if after else task


def a_spec(*tasks: Object, **more: Any) -> KusciaJobSpec:
    return msgspec.convert({"initiator": "alice", "tasks": tasks, **more}, KusciaJobSpec)


def party(**more: Any) -> Object:
    return a_task(parties=[{"domainID": "alice", **more}])


def resources(**more: Any) -> Object:
    return party(resources=more)


VALID = {
    "plain": a_spec(a_task()),
    "several": a_spec(a_task(), a_task("b", "a"), a_task("c", "a", "b"), maxParallelism=128, scheduleMode="BestEffort"),
    "no-amount": a_spec(resources(requests={"cpu": 0}, limits={"cpu": "0"})),
    "equal": a_spec(resources(requests={"cpu": "1000m"}, limits={"cpu": 1})),
    "two-roles": a_spec(a_task(parties=[{"domainID": "alice", "role": "x"}, {"domainID": "alice", "role": "y"}])),
    "generated-id": a_spec(a_task(taskID="j" * 200 + "-0123456789ab")),
    "all-members": a_spec(a_task(scheduleConfig={"minReservedMembers": 2, "lifecycleSeconds": 0})),
}


@pytest.mark.parametrize("spec", VALID.values(), ids=VALID.keys())
def test_a_valid_job_has_no_problem(spec: KusciaJobSpec) -> None:
    assert job_problems("job-1", spec) == []


ROWS = [
    (a_spec(a_task(), initiator=""), "initiator", "must be given"),
    (a_spec(a_task(), initiator="A"), "initiator", "a lowercase"),
    (a_spec(), "tasks", "name at least one"),
    (a_spec(*(a_task(f"t{n}") for n in range(129))), "tasks", "are 129"),
    (a_spec(a_task(), maxParallelism=129), "maxParallelism", "at most 128"),
    (a_spec(a_task(), maxParallelism=-1), "maxParallelism", "negative"),
    (a_spec(a_task(), scheduleMode="Sometimes"), "scheduleMode", "Strict or BestEffort"),
    (a_spec(a_task("")), "tasks[0].alias", "must be given"),
    (a_spec(a_task(), a_task()), "tasks[1].alias", '"a" is the alias of tasks[0] too'),
    (a_spec(a_task(appImage="")), "tasks[0].appImage", "must be given"),
    (a_spec(a_task(taskID="a.b")), "tasks[0].taskID", "a lowercase"),
    (a_spec(a_task(taskID="a" * 214)), "tasks[0].taskID", "no more than 213"),
    (a_spec(a_task(taskID="t"), a_task("b", taskID="t")), "tasks[1].taskID", '"t" is the task id of tasks[0] too'),
    (a_spec(a_task("a", "x")), "tasks[0].dependencies", 'no task with the alias "x"'),
    (a_spec(a_task("a", "a")), "tasks[0].dependencies", '"a" waits for itself'),
    (a_spec(a_task("a", "b"), a_task("b", "a")), "tasks", "in a circle: a -> b -> a"),
    (a_spec(a_task(parties=[])), "tasks[0].parties", "name at least one"),
    (a_spec(a_task(parties=[{"domainID": "a"}] * 2)), "tasks[0].parties[1]", "a is named twice"),
    (a_spec(a_task(parties=[{"domainID": ""}])), "tasks[0].parties[0].domainID", "must be given"),
    (a_spec(party(role="a b")), "tasks[0].parties[0].role", "alphanumeric"),
    (a_spec(resources(limits={"cpu": "two"})), "tasks[0].parties[0].resources.limits.cpu", '"two" is no quantity'),
    (a_spec(resources(requests={"cpu": "-1"})), "tasks[0].parties[0].resources.requests.cpu", "negative"),
    (
        a_spec(resources(requests={"cpu": 2}, limits={"cpu": "1"})),
        "tasks[0].parties[0].resources.requests.cpu",
        "more than its limit 1",
    ),
    (
        a_spec(party(bandwidthLimits=[{"destinationID": "", "limitKBps": 1}])),
        "tasks[0].parties[0].bandwidthLimits[0].destinationID",
        "must be given",
    ),
    (
        a_spec(party(bandwidthLimits=[{"destinationID": "bob", "limitKBps": 0}])),
        "tasks[0].parties[0].bandwidthLimits[0].limitKBps",
        "between 1 and",
    ),
    (a_spec(a_task(scheduleConfig={"lifecycleSeconds": -1})), "tasks[0].scheduleConfig.lifecycleSeconds", "negative"),
    (
        a_spec(a_task(scheduleConfig={"activeDeadlineSeconds": 0})),
        "tasks[0].scheduleConfig.activeDeadlineSeconds",
        "at least 1",
    ),
    (
        a_spec(a_task(scheduleConfig={"minReservedMembers": 3})),
        "tasks[0].scheduleConfig.minReservedMembers",
        "is 3, but there are 2 parties",
    ),
]


@pytest.mark.parametrize(("spec", "field", "text"), ROWS, ids=[f"{row[1]}-{row[2]}" for row in ROWS])
def test_one_problem_is_found_and_its_field_named(spec: KusciaJobSpec, field: str, text: str) -> None:
    (problem,) = job_problems("job-1", spec)
    assert problem.field == field and text in problem.text
    assert str(problem) == f"{field}: {problem.text}"


@pytest.mark.parametrize("name", ["", "a.b", "A", "a" * 254])
def test_a_name_that_tasks_cannot_be_named_after(name: str) -> None:
    assert [problem.field for problem in job_problems(name, a_spec(a_task()))] == ["metadata.name"]


def test_all_problems_are_found_at_once() -> None:
    found = job_problems("j", a_spec(a_task("", "x", appImage="", parties=[])))
    assert [problem.field.removeprefix("tasks[0].") for problem in found] == [
        "alias",
        "appImage",
        "parties",
        "dependencies",
    ]


@pytest.mark.parametrize(
    ("amount", "zero", "said"),
    [("0", True, ""), ("0", False, "more than 0"), ("-1", True, "negative"), ("1", False, ""), (2, False, "")],
)
def test_amounts(amount: str | int, zero: bool, said: str) -> None:
    problem = quantity_problem(amount, zero=zero)
    assert said in problem and bool(said) == bool(problem)


# Objects that a job names.


def a_domain(name: str, role: str = "") -> Domain:
    return msgspec.convert({"metadata": {"name": name}, "spec": {"role": role}}, Domain)


IMAGE = msgspec.convert(
    {
        "metadata": {"name": "engine"},
        "spec": {
            "image": {"name": "e", "tag": "1"},
            "deployTemplates": [{"name": "t", "role": "guest", "spec": {"containers": []}}],
        },
    },
    AppImage,
)
HERE = {"alice": a_domain("alice"), "bob": a_domain("bob", "partner")}


def with_roles(alice: str, bob: str) -> Object:
    return a_task(parties=[{"domainID": "alice", "role": alice}, {"domainID": "bob", "role": bob}])


REFERENCES = [
    # spec, domains, AppImages, what is wrong, what is missing
    (a_spec(with_roles("guest", "x")), HERE, {"engine": IMAGE}, [], []),
    (a_spec(with_roles("x", "guest")), HERE, {"engine": IMAGE}, ["tasks[0].parties[0].role"], []),
    (a_spec(with_roles("guest", "")), HERE, {}, [], ["tasks[0].appImage"]),
    (a_spec(a_task(parties=[{"domainID": "bob"}])), HERE, {}, [], []),
    (
        a_spec(a_task(parties=[{"domainID": "zoe"}]), initiator="eve"),
        HERE,
        {},
        [],
        ["initiator", "tasks[0].parties[0].domainID"],
    ),
]
IDS = ["all-there", "no-such-role", "no-image", "only-partners-run-it", "unknown-domains"]


@pytest.mark.parametrize(("spec", "domains", "images", "wrong", "missing"), REFERENCES, ids=IDS)
def test_what_a_job_names_must_be_there(
    spec: KusciaJobSpec, domains: dict[str, Domain], images: dict[str, AppImage], wrong: list[str], missing: list[str]
) -> None:
    def fields(problems: list[Problem]) -> list[str]:
        return [problem.field for problem in problems]

    found = reference_problems(spec, domains, images)
    assert (fields(found.wrong), fields(found.missing)) == (wrong, missing)
