"""`coterie engine`: engines listed, added with all their faults told at once, removed."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.cli import engine_versions, engines
from coterie.kuscia.api.types.deployment import KusciaDeployment
from coterie.kuscia.api.types.job import AppImage, KusciaJob
from coterie.kuscia.engine.builtin_appimages import SAMPLE

PSI: dict[str, Any] = {
    "apiVersion": "kuscia.secretflow/v1alpha1",
    "kind": "AppImage",
    "metadata": {"name": "psi-image"},
    "spec": {
        "image": {"name": "secretflow/psi", "tag": "0.4"},
        "configTemplates": {"task-config.conf": '{"task_id": "{{.TASK_ID}}"}'},
        "deployTemplates": [
            {
                "name": "psi",
                "role": "client,server",
                "replicas": 1,
                "spec": {
                    "containers": [
                        {
                            "name": "psi",
                            "command": ["/root/main"],
                            "workingDir": "/root",
                            "configVolumeMounts": [
                                {"mountPath": "/root/kuscia/task-config.conf", "subPath": "task-config.conf"}
                            ],
                            "ports": [
                                {"name": "psi", "protocol": "HTTP", "scope": "Cluster"},
                                {"name": "inner", "protocol": "GRPC", "scope": "Domain"},
                            ],
                        }
                    ]
                },
            }
        ],
    },
}


def text(*objects: Any) -> str:
    return yaml.safe_dump_all(objects)


def changed(path: str, value: Any) -> dict[str, Any]:
    """The engine with one thing in it changed; `None` takes it away."""
    made: Any = copy.deepcopy(PSI)
    *way, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    here = made
    for part in way:
        here = here[part]
    if value is None:
        del here[last]
    else:
        here[last] = value
    return dict(made)


CONTAINER = "spec/deployTemplates/0/spec/containers/0"


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("spec/image/name", "Not A Name", "spec.image: "),
        ("spec/image", None, "image"),
        ("spec/configTemplates/task-config.conf", "{{if .A}}", 'spec.configTemplates[task-config.conf]: line 1: "if"'),
        ("spec/configTemplates/task-config.conf", "{{.KUSCIA_DOMAIN_KEY_DATA}}", "private key"),
        ("spec/deployTemplates", [], "at least one is needed"),
        ("spec/deployTemplates/0/replicas", 0, "at least one pod"),
        ("spec/deployTemplates/0/spec/containers", [], "spec.containers: at least one is needed"),
        (f"{CONTAINER}/name", None, "containers[0].name: is missing"),
        (f"{CONTAINER}/ports/1/name", "psi", 'two ports have the name "psi"'),
        (f"{CONTAINER}/ports/0/name", "Psi_Port", '"Psi_Port" is no port name'),
        (f"{CONTAINER}/ports/0/name", "a-name-that-is-too-long", "is no port name"),
        (f"{CONTAINER}/ports/0/scope", "World", "ports[psi].scope: is one of Cluster, Domain, Local, not 'World'"),
        (f"{CONTAINER}/ports/0/protocol", "FTP", "ports[psi].protocol: is one of"),
        (f"{CONTAINER}/configVolumeMounts/0/mountPath", "root", "must begin with /"),
        (f"{CONTAINER}/configVolumeMounts/0/subPath", "other", 'subPath "other" is no key of configTemplates'),
        ("kind", "Pod", "a Pod is no engine"),
        ("metadata/name", None, "metadata.name is missing"),
    ],
)
def test_faults_are_told_before_anything_is_sent(cli: Any, path: str, value: Any, told: str) -> None:
    result = cli("engine", "add", "-", stdin=text(changed(path, value)))
    assert result.code == 1
    assert told in result.err
    assert result.err.startswith("Error: standard input: ")


def test_all_faults_of_a_file_are_told_at_once(cli: Any) -> None:
    second = changed(f"{CONTAINER}/ports/0/scope", "World")
    second["spec"]["deployTemplates"] = [*second["spec"]["deployTemplates"]] * 2
    result = cli("engine", "add", "-", stdin=text(second))
    assert 'two have the name "psi"' in result.err
    assert 'two are for the role "client"' in result.err
    assert result.err.count("scope") == 2


def test_an_engine_is_added_listed_and_removed(live: Any) -> None:
    (live.folder / "psi.yaml").write_text(text(PSI, SAMPLE))
    added = live("engine", "add", "psi.yaml")
    assert (added.lines, added.err) == (["added engine psi-image", "added engine sample"], "")
    assert live("engine", "add", "psi.yaml").lines == ["renewed engine psi-image", "renewed engine sample"]
    listed = live("engine", "ls")
    assert [line.split() for line in listed.lines] == [
        ["NAME", "IMAGE", "ROLES", "PORTS"],
        ["psi-image", "secretflow/psi:0.4", "client,server", "psi/HTTP"],
        ["sample", "coterie/python:latest", "<any>", "talk/HTTP"],
    ]
    assert live("engine", "list", "-o", "name").lines == ["psi-image", "sample"]
    shown = yaml.safe_load(live("engine", "ls", "psi-image", "-o", "yaml").out)
    assert (shown["kind"], shown["spec"]["image"]) == ("AppImage", {"name": "secretflow/psi", "tag": "0.4"})
    assert yaml.safe_load(live("engine", "ls", "-o", "json").out)["items"][1]["metadata"]["name"] == "sample"
    removed = live("engine", "rm", "psi-image", "other", "sample")
    assert (removed.code, removed.lines) == (1, ["removed engine psi-image", "removed engine sample"])
    assert 'there is no engine "other"' in removed.err
    gone = live("engine", "ls", "psi-image", "-o", "json")
    assert (gone.code, gone.out) == (1, "")
    assert 'there is no engine "psi-image"' in gone.err


@pytest.mark.parametrize(
    "words", [("add",), ("rm",), ("dance",), ("upgrade",), ("pin",), ("pin", "psi"), ("ls", "--partners")]
)
def test_what_is_typed_wrongly(cli: Any, words: tuple[str, ...]) -> None:
    assert cli("engine", *words).code == 2


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["name", "ports", "spec", "containers", "scope", "role", "image", "tag"]), inner
        )
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(
    st.sampled_from([CONTAINER, "spec/deployTemplates/0/spec", "spec/configTemplates", "spec", f"{CONTAINER}/ports"]),
    _ANY,
)
def test_any_shape_is_told_or_taken(path: str, value: Any) -> None:
    if value is not None:
        assert all(isinstance(each, str) for each in engines.faults(changed(path, value)))


def test_the_built_in_engine_has_no_faults() -> None:
    assert engines.faults(SAMPLE) == []


def version(number: str, **marks: str) -> dict[str, Any]:
    made = copy.deepcopy(PSI)
    annotations = {"coterie.io/engine": "psi", "coterie.io/engine-version": number}
    made["metadata"] = {"name": f"psi-{number}", "annotations": {**annotations, **marks}}
    made["spec"]["image"]["id"] = f"sha256:{number.replace('.', '') * 64}"[:71]
    return made


DOMAIN = {"apiVersion": "kuscia.secretflow/v1alpha1", "kind": "Domain", "metadata": {"name": "pinning"}, "spec": {}}
VERSIONED_JOB = {
    "apiVersion": "kuscia.secretflow/v1alpha1",
    "kind": "KusciaJob",
    "metadata": {"name": "pinned-job", "namespace": "cross-domain"},
    "spec": {
        "initiator": "pinning",
        "tasks": [
            {"alias": "a", "appImage": "psi<1", "taskInputConfig": "{}", "parties": [{"domainID": "pinning"}]},
            {"alias": "b", "appImage": "psi-0.6", "taskInputConfig": "{}", "parties": [{"domainID": "pinning"}]},
        ],
    },
}


def test_versions_are_listed_chosen_and_pinned(live: Any) -> None:
    speaks = {"coterie.io/speaks": ">=0.5"}
    (live.folder / "psi.yaml").write_text(text(version("0.6"), version("0.10", **speaks)))
    (live.folder / "job.yaml").write_text(text(VERSIONED_JOB))
    (live.folder / "domain.yaml").write_text(text(DOMAIN))
    assert live("engine", "add", "psi.yaml").code == 0
    assert live("apply", "-f", "domain.yaml").code == 0
    listed = live("engine", "versions", "psi").lines
    assert listed[0].split() == [
        "ENGINE",
        "VERSION",
        "DOMAIN",
        "APPIMAGE",
        "DIGEST",
        "SPEAKS",
        "PROTOCOLS",
        "JOBS",
        "NEW",
        "JOBS",
    ]
    assert [line.split()[:4] for line in listed[1:]] == [
        ["psi", "0.10", "here", "psi-0.10"],
        ["psi", "0.6", "here", "psi-0.6"],
    ]
    assert live("engine", "versions", "psi", "-o", "name").lines == ["psi==0.10", "psi==0.6"]
    found = yaml.safe_load(live("engine", "versions", "psi", "--partners", "-o", "json").out)
    assert (found[0]["speaks"], found[0]["usedByNewJobs"], found[0]["appImage"]) == (">=0.5", True, "psi-0.10")
    assert "there is no engine" in live("engine", "versions", "other").err
    # Only 0.6 for new jobs, then all again.
    assert "new jobs use psi ==0.6 here: 0.6;" in live("engine", "pin", "psi", "0.6").out
    used = {
        row["version"]: row["usedByNewJobs"]
        for row in yaml.safe_load(live("engine", "versions", "psi", "-o", "json").out)
    }
    assert used == {"0.10": False, "0.6": True}
    tasks = yaml.safe_load(live("engine", "pin", "job.yaml").out)["spec"]["tasks"]
    assert [task["appImage"] for task in tasks] == ["psi==0.6", "psi-0.6"]
    assert "new jobs use any version of psi here: 0.10, 0.6" in live("engine", "pin", "psi", "any").out
    assert "no version of psi here is in >=1: there is 0.10, 0.6;" in live("engine", "pin", "psi", ">=1").err
    assert "is no range of versions" in live("engine", "pin", "psi", ">=x").err
    assert "coterie engine versions` lists them" in live("engine", "pin", "other", "1").err
    assert live("engine", "rm", "psi-0.6", "psi-0.10").code == 0
    assert live("delete", "domain", "pinning").code == 0


def test_an_upgrade_says_what_stays(live: Any) -> None:
    (live.folder / "mine.yaml").write_text(text(DOMAIN))
    made = [version("0.6"), version("0.10")]
    for each in made:
        each["metadata"]["name"] = each["metadata"]["name"].replace("psi", "mine")
        each["metadata"]["annotations"]["coterie.io/engine"] = "mine"
    (live.folder / "engines.yaml").write_text(text(*made))
    assert live("apply", "-f", "mine.yaml").code == 0
    assert live("engine", "add", "engines.yaml").code == 0
    down = live("engine", "upgrade", "mine", "0.6")
    assert down.lines[0] == "new jobs use mine 0.6 here"
    assert live("engine", "upgrade", "mine").lines == [
        "new jobs use mine 0.10 here",
        "mine-0.6 (0.6) stays; coterie engine rm mine-0.6 removes it",
    ]
    assert "there is no version 0.7 of mine here: there is 0.10, 0.6;" in live("engine", "upgrade", "mine", "0.7").err
    assert live("engine", "rm", "mine-0.6", "mine-0.10").code == 0
    assert live("delete", "domain", "pinning").code == 0


def test_annotations_of_versions_are_checked_before_anything_is_added(cli: Any) -> None:
    wrong = version("0.6")
    wrong["metadata"]["annotations"]["coterie.io/engine-version"] = "newest"
    assert '"newest" is no version' in cli("engine", "add", "-", stdin=text(wrong)).err


def test_partners_offer_what_they_said_for_the_newest_job() -> None:
    def job(name: str, made: str, *numbers: str) -> KusciaJob:
        task = {"alias": "a", "appImage": "psi>=0.5", "taskInputConfig": "", "parties": []}
        stated = {"bob": {"tasks": {"a": {"engines": [{"version": each} for each in numbers]}}}}
        return msgspec.convert(
            {
                "metadata": {"name": name, "creationTimestamp": made},
                "spec": {"initiator": "alice", "tasks": [task]},
                "status": {"partyStatements": stated},
            },
            KusciaJob,
        )

    jobs = (job("new", "2026-02-01T00:00:00Z", "0.7", "0.6"), job("old", "2026-01-01T00:00:00Z", "0.5"))
    rows = engine_versions.rows_of_partners(engine_versions.KnownVersions((), {}, (), jobs))
    assert [(row.engine, row.version, row.domain, row.jobs) for row in rows] == [
        ("psi", "0.7", "bob", ("new",)),
        ("psi", "0.6", "bob", ("new",)),
    ]


@pytest.mark.parametrize(
    ("text", "users"),
    [
        ('{"alice":{"ref":"psi","appImage":"psi-0.6"}}', ("deployment/greet",)),
        ('{"alice": 1}', ()),
        ("[[", ()),
        ("", ()),
    ],
)
def test_deployments_that_are_pinned_are_named_beside_jobs(text: str, users: tuple[str, ...]) -> None:
    spec = {"initiator": "alice", "inputConfig": "", "parties": []}
    meta = {"name": "greet", "annotations": {"coterie.io/deployed-engines": text}}
    deployment = msgspec.convert({"metadata": meta, "spec": spec}, KusciaDeployment)
    image = msgspec.convert(version("0.6"), AppImage)
    known = engine_versions.KnownVersions((image,), {}, deployments=(deployment,))
    [row] = engine_versions.rows_here(known)
    assert row.jobs == users
