"""Virtual addresses of Services in the kernel: the same behaviour for root and for an ordinary user."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import service_scenarios as scenarios
from pod_network_scenarios import FORBIDDEN

PROGRAM = Path(scenarios.__file__)


@pytest.mark.parametrize("mode", ["root", "user"])
@pytest.mark.parametrize("name", list(scenarios.SCENARIOS))
def test_scenario(mode: str, name: str) -> None:
    done = subprocess.run([sys.executable, str(PROGRAM), mode, name], capture_output=True, text=True, timeout=50)
    if done.returncode == FORBIDDEN:
        pytest.skip(f"this machine allows no network namespaces: {done.stderr.strip()}")
    print(done.stdout)
    assert done.returncode == 0, done.stderr
