"""Custom resources: a CustomResourceDefinition becomes served resources the moment it is durable.

Names and schemas are judged before the write (`CrdRegistry.admit`), so a stored definition can always be served; its
conditions NamesAccepted and Established are part of that same write. Between versions an object keeps its fields under another
apiVersion, or a webhook converts it (`webhooks/conversion.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from coterie.base.clock import Clock, rfc3339
from coterie.base.lazy_import import lazy_import
from coterie.kube.api import errors
from coterie.kube.api.resources import ALL_VERBS, SCALE, STATUS, Resource, Subresource
from coterie.kube.api.schema import structural
from coterie.kube.api.schema.node import Schema
from coterie.kube.apiserver.admission.chain import AdmissionRequest
from coterie.kube.apiserver.bootstrap import LOOPBACK
from coterie.kube.apiserver.kinds import ANYTHING, CustomStrategy, Strategy
from coterie.kube.apiserver.state.entry import ObjectEntry, VersionView, head_of
from coterie.kube.apiserver.state.state import ResourceStorage
from coterie.kube.apiserver.state.watching import StoredChange

if TYPE_CHECKING:
    from coterie.kube.api import cel
    from coterie.kube.api.schema import structural_check
    from coterie.kube.apiserver.outgoing import Outgoing
    from coterie.kube.apiserver.tables import jsonpath
    from coterie.kube.apiserver.webhooks import conversion
else:
    cel = lazy_import("coterie.kube.api.cel")
    conversion = lazy_import("coterie.kube.apiserver.webhooks.conversion")
    jsonpath = lazy_import("coterie.kube.apiserver.tables.jsonpath")
    structural_check = lazy_import("coterie.kube.api.schema.structural_check")

Object = dict[str, Any]
CLEANUP = "customresourcecleanup.apiextensions.k8s.io"


def resources_of(crd: Object) -> list[tuple[Resource, Object]]:
    """The resources a definition serves, each with its version's part of the definition."""
    spec = crd["spec"]
    names = (crd.get("status") or {}).get("acceptedNames") or spec["names"]
    storage = next(version["name"] for version in spec["versions"] if version.get("storage"))
    out = []
    for version in spec["versions"]:
        if not version.get("served"):
            continue
        subs: list[Subresource] = []
        declared = version.get("subresources") or {}
        if "status" in declared:
            subs.append(STATUS)
        if "scale" in declared:
            subs.append(SCALE)
        resource = Resource(
            group=spec["group"],
            version=version["name"],
            plural=names["plural"],
            kind=names["kind"],
            namespaced=spec["scope"] == "Namespaced",
            singular=names.get("singular") or names["kind"].lower(),
            list_name=names.get("listKind") or "",
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            verbs=ALL_VERBS,
            subresources=tuple(subs),
            storage=(spec["group"], storage),
            custom=True,
        )
        out.append((resource, version))
    return out


def _schema_of(entry: ObjectEntry, version: str) -> Object:
    """Read anew from the stored bytes: as Python objects the schemas of all definitions would be a megabyte."""
    found = next(each for each in entry.load()["spec"]["versions"] if each["name"] == version)
    schema: Object = (found.get("schema") or {}).get("openAPIV3Schema") or ANYTHING
    return schema


def _deprecation(resource: Resource, version: Object) -> str:
    if not version.get("deprecated"):
        return ""
    return version.get("deprecationWarning") or f"{resource.api_version} {resource.kind} is deprecated"


def _bad_columns(columns: Sequence[Object]) -> Iterator[tuple[int, str, jsonpath.PathError]]:
    for place, column in enumerate(columns):
        text = column.get("jsonPath") or ""
        try:
            jsonpath.compile_path(text)
        except jsonpath.PathError as problem:
            yield place, text, problem


