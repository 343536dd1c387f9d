"""Kuscia's plug-in of the agent: what an engine finds in its container, and what a domain's Node says.

prepare_pod:           certificates into the pod's directory
container_additions:   variables; templates ──render──> files ──> mounts; the domain's data
node:                  labels, taint and bandwidth of the Node
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from coterie.base import trace
from coterie.base.pki import PkiError
from coterie.kube.agent.images.model import ANY_IMAGE, RequiredImage
from coterie.kube.agent.node.facts import MachineFacts
from coterie.kube.agent.plugin import AnnotatedCapacity, ContainerAdditions, NodeAdditions, PluginProblem
from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.pods.downward import ConfigProblem, DownwardNodeInfo, NoSuchConfig
from coterie.kube.agent.pods.environment import Lookup
from coterie.kube.agent.runtimes.protocol import Mount, PodKind, PodNetworkClass
from coterie.kube.agent.volumes import atomic
from coterie.kube.agent.volumes.atomic import FileContent
from coterie.kube.agent.volumes.volumes import VolumeFiles, user_of
from coterie.kube.api import quantity
from coterie.kube.api.meta import Object
from coterie.kuscia.api import labels
from coterie.kuscia.api.bandwidth import annotated_mbit
from coterie.kuscia.api.jobs import trace_context
from coterie.kuscia.api.jobs.trace_context import PodTrace
from coterie.kuscia.engine import certificates, peers
from coterie.kuscia.engine.certificates import EngineCertificateIssuer
from coterie.kuscia.engine.templates import template, values
from coterie.kuscia.engine.templates.config_store import ONLY_AT_CONTROL_PLANE, ConfigStore
from coterie.kuscia.engine.templates.errors import TemplateError
from coterie.kuscia.engine.templates.template import Template

DATA_PLACE = "/home/kuscia/var/storage/data"
CERTIFICATES = "certificates"
RENDERED = "config-render"
API_TOKEN = "KUSCIA_API_TOKEN"
"""In templates: the operator's token of KusciaAPI. Whoever has it is the operator."""
_SHARE = 0.8
"""Of what the node has, for an engine whose container has no limit."""
_MIB = 1 << 20
_CALLERS_TIMEOUT = 5.0
"""Seconds for the gateway to take in who a new engine is. The engine starts all the same: its first calls may fail."""


DEFAULT_BANDWIDTH_MBIT = 1000
"""When neither the configuration nor the network card says anything."""
TAINT = {"key": labels.KUSCIA_AGENT_TAINT, "value": labels.KUSCIA_AGENT_TAINT_VALUE, "effect": "NoSchedule"}
"""Keeps pods off the node that do not tolerate it; engines do."""
RUNTIME_LABEL = labels.KUSCIA + "runtime"
_API_VERSION = "0.26.6"
"""What Kuscia's agents say of themselves."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What engines of a domain get besides what every pod gets, and what the domain's Node says."""

    domain: str
    data: Path | None = None
    """The domain's data directory, which engines find at Kuscia's place for it."""
    api_protocol: str = ""
    """`KUSCIA_API_PROTOCOL` in config templates: NOTLS, TLS or MTLS."""
    api_token: Path | None = None
    """The file with `KUSCIA_API_TOKEN`; read only when a template asks for it."""
    joined: bool = False
    """The node joined the domain with a file: it has none of the domain's secrets."""
    taint: bool = False
    """Whether the Node has Kuscia's taint `kuscia.secretflow/agent=v1:NoSchedule`."""
    bandwidth_mbit: int = 0
    """`kuscia.io/bandwidth`; 0: the speed of the network card, else 1000."""
    reserved_bandwidth_mbit: int = 10

    def built_in(self, wanted: Collection[str]) -> dict[str, str]:
        found = {"KUSCIA_API_PROTOCOL": self.api_protocol}
        if API_TOKEN in wanted:
            known = self.api_token is not None and self.api_token.exists()
            found[API_TOKEN] = self.api_token.read_text().strip() if self.api_token and known else ""
        return found


