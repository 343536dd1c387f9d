"""`coterie data`: a domain's tables, what is in them, and who may use them."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
import yaml

from coterie.base.clock import SYSTEM_CLOCK
from coterie.cli import arguments as options
from coterie.cli import network
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.data_access import DataAccess, cells, copy_into, open_data_access
from coterie.cli.output import as_text, plain_table
from coterie.cli.progress import working
from coterie.cli.session import root_of
from coterie.cli.tables import render_table
from coterie.kube.api.errors import NotFound
from coterie.kube.api.meta import Object
from coterie.kuscia.api import grants as limits
from coterie.kuscia.api.types.data import DEFAULT_SOURCE, DomainData, DomainDataGrant
from coterie.kuscia.sources import grant_entries
from coterie.node.config import NodeSettings

HELP = """
Manage the tables of a domain. Registering a table stores its location and its columns; the data is not moved. A grant
allows tasks of another domain to use a table: the owner's engines read it at the owner's site. These commands need
access to the files of the domain, i.e. run them on its machine.

  ls                    list tables: registered ones, results of tasks, and tables granted by others
  add FILE              register a CSV, Parquet, ORC or Arrow file; columns and types are detected. A file outside the
                        domain's data directory is copied into it. With --source: a path or table of that data source
  show ID               show a table with its columns and grants
  head ID               print the first rows
  grant ID DOMAIN       allow tasks of another domain to use the table
  revoke GRANT...       revoke grants; reads in progress are stopped
  uses [ID]             list who used which table, and when
  source ID             create or replace a data source: --type and a file with its --settings (JSON or YAML), which are
                        stored encrypted with the domain's key; docs/guide/sources.md lists the types

Examples:
  coterie data add customers.csv --domain alice
  coterie data add orders --source shop-db --id orders --domain alice
  coterie data ls --domain alice
  coterie data head customers --domain alice -l 5
  coterie data grant customers bob --domain alice --columns id,age --count 3 --for 24h
  coterie data uses --domain alice
  coterie data revoke customers-bob --domain alice
  coterie data source shop-db --type postgresql --settings shop.yaml --domain alice
