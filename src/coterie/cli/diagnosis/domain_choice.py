"""Which domain of this machine a command is about that reads its files and needs no server."""

from __future__ import annotations

from pathlib import Path

from coterie.base.paths import DomainPaths
from coterie.cli.app import CliError


def chosen_home(root: Path, domain: str) -> DomainPaths:
    """The named one, or the only one."""
    names = sorted(path.parent.name for path in root.glob("*/var"))
    if domain:
        if domain not in names:
            raise CliError(
                f'Error: there is no domain "{domain}" under {root}; there are: {", ".join(names) or "none"}'
            )
        return DomainPaths.of(root, domain)
    if not names:
        raise CliError(f"Error: there is no domain under {root}; run this on the machine of a node, or name --root")
    if len(names) > 1:
        raise CliError(f"Error: there are several domains under {root}: choose one with --domain {'|'.join(names)}")
    return DomainPaths.of(root, names[0])
