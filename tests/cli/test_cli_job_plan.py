"""`coterie job run --dry-run=plan` against a real API server with the real controller."""

from __future__ import annotations

import json

import pytest
import yaml
from job_plane import TOKEN, JobPlane, a_job, a_task, plane

from coterie.cli.jobs.plan_view import EXIT_CODES, plan_lines
from coterie.kube.client import kubeconfig
from coterie.kuscia.api.job_plans import completed
from coterie.kuscia.api.types.job_plan import (
    JobOutlook,
    PartyPlan,
    PlanAnswer,
    PlannedApproval,
    PlannedEngine,
    PlannedLink,
    PlannedPlacement,
    PlannedTable,
)

planning_plane = pytest.fixture(plane, scope="module", name="planning_plane")


@pytest.fixture
def run(cli, planning_plane: JobPlane):
    file = cli.folder / "plan-kubeconfig"
    kubeconfig.make("plans", f"http://127.0.0.1:{planning_plane.port}", token=TOKEN).write(file)
    cli.environ["KUBECONFIG"] = str(file)
    return lambda *words, stdin="": cli(*words, stdin=stdin)


def a_file(**more: object) -> str:
    return yaml.safe_dump(a_job("planned", a_task("only", **more)))


def test_a_plan_is_shown_and_nothing_is_left(run) -> None:
    told = run("job", "run", "-", "--dry-run=plan", stdin=a_file())
    assert told.code == 3, told.out + told.err  # there is no node, so the job would wait
    assert "alice: would wait" in told.out and "bob: would wait" in told.out
    assert "engine      only: sample latest" in told.out and "approval    not needed" in told.out
    assert told.lines[-1] == "The job would wait for alice, bob"
    assert run("job", "ls").out.count("planned") == 0
    assert "No resources found" in run("get", "jobplanrequests", "-A").out + run("get", "jobplanrequests", "-A").err


def test_a_plan_for_programs(run) -> None:
    told = run("job", "run", "-", "--dry-run=plan", "-o", "json", stdin=a_file())
    shown = json.loads(told.out)
    assert (shown["job"], shown["outlook"], told.code) == ("planned", "Waits", 3)
    assert [each["domain"] for each in shown["answers"]] == ["alice", "bob"]
    assert shown["answers"][0]["plan"]["detail"] == "own"


def test_a_party_that_does_not_answer_is_named(run) -> None:
    parties = ("--engine", "sample", "--parties", "alice,carol")
    told = run("job", "run", *parties, "--dry-run=plan", "--timeout", "1s")
    assert told.code == 3 and "carol: unknown" in told.out
    assert "answer      no answer within 1 s: its control plane is down" in told.out
    assert "no plan of carol" in told.lines[-1]


def test_a_job_that_would_not_run(run) -> None:
    told = run("job", "run", "--engine", "missing", "--parties", "alice,bob", "--dry-run=plan")
    assert told.code == 1 and 'alice: there is no AppImage "missing"' in told.out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--dry-run=plans", "--engine", "sample", "--parties", "alice"), "there are --dry-run and --dry-run=plan"),
        (("--dry-run=plan", "-o", "name", "--engine", "sample", "--parties", "alice"), "-o name is for jobs"),
        (("--dry-run=plan", "--timeout", "5m", "--engine", "sample", "--parties", "alice"), "60 seconds at most"),
    ],
)
def test_wrong_usage(run, words, text) -> None:
    told = run("job", "run", *words)
    assert told.code == 2 and text in told.err


def test_nobody_can_be_asked(run) -> None:
    told = run("job", "run", "--engine", "sample", "--parties", "carol", "--initiator", "carol", "--dry-run=plan")
    assert told.code == 1 and "carol is a partner; ask at its own control plane" in told.err
    told = run("job", "run", "--engine", "sample", "--parties", "alice", "--initiator", "nobody", "--dry-run=plan")
    assert told.code == 1 and 'there is no domain "nobody"' in told.err


def test_the_file_may_stand_behind_the_option(run, cli) -> None:
    (cli.folder / "plan.yaml").write_text(a_file())
    told = run("job", "run", "--dry-run", "plan.yaml")
    assert told.code == 0 and yaml.safe_load(told.out)["metadata"]["name"] == "planned"


def test_every_part_of_a_plan_has_a_line() -> None:
    plan = PartyPlan(
        domain="bob",
        outlook=str(JobOutlook.FAILS),
        detail="summary",
        approval=PlannedApproval(verdict="Ask", by="person", rules=("hours",)),
        tables=(
            PlannedTable(task="a", table="visitors", columns=("id",), grant="g", uses=1, uses_left=2),
            PlannedTable(task="a", table="salaries", problem="there is no grant for it"),
        ),
        engines=(PlannedEngine(task="a", app_image="psi", version="0.5"),),
        placements=(PlannedPlacement(task="a", role="host", pods=2, problem="not enough cpu"),),
        links=(PlannedLink(peer="alice", ready=True, requested="20 Mbit/s", capacity="50 Mbit/s"),),
        notes=("n",),
    )
    silent = PlanAnswer(domain="carol", phase="NoAnswer", message="no answer within 10 s: it is down")
    assert plan_lines(completed([PlanAnswer(domain="bob", phase="Answered", plan=plan), silent])) == [
        "bob: would not run (a summary, as its policy says)",
        "  approval    a person must approve it (hours)",
        "  table       a: visitors (id), grant g: 1 use, 2 left",
        "  table       a: salaries: there is no grant for it",
        "  engine      a: psi 0.5",
        "  placement   a: 2 pods as host would not fit: not enough cpu",
        "  link        to alice: ready, 20 Mbit/s requested of 50 Mbit/s",
        "  note        n",
        "",
        "carol: unknown",
        "  answer      no answer within 10 s: it is down",
        "",
        "The job would not run: see bob",
    ]
    assert set(EXIT_CODES) == set(JobOutlook) and EXIT_CODES[JobOutlook.RUNS] == 0
