"""Which objects a list or watch is about: namespace, name, labels, fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coterie.kube.apiserver.state.entry import ObjectEntry, Selectable

LabelMatch = Callable[[Mapping[str, str] | None], bool]
FieldMatch = Callable[[Mapping[str, str]], bool]


@dataclass(frozen=True, slots=True)
class ObjectFilter:
    """A predicate over entries. `text` identifies it: equal texts select the same objects."""

    namespace: str = ""
    name: str = ""
    labels: LabelMatch | None = None
    fields: FieldMatch | None = None
    selectable: Selectable | None = None
    text: str = ""

    @property
    def everything(self) -> bool:
        """True when only the namespace narrows: then counting what is left is exact."""
        return not self.name and self.labels is None and self.fields is None

    def matches(self, entry: ObjectEntry) -> bool:
        if self.namespace and entry.namespace != self.namespace:
            return False
        if self.name and entry.name != self.name:
            return False
        if self.labels is not None and not self.labels(entry.labels):
            return False
        if self.fields is not None:
            assert self.selectable is not None
            return self.fields(entry.fields(self.selectable))
        return True
