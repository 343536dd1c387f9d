"""A configuration with which Prometheus scrapes nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml


def document(targets: Sequence[str], token_file: str = "", rules: str = "") -> dict[str, Any]:
    """`rules`: the file that `coterie metrics rules` wrote."""
    job: dict[str, Any] = {"job_name": "coterie", "static_configs": [{"targets": list(targets)}]}
    if token_file:
        job["authorization"] = {"credentials_file": token_file}
    out: dict[str, Any] = {"global": {"scrape_interval": "15s", "evaluation_interval": "15s"}}
    if rules:
        out["rule_files"] = [rules]
    return out | {"scrape_configs": [job]}


def text(targets: Sequence[str], token_file: str = "", rules: str = "") -> str:
    head = "# A configuration for Prometheus, written by `coterie metrics scrape-config`.\n"
    return head + yaml.safe_dump(document(targets, token_file, rules), sort_keys=False)
