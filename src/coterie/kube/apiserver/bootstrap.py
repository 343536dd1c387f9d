"""Objects that exist from the first start: namespaces, default roles, priority classes, runtime classes, the default storage
class, and the definitions of extensions.

They are written through the same verbs as everybody's, so that they are validated, owned and watched like any other.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from coterie.base.lazy_import import lazy_import
from coterie.base.log import logger
from coterie.http.messages import Request, Response, UserInfo
from coterie.kube.api import errors
from coterie.kube.api.labels import (
    COTERIE_HANDLER_PREFIX,
    DEFAULT_STORAGE_CLASS,
    LOCAL_PATH_CLASS,
    LOCAL_PATH_PROVISIONER,
    RUNTIME_HANDLERS,
)
from coterie.kube.apiserver.auth import default_roles
from coterie.kube.apiserver.auth.authentication_info import INFO_NAME, INFO_NAMESPACE, AuthenticationInfo
from coterie.kube.apiserver.extension import ApiServerExtension, DefinitionSource

if TYPE_CHECKING:
    from coterie.kube.api.rules import flowcontrol
else:
    flowcontrol = lazy_import("coterie.kube.api.rules.flowcontrol")

log = logger("apiserver.bootstrap")

Object = dict[str, Any]
Send = Callable[[Request], Coroutine[Any, Any, Response]]

LOOPBACK = UserInfo("system:apiserver", ("system:masters",))
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
INGRESS_CLASS, INGRESS_CONTROLLER = "coterie", "coterie.io/ingress"
_PRIORITIES = (("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000))
_LOCAL_PATH = {
    "metadata": {"name": LOCAL_PATH_CLASS, "annotations": {DEFAULT_STORAGE_CLASS: "true"}},
    "provisioner": LOCAL_PATH_PROVISIONER,
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "WaitForFirstConsumer",
    "allowVolumeExpansion": False,
}
_RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
_OVERHEAD = {"gvisor": {"memory": "48Mi"}}
"""Of one pod, as measured: the kernel that gVisor runs for each. That of Kata was not measured."""
_ATTEMPTS = 10
OWN_SERVICE = "kubernetes"
"""In the namespace `default`: this API server."""
_FLOW_CONTROL = "/apis/flowcontrol.apiserver.k8s.io/v1"
_AGENT = {"user-agent": "coterie-bootstrap/1", "content-type": "application/json"}


async def ensure(send: Send, extensions: Sequence[ApiServerExtension] = ()) -> None:
    """Make sure that the first objects exist and are up to date. Servers of one store may start together: who finds an object
    changed between his look and his write looks again."""
    for attempt in range(_ATTEMPTS):
        try:
            return await _ensure(send, extensions)
        except errors.Conflict:
            if attempt == _ATTEMPTS - 1:
                raise


async def _ensure(send: Send, extensions: Sequence[ApiServerExtension]) -> None:
    for name in NAMESPACES:
        await create(send, "/api/v1/namespaces", {"metadata": {"name": name}})
    for name, value in _PRIORITIES:
        body = {"metadata": {"name": name}, "value": value, "description": "Reserved for parts of the system."}
        await create(send, "/apis/scheduling.k8s.io/v1/priorityclasses", body)
    ingress_class = {"metadata": {"name": INGRESS_CLASS}, "spec": {"controller": INGRESS_CONTROLLER}}
    await create(send, "/apis/networking.k8s.io/v1/ingressclasses", ingress_class)
    await create(send, "/apis/storage.k8s.io/v1/storageclasses", _LOCAL_PATH)
    await _ensure_runtime_classes(send)
    await _ensure_flow_control(send)
    exact = frozenset(role for extension in extensions for role in extension.roles.exact)
    for default in default_roles.default_objects([extension.roles for extension in extensions]):
        await _reconcile_role(send, default, exact)
    for extension in extensions:
        for name in extension.namespaces:
            await create(send, "/api/v1/namespaces", {"metadata": {"name": name}})
        if extension.definitions is not None:
            await _ensure_definitions(send, extension.definitions)


async def _ensure_runtime_classes(send: Send) -> None:
    """One for each handler there may be; pods of it go to nodes that have it. One question tells whether they are there."""
    if await _get(send, f"{_RUNTIME_CLASSES}/{RUNTIME_HANDLERS[-1]}") is not None:
        return
    for name in RUNTIME_HANDLERS:
        await create(send, _RUNTIME_CLASSES, runtime_class(name))


def runtime_class(name: str) -> Object:
    made: Object = {
        "metadata": {"name": name},
        "handler": name,
        "scheduling": {"nodeSelector": {f"{COTERIE_HANDLER_PREFIX}{name}": "true"}},
    }
    if name in _OVERHEAD:
        made["overhead"] = {"podFixed": _OVERHEAD[name]}
    return made


async def _ensure_flow_control(send: Send) -> None:
    """The objects that Kubernetes begins with. One question tells whether they are there, and nothing is loaded then."""
    if await _get(send, f"{_FLOW_CONTROL}/flowschemas/global-default") is not None:
        return
    levels = {**flowcontrol.MANDATORY_LEVELS, **flowcontrol.SUGGESTED_LEVELS}
    for name, spec in levels.items():
        body = {"metadata": _flow_metadata(name), "spec": spec}
        await create(send, f"{_FLOW_CONTROL}/prioritylevelconfigurations", body)
    schemas = {**flowcontrol.MANDATORY_SCHEMAS, **flowcontrol.SUGGESTED_SCHEMAS}
    for name, spec in sorted(schemas.items(), key=lambda item: item[0] == "global-default"):
        body = {"metadata": _flow_metadata(name), "spec": spec}
        await create(send, f"{_FLOW_CONTROL}/flowschemas", body)


def _flow_metadata(name: str) -> Object:
    return {"name": name, "annotations": {"apf.kubernetes.io/autoupdate-spec": "true"}}


async def ensure_authentication_info(send: Send, info: AuthenticationInfo) -> None:
    """Write the ConfigMap by which aggregated API servers know the authorities of this one."""
    path = f"/api/v1/namespaces/{INFO_NAMESPACE}/configmaps"
    existing = await _get(send, f"{path}/{INFO_NAME}")
    wanted = info.config_map(existing)
    if existing is None:
        await create(send, path, wanted)
    elif wanted != existing:
        await _call(send, "PUT", f"{path}/{INFO_NAME}", wanted)


@dataclass(frozen=True, slots=True, order=True)
class ServerEndpoint:
    """Where an API server is reached."""

    address: str
    port: int

    @classmethod
    def parse(cls, text: str) -> ServerEndpoint | None:
        """None where it is no address and port."""
        host, _, port = text.rpartition(":")
        try:
            return cls(str(ipaddress.ip_address(host.strip("[]"))), int(port))
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def own_endpoints(servers: Sequence[ServerEndpoint]) -> tuple[Object, list[Object]]:
    """Endpoints and EndpointSlices of `default/kubernetes`. Pure. A slice has one list of ports and one family of addresses: the usual
    case is one, of the Service's own name."""
    metadata = {"name": OWN_SERVICE, "namespace": "default"}
    by_port: dict[int, list[str]] = {}
    by_slice: dict[tuple[int, str], list[str]] = {}
    for each in sorted(servers):
        by_port.setdefault(each.port, []).append(each.address)
        by_slice.setdefault((each.port, "IPv6" if ":" in each.address else "IPv4"), []).append(each.address)
    endpoints = {
        "metadata": {**metadata, "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [
            {
                "addresses": [{"ip": each} for each in addresses],
                "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
            }
            for port, addresses in sorted(by_port.items())
        ],
    }
    slices = [
        {
            "metadata": {
                "name": OWN_SERVICE if number == 0 else f"{OWN_SERVICE}-{port}-{family.lower()}",
                "namespace": "default",
                "labels": {"kubernetes.io/service-name": OWN_SERVICE},
            },
            "addressType": family,
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
            "endpoints": [{"addresses": [each], "conditions": {"ready": True}} for each in addresses],
        }
        for number, ((port, family), addresses) in enumerate(sorted(by_slice.items()))
    ]
    return endpoints, slices


