"""The configuration file of a task that several parties take part in, read into plain data."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class BadConfig(Exception):
    """The task cannot be done as it is written; the sentence goes to the log."""


class PartyConfig(NamedTuple):
    task: str
    own: str
    parties: tuple[str, ...]
    """By name."""
    endpoints: dict[str, dict[str, str]]
    """By name of the port, then by party."""
    ports: dict[str, int]
    """Allocated to this party."""
    options: dict[str, Any]
    """What the task says, which whoever began it chose."""

    def by_party(self, key: str) -> dict[str, Any]:
        found = self.options.get(key, {})
        if not isinstance(found, dict) or not set(found) <= set(self.parties):
            raise BadConfig(f"task_input_config: {key} is an object with some of {', '.join(self.parties)}")
        return found

    def columns(self) -> tuple[str, ...]:
        """Of the own table; none: all that are granted."""
        found = self.by_party("columns").get(self.own, [])
        if not texts(found):
            raise BadConfig("task_input_config: arguments and the values of columns are lists of texts")
        return tuple(found)

    def only(self, known: set[str]) -> None:
        unknown = sorted(set(self.options) - known)
        if unknown:
            raise BadConfig(f"task_input_config: {unknown[0]} is not known here")

    def one_party(self, key: str) -> str:
        found = self.options.get(key)
        if not isinstance(found, str) or found not in self.parties:
            raise BadConfig(f"task_input_config: {key} is one of {', '.join(self.parties)}")
        return found

    def tables(self) -> dict[str, str]:
        """The table of each party that has one."""
        found = self.by_party("inputs")
        if not all(isinstance(each, str) and each for each in found.values()):
            raise BadConfig("task_input_config: the values of inputs are ids of tables")
        return found

    def server_and_tables(self) -> tuple[str, dict[str, str]]:
        """Of federated learning: each party has a table, or is the server, or both."""
        server, tables = self.one_party("server"), self.tables()
        for name in self.parties:
            if name != server and name not in tables:
                raise BadConfig(
                    f"task_input_config: {name} is not the server and has no table in inputs: what should it do?"
                )
        return server, tables

    def app(self) -> str:
        """The name of the app to run; empty: the one of the image."""
        found = self.options.get("app", "")
        if not isinstance(found, str):
            raise BadConfig("task_input_config: app is a text")
        return found


def read(text: str, ports: tuple[str, ...]) -> PartyConfig:
    """`ports`: those that the engine needs; the first is the one that partners reach."""
    whole = json_object(text, "the configuration")
    cluster = json_object(whole.get("task_cluster_def"), "task_cluster_def")
    allocated = json_object(whole.get("allocated_ports"), "allocated_ports")
    options = json_object(whole.get("task_input_config") or "{}", "task_input_config")
    try:
        own = str(cluster["parties"][cluster.get("selfPartyIdx", 0)]["name"])
        names = tuple(sorted(str(each["name"]) for each in cluster["parties"]))
        endpoints: dict[str, dict[str, str]] = {}
        for each in cluster["parties"]:
            for service in each["services"]:
                endpoints.setdefault(service["portName"], {})[each["name"]] = str(service["endpoints"][0])
        numbers = {each["name"]: int(each["port"]) for each in allocated["ports"]}
        for port in ports:
            _ = numbers[port]
        for name in names:
            _ = name == own or endpoints[ports[0]][name]
    except (KeyError, IndexError, TypeError, ValueError) as problem:
        raise BadConfig(f"task_cluster_def or allocated_ports lacks something: {problem!r}") from problem
    return PartyConfig(str(whole.get("task_id") or ""), own, names, endpoints, numbers, options)


def json_object(text: object, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except ValueError as problem:
        raise BadConfig(f"{what} is no JSON: {problem}") from problem
    if not isinstance(found, dict):
        raise BadConfig(f"{what} is no JSON object")
    return found


def texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
