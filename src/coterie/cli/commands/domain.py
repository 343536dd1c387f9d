"""`coterie domain`: who takes part: our own domains, those of partners, and how a new one joins."""

from __future__ import annotations

import argparse
import asyncio
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from coterie.base import pki
from coterie.base.paths import DomainPaths
from coterie.base.pki import PkiError
from coterie.cli import arguments as options
from coterie.cli import background
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.output import as_text, plain_table
from coterie.cli.progress import working
from coterie.cli.session import CliSession
from coterie.cli.tables import render_table
from coterie.kube.api.errors import NotFound
from coterie.kube.client import kubeconfig
from coterie.kuscia.api.domain_ownership import master_of
from coterie.kuscia.api.types.domain import DOMAINS, RESERVED_DOMAINS, Domain
from coterie.kuscia.routes import model
from coterie.node import config

HELP = """
Manage the domains of a control plane. A partner's domain has its own control plane and is identified by its
certificate. If that control plane serves several domains, each of them is added with --master; add the master first.
Other domains are hosted here; their nodes join with a one-time deploy token.

  ls                    list domains
  add NAME              add a hosted domain and print its deploy token; with --partner and --cert, a partner's domain
  token NAME            print a deploy token for the next node of a hosted domain
  cert [NAME]           print our own certificate, or that of a hosted domain, for partners
  rm NAME               remove a domain: its routes stop working, its namespace is kept

Examples:
  coterie domain cert > alice.crt                    # send this to partners over a trusted channel
  coterie domain add bob --partner --cert bob.crt
  coterie domain add dave --partner --master east --cert dave.crt   # a lite of the partner's master east
  coterie domain add carol --endpoint https://10.0.0.1:1080
  coterie domain token carol
  coterie domain ls
"""
_ACTIONS = ("ls", "list", "add", "token", "cert", "rm")
_DOMAIN = DOMAINS.as_dynamic
_COLUMNS = ("NAME", "ROLE", "NODES", "CERTIFICATE", "ENDS", "TOKEN", "MASTER")
_TIMEOUT = 10.0
_POLL_SECONDS = 0.1


def arguments(parser: options.Parser) -> None:
    parser.add_argument("action", choices=_ACTIONS, metavar="ls|add|token|cert|rm", help="action")
    options.words_argument(parser)
    parser.add_argument("--partner", action="store_true", help="for add: the domain has its own control plane")
    parser.add_argument(
        "--master",
        metavar="DOMAIN",
        default="",
        help="for add: domain of the partner's control plane that serves this one; implies --partner",
    )
    parser.add_argument("--cert", metavar="FILE", default="", help="for add: certificate of the domain (PEM)")
    parser.add_argument(
        "--endpoint",
        metavar="URL",
        default="",
        help="for add and token: address of our gateway, as seen from the other machine",
    )
    options.output_option(parser, ("table", "json", "yaml"))
    options.connection_options(parser)
    parser.complete(words={"token": ("domains",), "rm": ("domains",), "cert": ("domains",)}, master="domains")


def run(args: argparse.Namespace, app: App) -> int:
    action = "ls" if args.action == "list" else args.action
    wanted = 0 if action == "ls" else 1
    if len(args.words) != wanted and not (action == "cert" and not args.words):
        raise UsageError(f"coterie domain {action} takes {'one NAME' if wanted else 'no names'}")
    args.partner = args.partner or bool(args.master)
    own = own_name(args, app)
    return sessions.run(args, app, lambda session: _RUN[action](session, args, own))


def own_name(args: argparse.Namespace, app: App) -> str:
    """The control plane's own domain: kubeconfigs that a node writes name their context after it."""
    found = kubeconfig.load(sessions.kubeconfig_files(args, app))
    return args.context or found.current_context


def read_certificate(app: App, name: str) -> tuple[str, str]:
    """(whose it is, PEM) of a file."""
    path = app.cwd / Path(name).expanduser()
    try:
        certificate = pki.load_certificate(path.read_bytes())
    except OSError as problem:
        raise CliError(f"Error: {name} cannot be read: {problem.strerror}") from problem
    except PkiError as problem:
        raise CliError(
            f"Error: {name} is {problem}; `coterie domain cert` at the partner prints the right one"
        ) from problem
    return pki.subject_of(certificate)[0], pki.certificate_pem(certificate).decode()


