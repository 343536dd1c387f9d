"""The CustomResourceDefinitions, ready to be stored and served: of `kuscia.secretflow/v1alpha1` Kuscia's eighteen, and our
PartnerPolicy and DomainDataRecord; of `coterie.io/v1alpha1` Dns, GPU jobs and serverless functions.

Each lies in `crds/<plural>.yaml` (`crds/<plural>.<group>.yaml` in another group), written for people: a schema node may say `x-coterie-embed: <type>` instead of
spelling a type out. Types of Kuscia (`kuscia/PodSpec`) are in `types.yaml`; types of Kubernetes (`v1/Probe`,
`apps/v1/DeploymentStrategy`) are taken from the schema files of the `kubernetes-validate` package. `load` replaces
the markers, so what it returns is plain structural schemas that any API server accepts:

    crds/*.yaml  ─┐
    types.yaml   ─┼─ load() ─> [CustomResourceDefinition, ...], each with the annotation HASH_ANNOTATION
    Kubernetes   ─┘

Expanding costs some tens of milliseconds, so the server first compares `hashes()` with what it has stored and loads
only the definitions that are new or changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import yaml

Node = dict[str, Any]

GROUP = "kuscia.secretflow"
VERSION = "v1alpha1"
HASH_ANNOTATION = "coterie.io/definition-hash"

_KUBERNETES = "v1.36.0"
_FORMAT = "1"
"""Part of every hash: count it up when this module expands the same files to something else."""

_EMBED = "x-coterie-embed"
_EXTEND = "x-coterie-extend"
"""More properties for an embedded type; stands beside `x-coterie-embed`."""

_HERE = Path(__file__).parent
_KEPT_EXTENSIONS = frozenset({"x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"})
_PREFIXES = {
    "v1": "io.k8s.api.core.v1.",
    "apps/v1": "io.k8s.api.apps.v1.",
    "resource": "io.k8s.apimachinery.pkg.api.resource.",
}
_INT_OR_STRING: Node = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
_NUMBER = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)"
_QUANTITY: Node = {**_INT_OR_STRING, "pattern": rf"^[+-]?{_NUMBER}([KMGTPE]i|[numkMGTPE]|[eE][+-]?{_NUMBER})?$"}
_SPECIAL: dict[str, Node] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": _QUANTITY,
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": _INT_OR_STRING,
}
_HEAD: Node = {
    "apiVersion": {"type": "string", "description": "Group and version of the schema of this object."},
    "kind": {"type": "string", "description": "Type of this object, in CamelCase; cannot be changed."},
    "metadata": {"type": "object"},
}


def hashes() -> dict[str, str]:
    """Name and content hash of every definition, without expanding any."""
    common = hashlib.sha256(f"{_FORMAT} {_KUBERNETES} ".encode() + (_HERE / "types.yaml").read_bytes())
    out: dict[str, str] = {}
    for path in _files():
        own = common.copy()
        own.update(path.read_bytes())
        out[_name(path)] = own.hexdigest()[:32]
    return out


def load(names: Collection[str] | None = None) -> list[Node]:
    """The definitions of these names (all when None), sorted by name."""
    digests = hashes()
    types = yaml.load((_HERE / "types.yaml").read_bytes(), Loader=yaml.CSafeLoader)
    expander = _Expander(types)
    out: list[Node] = []
    for path in _files():
        name = _name(path)
        if names is not None and name not in names:
            continue
        definition: Node = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
        definition["metadata"]["annotations"] = {HASH_ANNOTATION: digests[name]}
        for version in definition["spec"]["versions"]:
            schema = expander.node(version["schema"]["openAPIV3Schema"])
            schema["properties"] = {**_HEAD, **schema["properties"]}
            version["schema"]["openAPIV3Schema"] = schema
        out.append(definition)
    return out


def _name(path: Path) -> str:
    return path.stem if "." in path.stem else f"{path.stem}.{GROUP}"


def _files() -> list[Path]:
    return sorted((_HERE / "crds").glob("*.yaml"))


class _Expander:
    """Replaces markers. One expanded type is one object, shared by all places that embed it: nobody may change them."""

    def __init__(self, types: dict[str, Node]) -> None:
        self._types = types
        self._done: dict[str, Node] = {}
        self._definitions: dict[str, msgspec.Raw] | None = None

    def node(self, node: Node) -> Node:
        marker = node.get(_EMBED)
        if marker is not None:
            out = dict(self._embedded(marker))
            more = node.get(_EXTEND)
            if more:
                out["properties"] = {**out["properties"], **{key: self.node(value) for key, value in more.items()}}
            out.update((key, value) for key, value in node.items() if key not in (_EMBED, _EXTEND))
            return out
        out = dict(node)
        if "properties" in out:
            out["properties"] = {key: self.node(value) for key, value in out["properties"].items()}
        for key in ("items", "additionalProperties"):
            if key in out:
                out[key] = self.node(out[key])
        return out

    def _embedded(self, marker: str) -> Node:
        found = self._done.get(marker)
        if found is None:
            space, _, name = marker.rpartition("/")
            found = self.node(self._types[name]) if space == "kuscia" else self._kubernetes(_PREFIXES[space] + name)
            self._done[marker] = found
        return found

    def _kubernetes(self, name: str) -> Node:
        """A type of Kubernetes as a structural schema: references inlined, one type for each node."""
        special = _SPECIAL.get(name)
        if special is not None:
            return special
        found = self._done.get(name)
        if found is None:
            if self._definitions is None:
                self._definitions = _kubernetes_definitions()
            found = self._done[name] = self._structural(msgspec.json.decode(self._definitions[name]))
        return found

    def _structural(self, node: Node) -> Node:
        reference = node.get("$ref")
        out = dict(self._kubernetes(reference.rpartition("/")[2])) if reference else {}
        for key, value in node.items():
            if key == "type":
                # The files say ["string", "null"]; in a custom resource null is simply not sent.
                out["type"] = next(t for t in value if t != "null") if isinstance(value, list) else value
            elif key == "properties":
                out["properties"] = {name: self._structural(child) for name, child in value.items()}
            elif key in ("items", "additionalProperties"):
                out[key] = self._structural(value)
            elif key in ("description", "format", "required", "enum") or key in _KEPT_EXTENSIONS:
                out[key] = value
        return out


@cache
def _kubernetes_definitions_file() -> Path:
    # The package is only looked up: importing it would load a JSON schema validator that is not needed here.
    spec = find_spec("kubernetes_validate")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the package kubernetes-validate is not installed: it holds the schemas of Kubernetes")
    root = Path(spec.submodule_search_locations[0])
    return root / "kubernetes-json-schema" / f"{_KUBERNETES}-local" / "_definitions.json"


class _DefinitionsFile(msgspec.Struct):
    defs: dict[str, msgspec.Raw] = msgspec.field(name="$defs")


def _kubernetes_definitions() -> dict[str, msgspec.Raw]:
    """Every definition, still as bytes: of two thousand some thirty are needed."""
    return msgspec.json.decode(_kubernetes_definitions_file().read_bytes(), type=_DefinitionsFile).defs
