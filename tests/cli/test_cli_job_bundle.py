"""`coterie job bundle`: what is in it, and that planted secrets are not, in no encoding."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from coterie.base import pki
from coterie.base.redaction import Redactor
from coterie.cli.jobs.bundle import BundleContent, belongs, bundle_files, write_archive
from coterie.kuscia.api.log_query import LogLine
from coterie.kuscia.api.secret_values import secret_values, without_secrets
from coterie.kuscia.api.types.log_request import LogExcerpt, LogRequest

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KEY = pki.key_pem(pki.new_key("rsa")).decode()
PLANTED = {
    "secret": "planted-in-a-secret!",
    "config map": "planted-in-a-config-map",
    "variable": "planted-in-a-variable",
    "input": "planted-in-an-input",
    "deploy token": "Zx8QmW2vB7nK4rT9yH3jL6pS1dF5gA0c",
    "route token": "planted-route-token",
    "kubeconfig": "planted-kubeconfig-token",
    "data source": "planted-data-source",
    "key line": KEY.splitlines()[3],
}


def secrets_of() -> list[dict[str, Any]]:
    data = {"k": base64.b64encode(PLANTED["secret"].encode()).decode()}
    return [
        {"kind": "Secret", "metadata": {"name": "s", "namespace": "alice"}, "data": data},
        {
            "kind": "ConfigMap",
            "metadata": {"name": "c", "namespace": "alice"},
            "data": {"db.password": PLANTED["config map"], "mode": "slow"},
        },
        {
            "kind": "Pod",
            "metadata": {
                "name": "task-0",
                "namespace": "alice",
                "annotations": {
                    "kubectl.kubernetes.io/last-applied-configuration": PLANTED["variable"],
                    "example/db-password": "planted-in-an-annotation",
                },
            },
            "spec": {
                "containers": [
                    {
                        "name": "main",
                        "args": ["--token", "planted-argument", "--rows", "12"],
                        "env": [
                            {"name": "DB_PASSWORD", "value": PLANTED["variable"]},
                            {"name": "PLAIN", "value": "planted-in-a-plain-variable"},
                            {"name": "R", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                        ],
                    }
                ]
            },
            "status": {"message": f"failed with {PLANTED['secret']}"},
        },
        {
            "kind": "KusciaJob",
            "metadata": {"name": "j", "namespace": "cross-domain"},
            "spec": {"tasks": [{"taskInputConfig": json.dumps({"access_key": PLANTED["input"], "rows": 12})}]},
        },
        {
            "kind": "Domain",
            "metadata": {"name": "alice"},
            "status": {"deployTokenStatuses": [{"token": PLANTED["deploy token"], "state": "unused"}]},
        },
        {
            "kind": "DomainRoute",
            "metadata": {"name": "alice-bob", "namespace": "alice"},
            "spec": {"requestHeadersToAdd": {"Authorization": f"Bearer {PLANTED['route token']}"}},
            "status": {"tokenStatus": {"tokens": [{"token": PLANTED["route token"], "revision": 1}]}},
        },
        {
            "kind": "DomainDataSource",
            "metadata": {"name": "d", "namespace": "alice"},
            "spec": {"data": {"encryptedInfo": PLANTED["data source"]}},
        },
    ]


def noise(value: str) -> list[str]:
    """A secret as engines and gateways print it."""
    raw = value.encode()
    return [
        f"plain {value} end",
        f"base64 {base64.b64encode(raw).decode()}",
        f"inner {base64.b64encode(b'x' + raw + b'yz').decode()}",
        f"more {base64.b64encode(b'xy' + raw + b'z').decode()}",
        f"url https://host/?q={quote(value, safe='')}",
        f"hex {raw.hex()}",
        json.dumps({"field": value}),
        f"Authorization: Bearer {value}",
        f"password={value}",
    ]


def a_request(owner: str = "bob", phase: str = "Answered", text: str = "", **status: Any) -> LogRequest:
    body = {
        "metadata": {"name": f"j-{owner}", "namespace": "alice"},
        "spec": {"requester": "alice", "owner": owner, "job": "j", "reason": "r"},
    }
    made = msgspec.convert(body, LogRequest)
    answer = LogExcerpt(text=text, lines=1, digest="ab" * 32) if phase == "Answered" else None
    return msgspec.structs.replace(
        made, status=msgspec.structs.replace(made.status, phase=phase, answer=answer, **status)
    )


def a_content(**more: Any) -> BundleContent:
    objects = secrets_of()
    lines = [text for value in PLANTED.values() for text in noise(value)]
    lines += KEY.splitlines()
    logs = {
        source: [LogLine("2026-01-01T00:00:00Z", source, "alice", "t", "p", text) for text in (*lines, "ERROR rows 12")]
        for source in ("engine", "gateway")
    }
    events = [
        {
            "metadata": {},
            "type": "Warning",
            "reason": "Failed",
            "message": text,
            "involvedObject": {"kind": "Pod", "name": "p"},
        }
        for text in lines
    ]
    content = {
        "job": "j",
        "made": NOW,
        "own": ("alice",),
        "partners": ("bob", "carol"),
        "objects": tuple(objects),
        "events": tuple(events),
        "logs": logs,
        "requests": (a_request(text="\n".join(lines) + "\nline of bob\n"),),
        "versions": {"coterie": "1", "note": PLANTED["kubeconfig"]},
        "clocks": {"own": "now", "secondsAhead": {"bob": 1.0}},
        "routes": {"alice-bob": [{"message": f"token {PLANTED['route token']}"}]},
        "missing": (f"pods: {PLANTED['kubeconfig']}",),
        "known_secrets": (PLANTED["kubeconfig"], KEY, *secret_values(objects)),
    }
    return BundleContent(**{**content, **more})


def unpacked(files: dict[str, str]) -> dict[str, str]:
    archive = write_archive(files, "j-bundle", NOW)
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as opened:
        found = {}
        for member in opened.getmembers():
            assert member.isfile() and member.mode == 0o600 and not member.name.startswith(("/", ".."))
            data = opened.extractfile(member)
            assert data is not None
            found[member.name.removeprefix("j-bundle/")] = data.read().decode()
    return found


def forms(value: str) -> list[str]:
    raw = value.encode()
    out = [value, raw.hex(), quote(value, safe=""), base64.b64encode(raw).decode().rstrip("=")[:-1]]
    for before in range(3):
        text = base64.b64encode(b"\0" * before + raw + b"\0" * 2).decode()
        out.append(text[(before * 8 + 5) // 6 : (before + len(raw)) * 8 // 6])
    return out


@pytest.mark.parametrize("where", PLANTED)
def test_no_planted_secret_is_in_it_in_any_encoding(where: str) -> None:
    files = unpacked(bundle_files(a_content()))
    for path, text in files.items():
        for form in forms(PLANTED[where]):
            assert form not in text, f"{path}: {where}"


def test_no_line_of_a_private_key_is_in_it() -> None:
    text = "\n".join(unpacked(bundle_files(a_content())).values())
    assert not [line for line in KEY.splitlines() if len(line) > 10 and line in text and "PRIVATE KEY" not in line]


def test_values_by_name_are_removed_and_the_rest_stays() -> None:
    files = unpacked(bundle_files(a_content()))
    pod = files["objects/pod/alice.task-0.yaml"]
    for removed in ("planted-in-a-plain-variable", "planted-argument", "planted-in-an-annotation"):
        assert removed not in pod
    assert "name: DB_PASSWORD" in pod and "'12'" in pod
    assert "mode:" in files["objects/configmap/alice.c.yaml"] and "slow" not in files["objects/configmap/alice.c.yaml"]
    assert '"rows": 12' in files["objects/kusciajob/cross-domain.j.yaml"]
    assert "ERROR rows 12" in files["logs/own/engine.log"] and "line of bob" in files["logs/bob/j-bob.log"]
    assert json.loads(files["clocks.json"])["secondsAhead"] == {"bob": 1.0}


def test_the_readme_says_what_is_missing_and_how_to_get_it() -> None:
    readme = unpacked(bundle_files(a_content()))["README.md"]
    assert "- `logs/bob/`: lines that bob approved" in readme
    assert "- carol: none, nobody asked; `coterie logrequest create j --party carol" in readme
    waiting = a_content(requests=(a_request("carol", "Rejected", message="carol rejected it: no"),))
    assert "- carol: none; j-carol is Rejected: carol rejected it: no" in bundle_files(waiting)["README.md"]


def test_a_file_in_which_a_secret_is_found_after_all_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.cli.jobs.bundle.without_secrets", lambda obj, redactor: obj)
    files = bundle_files(a_content())
    assert "objects/pod/alice.task-0.yaml" not in files
    assert "objects/pod/alice.task-0.yaml: left out" in files["README.md"]


def test_own_rules_count_here_too() -> None:
    files = bundle_files(a_content(patterns=(r"rows [0-9]{2}",)))
    assert "ERROR [redacted:own-rule]" in files["logs/own/engine.log"]


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"name": "t-1"}, True),
        ({"name": "t-1-0"}, True),
        ({"name": "t-12"}, False),
        ({"name": "x", "labels": {"a": "t-1"}}, True),
        ({"name": "x", "annotations": {"a": "t-1"}}, True),
        ({"name": "x"}, False),
    ],
)
def test_which_objects_belong_to_a_task(meta: dict[str, Any], expected: bool) -> None:
    assert belongs({"metadata": meta}, ["t-1"]) is expected


def test_objects_nested_without_end_are_cut() -> None:
    node: Any = "planted"
    for _ in range(200):
        node = {"a": node}
    assert "planted" not in json.dumps(without_secrets({"kind": "X", "spec": node}, Redactor()))


def test_values_inside_of_a_secret_that_is_a_document_are_known() -> None:
    documents = {
        ".dockerconfigjson": json.dumps({"auths": {"r.example": {"username": "u", "password": "planted-in-json"}}}),
        ".env": "MODE=slow\nDB_PASSWORD='planted-in-a-line'\n",
        "config.yaml": "db:\n  user: a\n  pass: planted-in-yaml\n",
    }
    data = {name: base64.b64encode(text.encode()).decode() for name, text in documents.items()}
    known = secret_values([{"kind": "Secret", "data": data}, {"kind": "Secret", "stringData": documents}])
    redactor = Redactor(known)
    for value in ("planted-in-json", "planted-in-a-line", "planted-in-yaml"):
        assert value not in redactor.line(f"connect with {value} now")


def test_no_name_leads_out_of_the_folder() -> None:
    files = {"logs/../../../etc/x.log": "a", "objects/pod//y.yaml": "b", "logs/a\nb/\x1b.log": "c", "README.md": "d"}
    with tarfile.open(fileobj=io.BytesIO(write_archive(files, "j-bundle", NOW))) as archive:
        names = archive.getnames()
    assert names == [
        "j-bundle/logs/_../_../_../etc/x.log",
        "j-bundle/objects/pod/_/y.yaml",
        "j-bundle/logs/a_b/_.log",
        "j-bundle/README.md",
    ]
