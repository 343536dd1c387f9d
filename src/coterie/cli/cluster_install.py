"""Puts what a control plane needs into a cluster and takes it out again, so that nothing is left and nothing hangs."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Sequence

import orjson

from coterie.cli.app import CliError
from coterie.cli.progress import working
from coterie.cli.session import CliSession
from coterie.kube.api.errors import ApiError, Conflict, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.resources import Resource
from coterie.kube.api.types.core import CONFIG_MAPS, NAMESPACES
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.discovery import UnknownResource
from coterie.kuscia.api.definitions import crds
from coterie.kuscia.api.labels import KUSCIA_DOMAIN_NAME
from coterie.kuscia.api.types.job import CROSS_DOMAIN
from coterie.node.kubernetes_access import OWNER

FIELD_MANAGER = "coterie-install"
OLDEST = (1, 30)
"""ValidatingAdmissionPolicies are stable since then."""
_FINALIZERS = ("coterie.io/",)
_FIRST = ("kusciajobs", "kusciadeployments", "kusciatasks", "taskresourcegroups", "taskresources", "domaindatagrants")
"""What holds pods, services or copies elsewhere; their controllers clean up before anything else goes."""
_PAUSE = 0.5
_DEFINITIONS = "apiextensions.k8s.io/v1"
_ESTABLISHED_SECONDS = 60.0
_GONE_SECONDS = 60.0
"""For the server itself, whatever controllers may take."""


async def apply(session: CliSession, wanted: Sequence[Object]) -> int:
    await _check_version(session)
    for each in wanted:
        resource = await _resource(session, each)
        meta = each["metadata"]
        kind: Kind[Object] = Kind.dynamic(resource)
        await session.client.apply(
            kind, each, meta.get("namespace", ""), force=True, field_manager=FIELD_MANAGER
        )  # fmt: skip
        session.app.say(f"{_shown(each)} applied")
    await _until_established(session, wanted)
    session.app.say("The cluster is ready for `coterie start` with apiServer.kubeconfig.")
    return 0


async def delete(session: CliSession, wanted: Sequence[Object], *, domains: bool, seconds: float) -> int:
    """Objects first, then what lets controllers work, then the kinds."""
    await _remove_objects(session, seconds)
    await _remove_bindings(session)
    with contextlib.suppress(NotFound):
        await session.client.delete(CONFIG_MAPS.as_dynamic, OWNER, CROSS_DOMAIN)
    spaces = [each["metadata"]["name"] for each in await _list(session, NAMESPACES.resource, KUSCIA_DOMAIN_NAME)]
    kept = {each["metadata"]["name"] for each in wanted if each["kind"] == "Namespace"} - set(spaces)
    for each in reversed(wanted):
        if each["kind"] == "Namespace" and each["metadata"]["name"] not in kept:
            continue  # of a domain: below
        await _remove(session, await _resource(session, each), each)
    gone = [
        each
        for each in wanted
        if each["kind"] in ("CustomResourceDefinition", "Namespace") and each["metadata"]["name"] not in spaces
    ]
    if domains:
        of_domains: list[Object] = [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in spaces
        ]
        for each in of_domains:
            await _remove(session, NAMESPACES.resource, each)
        gone += of_domains
    elif spaces:
        session.app.say(f"Namespaces of domains stay: {', '.join(sorted(spaces))} (--domains removes them)")
    return await _until_gone(session, gone, max(seconds, _GONE_SECONDS))


async def _until_gone(session: CliSession, things: Sequence[Object], seconds: float) -> int:
    """The server empties namespaces and removes kinds in its own time; whoever installs again at once would meet them."""
    left = list(things)

    async def none_left() -> bool:
        for each in list(left):
            try:
                await session.client.get(Kind.dynamic(await _resource(session, each)), each["metadata"]["name"])
            except NotFound:
                left.remove(each)
        return not left

    if await _within(session, "the cluster", "removing namespaces and kinds", seconds, none_left):
        return 0
    session.app.warn(f"Still being deleted after {seconds:.0f} s: {', '.join(_shown(each) for each in left)}")
    return 1


async def _check_version(session: CliSession) -> None:
    found = orjson.loads((await session.client.raw("GET", "/version")).body)
    number = re.match(r"v(\d+)\.(\d+)", str(found.get("gitVersion", "")))
    if number is not None and (int(number[1]), int(number[2])) < OLDEST:
        raise CliError(
            f"Error: the cluster has Kubernetes {found['gitVersion']}; {OLDEST[0]}.{OLDEST[1]} or later is needed, "
            "for ValidatingAdmissionPolicies"
        )


async def _resource(session: CliSession, obj: Object) -> Resource:
    try:
        return (await session.catalogue()).of_kind(obj["apiVersion"], obj["kind"])
    except UnknownResource as problem:
        raise CliError(
            f"Error: the cluster does not serve {obj['kind']} ({obj['apiVersion']}); it is too old"
        ) from problem


def _shown(obj: Object) -> str:
    meta = obj["metadata"]
    where = f" in {meta['namespace']}" if meta.get("namespace") else ""
    return f"{obj['kind'].lower()}/{meta['name']}{where}"


async def _until_established(session: CliSession, wanted: Sequence[Object]) -> None:
    """A control plane that starts at once must find its kinds."""
    for each in wanted:
        if each["kind"] != "CustomResourceDefinition":
            continue
        resource, name = await _resource(session, each), each["metadata"]["name"]

        async def served(resource: Resource = resource, name: str = name) -> bool:
            found = await session.client.get(Kind.dynamic(resource), name)
            conditions = (found.get("status") or {}).get("conditions") or ()
            return any((one["type"], one["status"]) == ("Established", "True") for one in conditions)

        if not await _within(session, name, "waiting until it is served", _ESTABLISHED_SECONDS, served):
            raise CliError(f"Error: {name} is not served after {_ESTABLISHED_SECONDS:.0f} s; ask the cluster why")


class _TooLong(Exception):
    """What was waited for did not become so."""


async def _within(
    session: CliSession, what: str, state: str, seconds: float, done: Callable[[], Awaitable[bool]]
) -> bool:
    end = time.monotonic() + seconds
    try:
        with working(session.app, what, state):
            while not await done():
                if time.monotonic() > end:
                    raise _TooLong
                await asyncio.sleep(_PAUSE)
    except _TooLong:
        return False
    return True


async def _kinds(session: CliSession) -> list[Resource]:
    found = [each for each in (await session.catalogue(fresh=True)).resources if each.group == crds.GROUP]
    order = {plural: place for place, plural in enumerate(_FIRST)}
    return sorted(found, key=lambda each: (order.get(each.plural, len(_FIRST)), each.plural))


async def _list(session: CliSession, resource: Resource, labels: str = "") -> list[Object]:
    try:
        return list((await session.client.list(Kind.dynamic(resource), labels=labels)).items)
    except NotFound:
        return []


async def _remove_objects(session: CliSession, seconds: float) -> None:
    kinds = await _kinds(session)
    first = [each for each in kinds if each.plural in _FIRST]
    for group in (first, [each for each in kinds if each not in first]):
        count = await _delete_all(session, group)
        if not count:
            continue

        async def gone(group: Sequence[Resource] = group) -> bool:
            return not any([await _list(session, each) for each in group])

        if await _within(session, f"{count} objects", "waiting until controllers have cleaned up", seconds, gone):
            session.app.say(f"{count} objects deleted")
            continue
        freed = await _take_finalizers_off(session, group)
        session.app.warn(
            f"{freed} objects had finalizers that no controller took off within {seconds:.0f} s: they were taken off; "
            "look for pods and services of their tasks in the namespaces of domains"
        )
        await _within(session, f"{freed} objects", "being deleted", seconds, gone)


async def _delete_all(session: CliSession, kinds: Sequence[Resource]) -> int:
    count = 0
    for resource in kinds:
        for each in await _list(session, resource):
            count += 1
            try:
                await session.client.delete(
                    Kind.dynamic(resource), each["metadata"]["name"], each["metadata"].get("namespace", ""), propagation="Background"
                )  # fmt: skip
            except NotFound:
                continue
    return count


async def _take_finalizers_off(session: CliSession, kinds: Sequence[Resource]) -> int:
    """Only ours: what others wait for is theirs."""
    count = 0
    for resource in kinds:
        for each in await _list(session, resource):
            meta = each["metadata"]
            left = [name for name in meta.get("finalizers") or () if not name.startswith(_FINALIZERS)]
            patch: Object = {"metadata": {"finalizers": left, "resourceVersion": meta["resourceVersion"]}}
            try:
                await session.client.patch(Kind.dynamic(resource), meta["name"], meta.get("namespace", ""), patch)
                count += 1
            except (NotFound, Conflict):
                continue
    return count


async def _remove_bindings(session: CliSession) -> None:
    """Those of domains: the one of the control plane has no owner that takes it along."""
    catalogue = await session.catalogue()
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        resource = catalogue.of_kind("rbac.authorization.k8s.io/v1", kind)
        for each in await _list(session, resource, KUSCIA_DOMAIN_NAME):
            await _remove(session, resource, {**each, "kind": kind})


async def _remove(session: CliSession, resource: Resource, obj: Object) -> None:
    meta = obj["metadata"]
    try:
        await session.client.delete(
            Kind.dynamic(resource), meta["name"], meta.get("namespace", ""), propagation="Background"
        )  # fmt: skip
    except NotFound:
        return
    except ApiError as problem:
        session.app.warn(f"{_shown(obj)}: {problem.message}")
        return
    session.app.say(f"{_shown(obj)} deleted")
