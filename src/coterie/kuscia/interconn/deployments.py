"""Deployments of several control planes: the initiator shows them to its partners, each runs its own parties, and both tell
each other how these are.

    host's cluster, namespace <member>             member's cluster
    KusciaDeployment (mirror) ───────────────────> KusciaDeployment (working copy), kept equal
    KusciaDeploymentSummary   <── our parties ──   its status
                              ── the others ──>

All writing between the two is done by the member. Both sides sleep until there is a deployment.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.kube.api.errors import AlreadyExists, ApiError, NotFound
from coterie.kube.api.meta import Object, ObjectKey
from coterie.kube.api.retries import Outlook, outlook, status_message
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.merge import changes, difference
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches
from coterie.kube.control.finalizers import add_finalizer, delete_with_finalizer, remove_finalizer
from coterie.kube.control.lazy_controller import LazyController
from coterie.kube.control.preconditions import write, write_status
from coterie.kuscia.api import labels
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.partner_requests import PartnerRequestError, deployment_taken
from coterie.kuscia.api.types.deployment import (
    KUSCIA_DEPLOYMENT_SUMMARIES,
    KUSCIA_DEPLOYMENTS,
    KusciaDeployment,
    KusciaDeploymentStatus,
    KusciaDeploymentSummary,
    PartyStatuses,
)
from coterie.kuscia.api.types.domain import DOMAINS, Domain
from coterie.kuscia.api.types.job import CROSS_DOMAIN
from coterie.kuscia.interconn import deployment_mirror as words
from coterie.kuscia.interconn import job_mirror
from coterie.kuscia.interconn.member import AWAY, FINALIZER

BY_NAME = "interconn/deployment-name"
_PLAIN = KUSCIA_DEPLOYMENTS.as_dynamic
_LATER = 2.0
"""Seconds after which a partner's namespace that was missing is tried again."""


def by_name(summary: KusciaDeploymentSummary) -> tuple[str, ...]:
    return (summary.metadata.name,)


class _Side:
    """What host and member have in common."""

    def __init__(self, local: Client, informers: Informers) -> None:
        self._local = local
        self.deployments = informers.get(KUSCIA_DEPLOYMENTS, CROSS_DOMAIN)
        self.domains = informers.get(DOMAINS)

    def _ours(self, name: str) -> bool:
        return is_own(self.domains.cache.get(name))

    async def _merge_reported(
        self, deployment: KusciaDeployment, reported: PartyStatuses, others: tuple[str, ...]
    ) -> None:
        """Put others' words into our own deployment; its controller makes the whole's phase of them."""
        if deployment.status is None:
            return  # its controller has not looked at it yet
        known = words.merge_partner_statuses(deployment.party_statuses, reported, others) or None
        status = replace(deployment.status, party_deployment_statuses=known)
        await write_status(self._local, KUSCIA_DEPLOYMENTS, deployment, deployment.status, status)


async def _delete(client: Client, kind: Kind[Any], name: str, namespace: str) -> None:
    try:
        await client.delete(kind, name, namespace)
    except NotFound:
        return


def _status_patch(before: KusciaDeploymentStatus | None, after: KusciaDeploymentStatus) -> Object:
    change = msgspec.to_builtins(after) if before is None else changes(before, after)
    return {"status": change} if change else {}


