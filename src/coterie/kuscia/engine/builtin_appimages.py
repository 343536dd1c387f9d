"""The AppImages of the engines that come with Coterie, and seeing that the API has them.

An AppImage that somebody changed is his from then on; one that nobody touched follows the version of Coterie. The annotation
`coterie.io/built-in` tells the two apart: it is a digest of what was written.
"""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

import coterie
from coterie.base.log import logger
from coterie.kube.api.errors import AlreadyExists, Forbidden, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.client.client import Client
from coterie.kube.control.manager import RunOnce
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import APP_IMAGES

log = logger("engines")

BUILT_IN = "coterie.io/built-in"
_TASK_FILE = "task-config.conf"
_SERVING_FILE = "serving-config.conf"

_TEMPLATE = (
    "{\n"
    '  "task_id": "{{.TASK_ID}}",\n'
    '  "task_input_config": "{{.TASK_INPUT_CONFIG}}",\n'
    '  "task_cluster_def": "{{.TASK_CLUSTER_DEFINE}}",\n'
    '  "allocated_ports": "{{.ALLOCATED_PORTS}}",\n'
    '  "task_progress_url": "http://reporter.master.svc/report/progress?task_id={{.TASK_ID}}"\n'
    "}\n"
)

_SERVING_TEMPLATE = (
    "{\n"
    '  "serving_id": "{{.SERVING_ID}}",\n'
    '  "input_config": "{{.INPUT_CONFIG}}",\n'
    '  "cluster_def": "{{.CLUSTER_DEFINE}}",\n'
    '  "allocated_ports": "{{.ALLOCATED_PORTS}}"\n'
    "}\n"
)


def version_marks(engine: str, version: str, speaks: str = "") -> dict[str, str]:
    """Annotations by which an AppImage says which version of which engine it is."""
    marks = {labels.COTERIE_ENGINE: engine, labels.COTERIE_ENGINE_VERSION: version}
    return {**marks, **({labels.COTERIE_SPEAKS: speaks} if speaks else {})}


def _engine(name: str, image: str, options: list[str], port: str, version: str, speaks: str = "") -> Object:
    container: Object = {
        "name": name,
        "command": ["python", *options, "-P", "-m", f"coterie.engines.{name}", f"kuscia/{_TASK_FILE}"],
        "workingDir": "/work",
        "configVolumeMounts": [{"mountPath": f"/work/kuscia/{_TASK_FILE}", "subPath": _TASK_FILE}],
        "ports": [{"name": port, "protocol": "HTTP", "scope": "Cluster"}],
    }
    spec = {"restartPolicy": "Never", "containers": [container]}
    return {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "AppImage",
        "metadata": {"name": name, "annotations": version_marks(name, version, speaks)},
        "spec": {
            "image": {"name": image, "tag": "latest"},
            "configTemplates": {_TASK_FILE: _TEMPLATE},
            "deployTemplates": [{"name": name, "replicas": 1, "spec": spec}],
        },
    }


def _service(name: str, module: str, port: str) -> Object:
    """An engine for KusciaDeployments: it runs until it is told to end, and says when it takes calls."""
    container: Object = {
        "name": name,
        "command": ["python", "-S", "-P", "-m", f"coterie.engines.{module}", f"kuscia/{_SERVING_FILE}"],
        "workingDir": "/work",
        "configVolumeMounts": [{"mountPath": f"/work/kuscia/{_SERVING_FILE}", "subPath": _SERVING_FILE}],
        "ports": [{"name": port, "protocol": "HTTP", "scope": "Cluster"}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": port}, "periodSeconds": 1, "failureThreshold": 2},
    }
    return {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "AppImage",
        "metadata": {"name": name},
        "spec": {
            "image": {"name": "coterie/python", "tag": "latest"},
            "configTemplates": {_SERVING_FILE: _SERVING_TEMPLATE},
            "deployTemplates": [
                {"name": name, "replicas": 1, "spec": {"restartPolicy": "Always", "containers": [container]}}
            ],
        },
    }


# Without the search for installed packages: it would take longer than the task itself.
SAMPLE = _engine("sample", "coterie/python", ["-S"], "talk", coterie.__version__)
SAMPLE["metadata"]["annotations"][labels.COTERIE_TABLES_IN] = "inputs"  # it reads no tables at all
PSI_IMAGE = "coterie/psi"
PSI_SPEAKS = ">=0.9,<0.10"
"""The protocol of SPU's PSI is that of its minor version."""
PSI = _engine("psi", PSI_IMAGE, [], "psi", "0.9.5", PSI_SPEAKS)
"""Not there from the beginning: it needs an environment of its own, see `coterie engine add`."""
SAMPLE_SERVING = _service("sample-serving", "serving", "serve")
ENGINES: tuple[Object, ...] = (SAMPLE, SAMPLE_SERVING)


def engines_known(client: Client) -> RunOnce:
    """A job of every control plane: ready when the API has the built-in engines."""

    async def keep() -> None:
        await ensure_engines(client)

    return RunOnce("engines", keep)


async def ensure_engines(client: Client, engines: tuple[Object, ...] = ENGINES) -> None:
    for wanted in engines:
        await _ensure(client, wanted)


async def _ensure(client: Client, wanted: Object) -> None:
    kind, name = APP_IMAGES.as_dynamic, wanted["metadata"]["name"]
    try:
        found = await client.get(kind, name)
    except NotFound:
        try:
            await client.create(kind, marked(wanted))
            log.info("Built-in engine registered", engine=name)
        except AlreadyExists:
            return  # somebody was quicker
        return
    if outdated(found, wanted):
        try:
            await client.modify(kind, name, "", lambda found: _renewed(found, wanted))
        except Forbidden as problem:
            log.warning("A built-in engine stays as it is until the next start", engine=name, why=str(problem))
            return
        log.info("Built-in engine updated", engine=name)


def marked(engine: Object) -> Object:
    marks = {**_annotations(engine), BUILT_IN: digest(engine["spec"])}
    return {**engine, "metadata": {**engine["metadata"], "annotations": marks}}


def _annotations(engine: Object) -> dict[str, str]:
    return engine["metadata"].get("annotations") or {}


def outdated(found: Object, wanted: Object) -> bool:
    """Whether it is as an older version wrote it, and this one would write it otherwise."""
    there = _annotations(found)
    mark = there.get(BUILT_IN)
    marks = any(there.get(key) != value for key, value in _annotations(wanted).items())
    return mark == digest(found["spec"]) and (marks or mark != digest(wanted["spec"]))


def _renewed(found: Object, wanted: Object) -> Object:
    meta = found["metadata"]
    marks = {**_annotations(found), **_annotations(wanted), BUILT_IN: digest(wanted["spec"])}
    return {**found, "spec": wanted["spec"], "metadata": {**meta, "annotations": marks}}


def digest(spec: Any) -> str:
    return hashlib.sha256(orjson.dumps(spec, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
