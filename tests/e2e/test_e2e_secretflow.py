"""SecretFlow, unmodified, in a real network: the job of the user guide, with files and over Arrow Flight."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubectl_runner
import pytest
import yaml
from jobs_kit import Net, network, until

from coterie.cli.app import App
from coterie.cli.engine_environment import SECRETFLOW
from coterie.cli.main import main

PLACE = SECRETFLOW.directory(App.standard())
pytestmark = [
    pytest.mark.xdist_group("e2e-secretflow"),
    pytest.mark.timeout(500),
    pytest.mark.slow,
    pytest.mark.skipif(
        not SECRETFLOW.installed(PLACE), reason="the environment of SecretFlow is not there: make secretflow"
    ),
    pytest.mark.skipif(not shutil.which("sort"), reason="SPU sorts with the program sort"),
]
IMAGE = os.environ.get("COTERIE_SECRETFLOW_IMAGE", "")
"""An archive to run SecretFlow from: `make secretflow-image`."""
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "secretflow-job.yaml"
ROWS, COMMON = 1000, 800
Row = dict[str, Any]
WAYS = {"files": "default-data-source", "flight": "default-dp-data-source"}
"""How alice's engines come to her data. Bob's, whose tasks alice begins, come over Flight in both."""


def tables() -> dict[str, list[Row]]:
    """Customers and what is known of them elsewhere; whether y is 1 can be told from both tables together."""
    dice = random.Random(11)
    people = [[dice.gauss(0, 1) for _ in range(5)] for _ in range(2 * ROWS - COMMON)]
    weights = (2.0, -1.5, 1.0, 2.5, -2.0)
    score = [sum(w * x for w, x in zip(weights, each, strict=True)) for each in people]
    ours = [
        {"id": f"p{at:05}", **{f"x{n + 1}": round(each[n], 6) for n in range(3)}, "y": int(score[at] > 0)}
        for at, each in enumerate(people[:ROWS])
    ]
    theirs = [
        {"uid": f"p{at:05}", "x4": round(each[3], 6), "x5": round(each[4], 6)}
        for at, each in enumerate(people)
        if at >= ROWS - COMMON
    ]
    dice.shuffle(ours)
    dice.shuffle(theirs)
    return {"alice": ours, "bob": theirs}


TABLES = tables()
NAMES = {"alice": "customers", "bob": "visitors"}


@dataclass(frozen=True)
class Told:
    """The network once the job is over."""

    net: Net
    way: str

    def result(self, name: str, party: str) -> list[Row]:
        found: list[Row] = json.loads(
            coterie(self.net, "data", "head", f"{name}-{self.way}", "-l", "100000", "-o", "json", "--domain", party)
        )
        return found

    def entry(self, name: str, party: str) -> Row:
        path = f"/apis/kuscia.secretflow/v1alpha1/namespaces/{party}/domaindatas/{name}-{self.way}"
        found: Row = self.net.at(party).get(path)
        assert found is not None, f"{party} has no {name}-{self.way}"
        return found["spec"]


def use_image(net: Net, file: str) -> None:
    """SecretFlow from an image with a file system of its own, in place of the environment on the machine; its id is required."""
    for party in ("alice", "bob"):
        coterie(net, "image", "load", file, "--domain", party)
        (image,) = json.loads(coterie(net, "image", "ls", SECRETFLOW.image, "-o", "json", "--domain", party))
        assert image["kind"] == "rootfs"
        net.at(party).merge(
            "/apis/kuscia.secretflow/v1alpha1/appimages/secretflow-image", {"spec": {"image": {"id": image["id"]}}}
        )


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    root = tmp_path_factory.mktemp("secretflow") / "net"
    with network(root, "p2p", "alice", "bob", kubectl=kubectl_runner.chosen()[-1]) as found:
        said = coterie(found, "engine", "add", "secretflow")
        assert said == "added engine secretflow-image (alice, bob)\n"
        if IMAGE:
            use_image(found, IMAGE)
        for party, rows in TABLES.items():
            file = root.with_name(f"{NAMES[party]}.csv")
            with file.open("w", newline="", encoding="utf-8") as out:
                writer = csv.DictWriter(out, rows[0].keys())
                writer.writeheader()
                writer.writerows(rows)
            coterie(found, "data", "add", str(file), "--domain", party)
        coterie(found, "data", "grant", "visitors", "alice", "--domain", "bob")
        coterie(found, "data", "grant", "customers", "bob", "--metadata", "--domain", "alice")
        for party, other in (("alice", "visitors"), ("bob", "customers")):
            known = f"/apis/kuscia.secretflow/v1alpha1/namespaces/{party}/domaindatas/{other}"
            until(f"{party} knows of {other}", lambda party=party, known=known: found.at(party).get(known))
        yield found


@pytest.fixture(scope="module", params=WAYS)
def told(net: Net, request: pytest.FixtureRequest) -> Told:
    way = str(request.param)
    job = yaml.safe_load(GUIDE.read_text())
    job["metadata"]["name"] += f"-{way}"
    for task in job["spec"]["tasks"]:
        text = task["taskInputConfig"].replace("default-data-source", WAYS[way])
        wanted = json.loads(text)
        for key in ("sf_input_ids", "sf_output_ids", "sf_output_uris"):
            wanted[key] = [_renamed(each, way) for each in wanted[key]]
        task["taskInputConfig"] = json.dumps(wanted)
    net.at("alice").submit(job)
    name = job["metadata"]["name"]
    ended = net.at("alice").until_phase(name, "Succeeded", "Failed", seconds=420)
    assert ended["status"]["phase"] == "Succeeded", logs(net, name)
    return Told(net, way)


def _renamed(name: str, way: str) -> str:
    """Results of the two ways stand side by side."""
    if not name.startswith("sf-"):
        return name
    stem, dot, ending = name.partition(".")
    return f"{stem}-{way}{dot}{ending}"


def coterie(net: Net, *words: str) -> str:
    out, err = io.StringIO(), io.StringIO()
    code = main([*words, "--root", str(net.root)], App(out, err))
    assert code == 0, f"coterie {' '.join(words)}: {out.getvalue()}{err.getvalue()}"
    return out.getvalue()


def logs(net: Net, job: str) -> str:
    """What the engines said, at both."""
    found = [net.at("alice").told(job)]
    for domain in net.domains.values():
        for file in sorted(domain.paths.home.glob("var/stdout/**/*.log")):
            found.append(f"---- {file}\n" + "\n".join(file.read_text(errors="replace").splitlines()[-40:]))
    return "\n".join(found)


def test_the_join_is_a_plain_join(told: Told) -> None:
    ours, theirs = told.result("sf-joined", "alice"), told.result("sf-joined", "bob")
    common = {row["id"] for row in TABLES["alice"]} & {row["uid"] for row in TABLES["bob"]}
    assert len(common) == COMMON
    wanted = {
        "alice": sorted((row for row in TABLES["alice"] if row["id"] in common), key=lambda row: row["id"]),
        "bob": sorted((row for row in TABLES["bob"] if row["uid"] in common), key=lambda row: row["uid"]),
    }
    assert [row["id"] for row in ours] == [row["uid"] for row in theirs]
    for party, key, found in (("alice", "id", ours), ("bob", "uid", theirs)):
        assert [row[key] for row in found] == [row[key] for row in wanted[party]]
        for row, right in zip(found, wanted[party], strict=True):
            assert row == pytest.approx(right)


def test_who_goes_to_the_files_and_who_asks_the_data_mesh(told: Told) -> None:
    """SecretFlow writes ORC; the data mesh makes what the file's name says."""
    file = f"sf-joined-{told.way}.csv"
    starts = {party: (told.net.domains[party].paths.data / file).read_bytes()[:3] for party in TABLES}
    assert starts == {"alice": b"ORC" if told.way == "files" else b"id,", "bob": b"uid"}


