"""`coterie console`: a link that opens the console in a browser, for one person and once."""

from __future__ import annotations

import argparse
import contextlib

from coterie.base.paths import DomainPaths
from coterie.cli import arguments as options
from coterie.cli import console_link, network
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.session import CliSession
from coterie.kube.api.errors import Forbidden
from coterie.kuscia.gateway.registration.registration_files import registration_file

HELP = """
Print a link to the console of a control plane, and open it where there is a desktop. The link logs one person in, once,
within a minute; the session ends after 30 idle minutes. Everything that is done in the console is done with the rights
of a service account: --role chooses one that Coterie makes, --account takes one of yours. Lites have no console: that
of their master shows their jobs, pods and tables.

Examples:
  coterie console                          # with all rights
  coterie console --domain bob             # of one of several on this machine
  coterie console --role view              # may look, and change nothing
  coterie console --account ops/anna       # the service account anna in the namespace ops
  coterie console --no-open                # print the link only
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument(
        "--role", choices=tuple(console_link.ROLES), default="admin", help="rights of the link (default: admin)"
    )
    parser.add_argument(
        "--account", metavar="NAMESPACE/NAME", default="", help="log in as this service account instead"
    )
    parser.add_argument("--no-open", action="store_true", help="do not open a browser")
    options.connection_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    if args.account and args.account.count("/") != 1:
        raise UsageError("--account is NAMESPACE/NAME of a service account, such as ops/anna")
    _check_not_lite(args, app)
    socket = console_link.control_socket(DomainPaths(sessions.kubeconfig_files(args, app)[0].parent))

    async def do(session: CliSession) -> int:
        if args.account:
            namespace, _, name = args.account.partition("/")
            account = namespace, name
            with contextlib.suppress(Forbidden):
                await console_link.ensure_view_role(session.client)
        else:
            account = await console_link.role_account(session.client, args.role)
        app.say(await console_link.show_link(app, session.client, socket, account, browser=not args.no_open))
        return 0

    return sessions.run(args, app, do)


def _check_not_lite(args: argparse.Namespace, app: App) -> None:
    """CliError when a node without a control plane is meant."""
    if args.kubeconfig or (app.environ.get("KUBECONFIG") and not args.root and not args.domain):
        return
    root = sessions.root_of(args, app)
    planes = sessions.domains_under(root)
    if args.domain in planes or (planes and not args.domain):
        return
    nodes = {node.domain: node for node in network.members(root)}
    named = [args.domain] if args.domain else sorted({*nodes, *(path.name for path in root.glob("*"))})
    for domain in named:
        node = nodes.get(domain)
        if node is not None and node.join is not None:
            raise CliError(
                f"Error: this node of {domain} has no control plane and so no console; "
                "run `coterie console` on the machine whose `coterie node add` made its join file"
            )
        if (node is not None and node.mode == "lite") or registration_file(DomainPaths.of(root, domain)).exists():
            master = node.gateway.master if node is not None else None
            where = f" ({master.host})" if master is not None else ""
            here = next((each.domain for each in nodes.values() if each.mode == "master" and each.domain in planes), "")
            todo = f"run `coterie console --domain {here}`"
            if not here:
                todo = f"run `coterie console` on the machine of the master{where}, or ask its operator for an account"
            raise CliError(
                f"Error: {domain} is a lite and has no console; that of its master shows its jobs, pods and tables: {todo}"
            )
