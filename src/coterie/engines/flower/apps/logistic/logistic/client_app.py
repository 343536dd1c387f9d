"""At each owner of rows. The file is named by the node: `--node-config 'data="rows.csv"'`."""

from __future__ import annotations

from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from . import model

app = ClientApp()


@app.query()
def column_sums(message: Message, context: Context) -> Message:
    x, _ = _rows(context)
    return _answer(message, {"num-examples": len(x)}, [model.sums(x)])


@app.train()
def train(message: Message, context: Context) -> Message:
    weights, mean, deviation = message.content["arrays"].to_numpy_ndarrays()
    x, y = _rows(context)
    steps, rate = int(context.run_config["local-steps"]), float(context.run_config["learning-rate"])
    weights = model.train(weights, (x - mean) / deviation, y, steps, rate)
    return _answer(message, {"num-examples": len(x)}, [weights, mean, deviation])


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    weights, mean, deviation = message.content["arrays"].to_numpy_ndarrays()
    x, y = _rows(context)
    loss, accuracy = model.quality(weights, (x - mean) / deviation, y)
    return _answer(message, {"num-examples": len(x), "loss": loss, "accuracy": accuracy})


def _rows(context: Context) -> tuple[Any, Any]:
    x, y = model.read(str(context.node_config["data"]), *model.names(context.run_config))
    if not len(x):
        raise ValueError("the table has no rows")
    return x, y


def _answer(message: Message, metrics: dict[str, float], arrays: list[Any] | None = None) -> Message:
    content = {"metrics": MetricRecord(metrics)}
    if arrays is not None:
        content["arrays"] = ArrayRecord(arrays)
    return Message(content=RecordDict(content), reply_to=message)
