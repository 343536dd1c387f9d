"""A control plane with domains for tests: the API server in memory with Kuscia's definitions, the four controllers, and
gateways made of a few lines that shake hands through the fields of objects, as real ones do over the network.

Time is virtual.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache, partial
from random import Random
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa
from workload_world import ADMIN, Faulty, Make, World

from coterie.base import pki
from coterie.base.clock import VirtualClock, rfc3339
from coterie.http.messages import UserInfo
from coterie.kube.api.errors import ApiError, Conflict
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.controllers.gc.controller import GarbageCollector
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES, DOMAIN_ROUTES, DOMAINS, GATEWAYS, INTEROP_CONFIGS
from coterie.kuscia.controllers.clusterdomainroute import controller as clusterdomainroute
from coterie.kuscia.controllers.domain import controller as domain
from coterie.kuscia.controllers.domainroute import controller as domainroute
from coterie.kuscia.controllers.gateway import controller as gateway
from coterie.kuscia.extensions.apiserver import KUSCIA

DOMAIN = DOMAINS.as_dynamic
CDR = CLUSTER_DOMAIN_ROUTES.as_dynamic
DR = DOMAIN_ROUTES.as_dynamic
GATEWAY = GATEWAYS.as_dynamic
INTEROP = INTEROP_CONFIGS.as_dynamic
NAMESPACE = Kind.dynamic(builtin("namespaces"))
RBAC = "rbac.authorization.k8s.io"
ROLE = Kind.dynamic(builtin("roles", RBAC))
ROLE_BINDING = Kind.dynamic(builtin("rolebindings", RBAC))
CLUSTER_ROLE_BINDING = Kind.dynamic(builtin("clusterrolebindings", RBAC))
ACCOUNT = Kind.dynamic(builtin("serviceaccounts"))
CONFIG_MAP = Kind.dynamic(builtin("configmaps"))

PLANE = "hq"
DOMAIN_PLANE: tuple[tuple[str, Make] | Make, ...] = (
    ("domain-controller", partial(domain.make, control_plane=PLANE)),
    ("cluster-domain-route-controller", partial(clusterdomainroute.make, control_plane=PLANE)),
    ("domain-route-controller", domainroute.make),
    gateway.make,
)
WITH_COLLECTOR = (*DOMAIN_PLANE, lambda client, informers, clock: GarbageCollector(client, clock=clock))


@cache
def key_pair(name: str) -> tuple[rsa.RSAPrivateKey, str]:
    """A key (small, so that tests are fast) and its certificate as `Domain.spec.cert` holds it."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    made = pki.self_signed_ca(name.partition("#")[0], key, now=VirtualClock().now())
    return key, base64.b64encode(pki.certificate_pem(made.certificate)).decode()


def cert(name: str) -> str:
    """`alice#2` is another key of alice."""
    return key_pair(name)[1]


