"""Who calls: from the engine's certificate to what its pod works on.

    certificate ──engine_of──> pod, uid ──API──> is it there? ──> task, job, who began it, with what input, with whom

A certificate is good for years and says little; what counts is read from the pod and from the values that the control
plane made for it. Both are written by the domain's own control plane and nobody else.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from coterie.base.log import logger
from coterie.base.trace import TraceParent
from coterie.kube.api.errors import ApiError, Forbidden, NotFound
from coterie.kube.api.types.core import CONFIG_MAPS, ConfigMap
from coterie.kube.api.types.pods import Pod
from coterie.kube.client.client import Reader
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api import grants, labels
from coterie.kuscia.api.jobs import trace_context
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS
from coterie.kuscia.control.running_engines import NotAnEngine, running_pod
from coterie.kuscia.datamesh.errors import GrpcStatusName, MeshError, MeshErrorCode, NotPermitted
from coterie.kuscia.identity.engine_certificates import EngineIdentity

log = logger("datamesh")

_KEPT = 512
_LARGEST_INPUT = 16 << 20


@dataclass(frozen=True, slots=True)
class EngineCaller:
    """An engine that runs now, and what for."""

    domain: str
    pod: str
    uid: str
    initiator: str
    """The domain that began the job; the domain itself for pods that belong to no job."""
    task: str = ""
    job: str = ""
    flow: str = ""
    app_image: str = ""
    engine: str = ""
    """That the AppImage is a version of."""
    """The AppImage that the control plane made the pod from."""
    components: tuple[str, ...] = ()
    """All names of the component and of the AppImage, for grants."""
    parties: frozenset[str] = frozenset()
    input_config: str = ""
    tables: frozenset[str] | None = None
    """Of an actor, for a partner or for the domain itself: all that it may read, and it writes nothing. None: it is no actor."""
    beside_files: bool = True
    """It runs on the machine where the files of local sources are."""
    span: TraceParent | None = None
    """Of its pod, in the trace of the job."""

    @property
    def at_home(self) -> bool:
        """It works for the domain itself."""
        return self.initiator == self.domain

    @property
    def describe(self) -> str:
        return f"task {self.task}" if self.task else f"pod {self.pod}"


class EngineAuthenticator:
    def __init__(self, client: Reader, domain: str, node: str = "") -> None:
        """`node`: where the data mesh runs; empty: all engines are there."""
        self._client = client
        self._domain = domain
        self._node = node
        self._known: OrderedDict[str, EngineCaller] = OrderedDict()

    async def find(self, engine: EngineIdentity | None) -> EngineCaller:
        """Raises MeshProblem: unknown, not ours, or gone."""
        try:
            pod = await running_pod(self._client, engine, self._domain)
        except NotAnEngine as problem:
            if engine is not None:
                self._known.pop(engine.uid, None)
            log.warning("A call was refused", pod=engine.pod if engine is not None else "", why=str(problem))
            raise NotPermitted(MeshErrorCode.INVALID, str(problem)) from problem
        except (ApiError, TransportError) as problem:
            raise unavailable(problem) from problem
        uid = pod.metadata.uid
        known = self._known.get(uid)
        if known is None:
            known = self._known[uid] = await self._look_up(pod)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        # What runs is read anew: an agent tells the image's digest some time after the start.
        names = grants.use_names(known.app_image, digests(pod), known.components, known.engine)
        return replace(known, components=names)

    async def _look_up(self, pod: Pod) -> EngineCaller:
        marks = pod.metadata.annotations
        task, job = grants.mark(marks, labels.KUSCIA_TASK_ID), grants.mark(marks, labels.KUSCIA_JOB_ID)
        initiator = grants.mark(marks, labels.KUSCIA_INITIATOR) or ("" if task else self._domain)
        if not initiator:
            raise NotPermitted(MeshErrorCode.INVALID, f'pod "{pod.metadata.name}" does not say who began its task')
        try:
            values = await self._values(grants.mark(marks, labels.KUSCIA_CONFIG_TEMPLATE_VALUE_CM))
            flow = grants.mark(marks, labels.COTERIE_FLOW) or await self._flow(job)
        except (ApiError, TransportError) as problem:
            raise unavailable(problem) from problem
        text = _input_of(values)
        where = trace_context.trace_of(self._domain, pod.metadata.name, marks or {}, pod.metadata.labels or {})
        return EngineCaller(
            domain=self._domain,
            pod=pod.metadata.name,
            uid=pod.metadata.uid,
            initiator=initiator,
            task=task,
            job=job,
            flow=flow,
            app_image=grants.mark(marks, labels.COTERIE_APP_IMAGE),
            engine=grants.mark(marks, labels.COTERIE_ENGINE),
            components=grants.components_of(text, grants.mark(marks, labels.COTERIE_COMPONENT_FIELD)),
            parties=_parties_of(values),
            input_config=text,
            tables=_tables_of(marks),
            beside_files=self._node in ("", pod.spec.node_name),
            span=where.parent if where is not None else None,
        )

    async def _values(self, name: str) -> ConfigMap | None:
        if not name:
            return None
        try:
            return await self._client.get(CONFIG_MAPS, name, self._domain)
        except NotFound:
            return None

    async def _flow(self, job: str) -> str:
        """A lite may not read jobs; there the pod's annotation is all there is."""
        if not job:
            return ""
        try:
            return (await self._client.get(KUSCIA_JOBS, job, CROSS_DOMAIN)).spec.flow_id
        except (NotFound, Forbidden):
            return ""


def digests(pod: Pod) -> tuple[str, ...]:
    """Of the images that the pod runs; what the AppImage says of it until the agent has told. Pure."""
    running = [each.image_id for each in pod.status.container_statuses or () if each.image_id]
    found = running or [grants.mark(pod.metadata.annotations, labels.KUSCIA_IMAGE_ID)]
    return tuple(dict.fromkeys(each.rpartition("@")[2] for each in found if each))


def unavailable(problem: Exception) -> MeshError:
    return MeshError(
        MeshErrorCode.UNEXPECTED, f"the domain's API cannot be asked: {problem}", GrpcStatusName.UNAVAILABLE
    )


def _tables_of(marks: Mapping[str, str] | None) -> frozenset[str] | None:
    if marks is None or labels.COTERIE_ACTION_TABLES not in marks:
        return None
    return frozenset(filter(None, marks[labels.COTERIE_ACTION_TABLES].split(",")))


def _parties_of(values: ConfigMap | None) -> frozenset[str]:
    try:
        parsed = json.loads(((values and values.data) or {}).get("TASK_CLUSTER_DEFINE") or "{}")
        return frozenset(str(each["name"]) for each in parsed.get("parties") or ())
    except (ValueError, TypeError, KeyError, AttributeError):
        return frozenset()


def _input_of(values: ConfigMap | None) -> str:
    """Empty when it cannot be read: no grant that asks for a component or an input is then kept."""
    if values is None:
        return ""
    plain = (values.data or {}).get("TASK_INPUT_CONFIG")
    packed = (values.binary_data or {}).get("TASK_INPUT_CONFIG")
    if plain is not None or packed is None:
        return plain or ""
    annotation = grants.mark(values.metadata.annotations, labels.KUSCIA_CONFIG_VALUE_COMPRESS_FIELDS)
    try:
        data = base64.b64decode(packed, validate=True)
        if "TASK_INPUT_CONFIG" in annotation:
            opener = zlib.decompressobj()
            data = opener.decompress(data, _LARGEST_INPUT)
        return data.decode()
    except (binascii.Error, zlib.error, UnicodeDecodeError):
        return ""
