"""The things done to a pod that take time: setting it up, starting and stopping containers with their hooks, removing it.

Each is a coroutine that a worker runs as a task of its own. They report by return value or by `OperationFailed`; what
that means for the pod is the worker's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coterie.base import trace
from coterie.base.trace import TraceParent
from coterie.kube.agent.devices.allocation import DevicesUnavailable
from coterie.kube.agent.images.model import (
    ANY_IMAGE,
    HOST,
    ID_MISMATCH,
    ImageError,
    ImageRefused,
    RequiredImage,
    normalise,
    without_registry,
)
from coterie.kube.agent.images.sources import secret_credentials
from coterie.kube.agent.plugin import AgentPlugin, PluginProblem
from coterie.kube.agent.pods import pod_model, security_context
from coterie.kube.agent.pods.containers import container_spec, remove_old_logs, termination_mount
from coterie.kube.agent.pods.downward import ConfigProblem, NoSuchConfig
from coterie.kube.agent.pods.environment import variables
from coterie.kube.agent.pods.hosts_files import hosts_file, resolver_file
from coterie.kube.agent.pods.limits import container_limits, pod_limits
from coterie.kube.agent.pods.worker_context import WorkerContext
from coterie.kube.agent.runtimes.protocol import (
    ContainerState,
    Mount,
    PodKind,
    PodNetworkClass,
    PodRuntime,
    PodSandbox,
    ResizingRuntime,
    RuntimeFailure,
)
from coterie.kube.agent.settings import AgentSettings
from coterie.kube.agent.volumes import directories
from coterie.kube.agent.volumes.volumes import PodVolumes
from coterie.kube.api.errors import ApiError, Conflict, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.pods import PODS
from coterie.kube.client.transport import TransportError

START_ERRORS = frozenset(("StartError", "ContainerCannotRun", "RunContainerError"))
"""Reasons of a runtime that mean: the container was made and could not be run. That counts as a run that failed."""
_NOT_PLAIN = frozenset(("ErrImageNeverPull", "InvalidImageName"))
_RUNP = "runp"
BACK_OFF = {"ErrImagePull": "ImagePullBackOff"}
"""What a reason is called from the second failure on."""


class OperationFailed(Exception):
    def __init__(self, reason: str, message: str, *, final: bool = False) -> None:
        """`final`: trying again will not help."""
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.final = final


async def set_up(tools: WorkerContext, pod: Object, volumes: PodVolumes) -> None:
    uid, key = pod_model.uid_of(pod), pod_model.key_of(pod)
    refused = security_context.refused_pod(pod, tools.runtime.handlers(), _default_handler(tools, pod))
    if refused is not None:
        raise OperationFailed(*refused, final=True)
    try:
        network = pod_network(tools.plugins, pod)
        address = tools.runtime.assign_address(uid, network)
    except PluginProblem as problem:
        raise OperationFailed("NotAdmitted", str(problem), final=True) from problem
    except RuntimeFailure as problem:
        raise OperationFailed(problem.reason, problem.message) from problem
    if security_context.sysctls_of(pod) and not address:
        why = "sysctls need a network of the pod's own, which this node cannot give"
        raise OperationFailed(security_context.SYSCTL_FORBIDDEN, why, final=True)
    await _allocate_devices(tools, pod)
    facts = tools.facts(uid)
    try:
        await volumes.make(pod, facts)
    except ConfigProblem as problem:
        raise OperationFailed("FailedMount", str(problem)) from problem
    except (OSError, ApiError, TransportError) as error:
        raise OperationFailed("FailedMount", f"volumes could not be made: {error}") from error
    # Others take a moment to know the pod by its address; it is made meanwhile.
    announcing = asyncio.create_task(_announce(tools, pod, address), name=f"announce {key}")
    try:
        await _prepare(tools, pod, network, address)
        await announcing
    finally:
        announcing.cancel()
        await asyncio.gather(announcing, return_exceptions=True)


def _default_handler(tools: WorkerContext, pod: Object) -> str:
    """Of a pod without a RuntimeClass: the node's, but host environments are programs of this machine, which only RunP runs."""
    configured = tools.settings.default_handler
    if configured == _RUNP:
        return configured
    host = {image.name for image in tools.runtime.images() if image.kind == HOST}
    try:
        images = {normalise(container.get("image") or "") for container in pod_model.all_containers(pod)}
    except ImageError:
        return configured
    return _RUNP if images and images <= host else configured


