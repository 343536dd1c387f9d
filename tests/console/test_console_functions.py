"""Functions of the page that need no page, run by Node."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

WEB = Path(__file__).parents[2] / "web"
_PROGRAM = """
globalThis.localStorage = { getItem: () => null, setItem: () => undefined };
globalThis.navigator ??= { language: "en" };
globalThis.location = { href: "http://localhost/", protocol: "http:" };
globalThis.addEventListener = () => undefined;
globalThis.document = { hidden: true, adoptedStyleSheets: [] };
globalThis.CSSStyleSheet = class {};
globalThis.setInterval = () => 0;
const { joined, plainLine } = await import("./src/logs");
const { yaml } = await import("./src/yaml");
const { bytes, byteRate, cores, rate } = await import("./src/amounts");
const { allows } = await import("./src/rights");
const { chosenRows, duration, longestGap, placed, shares, tickLabel, ticks, valueAt, zoomed } = await import("./src/timelayout");
const { matching, percent, share, sorted, withState } = await import("./src/screens/jobs");
const { places } = await import("./src/screens/network");
const { cards, conditionOf, targetOf } = await import("./src/screens/functions");
const action = (name, next, more = {}) => ({ id: `alice/${name}`, name, namespace: "alice", phase: "Ready", message: "", next, desired: 0, replicas: 0, ready: 0, calls: 0, errors: 0, cold: 0, dead: 0, ...more });
const trigger = (to, more = {}) => ({ id: `alice/t-${to}`, name: `t-${to}`, namespace: "alice", phase: "Ready", message: "", action: to, by: "http", what: "/x", methods: [], suspended: false, ...more });
const drawn = cards([action("a", ["b", "bob/score", "bob/score"]), action("b", [])], [trigger("a", { suspended: true }), trigger("gone")], [{ namespace: "alice", action: "b", partner: "carol" }], false);
const at = (second) => `2026-01-01T00:00:0${second}.000000000Z`;
const job = (name, phase, began, ended) => ({ id: name, name, phase, began, ended, at: began, parties: ["alice"], reason: "", message: "", initiator: "alice" });
const jobs = [job("a", "Succeeded", at(0), at(5)), job("b", "Failed", at(1), at(2)), job("c", "AwaitingApproval", "", "")];
const span = (kind, begin, end, sentence = "") => ({ kind, begin, end, going_on: false, sentence, next_step: "", count: 1, by: "" });
const whole = { from: 100, to: 200 };
const row = (kind, attempt, ...spans) => ({ kind, label: "psi", task: "psi", party: "", pod: "", phase: "", message: "", reported: false, attempt, spans });
const { coterie } = await import("./src/commands");
const need = (verb, group, resource) => ({ verb, group, resource, namespace: "alice" });
const rule = (verbs, apiGroups, resources, resourceNames) => ({ verbs, apiGroups, resources, ...(resourceNames ? { resourceNames } : {}) });
const line = (second, text) => ({ at: at(second), label: "alice", text });
const first = [line(1, "a"), line(2, "b")];
const { default: dagre } = await import("@dagrejs/dagre");
const { linesOf } = await import("./src/graph");
const { hueOf } = await import("./src/parts");
const { span: spanOf } = await import("./src/time");
const { dashes } = await import("./src/usageplots");
const layout = (rankdir) => {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir, nodesep: 20, ranksep: 52 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const name of ["first", "between", "last"]) graph.setNode(name, { width: 200, height: 70 });
  for (const [from, to] of [["first", "between"], ["between", "last"], ["first", "last"]]) graph.setEdge(from, to);
  dagre.layout(graph);
  const { x, y } = graph.node("between");
  return { x, y, lines: Object.fromEntries(linesOf(graph, rankdir === "TB").map((line) => [`${line.from} ${line.to}`, line.path])) };
};
const TEXTS = ["{\\n  \\"a\\": 1\\n}", "ends\\nhere\\n", "a\\n\\n  b: c", " indented\\nfirst", "\\nempty first", "two\\n\\n", "tab\\there\\n", "\\u001b[31m\\nred", "one line", "---\\n- x", "# no comment\\n'x", "\\n", "a\\r\\nb"];
const out = {
  graphs: [layout("LR"), layout("TB")],
  hues: ["alice", "bob", "carol", "alice", "dave", "eve", "frank"].map(hueOf),
  dashes: [["a", ""], ["b", ""], ["a", "b"], ["a", "c"]].map(([party, peer]) => dashes({ party, peer }, ["a", "b", "c"]).length),
  spans: [0.4, 9.97, 59.7, 119.6, 3599.6, 7199].map((seconds) => spanOf("2026-01-01T00:00:00Z", new Date(Date.parse("2026-01-01T00:00:00Z") + seconds * 1000).toISOString())),
  again: joined(first, [line(2, "b")]) === first,
  late: joined(first, [line(3, "d"), line(1, "c")]).map((each) => each.text),
  most: joined(first, Array.from({ length: 6000 }, (_, index) => ({ at: "", label: "", text: String(index) }))).length,
  plain: plainLine("\\u001b[31mred\\u001b[0m\\u001b]0;title\\u0007 <b>\\u0000"),
  yaml: yaml({ a: [1, { b: "yes" }], c: {}, d: "x: y", e: null }),
  texts: [TEXTS, yaml({ all: TEXTS, one: { two: TEXTS[0] } })],
  rights: [
    allows(rule(["*"], ["*"], ["*"]), need("delete", "g", "things")),
    allows(rule(["get"], ["g"], ["*/status"]), need("get", "g", "things/status")),
    allows(rule(["get"], [""], ["pods"]), need("get", "", "pods")),
    allows(rule(["get"], [""], ["pods"]), need("get", "", "pods/exec")),
    allows(rule(["get"], ["g"], ["things"]), need("patch", "g", "things")),
    allows(rule(["get"], ["other"], ["things"]), need("get", "g", "things")),
    allows(rule(["get"], ["g"], ["things"], ["one"]), need("get", "g", "things")),
  ],
  short: placed([span("wait", 100, 100.01), span("start", 100.01, 100.02), span("run", 100.02, 200)], whole, 500).map((each) => [each.x, each.width]),
  last: placed([span("run", 100, 199.99), span("end", 199.99, 200)], whole, 500).map((each) => each.x + each.width),
  outside: placed([span("run", 0, 50), span("run", 150, 300)], whole, 500).map((each) => [each.x, each.width]),
  ticks: [ticks(whole, 100, 900), ticks({ from: 101, to: 102 }, 100, 300), tickLabel(90, 30), tickLabel(0.5, 0.1), tickLabel(3700, 100)],
  zoom: [zoomed(whole, whole, 2, 100), zoomed({ from: 150, to: 160 }, whole, 0.01, 155), zoomed(whole, whole, 1e9, 150)].map((each) => [each.from, Number((each.to - each.from).toFixed(3))]),
  durations: [0.44, 12, 200, 7260, 100000].map(duration),
  shares: shares([span("wait", 0, 10), span("run", 5, 20), span("start", 20, 21), span("end", 21, 21)]),
  gap: [longestGap([span("wait", 0, 3, "short"), span("wait", 3, 9, "long"), span("run", 9, 99, "works")]).sentence, longestGap([span("wait", 0, 3, "short")], 5)],
  attempt: chosenRows([row("task", 1, span("run", 0, 10), span("pause", 10, 100)), row("task", 2, span("run", 100, 120))], "psi", { number: 2, begin: 100, end: 120, reason: "" }).map((each) => each.attempt),
  values: [valueAt([[1, 5], [3, 7]], 2, 65), valueAt([[1, 5]], 0, 65), valueAt([[1, 5]], 9, 65), valueAt([], 1, 65)],
  progress: [percent(0.999), percent(1), percent(share({ name: "j", tasks: 4, progress: 0.25 }, new Map([["j", 0.5]]))), share({ name: "j", tasks: 0, progress: 0 }, new Map())],
  commands: [coterie(["job", "show", "psi-1"], ""), coterie(["job", "logs", "--task", "a; curl x | sh", "$(id)", "it's\\n"], "alice")],
  sorted: ["", "name", "-name", "-took", "state", "nothing"].map((by) => sorted(jobs, by).map((each) => each.name).join("")),
  filtered: ["state:failed", "phase:succeeded", "party:bob", "state:approval party:alice c"].map((filter) => jobs.filter(matching(filter)).map((each) => each.name).join("")),
  states: [withState("phase:Failed party:bob x", "running"), withState("state:running x", "")],
  drawn: drawn.map((card) => [card.id, card.kind, card.name, card.opens, card.after]),
  off: drawn.filter((card) => card.off).map((card) => card.id),
  conditions: [{}, { ready: 1, replicas: 1 }, { desired: 2, ready: 1 }, { phase: "NotReady", ready: 1 }].map((more) => conditionOf(action("a", [], more)).state),
  targets: [targetOf(action("a", []), "b"), targetOf(action("a", []), "bob/b")],
  places: [["alice", "bob"], ["alice", "bob", "carol", "dave"], ["bob", "carol"]].map((names) => [...places(names, "alice", 400).values()].map((point) => `${Math.round(point.x)},${Math.round(point.y)}`)),
  amounts: [bytes(1536), bytes(1 << 30), byteRate(8192), cores(0.5), cores(2), rate(2.5e6)],
};
console.log(JSON.stringify(out));
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    node = shutil.which("node")
    esbuild = WEB / "node_modules" / ".bin" / "esbuild"
    if node is None or not esbuild.exists():
        pytest.skip("no Node, or no `npm ci` in web/")
    bundle = tmp_path_factory.mktemp("page") / "functions.mjs"
    options = ["--bundle", "--format=esm", "--platform=node", "--jsx=automatic", "--jsx-import-source=preact"]
    subprocess.run(
        [esbuild, *options, f"--outfile={bundle}", "--log-level=error"],
        input=_PROGRAM, text=True, check=True, timeout=60, cwd=WEB,
    )  # fmt: skip
    done = subprocess.run([node, bundle], capture_output=True, text=True, check=True, timeout=60)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_lines_that_are_read_again_are_shown_once_and_in_order(results: dict[str, Any]) -> None:
    assert results["again"] is True, "nothing is drawn again when nothing is new"
    assert results["late"] == ["a", "c", "b", "d"]
    assert results["most"] == 5000


