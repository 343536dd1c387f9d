"""What the functions process may ask of the API."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coterie.base.clock import VirtualClock
from coterie.base.paths import DomainPaths
from coterie.functions.process import FunctionsProcess, allowed
from coterie.functions.settings import FunctionsSettings
from coterie.kube.api.meta import ObjectMeta, PartialObjectMetadata
from coterie.kube.client.client import Client
from coterie.kube.client.informer import ObjectChange

_OWN = "/apis/coterie.io/v1alpha1/namespaces/alice"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{_OWN}/actions"),
        ("PATCH", f"{_OWN}/actions/hello/status"),
        ("DELETE", f"{_OWN}/deadletters/hello-1"),
        ("POST", "/api/v1/namespaces/alice/pods"),
        ("DELETE", "/api/v1/namespaces/alice/pods/hello-0a1b2c3d"),
        ("GET", "/api/v1/namespaces/alice/secrets/action-hello"),
        ("PATCH", "/apis/apps/v1/namespaces/alice/deployments/serverless-gateway"),
        ("GET", "/apis/kuscia.secretflow/v1alpha1/namespaces/alice/domaindatas"),
        ("GET", "/apis/networking.k8s.io/v1/namespaces/alice/networkpolicies"),
    ],
)
def test_what_it_needs(method: str, path: str) -> None:
    assert allowed(method, path, "", "alice")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/apis/coterie.io/v1alpha1/namespaces/bob/actions"),
        ("GET", "/apis/coterie.io/v1alpha1/actions"),
        ("GET", "/api/v1/namespaces/alice/secrets"),
        ("GET", "/api/v1/namespaces/alice/secrets/domain-key"),
        ("DELETE", "/api/v1/namespaces/alice/pods"),
        ("POST", "/api/v1/namespaces/alice/pods/hello-0a1b2c3d/exec"),
        ("GET", "/api/v1/nodes"),
        ("PATCH", "/apis/apps/v1/namespaces/alice/deployments/other"),
        ("PATCH", "/apis/kuscia.secretflow/v1alpha1/namespaces/alice/domaindatas/a"),
        ("GET", "/api/v1/namespaces/alice/configmaps/domain-config"),
        ("POST", "/apis/networking.k8s.io/v1/namespaces/alice/networkpolicies"),
        ("DELETE", "/apis/networking.k8s.io/v1/namespaces/alice/networkpolicies/a"),
        ("GET", "/api/v1/namespaces/alice/secrets/action-a/../domain-key"),
    ],
)
def test_what_it_does_not(method: str, path: str) -> None:
    assert not allowed(method, path, "", "alice")


class _NotedMember:
    def __init__(self) -> None:
        self.taken = 0

    async def take(self) -> None:
        self.taken += 1


async def test_the_member_with_the_bus_is_noted_with_the_first_action(tmp_path: Path) -> None:
    """A domain without functions has no bus that could be elsewhere."""
    member: Any = _NotedMember()
    clock = VirtualClock()
    nowhere: Any = SimpleNamespace()
    settings = FunctionsSettings("alice", DomainPaths.of(tmp_path, "alice"))
    process = FunctionsProcess(settings, tmp_path, Client(nowhere, clock=clock), clock, bus_member=member)
    taking = asyncio.create_task(process._take_bus(member))
    await asyncio.sleep(0)
    assert member.taken == 0
    process._changed(ObjectChange("added", PartialObjectMetadata(metadata=ObjectMeta(name="calc", uid="1"))))
    await taking
    assert member.taken == 1
