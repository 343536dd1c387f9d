"""The configuration file of a task for MPyC, read into plain data. `task_input_config` says:

{"program": "column_sums", "inputs": {"alice": "<domaindata id>", "bob": ...}, "columns": {"alice": ["age"], ...},
 "arguments": ["age"]}

program     one that comes along; left out where the image brings its own program
inputs      the table of each party, which its program finds in `rows.csv`; left out: the program reads none
columns     by party, the columns that are read; left out: all that are granted
arguments   words for the program, the same at all parties; none begins with "-"
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

PORT, LOCAL_PORT = "mpc", "program"
FEWEST = 3
"""MPyC's secrets are safe from fewer than half of the parties: of two, each alone would see all."""


class BadConfig(Exception):
    """The task cannot be done as it is written; the sentence goes to the log."""


class Task(NamedTuple):
    id: str
    parties: tuple[str, ...]
    """By name: the order is the index of each."""
    rank: int
    endpoints: dict[str, str]
    port: int
    local_port: int
    """Where the program listens."""
    program: str
    table: str
    columns: tuple[str, ...]
    arguments: tuple[str, ...]

    @property
    def own(self) -> str:
        return self.parties[self.rank]

    @property
    def threshold(self) -> int:
        return (len(self.parties) - 1) // 2


def parse(text: str) -> Task:
    whole = _object(text, "the configuration")
    cluster = _object(whole.get("task_cluster_def"), "task_cluster_def")
    allocated = _object(whole.get("allocated_ports"), "allocated_ports")
    options = _object(whole.get("task_input_config") or "{}", "task_input_config")
    try:
        own = cluster["parties"][cluster.get("selfPartyIdx", 0)]["name"]
        names = tuple(sorted(each["name"] for each in cluster["parties"]))
        endpoints = {
            each["name"]: str(service["endpoints"][0])
            for each in cluster["parties"]
            for service in each["services"]
            if service["portName"] == PORT
        }
        ports = {each["name"]: int(each["port"]) for each in allocated["ports"]}
        port, local_port, rank = ports[PORT], ports[LOCAL_PORT], names.index(own)
        others = {name: endpoints[name] for name in names if name != own}
    except (KeyError, IndexError, TypeError, ValueError) as problem:
        raise BadConfig(f"task_cluster_def or allocated_ports lacks something: {problem!r}") from problem
    if len(names) < FEWEST or len(set(names)) < len(names):
        raise BadConfig(f"MPyC keeps secrets among {FEWEST} or more parties; this task has {len(set(names))}")
    unknown = sorted(set(options) - {"program", "inputs", "columns", "arguments"})
    if unknown:
        raise BadConfig(f"task_input_config: {unknown[0]} is not known here")
    program = options.get("program", "")
    table, columns = _by_party(options, "inputs", names).get(own, ""), _by_party(options, "columns", names).get(own, [])
    arguments = options.get("arguments", [])
    if not isinstance(program, str) or not isinstance(table, str):
        raise BadConfig("task_input_config: program and the values of inputs are texts")
    if not _texts(columns) or not _texts(arguments):
        raise BadConfig("task_input_config: arguments and the values of columns are lists of texts")
    for word in arguments:
        # Partners choose the arguments. As an option of MPyC one of them could lower its threshold.
        if word.startswith("-") or "\0" in word:
            raise BadConfig(f'task_input_config: the argument "{word}" is refused: options are not for partners to set')
    task = str(whole.get("task_id") or "")
    return Task(task, names, rank, others, port, local_port, program, table, tuple(columns), tuple(arguments))


def _object(text: object, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except ValueError as problem:
        raise BadConfig(f"{what} is no JSON: {problem}") from problem
    if not isinstance(found, dict):
        raise BadConfig(f"{what} is no JSON object")
    return found


def _by_party(options: dict[str, Any], key: str, names: tuple[str, ...]) -> dict[str, Any]:
    found = options.get(key, {})
    if not isinstance(found, dict) or not set(found) <= set(names):
        raise BadConfig(f"task_input_config: {key} is an object with some of {', '.join(names)}")
    return found


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
