"""`coterie engine`: the engines that tasks can name, i.e. the AppImages of a control plane."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from coterie.cli import arguments as options
from coterie.cli import engines, manifests, network
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.engine_environment import ENVIRONMENTS, Environment
from coterie.cli.manifests import Manifest
from coterie.cli.output import as_list, as_text, plain_table, without_managed_fields
from coterie.cli.session import CliSession, root_of
from coterie.cli.tables import render_table
from coterie.kube.api.errors import NotFound
from coterie.kuscia.api.types.job import APP_IMAGES, AppImage

HELP = """
Manage engines. An engine is an AppImage object: the image, the command and ports of each role, and the configuration
templates. Every party of a task needs an AppImage of that name on its control plane and the image on its nodes (see
`coterie image`). The engine `sample` is built in; its parties only exchange messages.

  ls                    list engines with image, roles and the ports that partners can reach
  add FILE...           validate AppImages from files and apply them
  add psi               install the engine for private set intersection, for all domains under the root
  add secretflow        install SecretFlow, for all domains under the root; its AppImage is secretflow-image
  rm NAME...            remove engines; running tasks are not affected

Examples:
  coterie engine ls
  coterie engine ls sample -o yaml
  coterie engine add psi
  coterie engine add my-engine.yaml
  cat psi.yaml | coterie engine add -
  coterie engine rm psi-image
"""
_ACTIONS = ("ls", "list", "add", "rm")
_TYPE = {"apiVersion": "kuscia.secretflow/v1alpha1", "kind": "AppImage"}


def arguments(parser: options.Parser) -> None:
    parser.add_argument("action", choices=_ACTIONS, metavar="ls|add|rm", help="action")
    options.words_argument(parser)
    options.output_option(parser, ("table", "json", "yaml", "name"))
    options.connection_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    action = "ls" if args.action == "list" else args.action
    if action != "ls" and not args.words:
        raise UsageError(f"write it as: coterie engine {'add FILE...' if action == 'add' else 'rm NAME...'}")
    if action == "add" and len(args.words) == 1 and not (app.cwd / args.words[0]).exists():
        environment = ENVIRONMENTS.get(args.words[0])
        if environment is not None:
            return _install(environment, args, app)
    if action == "add":
        found = _checked(args.words, app)
        return sessions.run(args, app, lambda session: _add(session, found))
    work: Callable[[CliSession, argparse.Namespace], Awaitable[int]] = _remove if action == "rm" else _list
    return sessions.run(args, app, lambda session: work(session, args))


def _install(environment: Environment, args: argparse.Namespace, app: App) -> int:
    """To all domains of the network at once: a task needs it at every party."""
    place = environment.install(app)
    root = root_of(args, app)
    nodes = network.members(root)
    if not nodes:
        app.say(f"The environment of the engine {environment.name} is in {place}.")
        app.say(f"There is no network under {root} yet: `coterie up` starts one; then run this again.")
        return 0
    asyncio.run(environment.register(nodes, place))
    app.say(
        f"added engine {environment.app_image} ({', '.join(node.domain for node in nodes if node.agent is not None)})"
    )
    return 0


def _checked(files: list[str], app: App) -> list[Manifest]:
    """All faults of all files at once, before anything is sent."""
    found = manifests.read(files, app)
    problems = []
    for manifest in found:
        if manifest.kind != "AppImage":
            problems.append(f"{manifest.place}: a {manifest.kind} is no engine; `coterie apply` takes other objects")
        elif not manifest.name:
            problems.append(f"{manifest.place}: metadata.name is missing")
        else:
            problems += [f"{manifest.place}: {fault}" for fault in engines.faults(manifest.object)]
    if problems:
        raise CliError("\n".join(f"Error: {sentence}" for sentence in problems))
    return found


async def _add(session: CliSession, found: list[Manifest]) -> int:
    kind = APP_IMAGES.as_dynamic
    for manifest in found:
        try:
            await session.client.get(kind, manifest.name)
            outcome = "renewed"
        except NotFound:
            outcome = "added"
        await session.client.apply(kind, manifest.object, force=True, field_manager="coterie")
        session.app.say(f"{outcome} engine {manifest.name}")
    return 0


async def _list(session: CliSession, args: argparse.Namespace) -> int:
    app = session.app
    page = await session.client.list(APP_IMAGES.as_dynamic)
    items = [item for item in page.items if not args.words or item["metadata"]["name"] in args.words]
    missing = set(args.words) - {item["metadata"]["name"] for item in items}
    if args.output == "name":
        for item in items:
            app.say(item["metadata"]["name"])
    elif args.output in ("json", "yaml"):
        objects = [{**_TYPE, **without_managed_fields(item)} for item in items]
        app.write(as_text(objects[0] if len(args.words) == 1 and objects else as_list(objects), args.output))
    elif items:
        rows = [engines.row(msgspec.convert(item, AppImage)) for item in items]
        table = plain_table(("NAME", "IMAGE", "ROLES", "PORTS"), rows)
        app.write(render_table(table, wide=False, no_headers=False, colour=app.colour))
    for name in sorted(missing):
        app.warn(f'Error: there is no engine "{name}"; `coterie engine ls` lists them')
    return 1 if missing else 0


async def _remove(session: CliSession, args: argparse.Namespace) -> int:
    code = 0
    for name in args.words:
        try:
            await session.client.delete(APP_IMAGES.as_dynamic, name)
        except NotFound:
            session.app.warn(f'Error: there is no engine "{name}"; `coterie engine ls` lists them')
            code = 1
            continue
        session.app.say(f"removed engine {name}")
    return code
