"""NVFlare, unmodified, between three organisations: the commands of docs/guide/nvflare.md, and the same job in NVFlare's simulator."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from engine_guide_kit import PARTIES, EngineGuide, shell, three_organisations
from jobs_kit import Net

from coterie.cli.app import App
from coterie.cli.engine_environment import NVFLARE
from coterie.engines.nvflare import jobs
from coterie.engines.nvflare.__main__ import APPS

PLACE = NVFLARE.directory(App.standard())
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("COTERIE_NVFLARE"), reason="takes minutes and 40 MB: make nvflare"),
]
GUIDE = EngineGuide("nvflare")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    with three_organisations(tmp_path_factory.mktemp("nvflare")) as made:
        yield made


def model(output: str) -> dict[str, Any]:
    (line,) = [line for line in output.splitlines() if '{"rows": ' in line]
    found: dict[str, Any] = json.loads(line[line.index('{"rows"') :])
    return found


def seconds(output: str) -> float:
    """From the first task to the last answer, by NVFlare's log."""
    times = re.findall(
        r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) - [^\n]*(?:Sending task|Finished one|got result)", output
    )
    moments = [datetime.fromisoformat(f"{second}.{thousandths}") for second, thousandths in times]
    return (max(moments) - min(moments)).total_seconds()


