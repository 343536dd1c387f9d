"""The objects of the HTTP gateway: a Deployment with an autoscaler, a Service whose address stays, a Secret with the token of links.

They exist while there is an action. The last action is removed after them: so nothing is left behind, whenever the process is killed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.functions.gateway.links import GatewayAddress
from coterie.functions.settings import FunctionsSettings
from coterie.kube.api.errors import AlreadyExists, ApiError, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.apps import DEPLOYMENTS
from coterie.kube.api.types.autoscaling import HORIZONTAL_POD_AUTOSCALERS
from coterie.kube.api.types.core import SECRETS
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.network import SERVICES
from coterie.kube.api.types.pods import Pod
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError
from coterie.kuscia.api.functions.types import DEFAULT_IMAGE, GATEWAY_NAME, GATEWAY_PORT, LINK_PORT

log = logger("functions.gateway")

GATEWAY_LABELS = {"app.kubernetes.io/name": GATEWAY_NAME}
GATEWAY_SELECTOR = f"app.kubernetes.io/name={GATEWAY_NAME}"
TOKEN_KEY = "token"
INVOKE_TOKEN_KEY = "invoke-token"
"""With it actions are called by name. Not that of links: whoever may call is no functions process."""
_CPU_PERCENT = 60
_USER = 65532
_LOOK_SECONDS = 15.0
_GRACE_SECONDS = 100
"""For answers that clients of a gateway that ends still wait for."""


@dataclass(frozen=True, slots=True)
class GatewayObject:
    kind: Kind[Object]
    body: Object


def gateway_objects(settings: FunctionsSettings, token: str, invoke_token: str = "") -> Sequence[GatewayObject]:
    meta = {"name": GATEWAY_NAME, "namespace": settings.domain, "labels": dict(GATEWAY_LABELS)}
    deployment: Object = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta,
        "spec": {
            "selector": {"matchLabels": dict(GATEWAY_LABELS)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"metadata": {"labels": dict(GATEWAY_LABELS)}, "spec": _pod_spec(settings)},
        },
    }
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": GATEWAY_NAME}
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": _CPU_PERCENT}}
    autoscaler: Object = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": meta,
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": settings.min_gateways,
            "maxReplicas": settings.max_gateways,
            "metrics": [{"type": "Resource", "resource": cpu}],
        },
    }
    service: Object = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta,
        "spec": {
            "selector": dict(GATEWAY_LABELS),
            "ports": [{"name": "http", "port": GATEWAY_PORT, "targetPort": GATEWAY_PORT, "protocol": "TCP"}],
        },
    }
    secret: Object = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": meta,
        "data": {
            TOKEN_KEY: base64.b64encode(token.encode()).decode(),
            INVOKE_TOKEN_KEY: base64.b64encode(invoke_token.encode()).decode(),
        },
    }
    return (
        GatewayObject(SECRETS.as_dynamic, secret),
        GatewayObject(SERVICES.as_dynamic, service),
        GatewayObject(DEPLOYMENTS.as_dynamic, deployment),
        GatewayObject(HORIZONTAL_POD_AUTOSCALERS.as_dynamic, autoscaler),
    )


def _pod_spec(settings: FunctionsSettings) -> Object:
    link, invoke = ({"name": GATEWAY_NAME, "key": each} for each in (TOKEN_KEY, INVOKE_TOKEN_KEY))
    probe = {"httpGet": {"path": "/coterie/healthz", "port": GATEWAY_PORT}, "periodSeconds": 5, "timeoutSeconds": 5}
    container: Object = {
        "name": "gateway",
        "image": settings.image or DEFAULT_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "coterie.functions.gateway"],
        "env": [
            {"name": "COTERIE_LINK_TOKEN", "valueFrom": {"secretKeyRef": link}},
            {"name": "COTERIE_INVOKE_TOKEN", "valueFrom": {"secretKeyRef": invoke}},
            {"name": "COTERIE_GATEWAY_OWN_NETWORK", "value": "1" if settings.own_network else "0"},
            {"name": "COTERIE_GATEWAY_MAX_BODY", "value": str(settings.max_body)},
        ],
        "ports": [
            {"name": "http", "containerPort": GATEWAY_PORT},
            {"name": "link", "containerPort": LINK_PORT},
        ],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "512Mi"}},
        "startupProbe": {**probe, "periodSeconds": 1, "failureThreshold": 60},
        "readinessProbe": {**probe, "httpGet": {"path": "/readyz", "port": GATEWAY_PORT}, "periodSeconds": 1},
        "livenessProbe": {**probe, "failureThreshold": 6},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "containers": [container],
    }


def gateway_addresses(pods: Iterable[Pod], token: str) -> list[GatewayAddress]:
    """Of gateways that run; those that end still have clients that wait."""
    return [
        GatewayAddress(each.metadata.uid, each.status.pod_ip, LINK_PORT, token)
        for each in pods
        if each.status.pod_ip and not each.ended
    ]


class GatewayDeployment:
    """A Runnable: makes and removes them, and makes again what somebody deleted."""

    name = "gateway-objects"

    def __init__(self, client: Client, settings: FunctionsSettings, changed: Callable[[], None], clock: Clock) -> None:
        """`changed`: the token is another one."""
        self.ready = asyncio.Event()
        self._clock = clock
        self._client = client
        self._changed = changed
        self._settings = settings
        self._lock = asyncio.Lock()
        self.token = ""
        """Of links; empty while there are no gateways."""

    async def run(self) -> None:
        self.ready.set()
        while True:
            await self._clock.sleep(_LOOK_SECONDS)
            try:
                await self.restore()
            except (ApiError, TransportError) as problem:
                log.warning("The objects of the gateway cannot be looked at", error=problem)

    async def restore(self) -> None:
        """While there are gateways. Calls come through them, so nothing else would notice that they are gone."""
        async with self._lock:
            if not self.token:
                return
            for each in gateway_objects(self._settings, self.token, secrets.token_urlsafe(32)):
                try:
                    await self._client.get(each.kind, GATEWAY_NAME, self._settings.domain)
                except NotFound:
                    with contextlib.suppress(AlreadyExists):
                        await self._client.create(each.kind, each.body)
                        log.warning("Gateway object was gone and is made again", kind=each.kind.resource.kind)

    async def ensure(self) -> None:
        async with self._lock:
            if self.token:
                return
            token = await self._ensure_token()
            for each in gateway_objects(self._settings, token):
                if each.kind.resource.kind == "Secret":
                    continue
                try:
                    await self._client.create(each.kind, each.body)
                    log.info("Gateway object created", kind=each.kind.resource.kind)
                except AlreadyExists:
                    # Settings may have changed. Replicas are the autoscaler's, the address is the Service's own.
                    await self._client.apply(each.kind, each.body, force=True)
            self.token = token
            self._changed()

    async def _ensure_token(self) -> str:
        space = self._settings.domain
        made = gateway_objects(self._settings, secrets.token_urlsafe(32), secrets.token_urlsafe(32))[0]
        with contextlib.suppress(AlreadyExists):
            await self._client.create(made.kind, made.body)
        found = await self._client.get(made.kind, GATEWAY_NAME, space)
        if INVOKE_TOKEN_KEY not in found["data"]:  # of an older version
            added = {"data": {INVOKE_TOKEN_KEY: made.body["data"][INVOKE_TOKEN_KEY]}}
            found = await self._client.patch(made.kind, GATEWAY_NAME, space, added)
        return base64.b64decode(found["data"][TOKEN_KEY]).decode()

    async def remove(self) -> None:
        async with self._lock:
            self.token = ""
            for each in reversed(gateway_objects(self._settings, "")):
                try:
                    await self._client.delete(each.kind, GATEWAY_NAME, self._settings.domain, propagation="Background")
                except NotFound:
                    continue
