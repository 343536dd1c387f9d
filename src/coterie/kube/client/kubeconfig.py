"""Kubeconfig files: read, merge, write, and resolve to what a connection needs.

Files are merged as kubectl does: of clusters, users and contexts with one name, and of `current-context`, the first
file wins. Relative paths are relative to the file that names them. A file may also be JSON (which is YAML).
Tokens, passwords and keys never show in a repr.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from coterie.base.files import write_atomic

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, where PyYAML was built with it: thirty times as fast, and every command reads a kubeconfig."""
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class KubeconfigError(Exception):
    """The file is missing, malformed, or does not name what was asked for."""


@dataclass(frozen=True, slots=True)
class ExecCredential:
    """A program that prints credentials (client.authentication.k8s.io)."""

    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    api_version: str = "client.authentication.k8s.io/v1"
    provide_cluster_info: bool = False


@dataclass(frozen=True, slots=True)
class ClusterConnection:
    """Everything needed to reach and be known by one API server."""

    server: str
    namespace: str = "default"
    ca: bytes = field(default=b"", repr=False)
    insecure: bool = False
    tls_server_name: str = ""
    proxy_url: str = field(default="", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)
    token: str = field(default="", repr=False)
    token_file: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    exec: ExecCredential | None = None
    impersonate: str = ""


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """Entries by name, still as the files say it; `resolve` reads what they point to."""

    clusters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    users: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    contexts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    current_context: str = ""

    def resolve(self, context: str = "") -> ClusterConnection:
        name = context or self.current_context
        if not name:
            raise KubeconfigError("no context given and the kubeconfig has no current-context")
        chosen = _entry(self.contexts, "context", name)
        cluster = _entry(self.clusters, "cluster", str(chosen.get("cluster", "")))
        user_name = chosen.get("user")
        user = _entry(self.users, "user", str(user_name)) if user_name else {}
        server = str(cluster.get("server") or "").rstrip("/")
        if not server.startswith(("https://", "http://")):
            raise KubeconfigError(f'cluster of context "{name}": server must be an http or https URL')
        return ClusterConnection(
            server=server,
            namespace=str(chosen.get("namespace") or "default"),
            ca=_data_or_file(cluster, "certificate-authority"),
            insecure=bool(cluster.get("insecure-skip-tls-verify", False)),
            tls_server_name=str(cluster.get("tls-server-name") or ""),
            proxy_url=str(cluster.get("proxy-url") or ""),
            certificate=_data_or_file(user, "client-certificate"),
            key=_data_or_file(user, "client-key"),
            token=str(user.get("token") or ""),
            token_file=str(user.get("tokenFile") or ""),
            username=str(user.get("username") or ""),
            password=str(user.get("password") or ""),
            exec=_exec(user.get("exec")),
            impersonate=str(user.get("as") or ""),
        )

    def merged(self, later: Kubeconfig) -> Kubeconfig:
        """This one, completed by what only `later` has."""
        return Kubeconfig(
            {**later.clusters, **self.clusters},
            {**later.users, **self.users},
            {**later.contexts, **self.contexts},
            self.current_context or later.current_context,
        )

    def document(self) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": n, "cluster": dict(c)} for n, c in self.clusters.items()],
            "users": [{"name": n, "user": dict(u)} for n, u in self.users.items()],
            "contexts": [{"name": n, "context": dict(c)} for n, c in self.contexts.items()],
            "current-context": self.current_context,
            "preferences": {},
        }

    def write(self, path: Path) -> None:
        """Replace the file in one step; only its owner may read it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, yaml.safe_dump(self.document(), sort_keys=False))


def make(
    name: str,
    server: str,
    *,
    ca: bytes = b"",
    certificate: bytes = b"",
    key: bytes = b"",
    token: str = "",
    namespace: str = "",
) -> Kubeconfig:
    """A kubeconfig with one cluster, user and context, all called `name`, with everything inside the file."""
    cluster: dict[str, Any] = {"server": server}
    if ca:
        cluster["certificate-authority-data"] = _base64(ca)
    user: dict[str, Any] = {}
    if certificate:
        user |= {"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)}
    if token:
        user["token"] = token
    context = {"cluster": name, "user": name} | ({"namespace": namespace} if namespace else {})
    return Kubeconfig({name: cluster}, {name: user}, {name: context}, name)


def parse(text: str | bytes, base: Path = Path()) -> Kubeconfig:
    """Read one document; relative paths in it are taken from `base`."""
    try:
        document = yaml.load(text, Loader=_LOADER)  # a safe loader
    except yaml.YAMLError as error:
        raise KubeconfigError("not a kubeconfig: the file is not YAML") from error
    if document is None:
        return Kubeconfig()
    if not isinstance(document, dict):
        raise KubeconfigError("not a kubeconfig: the top level must be a mapping")
    return Kubeconfig(
        _entries(document, "clusters", "cluster", base, ("certificate-authority",)),
        _entries(document, "users", "user", base, ("client-certificate", "client-key", "tokenFile")),
        _entries(document, "contexts", "context", base, ()),
        str(document.get("current-context") or ""),
    )


def read(path: Path) -> Kubeconfig:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise KubeconfigError(f"cannot read kubeconfig {path}: {error.strerror}") from error
    try:
        return parse(text, path.parent)
    except KubeconfigError as error:
        raise KubeconfigError(f"{path}: {error}") from error


def load(paths: Sequence[Path] = (), environ: Mapping[str, str] = os.environ) -> Kubeconfig:
    """The given files, else those in $KUBECONFIG, else ~/.kube/config, merged. Missing files count as empty."""
    if not paths:
        listed = environ.get("KUBECONFIG", "")
        paths = [Path(p) for p in listed.split(os.pathsep) if p] or [Path.home() / ".kube" / "config"]
    found = [read(path) for path in paths if path.exists()]
    if not found:
        raise KubeconfigError(f"no kubeconfig found: tried {', '.join(str(p) for p in paths)}")
    merged = Kubeconfig()
    for config in found:
        merged = merged.merged(config)
    return merged


def in_cluster(environ: Mapping[str, str] = os.environ, directory: Path = _SERVICE_ACCOUNT) -> ClusterConnection:
    """How a pod reaches the API: its service account's files. The token file is read again as it changes."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    token_file = directory / "token"
    if not host or not port or not token_file.is_file():
        raise KubeconfigError("not in a pod: no service account token or KUBERNETES_SERVICE_HOST is not set")
    shown = f"[{host}]" if ":" in host else host
    namespace_file, ca_file = directory / "namespace", directory / "ca.crt"
    return ClusterConnection(
        server=f"https://{shown}:{port}",
        namespace=(namespace_file.read_text().strip() if namespace_file.is_file() else "") or "default",
        ca=ca_file.read_bytes() if ca_file.is_file() else b"",
        token_file=str(token_file),
    )