class ServingHost(_Side):
    def __init__(self, client: Client, informers: Informers) -> None:
        super().__init__(client, informers)
        self.summaries = informers.get(KUSCIA_DEPLOYMENT_SUMMARIES)
        self.summaries.cache.add_index(BY_NAME, by_name)
        self._log = logger("interconn.host")

    async def reconcile(self, key: ObjectKey) -> Result:
        deployment = self.deployments.cache.by_key(key)
        if deployment is None or not self._ours(deployment.spec.initiator):
            return DONE
        named = words.parties_of(deployment)
        masters = job_mirror.by_master(named, self._domains(named))
        shown = {each.metadata.namespace: each for each in self.summaries.cache.by_index(BY_NAME, key.name)}
        meta = deployment.metadata
        if meta.deleting:
            return await self._withdraw(deployment, {*masters, *shown})
        for gone in shown.keys() - masters.keys():
            await self._hide(key.name, gone)
        if not masters:
            return DONE
        if not meta.has_finalizer(FINALIZER):
            await add_finalizer(self._local, KUSCIA_DEPLOYMENTS, key.name, key.namespace, FINALIZER)
            return DONE
        waiting = False
        for master, theirs in masters.items():
            summary = shown.get(master)
            if summary is None or _stamp(summary) != words.stamp_of(deployment):
                waiting |= not await self._show(deployment, summary, master, theirs)
            else:
                await self._exchange(deployment, summary, theirs)
        return Result(after=_LATER) if waiting else DONE

    async def _show(
        self,
        deployment: KusciaDeployment,
        summary: KusciaDeploymentSummary | None,
        master: str,
        theirs: tuple[str, ...],
    ) -> bool:
        """Mirror and summary as the deployment is now; False when the partner has no namespace here yet."""
        meta = deployment.metadata
        plain = await self._local.get(_PLAIN, meta.name, meta.namespace)
        if plain["metadata"].get("generation") != meta.generation:
            return True  # the news of it brings us back
        body = words.mirror_of(plain, master, theirs)
        try:
            await self._local.create(_PLAIN, body)
            self._log.info("Deployment mirrored to a partner", deployment=meta.name, partner=master)
        except AlreadyExists:
            await self._local.modify(_PLAIN, meta.name, master, lambda old: _as_shown(old, body))
        except NotFound:
            return False
        made = words.summary_of(deployment, master, theirs)
        if summary is not None:
            # Only now: until then the summary speaks of the former state.
            patch = {"metadata": {"annotations": made["metadata"]["annotations"]}}
            await write(self._local, KUSCIA_DEPLOYMENT_SUMMARIES, summary, patch)
            return True
        try:
            await self._local.create(KUSCIA_DEPLOYMENT_SUMMARIES.as_dynamic, made)
        except AlreadyExists:
            return True
        return True

    async def _exchange(
        self, deployment: KusciaDeployment, summary: KusciaDeploymentSummary, theirs: tuple[str, ...]
    ) -> None:
        await self._merge_reported(deployment, summary.party_statuses, theirs)
        if deployment.status is not None:
            reported = words.status_from_host(deployment.status, summary.status, theirs)
            await write(self._local, KUSCIA_DEPLOYMENT_SUMMARIES, summary, _status_patch(summary.status, reported))

    async def _withdraw(self, deployment: KusciaDeployment, masters: set[str]) -> Result:
        meta = deployment.metadata
        if not meta.has_finalizer(FINALIZER):
            return DONE
        for namespace in sorted(masters):
            await self._hide(meta.name, namespace)
        await remove_finalizer(self._local, KUSCIA_DEPLOYMENTS, meta.name, meta.namespace, FINALIZER, uid=meta.uid)
        self._log.info("Deployment mirror removed from the partners", deployment=meta.name)
        return DONE

    async def _hide(self, name: str, namespace: str) -> None:
        await _delete(self._local, KUSCIA_DEPLOYMENTS, name, namespace)
        await _delete(self._local, KUSCIA_DEPLOYMENT_SUMMARIES, name, namespace)

    def _domains(self, names: tuple[str, ...]) -> dict[str, Domain]:
        return {name: found for name in names if (found := self.domains.cache.get(name)) is not None}


def _stamp(summary: KusciaDeploymentSummary) -> str:
    return (summary.metadata.annotations or {}).get(words.HOST_GENERATION, "")


def _as_shown(old: Object, body: Object) -> Object:
    meta = {**old["metadata"], **{key: body["metadata"].get(key) or {} for key in ("labels", "annotations")}}
    return {**old, "metadata": meta, "spec": body["spec"]}