def a_domain(name: str, **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": {"cert": cert(name), **spec}}


def a_route(source: str, destination: str, **spec: Any) -> Object:
    port = {"name": "http", "protocol": "HTTP", "port": 1080}
    body = {
        "source": source,
        "destination": destination,
        "authenticationType": "Token",
        "endpoint": {"host": f"{destination}.example.com", "ports": [port]},
        "tokenConfig": {"tokenGenMethod": "RSA-GEN", "rollingUpdatePeriod": 600},
        **spec,
    }
    return {
        "metadata": {"name": f"{source}-{destination}"},
        "spec": {key: value for key, value in body.items() if value},
    }


class Mesh(World):
    """`gateways` act once in each step of time."""

    def __init__(self, server: ApiServer, *parts: Any) -> None:
        super().__init__(*parts)
        self.server = server
        self.gateways: dict[tuple[str, str], dict[str, Any]] = {}
        """(namespace, name) -> how it behaves: `skew` of its clock in seconds, `healthy` route ports, `deaf`."""
        self.handshakes = True
        self._beaten: dict[tuple[str, str], float] = {}
        self._probed = -100.0

    def add_gateway(self, namespace: str, name: str, **behaviour: Any) -> None:
        self.gateways[namespace, name] = behaviour

    async def kubelet(self) -> None:
        """What happens in each step, by the name that World calls."""
        for (namespace, name), behaviour in self.gateways.items():
            try:
                await self._heartbeat_once(namespace, name, behaviour)
                if not behaviour.get("deaf"):
                    await self._load(namespace, name)
                    await self._shake(namespace, name)
            except ApiError:
                continue  # somebody else was faster; the next step sees it
        if self.clock.monotonic() - self._probed >= 15:
            self._probed = self.clock.monotonic()
            await self._probe()

    async def _heartbeat_once(self, namespace: str, name: str, behaviour: dict[str, Any]) -> None:
        now = self.clock.monotonic()
        if now - self._beaten.get((namespace, name), -100.0) < 15:
            return
        told = rfc3339(self.clock.now() + timedelta(seconds=behaviour.get("skew", 0)))
        network = [
            {"name": port, "type": "DomainRoute", "totalEndpointsCount": 1, "healthyEndpointsCount": int(healthy)}
            for port, healthy in behaviour.get("healthy", {}).items()
        ]
        status = {
            "address": "127.0.0.1", "uptime": told, "heartbeatTime": told, "publicKey": "", "version": "1",
            "networkStatus": network,
        }  # fmt: skip
        if not await self.exists(GATEWAY, name, namespace):
            await self.client.create(GATEWAY, {"metadata": {"name": name, "namespace": namespace}})
        await self.client.patch_status(GATEWAY, name, namespace, {"status": status})
        self._beaten[namespace, name] = now

    async def _load(self, namespace: str, name: str) -> None:
        """A gateway of a destination confirms the newest token."""
        for route in await self.list(DR, namespace):
            tokens = self.tokens(route)
            if route["spec"]["destination"] != namespace or not tokens:
                continue
            loaded = tokens[-1].get("effectiveInstances") or []
            if name not in loaded:
                tokens[-1]["effectiveInstances"] = [*loaded, name]
                await self._write(route, {"tokenStatus": {"tokens": tokens}})

    async def _shake(self, namespace: str, name: str) -> None:
        for route in await self.list(DR, namespace):
            status = (route.get("status") or {}).get("tokenStatus") or {}
            current = status.get("revisionToken")
            mine = route["spec"]["source"] == namespace and status.get("revisionInitializer") == name
            if not self.handshakes or not mine or current is None or current.get("token"):
                continue
            there = next((r for r in await self.list(DR, route["spec"]["destination"]) if r["metadata"]["name"] == route["metadata"]["name"]), None)  # fmt: skip
            if there is None:
                continue
            await self._negotiate(route, there)

    async def _negotiate(self, route: Object, there: Object) -> None:
        """One step of a handshake whose two halves meet in the objects of one control plane."""
        now = self.clock.now()
        period = route["spec"]["tokenConfig"].get("rollingUpdatePeriod", 0)
        held = ((there.get("status") or {}).get("tokenStatus") or {}).get("revisionToken") or {}
        asked = route["metadata"].get("annotations", {}).get("asked")
        if asked != str(held.get("revision", 0)):
            revision = held.get("revision", 0) + 1
            token = {
                "isReady": False, "token": f"enc-{revision}", "revision": revision, "revisionTime": rfc3339(now),
                "expirationTime": rfc3339(now + timedelta(seconds=2 * period or 10**9)),
            }  # fmt: skip
            await self._write(there, {"tokenStatus": {"revisionToken": {**dict.fromkeys(held), **token}}})
            await self.client.patch(DR, route["metadata"]["name"], route["metadata"]["namespace"], {"metadata": {"annotations": {"asked": str(revision)}}})  # fmt: skip
        elif held.get("isReady"):
            done = {key: held[key] for key in ("token", "revision", "revisionTime", "expirationTime", "isReady")}
            await self._write(
                route, {"isDestinationAuthorized": True, "tokenStatus": {"revisionToken": done}}
            )  # fmt: skip
            await self.client.patch(DR, route["metadata"]["name"], route["metadata"]["namespace"], {"metadata": {"annotations": {"asked": None}}})  # fmt: skip

    async def _probe(self) -> None:
        """Sources say hello; destinations note which token they said it with."""
        for route in (await self.client.list(DR)).items:
            spec, status = route["spec"], (route.get("status") or {}).get("tokenStatus") or {}
            who = (spec["source"], status.get("revisionInitializer", ""))
            if route["metadata"]["namespace"] != spec["source"] or who not in self.gateways or not status.get("tokens"):
                continue
            used = status["tokens"][-1]["revision"]
            for there in await self.list(DR, spec["destination"]):
                tokens = self.tokens(there)
                for token in tokens:
                    if there["metadata"]["name"] == route["metadata"]["name"] and token["revision"] == used:
                        token["heartBeatTime"] = rfc3339(self.clock.now())
                        await self._write(there, {"tokenStatus": {"tokens": tokens}})

    async def _write(self, route: Object, status: Object) -> None:
        meta = route["metadata"]
        required = {"isDestinationAuthorized": False, "isDestinationUnreachable": False}
        patch = {
            "metadata": {"resourceVersion": meta["resourceVersion"]},
            "status": {**({} if route.get("status") else required), **status},
        }
        try:
            await self.client.patch_status(DR, meta["name"], meta["namespace"], patch)
        except Conflict:
            return

    def as_account(self, domain: str) -> Client:
        """The API as a domain's own service account has it."""
        user = f"system:serviceaccount:{domain}:{domain}"
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{domain}", "system:authenticated")
        return Client(InProcessTransport(self.server.handle, UserInfo(user, groups)), clock=self.clock)

    # Reading.

    @staticmethod
    def tokens(route: Object) -> list[Object]:
        return list(((route.get("status") or {}).get("tokenStatus") or {}).get("tokens") or ())

    async def ready(self, name: str) -> tuple[str, str]:
        """Status and reason."""
        if not await self.exists(CDR, name, ""):
            return ("", "")
        found = (await self.get(CDR, name, "")).get("status", {}).get("conditions") or []
        return next(((c["status"], c["reason"]) for c in found if c["type"] == "Ready"), ("", ""))

    async def until_ready(self, name: str, reason: str = "Success", seconds: float = 30.0) -> None:
        async def question() -> bool:
            return (await self.ready(name))[1] == reason

        await self.until(question, seconds)

    async def picture(self) -> list[Any]:
        routes = (await self.client.list(CDR)).items
        return [(r["metadata"]["name"], r.get("status", {}).get("conditions")) for r in routes]


@asynccontextmanager
async def mesh(makes: Sequence[tuple[str, Make] | Make] = DOMAIN_PLANE) -> AsyncIterator[Mesh]:
    clock = VirtualClock()
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(extensions=[KUSCIA]), clock)
    await server.start()
    transport = InProcessTransport(server.handle, ADMIN)
    made = Mesh(server, Client(transport, clock=clock), clock, Faulty(transport, Random(1)), makes)
    try:
        await made.start()
        yield made
    finally:
        await made.stop()
        await transport.close()
        await server.stop()
        await store.close()
