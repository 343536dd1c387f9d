"""Actions, triggers and their code: what is refused, and in which words."""

from __future__ import annotations

import base64
import io
import tarfile
from collections.abc import Mapping

import pytest

from coterie.base.archives import InvalidFiles
from coterie.kuscia.api.functions import code, graph, rules
from coterie.kuscia.api.functions.types import ActionGrantSpec, ActionSpec, HttpTrigger, TrafficShare, TriggerSpec


def archive(files: Mapping[str, str], *links: str) -> str:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as packed:
        for name, text in files.items():
            head = tarfile.TarInfo(name)
            head.size = len(text)
            packed.addfile(head, io.BytesIO(text.encode()))
        for name in links:
            head = tarfile.TarInfo(name)
            head.type, head.linkname = tarfile.SYMTYPE, "/etc/passwd"
            packed.addfile(head)
    return base64.b64encode(out.getvalue()).decode()


# The graph.


@pytest.mark.parametrize(
    ("edges", "start", "cycle"),
    [
        ({"a": ["b"], "b": ["c"], "c": []}, "", ()),
        ({"a": ["b"], "b": ["a"]}, "", ("a", "b", "a")),
        ({"a": ["a"]}, "a", ("a", "a")),
        ({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}, "a", ()),
        ({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": ["a"]}, "d", ("d", "a", "b", "d")),
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, "a", ()),
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, "", ("b", "c", "b")),
        ({"a": ["bob/a"]}, "a", ()),
        ({f"a{n}": [f"a{n + 1}"] for n in range(5000)} | {"a5000": ["a0"]}, "a0", (*tuple(f"a{n}" for n in range(5001)), "a0")),
    ],
)  # fmt: skip
def test_cycles_c37(edges: Mapping[str, list[str]], start: str, cycle: tuple[str, ...]) -> None:
    assert graph.find_cycle(edges, start) == cycle


@pytest.mark.parametrize(
    ("target", "good"),
    [
        ("add", True), ("bob/score", True), ("a-1", True), ("", False), ("Add", False), ("../add", False), ("bob/", False), ("/add", False),
        ("a/b/c", False), ("a.b", False), ("a_b", False), ("1a", False), ("a-", False), ("x" * 41, False), ("bob/../x", False), ("a\n", False),
    ],
)  # fmt: skip
def test_names_of_targets(target: str, good: bool) -> None:
    assert (graph.target_fault(target) == "") is good


def test_an_order_of_creation() -> None:
    edges = {"front": ["add", "mul", "bob/score"], "add": ["log"], "mul": ["log", "elsewhere"], "log": []}
    assert graph.callees_first(edges) == ["log", "add", "mul", "front"]
    assert graph.callees_first({"a": ["b"], "b": ["a"]}) == ["b", "a"]
    assert graph.callers(edges, "log") == ["add", "mul"]


def test_faults_of_next() -> None:
    edges = {"add": [], "front": ["add"]}
    (unknown,) = rules.next_faults("calc", ("add", "mull", "bob/score"), (), edges)
    assert (unknown.field, '"mull"' in str(unknown)) == ("spec.next[1]", True)
    assert rules.next_faults("calc", ("gone",), ("gone",), edges) == []
    (cycle,) = rules.next_faults("add", ("front",), (), edges)
    assert "add -> front -> add" in str(cycle)
    assert "add -> add" in str(rules.next_faults("add", ("add",), (), {})[0])


# The code.


