"""A node with functions: manifests, and calls to its gateway from the network of its pods."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psutil
import yaml
from e2e_kit import Cluster, until

from coterie.base import network_namespace

GROUP = "coterie.io/v1alpha1"
GATEWAY_PORT = 6810
LABEL = "coterie.io/action"


def action(name: str, script: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": GROUP, "kind": "Action", "metadata": {"name": name}, "spec": {"script": script, **spec}}


def trigger(name: str, target: str, **spec: Any) -> dict[str, Any]:
    if not spec:
        spec = {"http": {"path": f"/{name}"}}
    return {"apiVersion": GROUP, "kind": "Trigger", "metadata": {"name": name}, "spec": {"action": target, **spec}}


def says(text: str) -> str:
    """A script that answers this."""
    return f"from serverless import Response\ndef action(req):\n    return Response({text!r})\n"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def text(self) -> str:
        return self.body.decode()


class _PodNetworkConnection(http.client.HTTPConnection):
    def __init__(self, netns: Path | None, host: str, port: int, timeout: float) -> None:
        super().__init__(host, port, timeout=timeout)
        self._netns = netns

    def connect(self) -> None:
        if self._netns is None:
            super().connect()
            return
        with network_namespace.entered(self._netns):
            self.sock = socket.socket()
        self.sock.settimeout(self.timeout)
        self.sock.connect((self.host, self.port))


class FunctionsNode:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        run = cluster.plane.home / "var" / "run" / "runp"
        self._netns = next(iter(run.glob("netns-*")), None)

    def example(self, name: str) -> None:
        path = Path(__file__).parents[2] / "examples" / "functions" / name / f"{name}.yaml"
        self.cluster.apply(*yaml.safe_load_all(path.read_text()))

    @property
    def address(self) -> str:
        found = self.cluster.try_("get", "service", "serverless-gateway", "-o", "json")
        return str(json.loads(found.out)["spec"]["clusterIP"]) if found.rc == 0 else ""

    def wait_for_gateway(self) -> str:
        address = str(until("there is a gateway", lambda: self.address))
        until("the gateway answers", lambda: self.try_call("/no-such-path", address=address) in (404,), 60)
        return address

    def try_call(self, path: str, *, address: str = "") -> int:
        try:
            return self.call(path, address=address).status
        except OSError:
            return 0

    def call(
        self,
        path: str,
        body: bytes | None = None,
        *,
        method: str = "",
        headers: Mapping[str, str] | None = None,
        address: str = "",
        port: int = GATEWAY_PORT,
        timeout: float = 60.0,
        **params: str,
    ) -> Answer:
        connection = _PodNetworkConnection(self._netns, address or self.address, port, timeout)
        target = quote(path, safe="/?=") + (f"?{urlencode(params)}" if params else "")
        try:
            connection.request(method or ("GET" if body is None else "POST"), target, body, dict(headers or {}))
            response = connection.getresponse()
            return Answer(
                response.status, response.read(), {name.lower(): value for name, value in response.getheaders()}
            )
        finally:
            connection.close()

    def answers(self, address: str, port: int) -> bool:
        """Whether somebody listens there, seen from the network of the pods."""
        with network_namespace.entered(self._netns) if self._netns is not None else contextlib.nullcontext():
            probe = socket.socket()
        with probe:
            probe.settimeout(5)
            return probe.connect_ex((address, port)) == 0

    def status(self, name: str) -> dict[str, Any]:
        return dict(self.cluster.json(f"get action {name}").get("status") or {})

    def condition(self, name: str, type_: str) -> dict[str, Any]:
        return next((each for each in self.status(name).get("conditions", ()) if each["type"] == type_), {})

    def actors(self, name: str) -> list[dict[str, Any]]:
        found = self.cluster.pods(f"{LABEL}={name}")
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    def first_actor(self, name: str) -> dict[str, Any]:
        """The pod of a spare actor says whose it is a moment after its first answer."""
        found: list[dict[str, Any]] = until(f"{name} has an actor", lambda: self.actors(name))
        return found[0]

    def ready_actors(self, name: str) -> int:
        return int(self.status(name).get("readyReplicas", 0))

    def first_call(self, path: str, body: bytes | None = None, **more: Any) -> Answer:
        """As soon as the path is routed, a moment after its trigger."""

        def look() -> Answer | None:
            answer = self.call(path, body, **more)
            return answer if answer.status != 404 else None

        found: Answer = until(f"{path} is routed", look)
        return found

    def process(self) -> psutil.Process:
        """The functions process."""

        def look() -> psutil.Process | None:
            for each in psutil.Process(self.cluster.plane.pid).children():
                with contextlib.suppress(psutil.Error):
                    if "coterie.functions" in each.cmdline():
                        return each
            return None

        found: psutil.Process = until("the functions process runs", look)
        return found

    def remove(self, *names: str) -> None:
        """Triggers and actions whose names begin so; none: all."""
        for kind in ("triggers", "actions"):
            there = [each["metadata"]["name"] for each in self.cluster.json(f"get {kind}")["items"]]
            left = [each for each in there if each.startswith(names or "")]
            # What is called is refused until what calls it is gone.
            for _ in range(len(left)):
                left = [each for each in left if self.cluster.try_("delete", kind, each, "--wait=false").rc]
                if not left:
                    break
            assert not left, f"{kind} {left} could not be deleted"
