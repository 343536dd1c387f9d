"""`coterie kubectl`: the real one, pointed at the chosen control plane."""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from coterie.cli.app import App, CliError, UsageError
from coterie.cli.arguments import Parser, connection_options
from coterie.cli.session import kubeconfig_files

HELP = """
Run the installed kubectl with the kubeconfig of the selected control plane. All arguments after `kubectl` are passed on
to it, except --root and --domain directly after `kubectl`. `coterie kubectl help` shows the help of kubectl.

Examples:
  coterie kubectl get pods -A
  coterie --domain alice kubectl explain kusciajob.spec
  coterie kubectl --domain alice describe node
  coterie kubectl edit configmap settings
"""
_OURS = ("--root", "--domain")
_VERSION = re.compile(r"kubectl-(\d+)\.(\d+)")


def arguments(parser: Parser) -> None:
    connection_options(parser)


def run(args: argparse.Namespace, app: App) -> int:
    rest = take_ours(getattr(args, "rest", []), args)
    if not rest:
        raise UsageError("say what kubectl is to do, e.g. `coterie kubectl get pods`; `coterie kubectl help` lists it")
    program = find_kubectl(app)
    env = dict(app.environ)
    # kubectl's own options win, and what needs no server must work without one.
    if not any(word == "--kubeconfig" or word.startswith("--kubeconfig=") for word in rest) and rest[0] not in _LOCAL:
        env["KUBECONFIG"] = os.pathsep.join(str(path) for path in kubeconfig_files(args, app))
    words = [
        program,
        *(["--context", args.context] if args.context else []),
        *(["-n", args.namespace] if args.namespace else []),
        *rest,
    ]
    app.out.flush()
    try:
        # This process becomes kubectl, so that the terminal, signals and the exit status are kubectl's own.
        os.execvpe(program, words, env)
    except OSError as error:
        raise CliError(f"Error: {program} cannot be run: {error.strerror}") from error


_LOCAL = frozenset(("help", "completion", "options", "plugin", "kustomize"))


def take_ours(words: Sequence[str], args: argparse.Namespace) -> list[str]:
    """Take --root and --domain off the front: kubectl has no such options."""
    rest = list(words)
    while rest:
        name, equals, value = rest[0].partition("=")
        if name not in _OURS:
            break
        if not equals and len(rest) < 2:
            raise UsageError(f"{name}: a value is missing")
        setattr(args, name[2:], value if equals else rest[1])
        del rest[: 1 if equals else 2]
    return rest


def find_kubectl(app: App) -> str:
    """On the PATH, else the newest that `make setup` put below the working directory."""
    found = shutil.which("kubectl", path=app.environ.get("PATH"))
    if found:
        return found
    fetched = [path for path in (app.cwd / ".tools" / "kubectl").glob("kubectl-1.*") if os.access(path, os.X_OK)]
    if fetched:
        return str(max(fetched, key=_version))
    raise CliError(
        "Error: there is no kubectl on the PATH; install it (in Coterie's own repository `make setup` gets one), "
        "or use `coterie get|describe|apply|delete`"
    )


def _version(path: Path) -> tuple[int, int]:
    found = _VERSION.match(path.name)
    return (int(found[1]), int(found[2])) if found else (0, 0)
