"""Where engines may run, by what their config templates name."""

from __future__ import annotations

import pytest

from coterie.kuscia.api import labels
from coterie.kuscia.api.engine_template import KNOWN_NAMES, node_affinity
from coterie.kuscia.engine.builtin_appimages import PSI, SAMPLE, SAMPLE_SERVING
from coterie.kuscia.engine.templates import template


@pytest.mark.parametrize(
    ("text", "everywhere"),
    [
        ("no places", True),
        ('{"id": "{{.TASK_ID}}", "part": {{{.TASK_CLUSTER_DEFINE.parties[0].name}}}}', True),
        ("{{.THREADS}} {{- .TASK_ID -}}", True),
        ("{{.KUSCIA_API_TOKEN}}", False),
        ("{{- .DB_PASSWORD }}", False),
        ("{{.db_password}}", False),
        ("{{{.TASK_INPUT_CONFIG.a[.SECRET_INDEX].b}}}", False),
    ],
    ids=["none", "values", "variable", "token", "store", "lower-case", "index"],
)
def test_templates_that_need_the_domains_key(text: str, everywhere: bool) -> None:
    containers = [{"name": "c", "env": [{"name": "threads", "value": "4"}]}]
    found = node_affinity({"task.conf": text}, containers)
    assert (found is None) == everywhere
    needed = template.parse(text).names - KNOWN_NAMES - {"THREADS"}
    assert bool(needed) != everywhere, "as the agent reads them"
    if found is not None:
        (term,) = found["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert term["matchExpressions"] == [{"key": labels.COTERIE_JOINED, "operator": "DoesNotExist"}]


@pytest.mark.parametrize("engine", [SAMPLE, PSI, SAMPLE_SERVING], ids=["sample", "psi", "serving"])
def test_built_in_engines_run_everywhere(engine: dict[str, dict[str, dict[str, str]]]) -> None:
    assert node_affinity(engine["spec"]["configTemplates"], []) is None
