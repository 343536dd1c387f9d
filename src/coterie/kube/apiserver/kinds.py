"""How objects of one served resource version are read, defaulted, prepared and checked.

A `Strategy` puts the pure rules of `coterie.kube.api` in order for the verbs, so that a verb does not ask whether a kind
is built in or custom. It keeps no state but what it was made from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from coterie.base.lazy_import import lazy_import
from coterie.kube.api import errors, rules, selectors
from coterie.kube.api.resources import Resource
from coterie.kube.api.rules import scale
from coterie.kube.api.schema import decode, defaulting, prune, ratchet, structural, validate
from coterie.kube.api.schema.builtin import BuiltinSchemas
from coterie.kube.api.schema.node import Schema

if TYPE_CHECKING:
    from coterie.kube.api import cel
    from coterie.kube.apiserver.tables import build
else:
    cel = lazy_import("coterie.kube.api.cel")
    build = lazy_import("coterie.kube.apiserver.tables.build")

Object = dict[str, Any]
_LONGEST_PATH: Final = 512
_NEEDS_VERSION: Final = frozenset(
    {
        ("node.k8s.io", "RuntimeClass"),
        ("storage.k8s.io", "CSIDriver"),
        ("storage.k8s.io", "CSINode"),
        ("storage.k8s.io", "CSIStorageCapacity"),
        ("storage.k8s.io", "VolumeAttachment"),
    }
)
"""Built-in kinds that a PUT without resourceVersion does not overwrite."""
ANYTHING: Final[Object] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


class NotDecodable(errors.BadRequest):
    """A body that is no object of the kind. `fault` is what is wrong, without saying of which object."""

    def __init__(self, message: str, fault: str) -> None:
        super().__init__(message)
        self.fault = fault


class Strategy:
    """The rules of a built-in kind; `CustomStrategy` is the other one."""

    strategic_merge = True
    unconditional_update = True
    """A PUT without resourceVersion overwrites, as Kubernetes allows for built-in kinds."""

    def __init__(self, resource: Resource, schemas: BuiltinSchemas) -> None:
        self.resource = resource
        self._schemas = schemas
        self.has_status = resource.subresource("status") is not None
        self.custom_fields: Sequence[str] = ()
        self._printer_columns: Sequence[Object] = ()
        self.unconditional_update = (resource.group, resource.kind) not in _NEEDS_VERSION

    @cached_property
    def _rules(self) -> rules.KindRules:
        return rules.RULES[(self.resource.group, self.resource.kind)]

    @cached_property
    def schema(self) -> Schema:
        """Compiled when first asked for: most kinds are never written to."""
        return self._schemas[self.resource.schema_name]

    @cached_property
    def storage_schema(self) -> Schema:
        """Schema of the stored version: what field ownership of stored objects walks along."""
        return self._schemas[f"{self.resource.storage_api_version}/{self.resource.kind}"]

    @cached_property
    def table(self) -> build.TableBuilder:
        """Made when first asked for: people look at few kinds, controllers at none in this form."""
        return build.builder_for(self.resource, self._printer_columns)

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, obj: Object, validation: str) -> list[str]:
        """Check types and unknown fields of a decoded body in place; returns warnings."""
        wrong, unknown = decode.decode_check(obj, self.schema)
        if wrong:
            raise self._not_decodable(wrong[0])
        return _unknown(unknown, validation)

    def _not_decodable(self, fault: str) -> NotDecodable:
        kind, version = self.resource.kind, self.resource.version
        return NotDecodable(f'{kind} in version "{version}" cannot be handled as a {kind}: {fault}', fault)

    def default(self, obj: Object) -> None:
        self._rules.default(obj)

    # -- preparing and checking ---------------------------------------------------------------------------------

    def prepare_create(self, obj: Object) -> None:
        self._rules.prepare_create(obj)

    def validate_create(self, obj: Object) -> list[errors.FieldError]:
        return self._rules.validate_create(obj)

    def prepare_update(self, new: Object, old: Object) -> None:
        self._rules.prepare_update(new, old)

    def validate_update(self, new: Object, old: Object) -> list[errors.FieldError]:
        return self._rules.validate_update(new, old)

    def prepare_status(self, new: Object, old: Object) -> None:
        self._rules.prepare_status_update(new, old)

    def validate_status(self, new: Object, old: Object) -> list[errors.FieldError]:
        return self._rules.validate_status_update(new, old)

    def prepare_approval(self, new: Object, old: Object) -> None:
        self._rules.prepare_approval_update(new, old)

    def validate_approval(self, new: Object, old: Object) -> list[errors.FieldError]:
        return self._rules.validate_approval_update(new, old)

    # -- selecting and scaling ----------------------------------------------------------------------------------

    def selectable(self, obj: Object) -> dict[str, str]:
        return selectors.selectable_fields(self.resource, obj, self.custom_fields)

    def check_fields(self, selector: selectors.FieldSelector) -> None:
        selector.bind(self.resource, self.custom_fields)

    def scale_of(self, obj: Object) -> Object:
        return scale.scale_of(obj, self.resource)

    def apply_scale(self, obj: Object, wanted: Object) -> Object:
        return scale.apply_scale(obj, wanted, self.resource)


class CustomStrategy(Strategy):
    """The rules of a custom resource version, all of them from its CustomResourceDefinition."""

    strategic_merge = False
    unconditional_update = False

    def __init__(
        self, resource: Resource, version: Object, read_schema: Callable[[], Object], object_meta: Schema
    ) -> None:
        self.resource = resource
        self.has_status = resource.subresource("status") is not None
        self.custom_fields = tuple(field["jsonPath"] for field in version.get("selectableFields") or ())
        self._printer_columns = version.get("additionalPrinterColumns") or ()
        self._read_schema = read_schema
        self._object_meta = object_meta
        self._scale_paths = scale.ScalePaths.of((version.get("subresources") or {}).get("scale") or {})

    @cached_property
    def schema(self) -> Schema:
        """Compiled when first needed: most definitions of a node are never written to."""
        schema = structural.compile_crd(self._read_schema(), self._object_meta)
        if schema.has_rules:
            cel.compile_rules(schema, "")
        return schema

    @cached_property
    def storage_schema(self) -> Schema:
        return self.schema

    @cached_property
    def _metadata_schema(self) -> Schema:
        return Schema(type="object", properties={"metadata": self.schema.properties["metadata"]})

    def read(self, obj: Object, validation: str) -> list[str]:
        unknown = prune.unknown_fields(obj, self.schema) if validation != "Ignore" else []
        metadata = obj.get("metadata")
        if metadata is not None and not isinstance(metadata, dict):
            raise self._not_decodable("metadata must be an object")
        wrong = decode.check_types({"metadata": metadata or {}}, self._metadata_schema)
        if wrong:
            raise self._not_decodable(wrong[0])
        warnings = _unknown(unknown, validation)
        prune.prune(obj, self.schema)
        return warnings

    def default(self, obj: Object) -> None:
        if self.schema.has_defaults:
            defaulting.apply_defaults(obj, self.schema)

    def prepare_create(self, obj: Object) -> None:
        if self.has_status:
            obj.pop("status", None)
        obj["metadata"]["generation"] = 1

    def validate_create(self, obj: Object) -> list[errors.FieldError]:
        return self._validate(obj, None)

    def prepare_update(self, new: Object, old: Object) -> None:
        if self.has_status:
            if "status" in old:
                new["status"] = old["status"]
            else:
                new.pop("status", None)
        if _without_bookkeeping(new, self.has_status) != _without_bookkeeping(old, self.has_status):
            new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1

    def validate_update(self, new: Object, old: Object) -> list[errors.FieldError]:
        return self._validate(new, old)

    def prepare_status(self, new: Object, old: Object) -> None:
        status = new.get("status")
        metadata = new["metadata"]
        new.clear()
        new.update(old)
        # Owners of fields are tracked for status writes too; everything else outside status stays as it was.
        kept = {**old["metadata"]}
        if "managedFields" in metadata:
            kept["managedFields"] = metadata["managedFields"]
        new["metadata"] = kept
        if status is None:
            new.pop("status", None)
        else:
            new["status"] = status

    def validate_status(self, new: Object, old: Object) -> list[errors.FieldError]:
        return self._validate(new, old)

    def _validate(self, obj: Object, old: Object | None) -> list[errors.FieldError]:
        if old is None:
            faults = validate.validate(obj, self.schema)
        else:
            faults = validate.validate_update(obj, old, self.schema)
            faults = ratchet.new_faults(faults, obj, old, self.schema) if faults else faults
        if not faults and self.schema.has_rules:
            faults = cel.check(obj, old, self.schema, "", ratchet=old is not None)
        return faults

    def scale_of(self, obj: Object) -> Object:
        return scale.scale_of(obj, self.resource, self._scale_paths)

    def apply_scale(self, obj: Object, wanted: Object) -> Object:
        return scale.apply_scale(obj, wanted, self.resource, self._scale_paths)


class EventStrategy(Strategy):
    """Events are stored once and served in two groups, so both groups' fields are selectable from the stored form."""

    def selectable(self, obj: Object) -> dict[str, str]:
        fields = selectors.selectable_fields(self.resource, obj)
        for name, value in list(fields.items()):
            for ours, theirs in (("involvedObject.", "regarding."), ("regarding.", "involvedObject.")):
                if name.startswith(ours):
                    fields[theirs + name.removeprefix(ours)] = value
        return fields


def _without_bookkeeping(obj: Object, has_status: bool) -> Object:
    return {
        k: v
        for k, v in obj.items()
        if k not in ("metadata", "apiVersion", "kind") and not (has_status and k == "status")
    }


def _unknown(paths: list[str], validation: str) -> list[str]:
    if not paths or validation == "Ignore":
        return []
    messages = [f'unknown field "{path[:_LONGEST_PATH]}"' for path in paths[: errors.MAX_SHOWN]]
    if len(paths) > errors.MAX_SHOWN:
        messages.append(f"{len(paths) - errors.MAX_SHOWN} more unknown fields")
    if validation == "Strict":
        fault = "strict decoding error: " + ", ".join(messages)
        raise NotDecodable(fault, fault)
    return messages
