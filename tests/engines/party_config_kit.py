"""Configuration files as engines get them, for parties on loopback."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

PARTIES = ("alice", "bob", "carol")


def config(me: str, ports: Mapping[str, Mapping[str, int]], given: object) -> str:
    """`ports`: by party, then by name of the port."""
    parties = [
        {
            "name": party,
            "services": [{"portName": name, "endpoints": [f"127.0.0.1:{port}"]} for name, port in own.items()],
        }
        for party, own in ports.items()
    ]
    allocated = [{"name": name, "port": port} for name, port in ports[me].items()]
    whole: dict[str, Any] = {
        "task_id": "t",
        "task_input_config": json.dumps(given),
        "task_cluster_def": json.dumps({"parties": parties, "selfPartyIdx": list(ports).index(me)}),
        "allocated_ports": json.dumps({"ports": allocated}),
    }
    return json.dumps(whole)


def numbered(*names: str) -> dict[str, dict[str, int]]:
    """Ports that nobody listens on."""
    return {
        party: {name: 10 * at + number for number, name in enumerate(names, 1)} for at, party in enumerate(PARTIES, 1)
    }
