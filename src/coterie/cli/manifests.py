"""Objects from files: YAML with several documents, JSON, `List` objects, directories and the standard input.

Every object remembers where it stood, so that a refusal can name the place. Nothing is checked here beyond what is
needed to send it; the server knows the rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from coterie.cli.app import App, CliError
from coterie.kube.api.meta import Object

_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object and the place it was read from."""

    object: Object
    place: str

    @property
    def api_version(self) -> str:
        return str(self.object["apiVersion"])

    @property
    def kind(self) -> str:
        return str(self.object["kind"])

    @property
    def name(self) -> str:
        return str(self.object["metadata"].get("name") or "")

    @property
    def namespace(self) -> str:
        return str(self.object["metadata"].get("namespace") or "")


class _Loader(yaml.CSafeLoader):
    """YAML as JSON sees it: a date stays text, and a key that stands twice is an error instead of a lost value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f'the key "{key.value}" stands twice', key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def read(names: Sequence[str], app: App, *, recursive: bool = False, api_version: str = "") -> list[Manifest]:
    """All objects in the order in which they stand. `api_version`: of those that do not say it."""
    found = [manifest for name in names for manifest in _source(name, app, recursive, api_version)]
    if not found:
        raise CliError(
            f"Error: no objects in {', '.join(names)}; a file must hold at least one with apiVersion and kind"
        )
    return found


def _source(name: str, app: App, recursive: bool, api_version: str) -> Iterator[Manifest]:
    if name == "-":
        yield from parse(app.stdin.read(), "standard input", api_version)
        return
    path = app.cwd / Path(name).expanduser()
    if path.is_dir():
        for each in sorted(path.rglob("*") if recursive else path.iterdir()):
            if each.suffix in _SUFFIXES and each.is_file():
                yield from parse(_text(each, str(each)), str(each), api_version)
        return
    yield from parse(_text(path, name), name, api_version)


def _text(path: Path, name: str) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError as error:
        raise CliError(f"Error: there is no file {name}; check the name given with -f") from error
    except OSError as error:
        raise CliError(f"Error: {name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CliError(f"Error: {name} is not text in UTF-8; save it as such") from error


def parse(text: str, place: str, api_version: str = "") -> Iterator[Manifest]:
    try:
        documents = list(yaml.load_all(text, Loader=_Loader))
    except yaml.YAMLError as error:
        raise CliError(f"Error: {place} is not valid YAML: {_yaml_error(error)}") from error
    except (ValueError, RecursionError) as error:
        raise CliError(f"Error: {place} is not valid YAML: {error}") from error
    for number, document in enumerate(documents, 1):
        if api_version and isinstance(document, dict):
            document.setdefault("apiVersion", api_version)
        if document is not None:
            yield from _objects(document, f"{place}, document {number}" if len(documents) > 1 else place)


def _objects(document: Any, place: str) -> Iterator[Manifest]:
    if not isinstance(document, dict):
        raise CliError(f"Error: {place}: an object must be a mapping with apiVersion, kind and metadata")
    for key in ("apiVersion", "kind"):
        if not isinstance(document.get(key), str) or not document[key]:
            raise CliError(f"Error: {place}: {key} is missing; every object must say it")
    if document["kind"].endswith("List") and isinstance(document.get("items"), list):
        # A `PodList` may leave out what its items are; a plain `List` may not.
        kind = document["kind"].removesuffix("List")
        named = {"apiVersion": document["apiVersion"], "kind": kind} if kind else {}
        for number, item in enumerate(document["items"]):
            yield from _objects({**named, **item} if isinstance(item, dict) else item, f"{place}, items[{number}]")
        return
    if not isinstance(document.get("metadata"), dict):
        raise CliError(f"Error: {place}: metadata is missing; at least metadata.name must be there")
    yield Manifest(document, place)


def _yaml_error(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{error.problem or error.context} (line {mark.line + 1}, column {mark.column + 1})"
    return str(error).splitlines()[0]
