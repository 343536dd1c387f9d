"""The first code of the program `coterie`. A node that is started in the plain way (`coterie start -c FILE [--root DIR]`) does
without the command line's parser, which it would otherwise hold for as long as it runs; a TAB in a shell cannot wait for it.
Everything else is `main.py`'s."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coterie.base.lazy_import import lazy_import
from coterie.cli.app import App, exit_status
from coterie.kube.network.rootless.platforms import platform_problem

if TYPE_CHECKING:
    from coterie.cli import main as command_line
    from coterie.cli import node_process
    from coterie.cli.completion import answer as completion
else:
    completion = lazy_import("coterie.cli.completion.answer")
    command_line = lazy_import("coterie.cli.main")
    node_process = lazy_import("coterie.cli.node_process")

_COMPLETE = "__complete"
_OPTIONS = {"-c": "config", "--config": "config", "--root": "root"}


def main() -> int:
    if sys.argv[1:2] == [_COMPLETE]:
        return completion.main(sys.argv[2:])
    chosen = plain_start(sys.argv[1:])
    if chosen is None or platform_problem(sys.platform):
        return command_line.main()
    app, (config, root) = App.standard(), chosen
    return exit_status(app, lambda: node_process.run_node(config, root, app))


def plain_start(words: Sequence[str]) -> tuple[str, str] | None:
    """(configuration, root) of `start -c FILE [--root DIR]`; None: it is something else, or not quite that."""
    if len(words) not in (3, 5) or words[0] != "start":
        return None
    found: dict[str, str] = {}
    for option, value in zip(words[1::2], words[2::2], strict=True):
        name = _OPTIONS.get(option)
        if name is None or name in found or not value or value.startswith("-"):
            return None
        found[name] = value
    return (found["config"], found.get("root", "")) if "config" in found else None
