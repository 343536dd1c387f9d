"""A machine that lets an ordinary user make no namespaces: alice's. Bob's is an ordinary one."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from machines_kit import user_namespaces_allowed
from test_e2e_network_readme import PATIENCE, Organisations, introduce, organisations, until

pytestmark = [
    pytest.mark.xdist_group("e2e-network"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(not user_namespaces_allowed(), reason="user namespaces are forbidden here"),
]
SETTING = "user.max_user_namespaces"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Organisations]:
    with organisations(tmp_path_factory.mktemp("not-fenced"), ordinary=True, forbidden=("alice",)) as both:
        introduce(both)
        yield both


def run_job(made: Organisations, where: str, parties: str) -> tuple[int, str]:
    done = made[where].machine.try_("job", "run", "--engine", "sample", "--parties", parties, "--timeout", "90s")
    return done.returncode, done.stdout + done.stderr


def messages(made: Organisations, domain: str) -> list[str]:
    tasks = json.loads(made[domain].machine("get", "kt", "-A", "-o", "json"))["items"]
    return [str(task["status"].get("message", "")) for task in tasks if task["status"].get("phase") == "Failed"]


def test_status_says_so_and_names_the_setting_to_change(made: Organisations) -> None:
    lines = [line for line in made["alice"].machine("status").splitlines() if "NotFenced:" in line]
    assert len(lines) == 1 and f"{SETTING}=" in lines[0] and "sysctl" in lines[0]
    assert "NotFenced" not in made["bob"].machine("status")


def test_a_job_of_its_own_runs(made: Organisations) -> None:
    code, output = run_job(made, "alice", "alice")
    assert code == 0, output


@pytest.mark.parametrize("begun_by", ["bob", "alice"])
def test_a_job_that_cannot_run_fails_at_once_and_says_why_on_both_sides(made: Organisations, begun_by: str) -> None:
    """What a partner begins does not run; what alice begins with a partner needs names that pods cannot resolve there."""
    code, output = run_job(made, begun_by, "alice,bob")
    assert code == 1 and "NotFenced" in output, output
    for domain in ("alice", "bob"):
        assert "NotFenced" in messages(made, domain)[-1]
    pods = made["alice"].machine("get", "pods", "-A")
    assert "ContainerCreating" not in pods


def test_functions_are_refused_where_pods_have_no_network(made: Organisations) -> None:
    machine = made["alice"].machine
    (machine.home / "hello.py").write_text("def action(req):\n    return None\n")
    done = machine.try_("action", "create", "hello", "--script", "hello.py", "--http", "/hello")
    assert done.returncode != 0 and "NotFenced" in done.stderr and "coterie status" in done.stderr, done
    assert "hello" not in machine("action", "ls")


def test_functions_of_an_ordinary_user(made: Organisations) -> None:
    """At bob's, an ordinary machine."""
    machine = made["bob"].machine
    (machine.home / "hello.py").write_text(
        "from serverless import Response\ndef action(req):\n    return Response('Hello ' + req.param('name'))\n"
    )
    machine("action", "create", "hello", "--script", "hello.py", "--http", "/hello")

    def answer() -> str:
        done = machine.try_("action", "invoke", "hello", "--param", "name=Ann", "--timeout", "30s")
        return done.stdout.strip()

    until("the function answers", lambda: answer() == "Hello Ann", PATIENCE)
    assert "hello" in machine("action", "graph")
    machine("action", "trigger", "rm", "hello-http")
    machine("action", "rm", "hello")
