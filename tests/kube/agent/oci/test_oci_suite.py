"""runc, crun and gVisor pass the suite that all runtimes pass."""

from __future__ import annotations

import pytest
from oci_kit import OciHarness
from runtime_suite import RuntimeSuite


class TestOciRuntimes(RuntimeSuite):
    @pytest.fixture
    def harness(self, box: OciHarness) -> OciHarness:
        return box
