"""`Kind[T]`: a resource together with the Python type its objects are read as.

`LEASES = Kind(resource, Lease)` reads typed structs; `Kind.dynamic(resource)` reads plain dicts and loses nothing;
`Kind.metadata(resource)` reads only metadata and asks the server to send no more. Decoders are made once for each kind:
a list or a watch event becomes objects in one pass, without a dict in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, TypeVar, cast

import msgspec
import orjson

from coterie.kube.api.meta import ApiObject, Object, ObjectKey, PartialObjectMetadata
from coterie.kube.api.resources import BUILTIN, Resource

T = TypeVar("T")

JSON = "application/json"
PARTIAL = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{JSON}"
PARTIAL_LIST = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{JSON}"


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")
    remaining_item_count: int | None = None


class _RawList(msgspec.Struct, frozen=True, rename="camel"):
    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


class _Identity(msgspec.Struct, frozen=True, rename="camel"):
    """Just enough of an object to name it when the whole does not decode."""

    metadata: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """One answer to a list request. `broken` holds (key, why) of objects that do not have the type's shape."""

    items: list[T]
    resource_version: str
    continue_: str = ""
    remaining: int | None = None
    broken: tuple[tuple[ObjectKey, str], ...] = ()
    sizes: tuple[int, ...] = ()
    """Of each item, as it was measured; only where the items were checked."""


@cache
def _list_decoder(item: type[Any]) -> msgspec.json.Decoder[Any]:
    """Of lists of this type: the same for all resources that are looked at through it."""
    fields = [("metadata", ListMeta, ListMeta()), ("items", list[item] | None, None)]  # type: ignore[valid-type]
    return msgspec.json.Decoder(msgspec.defstruct("List", fields))


