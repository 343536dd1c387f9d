"""Which control plane a command is about: the kubeconfig files that hold the way to it.

The rule, first match wins: --kubeconfig; the domain that --domain or --root point to; $KUBECONFIG; the only domain
under the default root; ~/.kube/config. What was typed for this command beats what the shell has set for all of them. It
is the same for `coterie get`, `coterie kubectl` and the completion of names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.base.paths import ROOT_VARIABLE, DomainPaths
from coterie.cli.app import App, CliError

if TYPE_CHECKING:
    import argparse


def kubeconfig_files(args: argparse.Namespace, app: App) -> list[Path]:
    """The files that hold the way to the chosen control plane."""
    if args.kubeconfig:
        return [_existing(Path(args.kubeconfig).expanduser())]
    root = root_of(args, app)
    if args.domain:
        return [_of_domain(root, args.domain)]
    listed = [Path(part) for part in app.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    if listed and not args.root:
        return listed
    domains = domains_under(root)
    if len(domains) == 1:
        return [DomainPaths.of(root, domains[0]).kubeconfig]
    if domains:
        raise CliError(f"Error: there are several domains under {root}: choose one with --domain {'|'.join(domains)}")
    if args.root:
        raise CliError(
            f"Error: there is no domain with a kubeconfig under {root}; start one with `coterie start -c FILE`"
        )
    fallback = app.home / ".kube" / "config"
    if fallback.is_file():
        return [fallback]
    raise CliError(
        f"Error: there is no control plane under {root} and no {fallback}; "
        "start one with `coterie start -c FILE`, or name a kubeconfig with --kubeconfig"
    )


def root_of(args: argparse.Namespace, app: App) -> Path:
    named = args.root or app.environ.get(ROOT_VARIABLE, "")
    return (app.cwd / Path(named).expanduser()).absolute() if named else app.home / ".coterie"


def domains_under(root: Path) -> list[str]:
    return sorted(path.parent.name for path in root.glob("*/kubeconfig"))


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise CliError(f"Error: there is no kubeconfig {path}; check the name given with --kubeconfig")
    return path


def _of_domain(root: Path, domain: str) -> Path:
    domains = domains_under(root)
    if domain in domains:
        return DomainPaths.of(root, domain).kubeconfig
    known = f"the domains there are {', '.join(domains)}" if domains else "start it with `coterie start -c FILE`"
    raise CliError(f'Error: there is no domain "{domain}" with a kubeconfig under {root}; {known}')
