"""`coterie init`: a first configuration file, short and with the rest as comments."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import yaml

from coterie.base.files import create_exclusive, write_atomic
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.arguments import Parser
from coterie.node import config

HELP = """
Write a configuration file for one node: its mode and domain, and everything else as comments with the defaults.
A `master` is a control plane, a `lite` node works for one, an `autonomy` node is both.

Examples:
  coterie init --mode master --domain alice       # writes coterie.yaml
  coterie init --mode autonomy --domain bob -o bob.yaml
  coterie init --mode lite --domain bob --join bob.join       # the file is made by `coterie node add` at the master
  coterie init --mode master --domain alice -o -  # to the standard output
"""
_MODES = {
    "master": "a control plane: it serves the API, and nodes of its domains join it",
    "lite": "a node of a domain: it runs pods and joins a master",
    "autonomy": "a control plane and a node in one",
}
_TEMPLATE = """\
# Configuration of one Coterie node. Run it with: coterie start -c {file}
# A line that begins with "# " and a key shows the default; remove the "# " to change it.

# {about}.
mode: {mode}

# The organisation this node belongs to: lower-case letters, digits and "-".
domainID: {domain}

{join}# Where state lives; one directory for each domain. --root wins over it.
# root: ~/.coterie

# DEBUG, INFO, WARN or ERROR; and text for people or json for machines.
# logLevel: INFO
# logFormat: text

{parts}"""
_JOIN = """\
# How it came to its master: a file of `coterie node add`, which holds a key.
join: {file}

"""
_API = """\
# The Kubernetes API of this node.
# apiServer:
#   host: 127.0.0.1          # address to listen on; 0.0.0.0 for all
#   port: 6443               # 0 picks a free one
#   names: []                # more names and addresses under which clients reach it
#   eventTTLSeconds: 3600    # how long Event objects are kept
#   auditLog: ""             # a file below var/logs with one JSON line for each change; empty: none
"""
_AGENT = """\
# The agent, which runs pods.
# agent:
#   address: 127.0.0.1       # the node's address: its endpoint and its pods are reached there
#   port: 10250              # of its endpoint; 0 picks a free one
#   taint: true              # only pods of tasks are placed here
#   hostPaths: []            # directories below which hostPath volumes may lie
"""


def arguments(parser: Parser) -> None:
    parser.add_argument("--mode", choices=config.MODES, default="", metavar="MODE", help="master, lite or autonomy")
    parser.add_argument("--domain", metavar="ID", default=argparse.SUPPRESS, help="the domain the node belongs to")
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="coterie.yaml", help="the file to write (default: coterie.yaml)"
    )
    parser.add_argument("--join", metavar="FILE", default="", help="lite: the file made by `coterie node add`")
    parser.add_argument("--force", action="store_true", help="write over a file that is there")


def run(args: argparse.Namespace, app: App) -> int:
    if not args.mode or not args.domain:
        raise UsageError("both --mode and --domain are needed, e.g. `coterie init --mode master --domain alice`")
    text = render(args.mode, args.domain, args.output if args.output != "-" else "FILE", args.join)
    if args.output == "-":
        app.write(text)
        return 0
    path = app.cwd / Path(args.output).expanduser()
    try:
        if args.force:
            write_atomic(path, text)
        elif not create_exclusive(path, text):
            raise CliError(f"Error: {args.output} exists; choose another with -o, or write over it with --force")
    except OSError as error:
        raise CliError(f"Error: {args.output} cannot be written: {error.strerror}") from error
    app.say(f"Wrote {args.output}. Next: coterie start -c {args.output}")
    return 0


def render(mode: str, domain: str, file: str, join: str = "") -> str:
    """The text of the file, checked by the reader that will read it."""
    if mode == "lite" and not join:
        raise UsageError("a lite node joins a master: name the file made there by `coterie node add` with --join FILE")
    parts = "\n".join(part for part, wanted in ((_API, mode != "lite"), (_AGENT, mode != "master")) if wanted)
    text = _TEMPLATE.format(
        mode=mode,
        domain=domain,
        file=file,
        about=f"{mode}: {_MODES[mode]}",
        join=_JOIN.format(file=json.dumps(join)) if join else "",
        parts=parts,
    )
    try:
        config.parse(yaml.safe_load(text))
    except config.ConfigError as error:
        raise UsageError(str(error).replace("domainID: ", "--domain: ").replace("join: ", "--join: ")) from error
    return text