"""
_ACTIONS = ("ls", "list", "add", "show", "head", "grant", "revoke", "uses", "source")
_USAGE = {
    "add": "add FILE",
    "show": "show ID",
    "head": "head ID",
    "grant": "grant ID DOMAIN",
    "revoke": "revoke GRANT...",
    "source": "source ID --type TYPE --settings FILE",
}


def arguments(parser: options.Parser) -> None:
    parser.add_argument("action", choices=_ACTIONS, metavar="ls|add|show|head|grant|revoke|uses|source", help="action")
    options.words_argument(parser)
    make = parser.add_argument_group("for add")
    make.add_argument("--id", metavar="ID", default="", help="id of the table (default: from the file name)")
    make.add_argument("--source", metavar="ID", default="", help="data source (default: the domain's data directory)")
    connect = parser.add_argument_group("for source")
    connect.add_argument("--type", metavar="TYPE", default="", help="type of the data source, e.g. postgresql")
    connect.add_argument("--settings", metavar="FILE", default="", help="file with the settings, JSON or YAML")
    give = parser.add_argument_group("for grant")
    give.add_argument("--columns", metavar="NAMES", default="", help="allow only these columns")
    give.add_argument("--count", metavar="N", type=int, default=0, help="allow at most this many reads")
    give.add_argument(
        "--for", metavar="TIME", type=options.seconds, default=0.0, dest="life", help="expire after this time"
    )
    give.add_argument(
        "--component", metavar="NAME", action="append", default=[], help="allow only this component; may be repeated"
    )
    give.add_argument("--metadata", action="store_true", help="share only the metadata, not the rows")
    parser.add_argument(
        "-l", "--lines", metavar="N", type=int, default=10, help="number of rows for head (default: 10)"
    )
    options.output_option(parser, ("table", "json", "yaml"))
    options.connection_options(parser)
    parser.complete(
        words={
            "add": ("files",),
            "show": ("tables",),
            "head": ("tables",),
            "grant": ("tables", "domains"),
            "revoke": ("grants", "*"),
            "uses": ("tables",),
            "source": ("data-sources",),
        },
        source="data-sources",
        settings="files",
    )


def run(args: argparse.Namespace, app: App) -> int:
    action = "ls" if args.action == "list" else args.action
    counts = {"add": 1, "show": 1, "head": 1, "grant": 2, "source": 1}
    if (action in counts and len(args.words) != counts[action]) or (action == "revoke" and not args.words):
        raise UsageError(f"write it as: coterie data {_USAGE[action]}")
    if action == "source" and not (args.type and args.settings):
        raise UsageError(f"write it as: coterie data {_USAGE[action]}")
    if action == "ls" and args.words:
        raise UsageError("`coterie data ls` takes no names; `coterie data show ID` shows one table")
    nodes = network.members(root_of(args, app))
    node = choose_node(nodes, args, app)

    async def work() -> int:
        async with open_data_access(node, nodes) as opened:
            return await _RUN[action](opened, args, app)

    try:
        return asyncio.run(work())
    except OSError as problem:
        raise CliError(f"Error: {problem.filename}: {problem.strerror}") from problem


def choose_node(nodes: Sequence[NodeSettings], args: argparse.Namespace, app: App) -> NodeSettings:
    """Whose data: --domain, else the one that the kubeconfig belongs to, else the only one."""
    found = [node for node in nodes if node.mode != "master"]
    if args.domain:
        found = [node for node in found if node.domain == args.domain]
    elif len(found) > 1:
        named = args.kubeconfig or app.environ.get("KUBECONFIG", "")
        found = [node for node in found if named and str(node.paths.kubeconfig) == named] or found
    if len(found) == 1:
        return found[0]
    root = root_of(args, app)
    if not found:
        who = f'domain "{args.domain}"' if args.domain else "domain"
        raise CliError(f"Error: there is no {who} with data under {root}; `coterie up` starts a network")
    raise CliError(
        f"Error: there are several domains under {root}: choose one with --domain {'|'.join(n.domain for n in found)}"
    )


async def _list(opened: DataAccess, args: argparse.Namespace, app: App) -> int:
    found = await opened.tables()
    if args.output != "table":
        app.write(as_text([_data_document(each) for each in found], args.output))
    elif found:
        rows = [(*_row(each),) for each in found]
        app.write(
            render_table(plain_table(("ID", "OWNER", "TYPE", "SOURCE", "WHERE", "COLUMNS"), rows), colour=app.colour)
        )
    else:
        app.say(f"{opened.domain} has no tables; `coterie data add FILE --domain {opened.domain}` registers one")
    return 0


def _row(data: DomainData) -> tuple[str, str, str, str, str, str]:
    spec = data.spec
    names = [each.name for each in spec.columns or ()]
    shown = ",".join(names[:4]) + (f",... ({len(names)})" if len(names) > 4 else "")
    return data.metadata.name, spec.author, spec.type, spec.data_source, spec.relative_uri, shown


async def _add(opened: DataAccess, args: argparse.Namespace, app: App) -> int:
    word = args.words[0]
    if args.source:
        uri, source = word, args.source
    else:
        with working(app, Path(word).name, "copying", done="copied", quiet=args.output != "table"):
            uri, source = await asyncio.to_thread(_bring_in, word, opened, app), DEFAULT_SOURCE
    name = args.id or _name_of(word)
    with working(app, f"table {name}", "reading its columns", done="registered", quiet=args.output != "table"):
        spec = await opened.register(name, uri, source)
    if args.output != "table":
        app.write(as_text({"id": name, **spec}, args.output))
        return 0
    listed = ", ".join(f"{each['name']} {each['type']}" for each in spec["columns"])
    app.say(f"{opened.domain} has table {name}: {listed}")
    return 0


def _bring_in(word: str, opened: DataAccess, app: App) -> str:
    file = app.cwd / Path(word).expanduser()
    if not file.is_file():
        raise CliError(f"Error: there is no file {file}; with --source, name what lies in that source")
    return copy_into(file, opened.node.paths.data)


def _name_of(word: str) -> str:
    """`My Customers.csv` -> `my-customers`"""
    name = re.sub(r"[^a-z0-9]+", "-", Path(word).name.split(".")[0].lower()).strip("-")
    if not name:
        raise UsageError(f'no name can be made of "{word}"; give one with --id')
    return name


async def _show(opened: DataAccess, args: argparse.Namespace, app: App) -> int:
    found = await opened.catalogue.data(args.words[0])
    given = await opened.grants(found.metadata.name)
    if args.output != "table":
        app.write(as_text({**_data_document(found), "grants": [_grant_document(each) for each in given]}, args.output))
        return 0
    spec = found.spec
    app.say(f"{found.metadata.name}: {spec.type} of {spec.author}, {spec.data_source}: {spec.relative_uri}")
    rows = [(each.name, each.type, each.comment or "") for each in spec.columns or ()]
    app.write(render_table(plain_table(("COLUMN", "TYPE", "COMMENT"), rows), colour=app.colour))
    if given:
        app.say()
        app.write(
            render_table(
                plain_table(("GRANT", "TO", "LIMITS", "USES"), [_grant_row(each) for each in given]), colour=app.colour
            )
        )
    return 0


async def _head(opened: DataAccess, args: argparse.Namespace, app: App) -> int:
    found = await opened.catalogue.data(args.words[0])
    table = await opened.head(found, max(args.lines, 0))
    if args.output != "table":
        rows = [{name: _plain(value) for name, value in row.items()} for row in table.to_pylist()]
        app.write(as_text(rows, args.output))
        return 0
    # Names of columns as they are, which a table's own headings would not keep.
    lines = [tuple(table.schema.names), *cells(table)]
    app.write(render_table(plain_table(table.schema.names, lines), no_headers=True, colour=app.colour))
    return 0


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


async def _grant(opened: DataAccess, args: argparse.Namespace, app: App) -> int:
    data, to = args.words
    limit = grant_entries.limit_of(
        [each for each in args.columns.split(",") if each],
        uses=args.count,
        until=SYSTEM_CLOCK.now() + timedelta(seconds=args.life) if args.life else None,
        components=args.component,
        metadata_only=args.metadata,
    )
    name = grant_entries.name_for(data, to, {each.metadata.name for each in await opened.grants()})
    spec: Object = {"domainDataID": data, "grantDomain": to, **({"limit": limit} if limit else {})}
    await opened.catalogue.create_grant(name, spec)
    made = await opened.catalogue.grant(name)
    if args.output != "table":
        app.write(as_text(_grant_document(made), args.output))
    else:
        app.say(f"{to} may use {data} of {opened.domain} in its tasks: {_limits(made)} (grant {name})")
    return 0


async def _revoke(opened: DataAccess, args: argparse.Namespace, app: App) -> int:
    code = 0
    for name in args.words:
        try:
            await opened.revoke(name)
            app.say(f"revoked grant {name}")
        except NotFound:
            app.warn(f'Error: there is no grant "{name}"; `coterie data show ID` lists those of a table')
            code = 1
    return code


async def _uses(opened: DataAccess, args: argparse.Namespace, app: App) -> int:
    wanted = args.words[0] if args.words else ""
    rows = [
        (
            use.use_time,
            each.spec.domain_data_id,
            each.metadata.name,
            use.grant_domain,
            use.component or "-",
            use.output or "-",
        )
        for each in await opened.grants(wanted)
        for use in each.uses
    ]
    heads = ("TIME", "TABLE", "GRANT", "USED BY", "COMPONENT", "FOR")
    if args.output != "table":
        app.write(as_text([dict(zip(heads, row, strict=True)) for row in sorted(rows)], args.output))
    elif rows:
        app.write(render_table(plain_table(heads, sorted(rows)), colour=app.colour))
    else:
        app.say(f"No grant of {wanted or opened.domain} was used yet.")
    return 0


async def _source(opened: DataAccess, args: argparse.Namespace, app: App) -> int:
    settings = await asyncio.to_thread(source_settings, app.cwd / args.settings)
    changed = await opened.put_source(args.words[0], args.type, settings)
    app.say(f"{opened.domain} has data source {args.words[0]} of type {args.type}{' (replaced)' if changed else ''}")
    return 0


def source_settings(file: Path) -> Object:
    """Errors do not quote the file, which holds secrets."""
    try:
        found = yaml.safe_load(file.read_text())
    except (yaml.YAMLError, UnicodeDecodeError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise CliError(f"Error: {file} has no settings: write names with their values, as JSON or YAML")
    return found


def _limits(grant: DomainDataGrant) -> str:
    limit, only = grant.limit, limits.granted_columns(grant)
    found = [f"columns {','.join(sorted(only))}"] if only is not None else []
    found += [f"{limit.use_count} uses"] if limit.use_count else []
    found += [f"until {limit.expiration_time}"] if limit.expiration_time else []
    found += [f"for {','.join(limit.components)}"] if limit.components else []
    found += [f"only {','.join(limit.grant_mode)}"] if limit.grant_mode else []
    return ", ".join(found) or "no limits"


def _grant_row(grant: DomainDataGrant) -> tuple[str, str, str, str]:
    return grant.metadata.name, grant.spec.grant_domain, _limits(grant), str(len(grant.uses))


def _data_document(data: DomainData) -> Object:
    return {"id": data.metadata.name, **msgspec.to_builtins(data.spec)}


def _grant_document(grant: DomainDataGrant) -> Object:
    spec = {key: value for key, value in msgspec.to_builtins(grant.spec).items() if key != "signature"}
    return {"id": grant.metadata.name, **spec, "uses": len(grant.uses)}


_RUN: dict[str, Callable[[DataAccess, argparse.Namespace, App], Awaitable[int]]] = {
    "ls": _list,
    "add": _add,
    "show": _show,
    "head": _head,
    "grant": _grant,
    "revoke": _revoke,
    "uses": _uses,
    "source": _source,
}
