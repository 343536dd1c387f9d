"""At each owner of rows. The environment variable COTERIE_ROWS has the path of the CSV file; `{site}` in it stands for the name of the site."""

from __future__ import annotations

import os

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLMetaKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from . import model


class LogisticExecutor(Executor):
    def __init__(self, features: str, label: str, local_steps: int, learning_rate: float) -> None:
        super().__init__()
        self._features, self._label = model.names(features), label
        self._steps, self._rate = local_steps, learning_rate

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        path = os.environ["COTERIE_ROWS"].replace("{site}", fl_ctx.get_identity_name())
        x, y = model.read(path, self._features, self._label)
        if not len(x):
            self.log_error(fl_ctx, "the table has no rows")
            return make_reply(ReturnCode.BAD_TASK_DATA)
        meta = {FLMetaKey.NUM_STEPS_CURRENT_ROUND: len(x)}
        if task_name == "sums":
            found = FLModel(params={"sums": model.sums(x)}, params_type=ParamsType.FULL, meta=meta)
            return FLModelUtils.to_shareable(found)
        given = FLModelUtils.from_shareable(shareable)
        scaled = (x - given.params["mean"]) / given.params["deviation"]
        if task_name == "validate":
            loss, accuracy = model.quality(given.params["weights"], scaled, y)
            found = FLModel(metrics={"loss": loss, "accuracy": accuracy}, meta=meta)
            return FLModelUtils.to_shareable(found)
        weights = model.train(given.params["weights"], scaled, y, self._steps, self._rate)
        params = {**given.params, "weights": weights}
        found = FLModel(params=params, params_type=ParamsType.FULL, meta=meta, current_round=given.current_round)
        return FLModelUtils.to_shareable(found)
