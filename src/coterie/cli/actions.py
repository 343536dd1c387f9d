"""What the commands of `coterie action` share: finding functions, and files of the seed as our kinds."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec

from coterie.base.clock import SYSTEM_CLOCK, parse_rfc3339, rfc3339
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.output import as_list, as_text, plain_table, without_managed_fields
from coterie.cli.session import CliSession
from coterie.cli.tables import render_table
from coterie.kube.api.errors import Forbidden, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.functions.types import ACTIONS, GROUP, TRIGGERS, VERSION, Action, Trigger
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.routes.model import age_text

API_VERSION = f"{GROUP}/{VERSION}"
_NO_DOMAIN = "default"
"""The namespace of a kubeconfig that names none."""
_OF_THE_SEED = ("v1", API_VERSION)
"""Files of the seed say nothing or v1."""

T = TypeVar("T")


def run(args: argparse.Namespace, app: App, work: Callable[[CliSession], Awaitable[int]]) -> int:
    """As `session.run`, in the namespace of a domain: only there functions run."""

    async def in_namespace(session: CliSession) -> int:
        if not args.namespace and session.namespace == _NO_DOMAIN:
            session.namespace = await _own_domain(session)
        return await work(session)

    return sessions.run(args, app, in_namespace)


async def _own_domain(session: CliSession) -> str:
    """The only domain of the control plane; where there is none, or it may not be read, the namespace stays."""
    try:
        own = sorted(each.metadata.name for each in (await session.client.list(DOMAINS)).items if is_own(each))
    except Forbidden:
        own = []
    if len(own) > 1:
        raise CliError(f"Error: this control plane has several domains; say whose functions with -n: {', '.join(own)}")
    return own[0] if own else session.namespace


async def find(session: CliSession, name: str) -> Action:
    try:
        return await session.client.get(ACTIONS, name, session.namespace)
    except NotFound as problem:
        words = "`coterie action ls` lists those that exist"
        raise CliError(f"Error: there is no Action {name} in namespace {session.namespace}; {words}") from problem


async def triggers_of(session: CliSession, name: str) -> list[Trigger]:
    found = (await session.client.list(TRIGGERS, session.namespace)).items
    return sorted((each for each in found if each.spec.action == name), key=lambda each: each.metadata.name)


async def listed(session: CliSession, kind: Kind[T], *, everywhere: bool = False) -> list[tuple[Object, T]]:
    """Objects as they are and as typed data, by name."""
    dynamic = kind.as_dynamic
    found = (await session.client.list(dynamic, session.place(kind.resource, everywhere))).items
    head = {"apiVersion": kind.resource.api_version, "kind": kind.resource.kind}
    whole = [{**head, **each} for each in found]
    whole.sort(key=lambda each: (each["metadata"].get("namespace", ""), each["metadata"]["name"]))
    return [(each, kind.decode(dynamic.encode(each))) for each in whole]


def print_objects(session: CliSession, objects: Sequence[Object], form: str, *, single: bool = False) -> None:
    shown = [without_managed_fields(each) for each in objects]
    session.app.write(as_text(shown[0] if single else as_list(shown), form))


def print_table(
    session: CliSession, columns: Sequence[str], rows: Sequence[Sequence[object]], wide_from: int = 99
) -> None:
    session.app.write(render_table(plain_table(columns, rows, wide_from), colour=session.app.colour))


def print_listing(
    session: CliSession, form: str, kind: Kind[Any], found: Sequence[tuple[Object, Any]], none: str
) -> bool:
    """Whether that was all: what `-o` asks for, or `none` where there is nothing. Else the caller prints its table."""
    if form in ("json", "yaml"):
        print_objects(session, [each for each, _ in found], form)
    elif form == "name":
        for _, each in found:
            session.app.say(f"{kind.resource.singular}.{kind.resource.group}/{each.metadata.name}")
    elif not found:
        session.app.warn(none)
    else:
        return False
    return True


def age(created: str | None) -> str:
    return age_text((SYSTEM_CLOCK.now() - parse_rfc3339(created)).total_seconds() if created else None)


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """`K=V` of a repeated option."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {text}: write NAME=VALUE")
        if name in found:
            raise UsageError(f"{option} {name} is given twice")
        found[name] = value
    return found


def http_trigger(text: str, key: str = "") -> Object:
    """`/path` or `/path:GET,POST`."""
    path, colon, methods = text.partition(":")
    if not path.startswith("/"):
        raise UsageError(f"--http {text}: write a path such as /calc, or /calc:GET,POST")
    names = [each.strip().upper() for each in methods.split(",") if each.strip()]
    if colon and not names:
        raise UsageError(f"--http {text}: name the methods after the colon, or leave it out")
    return {"path": path, **({"methods": names} if names else {}), **({"key": key} if key else {})}


def moment(text: str, now: datetime) -> str:
    """`2026-12-31T00:00:00Z`, or a time from now: `90m`, `12h`, `30d`."""
    factor = {"m": 60, "h": 3600, "d": 86400}.get(text[-1:])
    if factor and text[:-1].isdigit() and len(text) < 8:
        return rfc3339(now + timedelta(seconds=int(text[:-1]) * factor))
    try:
        return rfc3339(parse_rfc3339(text))
    except ValueError as error:
        raise UsageError(f"--until {text}: write a time such as 2026-12-31T00:00:00Z, or 12h, 30d") from error


def condition_line(action: Action) -> str:
    """What is wrong with an action; empty when nothing is."""
    for condition in action.status.conditions or ():
        bad = "True" if condition.type == "ReloadFailed" else "False"
        if condition.status == bad:
            return f"{condition.type}: {condition.message or condition.reason}"
    return ""


# Files.


def of_the_seed(obj: Mapping[str, Any]) -> Object:
    """Actions and Ingresses of Cubernetes as our kinds; all else as it is. Pure."""
    kind, spec = obj.get("kind"), obj.get("spec")
    if obj.get("apiVersion") not in _OF_THE_SEED:
        return dict(obj)
    if kind == "Ingress" and isinstance(spec, dict) and "invokeAction" in spec:
        http: Object = {"path": spec.get("trigger", "")}
        if spec.get("httpType"):
            http["methods"] = [spec["httpType"]]
        changed: Object = {"action": spec["invokeAction"], "http": http}
        return {**obj, "apiVersion": API_VERSION, "kind": TRIGGERS.resource.kind, "spec": changed}
    if kind == ACTIONS.resource.kind:
        changed = dict(spec) if isinstance(spec, dict) else {}
        changed.pop("scriptUID", None)
        if "invokeActions" in changed:
            changed["next"] = changed.pop("invokeActions")
        return {**obj, "apiVersion": API_VERSION, "spec": changed}
    return dict(obj)


def typed_spec(obj: Object, kind: type[T]) -> T:
    try:
        return msgspec.convert(obj.get("spec") or {}, kind)
    except msgspec.ValidationError as error:
        name = (obj.get("metadata") or {}).get("name", "")
        raise CliError(f"Error: {obj.get('kind')} {name}: spec: {error}") from error