# The actions.


async def _list(session: CliSession, args: argparse.Namespace, own: str) -> int:
    found = sorted((await session.client.list(DOMAINS)).items, key=lambda each: each.metadata.name)
    entries = [entry(each, own) for each in found]
    if args.output != "table":
        session.app.write(as_text(entries, args.output))
        return 0
    rows = [
        (
            each["name"],
            each["role"],
            f"{each['nodesReady']}/{each['nodes']}" if each["nodes"] else "<none>",
            each["fingerprint"][:16] or "<none>",
            each["certificateEnds"][:10] or "<none>",
            "unused" if each["tokenUnused"] else "<none>",
            each["master"] or "<none>",
        )
        for each in entries
    ]
    session.app.write(render_table(plain_table(_COLUMNS, rows), colour=session.app.colour))
    return 0


def entry(domain: Domain, own: str) -> dict[str, Any]:
    name = domain.metadata.name
    nodes = domain.status.node_statuses or ()
    out: dict[str, Any] = {
        "name": name,
        "role": "self" if name == own else "partner" if domain.partner else "member",
        "master": domain.spec.master if domain.spec.master != name else "",
        "nodes": len(nodes),
        "nodesReady": sum(node.status == "Ready" for node in nodes),
        "fingerprint": "",
        "certificateEnds": "",
        "tokenUnused": bool(model.unused_token(domain)),
    }
    try:
        certificate = pki.load_certificate(model.certificate_of(domain).encode())
    except PkiError:
        return out
    return out | {
        "fingerprint": pki.fingerprint(certificate),
        "certificateEnds": certificate.not_valid_after_utc.isoformat(),
    }


async def _add(session: CliSession, args: argparse.Namespace, own: str) -> int:
    (name,) = args.words
    if name in RESERVED_DOMAINS:
        raise UsageError(f'NAME: "{name}" is reserved; take another')
    subject, pem = read_certificate(session.app, args.cert) if args.cert else ("", "")
    if args.partner and not pem:
        raise UsageError(
            "a partner is known by its certificate: name the file with --cert (`coterie domain cert` there)"
        )
    if pem and subject != name:
        raise CliError(f'Error: {args.cert} is the certificate of "{subject}", not of "{name}"')
    await _check_master(session, name, args.master, own)
    wanted = model.partner(name, pem, args.master) if args.partner else model.member(name, pem)
    try:
        before = await session.client.get(DOMAINS, name)
    except NotFound:
        await session.client.create(_DOMAIN, wanted)
        word = "added"
    else:
        if before.partner is not args.partner:
            role = "a partner's" if before.partner else "a domain of ours"
            raise CliError(f"Error: {name} is known here as {role}; remove it first with `coterie domain rm {name}`")
        if args.partner and master_of(name, before) != (args.master or name):
            served = before.spec.master or "itself"
            raise CliError(
                f"Error: {name} is known here as served by {served}; remove it first with `coterie domain rm {name}`"
            )
        word = "unchanged"
        if pem and model.certificate_of(before) != pem:
            await session.client.patch(_DOMAIN, name, "", {"spec": {"cert": wanted["spec"]["cert"]}})
            word = "has a new certificate"
    if args.output != "table":
        session.app.write(as_text(entry(await session.client.get(DOMAINS, name), own), args.output))
        return 0
    session.app.say(f"domain {name} {word}{' as a partner' if args.partner and word == 'added' else ''}")
    if args.partner:
        ours = "OUR-DOMAIN" if args.master else own
        session.app.say(f"Next: coterie route add {ours} {name} --endpoint https://HOST-OF-{name.upper()}:1080 --both")
        asked = args.master or name
        session.app.say(f"What {name} begins waits for your approval; accept it with `coterie policy allow {asked}`")
        return 0
    return await _token(session, args, own)