def test_lines_are_plain_text(results: dict[str, Any]) -> None:
    assert results["plain"] == "red <b>\\x00"


def test_objects_are_shown_as_yaml_that_means_the_same(results: dict[str, Any]) -> None:
    assert results["yaml"] == 'a:\n  - 1\n  - b: "yes"\nc: {}\nd: "x: y"\ne: null'


def test_texts_of_several_lines_are_shown_as_they_are_and_mean_the_same(results: dict[str, Any]) -> None:
    texts, shown = results["texts"]
    assert yaml.safe_load(shown) == {"all": texts, "one": {"two": texts[0]}}
    assert '  two: |-\n    {\n      "a": 1\n    }' in shown


def test_amounts_are_for_people(results: dict[str, Any]) -> None:
    assert results["amounts"] == ["1.5 KiB", "1 GiB", "1 KiB/s", "0.50", "2", "2.5 Mbit/s"]


def test_rules_are_read_as_the_server_reads_them(results: dict[str, Any]) -> None:
    assert results["rights"] == [True, True, True, False, False, False, False]


def test_short_steps_stay_visible_beside_long_ones(results: dict[str, Any]) -> None:
    (first, second, third) = results["short"]
    assert first == [0, 5] and second == [5, 5] and third[0] == 10
    assert max(results["last"]) <= 500 and results["last"][1] - results["last"][0] >= 5
    assert results["outside"] == [[250, 250]]