async def _allocate_devices(tools: WorkerContext, pod: Object) -> None:
    """Before anything of the pod runs: afterwards they are its own, also for the next agent."""
    state = tools.runtime.pod(pod_model.uid_of(pod))
    running = state is not None and any(container.running for container in state.containers)
    try:
        await tools.devices.allocate(pod, running=running)
    except DevicesUnavailable as problem:
        raise OperationFailed(problem.reason, problem.message, final=problem.final) from problem
    except OSError as error:
        message = f"the record of the pod's devices could not be written: {error}"
        raise OperationFailed("DevicesUnavailable", message) from error


async def _announce(tools: WorkerContext, pod: Object, address: str) -> None:
    try:
        for plugin in tools.plugins:
            await plugin.network_ready(pod, address, tools.objects.lookup(pod_model.key_of(pod).namespace))
    except PluginProblem as problem:
        raise OperationFailed("NotAdmitted", str(problem), final=True) from problem
    except (OSError, ApiError, TransportError) as error:
        raise OperationFailed("FailedCreatePodSandBox", str(error)) from error


async def _prepare(tools: WorkerContext, pod: Object, network: PodNetworkClass, address: str) -> None:
    uid, key = pod_model.uid_of(pod), pod_model.key_of(pod)
    facts = tools.facts(uid)
    try:
        for plugin in tools.plugins:
            await plugin.prepare_pod(pod, tools.directory(uid), facts)
    except ConfigProblem as problem:
        raise OperationFailed("FailedMount", str(problem)) from problem
    except (OSError, ApiError, TransportError) as error:
        raise OperationFailed("FailedMount", str(error)) from error
    except PluginProblem as problem:
        raise OperationFailed("FailedMount", str(problem)) from problem
    dns = tools.settings.dns
    try:
        host_file = dns.host_resolv_conf.read_text()
    except OSError:
        host_file = ""
    sandbox = PodSandbox(
        uid=uid,
        namespace=key.namespace,
        name=key.name,
        hostname=pod_model.hostname_of(pod),
        directory=tools.directory(uid),
        hosts=hosts_file(pod, facts.pod_ip, dns),
        resolv_conf=resolver_file(pod, dns, host_file),
        labels=dict(pod["metadata"].get("labels") or {}),
        address="" if network.host else address,
        network="host" if network.host else "pod",
        kind=network.kind,
        group=network.group,
        limits=pod_limits(pod, tools.default_limits()),
        sysctls=security_context.sysctls_of(pod),
        memory_volumes=_memory_volumes(tools, pod),
        handler=security_context.handler_of(pod, _default_handler(tools, pod)),
        privileged=security_context.any_privileged(pod),
    )
    try:
        await tools.runtime.prepare_pod(sandbox)
    except RuntimeFailure as problem:
        raise OperationFailed("FailedCreatePodSandBox", problem.message) from problem
    except OSError as error:
        raise OperationFailed("FailedCreatePodSandBox", str(error)) from error


def _memory_volumes(tools: WorkerContext, pod: Object) -> tuple[tuple[Path, int], ...]:
    """Those that are not in memory yet."""
    memory = pod_limits(pod, tools.default_limits()).memory_bytes
    found = []
    for volume in pod_model.spec_of(pod).get("volumes") or ():
        source, path = volume.get("emptyDir") or {}, tools.directory(pod_model.uid_of(pod)) / "volumes" / volume["name"]
        if directories.is_in_memory(source) and not path.is_mount():
            found.append((path, directories.memory_size(source, memory)))
    return tuple(found)


def pod_network(plugins: Sequence[AgentPlugin], pod: Object) -> PodNetworkClass:
    """The first plug-in that knows the pod says what it is; others' pods are ordinary ones."""
    host = bool(pod_model.spec_of(pod).get("hostNetwork"))
    found = next((known for plugin in plugins if (known := plugin.pod_network(pod)) is not None), PodNetworkClass())
    if host and found.kind is PodKind.GUEST:
        raise PluginProblem("a pod that another domain began cannot have the machine's network (hostNetwork)")
    return replace(found, host=host)


