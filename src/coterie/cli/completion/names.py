"""Names for the word at the cursor, by source: files of this machine, or objects of the control plane."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol
from urllib.parse import quote

from coterie.cli.completion.question import CompletionQuestion

_KUSCIA = "/apis/kuscia.secretflow/v1alpha1"
_COTERIE = "/apis/coterie.io/v1alpha1"
_JOBS = f"{_KUSCIA}/namespaces/cross-domain/kusciajobs"
_LISTS = {
    "jobs": _JOBS,
    "deployments": f"{_KUSCIA}/namespaces/cross-domain/kusciadeployments",
    "tasks": f"{_KUSCIA}/namespaces/cross-domain/kusciatasks",
    "domains": f"{_KUSCIA}/domains",
    "engines": f"{_KUSCIA}/appimages",
    "policies": f"{_KUSCIA}/partnerpolicies",
    "log-requests": f"{_KUSCIA}/logrequests",
    "nodes": "/api/v1/nodes",
    "namespaces": "/api/v1/namespaces",
    "runtime-classes": "/apis/node.k8s.io/v1/runtimeclasses",
}
"""Where objects are listed whatever namespace was chosen."""
_OF_DOMAIN = {
    "tables": (_KUSCIA, "domaindatas"),
    "grants": (_KUSCIA, "domaindatagrants"),
    "data-sources": (_KUSCIA, "domaindatasources"),
}
"""In the namespace of the chosen domain, otherwise in all."""
_OF_NAMESPACE = {
    "pods": ("/api/v1", "pods"),
    "services": ("/api/v1", "services"),
    "config-maps": ("/api/v1", "configmaps"),
    "gpu-jobs": (_COTERIE, "gpujobs"),
    "slurm-clusters": (_COTERIE, "slurmclusters"),
}
_OF_FUNCTIONS = {
    "actions": "actions",
    "triggers": "triggers",
    "dead-letters": "deadletters",
}
"""In the chosen namespace, otherwise in all: functions are in namespaces of domains, and a kubeconfig has none of these."""
FILE_SOURCES = frozenset(("files", "directories"))
"""The shell completes these by itself, also when names were found: `diagnose job FILE|JOB` is `jobs|files`."""
LOCAL_SOURCES = frozenset(("local-domains", "contexts"))


class ObjectReader(Protocol):
    """A control plane, as far as completion needs it."""

    namespace: str

    def get(self, path: str, *, metadata_only: bool = False, discovery: bool = False) -> Mapping[str, Any]:
        """The document at a path; empty: there is none, or it may not be read."""


def names(asked: CompletionQuestion, source: str, server: ObjectReader) -> list[str]:
    """All names of the source, in the server's order. They may hold anything: a partner chose some of them."""
    namespace = asked.options.get("namespace") or server.namespace
    if source in _LISTS:
        return _listed(server, _LISTS[source])
    if source in _OF_DOMAIN:
        root, plural = _OF_DOMAIN[source]
        domain = asked.options.get("domain", "")
        return _listed(server, f"{root}/namespaces/{quote(domain)}/{plural}" if domain else f"{root}/{plural}")
    if source in _OF_NAMESPACE:
        root, plural = _OF_NAMESPACE[source]
        return _listed(server, f"{root}/namespaces/{quote(namespace)}/{plural}")
    if source in _OF_FUNCTIONS:
        return _listed(server, f"{_COTERIE}{_function_namespace(namespace)}/{_OF_FUNCTIONS[source]}")
    special = _SPECIAL.get(source)
    return special(asked, server, namespace) if special is not None else []


def _listed(server: ObjectReader, path: str) -> list[str]:
    items = server.get(f"{path}?limit=1000", metadata_only=True).get("items")
    return [_text(_part(item, "metadata").get("name")) for item in _objects(items)]


def _function_namespace(namespace: str) -> str:
    return "" if namespace == "default" else f"/namespaces/{quote(namespace)}"


# Names that depend on the words before.


def _route_ends(asked: CompletionQuestion, server: ObjectReader, namespace: str) -> list[str]:
    """Sources of routes, then the destinations of routes from the chosen source."""
    found = server.get(f"{_KUSCIA}/clusterdomainroutes?limit=1000").get("items")
    specs = [_part(route, "spec") for route in _objects(found)]
    chosen = asked.words[1:]  # without the action
    if not chosen:
        return [_text(spec.get("source")) for spec in specs]
    return [_text(spec.get("destination")) for spec in specs if spec.get("source") == chosen[0]]


