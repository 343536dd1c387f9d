"""`python -m coterie.engines.xgboost.worker FILE`: one worker. FILE has what `__main__` wrote: rows, rank, server, parameters.

Plain XGBoost: `CommunicatorContext` with the federated communicator, `DMatrix`, `train`.
"""

from __future__ import annotations

import csv
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import xgboost


def rows(path: str, features: list[str], label: str) -> tuple[Any, Any]:
    x, y = [], []
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            x.append([float(row[name]) if row[name] else float("nan") for name in features])
            y.append(float(row[label]))
    return np.array(x, dtype=np.float32).reshape(len(x), len(features)), np.array(y, dtype=np.float32)


def train(given: dict[str, Any]) -> None:
    x, y = rows(given["rows"], given["features"], given["label"])
    with xgboost.collective.CommunicatorContext(
        dmlc_communicator="federated",
        federated_server_address=given["server"],
        federated_world_size=given["workers"],
        federated_rank=given["rank"],
    ):
        matrix = xgboost.DMatrix(x, y, feature_names=given["features"])
        history: dict[str, Any] = {}
        model = xgboost.train(
            given["parameters"],
            matrix,
            num_boost_round=given["rounds"],
            evals=[(matrix, "train")],
            evals_result=history,
            verbose_eval=False,
        )
        saved = bytes(model.save_raw("json"))
        Path(given["model"]).write_bytes(saved)
        metrics = {name: values[-1] for name, values in history["train"].items()}
        digest = hashlib.sha256(saved).hexdigest()
        print(json.dumps({"trees": given["rounds"], "metrics": metrics, "model_sha256": digest}), flush=True)
    print(saved.decode(), flush=True)


if __name__ == "__main__":
    train(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
