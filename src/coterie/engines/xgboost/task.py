"""The configuration file of a task for XGBoost, read into plain data. `task_input_config` says:

{"server": "alice", "inputs": {"alice": "<domaindata id>", "bob": ...}, "columns": {"alice": ["age", "ill"], ...},
 "label": "ill", "features": ["age"], "rounds": 10, "parameters": {"max_depth": 3}}

server      where XGBoost's server runs, which adds up the histograms of all
inputs      the table of each party; each has the same columns
columns     by party, the columns that are read; left out: all that are granted
label       the column to predict
features    the columns to predict it from
rounds      how many trees
parameters  of XGBoost
"""

from __future__ import annotations

from typing import Any, NamedTuple

from coterie.engines.launching.configuration import BadConfig, read, texts

FED, DONE = "fed", "done"
MOST_ROUNDS = 10_000
_TEXTS = {
    "objective": (
        "binary:logistic",
        "reg:squarederror",
        "reg:logistic",
        "count:poisson",
        "multi:softprob",
        "multi:softmax",
    ),
    "eval_metric": ("logloss", "auc", "error", "rmse", "mae", "mlogloss", "merror", "poisson-nloglik"),
    "tree_method": ("hist", "approx"),
    "grow_policy": ("depthwise", "lossguide"),
}
_NUMBERS = frozenset(
    (
        "alpha",
        "base_score",
        "colsample_bylevel",
        "colsample_bynode",
        "colsample_bytree",
        "eta",
        "gamma",
        "lambda",
        "learning_rate",
        "max_bin",
        "max_delta_step",
        "max_depth",
        "max_leaves",
        "min_child_weight",
        "num_class",
        "scale_pos_weight",
        "seed",
        "subsample",
    )
)


class XgboostTask(NamedTuple):
    id: str
    own: str
    server: str
    owners: tuple[str, ...]
    """By name: the order is the rank of each."""
    endpoint: str
    """Of the server; empty at the server itself."""
    done_endpoint: str
    port: int
    done_port: int
    table: str
    columns: tuple[str, ...]
    label: str
    features: tuple[str, ...]
    rounds: int
    parameters: dict[str, Any]


def parse(text: str) -> XgboostTask:
    config = read(text, (FED, DONE))
    config.only({"server", "inputs", "columns", "label", "features", "rounds", "parameters"})
    server, tables = config.server_and_tables()
    if len(tables) < 2:
        raise BadConfig("task_input_config: two or more parties have tables in inputs")
    label, features, rounds = (config.options.get(key) for key in ("label", "features", "rounds"))
    if not isinstance(label, str) or not label:
        raise BadConfig("task_input_config: label is the name of a column")
    if not isinstance(features, list) or not texts(features) or not features or len({*features}) < len(features):
        raise BadConfig("task_input_config: features is a list of names of columns")
    if label in features:
        raise BadConfig(f"task_input_config: {label} is the label and one of the features")
    if not isinstance(rounds, int) or isinstance(rounds, bool) or not 1 <= rounds <= MOST_ROUNDS:
        raise BadConfig(f"task_input_config: rounds is a number from 1 to {MOST_ROUNDS}")
    return XgboostTask(
        config.task,
        config.own,
        server,
        tuple(sorted(tables)),
        "" if server == config.own else config.endpoints[FED][server],
        "" if server == config.own else config.endpoints[DONE][server],
        config.ports[FED],
        config.ports[DONE],
        tables.get(config.own, ""),
        config.columns(),
        label,
        tuple(features),
        rounds,
        parameters(config.options.get("parameters", {})),
    )


def parameters(given: object) -> dict[str, Any]:
    """What partners may choose. Others of XGBoost load files or choose how the parties talk."""
    if not isinstance(given, dict):
        raise BadConfig("task_input_config: parameters is an object")
    for key, value in given.items():
        if key in _TEXTS:
            if value not in _TEXTS[key]:
                raise BadConfig(f"task_input_config: parameters.{key} is one of {', '.join(_TEXTS[key])}")
        elif key not in _NUMBERS:
            raise BadConfig(f"task_input_config: parameters.{key} is not for tasks to choose")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise BadConfig(f"task_input_config: parameters.{key} is a number")
    return given
