"""What only root can do: such tests are skipped by name when an ordinary user runs them."""

from __future__ import annotations

import os

import pytest

IS_ROOT = os.geteuid() == 0


def needs_root(what: str) -> pytest.MarkDecorator:
    """A mark; `what` says which power the test needs."""
    return pytest.mark.skipif(not IS_ROOT, reason=_reason(what))


def require_root(what: str) -> None:
    """As `needs_root`, from within a test or a fixture."""
    if not IS_ROOT:
        pytest.skip(_reason(what))


def _reason(what: str) -> str:
    return f"needs root: {what}"