class ServingMember(_Side):
    """`host`: the partner's control plane; `namespace`: ours in its cluster."""

    def __init__(
        self,
        host: str,
        namespace: str,
        remote: Client,
        remote_informers: Informers,
        local: Client,
        local_informers: Informers,
    ) -> None:
        super().__init__(local, local_informers)
        self._host, self._namespace = host, namespace
        self._remote = remote
        self.mirrors = remote_informers.get(_PLAIN, namespace)
        self.summaries = remote_informers.get(KUSCIA_DEPLOYMENT_SUMMARIES, namespace)
        self._log = logger("interconn.member").bind(host=host)

    async def reconcile(self, key: ObjectKey) -> Result:
        shown = self.mirrors.cache.get(key.name, self._namespace)
        summary = self.summaries.cache.get(key.name, self._namespace)
        deployment = self.deployments.cache.get(key.name, CROSS_DOMAIN)
        if deployment is not None and not self._follows(deployment):
            if shown is not None and summary is not None:
                sentence = f'{self._namespace} has another deployment named "{key.name}"'
                await self._refuse(shown, summary, words.REFUSED, sentence)
            return DONE
        if shown is None and summary is None:
            if deployment is not None:
                await self._withdraw_copy(deployment)
            return DONE
        if shown is None or summary is None:
            return DONE  # half of it is on its way
        if deployment is None:
            if not words.was_withdrawn(summary.party_statuses, self._hosted(shown)):
                await self._copy(shown, summary)
            return DONE
        if deployment.metadata.deleting:
            await self._leave(deployment, shown, summary)
            return DONE
        if await self._keep_equal(deployment, shown):
            return DONE  # its own event brings us back
        await self._exchange(deployment, summary)
        return DONE

    def _follows(self, deployment: KusciaDeployment) -> bool:
        return (deployment.metadata.annotations or {}).get(labels.KUSCIA_INITIATOR_MASTER_DOMAIN) == self._host

    def _hosted(self, shown: Object) -> tuple[str, ...]:
        """Domains of the parties that are ours."""
        named = dict.fromkeys(domain for domain, _ in words.parties_named(shown))
        return tuple(name for name in named if self._ours(name))

    async def _copy(self, shown: Object, summary: KusciaDeploymentSummary) -> None:
        try:
            body = words.working_copy(shown, self._host, self._namespace)
        except PartnerRequestError as problem:
            self._log.warning(
                "A partner's deployment cannot be read", deployment=summary.metadata.name, why=str(problem)
            )
            return
        initiator = body["spec"]["initiator"]
        if fault := job_mirror.initiator_fault(initiator, self.domains.cache.get(initiator), self._host):
            await self._refuse(shown, summary, words.REFUSED, fault)
            return
        body["metadata"]["finalizers"] = [FINALIZER]
        try:
            await self._local.create(_PLAIN, body)
        except AlreadyExists:
            return  # the cache is behind
        except ApiError as error:
            if outlook(error) is Outlook.TRANSIENT:
                raise
            await self._refuse(shown, summary, words.REFUSED, status_message(error))
            return
        self._log.info("Accepted a partner's deployment", deployment=body["metadata"]["name"])

    async def _refuse(self, shown: Object, summary: KusciaDeploymentSummary, reason: str, sentence: str) -> None:
        """The host waits for us: it is told that we do not, and why."""
        ours = self._hosted(shown)
        statuses = words.refused_statuses(shown, ours, reason, sentence)
        if await self._report_own(summary, statuses, ours):
            self._log.warning("A partner's deployment is not run", deployment=summary.metadata.name, why=sentence)

    async def _keep_equal(self, deployment: KusciaDeployment, shown: Object) -> bool:
        """The working copy as the host wants it now; False when it was so."""
        try:
            taken = deployment_taken(shown.get("spec"))
        except PartnerRequestError as problem:
            name = deployment.metadata.name
            self._log.warning("A partner's deployment cannot be read any more", deployment=name, why=str(problem))
            return False
        if job_mirror.initiator_fault(taken.initiator, self.domains.cache.get(taken.initiator), self._host):
            return False
        if taken == deployment.spec:
            return False
        body = words.working_copy(shown, self._host, self._namespace)
        change = difference(msgspec.to_builtins(deployment.spec), body["spec"])
        meta = {"labels": body["metadata"].get("labels") or {}, "annotations": body["metadata"]["annotations"]}
        await write(self._local, KUSCIA_DEPLOYMENTS, deployment, {"metadata": meta, "spec": change})
        return True

    async def _exchange(self, deployment: KusciaDeployment, summary: KusciaDeploymentSummary) -> None:
        named = words.parties_of(deployment)
        ours = tuple(name for name in named if self._ours(name))
        await self._merge_reported(
            deployment, summary.party_statuses, tuple(name for name in named if name not in ours)
        )
        if deployment.status is not None:
            await self._report_own(summary, deployment.party_statuses, ours)

    async def _report_own(self, summary: KusciaDeploymentSummary, own: PartyStatuses, ours: tuple[str, ...]) -> bool:
        """Put words about our own parties into the summary; False when they were there."""
        known = words.merge_partner_statuses(summary.party_statuses, own, ours)
        before = summary.status or KusciaDeploymentStatus(total_parties=0, available_parties=0)
        patch = _status_patch(summary.status, replace(before, party_deployment_statuses=known or None))
        await write(self._remote, KUSCIA_DEPLOYMENT_SUMMARIES, summary, patch)
        return bool(patch)

    async def _withdraw_copy(self, deployment: KusciaDeployment) -> None:
        """The host withdrew it."""
        self._log.info("A partner's deployment was withdrawn", deployment=deployment.metadata.name)
        await delete_with_finalizer(self._local, KUSCIA_DEPLOYMENTS, deployment.metadata, FINALIZER)

    async def _leave(self, deployment: KusciaDeployment, shown: Object, summary: KusciaDeploymentSummary) -> None:
        """Our own people deleted the copy: the host is told before it is gone, and it is not taken up again."""
        meta = deployment.metadata
        if not meta.has_finalizer(FINALIZER):
            return
        await self._refuse(shown, summary, words.WITHDRAWN, f"{self._namespace} does not run it any more")
        await remove_finalizer(self._local, KUSCIA_DEPLOYMENTS, meta.name, meta.namespace, FINALIZER, uid=meta.uid)


