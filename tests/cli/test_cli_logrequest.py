"""`coterie logrequest` against a real API server without controllers: what is made, found, shown and decided."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from test_cli_domain import certificate

from coterie.cli.commands import logrequest
from coterie.cli.log_requests import excerpt_line, excerpt_notes, row_of, sheet_of, shown_text
from coterie.kube.client import kubeconfig
from coterie.kuscia.api.log_requests import request_fault
from coterie.kuscia.api.types.log_request import LogExcerpt, LogRequest

API = "kuscia.secretflow/v1alpha1"


@pytest.fixture
def plane(live, monkeypatch):
    """`own-...` and its partner `bob-...`, who took part in the job `j-...`."""
    number = f"{abs(hash(str(live.folder))) % 10**8}"
    own = f"own-{number}"
    file = live.folder / "live-kubeconfig"
    connection = kubeconfig.read(file).resolve()
    kubeconfig.make(own, connection.server, token=connection.token, namespace=connection.namespace).write(file)
    live.own, live.peer, live.job = own, f"bob-{number}", f"j-{number}"
    (live.folder / "own.crt").write_text(certificate(own))
    (live.folder / "bob.crt").write_text(certificate(live.peer))
    assert live("domain", "add", own, "--cert", "own.crt", "-o", "json").code == 0
    assert live("domain", "add", live.peer, "--partner", "--cert", "bob.crt").code == 0
    task = {"alias": "a", "appImage": "e", "taskInputConfig": "{}"}
    task["parties"] = [{"domainID": own}, {"domainID": live.peer}]
    marks = {"kuscia.secretflow/interconn-self-parties": own}
    apply(live, {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": own}})
    apply(
        live,
        {
            "apiVersion": API,
            "kind": "KusciaJob",
            "metadata": {"name": live.job, "namespace": "cross-domain", "annotations": marks},
            "spec": {"initiator": own, "maxParallelism": 1, "tasks": [task]},
        },
    )
    monkeypatch.setattr(logrequest, "_PREVIEW_SECONDS", 0.0)
    return live


def apply(plane, *objects):
    for each in objects:
        done = plane("apply", "-f", "-", stdin=json.dumps(each))
        assert done.code == 0, done.err


def made(plane, *more):
    done = plane("logrequest", "create", plane.job, "--party", plane.peer, "--reason", "it failed", *more)
    assert done.code == 0, done.err
    return re.findall(r"log request (\S+) made", done.out)[0]


def test_a_request_says_what_and_why(plane):
    name = made(plane, "--task", "a", "--since", "1h", "--source", "engine,gateway", "--lines", "20", "--keep", "2h")
    spec = json.loads(plane("logrequest", "show", name, "-o", "json").out)["spec"]
    assert (spec["requester"], spec["owner"], spec["job"], spec["task"]) == (plane.own, plane.peer, plane.job, "a")
    assert spec["sources"] == ["engine", "gateway"] and spec["maxLines"] == 20 and spec["keepSeconds"] == 7200
    assert spec["since"].endswith("Z") and spec["requestedBy"]
    row = next(line for line in plane("logrequest", "ls").lines if line.startswith(name))
    assert row.split()[1:4] == ["out", plane.peer, f"{plane.job}/a"]
    assert "it failed" in plane("logrequest", "show", name).out
    assert plane("logrequest", "rm", name).code == 0
    assert f"there is no log request {name}" in plane("logrequest", "show", name).err


WRONG = [
    (("create", "JOB"), "needs --party ID and --reason TEXT"),
    (("create", "nothing", "--party", "PEER", "--reason", "r"), "there is no job nothing here"),
    (("create", "JOB", "--party", "OWN", "--reason", "r"), "no domain of this control plane besides"),
    (("create", "JOB", "--party", "PEER", "--reason", "r", "--task", "z"), "took part in no task z"),
    (("create", "JOB", "--party", "PEER", "--reason", "r", "--since", "soon"), "neither a duration nor a time"),
    (("create", "JOB", "--party", "PEER", "--reason", "r", "--source", "x"), "sources: 'x' is unknown"),
    (("create", "JOB", "--party", "PEER", "--reason", "r", "--lines", "9999"), "maxLines: 9999 is not between"),
    (("show",), "takes one name"),
    (("ls", "x"), "takes no names"),
    (("preview", "x", "--redact", "(a+)+"), "repeats a repeat"),
    (("approve", "nothing-there"), "there is no log request nothing-there here"),
]


def test_what_cannot_be_asked_says_why(plane):
    named = {"JOB": plane.job, "PEER": plane.peer, "OWN": plane.own}
    for words, message in WRONG:
        done = plane("logrequest", *(named.get(each, each) for each in words))
        assert done.code != 0 and message in done.err


def incoming(plane, name="in-1"):
    apply(
        plane,
        {
            "apiVersion": API,
            "kind": "LogRequest",
            "metadata": {"name": f"{name}-{plane.own}", "namespace": plane.own},
            "spec": {"requester": plane.peer, "owner": plane.own, "job": plane.job, "reason": "tell us"},
        },
    )
    return f"{name}-{plane.own}"


def test_our_own_request_is_for_the_other_side_to_decide(plane):
    assert "was made here: the other side decides about it" in plane("logrequest", "approve", made(plane)).err


def test_deciding_before_anything_was_read(plane):
    name = incoming(plane)
    assert "log request" in plane("logrequest", "approve", name).err
    assert plane("logrequest", "preview", name).code == 1
    row = next(line for line in plane("logrequest", "ls").lines if line.startswith(name))
    assert row.split()[1:3] == ["in", plane.peer]


def test_what_was_asked_cannot_be_changed(plane):
    name = incoming(plane)
    apply_ = plane(
        "apply",
        "-f",
        "-",
        stdin=json.dumps(
            {
                "apiVersion": API,
                "kind": "LogRequest",
                "metadata": {"name": name, "namespace": plane.own},
                "spec": {"requester": plane.peer, "owner": plane.own, "job": plane.job, "reason": "other"},
            }
        ),
    )
    assert apply_.code == 1 and "only the review of a log request can be changed" in apply_.err


def test_job_logs_asks_a_partner(plane):
    done = plane("job", "logs", plane.job, "--party", plane.peer, "--ask", "why did it fail?")
    assert done.code == 0 and f"{plane.peer} decides about it" in done.out
    assert "--ask needs --party" in plane("job", "logs", plane.job, "--ask", "why?").err


def test_policies_have_rules_for_logs(plane):
    assert plane("policy", "allow", plane.peer, "--logs", "engine", "--logs-lines", "50").code == 0
    done = plane(
        "policy", "set", plane.peer, "--redact", "customer-[0-9]{4}", "--logs-failed-only", "yes", "-o", "json"
    )
    assert json.loads(done.out)["spec"]["logs"] == {
        "sources": ["engine"],
        "maxLines": 50,
        "redact": ["customer-[0-9]{4}"],
        "onlyFailed": True,
    }
    assert "repeats a repeat" in plane("policy", "set", plane.peer, "--redact", "(a+)+").err
    assert "--logs: nothing is unknown" in plane("policy", "set", plane.peer, "--logs", "nothing").err


def test_a_bundle_of_a_job_without_logs(plane):
    done = plane("job", "bundle", plane.job, "-o", "out.tar.gz")
    assert done.code == 0, done.err
    assert (plane.folder / "out.tar.gz").stat().st_mode & 0o777 == 0o600
    assert f'No logs of {plane.peer}: coterie job bundle {plane.job} --ask "why"' in done.out


def test_nothing_in_a_request_steers_the_terminal():
    hostile = "\x1b]0;x\x07\u202e"
    request = msgspec.convert(
        {
            "metadata": {"name": "lr", "namespace": "own"},
            "spec": {
                "requester": "bob",
                "owner": "own",
                "job": "j",
                "reason": hostile,
                "task": hostile,
                "grep": hostile,
            },
            "status": {"message": hostile, "history": [{"time": "t", "event": hostile, "by": hostile}]},
        },
        LogRequest,
    )
    excerpt = LogExcerpt(text=f"a\n{hostile}\n", notes=(hostile,), digest=hostile)
    shown = [*row_of(request), *sheet_of(request), *excerpt_notes(excerpt), excerpt_line(excerpt)]
    assert not [each for each in shown if "\x1b" in each or "\x07" in each or "\u202e" in each]
    assert shown_text(excerpt.text) == "a\n\\x1b]0;x\\x07\\u202e\n"
    plain = msgspec.structs.replace(request.spec, task="", grep="", reason="r")
    for hidden in ({"task": "\x1b"}, {"grep": "\x1b"}):
        assert "cannot be shown" in request_fault(msgspec.structs.replace(plain, **hidden))