class CrdRegistry:
    """Keeps what is served in step with the stored CustomResourceDefinitions."""

    def __init__(
        self,
        state: ResourceStorage,
        strategies: dict[tuple[str, str, str], Strategy],
        object_meta: Schema,
        clock: Clock,
        changed: Callable[[], None],
        outgoing: Callable[[], Outgoing],
    ) -> None:
        self._state = state
        self._strategies = strategies
        self._object_meta = object_meta
        self._clock = clock
        self._changed = changed
        self._outgoing = outgoing
        self._conversions: dict[str, conversion.CrdConversion] = {}
        self._served: dict[str, list[Resource]] = {}
        self._ending: set[str] = set()
        """Names of definitions that are being deleted: their objects are cleaned up, and no new ones made."""

    # -- admission ----------------------------------------------------------------------------------------------

    def admit(self, attempt: AdmissionRequest) -> None:
        """An admission step: refuse schemas that cannot be served, set the conditions of those that can."""
        if attempt.verb == "create" and attempt.resource.group_resource in self._ending:
            raise errors.MethodNotAllowed("create not allowed while custom resource definition is terminating")
        if attempt.resource.kind != "CustomResourceDefinition":
            return
        crd = attempt.obj
        if attempt.subresource:
            self._set_status(crd, attempt.old)
            return
        # What this server brings itself is checked by its tests: a first start need not do it again.
        if attempt.user is not LOOPBACK:
            self._check(crd, attempt.old, attempt.name)
        finalizers = crd["metadata"].setdefault("finalizers", [])
        if CLEANUP not in finalizers and "deletionTimestamp" not in crd["metadata"]:
            crd["metadata"]["finalizers"] = [*finalizers, CLEANUP]
        if not crd["metadata"]["finalizers"]:
            del crd["metadata"]["finalizers"]
        self._set_status(crd, attempt.old)

    def _check(self, crd: Object, old: Object | None, name: str) -> None:
        versions = crd.get("spec", {}).get("versions") or ()
        # Rules that were accepted once stay: a definition must not become unchangeable.
        known = [version.get("schema") for version in ((old or {}).get("spec") or {}).get("versions") or ()]
        faults = [fault for index, version in enumerate(versions) for fault in self._faults(index, version, known)]
        if faults:
            raise errors.invalid_object("CustomResourceDefinition", "apiextensions.k8s.io", name, faults)

    def _faults(self, index: int, version: Object, known: list[Object]) -> list[errors.FieldError]:
        raw = (version.get("schema") or {}).get("openAPIV3Schema")
        path = f"spec.versions[{index}].schema.openAPIV3Schema"
        if raw is None:
            return [errors.required(path, "schemas are required")]
        faults = [
            errors.invalid(f"spec.versions[{index}].additionalPrinterColumns[{place}].jsonPath", text, str(problem))
            for place, text, problem in _bad_columns(version.get("additionalPrinterColumns") or ())
        ]
        faults += structural_check.check_structural(raw, path, self._object_meta)
        if not faults:
            schema = structural.compile_crd(raw, self._object_meta)
            faults = cel.compile_rules(schema, path)
            if not faults and schema.has_rules and version["schema"] not in known:
                faults = cel.cost_faults(schema, path)
        return faults

    def _set_status(self, crd: Object, old: Object | None) -> None:
        """What is served is said by the server alone, whoever writes the status."""
        status = dict(crd.get("status") or {})
        served = (old or {}).get("status") or {}
        before = {condition["type"]: condition for condition in served.get("conditions") or ()}
        conflict = self._name_conflict(crd)
        now = rfc3339(self._clock.now())
        names = (crd.get("spec") or {}).get("names") or {}
        # Names that were accepted once stay in service when new ones are not: there may be objects.
        status["acceptedNames"] = names if not conflict else served.get("acceptedNames") or {"plural": "", "kind": ""}
        accepted = (
            ("True", "NoConflicts", "no conflicts found") if not conflict else ("False", "NamesConflict", conflict)
        )
        established = (
            ("True", "InitialNamesAccepted", "the initial names have been accepted")
            if not conflict or before.get("Established", {}).get("status") == "True"
            else ("False", "NotAccepted", "not all names are accepted")
        )
        own = (("NamesAccepted", accepted), ("Established", established))
        conditions = [c for c in status.get("conditions") or () if c.get("type") not in dict(own)]
        for kind, (value, reason, message) in own:
            last = before.get(kind)
            since = last["lastTransitionTime"] if last and last["status"] == value else now
            conditions.append(
                {"type": kind, "status": value, "lastTransitionTime": since, "reason": reason, "message": message}
            )
        status["conditions"] = conditions
        crd["status"] = status

    def _name_conflict(self, crd: Object) -> str:
        """The first name that another resource of the same group already has."""
        spec = crd.get("spec") or {}
        names = spec.get("names") or {}
        for view in self._state.views():
            other = view.resource
            if other.group != spec.get("group") or f"{other.plural}.{other.group}" == crd["metadata"]["name"]:
                continue
            taken = {other.plural, other.singular, *other.short_names}
            for name in (names.get("plural"), names.get("singular"), *(names.get("shortNames") or ())):
                if name in taken:
                    return f'"{name}" is already in use'
            if names.get("kind") in (other.kind, other.list_kind):
                return f'"{names["kind"]}" is already in use'
        return ""

    # -- serving ------------------------------------------------------------------------------------------------

    def observe(self, changes: Sequence[StoredChange]) -> None:
        for change in changes:
            if change.kind == "DELETED":
                self._withdraw(change.entry.name)
            else:
                self.serve(change.entry)
        self._changed()

    def serve(self, entry: ObjectEntry) -> None:
        crd, name = entry.load(), entry.name
        if "deletionTimestamp" in crd["metadata"]:
            self._ending.add(name)
        conditions = {c["type"]: c["status"] for c in (crd.get("status") or {}).get("conditions") or ()}
        if conditions.get("Established") != "True":
            self._withdraw(name)
            return
        wanted = resources_of(crd)
        keep = {(r.group, r.version, r.plural) for r, _ in wanted}
        for old in self._served.get(name, ()):
            if (old.group, old.version, old.plural) not in keep:
                self._strategies.pop((old.group, old.version, old.plural), None)
                self._state.withdraw(old)
        webhook = self._conversion(name, crd)
        for resource, version in wanted:
            head = head_of(resource.storage_api_version, resource.kind)
            self._strategies[(resource.group, resource.version, resource.plural)] = CustomStrategy(
                resource, version, partial(_schema_of, entry, resource.version), self._object_meta
            )
            warning = _deprecation(resource, version)
            self._state.serve(VersionView(resource, storage_head=head, warning=warning, conversion=webhook))
        if wanted:
            first = wanted[0][0]
            self._state.set_storage(first.key, first.storage_api_version, first.kind, converted=webhook is not None)
        self._served[name] = [resource for resource, _ in wanted]

    def _conversion(self, name: str, crd: Object) -> conversion.CrdConversion | None:
        """The same one for as long as it is configured the same: it remembers answers."""
        given = crd["spec"].get("conversion") or {}
        if given.get("strategy") != "Webhook":
            self._conversions.pop(name, None)
            return None
        known = self._conversions.get(name)
        if known is None or known.spec != given.get("webhook"):
            kind = crd["spec"]["names"]["kind"]
            known = self._conversions[name] = conversion.CrdConversion(given["webhook"], kind, self._outgoing)
        return known

    def _withdraw(self, name: str) -> None:
        self._ending.discard(name)
        self._conversions.pop(name, None)
        for resource in self._served.pop(name, ()):
            self._strategies.pop((resource.group, resource.version, resource.plural), None)
            self._state.withdraw(resource)
