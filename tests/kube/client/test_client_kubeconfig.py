"""Kubeconfig files, credentials and TLS."""

from __future__ import annotations

import base64
import stat
import sys
from pathlib import Path

import pytest
import yaml

from coterie.base.clock import VirtualClock
from coterie.kube.client.credentials import ExecPlugin, StaticCredentials, TokenFile, credentials_for
from coterie.kube.client.kubeconfig import (
    ClusterConnection,
    ExecCredential,
    Kubeconfig,
    KubeconfigError,
    in_cluster,
    load,
    make,
    parse,
    read,
)
from coterie.kube.client.transport import CredentialsError


def test_written_files_are_private_and_read_back(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "config"
    config = make("alice", "https://127.0.0.1:6443", ca=b"CA", certificate=b"CERT", key=b"KEY", namespace="alice")
    config.write(target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert read(target) == config
    connection = read(target).resolve()
    assert (connection.server, connection.ca, connection.certificate, connection.key) == (
        "https://127.0.0.1:6443",
        b"CA",
        b"CERT",
        b"KEY",
    )
    assert connection.namespace == "alice"
    assert yaml.safe_load(target.read_text())["kind"] == "Config"


def test_secrets_do_not_show() -> None:
    config = make("a", "https://x", key=b"PRIVATE", certificate=b"C", token="T0KEN")
    secret = base64.b64encode(b"PRIVATE").decode()
    for shown in (repr(config), repr(config.resolve())):
        assert "T0KEN" not in shown and secret not in shown and "PRIVATE" not in shown
    assert "hush" not in repr(ExecCredential("x", env=(("K", "hush"),)))


def test_files_are_merged_first_wins(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(b"CA")
    first = Kubeconfig(
        {"c": {"server": "https://one", "certificate-authority": "ca.pem"}}, {}, {"x": {"cluster": "c"}}, "x"
    )
    second = Kubeconfig(
        {"c": {"server": "https://two"}, "d": {"server": "https://d"}},
        {"u": {"token": "t"}},
        {"y": {"cluster": "d", "user": "u"}},
        "y",
    )
    first.write(tmp_path / "one")
    second.write(tmp_path / "two")
    merged = load(environ={"KUBECONFIG": f"{tmp_path / 'one'}:{tmp_path / 'none'}:{tmp_path / 'two'}"})
    assert merged.current_context == "x"
    assert merged.resolve().server == "https://one" and merged.resolve().ca == b"CA"
    assert merged.resolve("y").token == "t"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "top level"),
        ("a: [", "not YAML"),
        ("clusters: {}\nusers: 3", "users: must be a list"),
        ("clusters: [{cluster: {}}]", r"clusters\[0\]"),
        ("contexts: [{name: x, context: 5}]", r"contexts\[0\].context"),
    ],
)
def test_malformed_files_are_refused_with_the_place(text: str, message: str) -> None:
    with pytest.raises(KubeconfigError, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Kubeconfig(), "no context given"),
        (Kubeconfig(current_context="x"), 'no context "x"'),
        (Kubeconfig(contexts={"x": {"cluster": "c"}}, current_context="x"), 'no cluster "c"'),
        (Kubeconfig({"c": {"server": "ftp://x"}}, {}, {"x": {"cluster": "c"}}, "x"), "http or https"),
        (
            Kubeconfig(
                {"c": {"server": "https://x", "certificate-authority-data": "?"}}, {}, {"x": {"cluster": "c"}}, "x"
            ),
            "not base64",
        ),
        (
            Kubeconfig(
                {"c": {"server": "https://x", "certificate-authority": "nowhere/ca"}}, {}, {"x": {"cluster": "c"}}, "x"
            ),
            "cannot read",
        ),
        (
            Kubeconfig(
                {"c": {"server": "https://x"}}, {"u": {"exec": {"args": []}}}, {"x": {"cluster": "c", "user": "u"}}, "x"
            ),
            "command",
        ),
    ],
    ids=["none", "context", "cluster", "scheme", "base64", "file", "exec"],
)
def test_what_cannot_be_resolved_is_named(config: Kubeconfig, message: str) -> None:
    with pytest.raises(KubeconfigError, match=message):
        config.resolve()


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="no kubeconfig found"):
        load([tmp_path / "none"])
    with pytest.raises(KubeconfigError, match="cannot read"):
        read(tmp_path)


def test_in_cluster(tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(KubeconfigError):
        in_cluster(environ, tmp_path)
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("alice\n")
    (tmp_path / "ca.crt").write_bytes(b"CA")
    connection = in_cluster(environ, tmp_path)
    assert (connection.server, connection.namespace, connection.ca) == ("https://[fd00::1]:443", "alice", b"CA")
    with pytest.raises(KubeconfigError):
        in_cluster({}, tmp_path)


async def test_token_files_are_read_again(tmp_path: Path) -> None:
    clock = VirtualClock()
    file = tmp_path / "token"
    file.write_text("one\n")
    credentials = TokenFile(file, clock)
    assert await credentials.authorization() == "Bearer one"
    file.write_text("two\n")
    assert await credentials.authorization() == "Bearer one"
    await clock.advance(61)
    assert await credentials.authorization() == "Bearer two"
    file.unlink()
    assert credentials.refused()
    with pytest.raises(CredentialsError, match="cannot read token file"):
        await credentials.authorization()


@pytest.mark.parametrize(
    ("connection", "wanted"),
    [
        (ClusterConnection("https://x", token="t", token_file="f"), "Bearer t"),
        (ClusterConnection("https://x", username="u", password="p"), "Basic dTpw"),
        (ClusterConnection("https://x"), ""),
    ],
    ids=["token", "basic", "none"],
)
async def test_fixed_credentials(connection: ClusterConnection, wanted: str) -> None:
    credentials = credentials_for(connection)
    assert isinstance(credentials, StaticCredentials)
    assert await credentials.authorization() == wanted and not credentials.refused()


def _program(code: str) -> ExecCredential:
    return ExecCredential(sys.executable, ("-c", code), provide_cluster_info=True)


async def test_credential_programs_are_asked_until_their_answer_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTER", str(tmp_path / "count"))
    code = (
        "import json, os, pathlib; p = pathlib.Path(os.environ['COUNTER']); n = int(p.read_text() or 0) if p.exists() else 0; p.write_text(str(n + 1));"
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO']);"
        "print(json.dumps({'status': {'token': f\"t{n}-{info['spec']['cluster']['server']}\", 'expirationTimestamp': '2026-01-02T03:05:05Z'}}))"
    )
    clock = VirtualClock()
    credentials = ExecPlugin(_program(code), ClusterConnection("https://x"), clock)
    assert await credentials.authorization() == "Bearer t0-https://x"
    assert await credentials.authorization() == "Bearer t0-https://x"
    await clock.advance(55)
    assert await credentials.authorization() == "Bearer t1-https://x"
    assert credentials.refused()
    assert await credentials.authorization() == "Bearer t2-https://x"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ExecCredential("no-such-program-here"), "cannot be started"),
        (_program("raise SystemExit(3)"), "exit code 3"),
        (_program("print('s3cret')"), "did not print"),
    ],
    ids=["missing", "failing", "garbage"],
)
async def test_failing_credential_programs(spec: ExecCredential, message: str) -> None:
    with pytest.raises(CredentialsError, match=message) as caught:
        await ExecPlugin(spec, ClusterConnection("https://x")).authorization()
    assert "s3cret" not in str(caught.value)
