"""Where the API of a domain on this machine is, from its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from coterie.base.paths import DomainPaths
from coterie.cli.network import kuscia_api_address
from coterie.node import config
from coterie.sdk.errors import NotFoundHere
from coterie.sdk.local_domains import address_of, locate


def laid_out(root: Path, domain: str, **configured: object) -> DomainPaths:
    paths = DomainPaths.of(root, domain).prepare()
    (paths.etc / "coterie.yaml").write_text(yaml.safe_dump({"domainID": domain, **configured}))
    paths.api_token.write_text("s3cret\n")
    paths.ca_certificate.write_text("ca")
    paths.certificate("kusciaapi-server").write_text("cert")
    return paths


PLACES: list[tuple[dict[str, Any], str]] = [
    ({}, "https://127.0.0.1:8082"),
    ({"agent": {"address": "127.0.1.2"}}, "https://127.0.1.2:8082"),
    ({"apiServer": {"host": "127.0.1.3"}}, "https://127.0.1.3:8082"),
    ({"apiServer": {"host": "0.0.0.0"}, "kusciaAPI": {"HTTPPort": 9000}}, "https://127.0.0.1:9000"),
    ({"kusciaAPI": {"host": "::1"}}, "https://[::1]:8082"),
    ({"protocol": "NOTLS"}, "http://127.0.0.1:8082"),
    ({"protocol": "notls", "kusciaAPI": {"protocol": "TLS"}}, "https://127.0.0.1:8082"),
    ({"dns": {"host": "127.0.1.9"}, "agent": {"address": "127.0.1.2"}}, "https://127.0.1.9:8082"),
    ({"agent": {"address": "10.1.2.3"}}, "https://127.0.0.1:8082"),
]


@pytest.mark.parametrize(("configured", "url"), PLACES)
def test_the_address_is_what_the_configuration_says(configured: dict[str, object], url: str, tmp_path: Path) -> None:
    laid_out(tmp_path, "alice", **configured)
    assert locate("alice", tmp_path).url == url


@pytest.mark.parametrize(("configured", "url"), PLACES)
def test_the_node_says_the_same(configured: dict[str, Any], url: str, tmp_path: Path) -> None:
    """The client knows a node by its files only, so the rule stands in two places; here they meet."""
    node = config.parse({"mode": "autonomy", "domainID": "alice", **configured}, tmp_path)
    assert kuscia_api_address(node) == url


def test_token_and_certificates_are_found_and_not_shown(tmp_path: Path) -> None:
    paths = laid_out(tmp_path, "alice")
    found = locate(root=tmp_path)
    assert found.domain == "alice" and found.ca == paths.ca_certificate
    assert found.certificate == paths.certificate("kusciaapi-server")
    assert found.token is not None and found.token.reveal() == "s3cret" and "s3cret" not in repr(found)
    paths.certificate("kusciaapi-client").write_text("cert")
    assert locate(root=tmp_path).certificate == paths.certificate("kusciaapi-client")


def test_without_tls_no_token_is_asked_for(tmp_path: Path) -> None:
    found = address_of(DomainPaths.of(tmp_path, "alice"), {"protocol": "NOTLS"})
    assert (found.token, found.ca, found.certificate) == (None, None, None)


def test_what_is_not_there_is_told_with_what_is(tmp_path: Path) -> None:
    with pytest.raises(NotFoundHere, match="`coterie up` starts some"):
        locate("alice", tmp_path)
    with pytest.raises(NotFoundHere, match="`coterie up` starts some"):
        locate(root=tmp_path)
    laid_out(tmp_path, "alice")
    laid_out(tmp_path, "bob")
    with pytest.raises(NotFoundHere, match=r'no domain "carol" under .*; those there are alice, bob'):
        locate("carol", tmp_path)
    with pytest.raises(NotFoundHere, match="name one of alice, bob"):
        locate(root=tmp_path)