def test_an_axis_has_round_steps_and_is_zoomed_within_the_whole(results: dict[str, Any]) -> None:
    assert results["ticks"] == [[0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100], [1, 1.5, 2], "1:30", "0.5 s", "1:01:40"]
    assert results["zoom"] == [[100, 50], [100, 100], [149.9, 0.2]]


def test_times_and_sums_are_for_people(results: dict[str, Any]) -> None:
    assert results["durations"] == ["0.4 s", "12 s", "3 min 20 s", "2 h 1 min", "1 d 4 h"]
    assert results["shares"] == [
        {"share": "waited", "seconds": 5},
        {"share": "started", "seconds": 1},
        {"share": "ran", "seconds": 15},
    ], "work counts where one party works and another waits"
    assert results["gap"] == ["long", None]
    assert results["attempt"] == [2], "an attempt that only pauses is not part of the next one"
    assert results["values"] == [5, None, None, None]


def test_progress_is_that_of_the_terminal(results: dict[str, Any]) -> None:
    assert results["progress"] == ["99%", "100%", "37%", 0]


def test_what_partners_named_is_quoted_in_commands(results: dict[str, Any]) -> None:
    assert results["commands"] == [
        "coterie job show psi-1",
        "coterie job logs --task 'a; curl x | sh' '$(id)' 'it'\\''s\n' --domain alice",
    ]


