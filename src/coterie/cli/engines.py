"""What an AppImage offers, as rows of a table, and what is wrong with one before it is given to the server. Pure.

The server checks shapes; these are the faults that would otherwise show when the first task fails.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from coterie.kube.agent.images.model import ImageError, normalise
from coterie.kube.api.meta import Object
from coterie.kuscia.api.appimages import roles_of
from coterie.kuscia.api.engine_versions import annotation_faults
from coterie.kuscia.api.types.job import AppImage, DeployTemplate
from coterie.kuscia.engine.templates import template
from coterie.kuscia.engine.templates.errors import TemplateError

_PORT_NAME = re.compile(r"(?=.{1,15}$)[a-z0-9]+(-[a-z0-9]+)*")
_SCOPES = ("Cluster", "Domain", "Local")
_PROTOCOLS = ("HTTP", "GRPC", "HTTPS", "GRPCS")


def row(engine: AppImage) -> tuple[str, str, str, str]:
    """Name, image, roles, ports."""
    spec = engine.spec
    roles = sorted({role for each in spec.deploy_templates for role in roles_of(each)})
    ports = dict.fromkeys(
        f"{port.get('name')}/{port.get('protocol') or 'HTTP'}"
        for each in spec.deploy_templates
        for container in containers(each)
        for port in _dicts(container, "ports")
        if (port.get("scope") or "Local") == "Cluster"
    )
    image = f"{spec.image.name}:{spec.image.tag}"
    return engine.metadata.name, image, ",".join(roles) or "<any>", ",".join(ports) or "<none>"


def faults(obj: Object) -> list[str]:
    """Sentences; none: it can be used."""
    try:
        engine = msgspec.convert(obj, AppImage)
    except msgspec.ValidationError as problem:
        return [f"{problem}"]
    versions = [f"metadata.annotations: {fault}" for fault in annotation_faults(engine.metadata.annotations)]
    return [*versions, *_image_faults(engine), *_template_faults(engine), *_deploy_faults(engine)]


def containers(each: DeployTemplate) -> list[dict[str, Any]]:
    return _dicts(each.spec, "containers")


def _dicts(whole: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The objects of a list; what is of another shape the server refuses."""
    found = whole.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _image_faults(engine: AppImage) -> Iterator[str]:
    image = engine.spec.image
    try:
        normalise(f"{image.name}:{image.tag}")
    except ImageError as problem:
        yield f"spec.image: {problem}"


def _template_faults(engine: AppImage) -> Iterator[str]:
    for name, text in (engine.spec.config_templates or {}).items():
        try:
            template.parse(text)
        except TemplateError as problem:
            yield f"spec.configTemplates[{name}]: {problem}"


def _deploy_faults(engine: AppImage) -> Iterator[str]:
    templates = engine.spec.deploy_templates
    if not templates:
        yield "spec.deployTemplates: at least one is needed; it says what a party runs"
    yield from _twice((each.name for each in templates), "spec.deployTemplates: two have the name")
    yield from _twice(
        (role for each in templates for role in set(roles_of(each))), "spec.deployTemplates: two are for the role"
    )
    for number, each in enumerate(templates):
        path = f"spec.deployTemplates[{number}]"
        if each.replicas is not None and each.replicas < 1:
            yield f"{path}.replicas: a party needs at least one pod"
        found = containers(each)
        if not found:
            yield f"{path}.spec.containers: at least one is needed"
        yield from _twice((str(one.get("name")) for one in found), f"{path}.spec.containers: two have the name")
        ports = [port for one in found for port in _dicts(one, "ports")]
        yield from _twice((str(port.get("name")) for port in ports), f"{path}: two ports have the name")
        for at, one in enumerate(found):
            yield from _container_faults(f"{path}.spec.containers[{at}]", one, engine.spec.config_templates or {})


def _container_faults(path: str, container: dict[str, Any], known: dict[str, str]) -> Iterator[str]:
    if not container.get("name"):
        yield f"{path}.name: is missing"
    for port in _dicts(container, "ports"):
        name, scope, protocol = port.get("name") or "", port.get("scope") or "Local", port.get("protocol") or "HTTP"
        if not _PORT_NAME.fullmatch(str(name)):
            yield f'{path}.ports: "{name}" is no port name; take up to 15 lower-case letters, digits and dashes'
        if scope not in _SCOPES:
            yield f"{path}.ports[{name}].scope: is one of {', '.join(_SCOPES)}, not {scope!r}"
        if protocol not in _PROTOCOLS:
            yield f"{path}.ports[{name}].protocol: is one of {', '.join(_PROTOCOLS)}, not {protocol!r}"
    for mount in _dicts(container, "configVolumeMounts"):
        target, inside = str(mount.get("mountPath") or ""), str(mount.get("subPath") or "")
        if not target.startswith("/"):
            yield f'{path}.configVolumeMounts: mountPath "{target}" must begin with /'
        if inside not in known:
            there = ", ".join(sorted(known)) or "none"
            yield f'{path}.configVolumeMounts: subPath "{inside}" is no key of configTemplates; there are {there}'


def _twice(names: Iterable[str], words: str) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield f'{words} "{name}"'
