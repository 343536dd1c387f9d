"""`coterie image`: what pods on this machine are started from. Works on the store itself; no server is asked."""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

from coterie.base.paths import DomainPaths
from coterie.base.secret import SecretValue
from coterie.cli import arguments as options
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.output import as_text, plain_table
from coterie.cli.progress import WorkStep, working
from coterie.cli.session import root_of
from coterie.cli.tables import render_table
from coterie.kube.agent.images import archive, export
from coterie.kube.agent.images import pull as pulling
from coterie.kube.agent.images.collect import CollectionSettings, collectable, too_old
from coterie.kube.agent.images.environment import environment_id
from coterie.kube.agent.images.model import HOST, ImageError, StoredImage, split
from coterie.kube.agent.images.references import RegistryEndpoint
from coterie.kube.agent.images.sources import ConfiguredRegistry, PullSettings, RegistryCredentials, docker_credentials
from coterie.kube.agent.images.store import ImageStore

HELP = """
Manage the images on this machine. An image is either a host environment (a command that is installed on this machine)
or a root file system from an archive or a directory. Built in are coterie/host (the programs of this machine, for any
command), coterie/python (the Python interpreter that runs Coterie) and coterie-actor (the same for functions). A node
pulls images by itself only with image.pullPolicy: remote in its configuration.

  ls                    list images
  add NAME              create an image from a command (--command) or a directory (--rootfs)
  load [FILE]           load all images of an archive made by docker save, skopeo or buildah (default: standard input)
  pull NAME...          get images from their registry; what is here already is not fetched again
  tag IMAGE NAME        add another name to an image
  save IMAGE...         write images into an archive for docker load, skopeo, ctr and coterie image load (--to FILE)
  rm IMAGE...           remove names, and layers that are no longer used
  gc                    remove layers without a name, and with --unused-for pulled images that nothing uses

Examples:
  coterie image ls
  coterie image add engine:1.0 --command /opt/engine/bin/python --arg=-m --arg=engine --env THREADS=4
  coterie image add engine:1.1 --command /opt/engine/bin/python --visible /opt/models
  coterie image add actor:1.0 --command /opt/venv/bin/python --arg=-m --arg=coterie.engines.actor --preload pandas
  coterie image add alpine:3.20 --rootfs /srv/alpine
  coterie image load secretflow.tar
  coterie image pull registry.example/team/engine:1.0
  coterie image pull 127.0.0.1:5000/engine@sha256:4f6...
  echo "$PASSWORD" | coterie image pull registry.example/team/engine:1.0 --username me --password-stdin
  coterie image tag engine:1.0 engine:latest
  coterie image save engine:1.0 --to engine.tar
  coterie image save engine:1.0 engine:1.1 --format docker --to engines.tar
  coterie image gc --unused-for 30d --dry-run
  coterie image rm engine:1.0
"""
_DURATION = re.compile(r"([0-9]{1,6})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_ACTIONS = ("ls", "list", "add", "load", "pull", "save", "tag", "rm", "gc")


def arguments(parser: options.Parser) -> None:
    parser.add_argument("action", choices=_ACTIONS, metavar="ls|add|load|pull|save|tag|rm|gc", help="action")
    options.words_argument(parser)
    make = parser.add_argument_group("for add")
    make.add_argument("--command", metavar="PATH", default="", help="program that containers run")
    make.add_argument(
        "--arg", metavar="WORD", action="append", default=[], help="argument of the program; may be repeated"
    )
    make.add_argument(
        "--env", metavar="NAME=VALUE", action="append", default=[], help="environment variable; may be repeated"
    )
    make.add_argument("--workdir", metavar="DIR", default="", help="working directory")
    make.add_argument(
        "--visible",
        metavar="PATH",
        action="append",
        default=[],
        help="file or directory of this machine that containers of the program may read; may be repeated",
    )
    make.add_argument(
        "--preload",
        metavar="MODULE",
        action="append",
        default=[],
        help="Python module that the node imports ahead of the containers, so that they start fast; may be repeated",
    )
    make.add_argument("--rootfs", metavar="DIR", default="", help="unpacked root file system, used in place")
    take = parser.add_argument_group("for load")
    take.add_argument("-i", "--input", metavar="FILE", default="", help="archive file, as in docker load")
    take.add_argument("--name", metavar="NAME", default="", help="name for an image without one")
    fetch = parser.add_argument_group("for pull")
    fetch.add_argument(
        "--username", metavar="USER", default="", help="user of the registry (default: ~/.docker/config.json)"
    )
    fetch.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    fetch.add_argument(
        "--mirror", metavar="REGISTRY", action="append", default=[], help="ask this registry first; may be repeated"
    )
    fetch.add_argument("--ca-file", metavar="FILE", default="", help="PEM file of the registry's authority")
    write = parser.add_argument_group("for save")
    write.add_argument("--to", metavar="FILE", default="", help="archive file (default: standard output)")
    write.add_argument(
        "--format", choices=(export.OCI, export.DOCKER), default=export.OCI, help="OCI layout, or docker"
    )
    collect = parser.add_argument_group("for gc")
    collect.add_argument("--unused-for", metavar="AGE", default="", help="30m, 48h or 30d: remove pulled images, too")
    collect.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    parser.add_argument("--store", metavar="DIR", default="", help="image store (default: var/images of the domain)")
    options.output_option(parser, ("table", "json", "yaml", "name"))
    options.connection_options(parser)
    parser.complete(words={"load": ("files",)})


def run(args: argparse.Namespace, app: App) -> int:
    action = _RUN["ls" if args.action == "list" else args.action]
    try:
        action(args, app, ImageStore(store_directory(args, app)))
    except ImageError as problem:
        raise CliError(f"Error: {problem}") from problem
    except OSError as problem:
        where = f"{problem.filename}: " if problem.filename else ""
        raise CliError(f"Error: {where}{problem.strerror}") from problem
    return 0


def store_directory(args: argparse.Namespace, app: App) -> Path:
    if args.store:
        return (app.cwd / Path(args.store).expanduser()).absolute()
    root = root_of(args, app)
    if args.domain:
        return DomainPaths.of(root, args.domain).images
    found = sorted(path.parents[1] for path in root.glob("*/var/images"))
    if len(found) == 1:
        return DomainPaths(found[0]).images
    if found:
        names = "|".join(path.name for path in found)
        raise CliError(f"Error: there are several domains under {root}: choose one with --domain {names}")
    raise CliError(f"Error: there is no domain under {root} yet; name one with --domain, or a directory with --store")


def _list(args: argparse.Namespace, app: App, store: ImageStore) -> None:
    images = [_current(store, image) for image in store.images()]
    if args.words:
        wanted = {_current(store, store.resolve(word)).id for word in args.words}
        images = [image for image in images if image.id in wanted]
    if args.output == "name":
        for image in images:
            app.say(image.name)
    elif args.output in ("json", "yaml"):
        app.write(as_text([_entry(image) for image in images], args.output))
    else:
        rows = [
            (*split(image.name), image.id.removeprefix("sha256:")[:12], human_size(image.size), image.kind)
            for image in images
        ]
        table = plain_table(("REPOSITORY", "TAG", "IMAGE ID", "SIZE", "KIND"), rows)
        app.write(render_table(table, wide=False, no_headers=False, colour=app.colour))


def _current(store: ImageStore, image: StoredImage) -> StoredImage:
    """With the id of the code that is installed now."""
    return replace(image, id=environment_id(image, store.environments)) if image.kind == HOST else image


def _entry(image: StoredImage) -> dict[str, object]:
    entry: dict[str, object] = {"name": image.name, "id": image.id, "size": image.size, "kind": image.kind}
    details = {
        "entrypoint": list(image.entrypoint),
        "cmd": list(image.cmd),
        "env": [f"{name}={value}" for name, value in image.env],
        "workdir": image.workdir,
        "user": image.user,
        "directory": image.directory,
        "visible": list(image.visible),
        "preload": list(image.preload),
        "digest": image.manifest,
    }
    return entry | {key: value for key, value in details.items() if value}


def human_size(size: int) -> str:
    """As docker writes it: powers of ten, three digits."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}TB"


def _add(args: argparse.Namespace, app: App, store: ImageStore) -> None:
    (name,) = _check_arguments(args, 1, "add NAME --command PATH, or add NAME --rootfs DIR")
    env = []
    for text in args.env:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f'--env "{text}" is not NAME=VALUE')
        env.append((key, value))
    command = (args.command,) if args.command else ()
    if args.visible and (args.rootfs or not command):
        raise UsageError("--visible is for a host environment (--command): a file system of its own has its own files")
    if args.preload and (args.rootfs or not command):
        raise UsageError("--preload is for a host environment (--command): the node imports nothing of other images")
    if args.rootfs:
        directory = app.cwd / Path(args.rootfs).expanduser()
        image = store.add_rootfs(name, directory, command=command, args=args.arg, env=env, workdir=args.workdir)
    elif command:
        if not _executable(args.command, app):
            app.warn(f"Warning: there is no program {args.command} on this machine yet")
        visible = [str(app.cwd / Path(path).expanduser()) for path in args.visible]
        image = store.add_host(
            name,
            command,
            args=args.arg,
            env=env,
            workdir=args.workdir,
            visible=visible,
            preload=args.preload,
        )
    else:
        raise UsageError("say what the image is: --command PATH for a host environment, --rootfs DIR for a file system")
    app.say(f"added {image.name} ({image.kind})")


def _executable(command: str, app: App) -> bool:
    return shutil.which(command, path=app.environ.get("PATH")) is not None


def _load(args: argparse.Namespace, app: App, store: ImageStore) -> None:
    names = [*args.words, *([args.input] if args.input else [])]
    if len(names) > 1:
        raise UsageError("load takes one archive")
    name = names[0] if names else "-"
    with _archive(name, app) as file:
        with working(app, Path(name).name, "unpacking", done="loaded", quiet=args.output != "table"):
            loaded = list(archive.load(store, file, args.name))
        for image in loaded:
            app.say(f"loaded {image.name} ({human_size(image.size)})")


@contextlib.contextmanager
def _archive(name: str, app: App) -> Iterator[IO[bytes]]:
    if name != "-":
        with (app.cwd / Path(name).expanduser()).open("rb") as file:
            yield file
        return
    # An archive is read from front to back and again, which a pipe does not allow.
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(getattr(app.stdin, "buffer", sys.stdin.buffer), copy)
        copy.seek(0)
        yield copy


def _pull(args: argparse.Namespace, app: App, store: ImageStore) -> None:
    if not args.words:
        raise UsageError("say what to pull: coterie image pull registry.example/team/engine:1.0")
    if args.password_stdin != bool(args.username):
        raise UsageError("a user needs a password: --username USER --password-stdin")
    password = app.stdin.readline().rstrip("\r\n") if args.password_stdin else ""
    mirrors = tuple(RegistryEndpoint.of(each) for each in args.mirror)
    for word in args.words:
        wanted = pulling.parse(word)
        known = _docker_credentials(app) if not args.username else []
        if args.username and wanted.registry:
            known = [RegistryCredentials(wanted.registry, args.username, SecretValue(password))]
        own = [
            ConfiguredRegistry("", replace(RegistryEndpoint.of(wanted.registry), ca_file=args.ca_file), mirrors)
        ] if wanted.registry else []  # fmt: skip
        sources = PullSettings(remote=True, registries=tuple(own)).sources(wanted, known)
        with working(app, word, "asking the registry", done="pulled", quiet=args.output != "table") as step:
            image = pulling.pull(store, wanted, sources, progress=_show_progress(step), pause=_wait)
        app.say(f"pulled {image.name} ({human_size(image.size)}) {image.manifest}")


def _docker_credentials(app: App) -> list[RegistryCredentials]:
    folder = Path(app.environ.get("DOCKER_CONFIG") or app.home / ".docker")
    try:
        return docker_credentials((folder / "config.json").read_bytes())
    except OSError:
        return []


def _wait(attempt: int) -> None:
    time.sleep(min(8.0, 0.5 * 2**attempt))


def _show_progress(step: WorkStep) -> pulling.Progress:
    parts: dict[str, tuple[int, int]] = {}

    def show(digest: str, done: int, total: int) -> None:
        parts[digest] = (done, total)
        here, all_ = (sum(values) for values in zip(*parts.values(), strict=True))
        step.update(f"{human_size(here)} of {human_size(all_)} in {len(parts)} layers", here / all_ if all_ else None)

    return show


def _tag(args: argparse.Namespace, app: App, store: ImageStore) -> None:
    source, name = _check_arguments(args, 2, "tag IMAGE NAME")
    app.say(f"tagged {store.tag(source, name).name}")


def _remove(args: argparse.Namespace, app: App, store: ImageStore) -> None:
    if not args.words:
        raise UsageError("say which images to remove: coterie image rm IMAGE...")
    for word in args.words:
        app.say(f"removed {store.remove(word).name}")


def _save(args: argparse.Namespace, app: App, store: ImageStore) -> None:
    if not args.words:
        raise UsageError("say which images to save: coterie image save IMAGE... --to FILE")
    images = [store.resolve(word) for word in args.words]
    if not args.to:
        out = getattr(app.out, "buffer", None)
        if out is None or app.out.isatty():
            raise UsageError("an archive is not for a terminal: name a file with --to, or redirect the output")
        saved = export.save(store, images, out, args.format)
    else:
        target = app.cwd / Path(args.to).expanduser()
        aside = target.with_name(f".{target.name}.part")
        try:
            with aside.open("wb") as file, working(app, target.name, "writing", done="written"):
                saved = export.save(store, images, file, args.format)
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)
    for image in saved:
        if args.to:
            app.say(f"saved {image.name}")
        if not image.exact:
            app.warn(f"Warning: {image.name} was packed anew; in the archive its id is {image.id}")


def _collect(args: argparse.Namespace, app: App, store: ImageStore) -> None:
    if args.words:
        raise UsageError("gc takes no images; remove one with: coterie image rm IMAGE")
    found = _DURATION.fullmatch(args.unused_for)
    if args.unused_for and not found:
        raise UsageError(f'--unused-for "{args.unused_for}" is not an age such as 30m, 48h or 30d')
    if found:
        images = store.images()
        age = float(found[1]) * _UNITS[found[2]]
        unused = collectable(images, (), (), store.last_used([image.id for image in images]))
        rules = CollectionSettings(minimum_age=0.0, maximum_age=max(age, 1.0))
        for old in too_old(unused, rules, time.time()):
            if any(store.is_locked(image) for image in images if image.id == old.id):
                continue
            for name in old.names:
                if not args.dry_run:
                    store.remove(name)
                app.say(f"{'would remove' if args.dry_run else 'removed'} {name} ({human_size(old.size)})")
    if not args.dry_run:
        before = shutil.disk_usage(store.disk).free
        store.collect(downloads_before=time.time() - 86400)
        app.say(f"freed {human_size(max(0, shutil.disk_usage(store.disk).free - before))} of unused layers")


def _check_arguments(args: argparse.Namespace, count: int, usage: str) -> list[str]:
    if len(args.words) != count:
        raise UsageError(f"write it as: coterie image {usage}")
    return list(args.words)


_RUN: dict[str, Callable[[argparse.Namespace, App, ImageStore], None]] = {
    "ls": _list,
    "add": _add,
    "load": _load,
    "pull": _pull,
    "save": _save,
    "tag": _tag,
    "rm": _remove,
    "gc": _collect,
}
