"""`coterie route`: the ways between domains: add, list, remove, and find out why one does not work."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson

from coterie.base.clock import SYSTEM_CLOCK
from coterie.cli import arguments as options
from coterie.cli import network, node_health
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.commands.domain import own_name, read_certificate
from coterie.cli.output import as_list, as_text, plain_table, without_managed_fields
from coterie.cli.progress import working
from coterie.cli.session import CliSession
from coterie.cli.tables import render_table
from coterie.kube.api.errors import NotFound
from coterie.kube.api.meta import Object
from coterie.kuscia.api.domain_ownership import is_own, is_partner, master_of
from coterie.kuscia.api.domainroutes import route_faults, route_name
from coterie.kuscia.api.kuscia_wire import WEAKNESSES, KusciaWireForm, wire_faults, wire_forms
from coterie.kuscia.api.labels import COTERIE_KUSCIA_WIRE
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES, DOMAINS, REVERSE_TUNNEL, ClusterDomainRoute, Domain
from coterie.kuscia.gateway.settings import MasterEndpoint
from coterie.kuscia.routes import check, model, probe
from coterie.kuscia.routes.facts import CheckOutcome, Finding
from coterie.kuscia.routes.model import RouteLine
from coterie.node import config

HELP = """
Manage routes between domains. A route has one direction: SOURCE may call services of DESTINATION that are opened to
it. Both control planes need the route; the source also needs the address of the destination's gateway.

  add SOURCE DESTINATION     create or change a route; with --both also the reverse route, for calls from the other side
  ls                         list routes, whether they are ready, and why not
  rm SOURCE DESTINATION      remove a route
  check SOURCE DESTINATION   test step by step: name, TCP, TLS, certificate, gateway, clock, token, routes between the
                             two control planes, service

Examples:
  coterie route add alice bob --endpoint https://10.0.0.2:1080 --both
  coterie route add alice bob --endpoint https://10.0.0.2:1080 --cert bob.crt   # also adds bob as a partner
  coterie route add alice carol --via bob                # bob forwards the traffic; it stays encrypted end to end
  coterie route add alice dave --tunnel                  # dave has no public port and connects to us
  coterie route add alice kuscia1 --endpoint https://10.0.0.9:1080 --both --kuscia-wire no-client-certificate
  coterie route ls
  coterie route check alice bob --service psi
  coterie route rm alice bob --both
