"""A control plane with an audit policy: read at its start, and refused with a sentence when it is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.base.clock import SYSTEM_CLOCK
from coterie.node import config
from coterie.node.parts.apiserver import ApiPlane

GOOD = "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: Metadata}]}"


def plane(tmp_path: Path, text: str | None, **api: str) -> ApiPlane:
    document = {"mode": "master", "domainID": "alice", "apiServer": {"auditPolicy": "policy.yaml", **api}}
    settings = config.parse(document, tmp_path, lowest_port=0)
    settings.paths.prepare()
    if text is not None:
        (settings.paths.home / "policy.yaml").write_text(text)
    return ApiPlane(settings, SYSTEM_CLOCK)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "policy.yaml cannot be read (No such file or directory)"),
        (GOOD.replace("Metadata", "All"), "policy.yaml: rules[0].level: must be one of None, Metadata"),
        ("rules: [", "policy.yaml: is not YAML"),
    ],
)
def test_the_api_is_not_served_without_the_log_that_was_asked_for(tmp_path: Path, text: str | None, why: str) -> None:
    with pytest.raises(config.ConfigError, match=r"^apiServer\.auditPolicy: ") as caught:
        plane(tmp_path, text)
    assert why in str(caught.value)


def test_a_policy_needs_a_log(tmp_path: Path) -> None:
    document = {"mode": "master", "domainID": "alice", "apiServer": {"auditPolicy": "policy.yaml", "auditLog": ""}}
    settings = config.parse(document, tmp_path, lowest_port=0)
    with pytest.raises(config.ConfigError, match="there is no log for it"):
        ApiPlane(settings, SYSTEM_CLOCK)


def test_a_policy_takes_the_place_of_the_plain_log(tmp_path: Path) -> None:
    made = plane(tmp_path, GOOD).server
    assert made.settings.audit_policy is not None and made.settings.audit_record is not None
    assert not made.audit.enabled
