"""What the commands of `coterie service` share: which node is meant, and putting a version of it into service."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from coterie.cli import arguments as options
from coterie.cli import background
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.control_plane import root_of
from coterie.cli.service_manager import Systemd
from coterie.cli.service_unit import PREFIX, NodeService
from coterie.node import config
from coterie.node.config import ConfigError, NodeSettings

_CHECK_SECONDS = 60.0
_CHECK = "import sys; from pathlib import Path; from coterie.node import config; config.load(Path(sys.argv[1]), root=Path(sys.argv[2]))"
_LAST_LINES = 10


def service_options(parser: options.Parser) -> None:
    parser.add_argument(
        "--user", action="store_true", help="a service of your own (systemctl --user), not of the system"
    )
    options.root_option(parser)


def wait_option(parser: options.Parser) -> None:
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=options.seconds,
        default=120.0,
        help="how long to wait until it is ready (default: 120)",
    )


def domain_option(parser: options.Parser) -> None:
    parser.add_argument(
        "--domain", metavar="ID", default=argparse.SUPPRESS, help="domain of the node, if there are several"
    )


def service_of(app: App, file: str, root: str, *, user: bool, python: str = "") -> tuple[NodeService, NodeSettings]:
    """Raises CliError when the configuration cannot be used."""
    path = (app.cwd / Path(file).expanduser()).absolute()
    place = (app.cwd / Path(root).expanduser()).absolute() if root else None
    try:
        settings = config.load(path, root=place)
    except ConfigError as problem:
        raise CliError(f"Error: {problem}") from problem
    made = NodeService(
        domain=settings.domain,
        python=python or sys.executable,
        config=path,
        root=settings.paths.home.parent,
        log=background.log_file(settings.paths),
        runs_pods=settings.agent is not None and settings.runk is None,
        user=user,
    )
    return made, settings


def installed(app: App, args: argparse.Namespace, systemd: Systemd) -> str:
    """The domain whose service is meant."""
    if args.domain:
        return str(args.domain)
    found = sorted(
        path.name.removeprefix(PREFIX).removesuffix(".service") for path in systemd.directory.glob(f"{PREFIX}*.service")
    )
    if len(found) == 1:
        return found[0]
    if not found:
        raise CliError(
            f"Error: there is no service of a node in {systemd.directory}; `coterie service install -c FILE` makes one"
        )
    raise UsageError(f"there are services of {', '.join(found)}; name one with --domain")


def check_version(app: App, service: NodeService) -> str:
    """The version that an interpreter has, once it has read the configuration. Raises CliError."""
    version = _run(app, service.python, "-m", "coterie", "--version").strip()
    _run(app, service.python, "-c", _CHECK, str(service.config), str(service.root))
    return version.removeprefix("coterie ").strip()


def _run(app: App, *command: str) -> str:
    try:
        done = subprocess.run(
            command, env=dict(app.environ), capture_output=True, text=True, timeout=_CHECK_SECONDS, cwd="/", check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise CliError(f"Error: {command[0]} cannot be run: {problem}; nothing was changed") from problem
    if done.returncode:
        last = deque(done.stderr.strip().splitlines(), maxlen=1)
        raise CliError(f"Error: {command[0]} refuses: {last[0] if last else done.returncode}; nothing was changed")
    return done.stdout


def log_lines(settings: NodeSettings) -> list[str]:
    return background.log_tail(settings.paths, _LAST_LINES)


def show_lines(app: App, lines: Sequence[str]) -> None:
    for line in lines:
        app.warn(f"  {line}")


def root_text(args: argparse.Namespace, app: App) -> str:
    """Where the domains are, if that was named; the configuration may say it otherwise."""
    return str(root_of(args, app)) if args.root or app.environ.get("COTERIE_ROOT") else ""
