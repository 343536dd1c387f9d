"""What the functions process may ask of the API."""

from __future__ import annotations

import pytest

from coterie.functions.process import allowed

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
