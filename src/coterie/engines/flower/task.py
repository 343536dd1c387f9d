"""The configuration file of a task for Flower, read into plain data. `task_input_config` says:

{"app": "logistic", "server": "alice", "inputs": {"alice": "<domaindata id>", "bob": ...},
 "columns": {"alice": ["age"], ...}, "config": {"num-server-rounds": 3}}

app       one that comes along; left out where the image brings its own
server    where the SuperLink and the ServerApp run
inputs    the table of each party that has a SuperNode
columns   by party, the columns that are read; left out: all that are granted
config    values in place of those in [tool.flwr.app.config] of the app
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from coterie.engines.launching.configuration import BadConfig, read

FLEET, SUPERLINK, SUPERNODE = "fleet", "superlink", "supernode"
_KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class FlowerTask(NamedTuple):
    id: str
    own: str
    server: str
    owners: tuple[str, ...]
    """Parties with a SuperNode."""
    endpoint: str
    """Of the server; empty at the server itself."""
    fleet_port: int
    superlink_port: int
    supernode_port: int
    app: str
    table: str
    columns: tuple[str, ...]
    run_config: str
    """TOML."""


def parse(text: str) -> FlowerTask:
    config = read(text, (FLEET, SUPERLINK, SUPERNODE))
    config.only({"app", "server", "inputs", "columns", "config"})
    app = config.app()
    server, tables = config.server_and_tables()
    if not tables:
        raise BadConfig("task_input_config: no party has a table in inputs")
    return FlowerTask(
        config.task,
        config.own,
        server,
        tuple(sorted(tables)),
        "" if server == config.own else config.endpoints[FLEET][server],
        config.ports[FLEET],
        config.ports[SUPERLINK],
        config.ports[SUPERNODE],
        app,
        tables.get(config.own, ""),
        config.columns(),
        toml(config.options.get("config", {})),
    )


def toml(values: object) -> str:
    if not isinstance(values, dict):
        raise BadConfig("task_input_config: config is an object")
    lines = []
    for key, value in values.items():
        if not _KEY.fullmatch(key):
            raise BadConfig(f'task_input_config: "{key}" is no name of a value of config')
        plain = isinstance(value, bool | int | float) and value == value and abs(value) != float("inf")
        if not plain and not (isinstance(value, str) and not _CONTROL.search(value)):
            raise BadConfig(f"task_input_config: config.{key} is a text of one line, a number, true or false")
        lines.append(f"{key} = {json.dumps(value)}\n")
    return "".join(lines)
