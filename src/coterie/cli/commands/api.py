"""`coterie api`: what programs can ask of a node, told in a form that programs read."""

from __future__ import annotations

import argparse

from coterie.base.files import write_atomic
from coterie.cli import arguments as options
from coterie.cli.app import App, CliError
from coterie.cli.output import as_text
from coterie.kuscia.kusciaapi.openapi import document
from coterie.kuscia.kusciaapi.table import OPERATIONS

HELP = """
Print the OpenAPI document of KusciaAPI: all paths with their request and response fields, for generating clients.
A node serves the same document at /openapi.json on port 8082.

Examples:
  coterie api openapi
  coterie api openapi -o yaml
  coterie api openapi --file openapi.json
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("action", choices=("openapi",), metavar="openapi", help="print the OpenAPI document")
    parser.add_argument("--file", metavar="FILE", default="", help="write to this file instead")
    options.output_option(parser, ("json", "yaml"))
    parser.set_defaults(output="json")


def run(args: argparse.Namespace, app: App) -> int:
    text = as_text(document(OPERATIONS), args.output)
    if not args.file:
        app.write(text)
        return 0
    try:
        write_atomic(app.cwd / args.file, text, mode=0o644, durable=False)
    except OSError as problem:
        raise CliError(f"Error: {args.file} cannot be written: {problem.strerror}") from problem
    return 0
