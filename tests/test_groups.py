"""Which tests share a worker, and that the longest ones are started first."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def rules() -> ModuleType:
    """tests/conftest.py; by its path, as several modules have that name."""
    spec = importlib.util.spec_from_file_location("rules_of_groups", Path(__file__).with_name("conftest.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("nodeid", "group", "is_long"),
    [
        ("tests/e2e/test_e2e_machines.py::test_x", "e2e-machines", True),
        ("tests/e2e/test_e2e_pods.py::test_x", "e2e-autonomy", True),
        ("tests/conformance/test_kubectl.py::test_chapter[1.32-kinds]", "kubectl-1.32", True),
        ("tests/cli/test_cli_up.py::test_center", "tests/cli/test_cli_up.py", True),
        ("tests/kuscia/datamesh/test_datamesh_sources.py::TestS3::test_x[a::b]", "sources-S3", False),
        ("tests/base/test_base_jwt.py::TestA::test_x[tests/e2e/y]", "tests/base/test_base_jwt.py", False),
    ],
)
def test_groups(rules: ModuleType, nodeid: str, group: str, is_long: bool) -> None:
    assert (rules.group_of(nodeid), rules.seconds_of(nodeid) > 0) == (group, is_long)


def test_what_is_called_long_exists(rules: ModuleType) -> None:
    groups = {group for _, group in rules.GROUPS} | {"kubectl", "faults", "crash"}
    unknown = [name for name in rules.SECONDS if name not in groups and not (ROOT / name).is_file()]
    assert unknown == []