class EngineCallers(Protocol):
    """Who knows engines by their addresses: the gateway."""

    def set(self, address: str, hosts: frozenset[str], task: str = "") -> None: ...

    def remove(self, address: str) -> None: ...

    async def loaded(self, address: str, timeout: float) -> None: ...


class GatewayElsewhere(Protocol):
    """The domain's gateway, where it is on another machine."""

    async def register(self, pod: Object, address: str) -> None:
        """Until it knows the engine by its address. Raises OSError, ApiError or TransportError."""


class EnginePlugin:
    name = "kuscia-engine"

    def __init__(
        self,
        settings: EngineSettings,
        issuer: EngineCertificateIssuer,
        store: ConfigStore,
        callers: EngineCallers | None = None,
        *,
        gateway: GatewayElsewhere | None = None,
        unreachable: str = "",
        fenced: bool = True,
        names: bool = True,
    ) -> None:
        """`callers`, `gateway`: of the gateway on this machine, or on another one. `unreachable`: why engines cannot reach it
        from here. `fenced`: whether pods have a network of their own here; without, nobody else's pods run. `names`: whether pods
        can ask the domain's DNS; without, engines that have peers do not run."""
        self._callers = callers
        self._gateway = gateway
        self._unreachable = unreachable
        self._fenced = fenced
        self._names = names
        self._addresses: dict[str, str] = {}
        self._domain = settings.domain
        self._settings = settings
        self._issuer = issuer
        self._store = store

    def is_engine(self, pod: Object) -> bool:
        return peers.is_engine(pod, self._domain)

    def node(self, facts: MachineFacts, runtime: str) -> NodeAdditions:
        settings = self._settings
        return NodeAdditions(
            labels={
                "kubernetes.io/role": "agent",
                "kubernetes.io/apiVersion": _API_VERSION,
                "domain": self._domain,
                labels.KUSCIA_NODE_NAMESPACE: self._domain,
                RUNTIME_LABEL: runtime,
                **({labels.COTERIE_JOINED: "true"} if settings.joined else {}),
            },
            owner_label=labels.KUSCIA_NODE_NAMESPACE,
            taints=(TAINT,) if settings.taint else (),
            own_taints=(TAINT,),
            capacity={labels.KUSCIA_BANDWIDTH: settings.bandwidth_mbit or facts.nic_mbit or DEFAULT_BANDWIDTH_MBIT},
            reserved={labels.KUSCIA_BANDWIDTH: settings.reserved_bandwidth_mbit},
            annotated_capacity={
                labels.KUSCIA_BANDWIDTH: AnnotatedCapacity(labels.COTERIE_NODE_BANDWIDTH, annotated_mbit)
            },
        )

    def pod_references(self, pod: Object) -> set[tuple[str, str]]:
        name = peers.values_map_name(pod)
        return {("ConfigMap", name)} if name else set()

    def pod_network(self, pod: Object) -> PodNetworkClass | None:
        if not self._is_task_pod(pod):
            return None
        if self._unreachable:
            raise PluginProblem(self._unreachable)
        if self._own_task(pod):
            return PodNetworkClass(PodKind.ENGINE, peers.group_of(pod))
        if not self._fenced:
            raise PluginProblem(
                "this node cannot isolate pods (NotFenced), so it runs nothing that another domain began; "
                "`coterie status` says which setting of the machine to change"
            )
        return PodNetworkClass(PodKind.GUEST, peers.group_of(pod))

    def _is_task_pod(self, pod: Object) -> bool:
        return peers.is_task_pod(pod, self._domain)

    async def network_ready(self, pod: Object, address: str, lookup: Lookup) -> None:
        if not self._is_task_pod(pod):
            return
        if self._gateway is not None:
            await self._gateway.register(pod, address)
        if self._callers is None and self._names:
            return
        name = peers.values_map_name(pod)
        hosts = peers.callable_hosts(pod, lookup("ConfigMap", name) if name else None, self._domain)
        if not self._names and peers.needs_names(pod, hosts):
            raise PluginProblem(
                "this node cannot isolate pods (NotFenced) and may not open port 53, so pods cannot resolve the names of their "
                "peers; `coterie status` says which setting of the machine to change"
            )
        if self._callers is None:
            return
        self._addresses[pod_model.uid_of(pod)] = address
        self._callers.set(address, hosts, peers.task_of(pod))
        await self._callers.loaded(address, _CALLERS_TIMEOUT)

    def network_gone(self, pod_uid: str) -> None:
        address = self._addresses.pop(pod_uid, "")
        if address and self._callers is not None:
            self._callers.remove(address)

    async def prepare_pod(self, pod: Object, directory: Path, facts: DownwardNodeInfo) -> None:
        if self.is_engine(pod) and self._issuer.able:
            addresses = self._own_addresses(pod, facts)
            try:
                await self._issuer.ensure(directory / CERTIFICATES, pod, addresses, user_of(pod))
            except PkiError as error:
                raise PluginProblem(f"the engine's certificates could not be made: {error}") from error

    def _own_addresses(self, pod: Object, facts: DownwardNodeInfo) -> tuple[str, ...]:
        """None on the machine's network: certificates must not be good for the node's own addresses."""
        if not self._fenced or pod["spec"].get("hostNetwork"):
            return ()
        return (*((facts.pod_ip,) if facts.pod_ip else ()), "127.0.0.1")

    def _own_task(self, pod: Object) -> bool:
        """Files of the domain are open to tasks that the domain began. Others' tasks ask the data mesh, which looks for
        grants."""
        marks = pod["metadata"].get("annotations") or {}
        return bool(marks.get(labels.KUSCIA_INITIATOR) == self._domain)

    async def container_additions(
        self,
        pod: Object,
        container: Object,
        variables: Mapping[str, str],
        volumes: VolumeFiles,
        lookup: Lookup,
        facts: DownwardNodeInfo,
        directory: Path,
    ) -> ContainerAdditions:
        found: dict[str, str] = {}
        mounts: list[Mount] = []
        where: PodTrace | None = None
        if self.is_engine(pod):
            where = trace_context.pod_trace(pod)
            if where is not None and trace_context.VARIABLE not in variables:
                found[trace_context.VARIABLE] = trace.traceparent(where.trace, where.pod)
            found |= {**limits(container, facts), **{k: v for k, v in variables.items() if k in _LIMITS}}
            if (directory / CERTIFICATES).is_dir():
                found |= certificates.variables(pod)
                mounts.append(Mount(directory / CERTIFICATES, certificates.PLACE, read_only=True))
            if self._settings.data is not None and self._own_task(pod):
                # Kuscia's place for it, and its own: the data mesh tells engines the latter where they may go there.
                places = dict.fromkeys((DATA_PLACE, str(self._settings.data)))
                mounts += [Mount(self._settings.data, each, optional=True) for each in places]
        rendered = await self._rendered(pod, container, {**variables, **found}, volumes, lookup)
        span = where.parent if where is not None else None
        return ContainerAdditions(found, tuple(mounts), rendered, required_image(pod, container), span)

    # Rendering.

    async def _rendered(
        self, pod: Object, container: Object, variables: Mapping[str, str], volumes: VolumeFiles, lookup: Lookup
    ) -> dict[tuple[str, str], Path]:
        marks = pod["metadata"].get("annotations") or {}
        volume = marks.get(labels.KUSCIA_CONFIG_TEMPLATE_VOLUMES)
        mounted = [each for each in container.get("volumeMounts") or () if volume and each["name"] == volume]
        if not mounted or volume is None:
            return {}
        try:
            templates = {name: _template(name, data) for name, data in _asked_for(mounted, volumes.files(volume))}
            wanted = frozenset().union(*(each.names for each in templates.values()))
            if API_TOKEN in wanted and self._is_task_pod(pod) and not self._own_task(pod):
                raise TemplateError(f"asks for {API_TOKEN}, which nothing that another domain began is given")
            if API_TOKEN in wanted and self._settings.joined and self.is_engine(pod):
                raise TemplateError(f"asks for {API_TOKEN}, {ONLY_AT_CONTROL_PLANE}")
            known = await self._values(pod, wanted, variables, marks, lookup)
            payload = {
                name: FileContent(_filled(name, each, known).encode("utf-8", "replace"), 0o444)
                for name, each in templates.items()
            }
        except TemplateError as problem:
            raise NoSuchConfig(str(problem)) from problem
        home = volumes.directory / RENDERED / container["name"] / volume
        atomic.write(home, payload, owner=user_of(pod))
        return {(volume, inside): home / inside for each in mounted for inside in [each.get("subPath") or ""]}

    async def _values(
        self,
        pod: Object,
        wanted: Collection[str],
        variables: Mapping[str, str],
        marks: Mapping[str, str],
        lookup: Lookup,
    ) -> dict[str, str]:
        named = marks.get(labels.KUSCIA_CONFIG_TEMPLATE_VALUE_CM)
        known = values.of_variables(variables)
        if self.is_engine(pod):
            known |= self._settings.built_in(wanted)
        if named:
            obj = lookup("ConfigMap", named)
            if obj is None:
                raise ConfigProblem(f'configmap "{named}" not found')
            known |= values.of_config_map(obj, wanted)
        missing = frozenset(wanted) - known.keys()
        if missing and self.is_engine(pod):
            known |= await self._store.look_up(missing)
        return known


