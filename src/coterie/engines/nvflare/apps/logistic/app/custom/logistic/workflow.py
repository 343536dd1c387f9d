"""At one place: asks all sites for the scales of the columns, then lets NVFlare's FedAvg average their weights. Prints the model as JSON."""

from __future__ import annotations

import json

import numpy as np
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.workflows.fedavg import FedAvg

from . import model


class ScaledFedAvg(FedAvg):
    def __init__(self, features: str, num_rounds: int) -> None:
        super().__init__(num_rounds=num_rounds)
        self._features = model.names(features)
        self._sites: list[str] = []
        self._rows = 0
        self._final: FLModel | None = None

    def run(self) -> None:
        self._sites = sorted(self.sample_clients())
        self.num_clients = len(self._sites)
        super().run()
        if self._final is None or self.abort_signal.triggered:
            return
        answers = self._ask("validate", self._final)
        weights, mean, deviation = (self._final.params[name].tolist() for name in ("weights", "mean", "deviation"))
        found = {
            "rows": self._rows,
            "owners": len(self._sites),
            "weights": dict(zip([*self._features, "constant"], weights, strict=True)),
            "mean": dict(zip(self._features, mean, strict=True)),
            "deviation": dict(zip(self._features, deviation, strict=True)),
        }
        for name in ("loss", "accuracy"):
            found[name] = sum(each.metrics[name] * _rows(each) for each in answers) / self._rows
        print(json.dumps(found), flush=True)

    def load_model(self) -> FLModel:
        answers = self._ask("sums", FLModel(params={"sums": np.zeros(2 * len(self._features))}))
        self._rows = sum(_rows(each) for each in answers)
        added = sum(each.params["sums"] for each in answers)
        mean, deviation = model.scales(self._rows, added)
        weights = np.zeros(len(self._features) + 1)
        params = {"weights": weights, "mean": mean, "deviation": deviation}
        return FLModel(params=params, params_type=ParamsType.FULL)

    def save_model(self, model: FLModel) -> None:
        self._final = model

    def _ask(self, task: str, question: FLModel) -> list[FLModel]:
        """The answers of all, in the order of their names: a model of fewer owners would be taken for one of all."""
        found = self.send_model_and_wait(task_name=task, data=question, targets=self._sites)
        names = sorted(each.meta["client_name"] for each in found)
        if names != self._sites:
            raise RuntimeError(
                f"of {', '.join(self._sites)} only {', '.join(names) or 'none'} answered the task {task}"
            )
        return sorted(found, key=lambda each: str(each.meta["client_name"]))


def _rows(answer: FLModel) -> int:
    return int(answer.meta[FLMetaKey.NUM_STEPS_CURRENT_ROUND])