def test_versions_follow_what_runs() -> None:
    spec = ActionSpec(script="def action(req): ...")
    version = code.version_name(spec)
    assert version[0] == "v" and len(version) == 11 and int(version[1:], 16) >= 0
    same = ActionSpec(archive=archive({"action.py": "def action(req): ..."}), timeout_seconds=5, env=None)
    assert code.version_name(same) == version
    others = [
        ActionSpec(script="def action(req): return 1"),
        ActionSpec(image="mine"),
        ActionSpec(image="mine", command=("x",)),
    ]
    assert len({version, *(code.version_name(each) for each in others)}) == 4
    assert code.packed_code(spec) == code.packed_code(same)


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        (ActionSpec(script="def action(req):\n  return 1\n"), ""),
        (ActionSpec(script="def action(req):\n  return (1\n"), "action.py, line 2: '(' was never closed"),
        (ActionSpec(script="x", handler="main.run"), "a script is the module action; write action.run"),
        (ActionSpec(script="-" * 60000 + "1"), "action.py: nested too deeply"),
        (ActionSpec(script="'\\d'"), ""),
        (ActionSpec(script="x = '\0'"), "action.py"),
        (ActionSpec(archive=archive({"app/__init__.py": ""}), handler="app.run"), ""),
        (ActionSpec(archive=archive({"app/main.py": ""}), handler="app.main.run"), ""),
        (ActionSpec(archive=archive({"main.py": ""})), "neither action.py nor action/__init__.py"),
        (ActionSpec(archive=archive({"action.py": "", "lib.py": "def"})), "lib.py, line 1"),
        (ActionSpec(script="this is not python", image="mine"), ""),
    ],
)
def test_faults_of_code(spec: ActionSpec, fault: str) -> None:
    found = code.code_fault(code.code_files(spec), spec)
    assert fault in found and bool(found) is bool(fault)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (ActionSpec(archive="!!!"), "not base64"),
        (ActionSpec(archive=base64.b64encode(b"text").decode()), "cannot be read"),
        (ActionSpec(archive=archive({"action.py": ""}, "passwd")), "'passwd' is a link to '/etc/passwd'"),
        (ActionSpec(archive=archive({"../action.py": ""})), "is not a path below"),
        (ActionSpec(archive=archive({"zeros": "0" * (17 << 20)})), "more than"),
        (ActionSpec(archive=archive({})), "has no files"),
        (ActionSpec(script="#" * (512 * 1024) + "\n"), "524288 are allowed"),
    ],
)
def test_files_that_are_refused(spec: ActionSpec, why: str) -> None:
    with pytest.raises(InvalidFiles, match=why):
        code.code_files(spec)


# Traffic, triggers, grants.


def share(version: str, percent: int) -> TrafficShare:
    return TrafficShare(version=version, percent=percent)


def test_traffic() -> None:
    assert rules.traffic_faults((share("v1", 90), share("v2", 10)), {"v1", "v2"}) == []
    wrong = rules.traffic_faults((share("v1", 90), share("v3", 20)), {"v1", "v2"})
    assert ["versions of this action are: v1, v2" in str(wrong[0]), wrong[1].field] == [True, "spec.traffic"]


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        (TriggerSpec(action="add", schedule="*/5 * * * *"), []),
        (TriggerSpec(action="add", schedule="61 * * * *"), ["spec.schedule"]),
        (TriggerSpec(action="none", schedule="@daily"), ["spec.action"]),
        (TriggerSpec(action="add", topic="orders"), []),
        (TriggerSpec(action="add", topic="add_TOPIC"), ["spec.topic"]),
        (TriggerSpec(action="add", topic="action-results"), ["spec.topic"]),
        (TriggerSpec(action="add", http=HttpTrigger(path="/new")), []),
        (TriggerSpec(action="add", http=HttpTrigger(path="/actions/add")), ["spec.http.path"]),
        (TriggerSpec(action="add", http=HttpTrigger(path="/healthz")), ["spec.http.path"]),
        (TriggerSpec(action="add", http=HttpTrigger(path="/readyz")), ["spec.http.path"]),
        (TriggerSpec(action="add", http=HttpTrigger(path="/coterie/healthz")), ["spec.http.path"]),
        (TriggerSpec(action="add", http=HttpTrigger(path="/healthy")), []),
        (TriggerSpec(action="add", http=HttpTrigger(path="/add", methods=("PUT",))), []),
        (TriggerSpec(action="add", http=HttpTrigger(path="/add", methods=("PUT", "GET"))), ["spec.http.path"]),
        (TriggerSpec(action="add", http=HttpTrigger(path="/add")), ["spec.http.path"]),
    ],
)
def test_triggers(spec: TriggerSpec, fields: list[str]) -> None:
    others = {"t1": HttpTrigger(path="/add", methods=("GET",)), "t2": HttpTrigger(path="/x")}
    assert [fault.field for fault in rules.trigger_faults(spec, {"add"}, others)] == fields


def test_grants() -> None:
    assert rules.grant_faults(ActionGrantSpec(action="score", grant_domain="bob"), "alice", ["score"]) == []
    faults = rules.grant_faults(ActionGrantSpec(action="other", grant_domain="alice"), "alice", ["score"])
    assert [fault.field for fault in faults] == ["spec.action", "spec.grantDomain"]
