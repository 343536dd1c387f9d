"""`coterie completion`: a script for the shell."""

from __future__ import annotations

import argparse

from coterie.cli import arguments as options
from coterie.cli.app import App
from coterie.cli.completion.shells import SCRIPTS, SHELLS

HELP = """
Print a script with which the shell completes coterie when TAB is pressed: commands, options and their values, and names
of jobs, tables, domains, routes, nodes, engines, grants, pods and other objects. The names are those of the control
plane that the command would use; when it does not answer within a second, none are offered.

To install it:

  bash   echo 'source <(coterie completion bash)' >> ~/.bashrc
  zsh    echo 'source <(coterie completion zsh)' >> ~/.zshrc      (after `autoload -U compinit; compinit`)
  fish   coterie completion fish > ~/.config/fish/completions/coterie.fish

Then start a new shell.

Examples:
  coterie completion bash >/etc/bash_completion.d/coterie     # for all users of this machine
  coterie completion zsh >~/.zfunc/_coterie                   # a directory of $fpath
  coterie completion fish
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="bash|zsh|fish", help="the shell")


def run(args: argparse.Namespace, app: App) -> int:
    app.write(SCRIPTS[args.shell])
    return 0