def _job(asked: CompletionQuestion, server: ObjectReader) -> list[Mapping[str, Any]]:
    """Tasks of the job that was named: `job logs NAME`, `logrequest create NAME`."""
    words = asked.words[1:] if asked.command == "logrequest" else asked.words
    return _objects(_part(server.get(f"{_JOBS}/{quote(words[0], safe='')}"), "spec").get("tasks")) if words else []


def _job_tasks(asked: CompletionQuestion, server: ObjectReader, namespace: str) -> list[str]:
    return [_text(task.get("alias")) for task in _job(asked, server)]


def _job_parties(asked: CompletionQuestion, server: ObjectReader, namespace: str) -> list[str]:
    parties = [_text(party.get("domainID")) for task in _job(asked, server) for party in _objects(task.get("parties"))]
    return parties or _listed(server, _LISTS["domains"])


def _action_versions(asked: CompletionQuestion, server: ObjectReader, namespace: str) -> list[str]:
    """Versions of the action that was named: `action rollback NAME --to VERSION`."""
    if not asked.words:
        return []
    found = _objects(server.get(f"{_COTERIE}{_function_namespace(namespace)}/actions?limit=1000").get("items"))
    mine = [each for each in found if _part(each, "metadata").get("name") == asked.words[0]]
    return [_text(each.get("name")) for action in mine for each in _objects(_part(action, "status").get("versions"))]


def _containers(asked: CompletionQuestion, server: ObjectReader, namespace: str) -> list[str]:
    if not asked.words:
        return []
    name = asked.words[0].removeprefix("pods/").removeprefix("pod/")
    spec = _part(server.get(f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name, safe='')}"), "spec")
    return [_text(each.get("name")) for each in _objects(spec.get("containers"))]


def _objects_by_type(asked: CompletionQuestion, server: ObjectReader, namespace: str) -> list[str]:
    """`TYPE NAME...` or `TYPE/NAME...`: types of the server, then names of the chosen one."""
    types = _types(server)
    word, slash, _ = asked.typed.partition("/")
    if slash:
        return [f"{word}/{name}" for name in _of_type(word, types, server, namespace)]
    if not asked.words or "/" in asked.words[0]:
        return [plural for plural, _, _ in types.values()]
    return _of_type(asked.words[0], types, server, namespace)


def _of_type(word: str, types: Mapping[str, tuple[str, str, bool]], server: ObjectReader, namespace: str) -> list[str]:
    found = types.get(word.lower().partition(".")[0])
    if found is None:
        return []
    plural, root, namespaced = found
    return _listed(server, f"{root}/namespaces/{quote(namespace)}/{plural}" if namespaced else f"{root}/{plural}")


def _types(server: ObjectReader) -> dict[str, tuple[str, str, bool]]:
    """(plural, path of the group, namespaced) by plural, singular and short name; a plural wins over a short name."""
    by_plural: dict[str, tuple[str, str, bool]] = {}
    by_other: dict[str, tuple[str, str, bool]] = {}
    for path in ("/api", "/apis"):
        for group in _objects(server.get(path, discovery=True).get("items")):
            name = _text(_part(group, "metadata").get("name"))
            for version in _objects(group.get("versions")):
                root = f"/apis/{name}/{version.get('version')}" if name else f"/api/{version.get('version')}"
                for resource in _objects(version.get("resources")):
                    if "list" not in (resource.get("verbs") or ()):
                        continue
                    plural = _text(resource.get("resource"))
                    found = (plural, root, resource.get("scope") == "Namespaced")
                    by_plural.setdefault(plural, found)
                    for other in (resource.get("singularResource"), *(resource.get("shortNames") or ())):
                        by_other.setdefault(_text(other), found)
    return {**by_other, **by_plural}


_SPECIAL: Mapping[str, Callable[[CompletionQuestion, ObjectReader, str], list[str]]] = {
    "routes": _route_ends,
    "job-tasks": _job_tasks,
    "job-parties": _job_parties,
    "containers": _containers,
    "action-versions": _action_versions,
    "objects": _objects_by_type,
}
SOURCES = frozenset((*_LISTS, *_OF_DOMAIN, *_OF_NAMESPACE, *_OF_FUNCTIONS, *_SPECIAL, *FILE_SOURCES, *LOCAL_SOURCES))


# Documents of a server are not trusted to have the right shape.


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _part(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def offered(found: Iterable[str], typed: str) -> list[str]:
    """Names that fit, each once. One with a control character, a line break or a mark that hides or reorders text is
    left out: it could write on the terminal when it is listed."""
    return [name for name in dict.fromkeys(found) if name and name.startswith(typed) and name.isprintable()]
