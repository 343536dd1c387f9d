"""What is written and read. Sizes count as stored, with everything the server adds; the prototype was measured so too."""

from __future__ import annotations

import json
from typing import Any

Object = dict[str, Any]

NAME_DIGITS = 8
PLACE = "@" * NAME_DIGITS
"""Stands in a body where the number of the object goes, so that every body has the same length."""


def pod(name: str) -> Object:
    """A pod as a deployment makes them: 2.4 kB once defaults and field ownership are in."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"app": "web", "tier": "front", "pod-template-hash": "7d9c6b8f5"},
            "annotations": {"example.com/checksum": "4f1c9be1d1a9c2"},
        },
        "spec": {
            # Nobody's: the scheduler would otherwise answer each create with a write of its own.
            "schedulerName": "bench",
            "containers": [
                {
                    "name": "web",
                    "image": "example.com/team/web:1.27.3",
                    "args": ["--listen=:8080", "--log-level=info"],
                    "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
                    "env": [{"name": "MODE", "value": "production"}, {"name": "WORKERS", "value": "4"}],
                    "resources": {
                        "requests": {"cpu": "250m", "memory": "128Mi"},
                        "limits": {"cpu": "500m", "memory": "256Mi"},
                    },
                }
            ],
        },
    }


def sleeper(name: str, *command: str, scheduler: str = "default-scheduler") -> Object:
    """A pod that a node can run at once: a program of the machine, by default one that does nothing for long."""
    container = {"name": "c", "image": "coterie/host:latest", "command": list(command) or ["sleep", "600"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulerName": scheduler, "restartPolicy": "Never", "containers": [container]},
    }


def configmap(name: str, **data: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"},
        "data": data,
    }


def template(obj: Object) -> tuple[bytes, bytes]:
    """An encoded object cut where `PLACE` stands."""
    before, _, after = json.dumps(obj, separators=(",", ":")).encode().partition(PLACE.encode())
    return before, after
