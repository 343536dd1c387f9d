"""A real Kubernetes without kubelets: etcd, kube-apiserver and kube-controller-manager, built by scripts/get-kubernetes."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from coterie.base import pki, pki_files
from coterie.base.clock import SYSTEM_CLOCK, rfc3339
from coterie.kube.client import kubeconfig

ROOT = Path(__file__).resolve().parents[2]
BINARIES = ROOT / ".tools/kubernetes"
KUBECTLS = sorted((ROOT / ".tools/kubectl").glob("kubectl-1.*"))
SECONDS = 120.0
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def wait_until(check: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, f"it never came to this: {what}"
        time.sleep(0.2)


class RealCluster:
    """The processes, their logs, and kubectl as an administrator."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kubeconfig = root / "admin.kubeconfig"
        self.audit = root / "audit.jsonl"
        self.server = ""
        self.restarted_at = self.ready_again_at = ""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, tuple[str, ...]] = {}

    def start(self) -> None:
        now, where = datetime.now(UTC), self.root / "pki"
        where.mkdir()
        authority = pki_files.ensure_authority(where, "kubernetes", now=now)
        names = ("127.0.0.1", "localhost", "kubernetes", "kubernetes.default.svc", "10.96.0.1")
        serving = pki_files.ensure_server(where, "apiserver", authority, names=names, now=now)
        kubelet = pki_files.ensure_client(
            where,
            "kubelet-client",
            authority,
            user="kube-apiserver-kubelet-client",
            groups=("system:masters",),
            now=now,
        )
        admin = pki_files.ensure_client(where, "admin", authority, user="admin", groups=("system:masters",), now=now)
        manager = pki_files.ensure_client(where, "manager", authority, user="system:kube-controller-manager", now=now)
        pki.save_key(where / "sa.key", pki.new_key("rsa"))
        (self.root / "audit-policy.yaml").write_text(yaml.safe_dump(_AUDIT))
        etcd, peer, secure = free_port(), free_port(), free_port()
        self.server = f"https://127.0.0.1:{secure}"
        self.ca = (where / "ca.crt").read_bytes()
        for name, pair in (("admin", admin), ("manager", manager)):
            made = kubeconfig.make(
                "real",
                self.server,
                ca=self.ca,
                certificate=pair.certificate_path.read_bytes(),
                key=pair.key_path.read_bytes(),
            )
            made.write(self.root / f"{name}.kubeconfig")
        self._spawn(
            "etcd", f"--data-dir={self.root / 'etcd'}", "--log-level=warn", "--unsafe-no-fsync",
            f"--listen-client-urls=http://127.0.0.1:{etcd}", f"--advertise-client-urls=http://127.0.0.1:{etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}", f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
        )  # fmt: skip
        self._spawn(
            "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{etcd}", "--bind-address=127.0.0.1", f"--secure-port={secure}",
            f"--tls-cert-file={serving.certificate_path}", f"--tls-private-key-file={serving.key_path}",
            f"--client-ca-file={where / 'ca.crt'}", "--authorization-mode=Node,RBAC", "--endpoint-reconciler-type=none",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={where / 'sa.key'}",
            f"--service-account-signing-key-file={where / 'sa.key'}", "--service-cluster-ip-range=10.96.0.0/16",
            f"--kubelet-client-certificate={kubelet.certificate_path}", f"--kubelet-client-key={kubelet.key_path}",
            f"--audit-log-path={self.audit}", f"--audit-policy-file={self.root / 'audit-policy.yaml'}",
        )  # fmt: skip
        wait_until(lambda: self.try_kubectl("get", "--raw", "/readyz").returncode == 0, "the API server is ready")
        self._spawn(
            "kube-controller-manager", f"--kubeconfig={self.root / 'manager.kubeconfig'}", "--bind-address=127.0.0.1", f"--secure-port={free_port()}",
            f"--service-account-private-key-file={where / 'sa.key'}", f"--root-ca-file={where / 'ca.crt'}", "--use-service-account-credentials",
            "--leader-elect=false",
        )  # fmt: skip
        wait_until(lambda: self.get("serviceaccount", "default", "-n", "default"), "controllers are at work")

    def _spawn(self, name: str, *words: str) -> None:
        self._commands[name] = words
        with (self.root / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                (str(BINARIES / name), *words),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.root,
            )

    def restart(self, name: str) -> None:
        self.restarted_at = rfc3339(SYSTEM_CLOCK.now())
        self._end(self._processes.pop(name))
        self._spawn(name, *self._commands[name])
        wait_until(lambda: self.try_kubectl("get", "--raw", "/readyz").returncode == 0, "the API server is ready again")
        time.sleep(2)  # it is ready before its authorizer has read all roles
        self.ready_again_at = rfc3339(SYSTEM_CLOCK.now())

    def stop(self) -> None:
        for process in reversed(list(self._processes.values())):
            self._end(process)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def log(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text(errors="replace")

    def try_kubectl(self, *words: str, given: str = "", config: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [str(KUBECTLS[-1]), f"--kubeconfig={config or self.kubeconfig}", *words]
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=SECONDS)

    def kubectl(self, *words: str, given: str = "", config: Path | None = None) -> str:
        ran = self.try_kubectl(*words, given=given, config=config)
        assert ran.returncode == 0, f"kubectl {' '.join(words)}: {ran.stdout}{ran.stderr}"
        return ran.stdout

    def get(self, *words: str) -> Any:
        ran = self.try_kubectl("get", *words, "-o", "json")
        return json.loads(ran.stdout) if ran.stdout else {}

    def account_kubeconfig(self, namespace: str, name: str, file: Path) -> Path:
        """As that service account."""
        token = self.kubectl("create", "token", name, "-n", namespace, "--duration=8h").strip()
        kubeconfig.make("real", self.server, ca=self.ca, token=token, namespace=namespace).write(file)
        return file

    def audited(self, user: str) -> list[dict[str, Any]]:
        """What that user asked for, by the API server's own word."""
        found = []
        for line in self.audit.read_text().splitlines():
            if user in line:
                event = json.loads(line)
                if event["user"]["username"] == user and event.get("objectRef"):
                    found.append(event)
        return found
