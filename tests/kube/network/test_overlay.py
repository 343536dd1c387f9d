"""The network between nodes in the kernel: machines, a router and pods as network namespaces; attacks among them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import overlay_scenarios as scenarios
import pytest
from pod_network_scenarios import FORBIDDEN

PROGRAM = Path(scenarios.__file__)


@pytest.mark.parametrize("name", list(scenarios.SCENARIOS))
def test_scenario(name: str) -> None:
    done = subprocess.run([sys.executable, str(PROGRAM), "root", name], capture_output=True, text=True, timeout=50)
    if done.returncode == FORBIDDEN:
        pytest.skip(f"this machine allows no network namespaces: {done.stderr.strip()}")
    print(done.stdout)
    assert done.returncode == 0, done.stderr
