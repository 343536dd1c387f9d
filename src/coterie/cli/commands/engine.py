"""`coterie engine`: the engines that tasks can name, i.e. the AppImages of a control plane."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import shlex
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

from coterie.cli import arguments as options
from coterie.cli import engine_template, engine_versions, engines, manifests, network
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.engine_environment import ENVIRONMENTS, Environment
from coterie.cli.manifests import Manifest
from coterie.cli.output import as_list, as_text, plain_table, without_managed_fields
from coterie.cli.session import CliSession, root_of
from coterie.cli.tables import render_table
from coterie.kube.api.errors import Forbidden, NotFound
from coterie.kuscia.api.types.job import APP_IMAGES, AppImage
from coterie.kuscia.engine import builtin_appimages

HELP = """
Manage engines. An engine is an AppImage object: the image, the command and ports of each role, and the configuration
templates. Every party of a task needs an AppImage of that name on its control plane and the image on its nodes (see
`coterie image`). The engine `sample` is built in; its parties only exchange messages.

  ls                    list engines with image, roles and the ports that partners can reach
  add FILE...           validate AppImages from files and apply them
  add psi               install the engine for private set intersection, for all domains under the root
  add secretflow        install SecretFlow, for all domains under the root; its AppImage is secretflow-image
  add mpyc              install MPyC, multi-party computation for three or more domains under the root
  add flower            install Flower, federated learning, for all domains under the root
  add nvflare           install NVFlare, federated learning, for all domains under the root
  add xgboost           install XGBoost with its federated training, for all domains under the root
  new NAME [DIRECTORY]  write a new engine into an empty directory (default: ./NAME): a program for two or more parties
                        that runs as it is, its AppImage, tests and a README with the next steps; needs no server
  rm NAME...            remove engines; running tasks are not affected, and a version that a job is pinned to stays
  versions [ENGINE]     list versions of engines with their digests, and the jobs that use them; --partners: those
                        that partners offered, too
  upgrade ENGINE [VERSION]
                        install the version that comes with this Coterie beside the ones that are there, and let new
                        jobs use it (or VERSION); jobs that run keep theirs
  pin ENGINE VERSION    let new jobs use only this version or range here (">=0.5,<0.7"); `any` takes that back
  pin JOBFILE...        print jobs with the exact versions that they would use here in place of ranges

Examples:
  coterie engine ls
  coterie engine ls sample -o yaml
  coterie engine add psi
  coterie engine add mpyc
  coterie engine add flower
  coterie engine add my-engine.yaml
  coterie engine new my-engine
  cat psi.yaml | coterie engine add -
  coterie engine rm psi-image
  coterie engine versions psi --partners
  coterie engine upgrade psi
  coterie engine pin psi ">=0.9,<0.10"
