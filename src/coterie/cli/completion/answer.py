"""`coterie __complete SHELL ...`: what the scripts of `shells.py` call for each TAB.

Prints what the shell shall add by itself (`files`, `directories`, `names`: nothing), then one candidate a line. It never fails, never
writes to standard error and ends after a second ($COTERIE_COMPLETION_SECONDS), whatever a control plane does.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.base.lazy_import import lazy_import
from coterie.cli.app import App, CliError
from coterie.cli.completion import shells
from coterie.cli.completion.names import FILE_SOURCES, names, offered
from coterie.cli.completion.question import CompletionQuestion, question
from coterie.cli.completion.specification import Specifications, cache_file
from coterie.cli.control_plane import domains_under, kubeconfig_files, root_of

if TYPE_CHECKING:
    import argparse

    from coterie.cli.completion import api_request
    from coterie.kube.client import kubeconfig
else:
    argparse = lazy_import("argparse")
    api_request = lazy_import("coterie.cli.completion.api_request")
    kubeconfig = lazy_import("coterie.kube.client.kubeconfig")

_SECONDS = 1.0
_SECONDS_VARIABLE = "COTERIE_COMPLETION_SECONDS"
_MOST_PLANES = 4


def main(words: Sequence[str]) -> int:
    """The process ends by itself when time is up: name resolution cannot be interrupted in another way."""
    app = App.standard()
    limit = threading.Timer(_time_limit(app), os._exit, (0,))
    limit.daemon = True
    limit.start()
    lines = answer(words, app)
    # In bytes: the shell's locale may be one that Python cannot write names in.
    sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
    sys.stdout.buffer.flush()
    return 0


def _time_limit(app: App) -> float:
    named = app.environ.get(_SECONDS_VARIABLE, "")
    return float(named) if named.isdecimal() and int(named) else _SECONDS


def answer(words: Sequence[str], app: App) -> list[str]:
    """Lines for the shell that the first word names."""
    shell, rest = (words[0], list(words[1:])) if words else ("", [])
    if shell not in shells.SHELLS or not rest:
        return []
    if shell == "bash":
        line = shells.parse_line(rest[0], rest[1] if len(rest) > 1 else "")
        kind, candidates = complete(line.words[1:], line.current, app)
        return [kind, *shells.bash_candidates(candidates, line)]
    current = shells.fish_word(rest[-1]) if shell == "fish" else rest[-1]
    kind, candidates = complete(rest[:-1], current, app)
    return [kind, *shells.described(candidates)]


def complete(before: Sequence[str], current: str, app: App) -> tuple[str, list[tuple[str, str]]]:
    """What the shell adds, and the candidates with their descriptions. `before`: without the program's name."""
    known = Specifications(cache_file(app.environ))
    asked = question(before, current, known.top(), known.command)
    sources = [source for source in asked.source.split("|") if source]
    found = [name for source in sources if source not in FILE_SOURCES for name in _names(asked, source, app)]
    fitting = [(asked.fixed + name, "") for name in offered(found, asked.typed)]
    listed = [(asked.fixed + word, text) for word, text in asked.candidates]
    kind = next((source for source in sources if source in FILE_SOURCES), "names")
    return kind, listed + fitting


def _names(asked: CompletionQuestion, source: str, app: App) -> list[str]:
    options = _connection_options(asked.options)
    try:
        if source == "local-domains":
            return domains_under(root_of(options, app))
        if source == "contexts":
            return list(kubeconfig.load(kubeconfig_files(options, app)).contexts)
        found: list[str] = []
        for files in _control_planes(options, app):
            reader = api_request.ApiReader(kubeconfig.load(files).resolve(options.context), _time_limit(app))
            found += names(asked, source, reader)
            reader.close()
        return found
    except (CliError, kubeconfig.KubeconfigError, OSError):
        return []


def _control_planes(options: argparse.Namespace, app: App) -> list[list[Path]]:
    """The one that the command would use. Of several on this machine, none chosen yet, all are asked."""
    try:
        return [kubeconfig_files(options, app)]
    except CliError:
        root = root_of(options, app)
        return [[root / domain / "kubeconfig"] for domain in domains_under(root)[:_MOST_PLANES]]


def _connection_options(values: Mapping[str, str]) -> argparse.Namespace:
    named = {name: values.get(name, "") for name in ("kubeconfig", "context", "root", "domain")}
    return argparse.Namespace(**named)
