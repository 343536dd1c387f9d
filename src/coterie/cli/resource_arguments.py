"""What the words of a command mean: `pods`, `pods,svc`, `deploy web api`, `pod/web-0 svc/web`, `all`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.cli.app import UsageError
from coterie.kube.api.resources import Resource
from coterie.kube.client.discovery import RestMapper, UnknownResource


@dataclass(frozen=True, slots=True)
class ResourceArgument:
    """Objects of one resource; without names, all that the selectors let through."""

    resource: Resource
    names: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return kind_name(self.resource)


def kind_name(resource: Resource) -> str:
    """`pod`, `deployment.apps`: how objects are called in lines that people read."""
    kind = resource.kind.lower()
    return f"{kind}.{resource.group}" if resource.group else kind


def parse(words: Sequence[str], catalogue: RestMapper, command: str) -> list[ResourceArgument]:
    """Raises UsageError for words that make no sense together, UnknownResource for types the server does not have."""
    if not words:
        raise UsageError(
            f"say which type of object is meant, e.g. `coterie {command} pods`; `coterie api-resources` lists the types"
        )
    if "/" in words[0]:
        return _pairs(words, catalogue)
    if any("/" in name for name in words[1:]):
        raise UsageError("write either TYPE NAME... or TYPE/NAME..., not both at once")
    names = tuple(dict.fromkeys(words[1:]))
    return [ResourceArgument(resource, names) for resource in _resources(words[0], catalogue)]


def _resources(listed: str, catalogue: RestMapper) -> list[Resource]:
    found: dict[Resource, None] = {}
    for word in listed.split(","):
        try:
            found[catalogue.find(word)] = None
        except UnknownResource:
            category = catalogue.in_category(word.lower())
            if not category:
                raise
            found |= dict.fromkeys(category)
    return list(found)


def _pairs(words: Sequence[str], catalogue: RestMapper) -> list[ResourceArgument]:
    names: dict[Resource, dict[str, None]] = {}
    for word in words:
        kind, slash, name = word.partition("/")
        if not slash or not kind or not name or "/" in name:
            raise UsageError(f'"{word}" is not TYPE/NAME; write either TYPE NAME... or TYPE/NAME..., not both at once')
        names.setdefault(catalogue.find(kind), {})[name] = None
    return [ResourceArgument(resource, tuple(found)) for resource, found in names.items()]