"""
_ACTIONS = ("ls", "list", "add", "new", "rm", "versions", "upgrade", "pin")
_FORMS = {
    "add": "add FILE...",
    "new": "new NAME [DIRECTORY]",
    "rm": "rm NAME...",
    "upgrade": "upgrade ENGINE [VERSION]",
    "pin": "pin ENGINE VERSION, or: coterie engine pin JOBFILE...",
}
_TYPE = {"apiVersion": "kuscia.secretflow/v1alpha1", "kind": "AppImage"}


def arguments(parser: options.Parser) -> None:
    parser.add_argument("action", choices=_ACTIONS, metavar="ls|add|new|rm|versions|upgrade|pin", help="action")
    options.words_argument(parser)
    parser.add_argument("--partners", action="store_true", help="versions: also what partners offered for jobs")
    options.output_option(parser, ("table", "json", "yaml", "name"))
    options.connection_options(parser)
    parser.complete(
        words={
            "ls": ("engines", "*"),
            "add": ("files", "*"),
            "rm": ("engines", "*"),
            "versions": ("engines",),
            "upgrade": ("engines",),
            "pin": ("engines|files",),
        }
    )


def run(args: argparse.Namespace, app: App) -> int:
    action = "ls" if args.action == "list" else args.action
    if action in _FORMS and not args.words:
        raise UsageError(f"write it as: coterie engine {_FORMS[action]}")
    if args.partners and action != "versions":
        raise UsageError("--partners is for: coterie engine versions")
    if action == "new":
        return _new(args, app)
    if action == "versions":
        return sessions.run(args, app, lambda session: _versions(session, args))
    if action == "upgrade":
        return _upgrade(args, app)
    if action == "pin":
        return _pin(args, app)
    if action == "add" and len(args.words) == 1 and not (app.cwd / args.words[0]).exists():
        environment = ENVIRONMENTS.get(args.words[0])
        if environment is not None:
            return _install(environment, args, app)
    if action == "add":
        found = _checked(args.words, app)
        return sessions.run(args, app, lambda session: _add(session, found))
    work: Callable[[CliSession, argparse.Namespace], Awaitable[int]] = _remove if action == "rm" else _list
    return sessions.run(args, app, lambda session: work(session, args))


def _new(args: argparse.Namespace, app: App) -> int:
    name, *rest = args.words
    if len(rest) > 1:
        raise UsageError(f"write it as: coterie engine {_FORMS['new']}")
    taken = {*ENVIRONMENTS, *(engine["metadata"]["name"] for engine in builtin_appimages.ENGINES)}
    if fault := engine_template.name_fault(name, taken):
        raise CliError(f"Error: {fault}")
    place = app.cwd / (rest[0] if rest else name)
    _write_directory(place, engine_template.files(name))
    app.say(f"The new engine {name} is in {place}: a program, its AppImage, tests.")
    app.say(f"Try it: python3 -m pytest {shlex.quote(str(place))}; README.md there tells how to run it in a network.")
    return 0


def _write_directory(place: Path, files: Mapping[str, str]) -> None:
    """All of them, or none: a directory that is there and has files in it is left as it is."""
    with contextlib.ExitStack() as cleanup:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=".new-engine-", dir=place.parent))
            cleanup.callback(shutil.rmtree, made, ignore_errors=True)
            made.chmod(0o755)
            for name, text in files.items():
                (made / name).write_text(text, encoding="utf-8")
            made.rename(place)
        except OSError as problem:
            there = problem.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
            reason = "it is there already; nothing was written" if there else problem.strerror
            raise CliError(f"Error: {place} cannot be made: {reason}") from problem


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
    elif args.output in ("json", "yaml") and (items or not args.words):
        objects = [{**_TYPE, **without_managed_fields(item)} for item in items]
        app.write(as_text(objects[0] if len(args.words) == 1 else as_list(objects), args.output))
    elif items:
        rows = [engines.row(msgspec.convert(item, AppImage)) for item in items]
        table = plain_table(("NAME", "IMAGE", "ROLES", "PORTS"), rows)
        app.write(render_table(table, wide=False, no_headers=False, colour=app.colour))
    for name in sorted(missing):
        app.warn(f'Error: there is no engine "{name}"; `coterie engine ls` lists them')
    return 1 if missing else 0


async def _versions(session: CliSession, args: argparse.Namespace) -> int:
    if len(args.words) > 1:
        raise UsageError("write it as: coterie engine versions [ENGINE] [--partners]")
    app, engine = session.app, args.words[0] if args.words else ""
    known = await engine_versions.read(session)
    rows = engine_versions.rows_here(known, engine)
    rows += engine_versions.rows_of_partners(known, engine) if args.partners else []
    if args.output in ("json", "yaml"):
        app.write(engine_versions.as_json(rows, args.output))
    elif args.output == "name":
        for row in rows:
            app.say(f"{row.engine}=={row.version}" if row.version else row.engine)
    elif rows:
        table = plain_table(engine_versions.COLUMNS, [row.cells for row in rows])
        app.write(render_table(table, wide=False, no_headers=False, colour=app.colour))
    if engine and not rows:
        app.warn(f'Error: there is no engine "{engine}"; `coterie engine versions` lists them')
        return 1
    return 0


def _upgrade(args: argparse.Namespace, app: App) -> int:
    engine, *rest = args.words
    if len(rest) > 1:
        raise UsageError(f"write it as: coterie engine {_FORMS['upgrade']}")
    wanted = rest[0] if rest else ""
    environment = ENVIRONMENTS.get(engine)
    if environment is not None and wanted in ("", environment.version):
        code = _install(environment, args, app)
        if code or not network.members(root_of(args, app)):
            return code
    return sessions.run(args, app, lambda session: engine_versions.use_version(session, engine, wanted))


def _pin(args: argparse.Namespace, app: App) -> int:
    if all((app.cwd / word).exists() for word in args.words):
        return sessions.run(args, app, lambda session: engine_versions.pin_job_files(session, args.words, app))
    if len(args.words) != 2:
        raise UsageError(f"write it as: coterie engine {_FORMS['pin']}")
    engine, wanted = args.words
    return sessions.run(args, app, lambda session: engine_versions.pin(session, engine, wanted))


async def _remove(session: CliSession, args: argparse.Namespace) -> int:
    code = 0
    for name in args.words:
        try:
            await session.client.delete(APP_IMAGES.as_dynamic, name)
        except NotFound:
            session.app.warn(f'Error: there is no engine "{name}"; `coterie engine ls` lists them')
            code = 1
            continue
        except Forbidden as problem:
            session.app.warn(f"Error: {problem}")
            code = 1
            continue
        session.app.say(f"removed engine {name}")
    return code
