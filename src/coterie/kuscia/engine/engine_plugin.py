"""What an engine finds in its container, put together when its pod is set up and whenever a container starts.

set_up:         certificates into the pod's directory
surroundings:   variables; templates ──render──> files ──> mounts; the domain's data
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.pods.downward import ConfigProblem, NodeFacts, NoSuchConfig
from coterie.kube.agent.pods.environment import Lookup
from coterie.kube.agent.runtimes.protocol import Mount
from coterie.kube.agent.settings import EngineSettings
from coterie.kube.agent.volumes import atomic
from coterie.kube.agent.volumes.atomic import Content
from coterie.kube.agent.volumes.volumes import PodVolumes, user_of
from coterie.kube.api import quantity
from coterie.kube.api.meta import Object
from coterie.kuscia.api import labels
from coterie.kuscia.engine import certificates
from coterie.kuscia.engine.certificates import Issuer
from coterie.kuscia.engine.templates import template, values
from coterie.kuscia.engine.templates.config_store import ConfigStore
from coterie.kuscia.engine.templates.errors import TemplateProblem
from coterie.kuscia.engine.templates.template import Template

DATA_PLACE = "/home/kuscia/var/storage/data"
CERTIFICATES = "certificates"
RENDERED = "config-render"
_SHARE = 0.8
"""Of what the node has, for an engine whose container has no limit."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Surroundings:
    variables: dict[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    rendered: Mapping[tuple[str, str], Path] = field(default_factory=dict)
    """(volume, subPath) -> what is mounted in its stead."""


class EngineContract:
    def __init__(self, domain: str, settings: EngineSettings, issuer: Issuer, store: ConfigStore) -> None:
        self._domain = domain
        self._settings = settings
        self._issuer = issuer
        self._store = store

    def is_engine(self, pod: Object) -> bool:
        ours = pod_model.key_of(pod).namespace == self._domain
        return ours and (certificates.serves(pod) or certificates.calls(pod))

    async def set_up(self, pod: Object, directory: Path, facts: NodeFacts) -> None:
        """`directory` is the pod's own. Raises OSError or PkiError."""
        if self.is_engine(pod) and self._issuer.able:
            addresses = (facts.pod_ip or "127.0.0.1",)
            await self._issuer.ensure(directory / CERTIFICATES, pod, addresses, user_of(pod))

    def _own_task(self, pod: Object) -> bool:
        """Files of the domain are open to tasks that the domain began. Others' tasks ask the data mesh, which looks for
        grants."""
        marks = pod["metadata"].get("annotations") or {}
        return bool(marks.get(labels.KUSCIA_INITIATOR) == self._domain)

    async def surroundings(
        self,
        pod: Object,
        container: Object,
        variables: Mapping[str, str],
        volumes: PodVolumes,
        lookup: Lookup,
        facts: NodeFacts,
        directory: Path,
    ) -> Surroundings:
        """Raises ConfigProblem; ApiError or TransportError when the config store cannot be asked."""
        found: dict[str, str] = {}
        mounts: list[Mount] = []
        if self.is_engine(pod):
            found = {**limits(container, facts), **{k: v for k, v in variables.items() if k in _LIMITS}}
            if (directory / CERTIFICATES).is_dir():
                found |= certificates.variables(pod)
                mounts.append(Mount(directory / CERTIFICATES, certificates.PLACE, read_only=True))
            if self._settings.data is not None and self._own_task(pod):
                # Kuscia's place for it, and its own: the data mesh tells engines the latter where they may go there.
                places = dict.fromkeys((DATA_PLACE, str(self._settings.data)))
                mounts += [Mount(self._settings.data, each, optional=True) for each in places]
        rendered = await self._rendered(pod, container, {**variables, **found}, volumes, lookup)
        return Surroundings(found, tuple(mounts), rendered)

    # Rendering.

    async def _rendered(
        self, pod: Object, container: Object, variables: Mapping[str, str], volumes: PodVolumes, lookup: Lookup
    ) -> dict[tuple[str, str], Path]:
        marks = pod["metadata"].get("annotations") or {}
        volume = marks.get(labels.KUSCIA_CONFIG_TEMPLATE_VOLUMES)
        mounted = [each for each in container.get("volumeMounts") or () if volume and each["name"] == volume]
        if not mounted or volume is None:
            return {}
        try:
            templates = {name: _template(name, data) for name, data in _asked_for(mounted, volumes.files(volume))}
            wanted = frozenset().union(*(each.names for each in templates.values()))
            known = await self._values(pod, wanted, variables, marks, lookup)
            payload = {
                name: Content(_filled(name, each, known).encode("utf-8", "replace"), 0o444)
                for name, each in templates.items()
            }
        except TemplateProblem as problem:
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
            raise TemplateProblem(f'there is no config template "{name}"; see configTemplates of the AppImage')
    return [(name, data) for name, data in files.items() if "" in inside or name in inside]


def _template(name: str, data: bytes) -> Template:
    try:
        return template.parse(data.decode())
    except UnicodeDecodeError as problem:
        raise TemplateProblem(f"config template {name} is not text in UTF-8") from problem
    except TemplateProblem as problem:
        raise TemplateProblem(f"config template {name}: {problem}") from problem


def _filled(name: str, parsed: Template, known: Mapping[str, str]) -> str:
    try:
        return template.render(parsed, known)
    except TemplateProblem as problem:
        raise TemplateProblem(f"config template {name}: {problem}") from problem


# Limits.

_LIMITS = ("CONTAINER_CPU_LIMIT", "CONTAINER_MEM_LIMIT")


def limits(container: Object, facts: NodeFacts) -> dict[str, str]:
    """What the container may use, as engines size their pools by it."""
    told = (container.get("resources") or {}).get("limits") or {}
    cpu, memory = told.get("cpu"), told.get("memory")
    if cpu is not None:
        cores = str(-(-quantity.parse(cpu).milli_value() // 1000))
    else:
        cores = f"{quantity.parse(facts.allocatable.get('cpu') or '0').milli_value() / 1000 * _SHARE:.2f}"
    share = 1.0 if memory is not None else _SHARE
    size = quantity.parse(memory if memory is not None else facts.allocatable.get("memory") or "0").value()
    return dict(zip(_LIMITS, (cores, f"{int(size * share) // _MIB}Mi"), strict=True))
