"""The configuration file of a task for NVFlare, read into plain data. `task_input_config` says:

{"app": "logistic", "server": "alice", "inputs": {"alice": "<domaindata id>", "bob": ...},
 "columns": {"alice": ["age"], ...}, "config": {"num_rounds": 3}}

app       a job that comes along; left out where the image brings its own
server    where the server of NVFlare runs
inputs    the table of each party that has a client
columns   by party, the columns that are read; left out: all that are granted
config    values in place of those at the top of the job's config_fed_server.json and config_fed_client.json
"""

from __future__ import annotations

import re
from typing import NamedTuple

from coterie.engines.launching.configuration import BadConfig, read

FED, SERVER, ADMIN = "fed", "server", "admin"
SERVER_SITE = "server"
"""What NVFlare calls its server; clients have the names of their domains."""
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TEXT = re.compile(r"[A-Za-z0-9_.,:+ ][A-Za-z0-9_.,:+ -]*|")
"""No options of a command line, no references to variables of NVFlare."""


class NvflareTask(NamedTuple):
    id: str
    own: str
    server: str
    owners: tuple[str, ...]
    """Parties with a client."""
    endpoint: str
    """Of the server; empty at the server itself."""
    fed_port: int
    server_port: int
    admin_port: int
    app: str
    table: str
    columns: tuple[str, ...]
    values: dict[str, str | int | float | bool]


def parse(text: str) -> NvflareTask:
    config = read(text, (FED, SERVER, ADMIN))
    config.only({"app", "server", "inputs", "columns", "config"})
    app = config.app()
    server, tables = config.server_and_tables()
    if not tables:
        raise BadConfig("task_input_config: no party has a table in inputs")
    if SERVER_SITE in tables:
        raise BadConfig(f"NVFlare calls its server {SERVER_SITE}: a domain of this name can have no client")
    return NvflareTask(
        config.task,
        config.own,
        server,
        tuple(sorted(tables)),
        "" if server == config.own else config.endpoints[FED][server],
        config.ports[FED],
        config.ports[SERVER],
        config.ports[ADMIN],
        app,
        tables.get(config.own, ""),
        config.columns(),
        plain(config.options.get("config", {})),
    )


def plain(values: object) -> dict[str, str | int | float | bool]:
    if not isinstance(values, dict):
        raise BadConfig("task_input_config: config is an object")
    for key, value in values.items():
        if not _KEY.fullmatch(key):
            raise BadConfig(f'task_input_config: "{key}" is no name of a value of config')
        number = isinstance(value, bool | int | float) and value == value and abs(value) != float("inf")
        if not number and not (isinstance(value, str) and _TEXT.fullmatch(value)):
            raise BadConfig(
                f"task_input_config: config.{key} is true, false, a number, or a text of letters, digits, spaces and _.,:+-"
                " that does not begin with -"
            )
    return values