async def start(
    tools: WorkerContext, pod: Object, container: Object, attempt: int, volumes: PodVolumes
) -> ContainerState:
    uid, key = pod_model.uid_of(pod), pod_model.key_of(pod)
    try:
        lookup, facts, home = tools.objects.lookup(key.namespace), tools.facts(uid), tools.directory(uid)
        found: Mapping[str, str] = variables(pod, container, lookup, facts)
        replaced: dict[tuple[str, str], Path] = {}
        added: list[Mount] = []
        required = ANY_IMAGE
        parent: TraceParent | None = None
        for plugin in tools.plugins:
            more = await plugin.container_additions(pod, container, found, volumes, lookup, facts, home)
            found = {**found, **more.variables}
            replaced.update(more.replaced)
            added += more.mounts
            required = more.image if more.image != ANY_IMAGE else required
            parent = more.span or parent
        given = tools.devices.container(
            pod, container, own_root=not _is_host_image(tools.runtime, container), given=found
        )
        if not _sees_all_devices(container, tools.settings):
            found = {**found, **given.variables}
        added += given.mounts
        mounts = (
            *volumes.mounts(container, found, replaced),
            *added,
            termination_mount(home, container, attempt),
        )
        logs = tools.settings.paths.pod_stdout(key.namespace, key.name, uid)
        spec = container_spec(
            pod, container, attempt, found, mounts, logs, home, tools.settings.pods, tools.default_limits(), given.nodes
        )
    except ConfigProblem as problem:
        final = isinstance(problem, NoSuchConfig)
        raise OperationFailed("CreateContainerConfigError", str(problem), final=final) from problem
    except (OSError, ApiError, TransportError) as error:
        raise OperationFailed("CreateContainerConfigError", str(error)) from error
    await _pull(tools, pod, container, required, parent)
    spec = replace(spec, image_id=await _verified_id(tools, container, required))
    try:
        logs.joinpath(container["name"]).mkdir(parents=True, exist_ok=True)
        remove_old_logs(logs / container["name"], attempt, tools.settings.pods.kept_logs)
        return await tools.runtime.start_container(uid, spec)
    except RuntimeFailure as problem:
        raise OperationFailed(problem.reason or "CreateContainerError", problem.message) from problem
    except OSError as error:
        raise OperationFailed("CreateContainerError", str(error)) from error


async def _verified_id(tools: WorkerContext, container: Object, required: RequiredImage) -> str:
    """Of the image that will be started; empty where there is none, which the runtime reports."""
    if tools.images is None:
        if required != ANY_IMAGE:
            raise OperationFailed(
                ID_MISMATCH, "this node cannot verify the id that is required of the image", final=True
            )
        return ""
    try:
        image = await tools.images.verified(container.get("image") or "", required)
    except ImageRefused as problem:
        raise OperationFailed(problem.reason, str(problem), final=True) from problem
    except (ImageError, OSError) as error:
        raise OperationFailed("ImageInspectError", str(error)) from error
    return image.id if image is not None else ""


async def resize(tools: WorkerContext, pod: Object, containers: Sequence[str], *, final: bool) -> None:
    """Give running containers, and the pod as a whole, the limits that `pod` says. Raises RuntimeFailure."""
    runtime, defaults = tools.runtime, tools.default_limits()
    if not isinstance(runtime, ResizingRuntime):
        raise RuntimeFailure("ResizeError", f"the runtime {runtime.name} cannot change limits of running containers")
    wanted = {
        name: container_limits(pod, container, defaults)
        for name in containers
        if (container := pod_model.container_named(pod, name)) is not None
    }
    await runtime.resize_pod(pod_model.uid_of(pod), pod_limits(pod, defaults), wanted, final=final)


