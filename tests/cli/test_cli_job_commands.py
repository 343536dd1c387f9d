"""`coterie job ...` against a real API server with the real job controller."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from job_plane import TOKEN, JobPlane, a_job, a_task, plane

from coterie.kube.client import kubeconfig

running_plane = pytest.fixture(plane, scope="module", name="running_plane")
IMAGE = {
    "apiVersion": "kuscia.secretflow/v1alpha1",
    "kind": "AppImage",
    "metadata": {"name": "other"},
    "spec": {
        "image": {"name": "coterie/host", "tag": "latest"},
        "deployTemplates": [
            {"name": "t", "role": "guest,host", "spec": {"containers": [{"name": "main", "workingDir": "/work"}]}}
        ],
    },
}


@pytest.fixture
def job(cli, running_plane: JobPlane):
    """`job("run", ...)` is `coterie job run ...`."""
    file = cli.folder / "job-kubeconfig"
    kubeconfig.make("jobs", f"http://127.0.0.1:{running_plane.port}", token=TOKEN).write(file)
    cli.environ["KUBECONFIG"] = str(file)
    return lambda *words, stdin="": cli("job", *words, stdin=stdin)


@pytest.fixture
def name(request) -> str:
    return "j-" + "".join(char if char.isalnum() else "-" for char in request.node.name.lower()).strip("-")[-50:]


def text(*objects: object) -> str:
    return "---\n".join(yaml.safe_dump(each) for each in objects)


def diamond(name: str, **scripts: str) -> str:
    tasks = [("split",), ("left", "split"), ("right", "split"), ("merge", "left", "right")]
    return text(a_job(name, *(a_task(*each, script=scripts.get(each[0], "ok")) for each in tasks)))


def begin(job: Callable, name: str, script: str = "hang") -> None:
    made = job("run", "-", "--no-wait", stdin=text(a_job(name, a_task("only", script=script))))
    assert made.code == 0, made.err
    assert f"coterie job watch {name}" in made.out


def until(job: Callable, name: str, phase: str) -> None:
    """Watching is waiting: the log says when the phase is reached; here a loop of looks is enough."""
    for _ in range(600):
        shown = json.loads(job("show", name, "-o", "json").out)
        if (shown.get("status") or {}).get("phase") == phase:
            return
        threading.Event().wait(0.05)
    raise AssertionError(shown.get("status"))


# run


def test_a_job_is_followed_to_its_end(job, name):
    told = job("run", "-", stdin=diamond(name))
    assert told.code == 0, told.err
    assert told.lines[0] == f"job {name} created"
    assert told.lines[-1].endswith(f"job {name} is Succeeded")
    for alias in ("split", "left", "right", "merge"):
        assert f"task {alias} is Succeeded" in told.out
    assert told.out.index("task split is Succeeded") < told.out.index("task merge is ")


def test_a_job_that_fails_says_why_and_what_next(job, name):
    told = job("run", "-", stdin=diamond(name, left="fail", right="hang"))
    assert told.code == 1
    assert "task left is Failed" in told.out
    assert "exited with 3" in told.out
    assert "no pears" in told.err  # the whole message, not only its first line
    assert f"coterie job logs {name}" in told.err


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_output_for_programs_is_the_job_alone(job, name, form):
    told = job("run", "-", "-o", form, stdin=diamond(name))
    assert told.code == 0, told.err
    assert yaml.safe_load(told.out)["status"]["phase"] == "Succeeded"


def test_an_engine_and_parties_are_enough(job, name):
    told = job("run", "--engine", "sample", "--parties", "alice,bob", "--name", name)
    assert (told.code, told.lines[0]) == (0, f"job {name} created")
    made = job("run", "--engine", "sample", "--parties", "bob,alice", "--dry-run", "-o", "json")
    planned = json.loads(made.out)
    assert planned["metadata"]["name"].startswith("sample-")
    assert planned["spec"]["initiator"] == "bob"
    assert planned["spec"]["tasks"][0]["taskInputConfig"] == "{}"


def test_a_job_starts_at_a_domain_of_ours(job):
    planned = json.loads(job("run", "--engine", "sample", "--parties", "carol,bob", "--dry-run", "-o", "json").out)
    assert planned["spec"]["initiator"] == "bob"


def test_options_of_an_engine_reach_the_job(job, cli):
    (cli.folder / "in.json").write_text('{"a": 1}')
    told = job(
        "run", "--engine", "psi", "--parties", "alice,bob", "--input", "@in.json", "--role", "alice=guest,bob=host",
        "--cpu", "2", "--memory", "alice=8Gi,bob=4Gi", "--bandwidth", "bob=100", "--dry-run", "-o", "json",
    )  # fmt: skip
    (task,) = json.loads(told.out)["spec"]["tasks"]
    assert task["taskInputConfig"] == '{"a": 1}'
    alice, bob = task["parties"]
    assert alice == {
        "domainID": "alice",
        "role": "guest",
        "resources": {"requests": {"cpu": "2", "memory": "8Gi"}, "limits": {"cpu": "2", "memory": "8Gi"}},
    }
    assert bob["resources"]["limits"] == {"cpu": "2", "memory": "4Gi", "kuscia.io/bandwidth": "100"}


def test_retries_and_stalls_of_all_tasks(job, cli):
    options = ("--retry", "3", "--retry-backoff", "30s", "--stall-seconds", "600", "--stall-action", "restart")
    told = job("run", "--engine", "psi", "--parties", "alice,bob", *options, "--dry-run", "-o", "json")
    (task,) = json.loads(told.out)["spec"]["tasks"]
    wanted = {"retry": {"count": 3, "backoffSeconds": 30}, "stallSeconds": 600, "stallAction": "Restart"}
    assert task["scheduleConfig"] == wanted


def test_other_objects_in_the_file_are_applied_first(job, cli, name):
    of_other = {**a_task("only"), "appImage": "other"}
    for party, role in zip(of_other["parties"], ("guest", "host"), strict=True):
        party["role"] = role
    (cli.folder / "both.yaml").write_text(text(a_job(name, of_other), IMAGE))
    told = job("run", "both.yaml")
    assert told.code == 0, told.err
    assert told.lines[:2] == ["appimage.kuscia.secretflow/other applied", f"job {name} created"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"appImage": "simple"}, ['no AppImage "simple"', "coterie engine ls"]),
        ({"parties": [{"domainID": "zoe"}]}, ['no domain "zoe"', "coterie get domains"]),
        ({"dependencies": ["only"]}, ["waits for itself"]),
    ],
    ids=["engine", "party", "graph"],
)
def test_what_cannot_run_is_not_created(job, name, change, said):
    told = job("run", "-", stdin=text(a_job(name, {**a_task("only"), **change})))
    assert told.code == 1
    for words in said:
        assert words in told.err
    assert job("show", name).code == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name either a FILE or an engine"),
        (("a.yaml", "--engine", "x"), "name either a FILE or an engine"),
        (("--engine", "x"), "--parties alice,bob"),
        (("a.yaml", "--cpu", "2"), "--cpu is for jobs from --engine"),
        (("a.yaml", "--retry-backoff", "30s"), "--retry-backoff needs --retry"),
        (("a.yaml", "--stall-action", "fail"), "--stall-action needs --stall-seconds"),
        (("a.yaml", "--no-wait", "--timeline"), "leave out --no-wait"),
        (("--engine", "x", "--parties", "a", "--cpu", "b=2", "--dry-run"), "with one of the parties a"),
        (("--engine", "x", "--parties", "a", "--role", "guest", "--dry-run"), "is not ID=VALUE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_typed_wrongly(job, words, said):
    told = job("run", *words)
    assert told.code == 2, told.err
    assert said in told.err


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ([IMAGE], "no KusciaJob"),
        ([a_job("a", a_task("x")), a_job("b", a_task("x"))], "2 jobs in the file"),
        ([{**a_job("a", a_task("x")), "metadata": {"name": "a", "namespace": "alice"}}], "jobs live in the namespace"),
        ([{**a_job("a", a_task("x")), "metadata": {}}], "metadata.name is missing"),
    ],
    ids=["none", "several", "elsewhere", "nameless"],
)
def test_files_that_are_no_job(job, objects, said):
    told = job("run", "-", stdin=text(*objects))
    assert told.code == 1
    assert said in told.err


def test_a_name_that_is_taken(job, name):
    assert job("run", "-", stdin=diamond(name)).code == 0
    told = job("run", "-", stdin=diamond(name))
    assert told.code == 1
    assert f"there is a job {name} already, it is Succeeded" in told.err
    assert job("run", "-", "--name", f"{name}-2", stdin=diamond(name)).code == 0


def test_patience_ends(job, name):
    told = job("run", "-", "--timeout", "0.3", stdin=text(a_job(name, a_task("only", script="hang"))))
    assert told.code == 124
    assert f"coterie job stop {name}" in told.err


# orders


def test_a_job_is_stopped_restarted_and_cancelled(job, name):
    begin(job, name)
    until(job, name, "Running")
    stopped = job("stop", name)
    assert (stopped.code, stopped.out) == (0, f"job {name} stopped; it is Failed\n"), stopped.err
    assert job("watch", name).code == 1
    again = job("restart", name)
    assert again.code == 0, again.err
    until(job, name, "Running")
    assert job("suspend", name).out == f"job {name} suspended; it is Suspended\n"
    assert job("cancel", name).out == f"job {name} cancelled; it is Cancelled\n"
    assert job("watch", name).code == 3
    labels = json.loads(job("show", name, "-o", "json").out)["metadata"]["labels"]
    assert labels["kuscia.secretflow/job-stage"] == "Cancel"
    assert labels["kuscia.secretflow/job-stage-trigger"] == "alice"


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("stop", "is Succeeded, which is the end; there is nothing to stop"),
        ("cancel", "nothing to cancel"),
        ("suspend", "nothing to suspend"),
        ("restart", "only a job that is Failed or Suspended can be restarted"),
        ("approve", "waits for nobody's approval"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(job, name, action, said):
    assert job("run", "-", stdin=diamond(name)).code == 0
    told = job(action, name)
    assert told.code == 1
    assert said in told.err


def test_orders_are_given_in_the_name_of_a_party(job, name):
    begin(job, name)
    until(job, name, "Running")
    assert job("stop", name, "--as", "zoe").code == 2
    told = job("stop", name, "--as", "bob", "-o", "json")
    assert json.loads(told.out)["status"]["message"] == "Party: bob execute the cmd: Stop."


def test_an_unknown_job(job):
    for action in ("stop", "watch", "show", "logs", "graph", "approve", "rm"):
        told = job(action, "nobody-knows-it")
        assert told.code == 1, action
        assert "`coterie job ls` lists those there are" in told.err, action
    assert job("rm", "nobody-knows-it", "--ignore-not-found").code == 0


# approval: carol starts jobs in which bob takes part


@pytest.fixture
def foreign(job, name):
    made = job(
        "run", "-", "--no-wait", stdin=text(a_job(name, a_task("only", parties=("carol", "bob")), initiator="carol"))
    )
    assert made.code == 0, made.err
    until(job, name, "AwaitingApproval")
    return name


def test_a_partners_job_is_accepted(job, foreign):
    assert foreign in job("ls", "--phase", "AwaitingApproval").out
    told = job("approve", foreign)
    assert told.code == 0, told.err
    assert told.out.startswith(f"job {foreign} accepted for bob; it is ")
    assert "AwaitingApproval" not in told.out


def test_a_partners_job_is_rejected(job, foreign):
    assert job("approve", foreign, "--as", "alice").code == 2
    assert "goes with --reject" in job("approve", foreign, "--reason", "no").err
    told = job("approve", foreign, "--reject", "--reason", "no contract")
    assert told.out == f"job {foreign} rejected for bob; it is ApprovalReject\n"
    watched = job("watch", foreign)
    assert watched.code == 3
    assert "Party: bob approval reject. rejected: no contract" in watched.out


def test_our_own_job_is_for_others_to_approve(job, name):
    assert job("run", "-", "--no-wait", stdin=text(a_job(name, a_task("x", parties=("alice", "carol"))))).code == 0
    until(job, name, "AwaitingApproval")
    told = job("approve", name)
    assert told.code == 1
    assert "waits for the approval of carol" in told.err


# looking


def test_jobs_are_listed(job, name):
    assert job("run", "-", stdin=diamond(name)).code == 0
    told = job("ls")
    assert told.lines[0].split() == ["NAME", "INITIATOR", "PHASE", "TASKS", "PROGRESS", "AGE", "DURATION", "MESSAGE"]
    (row,) = [line.split() for line in told.lines if line.startswith(f"{name} ")]
    assert row[1:5] == ["alice", "Succeeded", "4/4", "100%"]
    wide = next(line for line in job("list", "-o", "wide").lines if line.startswith(f"{name} "))
    assert "alice,bob" in wide
    assert f"kusciajob.kuscia.secretflow/{name}" in job("ls", "-o", "name").lines
    items = json.loads(job("ls", "--phase", "succeeded", "-o", "json").out)["items"]
    assert {item["status"]["phase"] for item in items} == {"Succeeded"}


def test_a_job_is_shown(job, name):
    assert job("run", "-", stdin=diamond(name, left="fail")).code == 1
    told = job("show", name)
    assert told.code == 0, told.err
    assert "✘" in told.out
    assert "Not run" in told.out
    assert "Initiator:" in told.out
    assert "Events:" in job("describe", name).out


def test_the_graph(job, name, cli):
    (cli.folder / "job.yaml").write_text(diamond(name))
    drawn = "●    split\n├─┐\n● │  left\n│ ●  right\n├─┘\n●    merge\n"
    assert job("graph", "-f", "job.yaml").out == drawn
    assert job("run", "job.yaml").code == 0
    assert job("graph", name).out == drawn
    assert "t0 --> t1" in job("graph", name, "-o", "mermaid").out
    tasks = json.loads(job("graph", name, "-o", "json").out)["tasks"]
    assert [task["layer"] for task in tasks] == [0, 1, 1, 2]
    (cli.folder / "ring.yaml").write_text(text(a_job("ring", a_task("a", "b"), a_task("b", "a"))))
    ring = job("graph", "-f", "ring.yaml")
    assert (ring.code, "in a circle: a -> b -> a" in ring.err) == (1, True)
    assert job("graph").code == 2


def test_the_timeline(job, name, cli):
    told = job("run", "-", "--timeline", "--svg", "time.svg", stdin=diamond(name))
    assert told.code == 0, told.err
    assert "The longest chain: split -> " in told.out
    assert "in all: " in told.out
    assert (cli.folder / "time.svg").read_text().startswith("<svg ")
    shown = job("show", name, "--timeline")
    assert "whole seconds" in shown.out
    assert json.loads(job("show", name, "--timeline", "-o", "json").out)["name"] == name
    assert job("show", name, "--svg", "none/such.svg").code == 1


def test_removing(job, name):
    begin(job, name)
    kept = job("rm", name)
    assert kept.code == 1
    assert f"end it first with `coterie job stop {name}`, or add --force" in kept.err
    assert job("delete", name, "--force").out == f"job {name} removed\n"
    assert job("show", name).code == 1


def test_a_job_that_is_deleted_while_it_is_watched(job, name):
    begin(job, name)
    results = []
    watching = threading.Thread(target=lambda: results.append(job("watch", name)))
    watching.start()
    until(job, name, "Running")
    assert job("rm", name, "--force").code == 0
    watching.join(30)
    assert results[0].code == 1
    assert "deleted" in results[0].err or "there is no job" in results[0].err


# logs


def keep(root: Path, party: str, pod: str, *lines: str, uid: str = "u1", run: int = 0, age: int = 0) -> None:
    """The output of a pod as its node keeps it."""
    folder = root / party / "var/stdout/pods" / f"{party}_{pod}_{uid}"
    (folder / "main").mkdir(parents=True)
    text = "".join(f"2026-01-02T03:04:05.000000000Z stdout F {line}\n" for line in lines)
    (folder / "main" / f"{run}.log").write_text(text)
    stamp = 1_700_000_000 - age
    os.utime(folder, (stamp, stamp))


def pod_of(job: Callable, name: str) -> str:
    entries = json.loads(job("logs", name, "--files", "-o", "json").out)
    return str(entries[0]["pod"])


def test_kept_output_of_pods_that_are_gone(job, name, cli):
    assert job("run", "--engine", "sample", "--parties", "alice,bob", "--name", name).code == 0
    pod = pod_of(job, name)
    root = cli.folder / ".coterie"
    keep(root, "alice", pod, "hello", "from alice")
    keep(root, "alice", pod, "an earlier run", uid="u0", age=100)
    keep(root, "bob", pod, "bob speaks")
    told = job("logs", name)
    assert told.lines == ["alice/sample/0 | hello", "alice/sample/0 | from alice", "bob/sample/0 | bob speaks"]
    assert told.code == 0
    assert job("logs", name, "--party", "alice", "--tail", "1", "--no-prefix").lines == ["from alice"]
    assert job("logs", name, "--task", "sample", "--party", "bob", "-f").lines == ["bob/sample/0 | bob speaks"]


def test_output_that_is_elsewhere(job, name):
    assert job("run", "-", stdin=text(a_job(name, a_task("only", script="fail")))).code == 1
    told = job("logs", name, "--party", "bob")
    assert told.code == 1
    assert "node bob-node keeps its output" in told.err
    assert told.lines == ["bob/only/0 | cannot add apples to pears"]


def test_logs_of_what_is_not_there(job, name):
    begin(job, name, "wait")
    assert "has no task" in job("logs", name, "--task", "zzz").err
    assert "takes no part" in job("logs", name, "--party", "carol").err
    assert job("logs", name, "-f", "--files").code == 2
    assert "--grep: is no regular expression" in job("logs", name, "--grep", "(").err
    assert "--since: 'x' is neither" in job("logs", name, "--since", "x").err
    assert "--source: 'kernel' is unknown" in job("logs", name, "--source", "kernel").err


def test_partners_have_their_own_logs(job, foreign):
    told = job("logs", foreign)
    assert "No task of job" in told.err
    assert '--party carol --ask "why"` asks for its lines' in told.err


def test_limits_of_a_running_job(job, cli, name):
    begin(job, name)
    until(job, name, "Running")
    made = job("limit", name, "--to", "bob", "--party", "alice", "8Mbps")
    assert made.code == 0 and "alice to bob 8Mbps" in made.out, made.err

    def limits() -> list:
        listed = json.loads(cli("get", "kusciatasks", "-n", "cross-domain", "-o", "json").out)["items"]
        (task,) = [each for each in listed if each["metadata"]["annotations"]["kuscia.secretflow/job-id"] == name]
        return [party.get("bandwidthLimits", []) for party in task["spec"]["parties"]]

    assert limits() == [[{"destinationID": "bob", "limitKBps": 976}], []]
    assert job("limit", name, "--to", "bob", "--party", "alice", "none").code == 0
    assert limits() == [[], []]
    assert job("limit", name, "--to", "bob", "--party", "carol", "1Mbps").code == 2
    refused = job("limit", name, "--to", "bob", "1MB/s")
    assert refused.code == 2 and "in bytes" in refused.err
    assert job("limit", name, "--to", "zoe", "--party", "alice", "1Mbps").code == 1
    job("stop", name)


def test_bandwidth_is_shown_and_set(job, cli):
    shown = cli("bandwidth", "-o", "json")
    assert [each["domain"] for each in json.loads(shown.out)["domains"]] == ["alice", "bob"], "carol is a partner"
    assert cli("bandwidth", "--of", "carol").code == 1
    assert cli("bandwidth", "--link", "alice,zoe", "1Gbps").code == 1
    for wrong in (["--link", "a,b"], ["1Gbps"], ["--node", "n", "1kbps"], ["--node", "n", "fast"]):
        assert cli("bandwidth", *wrong).code == 2
    route = {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "ClusterDomainRoute",
        "metadata": {"name": "alice-bob"},
        "spec": {"source": "alice", "destination": "bob", "authenticationType": "Token"},
    }
    assert cli("apply", "-f", "-", stdin=text(route)).code == 0
    assert "100Mbps" in cli("bandwidth", "--link", "bob,alice", "100Mbps").out
    found = json.loads(cli("get", "clusterdomainroute", "alice-bob", "-o", "json").out)
    assert found["metadata"]["annotations"]["coterie.io/link-bandwidth"] == "100Mbps"
    cli("delete", "clusterdomainroute", "alice-bob")