def test_the_split_loses_no_row(told: Told) -> None:
    for party, key in (("alice", "id"), ("bob", "uid")):
        train, test = (told.result(name, party) for name in ("sf-train", "sf-test"))
        assert len(train) == COMMON * 3 // 4
        assert {row[key] for row in train} | {row[key] for row in test} == {
            row[key] for row in told.result("sf-joined", party)
        }


def test_results_are_registered_at_both(told: Told) -> None:
    kinds = {"sf-joined": "table", "sf-model": "model", "sf-scores": "table", "sf-evaluation": "report"}
    for party in ("alice", "bob"):
        entries = {name: told.entry(name, party) for name in kinds}
        assert {name: entry["type"] for name, entry in entries.items()} == kinds
        assert {(entry["vendor"], entry["author"]) for entry in entries.values()} == {("secretflow", party)}


def test_only_the_receiver_has_the_scores_and_they_are_good(told: Told) -> None:
    scores = told.result("sf-scores", "alice")
    assert len(scores) == COMMON // 4
    right = {row["id"]: row["y"] for row in TABLES["alice"]}
    assert sum((row["pred"] > 0.5) == right[row["id"]] for row in scores) / len(scores) > 0.9
    assert not told.entry("sf-scores", "bob").get("columns")
    assert not (told.net.domains["bob"].paths.data / f"sf-scores-{told.way}.csv").exists()


def test_the_evaluation_says_so_too(told: Told) -> None:
    report = json.loads(told.entry("sf-evaluation", "alice")["attributes"]["dist_data"])
    assert _named(report, "auc") > 0.9


def test_engines_told_how_far_they_were(told: Told) -> None:
    tasks = told.net.at("alice").tasks(f"train-together-{told.way}")
    assert {each["status"].get("progress") for each in tasks.values()} == {1.0}


def test_the_owner_sees_who_used_its_table(told: Told) -> None:
    uses = json.loads(coterie(told.net, "data", "uses", "-o", "json", "--domain", "bob"))
    assert [each for each in uses if f"train-together-{told.way}" in json.dumps(each)]


def _named(value: Any, name: str) -> float:
    """The number that stands under a name somewhere in a report."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if each.get("name") == name and isinstance(each.get("value"), dict):
                return float(each["value"]["f"])
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    raise AssertionError(f"the report says nothing of {name}: {json.dumps(value)[:2000]}")
