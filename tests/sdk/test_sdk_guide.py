"""What the guide says about the client can be typed as it stands there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import coterie.sdk
from coterie.sdk import connection

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "sdk.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_block_of_code(block: str) -> None:
    tree = compile(block, "sdk.md", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "coterie.sdk":
            assert {each.name for each in node.names} <= set(coterie.sdk.__all__)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "coterie.sdk":
            assert node.attr in coterie.sdk.__all__


FACES = {
    "jobs": connection.Jobs,
    "domains": connection.Domains,
    "routes": connection.Routes,
    "data": connection.DataSets,
    "sources": connection.Sources,
    "grants": connection.Grants,
    "servings": connection.Servings,
    "images": connection.Images,
    "config": connection.Config,
    "certificates": connection.Certificates,
    "logs": connection.Logs,
    "partner_logs": connection.PartnerLogs,
    "bandwidth": connection.Bandwidth,
    "evidence": connection.Evidence,
    "health": connection.Health,
}


def test_operations_that_are_named_exist() -> None:
    for group, operation in re.findall(r"alice\.(\w+)\.(\w+)\(", GUIDE):
        face = FACES[group]
        assert hasattr(face, operation), f"{group}.{operation}"


def test_the_example_is_the_one_in_the_guide() -> None:
    example = (Path(__file__).parents[2] / "examples" / "sdk_five_lines.py").read_text()
    for line in BLOCKS[0].splitlines()[:-1]:
        assert line in example
