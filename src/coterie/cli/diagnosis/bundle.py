"""A support bundle of one node: what somebody needs who helps, and no secrets (`bundle_secrets.py`).

summary.json        versions, clock, what was left out and why
machine.json        kernel, limits, what it allows
config.yaml         the configuration without secrets
health.json         node, gateway, routes as `coterie status` shows them
objects/*.json      Nodes, pods, events in short, where the control plane answers
metrics.txt         the page for Prometheus
envoy/*.json        Envoy's configuration without tokens, its counters
access.json         what `coterie diagnose log` says of the last day
logs/*              the last lines of each log
"""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import yaml

from coterie.base.clock import Clock
from coterie.base.files import write_atomic
from coterie.base.paths import DomainPaths
from coterie.base.redaction import Redactor
from coterie.cli import gateway_status, node_health
from coterie.cli.diagnosis.access_log import EXTERNAL, INTERNAL, AccessLogReport, feed_all
from coterie.cli.diagnosis.bundle_secrets import clean_document, clean_envoy, known_secrets
from coterie.cli.diagnosis.log_reading import last_lines, lines_of, rotated_files
from coterie.cli.diagnosis.machine_facts import clock_facts, machine_facts, version_facts
from coterie.http.plain_client import HttpFailure, Pool
from coterie.kube.api.errors import ApiError
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client.client import Client
from coterie.kube.client.kubeconfig import KubeconfigError
from coterie.kube.client.transport import TransportError
from coterie.kuscia.gateway.admin import Admin, AdminError
from coterie.kuscia.gateway.envoy import EnvoySettings
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.node.config import ConfigError, NodeSettings

MOST_LINES = 1000
MOST_LOG_BYTES = 1 << 20
_MOST_LOGS = 40
_LARGEST_PART = 16 << 20
_MOST_EVENTS = 300
_SECONDS = 10.0
_FAILURES = (
    ApiError,
    TransportError,
    KubeconfigError,
    ConfigError,
    AdminError,
    HttpFailure,
    OSError,
    TimeoutError,
    ValueError,
)