"""
_ACTIONS = ("add", "ls", "list", "rm", "check")
_ROUTE = CLUSTER_DOMAIN_ROUTES.as_dynamic
_MARKS = {
    CheckOutcome.OK: "green",
    CheckOutcome.WRONG: "red",
    CheckOutcome.WARNING: "yellow",
    CheckOutcome.SKIPPED: "dim",
    CheckOutcome.UNKNOWN: "yellow",
}


def arguments(parser: options.Parser) -> None:
    parser.add_argument("action", choices=_ACTIONS, metavar="add|ls|rm|check", help="action")
    options.words_argument(parser)
    make = parser.add_argument_group("for add")
    make.add_argument(
        "--endpoint", metavar="URL", default="", help="gateway of the destination, e.g. https://host:1080"
    )
    make.add_argument("--via", metavar="DOMAIN", default="", help="domain that forwards the traffic (transit)")
    make.add_argument("--tunnel", action="store_true", help="the destination has no public port and connects to us")
    make.add_argument("--body-encryption", action="store_true", help="also encrypt bodies between the two gateways")
    make.add_argument(
        "--kuscia-wire",
        metavar="FORMS",
        default="",
        help="weaker forms that a partner with Kuscia needs, with commas: " + ", ".join(KusciaWireForm),
    )
    make.add_argument("--cert", metavar="FILE", default="", help="certificate of the partner, if it is not added yet")
    parser.add_argument("--both", action="store_true", help="for add and rm: also the reverse route")
    parser.add_argument("--service", metavar="NAME", default="", help="for check: also test access to this service")
    options.output_option(parser, ("table", "json", "yaml"))
    options.connection_options(parser)
    parser.complete(
        words={"add": ("domains", "domains"), "rm": ("routes", "routes"), "check": ("routes", "routes")},
        service="services",
    )


def run(args: argparse.Namespace, app: App) -> int:
    action = "ls" if args.action == "list" else args.action
    if action == "ls":
        if args.words:
            raise UsageError("`coterie route ls` takes no names; `coterie route check SOURCE DESTINATION` looks at one")
        return _list(args, app)
    if len(args.words) != 2:
        raise UsageError(f"say which route: coterie route {action} SOURCE DESTINATION")
    aim(args, app)
    return sessions.run(args, app, lambda session: _RUN[action](session, args))


def aim(args: argparse.Namespace, app: App) -> None:
    """Of several control planes on this machine the source's is meant, or the destination's, unless one was named."""
    if args.kubeconfig or args.context or args.domain or (app.environ.get("KUBECONFIG") and not args.root):
        return
    domains = sessions.domains_under(sessions.root_of(args, app))
    if len(domains) > 1:
        args.domain = next((name for name in args.words if name in domains), "")


# add, rm.


async def _add(session: CliSession, args: argparse.Namespace) -> int:
    source, destination = args.words
    if args.via and args.tunnel:
        raise UsageError("a route goes --via a domain or through a --tunnel, not both")
    endpoint = _endpoint(args.endpoint)
    if args.cert:
        await _ensure_partner(session, args)
    ends = {name: await _domain(session, name) for name in (source, destination)}
    for name, found in ends.items():
        if found is None:
            raise CliError(
                f"Error: this control plane knows no domain {name}; add it with "
                f"`coterie domain add {name} --partner --cert {name}.crt`, or name its certificate here with --cert"
            )
    forms = _wire_forms(args.kuscia_wire)
    here, back = (_forms_for(forms, *pair, ends) for pair in ((source, destination), (destination, source)))
    if unused := forms - here - (back if args.both else frozenset()):
        way = "from" if KusciaWireForm.NO_CLIENT_CERTIFICATE in unused else "to"
        raise UsageError(f"--kuscia-wire: {', '.join(sorted(unused))} is for a route {way} a partner")
    wanted = [_desired_route(args, source, destination, endpoint, here)]
    if args.both:
        wanted.append(
            model.route(
                destination,
                source,
                body_encryption=args.body_encryption,
                kuscia_wire=back - {KusciaWireForm.REVERSE_TUNNEL},
            )
        )
    for each in wanted:
        _refuse_faults(each, ends)
    made = [await _put(session, each) for each in wanted]
    if args.output != "table":
        objects = [without_managed_fields(each) for each, _ in made]
        session.app.write(as_text(objects[0] if len(objects) == 1 else as_list(objects), args.output))
        return 0
    for each, word in made:
        name = f"{each['spec']['source']} -> {each['spec']['destination']}"
        session.app.say(f"route {name} {word}")
        for form in sorted(wire_forms(each["metadata"].get("annotations"))):
            session.app.warn(f"Warning: {name}: {WEAKNESSES[form]} (--kuscia-wire {form})")
    for line in _next_steps(args, ends):
        session.app.say(line)
    return 0


def _endpoint(text: str) -> MasterEndpoint | None:
    if not text:
        return None
    try:
        return MasterEndpoint.parse(text)
    except ValueError as problem:
        raise UsageError(f"--endpoint: {problem}") from problem


def _wire_forms(text: str) -> frozenset[KusciaWireForm]:
    words = {word.strip() for word in text.split(",")} - {""}
    if unknown := sorted(words - set(KusciaWireForm)):
        raise UsageError(f"--kuscia-wire: {', '.join(unknown)} is none of {', '.join(KusciaWireForm)}")
    return frozenset(map(KusciaWireForm, words))


def _forms_for(
    forms: frozenset[KusciaWireForm], source: str, destination: str, ends: dict[str, Domain | None]
) -> frozenset[KusciaWireForm]:
    """Those that mean something in this direction: who calls shows no certificate, who is called a new one."""
    meant = set(forms)
    if not is_own(ends[destination]):
        meant.discard(KusciaWireForm.NO_CLIENT_CERTIFICATE)
    if not is_own(ends[source]):
        meant.discard(KusciaWireForm.CHANGING_CERTIFICATE)
    return frozenset(meant)


def _desired_route(
    args: argparse.Namespace,
    source: str,
    destination: str,
    endpoint: MasterEndpoint | None,
    forms: frozenset[KusciaWireForm],
) -> Object:
    return model.route(
        source,
        destination,
        endpoint,
        via=args.via,
        tunnel=args.tunnel,
        body_encryption=args.body_encryption,
        kuscia_wire=forms,
    )


async def _ensure_partner(session: CliSession, args: argparse.Namespace) -> None:
    """`--cert`: whose it is, the certificate says itself."""
    name, pem = read_certificate(session.app, args.cert)
    if name not in args.words:
        raise CliError(f'Error: {args.cert} is the certificate of "{name}", which is no end of this route')
    if await _domain(session, name) is None:
        await session.client.create(DOMAINS.as_dynamic, model.partner(name, pem))
        session.app.say(f"domain {name} added as a partner")


async def _domain(session: CliSession, name: str) -> Domain | None:
    try:
        return await session.client.get(DOMAINS, name)
    except NotFound:
        return None


def _refuse_faults(wanted: Object, ends: dict[str, Domain | None]) -> None:
    """Before the server has it: a route that says nonsense would only say so in its status."""
    read = CLUSTER_DOMAIN_ROUTES.decode(orjson.dumps(wanted))
    source = ends[read.spec.source]
    faults = [*route_faults(read.spec, dials=is_own(source)), *wire_faults(read.metadata.annotations, read.spec)]
    if faults:
        message = "; ".join(faults).replace("endpoint.host: give", "--endpoint: give")
        message = message.replace(f"annotation {COTERIE_KUSCIA_WIRE}", "--kuscia-wire")
        message = message.replace("needs bodyEncryption", "needs --body-encryption")
        message = message.replace(f"needs transit.transitMethod {REVERSE_TUNNEL}", "needs --tunnel")
        raise CliError(f"Error: the route {read.spec.source} -> {read.spec.destination} cannot work: {message}")


async def _put(session: CliSession, wanted: Object) -> tuple[Object, str]:
    """Create it, or make its address, its way and its encryption as they were asked for. The rest is left alone."""
    name = wanted["metadata"]["name"]
    try:
        before = await session.client.get(_ROUTE, name)
    except NotFound:
        return await session.client.create(_ROUTE, wanted), "added"
    asked = {key: wanted["spec"].get(key) for key in ("endpoint", "transit", "bodyEncryption")}
    wrong = {key: value for key, value in asked.items() if before["spec"].get(key) != value}
    if "endpoint" in wrong and wrong["endpoint"] is None:
        del wrong["endpoint"]  # nothing was said of it; an address that is known does no harm
    patch: Object = {"spec": wrong} if wrong else {}
    forms, known = (_wire_annotation(each) for each in (wanted, before))
    if forms != known:
        patch["metadata"] = {"annotations": {COTERIE_KUSCIA_WIRE: forms}}
    if not patch:
        return before, "unchanged"
    return await session.client.patch(_ROUTE, name, "", patch), "changed"


def _wire_annotation(route: Object) -> str | None:
    return (route["metadata"].get("annotations") or {}).get(COTERIE_KUSCIA_WIRE)


def _next_steps(args: argparse.Namespace, ends: dict[str, Domain | None]) -> list[str]:
    source, destination = args.words
    partner = next((name for name, found in ends.items() if is_partner(found)), "")
    steps = []
    if partner:
        ours = source if partner == destination else destination
        dials = f"coterie route add {partner} {ours} --endpoint https://HOST-OF-{ours.upper()}:1080 --both"
        steps.append(f"Next, at {master_of(partner, ends[partner])}, once {ours} is known there: {dials}")
    if args.via:
        grant = f"coterie kubectl annotate cdr {route_name(args.via, destination)} coterie.io/carry-for={source}"
        steps.append(f"Next, at {args.via}: {grant}")
    return [*steps, f"Then look whether it works: coterie route check {source} {destination}"]


async def _remove(session: CliSession, args: argparse.Namespace) -> int:
    source, destination = args.words
    pairs = [(source, destination), *([(destination, source)] if args.both else [])]
    for one, other in pairs:
        try:
            await session.client.delete(CLUSTER_DOMAIN_ROUTES, route_name(one, other))
        except NotFound as problem:
            raise CliError(
                f"Error: there is no route {one} -> {other}; `coterie route ls` lists those there are"
            ) from problem
        session.app.say(f"route {one} -> {other} removed")
    return 0


# ls.


def _list(args: argparse.Namespace, app: App) -> int:
    named = args.kubeconfig or args.context or args.domain or (app.environ.get("KUBECONFIG") and not args.root)
    nodes = [] if named else network.members(sessions.root_of(args, app))
    if nodes:
        lines = asyncio.run(node_health.routes_of(nodes, SYSTEM_CLOCK.now()))
        return _show(args, app, lines)

    async def ask(session: CliSession) -> int:
        found: list[ClusterDomainRoute] = list((await session.client.list(CLUSTER_DOMAIN_ROUTES)).items)
        return _show(args, app, model.lines_of(found, SYSTEM_CLOCK.now()))

    return sessions.run(args, app, ask)


def _show(args: argparse.Namespace, app: App, lines: list[RouteLine]) -> int:
    if args.output != "table":
        app.write(as_text([line.document() for line in lines], args.output))
    elif lines:
        app.write(render_table(plain_table(model.COLUMNS, [line.row for line in lines]), colour=app.colour))
    else:
        app.say("There are no routes; add one with `coterie route add SOURCE DESTINATION --endpoint URL`.")
    return 0


# check.


async def _check(session: CliSession, args: argparse.Namespace) -> int:
    source, destination = args.words
    root = sessions.root_of(args, session.app)
    home = probe.home_of(root, source)
    asked = probe.ProbeRequest(
        source,
        destination,
        args.service,
        endpoint=_configured_master(root, source),
        home=home,
        hint=f" --domain {args.domain}" if args.domain else "",
        control_plane=own_name(args, session.app),
    )
    with working(session.app, f"{source} -> {destination}", "testing", done="tested", quiet=args.output != "table"):
        findings = check.diagnose(await probe.gather(session.client, asked, SYSTEM_CLOCK))
    well = check.sound(findings)
    if args.output != "table":
        document = {
            "source": source,
            "destination": destination,
            "ok": well,
            "steps": [each.document() for each in findings],
        }
        session.app.write(as_text(document, args.output))
    else:
        for each in findings:
            session.app.say(_line(session.app, each))
    if not well:
        wrong = ", ".join(dict.fromkeys(each.step for each in findings if each.verdict is CheckOutcome.WRONG))
        session.app.warn(f"Error: {source} does not reach {destination}: {wrong}")
    return 0 if well else 1


def _configured_master(root: Path, source: str) -> MasterEndpoint | None:
    try:
        found = next((node for node in network.members(root) if node.domain == source), None)
    except (CliError, config.ConfigError):
        return None
    return found.gateway.master if found is not None else None


def _line(app: App, each: Finding) -> str:
    mark = app.paint(f"{each.verdict.value:<8}", _MARKS[each.verdict])
    advice = f"\n{'':21}-> {each.advice}" if each.advice else ""
    return f"{mark} {each.step:<12}{each.message}{advice}"


_RUN: dict[str, Callable[[CliSession, argparse.Namespace], Awaitable[int]]] = {
    "add": _add,
    "rm": _remove,
    "check": _check,
}
