"""At one place: asks all nodes for the scales of the columns, then averages their weights. Prints the model as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from . import model

app = ServerApp()


class AllOrNothing(FedAvg):
    """A model of fewer owners than there are would be taken for one of all."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        return super().aggregate_train(server_round, _all_well(replies))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> Any:
        return super().aggregate_evaluate(server_round, _all_well(replies))


@app.main()
def main(grid: Grid, context: Context) -> None:
    features, _ = model.names(context.run_config)
    nodes = sorted(grid.get_node_ids())
    asked = [Message(content=RecordDict(), message_type="query", dst_node_id=each) for each in nodes]
    replies = sorted(_all_well(grid.send_and_receive(asked)), key=lambda each: each.metadata.src_node_id)
    count = sum(int(each.content["metrics"]["num-examples"]) for each in replies)
    added = sum(each.content["arrays"].to_numpy_ndarrays()[0] for each in replies)
    mean, deviation = model.scales(count, added)
    strategy = AllOrNothing(min_train_nodes=len(nodes), min_evaluate_nodes=len(nodes), min_available_nodes=len(nodes))
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([np.zeros(len(features) + 1), mean, deviation]),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
    weights, mean, deviation = result.arrays.to_numpy_ndarrays()
    found = dict(result.evaluate_metrics_clientapp[max(result.evaluate_metrics_clientapp)])
    print(
        json.dumps(
            {
                "rows": count,
                "owners": len(nodes),
                "weights": dict(zip([*features, "constant"], weights.tolist(), strict=True)),
                "mean": dict(zip(features, mean.tolist(), strict=True)),
                "deviation": dict(zip(features, deviation.tolist(), strict=True)),
                "loss": found["loss"],
                "accuracy": found["accuracy"],
            }
        ),
        flush=True,
    )


def _all_well(replies: Iterable[Message]) -> list[Message]:
    found = list(replies)
    for each in found:
        if each.has_error():
            raise RuntimeError(f"an owner failed: {each.error.reason}")
    return found
