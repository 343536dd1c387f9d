"""A support bundle of a node has what helps and none of the secrets that were planted everywhere."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from coterie.base.paths import DomainPaths
from coterie.base.redaction import Redactor
from coterie.cli.app import App
from coterie.cli.diagnosis.bundle_secrets import clean_document, clean_envoy, known_secrets
from coterie.cli.main import main

DEPLOY_TOKEN = "deploy-Tok3n-of-the-lite"
PASSWORD = "registry pass with blanks 77"
ROUTE_TOKEN = "k2Jf8+routeTokenValue/93=="
BEARER = "Bearer plain-bearer-value"
CALLER_TOKEN = "callerTokenWithoutDigitsOrSo"
API_TOKEN = "abcdefghijklmnopqrstuvwxyzabcdef"
CLIENT_KEY = base64.b64encode(b"-----BEGIN PRIVATE KEY-----\nplanted client key\n-----END PRIVATE KEY-----").decode()
KEY_LINE = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQDplantedkey77x"
PEM = f"-----BEGIN PRIVATE KEY-----\n{KEY_LINE}\n-----END PRIVATE KEY-----\n"
PLANTED = (DEPLOY_TOKEN, PASSWORD, ROUTE_TOKEN, BEARER, CALLER_TOKEN, API_TOKEN, CLIENT_KEY, KEY_LINE, "hunter2hunter2")

AUTH = {
    "name": "auth",
    "typed_config": {"matcher": {"matcher_tree": {"exact_match_map": {"map": {f"|bob|{CALLER_TOKEN}": {}}}}}},
}
HEADERS: list[Any] = [
    {"header": {"key": "kuscia-token", "value": ROUTE_TOKEN}},
    {"header": {"key": "authorization", "value": BEARER}},
    {"header": {"key": "kuscia-source", "value": "alice"}},
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    home = tmp_path / "alice"
    for name in ("etc", "var/certs/pki", "var/gateway", "var/logs/envoy", "var/run"):
        (home / name).mkdir(parents=True)
    config = {
        "mode": "lite",
        "domainID": "alice",
        "masterEndpoint": "https://10.0.0.9:1080",
        "liteDeployToken": DEPLOY_TOKEN,
        "domainKeyData": base64.b64encode(PEM.encode()).decode(),
        "image": {"registries": [{"name": "r", "endpoint": "registry.example", "username": "u", "password": PASSWORD}]},
        "metrics": {"port": 1, "tokenFile": "/etc/coterie/metrics-token"},
    }
    (home / "etc/coterie.yaml").write_text(yaml.safe_dump(config))
    (home / "kubeconfig").write_text(yaml.safe_dump({"users": [{"user": {"client-key-data": CLIENT_KEY}}]}))
    (home / "var/certs/token").write_text(API_TOKEN + "\n")
    (home / "var/certs/domain.key").write_text(PEM)
    (home / "var/gateway/rds-internal.json").write_text(
        json.dumps({"resources": [{"request_headers_to_add": HEADERS}]})
    )
    (home / "var/gateway/ecds-auth.json").write_text(json.dumps({"resources": [AUTH]}))
    lines = [
        "a useful line about task psi-1",
        f"handshake with {ROUTE_TOKEN} failed",
        f"caller {CALLER_TOKEN} unknown, in base64 {base64.b64encode(CALLER_TOKEN.encode()).decode()}",
        "mysql://root:hunter2hunter2@db/x refused",
        f"config had {DEPLOY_TOKEN} and {PASSWORD} and {API_TOKEN}",
        *PEM.splitlines(),
        "after the key",
    ]
    (home / "var/logs/coterie.log").write_text("\n".join(lines) + "\n")
    call = f'10.0.0.2 - [2026-11-16T18:12:49.808Z] bob a.alice.svc "GET /x?token={API_TOKEN} HTTP/2" - - 401 - - 6 5 - - x\n'
    (home / "var/logs/envoy/external.log").write_text(call)
    (home / "var/logs/audit.jsonl").write_text('{"user": "somebody"}\n')
    return tmp_path


def bundle(root: Path) -> tuple[int, dict[str, bytes], Path]:
    out = io.StringIO()
    target = root / "b.tar.gz"
    app = App(out, out, {"HOME": str(root)}, io.StringIO(), root)
    code = main(["--root", str(root), "diagnose", "bundle", "-o", "b.tar.gz"], app)
    with tarfile.open(target) as archive:
        found = {each.name: archive.extractfile(each) for each in archive.getmembers()}
        return code, {name: file.read() for name, file in found.items() if file is not None}, target


def test_planted_secrets_are_not_in_it(root: Path) -> None:
    code, files, target = bundle(root)
    assert code == 0
    assert target.stat().st_mode & 0o777 == 0o600
    for name, content in files.items():
        text = content.decode()
        for secret in PLANTED:
            encoded = base64.b64encode(secret.encode()).decode().rstrip("=")
            assert secret not in text, f"{secret[:10]} in {name}"
            assert encoded not in text, f"{secret[:10]} in base64 in {name}"
        assert "somebody" not in text


def test_what_helps_is_in_it(root: Path) -> None:
    _, files, _ = bundle(root)
    config = yaml.safe_load(files["coterie-alice/config.yaml"])
    assert config["liteDeployToken"] == "[left out]"
    assert config["image"]["registries"][0]["password"] == "[left out]"
    assert config["masterEndpoint"] == "https://10.0.0.9:1080"
    assert config["metrics"]["tokenFile"] == "/etc/coterie/metrics-token"
    log = files["coterie-alice/logs/coterie.log"].decode()
    assert "a useful line about task psi-1" in log
    assert "after the key" in log
    summary = json.loads(files["coterie-alice/summary.json"])
    assert summary["domain"] == "alice"
    # What does not run is said, and is no reason to have no bundle.
    assert {"envoy", "metrics.txt", "objects"} <= summary["missing"].keys()
    assert json.loads(files["coterie-alice/machine.json"])["kernel"]
    assert json.loads(files["coterie-alice/access.json"])["lines"] >= 0


def test_a_faulty_configuration_does_not_prevent_a_bundle(root: Path) -> None:
    (root / "alice/etc/coterie.yaml").write_text("mode: [")
    code, files, _ = bundle(root)
    assert code == 0
    assert "coterie-alice/logs/coterie.log" in files


def test_envoys_dump_loses_its_tokens_by_place_too(root: Path) -> None:
    """Also those of which nobody has told the redactor."""
    dump = {
        "configs": [{"ecds_filters": [{"ecds_filter": AUTH}]}, {"route_config": {"request_headers_to_add": HEADERS}}]
    }
    cleaned = clean_envoy(dump, Redactor())
    text = json.dumps(cleaned)
    assert not any(secret in text for secret in (ROUTE_TOKEN, BEARER, CALLER_TOKEN))
    assert '"alice"' in text


def test_secrets_are_known_by_value(root: Path) -> None:
    known = known_secrets(
        DomainPaths.of(root, "alice"), [yaml.safe_load((root / "alice/etc/coterie.yaml").read_text())]
    )
    assert {DEPLOY_TOKEN, PASSWORD, ROUTE_TOKEN, BEARER, CALLER_TOKEN, API_TOKEN, CLIENT_KEY} <= set(known)
    assert clean_document({"a": {"b": f"x {CALLER_TOKEN} y"}}, Redactor(known)) == {"a": {"b": "x [redacted:known] y"}}


def test_a_file_that_somebody_put_there_is_replaced_and_not_written_to(root: Path) -> None:
    elsewhere = root / "elsewhere"
    elsewhere.write_text("untouched")
    (root / "b.tar.gz").symlink_to(elsewhere)
    code, _, target = bundle(root)
    assert code == 0
    assert elsewhere.read_text() == "untouched"
    assert not target.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o600
