"""The configuration file of a PSI task, read into plain data. The file is as every engine gets it; `task_input_config`
says:

{"protocol": "RR22", "inputs": {"alice": "<domaindata id>", "bob": ...}, "keys": {"alice": ["id"], "bob": ["uid"]},
 "outputs": {"alice": "<new domaindata id>", ...}, "receivers": ["alice", "bob"], "join": "inner", "sort": true}

protocol    RR22 (the default), KKRT, ECDH; three parties: ECDH
keys        the columns to compare, as many at each party, in the same order
columns     {"alice": [...]}: what else goes into the result; left out: all columns
outputs     left out: `<task>-<party>`
receivers   who gets a result; left out: everybody. One, or all
join        inner (the default), and for two parties left, right, full, difference; the left one comes first by name
sort        true (the default): ordered by key, and so that the n-th rows of all results belong together;
            false: each result in the order of its table

or what Kuscia's own psi AppImage takes, `sf_psi_config_map`: see `config_map.py`.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from coterie.engines.launching.configuration import BadConfig
from coterie.engines.psi import config_map

PROTOCOLS = ("RR22", "KKRT", "ECDH")
JOINS = ("inner", "left", "right", "full", "difference")


class Party(NamedTuple):
    name: str
    endpoint: str
    """`host[:port]`; without a port it is the gateway's, 80."""
    data: str
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    output: str
    receives: bool


class Task(NamedTuple):
    id: str
    parties: tuple[Party, ...]
    """By name: the order is the rank of each."""
    rank: int
    port: int
    progress_url: str
    protocol: str
    join: str
    sort: bool
    unused: tuple[str, ...] = ()
    """Fields of the input that have no effect here."""

    @property
    def own(self) -> Party:
        return self.parties[self.rank]

    @property
    def partners(self) -> tuple[Party, ...]:
        return tuple(each for each in self.parties if each is not self.own)


def read(path: str) -> Task:
    try:
        with open(path, encoding="utf-8") as file:
            return parse(file.read())
    except OSError as problem:
        raise BadConfig(f"the configuration {path} cannot be read: {problem.strerror}") from problem


def parse(text: str) -> Task:
    whole = _object(text, "the configuration")
    cluster = _object(whole.get("task_cluster_def") or "", "task_cluster_def")
    ports = _object(whole.get("allocated_ports") or "", "allocated_ports")
    options = _object(whole.get("task_input_config") or "", "task_input_config")
    try:
        endpoints = {each["name"]: each["services"][0]["endpoints"][0] for each in cluster["parties"]}
        own = cluster["parties"][cluster["selfPartyIdx"]]["name"]
        port = int(ports["ports"][0]["port"])
    except (KeyError, IndexError, TypeError, ValueError) as problem:
        raise BadConfig(f"task_cluster_def or allocated_ports lacks something: {problem!r}") from problem
    task = str(whole.get("task_id") or "")
    unused: list[str] = []
    if config_map.KEY in options:
        options, unused = config_map.translated(options, sorted(endpoints))
    parties = _parties(task, endpoints, options)
    protocol, join, sort = _protocol_options(options, parties)
    rank = [each.name for each in parties].index(own)
    return Task(
        task, parties, rank, port, str(whole.get("task_progress_url") or ""), protocol, join, sort, tuple(unused)
    )


def _parties(task: str, endpoints: dict[str, str], options: dict[str, Any]) -> tuple[Party, ...]:
    names = sorted(endpoints)
    if len(names) not in (2, 3):
        raise BadConfig(f"an intersection is made by two or three parties, not by {len(names)}")
    inputs, outputs = _by_party(options, "inputs", names), _by_party(options, "outputs", names)
    keys, columns = _by_party(options, "keys", names), _by_party(options, "columns", names)
    receivers = options.get("receivers", names)
    if not _texts(receivers) or not receivers or not set(receivers) <= set(names):
        raise BadConfig(f"task_input_config: receivers is a list with some of {', '.join(names)}")
    if len(set(receivers)) not in (1, len(names)):
        raise BadConfig("task_input_config: receivers is one party, or all of them")
    found = []
    for name in names:
        data, own_keys = inputs.get(name), keys.get(name)
        if not isinstance(data, str) or not data:
            raise BadConfig(f"task_input_config: inputs.{name} is missing; it is the id of the table of {name}")
        if not _texts(own_keys) or not own_keys:
            raise BadConfig(f"task_input_config: keys.{name} is missing; it is a list of columns of {data}")
        output, more = outputs.get(name, f"{task}-{name}"), columns.get(name, [])
        if not isinstance(output, str) or not output:
            raise BadConfig(f"task_input_config: outputs.{name} is the id of a table to be made")
        if not _texts(more):
            raise BadConfig(f"task_input_config: columns.{name} is a list of columns of {data}")
        if output == data:
            raise BadConfig(f"task_input_config: outputs.{name} is the table it is made from; choose another id")
        found.append(Party(name, endpoints[name], data, tuple(own_keys), tuple(more), output, name in receivers))
    counts = {len(each.keys) for each in found}
    if len(counts) > 1:
        raise BadConfig("task_input_config: keys has not the same number of columns for all parties")
    return tuple(found)


def _protocol_options(options: dict[str, Any], parties: tuple[Party, ...]) -> tuple[str, str, bool]:
    three = len(parties) == 3
    protocol = options.get("protocol", "ECDH" if three else "RR22")
    join, sort = options.get("join", "inner"), options.get("sort", True)
    if protocol not in PROTOCOLS:
        raise BadConfig(f"task_input_config: protocol is one of {', '.join(PROTOCOLS)}, not {protocol!r}")
    if join not in JOINS:
        raise BadConfig(f"task_input_config: join is one of {', '.join(JOINS)}, not {join!r}")
    if not isinstance(sort, bool):
        raise BadConfig("task_input_config: sort is true or false")
    if three and (protocol != "ECDH" or join != "inner"):
        raise BadConfig("task_input_config: three parties make an inner join with protocol ECDH, and nothing else")
    return protocol, join, sort


def _by_party(options: dict[str, Any], key: str, names: list[str]) -> dict[str, Any]:
    found = options.get(key, {})
    if not isinstance(found, dict):
        raise BadConfig(f"task_input_config: {key} has one entry for each party")
    unknown_parties = sorted(set(found) - set(names))
    if unknown_parties:
        raise BadConfig(f"task_input_config: {key}.{unknown_parties[0]} is of no party; there are {', '.join(names)}")
    return found


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) and each for each in value)


def _object(text: Any, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError) as problem:
        raise BadConfig(f"{what} is not JSON: {problem}") from problem
    if not isinstance(found, dict):
        raise BadConfig(f"{what} is not a JSON object")
    return found
