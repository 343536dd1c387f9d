"""XGBoost, unmodified, between three organisations: the commands of docs/guide/xgboost.md, and XGBoost's own launcher on the same files."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from engine_guide_kit import EngineGuide, shell, three_organisations
from jobs_kit import Net

from coterie.cli.app import App
from coterie.cli.engine_environment import XGBOOST

PLACE = XGBOOST.directory(App.standard())
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("COTERIE_XGBOOST"), reason="takes minutes and 190 MB: make xgboost"),
]
GUIDE = EngineGuide("xgboost")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    with three_organisations(tmp_path_factory.mktemp("xgboost")) as made:
        yield made


def model(output: str) -> str:
    """XGBoost's JSON, as it stands in the log."""
    found = [line for line in output.splitlines() if line.startswith('{"learner":')]
    assert len(found) == 1, output[-3000:]
    return found[0]


WORKER = """
import csv, json, sys
import numpy as np, xgboost as xgb
rank, address, path, other, out = int(sys.argv[1]), *sys.argv[2:6]
question = json.load(open(other))
rows = list(csv.DictReader(open(path)))
x = np.array([[float(row[name]) for name in question["features"]] for row in rows], dtype=np.float32)
y = np.array([float(row[question["label"]]) for row in rows], dtype=np.float32)
with xgb.collective.CommunicatorContext(
    dmlc_communicator="federated", federated_server_address=address, federated_world_size=3, federated_rank=rank
):
    matrix = xgb.DMatrix(x, y, feature_names=question["features"])
    model = xgb.train(question["parameters"], matrix, num_boost_round=question["rounds"])
    model.save_model(out)
"""
PREDICT = """
import json, sys
import numpy as np, xgboost as xgb
grid = np.array([[a, p] for a in range(20, 80) for p in range(100, 180)], dtype=np.float32)
answers = []
for path in sys.argv[1:]:
    model = xgb.Booster(model_file=path)
    answers.append(model.predict(xgb.DMatrix(grid, feature_names=["age", "pressure"])).tolist())
print(json.dumps(answers))
"""


def own_launcher(folder: Path) -> Path:
    """XGBoost's server and three workers, without Coterie: the model's file."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    python = PLACE / "bin" / "python"
    environ = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    served = f"import xgboost.federated as f; f.run_federated_server(3, {port})"
    with ExitStack() as stack:
        server = subprocess.Popen([python, "-c", served], env=environ)
        stack.callback(server.wait, 60)
        stack.callback(server.kill)
        workers = []
        for n in (1, 2, 3):
            words = [str(n - 1), f"127.0.0.1:{port}", f"visits-{n}.csv", "trees.json", f"plain-{n}.json"]
            workers.append(subprocess.Popen([python, "-c", WORKER, *words], cwd=folder, env=environ))
            stack.callback(workers[-1].kill)
        assert [each.wait(120) for each in workers] == [0, 0, 0]
    return folder / "plain-1.json"


def test_the_guide_gives_the_predictions_of_the_own_launcher(net: Net, tmp_path: Path) -> None:
    (tmp_path / "trees.json").write_text(GUIDE.input)
    began = time.monotonic()
    done = shell(net, tmp_path, GUIDE.steps)
    took = time.monotonic() - began
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"trees": 10' in done.stdout
    (tmp_path / "ours.json").write_text(model(done.stdout))
    began = time.monotonic()
    plain = own_launcher(tmp_path)
    GUIDE.note_figures(net, tmp_path, guide=took, plain=time.monotonic() - began)
    words = [PLACE / "bin" / "python", "-c", PREDICT, tmp_path / "ours.json", plain]
    ours, theirs = json.loads(subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout)
    # The server adds 32-bit sums in the order in which they come, with plain XGBoost as well.
    assert max(abs(one - other) for one, other in zip(ours, theirs, strict=True)) < 1e-5
    assert len(set(ours)) > 5
    for party in ("bob", "carol"):
        logs = shell(net, tmp_path, f"coterie job logs trees --domain {party} --no-prefix").stdout
        assert model(logs) == model(done.stdout)


def test_a_column_that_is_not_granted_is_not_read(net: Net, tmp_path: Path) -> None:
    wider = GUIDE.question
    wider["columns"]["bob"] = ["id", "age", "pressure", "ill"]
    refused = GUIDE.run(net, tmp_path, "wider", wider)
    assert refused.returncode == 1, refused.stdout + refused.stderr
    assert "the table visits-2 cannot be read" in shell(net, tmp_path, "coterie job logs wider --domain bob").stdout