@dataclass(frozen=True)
class Kind(Generic[T]):
    resource: Resource
    type: type[T]
    shape: Any = field(default=None, compare=False, repr=False)
    """The struct type of objects that are read as plain dicts: what an untrusted server sends must have it."""

    def __post_init__(self) -> None:
        decoder = None if self.type is dict else msgspec.json.Decoder(self.type)
        object.__setattr__(self, "_decoder", decoder)

    @staticmethod
    def dynamic(resource: Resource) -> Kind[Object]:
        return Kind(resource, dict)

    @staticmethod
    def metadata(resource: Resource) -> Kind[PartialObjectMetadata]:
        return Kind(resource, PartialObjectMetadata)

    @property
    def plain(self) -> bool:
        """True when objects are dicts and can be written back whole."""
        return self.type is dict

    @property
    def as_dynamic(self) -> Kind[Object]:
        """The same resource with nothing dropped."""
        return cast("Kind[Object]", self) if self.plain else Kind(self.resource, dict, self.type)

    @property
    def accept(self) -> str:
        return PARTIAL if self.type is PartialObjectMetadata else JSON

    @property
    def accept_list(self) -> str:
        return PARTIAL_LIST if self.type is PartialObjectMetadata else JSON

    def decode(self, data: bytes | msgspec.Raw) -> T:
        """Raises ValueError (msgspec's and orjson's errors are such) when the bytes are not such an object."""
        decoder: msgspec.json.Decoder[T] | None = self._decoder  # type: ignore[attr-defined]
        if decoder is None:
            value = orjson.loads(memoryview(data))
            if not isinstance(value, dict):
                raise ValueError(f"expected an object of kind {self.resource.kind}")
            return cast("T", value)
        return decoder.decode(data)

    def shape_fault(self, data: bytes) -> str:
        """Why a plain object does not have the shape that code which reads it relies on; empty: it has."""
        if self.shape is None:
            return ""
        try:
            msgspec.json.decode(data, type=self.shape)
        except (ValueError, RecursionError) as error:
            return str(error)
        return ""

    def decode_list(self, data: bytes) -> ListPage[T]:
        try:
            listed = _list_decoder(self.type).decode(data)  # type: ignore[arg-type]
        except msgspec.ValidationError:
            return self._decode_one_by_one(data)
        items = listed.items or []
        if self.type is dict:
            self._name_items(items)
        meta = listed.metadata
        return ListPage(items, meta.resource_version, meta.continue_, meta.remaining_item_count)

    def decode_checked_list(
        self, data: bytes, fault_of: Callable[[bytes], str], size_of: Callable[[bytes], int]
    ) -> ListPage[T]:
        """Of a server that is not trusted: items in which `fault_of` finds a fault are broken."""
        return self._decode_one_by_one(data, fault_of, size_of)

    def _decode_one_by_one(
        self,
        data: bytes,
        fault_of: Callable[[bytes], str] | None = None,
        size_of: Callable[[bytes], int] | None = None,
    ) -> ListPage[T]:
        """One object of a strange shape must not hide all the others."""
        listed = msgspec.json.decode(data, type=_RawList)
        items: list[T] = []
        broken: list[tuple[ObjectKey, str]] = []
        sizes: list[int] = []
        for raw in listed.items or ():
            if fault_of is not None and (fault := fault_of(bytes(raw))):
                broken.append((identify(raw), fault))
                continue
            try:
                items.append(self.decode(raw))
            except (ValueError, RecursionError) as error:
                broken.append((identify(raw), str(error)))
                continue
            if size_of is not None:
                sizes.append(size_of(bytes(raw)))
        if self.type is dict and fault_of is not None:
            self._name_items(cast("list[Object]", items))
        meta = listed.metadata
        return ListPage(
            items, meta.resource_version, meta.continue_, meta.remaining_item_count, tuple(broken), tuple(sizes)
        )

    def _name_items(self, items: list[Object]) -> None:
        # Lists of built-in kinds leave kind and apiVersion out of the items; whoever writes one back needs them.
        if items and "kind" not in items[0]:
            api_version, kind = self.resource.api_version, self.resource.kind
            for item in items:
                item.setdefault("apiVersion", api_version)
                item.setdefault("kind", kind)

    def encode(self, obj: T) -> bytes:
        """The object as a request body; apiVersion and kind are filled in."""
        value: Any = obj
        if isinstance(value, dict):
            if "kind" not in value or "apiVersion" not in value:
                value = {"apiVersion": self.resource.api_version, "kind": self.resource.kind, **value}
            return orjson.dumps(value)
        if isinstance(value, ApiObject) and not value.kind:
            value = msgspec.structs.replace(value, api_version=self.resource.api_version, kind=self.resource.kind)
        return msgspec.json.encode(value)

    def key(self, obj: T) -> ObjectKey:
        if isinstance(obj, dict):
            meta = obj["metadata"]
            return ObjectKey(meta.get("namespace", ""), meta["name"])
        meta_ = obj.metadata  # type: ignore[attr-defined]
        return ObjectKey(meta_.namespace, meta_.name)

    def namespace(self, obj: T) -> str:
        """Also for an object that has no name yet."""
        if isinstance(obj, dict):
            return (obj.get("metadata") or {}).get("namespace") or ""
        return cast("str", obj.metadata.namespace)  # type: ignore[attr-defined]

    def version(self, obj: T) -> str:
        if isinstance(obj, dict):
            return cast("str", obj["metadata"].get("resourceVersion", ""))
        return cast("str", obj.metadata.resource_version)  # type: ignore[attr-defined]

    def uid(self, obj: T) -> str:
        if isinstance(obj, dict):
            return cast("str", obj["metadata"].get("uid", ""))
        return cast("str", obj.metadata.uid)  # type: ignore[attr-defined]

    def __str__(self) -> str:
        return self.resource.group_resource


def identify(raw: bytes | msgspec.Raw) -> ObjectKey:
    """The key of an object that does not decode otherwise; empty when not even that can be read."""
    try:
        meta = msgspec.json.decode(raw, type=_Identity).metadata
    except (ValueError, RecursionError):
        return ObjectKey("", "")
    return ObjectKey(str(meta.get("namespace") or ""), str(meta.get("name") or ""))


def builtin(plural: str, group: str = "", version: str = "v1") -> Resource:
    """A resource of the built-in catalogue. Raises LookupError for one that is not there."""
    for resource in BUILTIN:
        if (resource.plural, resource.group, resource.version) == (plural, group, version):
            return resource
    raise LookupError(f"no built-in resource {plural}.{version}.{group}")