def _is_host_image(runtime: PodRuntime, container: Object) -> bool:
    """Whether the container sees the machine's own programs and libraries."""
    try:
        plain = normalise(container.get("image") or "").partition("@")[0]
    except ImageError:
        return False
    names = (plain, without_registry(plain))
    return any(info.kind == HOST and info.name in names for info in runtime.images())


def _sees_all_devices(container: Object, settings: AgentSettings) -> bool:
    privileged = bool((container.get("securityContext") or {}).get("privileged"))
    return privileged and settings.pods.allow_privileged


async def _pull(
    tools: WorkerContext, pod: Object, container: Object, required: RequiredImage, parent: TraceParent | None
) -> None:
    """The image, if the container's policy asks for it and the node may bring it."""
    image = container.get("image") or ""
    if tools.images is None or not tools.images.needed(image, container.get("imagePullPolicy") or "", required):
        return
    lookup = tools.objects.lookup(pod_model.key_of(pod).namespace)
    names = [secret.get("name") or "" for secret in pod["spec"].get("imagePullSecrets") or ()]
    secrets = [found for name in names if (found := lookup("Secret", name)) is not None]
    tools.record_event(pod, "Normal", "Pulling", f'Pulling image "{image}"', container["name"])
    try:
        with trace.recorded(parent, "image pull", {"container.image.name": image}):
            outcome = await tools.images.pull(image, secret_credentials(secrets))
    except ImageRefused as problem:
        raise OperationFailed(problem.reason, f'Failed to pull image "{image}": {problem}') from problem
    except ImageError as problem:
        raise OperationFailed("ErrImagePull", f'Failed to pull image "{image}": {problem}') from problem
    except OSError as error:
        raise OperationFailed("ErrImagePull", f'Failed to pull image "{image}": {error}') from error
    what = f'Successfully pulled image "{image}" in {outcome.seconds:.3g}s. Image size: {outcome.image.size} bytes.'
    tools.record_event(pod, "Normal", "Pulled", what, container["name"])


async def run_hook(tools: WorkerContext, pod: Object, container: Object, name: str, limit: float) -> str:
    """Run a lifecycle hook; returns why it failed, or nothing."""
    handler = (container.get("lifecycle") or {}).get(name)
    if not handler:
        return ""
    well, seen = await tools.checker.check(pod_model.uid_of(pod), container, handler, limit)
    return "" if well else seen or "failed"


async def stop(tools: WorkerContext, pod: Object, container: Object | None, name: str, grace: float) -> None:
    """preStop hook and SIGTERM share the grace; the container has a moment even after a hook that took all of it."""
    began = tools.clock.monotonic()
    if container is not None:
        why = await run_hook(tools, pod, container, "preStop", grace)
        if why:
            tools.record_event(pod, "Warning", "FailedPreStopHook", f"PreStopHook failed: {why}", name)
    left = grace - (tools.clock.monotonic() - began)
    await tools.runtime.stop_container(
        pod_model.uid_of(pod), name, max(left, min(grace, tools.settings.pods.min_grace))
    )


def pod_files(runtime: PodRuntime, settings: AgentSettings, uid: str) -> list[Path]:
    """What a pod has written on this node besides its logs."""
    written = [path for paths in runtime.writable_directories(uid).values() for path in paths]
    return [*written, settings.pods_directory / uid / "volumes"]


async def remove_from_api(tools: WorkerContext, pod: Object) -> None:
    """The last word on a pod that was deleted: it has ended here. Raises what a later attempt may cure."""
    key = pod_model.key_of(pod)
    try:
        await tools.client.delete(PODS, key.name, key.namespace, grace=0, uid=pod_model.uid_of(pod))
    except (NotFound, Conflict):
        return  # gone already, or another pod has the name


def start_failure_events(reason: str, message: str) -> list[tuple[str, str]]:
    """(reason, message) of the events that tell people why a container does not start."""
    if reason in BACK_OFF:
        return [("Failed", message), ("Failed", f"Error: {reason}")]
    if reason == "ImagePullBackOff":
        return [("BackOff", message), ("Failed", f"Error: {reason}")]
    if reason in _NOT_PLAIN:
        return [(reason, message), ("Failed", f"Error: {reason}")]
    return [("Failed", f"Error: {reason}: {message}")]
