"""Containers on containerd pass the suite that all runtimes pass."""

from __future__ import annotations

import pytest
from cri_kit import CriHarness, needs_containerd
from runtime_suite import RuntimeSuite


@needs_containerd
class TestCriRuntime(RuntimeSuite):
    @pytest.fixture
    def harness(self, cri: CriHarness) -> CriHarness:
        return cri
