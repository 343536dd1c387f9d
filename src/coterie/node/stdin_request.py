"""How a process of the node takes one request and says why it failed: `domain_keys_process`, `shared_identity_process`.

In comes one JSON object on the standard input, because secrets are in it and arguments can be seen by everybody; out go log lines on the standard error, and on
the standard output one sentence that says why not.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from coterie.base import parent_death
from coterie.base.log import LogSettings, configure


def answer_request(problem_with: Callable[[Mapping[str, Any]], str]) -> NoReturn:
    """`problem_with` does what is asked, and says why it could not be done; empty when it was."""
    parent_death.die_with_parent()
    try:
        status = _answer(problem_with)
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(1)  # whoever asked is gone, and nobody is left to tell
    sys.exit(status)


def _answer(problem_with: Callable[[Mapping[str, Any]], str]) -> int:
    text = sys.stdin.read()
    if not text:
        return 1  # whoever asked was gone before it had said what for
    request = json.loads(text)
    configure(LogSettings(level=request["logLevel"], format=request["logFormat"]))
    problem = problem_with(request)
    print(problem)
    return 1 if problem else 0
