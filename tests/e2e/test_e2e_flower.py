"""Flower, unmodified, between three organisations: the commands of docs/guide/flower.md, and the same app on plain Flower."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from engine_guide_kit import PARTIES, EngineGuide, shell, three_organisations
from jobs_kit import Net

from coterie.cli.app import App
from coterie.cli.engine_environment import FLOWER
from coterie.engines.flower.__main__ import APPS

PLACE = FLOWER.directory(App.standard())
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("COTERIE_FLOWER"), reason="takes minutes and 50 MB: make flower"),
]
GUIDE = EngineGuide("flower")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    with three_organisations(tmp_path_factory.mktemp("flower")) as made:
        yield made


def model(output: str) -> dict[str, Any]:
    (line,) = [line for line in output.splitlines() if '{"rows": ' in line]
    found: dict[str, Any] = json.loads(line[line.index('{"rows"') :])
    return found


def seconds(output: str) -> float:
    (found,) = re.findall(r"Strategy execution finished in ([0-9.]+)s", output)
    return float(found)


def plain_flower(folder: Path, question: dict[str, Any]) -> str:
    """The same app and files, without Coterie; what it prints."""
    ports = []
    with ExitStack() as stack:
        for _ in range(4):
            ports.append(stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1])
    home = folder / "plain"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{ports[0]}"\ninsecure = true\n'
    )
    tools = PLACE / "bin"
    environ = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "FLWR_HOME": str(home), "NO_PROXY": "*"}
    environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    link = ["flower-superlink", "--insecure", "--port", str(ports[0]), "--disable-runtime-dependency-installation"]
    commands = [link]
    for n in (1, 2, 3):
        words = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{ports[0]}", "--port", str(ports[n])]
        commands.append([*words, "--node-config", f'data="{folder}/patients-{n}.csv"'])
    config = " ".join(f"{key}={json.dumps(value)}" for key, value in question["config"].items())
    running = []
    try:
        for number, words in enumerate(commands):
            with (home / f"{number}.log").open("wb") as log:
                running.append(
                    subprocess.Popen([tools / words[0], *words[1:]], env=environ, cwd=home, stdout=log, stderr=log)
                )
        came = 0
        deadline = time.monotonic() + 120
        while came < 3 and time.monotonic() < deadline:
            came = sum("SuperNode ID" in (home / f"{n}.log").read_text() for n in (1, 2, 3))
            time.sleep(0.2)
        done = subprocess.run(
            [tools / "flwr", "run", APPS / "logistic", "here", "--stream", "--run-config", config],
            env=environ,
            cwd=home,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr
    finally:
        for each in running:
            each.terminate()
        for each in running:
            each.wait(60)


def test_the_guide_gives_the_model_of_plain_flower(net: Net, tmp_path: Path) -> None:
    (tmp_path / "ills.json").write_text(GUIDE.input)
    began = time.monotonic()
    done = shell(net, tmp_path, GUIDE.steps)
    took = time.monotonic() - began
    assert done.returncode == 0, done.stdout + done.stderr
    ours = model(done.stdout)
    plain = plain_flower(tmp_path, GUIDE.question)
    assert (ours["rows"], ours["owners"]) == (600, 3)
    expected = model(plain)
    assert ours["accuracy"] > 0.8
    for key, value in expected.items():
        assert ours[key] == pytest.approx(value, rel=1e-9), key
    GUIDE.note_figures(net, tmp_path, guide=took, ours=seconds(done.stdout), plain=seconds(plain))


def test_a_column_that_is_not_granted_is_not_read(net: Net, tmp_path: Path) -> None:
    wider = GUIDE.question
    wider["columns"]["bob"] = ["id", "age", "pressure", "ill"]
    refused = GUIDE.run(net, tmp_path, "wider", wider)
    assert refused.returncode == 1, refused.stdout + refused.stderr
    assert "the table patients-2 cannot be read" in shell(net, tmp_path, "coterie job logs wider --domain bob").stdout


def test_code_comes_from_the_own_image_only(net: Net, tmp_path: Path) -> None:
    """alice brings another app than bob and carol have under the same name: nobody runs it."""
    for party in PARTIES:
        shutil.copytree(APPS / "logistic", tmp_path / party / "app")
    changed = tmp_path / "alice" / "app" / "logistic" / "client_app.py"
    changed.write_text(changed.read_text() + "\nprint('CODE OF ALICE', flush=True)\n")
    appimage = copy.deepcopy(FLOWER.made())
    appimage["metadata"] = {"name": "own-app"}
    appimage["spec"]["image"] = {"name": "own-app", "tag": "1.0"}
    (container,) = appimage["spec"]["deployTemplates"][0]["spec"]["containers"]
    del container["command"]
    (tmp_path / "own-app.json").write_text(json.dumps(appimage))
    for party in PARTIES:
        where = tmp_path / party
        words = f"--arg=-P --arg=-m --arg=coterie.engines.flower --arg=--app --arg={where}/app"
        words += f" --arg=kuscia/task-config.conf --visible {where}"
        add = f"coterie image add own-app:1.0 --command {PLACE}/bin/python {words} --domain {party}"
        made = shell(net, tmp_path, f"{add}\ncoterie engine add own-app.json --domain {party}")
        assert made.returncode == 0, made.stdout + made.stderr
    inputs = {party: f"own-{party}" for party in PARTIES}
    for party, table in inputs.items():
        (tmp_path / f"{table}.csv").write_text("age,ill\n20,0\n30,1\n40,0\n50,1\n")
        script = f"coterie data add {table}.csv --domain {party}"
        if party != "alice":
            script += f"\ncoterie data grant {table} alice --columns age,ill --component own-app --domain {party}"
        added = shell(net, tmp_path, script)
        assert added.returncode == 0, added.stdout + added.stderr
    question = {"server": "alice", "inputs": inputs, "config": {"features": "age", "label": "ill"}}
    (tmp_path / "own.json").write_text(json.dumps(question))
    words = "coterie job run --engine own-app --parties alice,bob,carol --domain alice --name own --input @own.json"
    refused = shell(net, tmp_path, words)
    assert refused.returncode == 1, refused.stdout + refused.stderr
    logs = "".join(shell(net, tmp_path, f"coterie job logs own --domain {each}").stdout for each in ("bob", "carol"))
    assert "the app that alice runs is not the one of this party's image" in logs
    assert "CODE OF ALICE" not in logs
