"""A real API server in a child process, as an operator starts it: TLS, a directory of its own, a free port.

Tests find it by the kubeconfig it writes. `api` is a side door with the operator's certificate, for what a test has to
arrange and the program under test cannot do (the status of a node, the work of a controller that does not exist yet).
"""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import re
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

DOMAIN = "conformance"
_START_SECONDS = 60.0
_STOP_SECONDS = 15.0
_COMPLAINT = re.compile(r"^\S+ error |Traceback \(most recent call last\)")


class ServerFailed(Exception):
    """The server did not come up; the message ends with its log."""


class ApiFailed(Exception):
    def __init__(self, status: int, answer: Any) -> None:
        message = answer.get("message") if isinstance(answer, dict) else answer
        super().__init__(f"{status}: {message}")
        self.status = status


class ServerProcess:
    def __init__(self, root: Path, settings: str = "") -> None:
        """`settings`: more lines of the configuration."""
        self.root = root
        self._settings = settings
        self.home = root / DOMAIN
        self.pki = self.home / "var" / "certs" / "pki"
        self.kubeconfig = self.home / "kubeconfig"
        self._log = root / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> ServerProcess:
        self.root.mkdir(parents=True, exist_ok=True)
        self.kubeconfig.unlink(missing_ok=True)
        settings = self.root / "coterie.yaml"
        settings.write_text(
            f"mode: master\ndomainID: {DOMAIN}\napiServer: {{host: 127.0.0.1, port: 0}}\ndns: {{enabled: false}}\ngateway: {{enabled: false}}\ncontrollers: {{autoscalerSeconds: 1, podEvictionSeconds: 600}}\n{self._settings}"
        )
        command = [sys.executable, "-m", "coterie", "start", "-c", str(settings), "--root", str(self.root)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.root
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise ServerFailed(f"the server ended with status {self._process.returncode}\n{self.log_tail()}")
            if self.kubeconfig.exists():
                try:
                    if self.text("GET", "/readyz") == "ok":
                        return
                except (OSError, ApiFailed):
                    pass  # Not listening yet, or not ready yet: both pass.
            time.sleep(0.05)
        raise ServerFailed(f"the server was not ready after {_START_SECONDS:.0f} s\n{self.log_tail()}")

    def stop(self) -> None:
        """Ask it to stop; what does not listen is killed."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def log_size(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def complaints(self, since: int = 0) -> list[str]:
        """Errors the server wrote into its log behind that many bytes: none are expected, whatever clients do."""
        text = self._log.read_bytes()[since:].decode(errors="replace") if self._log.exists() else ""
        return [line for line in text.splitlines() if _COMPLAINT.search(line)]

    def log_tail(self, lines: int = 60) -> str:
        if not self._log.exists():
            return "(no log)"
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def next_kubeconfig(self) -> Path:
        return self.kubeconfig

    # -- the side door ------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return str(yaml.safe_load(self.kubeconfig.read_text())["clusters"][0]["cluster"]["server"])

    def api(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """One request with the operator's rights; the answer is an object."""
        return json.loads(self.text(method, path, body, content_type))

    def text(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> str:
        context = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))
        context.load_cert_chain(self.pki / "admin.crt", self.pki / "admin.key")
        where = urlsplit(self.url)
        connection = http.client.HTTPSConnection(where.hostname or "", where.port, timeout=20, context=context)
        try:
            data = json.dumps(body) if body is not None else None
            connection.request(method, path, data, {"Content-Type": content_type, "Accept": "application/json"})
            answer = connection.getresponse()
            content = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= 400:
            raise ApiFailed(answer.status, _parsed(content))
        return content


def _parsed(content: str) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content


class ServerPair(ServerProcess):
    """Two members of one control plane on one store. `api` asks them in turn, and `next_kubeconfig` is of one and the other."""

    def __init__(self, root: Path, store: str) -> None:
        quiet = "kusciaAPI: {enabled: false}\nmetrics: {enabled: false}\nconsole: {enabled: false}\n"
        self._more = f"store: {json.dumps(store)}\n{quiet}"
        super().__init__(root / "a", self._more)
        self._other: ServerProcess | None = None
        self._turn = self._began = 0

    def start(self) -> ServerPair:
        super().start()
        key = base64.b64encode((self.pki.parent / "domain.key").read_bytes()).decode()
        self._other = ServerProcess(self.root.parent / "b", f"{self._more}domainKeyData: {key}\n")
        try:
            self._other.start()
        except BaseException:
            self.stop()
            raise
        self._kubeconfigs = itertools.cycle(self.kubeconfigs)
        return self

    def stop(self) -> None:
        if self._other is not None:
            self._other.stop()
        super().stop()

    @property
    def kubeconfigs(self) -> list[Path]:
        return [self.kubeconfig, *([self._other.kubeconfig] if self._other is not None else [])]

    def next_kubeconfig(self) -> Path:
        return next(self._kubeconfigs)

    def text(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> str:
        self._turn += 1
        if self._other is not None and self._turn % 2:
            return self._other.text(method, path, body, content_type)
        return super().text(method, path, body, content_type)

    def log_size(self) -> int:
        """Of both: `complaints` is asked with it."""
        self._began = self._other.log_size() if self._other is not None else 0
        return super().log_size()

    def complaints(self, since: int = 0) -> list[str]:
        return super().complaints(since) + (self._other.complaints(self._began) if self._other is not None else [])

    def log_tail(self, lines: int = 60) -> str:
        other = self._other.log_tail(lines) if self._other is not None else ""
        return f"{super().log_tail(lines)}\n--- the other member\n{other}"
