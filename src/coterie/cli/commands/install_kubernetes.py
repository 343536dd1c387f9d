"""`coterie install kubernetes`: definitions, roles and policies that a control plane on somebody's cluster needs."""

from __future__ import annotations

import argparse

import yaml

from coterie.cli import arguments as options
from coterie.cli import cluster_install
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError
from coterie.kube.api.names import dns_label_faults
from coterie.node.kubernetes_install import NAMESPACE, install_objects

HELP = """
Print, apply or delete what a cluster needs before a control plane works with it: Kuscia's kinds, a service account with
the rights of the controllers, roles of domains, admission policies and a FlowSchema. None of it is cluster-admin, and the
account cannot give itself more. Applying and deleting need an administrator of the cluster (Kubernetes 1.30 or later).

--delete removes all objects of Kuscia's kinds first, while the controllers still run, and takes finalizers off those that
are still there after --timeout, so that nothing hangs. Namespaces of domains stay unless --domains is given.

Examples:
  coterie install kubernetes --print
  coterie install kubernetes --apply --kubeconfig admin.kubeconfig
  coterie install kubernetes --apply --agent alice          # the node of alice runs pods on its own machine
  coterie install kubernetes --delete --domains --kubeconfig admin.kubeconfig
"""


def arguments(parser: options.Parser) -> None:
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--print", action="store_true", help="write the objects as YAML, and do nothing")
    way.add_argument("--apply", action="store_true", help="create or update them (server-side apply)")
    way.add_argument("--delete", action="store_true", help="remove them, and all objects of Kuscia's kinds first")
    parser.add_argument(
        "--service-namespace", metavar="NAME", default=NAMESPACE, help=f"where the account is (default: {NAMESPACE})"
    )
    parser.add_argument("--agent", metavar="DOMAIN", default="", help="also what the agent of this domain needs")
    parser.add_argument("--domains", action="store_true", help="with --delete: also the namespaces of all domains")
    parser.add_argument(
        "--timeout",
        metavar="TIME",
        type=options.seconds,
        default=60.0,
        help="with --delete: how long controllers may take to finish (default: 60s)",
    )
    options.connection_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    for name in filter(None, (args.service_namespace, args.agent)):
        if dns_label_faults(name):
            raise CliError(
                f'Error: "{name}" cannot be the name of a namespace; take lower-case letters, digits and "-"'
            )
    wanted = install_objects(args.service_namespace, args.agent)
    if args.print:
        app.write(yaml.safe_dump_all(wanted, sort_keys=False))
        return 0
    if args.apply:
        return sessions.run(args, app, lambda session: cluster_install.apply(session, wanted))
    return sessions.run(
        args, app, lambda session: cluster_install.delete(session, wanted, domains=args.domains, seconds=args.timeout)
    )
