"""The configuration file of a service, read into plain data.

    {"serving_id": "...", "input_config": "<JSON>", "cluster_def": "<JSON>", "allocated_ports": "<JSON>"}

The last three are JSON inside a JSON string, as every engine gets them. `input_config` is ours to define:

    greeting   what the service says
    warmup     seconds after its start before it takes calls, as a model that is loaded
    drain      seconds for which it goes on answering after it was told to end, until callers know
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

PORT = "serve"


class BadConfig(Exception):
    """The file is not what a service expects; the sentence goes to the log."""


class Settings(NamedTuple):
    id: str
    party: str
    role: str
    port: int
    partners: dict[str, str]
    """Endpoint by the party's name, with its role where it has one."""
    greeting: str
    warmup: float
    drain: float


def read(path: str) -> Settings:
    try:
        with open(path, encoding="utf-8") as file:
            return parse(file.read())
    except OSError as problem:
        raise BadConfig(f"the configuration {path} cannot be read: {problem.strerror}") from problem


def parse(text: str) -> Settings:
    whole = _object(text, "the configuration")
    cluster = _object(whole.get("cluster_def") or "", "cluster_def")
    ports = _object(whole.get("allocated_ports") or "", "allocated_ports")
    options = _object(whole.get("input_config") or "{}", "input_config")
    try:
        parties = cluster["parties"]
        place = cluster["selfPartyIdx"]
        own = parties[place]
        partners = {
            _name(party): service["endpoints"][0]
            for number, party in enumerate(parties)
            for service in party.get("services") or ()
            if number != place and service["portName"] == PORT
        }
        port = next(int(each["port"]) for each in ports["ports"] if each["name"] == PORT)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as problem:
        raise BadConfig(f"cluster_def or allocated_ports lacks something: {problem!r}") from problem
    except StopIteration as problem:
        raise BadConfig(f"allocated_ports has no port named {PORT}") from problem
    return Settings(
        str(whole.get("serving_id") or ""),
        str(own["name"]),
        str(own.get("role") or ""),
        port,
        partners,
        str(options.get("greeting", "hello")),
        _seconds(options, "warmup", 0.0),
        _seconds(options, "drain", 2.0),
    )


def _name(party: dict[str, Any]) -> str:
    return f"{party['name']}/{party['role']}" if party.get("role") else str(party["name"])


def _object(text: Any, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError) as problem:
        raise BadConfig(f"{what} is not JSON: {problem}") from problem
    if not isinstance(found, dict):
        raise BadConfig(f"{what} is not a JSON object")
    return found


def _seconds(options: dict[str, Any], name: str, default: float) -> float:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 3600:
        raise BadConfig(f"input_config: {name} is a number of seconds")
    return float(value)