@dataclass(slots=True)
class SupportBundle:
    home: DomainPaths
    document: Any
    """The configuration as it is written; None: it could not be read."""
    settings: NodeSettings | None
    nodes: tuple[NodeSettings, ...]
    """All of this machine, among them the control plane of a lite."""
    clock: Clock
    parts: dict[str, bytes] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    _redactor: Redactor = field(default_factory=Redactor)

    async def collect(self) -> None:
        self._redactor = Redactor(known_secrets(self.home, [self.document]))
        self._json("machine.json", machine_facts(self.home.home))
        self.parts["config.yaml"] = self._yaml(clean_document(self.document, self._redactor))
        steps: Mapping[str, Callable[[], Awaitable[None]]] = {
            "health.json": self._health,
            "objects": self._objects,
            "metrics.txt": self._metrics,
            "envoy": self._envoy,
        }
        for name, step in steps.items():
            try:
                async with asyncio.timeout(_SECONDS):
                    await step()
            except _FAILURES as error:
                self.missing[name] = self._redactor.text(str(error) or type(error).__name__)
        self._access()
        self._logs()
        summary = {
            "domain": self.home.home.name,
            "mode": self.settings.mode if self.settings is not None else "",
            "versions": version_facts(),
            "clock": clock_facts(),
            "missing": self.missing,
            "redactions": dict(self._redactor.counts),
        }
        self._json("summary.json", summary)

    def write(self, path: Path) -> None:
        """Only for its owner."""
        stamp = self.clock.now().timestamp()
        top = f"coterie-{self.home.home.name}"
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for name, content in sorted(self.parts.items()):
                entry = tarfile.TarInfo(f"{top}/{name}")
                entry.size, entry.mtime, entry.mode = len(content), int(stamp), 0o600
                archive.addfile(entry, io.BytesIO(content))
        # A file of that name may be there already, and may be somebody else's.
        write_atomic(path, packed.getvalue())

    # Parts.

    def _json(self, name: str, document: Any) -> None:
        options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
        content = orjson.dumps(document, option=options, default=str)
        if len(content) <= _LARGEST_PART:
            self.parts[name] = content
        else:
            self.missing[name] = f"{len(content)} bytes, more than a bundle takes"

    @staticmethod
    def _yaml(document: Any) -> bytes:
        return yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode()

    async def _health(self) -> None:
        if self.settings is None:
            raise ValueError("the configuration could not be read")
        plane = node_health.plane_of(self.settings, self.nodes)
        node = await node_health.of(self.settings, plane)
        routes = await node_health.routes_of([plane], self.clock.now()) if plane is not None else []
        found: dict[str, Any] = {"node": node.document(), "routes": [each.document() for each in routes]}
        if self.settings.join is None and self.settings.gateway.enabled:
            found["gateway"] = asdict(await gateway_status.of(self.settings))
        self._json("health.json", clean_document(found, self._redactor))

    async def _objects(self) -> None:
        plane = node_health.plane_of(self.settings, self.nodes) if self.settings is not None else None
        if plane is None:
            raise ValueError("its control plane is not on this machine")
        async with node_health.client_of(plane) as client:
            self._json("objects/nodes.json", clean_document(await _objects(client, "nodes"), self._redactor))
            pods = [pod_summary(each) for each in await _objects(client, "pods")]
            self._json("objects/pods.json", clean_document(pods, self._redactor))
            events = [event_summary(each) for each in await _objects(client, "events")]
            events.sort(key=lambda each: str(each["at"]))
            self._json("objects/events.json", clean_document(events[-_MOST_EVENTS:], self._redactor))

    async def _metrics(self) -> None:
        settings = self.settings.metrics if self.settings is not None else None
        if settings is None or not settings.enabled or not settings.port:
            raise ValueError("the node serves no metrics page")
        host = settings.address if settings.address not in ("0.0.0.0", "::") else "127.0.0.1"
        pool = Pool((host, settings.port), keep=0)
        try:
            answer = await pool.request("GET", "/metrics", {"Host": "localhost"})
            content = await answer.read(_LARGEST_PART)
        finally:
            await pool.close()
        if answer.status != 200:
            raise ValueError(f"the metrics page answers {answer.status}")
        self.parts["metrics.txt"] = self._redactor.text(content.decode("utf-8", "replace")).encode()

    async def _envoy(self) -> None:
        places = GatewayPaths.of(self.home)
        admin = Admin(EnvoySettings(self.home.home.name, places.directory, places.run, places.logs).socket)
        try:
            dump = orjson.loads(await admin.ask("/config_dump"))
            self._json("envoy/config_dump.json", clean_envoy(dump, self._redactor))
            for name in ("clusters", "server_info", "listeners"):
                document = orjson.loads(await admin.ask(f"/{name}?format=json"))
                self._json(f"envoy/{name}.json", clean_envoy(document, self._redactor))
            stats = await admin.ask("/stats?usedonly")
            self.parts["envoy/stats.txt"] = self._redactor.text(stats).encode()
        finally:
            await admin.close()

    def _access(self) -> None:
        since = self.clock.now() - timedelta(days=1)
        report = AccessLogReport(since)
        for side in (INTERNAL, EXTERNAL):
            for path in rotated_files(GatewayPaths.of(self.home).logs / f"{side}.log", since.timestamp()):
                feed_all(report, side, lines_of(path))
        self._json("access.json", clean_document(report.document(), self._redactor))

    def _logs(self) -> None:
        """Not the audit log: it names users and what they read, and helps nobody outside."""
        found = sorted(self.home.logs.rglob("*.log")) if self.home.logs.is_dir() else []
        for path in found[:_MOST_LOGS]:
            name = str(path.relative_to(self.home.logs))
            lines = last_lines(path, MOST_LINES, MOST_LOG_BYTES)
            self.parts[f"logs/{name}"] = "".join(f"{self._redactor.line(line, name)}\n" for line in lines).encode()


async def _objects(client: Client, plural: str) -> list[Object]:
    found = (await client.list(Kind.dynamic(builtin(plural)))).items
    for each in found:
        (each.get("metadata") or {}).pop("managedFields", None)
    return list(found)


def pod_summary(pod: Object) -> dict[str, Any]:
    """Without its spec, in which commands and variables stand."""
    status = pod.get("status") or {}
    containers = [
        {"name": each.get("name"), "restarts": each.get("restartCount"), "state": each.get("state")}
        for each in status.get("containerStatuses") or ()
    ]
    meta = pod["metadata"]
    return {
        "namespace": meta.get("namespace"),
        "name": meta["name"],
        "node": (pod.get("spec") or {}).get("nodeName"),
        "phase": status.get("phase"),
        "reason": status.get("reason"),
        "message": status.get("message"),
        "containers": containers,
    }


def event_summary(event: Object) -> dict[str, Any]:
    about = event.get("involvedObject") or {}
    return {
        "at": event.get("lastTimestamp")
        or event.get("eventTime")
        or (event.get("metadata") or {}).get("creationTimestamp"),
        "type": event.get("type"),
        "about": f"{about.get('kind')} {about.get('namespace', '')}/{about.get('name')}",
        "reason": event.get("reason"),
        "message": event.get("message"),
        "count": event.get("count"),
    }


def bundle_name(domain: str, now: datetime) -> str:
    return f"coterie-{domain}-{now:%Y%m%d-%H%M%S}.tar.gz"
