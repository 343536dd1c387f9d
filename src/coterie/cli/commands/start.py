"""`coterie start`: run one node in the foreground until it is told to stop."""

from __future__ import annotations

import argparse
import errno
from pathlib import Path

import uvloop

from coterie.cli.app import App, CliError, UsageError
from coterie.cli.arguments import Parser
from coterie.kube.control.manager import RunnableFailed
from coterie.node import config, modes
from coterie.node.api_identity import IdentityError

HELP = """
Run a node in the foreground until Ctrl-C or SIGTERM. Its state is stored in the directory of its domain under the root.
When the API server is ready, that directory contains a kubeconfig, which the other commands find automatically.

Examples:
  coterie init --mode master --domain alice -o coterie.yaml   # first
  coterie start -c coterie.yaml
  coterie start -c coterie.yaml --root /srv/coterie
"""


def arguments(parser: Parser) -> None:
    parser.add_argument("-c", "--config", metavar="FILE", default="", help="configuration file of the node")
    parser.add_argument(
        "--root", metavar="DIR", default=argparse.SUPPRESS, help="directory of the domains ($COTERIE_ROOT, ~/.coterie)"
    )


def run(args: argparse.Namespace, app: App) -> int:
    if not args.config:
        raise UsageError("say which configuration to run with -c FILE; `coterie init` writes one")
    root = (app.cwd / Path(args.root).expanduser()) if args.root else None
    try:
        file = app.cwd / Path(args.config).expanduser()
        uvloop.run(modes.run(config.load(file, root=root), file=file, root=root))
    except (config.ConfigError, IdentityError) as error:
        raise CliError(f"Error: {error}") from error
    except RunnableFailed as error:
        raise CliError(f"Error: the node stopped: {_error_message(error.__cause__ or error)}") from error
    except OSError as error:
        raise CliError(f"Error: the node cannot run: {_error_message(error)}") from error
    return 0


def _error_message(error: BaseException) -> str:
    if not isinstance(error, OSError):
        return f"{error}; its log above says more"
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
    if error.errno == errno.EADDRINUSE:
        return f"{what}; stop the other program, or choose another apiServer.port in the configuration"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{what}; choose another --root or port, or run it as a user who may"
    return what