def _entry(entries: Mapping[str, Mapping[str, Any]], what: str, name: str) -> Mapping[str, Any]:
    if name not in entries:
        raise KubeconfigError(f'the kubeconfig has no {what} "{name}"')
    return entries[name]


def _entries(
    document: Mapping[str, Any], plural: str, singular: str, base: Path, paths: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {}
    listed = document.get(plural) or []
    if not isinstance(listed, list):
        raise KubeconfigError(f"{plural}: must be a list")
    for i, item in enumerate(listed):
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise KubeconfigError(f"{plural}[{i}]: must have a name")
        value = item.get(singular) or {}
        if not isinstance(value, dict):
            raise KubeconfigError(f"{plural}[{i}].{singular}: must be a mapping")
        value = dict(value)
        for key in paths:
            if value.get(key):
                value[key] = str(base / str(value[key]))
        out.setdefault(item["name"], value)
    return out


def _data_or_file(entry: Mapping[str, Any], name: str) -> bytes:
    """`<name>-data` holds the content; else `<name>` is the path of a file with it."""
    inline = entry.get(f"{name}-data")
    if inline:
        try:
            return base64.b64decode(inline, validate=True)
        except (binascii.Error, ValueError) as error:
            raise KubeconfigError(f"{name}-data: not base64") from error
    path = entry.get(name)
    if not path:
        return b""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise KubeconfigError(f"{name}: cannot read {path}: {error.strerror}") from error


def _exec(value: Any) -> ExecCredential | None:
    if not value:
        return None
    if not isinstance(value, dict) or not value.get("command"):
        raise KubeconfigError("exec: must have a command")
    return ExecCredential(
        command=str(value["command"]),
        args=tuple(str(arg) for arg in value.get("args") or ()),
        env=tuple((str(e["name"]), str(e["value"])) for e in value.get("env") or ()),
        api_version=str(value.get("apiVersion") or "client.authentication.k8s.io/v1"),
        provide_cluster_info=bool(value.get("provideClusterInfo", False)),
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
