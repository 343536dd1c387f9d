"""Objects of one kind in memory, found by key or by index.

Objects are shared with everyone who asks, so nobody changes them: typed ones are frozen, and plain dicts are treated
as if they were. An index is a function from an object to the values it should be found under; it is kept up to date
with every change. There is always an index by namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.kind import Kind

T = TypeVar("T")

IndexFunction = Callable[[T], Iterable[str]]
_NOTHING: Mapping[ObjectKey, None] = {}


class _Index(Generic[T]):
    """Keys by value. Dicts instead of sets: they keep the order of arrival, so lists do not jump about."""

    __slots__ = ("function", "keys")

    def __init__(self, function: IndexFunction[T]) -> None:
        self.function = function
        self.keys: dict[str, dict[ObjectKey, None]] = {}

    def change(self, key: ObjectKey, old: T | None, new: T | None) -> None:
        before = set(self.function(old)) if old is not None else set()
        after = set(self.function(new)) if new is not None else set()
        for value in before - after:
            found = self.keys[value]
            del found[key]
            if not found:
                del self.keys[value]
        for value in after - before:
            self.keys.setdefault(value, {})[key] = None


class Cache(Generic[T]):
    def __init__(self, kind: Kind[T], indexes: Mapping[str, IndexFunction[T]] | None = None) -> None:
        self.kind = kind
        self.changes = 0
        """How often anything in here changed: who remembers what followed from it knows whether that still holds."""
        self._objects: dict[ObjectKey, T] = {}
        self._namespaces: dict[str, dict[ObjectKey, None]] = {}
        self._indexes = {name: _Index(function) for name, function in (indexes or {}).items()}

    def get(self, name: str, namespace: str = "") -> T | None:
        return self._objects.get(ObjectKey(namespace, name))

    def by_key(self, key: ObjectKey) -> T | None:
        return self._objects.get(key)

    def list(self, namespace: str | None = None) -> list[T]:
        if namespace is None:
            return list(self._objects.values())
        objects = self._objects
        return [objects[key] for key in self._namespaces.get(namespace, _NOTHING)]

    def by_index(self, index: str, value: str) -> Sequence[T]:
        objects = self._objects
        return [objects[key] for key in self._indexes[index].keys.get(value, _NOTHING)]

    def index_values(self, index: str) -> Iterable[str]:
        """The values under which there is something now."""
        return self._indexes[index].keys.keys()

    def keys(self) -> Iterable[ObjectKey]:
        return self._objects.keys()

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    def add_index(self, name: str, function: IndexFunction[T]) -> None:
        """Adding the same index twice is fine; two different ones under one name are not."""
        known = self._indexes.get(name)
        if known is not None:
            if known.function is not function:
                raise ValueError(f"index {name!r} of {self.kind} exists with another function")
            return
        index = _Index(function)
        for key, obj in self._objects.items():
            index.change(key, None, obj)
        self._indexes[name] = index

    def put(self, key: ObjectKey, obj: T) -> T | None:
        """Returns what was there before."""
        self.changes += 1
        old = self._objects.get(key)
        self._objects[key] = obj
        if old is None:
            self._namespaces.setdefault(key.namespace, {})[key] = None
        for index in self._indexes.values():
            index.change(key, old, obj)
        return old

    def remove(self, key: ObjectKey) -> T | None:
        old = self._objects.pop(key, None)
        if old is None:
            return None
        self.changes += 1
        in_namespace = self._namespaces[key.namespace]
        del in_namespace[key]
        if not in_namespace:
            del self._namespaces[key.namespace]
        for index in self._indexes.values():
            index.change(key, old, None)
        return old