async def ensure_own_service(send: Send, cluster_ip: str, servers: Sequence[ServerEndpoint]) -> None:
    """The Service `default/kubernetes` with its endpoints: where this API is reached."""
    metadata = {"name": OWN_SERVICE, "namespace": "default"}
    ports = [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": min(servers).port}]
    labels = {"component": "apiserver", "provider": "kubernetes"}
    service: Object = {"metadata": {**metadata, "labels": labels}, "spec": {"clusterIP": cluster_ip, "ports": ports}}
    path = "/api/v1/namespaces/default/services"
    existing = await _get(send, f"{path}/{OWN_SERVICE}")
    if existing is not None:
        await _update(send, f"{path}/{OWN_SERVICE}", existing, {"spec": {**existing["spec"], "ports": ports}})
    else:
        try:
            await create(send, path, service)
        except errors.Invalid as problem:
            # Somebody has had that address since before this Service existed.
            log.warning("The first address of the Services is taken", error=problem)
            await create(send, path, {**service, "spec": {"ports": ports}})
    endpoints, slices = own_endpoints(servers)
    await put(send, "/api/v1/namespaces/default/endpoints", endpoints)
    collection = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    for each in slices:
        await put(send, collection, each)
    wanted = {each["metadata"]["name"] for each in slices}
    found = await _call(send, "GET", collection)
    for each in found.get("items") or ():
        name = each["metadata"]["name"]
        if name.startswith(f"{OWN_SERVICE}-") and name not in wanted and _is_own(each):
            await delete(send, f"{collection}/{name}")


def _is_own(endpoint_slice: Object) -> bool:
    return bool((endpoint_slice["metadata"].get("labels") or {}).get("kubernetes.io/service-name") == OWN_SERVICE)


async def put(send: Send, collection: str, wanted: Object) -> None:
    """Create an object, or replace all but its metadata."""
    path = f"{collection}/{wanted['metadata']['name']}"
    existing = await _get(send, path)
    if existing is None:
        await create(send, collection, wanted)
    else:
        await _update(send, path, existing, {key: value for key, value in wanted.items() if key != "metadata"})


async def _update(send: Send, path: str, existing: Object, parts: Object) -> None:
    wanted = {**existing, **parts}
    if wanted != existing:
        await _call(send, "PUT", path, wanted)


async def complete_services(send: Send, services: Sequence[Object]) -> None:
    """Services that were written before addresses were given out get theirs, by an update that changes nothing else."""
    for service in services:
        spec, metadata = service.get("spec") or {}, service["metadata"]
        if spec.get("clusterIP") or spec.get("type") == "ExternalName":
            continue
        path = f"/api/v1/namespaces/{metadata['namespace']}/services/{metadata['name']}"
        try:
            await _call(send, "PUT", path, service)
        except errors.ApiError as problem:
            log.warning("A Service of an earlier version has no address", service=path, error=problem)


async def _reconcile_role(send: Send, default: Object, exact: frozenset[str]) -> None:
    namespace = default["metadata"].get("namespace")
    where = f"namespaces/{namespace}/" if namespace else ""
    collection = f"/apis/rbac.authorization.k8s.io/v1/{where}{default['kind'].lower()}s"
    path = f"{collection}/{default['metadata']['name']}"
    existing = await _get(send, path)
    wanted = default_roles.reconcile(existing, default, exact)
    if wanted is None:
        return
    if existing is None:
        await create(send, collection, wanted)
    else:
        await _call(send, "PUT", path, wanted)


async def _ensure_definitions(send: Send, source: DefinitionSource) -> None:
    collection = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    stale: dict[str, Object | None] = {}
    for name, digest in source.hashes().items():
        existing = await _get(send, f"{collection}/{name}")
        annotations = (existing or {}).get("metadata", {}).get("annotations") or {}
        if annotations.get(source.hash_annotation) != digest:
            stale[name] = existing
    for definition in source.load(stale) if stale else ():
        existing = stale[definition["metadata"]["name"]]
        if existing is None:
            await create(send, collection, definition)
            continue
        metadata = {**existing["metadata"], "annotations": {**(existing["metadata"].get("annotations") or {}), **definition["metadata"]["annotations"]}}  # fmt: skip
        await _call(send, "PUT", f"{collection}/{existing['metadata']['name']}", {**definition, "metadata": metadata})


async def _get(send: Send, path: str) -> Object | None:
    try:
        return await _call(send, "GET", path)
    except errors.NotFound:
        return None


async def create(send: Send, path: str, obj: Object) -> None:
    """Create an object unless it exists. At most starts all of them do, and the rules of their kinds are not needed."""
    if await _get(send, f"{path}/{obj['metadata']['name']}") is not None:
        return
    try:
        await _call(send, "POST", path, obj)
    except errors.AlreadyExists:
        return


async def update(send: Send, path: str, obj: Object) -> None:
    """Replace an object, of the version that it names."""
    await _call(send, "PUT", path, obj)


async def delete(send: Send, path: str) -> None:
    """Delete an object if it exists."""
    try:
        await _call(send, "DELETE", path)
    except errors.NotFound:
        return


async def patch_status(send: Send, path: str, patch: Object) -> None:
    """Merge into the status of an object if it exists."""
    try:
        await _call(send, "PATCH", f"{path}/status", patch, "application/merge-patch+json")
    except errors.NotFound:
        return


async def _call(
    send: Send, method: str, path: str, body: Object | None = None, media_type: str = "application/json"
) -> Object:
    data = orjson.dumps(body) if body is not None else b""
    headers = {**_AGENT, "content-type": media_type}
    response = await send(Request(method, path, headers=headers, body=data, user=LOOPBACK))
    answer: Object = orjson.loads(response.body)
    if response.status >= 400:
        raise errors.from_status(answer, response.status)
    return answer