def simulator(folder: Path, question: dict[str, Any]) -> str:
    """The same job and files, without Coterie; what it prints."""
    jobs.prepared(APPS / "logistic", folder / "plain", question["config"], PARTIES)
    for n, party in enumerate(PARTIES, 1):
        shutil.copy(folder / f"cases-{n}.csv", folder / f"{party}.csv")
    words = [PLACE / "bin" / "nvflare", "simulator", folder / "plain", "-w", folder / "simulated"]
    environ = {**os.environ, "COTERIE_ROWS": str(folder / "{site}.csv")}
    done = subprocess.run(
        [*words, "-c", ",".join(PARTIES), "-t", "3"],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_guide_gives_the_model_of_the_simulator(net: Net, tmp_path: Path) -> None:
    (tmp_path / "clinics.json").write_text(GUIDE.input)
    began = time.monotonic()
    done = shell(net, tmp_path, GUIDE.steps)
    took = time.monotonic() - began
    assert done.returncode == 0, done.stdout + done.stderr
    ours = model(done.stdout)
    plain = simulator(tmp_path, GUIDE.question)
    assert (ours["rows"], ours["owners"]) == (600, 3)
    assert ours["accuracy"] > 0.8
    expected = model(plain)
    assert ours.keys() == expected.keys()
    for key, value in expected.items():
        assert ours[key] == pytest.approx(value, rel=1e-9), key  # NVFlare adds in the order in which answers come
    GUIDE.note_figures(net, tmp_path, guide=took, ours=seconds(done.stdout), plain=seconds(plain))
    for party in PARTIES:
        logs = shell(net, tmp_path, f"coterie job logs clinics --domain {party}").stdout
        assert "not passed on" not in logs, "NVFlare sent what the relays do not know"


def test_a_column_that_is_not_granted_is_not_read(net: Net, tmp_path: Path) -> None:
    wider = GUIDE.question
    wider["columns"]["bob"] = ["id", "age", "pressure", "ill"]
    refused = GUIDE.run(net, tmp_path, "wider", wider)
    assert refused.returncode == 1, refused.stdout + refused.stderr
    assert "the table cases-2 cannot be read" in shell(net, tmp_path, "coterie job logs wider --domain bob").stdout


def test_code_comes_from_the_own_image_only(net: Net, tmp_path: Path) -> None:
    """alice brings another app than bob and carol have under the same name: nobody runs it."""
    for party in PARTIES:
        shutil.copytree(APPS / "logistic", tmp_path / party / "job")
    changed = tmp_path / "alice" / "job" / "app" / "custom" / "logistic" / "executor.py"
    changed.write_text(changed.read_text() + "\nprint('CODE OF ALICE', flush=True)\n")
    appimage = copy.deepcopy(NVFLARE.made())
    appimage["metadata"] = {"name": "own-job"}
    appimage["spec"]["image"] = {"name": "own-job", "tag": "1.0"}
    (container,) = appimage["spec"]["deployTemplates"][0]["spec"]["containers"]
    del container["command"]
    (tmp_path / "own-job.json").write_text(json.dumps(appimage))
    for party in PARTIES:
        where = tmp_path / party
        words = f"--arg=-P --arg=-m --arg=coterie.engines.nvflare --arg=--job --arg={where}/job"
        words += f" --arg=kuscia/task-config.conf --visible {where}"
        add = f"coterie image add own-job:1.0 --command {PLACE}/bin/python {words} --domain {party}"
        made = shell(net, tmp_path, f"{add}\ncoterie engine add own-job.json --domain {party}")
        assert made.returncode == 0, made.stdout + made.stderr
    inputs = {party: f"own-{party}" for party in PARTIES}
    for party, table in inputs.items():
        (tmp_path / f"{table}.csv").write_text("age,ill\n20,0\n30,1\n40,0\n50,1\n")
        script = f"coterie data add {table}.csv --domain {party}"
        if party != "alice":
            script += f"\ncoterie data grant {table} alice --columns age,ill --component own-job --domain {party}"
        added = shell(net, tmp_path, script)
        assert added.returncode == 0, added.stdout + added.stderr
    question = {"server": "alice", "inputs": inputs, "config": {"features": "age", "label": "ill"}}
    (tmp_path / "own.json").write_text(json.dumps(question))
    words = "coterie job run --engine own-job --parties alice,bob,carol --domain alice --name own --input @own.json"
    refused = shell(net, tmp_path, words)
    assert refused.returncode == 1, refused.stdout + refused.stderr
    logs = "".join(shell(net, tmp_path, f"coterie job logs own --domain {each}").stdout for each in ("bob", "carol"))
    assert "the app that alice sends is not the one of this party's image: custom/logistic/executor.py differs" in logs
    assert "CODE OF ALICE" not in logs


SITE = """
import io, json, sys, tempfile, zipfile
from pathlib import Path
from nvflare.apis.workspace import Workspace
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from coterie.engines.nvflare.site_policy import OwnAppDeployer
own, root = Path(sys.argv[1]), Path(tempfile.mkdtemp())
for name in ("startup", "local"):
    (root / name).mkdir()
deployer = OwnAppDeployer(str(own), str(root / "refused"))
topics = sorted(topic for each in ClientRequestProcessors.request_processors for topic in each.get_topics())
given = io.BytesIO()
with zipfile.ZipFile(given, "w") as archive:
    for path in own.rglob("*.json"):
        archive.write(path, path.relative_to(own))
    archive.writestr("custom/evil.py", "x = 1")
answers = [
    deployer.deploy(Workspace(str(root), "bob"), job, {}, "app", given.getvalue(), None)
    for job in ("4a0f8d1c-0000-4000-8000-0123456789ab", "../x", "4a0f8d1c-0000-4000-8000-0123456789ab --set a=b")
]
left = sorted(str(each.relative_to(root)) for each in root.rglob("*"))
print(json.dumps({"topics": topics, "answers": answers, "left": left}))
"""


def test_a_client_does_what_a_job_needs_and_no_more() -> None:
    """The version of NVFlare that is installed may have other commands than the one that this was written for."""
    words = [PLACE / "bin" / "python", "-P", "-c", SITE, APPS / "logistic" / "app"]
    found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout)
    assert found["topics"] == [
        "scheduler.cancel_resource",
        "scheduler.check_resource",
        "train.abort",
        "train.deploy",
        "train.notify_job_status",
        "train.start_job",
    ]
    assert found["answers"][0] == "the app is not the one of this party's image: custom/evil.py differs"
    assert found["answers"][1:] == ["this is no id of a job"] * 2
    assert found["left"] == ["local", "refused", "startup"]
