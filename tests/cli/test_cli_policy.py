"""`coterie policy` against a real API server; nothing but the objects is looked at. The examples of the guide run as they
stand there."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from test_cli_domain import certificate
from test_cli_guide import commands_in

from coterie.kube.client import kubeconfig

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "policy.md"


@pytest.fixture
def plane(live):
    """A control plane with the partner `bob-...`, an engine, and a job and a deployment that the partner began."""
    own = f"own-{abs(hash(str(live.folder))) % 10**8}"
    file = live.folder / "live-kubeconfig"
    connection = kubeconfig.read(file).resolve()
    kubeconfig.make(own, connection.server, token=connection.token, namespace=connection.namespace).write(file)
    live.own, live.peer = own, own.replace("own", "bob")
    (live.folder / "own.crt").write_text(certificate(own))
    (live.folder / "bob.crt").write_text(certificate(live.peer))
    assert live("domain", "add", own, "--cert", "own.crt", "-o", "json").code == 0
    added = live("domain", "add", live.peer, "--partner", "--cert", "bob.crt")
    assert f"coterie policy allow {live.peer}" in added.out
    return live


def apply(plane, *objects):
    for each in objects:
        done = plane("apply", "-f", "-", stdin=json.dumps(each))
        assert done.code == 0, done.err


def an_engine(name):
    template = {"name": "t", "spec": {"containers": [{"name": "c", "workingDir": "/"}]}}
    spec = {"image": {"name": "coterie/host", "tag": "1.0", "id": "ab" * 32}, "deployTemplates": [template]}
    return {"apiVersion": "kuscia.secretflow/v1alpha1", "kind": "AppImage", "metadata": {"name": name}, "spec": spec}


def a_job(plane, name, image):
    task = {"alias": "a", "appImage": image, "taskInputConfig": "{}"}
    task["parties"] = [{"domainID": plane.peer}, {"domainID": plane.own}]
    return {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "KusciaJob",
        "metadata": {"name": name, "namespace": "cross-domain"},
        "spec": {"initiator": plane.peer, "maxParallelism": 1, "tasks": [task]},
    }


def a_deployment(plane, name, image):
    parties = [{"domainID": each, "appImageRef": image} for each in (plane.peer, plane.own)]
    return {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "KusciaDeployment",
        "metadata": {"name": name, "namespace": "cross-domain"},
        "spec": {"initiator": plane.peer, "inputConfig": "{}", "parties": parties},
    }


def spec_of(plane):
    return json.loads(plane("get", "pp", plane.peer, "-o", "json").out)["spec"]


def test_allow_set_and_deny(plane):
    assert plane("policy", "allow", plane.peer).lines == [f"policy of {plane.peer}: accepts everything"]
    assert spec_of(plane) == {"appImages": ["*"]}
    owner = json.loads(plane("get", "pp", plane.peer, "-o", "json").out)["metadata"]["ownerReferences"]
    assert [(each["kind"], each["name"]) for each in owner] == [("Domain", plane.peer)]
    done = plane(
        "policy", "set", plane.peer, "--cpu", "2", "--max-tasks", "3", "--hours", "08:00-18:00", "--kinds", "job"
    )
    assert done.code == 0, done.err
    assert spec_of(plane) == {
        "appImages": ["*"], "cpu": "2", "hours": ["08:00-18:00"], "kinds": ["Job"], "quota": {"tasks": 3}
    }  # fmt: skip
    assert plane("policy", "set", plane.peer, "--cpu", "any", "--max-tasks", "any", "--kinds", "any").code == 0
    assert spec_of(plane) == {"appImages": ["*"], "hours": ["08:00-18:00"]}
    assert plane("policy", "deny", plane.peer).lines == [f"policy of {plane.peer}: refuses everything"]
    assert spec_of(plane) == {"outside": "Refuse"}
    assert "asks about everything" not in plane("policy", "ls").out
    assert plane("policy", "rm", plane.peer).code == 0
    assert "asks about everything" in plane("policy", "ls").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("allow", "nobody"), "there is no domain nobody"),
        (("allow", "OWN"), "policies are for partners"),
        (("set", "PEER", "--cpu", "2"), "there is no policy for"),
        (("allow", "PEER", "--cpu", "lots"), "is no quantity"),
        (("allow", "PEER", "--hours", "noon"), "must be like"),
        (("allow", "PEER", "--priority", "high"), "not a number"),
        (("allow", "PEER", "--kinds", "pod"), "neither job nor deployment"),
        (("deny", "PEER", "--cpu", "2"), "rules and quotas are for"),
        (("show", "PEER"), "coterie policy allow"),
        (("explain", "no-such-job"), "there is no job and no deployment"),
        (("ls", "more"), "takes no names"),
    ],
)
def test_mistakes_are_explained(plane, words, message):
    done = plane("policy", *(plane.peer if each == "PEER" else plane.own if each == "OWN" else each for each in words))
    assert done.code != 0 and message in done.err


def test_explain_names_the_rule(plane):
    apply(
        plane,
        an_engine("scql"),
        a_job(plane, f"j-{plane.peer}", "scql"),
        a_deployment(plane, f"d-{plane.peer}", "scql"),
    )
    job = f"job/j-{plane.peer}"
    assert f"waits for approval: there is no policy for {plane.peer}" in plane("policy", "explain", job).out
    assert plane("policy", "allow", plane.peer, "--app-image", "psi", "--outside", "refuse").code == 0
    assert f"refused: {plane.peer} may not begin `scql`" in plane("policy", "explain", job).out
    found = json.loads(plane("policy", "explain", f"deployment/d-{plane.peer}", "-o", "json").out)
    assert (found["verdict"], found["policy"]) == ("Refuse", plane.peer)
    assert [each["rule"] for each in found["reasons"]] == ["appImages"]
    assert plane("policy", "allow", plane.peer, "--app-image", "scql:1.0@" + "ab" * 6).code == 0
    assert json.loads(plane("policy", "explain", job, "-o", "json").out)["verdict"] == "Allow"
    assert plane("policy", "approve", f"deployment/d-{plane.peer}").lines == [f"deployment d-{plane.peer} accepted"]
    assert "accepted" in plane("policy", "explain", f"deployment/d-{plane.peer}").lines[0]
    assert plane("policy", "approve", f"deployment/d-{plane.peer}", "--reject").code == 0
    assert "rejected here" in plane("policy", "explain", f"deployment/d-{plane.peer}").lines[0]


def test_the_examples_of_the_guide_run(plane):
    apply(
        plane,
        an_engine("counter"),
        a_job(plane, "common-customers", "counter"),
        a_deployment(plane, "scores", "counter"),
    )
    text = GUIDE.read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    commands = [command for block in blocks for command in commands_in(block)]
    assert len(commands) > 12
    for command in commands:
        words = [plane.peer if word == "bob" else word for word in shlex.split(command)[1:]]
        if words[:2] == ["job", "approve"]:
            continue  # the job must wait for it, and no controller runs here
        done = plane(*words)
        assert done.code == 0, f"{command}: {done.err}"
    (document,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert plane("apply", "-f", "-", stdin=document).code == 0