async def _check_master(session: CliSession, name: str, master: str, own: str) -> None:
    """`--master` names a partner's control plane that is known here; anything else would be a domain nobody answers for."""
    if master in ("", name):
        return
    if master == own:
        raise CliError(
            f"Error: {own} is this control plane: add its domains without --master (`coterie domain add {name}`)"
        )
    try:
        found = await session.client.get(DOMAINS, master)
    except NotFound as problem:
        raise CliError(
            f"Error: this control plane knows no domain {master}; add it first: "
            f"coterie domain add {master} --partner --cert {master}.crt"
        ) from problem
    if not found.partner or master_of(master, found) != master:
        what = "one of ours" if not found.partner else f"served by {found.spec.master}"
        raise CliError(f"Error: {master} is no control plane of a partner, it is {what}")


async def _token(session: CliSession, args: argparse.Namespace, own: str) -> int:
    (name,) = args.words
    with working(session.app, f"domain {name}", "waiting for its token", quiet=args.output != "table"):
        found = await _with_token(session, name, own)
    plane = await session.client.get(DOMAINS, own)
    token = model.unused_token(found)
    certificate = model.certificate_of(plane)
    pinned = model.pinned_token(token, certificate) if certificate else token
    endpoint = args.endpoint or _own_endpoint(session.app, args, own)
    if args.output != "table":
        session.app.write(as_text({"domain": name, "token": token, "pinnedToken": pinned}, args.output))
        return 0
    line = f"coterie init --mode lite --domain {name} -m {shlex.quote(endpoint)} -t - -o {name}.yaml"
    session.app.say(f"token {pinned}")
    session.app.say(f"It is good for one node of {name}. Next, on that machine (the first command asks for the token):")
    session.app.say(f"  {line}")
    session.app.say(f"  coterie start -c {name}.yaml")
    return 0


async def _with_token(session: CliSession, name: str, own: str) -> Domain:
    """The controller makes a token soon after the domain was made, and a new one after each that was used."""
    deadline = asyncio.get_running_loop().time() + _TIMEOUT
    while True:
        found = await session.client.get(DOMAINS, name)
        if name == own or found.partner:
            whose = "the control plane's own" if name == own else "a partner's"
            raise CliError(f"Error: {name} is {whose} domain, and nothing joins it here; add one of ours first")
        if model.unused_token(found):
            return found
        if asyncio.get_running_loop().time() > deadline:
            raise CliError(f"Error: {name} has no token yet; see `coterie describe domain {name}`, then try again")
        await asyncio.sleep(_POLL_SECONDS)


def _own_endpoint(app: App, args: argparse.Namespace, own: str) -> str:
    """As the configuration here says, if it lies where `coterie up` puts it; else a line to complete."""
    file = background.config_file(DomainPaths.of(sessions.root_of(args, app), own))
    try:
        found = model.endpoint_of(config.load(file).gateway)
    except config.ConfigError:
        found = None
    return model.url_of(found) if found is not None else "https://THIS-MACHINE:1080"


async def _cert(session: CliSession, args: argparse.Namespace, own: str) -> int:
    name = args.words[0] if args.words else own
    try:
        found = await session.client.get(DOMAINS, name)
    except NotFound:
        pem = ""
    else:
        if found.partner:
            raise CliError(f"Error: {name} is a partner's domain; its certificate is printed at its own control plane")
        pem = model.certificate_of(found)
    if not pem and name != own:
        raise CliError(f"Error: no node of {name} has registered here yet; see `coterie domain ls`")
    if not pem:
        raise CliError(f"Error: the domain {own} has no certificate yet; is this the kubeconfig of a Coterie node?")
    if args.output != "table":
        fingerprint = pki.fingerprint(pki.load_certificate(pem.encode()))
        session.app.write(as_text({"domain": name, "certificate": pem, "fingerprint": fingerprint}, args.output))
    else:
        session.app.write(pem)
    return 0


async def _remove(session: CliSession, args: argparse.Namespace, own: str) -> int:
    (name,) = args.words
    if name == own:
        raise CliError(f"Error: {name} is this control plane's own domain; to end it, stop its node")
    await session.client.delete(DOMAINS, name)
    session.app.say(f"domain {name} removed; its routes lead nowhere now, `coterie route ls` lists them")
    return 0


_RUN: dict[str, Callable[[CliSession, argparse.Namespace, str], Awaitable[int]]] = {
    "ls": _list,
    "add": _add,
    "token": _token,
    "cert": _cert,
    "rm": _remove,
}
