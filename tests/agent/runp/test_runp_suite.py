"""RunP passes the suite that all runtimes pass."""

from __future__ import annotations

import pytest
from runp_kit import RunpHarness
from runtime_suite import RuntimeSuite


class TestRunpRuntime(RuntimeSuite):
    @pytest.fixture
    def harness(self, runp: RunpHarness) -> RunpHarness:
        return runp
