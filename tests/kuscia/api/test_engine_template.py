"""Where engines may run, by what their config templates name."""

from __future__ import annotations

import msgspec
import pytest

from coterie.kuscia.api import labels
from coterie.kuscia.api.engine_template import KNOWN_NAMES, EngineTemplateError, engine_of, image_marks, node_affinity
from coterie.kuscia.api.types.job import AppImage
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


def app_image(**image: str) -> AppImage:
    found = {"name": "team/engine", "tag": "1", **image}
    deploy = [{"name": "d", "spec": {"containers": [{"name": "c"}]}}]
    return msgspec.convert(
        {"metadata": {"name": "engine"}, "spec": {"image": found, "deployTemplates": deploy}}, AppImage
    )


@pytest.mark.parametrize("written", ["sha256:" + "a" * 64, "a" * 64])
def test_the_image_id_reaches_the_node(written: str) -> None:
    engine = engine_of({"engine": app_image(id=written, sign="c2lnbg==")}, "engine", "", None, None)
    assert image_marks(engine.image_id, engine.image_sign) == {
        labels.KUSCIA_IMAGE_ID: "sha256:" + "a" * 64,
        labels.COTERIE_IMAGE_SIGNATURE: "c2lnbg==",
    }
    plain = engine_of({"engine": app_image()}, "engine", "", None, None)
    assert image_marks(plain.image_id, plain.image_sign) == {}


@pytest.mark.parametrize("written", ["", "abc", "adlipoidu8yuahd6"])
def test_a_placeholder_requires_nothing(written: str) -> None:
    """Stock manifests of Kuscia have them."""
    engine = engine_of({"engine": app_image(id=written)}, "engine", "", None, None)
    assert image_marks(engine.image_id, engine.image_sign) == {}


@pytest.mark.parametrize("written", ["sha256:abc", "sha256:" + "a" * 63, "sha512:" + "a" * 64, "sha256:" + "A" * 64])
def test_an_image_id_that_no_image_can_have_is_told(written: str) -> None:
    with pytest.raises(EngineTemplateError, match=r'AppImage "engine": image\.id .* is not sha256'):
        engine_of({"engine": app_image(id=written)}, "engine", "", None, None)
