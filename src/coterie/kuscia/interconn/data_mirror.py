"""What a host granted to domains of ours: its tables and grants, shown in the namespaces of those it was granted to.

Read only: a copy here grants nothing, the host's own data mesh decides. What is gone at the host goes here too.
"""

from __future__ import annotations

from typing import Any

import msgspec

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.log import logger
from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.meta import Object, ObjectKey
from coterie.kube.api.types.kind import Kind
from coterie.kube.api.types.merge import difference
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import DONE, Controller, Result, Watches
from coterie.kuscia.api import labels
from coterie.kuscia.api.domain_ownership import is_own, is_partner, master_of
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS, DOMAIN_DATAS, DomainDataGrantSpec, DomainDataSpec
from coterie.kuscia.api.types.domain import DOMAINS

KINDS = (DOMAIN_DATAS, DOMAIN_DATA_GRANTS)
GRANT = DOMAIN_DATA_GRANTS.resource.kind
LABELS = (
    labels.KUSCIA_INTERCONN_PROTOCOL_TYPE,
    labels.KUSCIA_DOMAINDATA_ID,
    labels.KUSCIA_DOMAINDATA_TYPE,
    labels.KUSCIA_DOMAINDATA_VENDOR,
    labels.KUSCIA_DOMAINDATAGRANT_DOMAIN,
    labels.KUSCIA_DOMAINDATAGRANT_VENDOR,
)
ANNOTATIONS = (labels.KUSCIA_INITIATOR, labels.KUSCIA_INTERCONN_KUSCIA_PARTIES)
STATUS_FIELDS = ("phase", "message", "use_records")
SPEC_FIELDS = {
    DOMAIN_DATAS.resource.kind: tuple(each.encode_name for each in msgspec.structs.fields(DomainDataSpec)),
    GRANT: tuple(each.encode_name for each in msgspec.structs.fields(DomainDataGrantSpec)),
}
"""What is taken from a host's object. Everything else of it is dropped: a label or an annotation can mean something here."""
BY_NAME = "interconn/data-name"


def by_name(obj: Object) -> tuple[str, ...]:
    return (obj["metadata"]["name"],)


def copy_of(shown: Object, host: str, grantee: str) -> Object:
    """Our copy of what a host shows. Pure."""
    meta, spec = shown["metadata"], shown["spec"]
    kept_labels, kept_marks = meta.get("labels") or {}, meta.get("annotations") or {}
    kind = GRANT if "domainDataID" in spec else DOMAIN_DATAS.resource.kind
    return {
        "metadata": {
            "name": meta["name"],
            "namespace": grantee,
            "labels": {
                **{key: kept_labels[key] for key in LABELS if key in kept_labels},
                labels.KUSCIA_OWNER_REFERENCES: meta["name"],
                labels.KUSCIA_HOST_RESOURCE_VERSION: meta["resourceVersion"],
            },
            "annotations": {
                **{key: kept_marks[key] for key in ANNOTATIONS if key in kept_marks},
                labels.KUSCIA_INITIATOR_MASTER_DOMAIN: host,
            },
        },
        "spec": {key: spec[key] for key in SPEC_FIELDS[kind] if key in spec},
    }


class GrantedDataReconciler:
    """One kind of one host."""

    def __init__(
        self,
        kind: Kind[Any],
        host: str,
        namespace: str,
        remote_informers: Informers,
        local: Client,
        local_informers: Informers,
    ) -> None:
        self._kind = kind.as_dynamic
        self._host, self._namespace = host, namespace
        self._local = local
        self.shown = remote_informers.get(self._kind, namespace)
        self.copies = local_informers.get(self._kind)
        self.domains = local_informers.get(DOMAINS)
        self.copies.cache.add_index(BY_NAME, by_name)
        self._log = logger("interconn.data").bind(host=host)

    async def reconcile(self, key: ObjectKey) -> Result:
        """The key's namespace is empty: names are those at the host."""
        shown = self.shown.cache.get(key.name, self._namespace)
        grantees = self._grantees(shown) if shown is not None else ()
        for copy in self.copies.cache.by_index(BY_NAME, key.name):
            if self._ours(copy) and copy["metadata"]["namespace"] not in grantees:
                await self._delete(copy)
        for grantee in grantees:
            assert shown is not None
            await self._show(shown, grantee)
        return DONE

    def _ours(self, copy: Object) -> bool:
        marks = copy["metadata"].get("annotations") or {}
        return marks.get(labels.KUSCIA_INITIATOR_MASTER_DOMAIN) == self._host

    def _grantees(self, shown: Object) -> tuple[str, ...]:
        """Domains of ours that it is for. A host can only show what domains of its own grant."""
        author = str(shown["spec"].get("author") or "")
        domain = self.domains.cache.get(author)
        if not is_partner(domain) or master_of(author, domain) != self._host:
            return ()
        named = (shown["metadata"].get("annotations") or {}).get(labels.KUSCIA_INTERCONN_KUSCIA_PARTIES, "")
        found = [name for name in named.split("_") if name]
        return tuple(name for name in found if is_own(self.domains.cache.get(name)))

    async def _show(self, shown: Object, grantee: str) -> None:
        meta = shown["metadata"]
        body = copy_of(shown, self._host, grantee)
        there = self.copies.cache.get(meta["name"], grantee)
        if there is None:
            try:
                there = await self._local.create(self._kind, body)
            except (AlreadyExists, NotFound):
                return  # the cache is behind, or the namespace is on its way
        elif not self._ours(there):
            self._log.warning("Another object has that name; not overwritten", name=meta["name"], domain=grantee)
            return
        elif change := difference(there["spec"], body["spec"]):
            patch = {"metadata": {"labels": body["metadata"]["labels"]}, "spec": change}
            await self._local.patch(self._kind, meta["name"], grantee, patch)
        status = {key: value for key, value in (shown.get("status") or {}).items() if key in STATUS_FIELDS}
        if self._kind.resource.kind == GRANT and (change := difference(there.get("status") or {}, status)):
            await self._local.patch_status(self._kind, meta["name"], grantee, {"status": change})

    async def _delete(self, copy: Object) -> None:
        meta = copy["metadata"]
        try:
            await self._local.delete(self._kind, meta["name"], meta["namespace"], uid=meta["uid"])
        except NotFound:
            return

    def keys(self, obj: Object) -> list[ObjectKey]:
        return [ObjectKey("", obj["metadata"]["name"])]

    def keys_of_copy(self, copy: Object) -> list[ObjectKey]:
        return self.keys(copy) if self._ours(copy) else []


def make(
    host: str,
    namespace: str,
    remote_informers: Informers,
    local: Client,
    local_informers: Informers,
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> list[Controller[ObjectKey]]:
    out = []
    for kind in KINDS:
        part = GrantedDataReconciler(kind, host, namespace, remote_informers, local, local_informers)
        watches: list[Watches[Any, ObjectKey]] = [
            Watches(part.shown, part.keys),
            Watches(part.copies, part.keys_of_copy),
        ]
        name = f"interconn-{host}-{kind.resource.plural}"
        out.append(Controller(name, part.reconcile, watches, workers=1, clock=clock))
    return out