def _key(obj: Any) -> list[ObjectKey]:
    name = obj["metadata"]["name"] if isinstance(obj, dict) else obj.metadata.name
    return [ObjectKey(CROSS_DOMAIN, name)]


def make_host(client: Client, informers: Informers, *, workers: int = 2, clock: Clock = SYSTEM_CLOCK) -> LazyController:
    def awaken() -> list[Controller[ObjectKey]]:
        side = ServingHost(client, informers)
        watches: list[Watches[Any, ObjectKey]] = [Watches(side.deployments, _key), Watches(side.summaries, _key)]
        name = "interconn-host-deployments"
        return [Controller(name, side.reconcile, watches, workers=workers, clock=clock)]

    return LazyController("interconn-host-deployments", [informers.get(KUSCIA_DEPLOYMENTS, CROSS_DOMAIN)], awaken)


def make_member(
    host: str,
    namespace: str,
    remote: Client,
    remote_informers: Informers,
    local: Client,
    local_informers: Informers,
    *,
    workers: int = 2,
    clock: Clock = SYSTEM_CLOCK,
) -> LazyController:
    name = f"interconn-{host}-deployments"

    def awaken() -> list[Controller[ObjectKey]]:
        side = ServingMember(host, namespace, remote, remote_informers, local, local_informers)
        watches: list[Watches[Any, ObjectKey]] = [
            Watches(side.mirrors, _key),
            Watches(side.summaries, _key),
            Watches(side.deployments, _key),
        ]
        return [Controller(name, side.reconcile, watches, workers=workers, clock=clock, retry=AWAY)]

    # What the host withdrew while we were away is seen by our own copy only.
    wakers: list[Any] = [remote_informers.get(_PLAIN, namespace), local_informers.get(KUSCIA_DEPLOYMENTS, CROSS_DOMAIN)]
    return LazyController(name, wakers, awaken)