def test_no_command_is_put_together_without_quoting() -> None:
    for path in sorted((WEB / "src").rglob("*.tsx")):
        unquoted = re.findall(r"`(?:coterie | ?--?[a-z]+ )[^`]*\$\{", path.read_text())
        assert unquoted == [], f"{path.name}: use coterie() of commands.ts"


def test_jobs_are_sorted_and_filtered_as_the_address_says(results: dict[str, Any]) -> None:
    assert results["sorted"] == ["abc", "abc", "cba", "abc", "cba", "abc"]
    assert results["filtered"] == ["b", "a", "", "c"]
    assert results["states"] == ["state:running party:bob x", "x"]


def test_domains_stand_apart_in_the_picture(results: dict[str, Any]) -> None:
    for placed in results["places"]:
        assert len(set(placed)) == len(placed)
    assert results["places"][1][0] == "380,200", "our own is in the middle"


def test_c36_functions_triggers_and_partners_are_cards_of_one_graph(results: dict[str, Any]) -> None:
    assert results["drawn"] == [
        ["alice/a", "function", "a", "alice/a", ["trigger alice/t-a"]],
        ["alice/b", "function", "b", "alice/b", ["caller alice carol", "alice/a"]],
        ["trigger alice/t-a", "trigger", "/x", "alice/a", []],
        ["caller alice carol", "partner", "carol", "", []],
        ["partner bob/score", "partner", "score", "", ["alice/a"]],
    ], "a trigger of nothing is not drawn, and nothing twice"
    assert results["off"] == ["trigger alice/t-a"]
    assert results["conditions"] == ["waiting", "running", "preparing", "failed"]
    assert results["targets"] == ["alice/b", "bob/b"]


def test_a_line_of_a_graph_goes_around_the_cards_that_it_passes(results: dict[str, Any]) -> None:
    for graph, down in zip(results["graphs"], (False, True), strict=True):
        past = [float(each) for each in re.findall(r"-?[\d.]+", graph["lines"]["first last"])]
        points = [(y, x) if down else (x, y) for x, y in zip(past[::2], past[1::2], strict=True)]
        middle, across, half, room = (graph["y"], graph["x"], 35, 100) if down else (graph["x"], graph["y"], 100, 35)
        inside = [side for along, side in points if middle - half <= along <= middle + half]
        assert len(inside) >= 2 and all(abs(side - across) > room for side in inside), graph
        assert "L" not in graph["lines"]["first between"]


def test_domains_have_tints_of_their_own_while_there_are_some_left(results: dict[str, Any]) -> None:
    assert results["hues"][:6] == [0, 1, 2, 0, 3, 4] and results["hues"][6] in range(5)
    assert results["dashes"] == [0, 2, 2, 2], "lines of one sender differ by their receivers"


def test_times_are_rounded_once(results: dict[str, Any]) -> None:
    assert results["spans"] == ["0.4 s", "10 s", "1 min 0 s", "2 min 0 s", "1 h 0 min", "2 h 0 min"]