def _asked_for(mounted: list[Object], files: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    """The templates that the container's mounts need; one without subPath needs all."""
    inside = {each.get("subPath") or "" for each in mounted}
    for name in inside - {""}:
        if name not in files:
            raise TemplateError(f'there is no config template "{name}"; see configTemplates of the AppImage')
    return [(name, data) for name, data in files.items() if "" in inside or name in inside]


def _template(name: str, data: bytes) -> Template:
    try:
        return template.parse(data.decode())
    except UnicodeDecodeError as problem:
        raise TemplateError(f"config template {name} is not text in UTF-8") from problem
    except TemplateError as problem:
        raise TemplateError(f"config template {name}: {problem}") from problem


def _filled(name: str, parsed: Template, known: Mapping[str, str]) -> str:
    try:
        return template.render(parsed, known)
    except TemplateError as problem:
        raise TemplateError(f"config template {name}: {problem}") from problem


def required_image(pod: Object, container: Object) -> RequiredImage:
    """What the AppImage says of the image. Debuggers, which are added to a pod later, have images of their own."""
    if any(each["name"] == container["name"] for each in pod["spec"].get("ephemeralContainers") or ()):
        return ANY_IMAGE
    marks = pod["metadata"].get("annotations") or {}
    return RequiredImage(marks.get(labels.KUSCIA_IMAGE_ID) or "", marks.get(labels.COTERIE_IMAGE_SIGNATURE) or "")


# Limits.

_LIMITS = ("CONTAINER_CPU_LIMIT", "CONTAINER_MEM_LIMIT")


def limits(container: Object, facts: DownwardNodeInfo) -> dict[str, str]:
    """What the container may use, as engines size their pools by it."""
    amounts = (container.get("resources") or {}).get("limits") or {}
    cpu, memory = amounts.get("cpu"), amounts.get("memory")
    if cpu is not None:
        cores = str(-(-quantity.parse(cpu).milli_value() // 1000))
    else:
        cores = f"{quantity.parse(facts.allocatable.get('cpu') or '0').milli_value() / 1000 * _SHARE:.2f}"
    share = 1.0 if memory is not None else _SHARE
    size = quantity.parse(memory if memory is not None else facts.allocatable.get("memory") or "0").value()
    return dict(zip(_LIMITS, (cores, f"{int(size * share) // _MIB}Mi"), strict=True))
