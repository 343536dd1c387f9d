"""The objects of an action's actors: pods, their code, their token. Pure.

    ConfigMap action-NAME-VERSION    action.py, or archive.000 (a .tar.gz): mounted at /userland
    Secret action-NAME-token         what calls of this action's actors need; no other action knows it
    Pod                              COTERIE_* variables of docs/designs/functions.md, and the action's own
    spare Pod                        the same without an action: it gets code, variables and token when it is claimed

A pod is bare and never restarted: whoever makes it (the controller of functions) sees its exit code (`engines/actor/exit_codes.py`) and its
termination message, and makes another. Its startup probe sees it within a second; whoever cannot wait connects to `ACTOR_PORT` as soon as
the pod has an address: the port is closed until the code is loaded.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable

from coterie.kube.api.meta import Object
from coterie.kube.control.content_hash import content_hash
from coterie.kuscia.api.functions.partners import table_component
from coterie.kuscia.api.functions.types import (
    ACTION_LABEL,
    ACTIONS,
    ACTOR_PORT,
    VERSION_LABEL,
    Action,
    ActionResources,
)
from coterie.kuscia.api.labels import (
    COTERIE_ACTION_TABLES,
    COTERIE_APP_IMAGE,
    KUSCIA_COMMUNICATION_ROLE_CLIENT,
    KUSCIA_INITIATOR,
)

CONTAINER = "actor"
CODE_DIRECTORY = "/userland"
SCRIPT_KEY = "action.py"
ARCHIVE_KEY = "archive.000"
TOKEN_KEY = "token"
TOKEN_VARIABLE = "COTERIE_ACTOR_TOKEN"
SPARE_VARIABLE = "COTERIE_ACTOR_SPARE"
SPARE_LABEL = "coterie.io/spare-actor"
"""Of a pod that belongs to no action so far: which actions could use it (`spare_key`)."""
CPU, MEMORY, DISK = "1", "256Mi", "256Mi"
"""Limits of an actor whose action says nothing. Of disk: what it writes to /tmp, and its log."""
LOAD_SECONDS = 60
"""For the import of the code."""
_REQUESTS = {"cpu": "50m", "memory": "64Mi", "ephemeral-storage": "16Mi"}
_USER = 65532
_DRAIN_SECONDS = 10
_CODE_SIZE = "2Mi"
"""Of the directory that a claimed actor writes its code to: a script or a packed archive."""


def code_name(action: str, version: str) -> str:
    return f"action-{action}-{version}"


def token_name(action: str) -> str:
    return f"action-{action}-token"


def code_config_map(action: Action, version: str, packed: bytes) -> Object:
    """`packed`: the .tar.gz of an action whose code is an archive; a script is in the object as it is."""
    script = action.spec.script
    content: Object = (
        {"data": {SCRIPT_KEY: script}} if script else {"binaryData": {ARCHIVE_KEY: base64.b64encode(packed).decode()}}
    )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _head(action, code_name(action.metadata.name, version), version),
        **content,
        "immutable": True,
    }


def token_secret(action: Action, token: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": _head(action, token_name(action.metadata.name)),
        "data": {TOKEN_KEY: base64.b64encode(token.encode()).decode()},
    }


def actor_pod(
    action: Action, version: str, name: str, *, pool: str = "", partner: str = "", tables: Iterable[str] = ()
) -> Object:
    """`name` of the pod; `pool`: the label, where it is not the action's name (`model.partner_pool`); `partner`: for whom it reads `tables`, and no
    others; empty: for the domain itself. The data mesh knows it by these marks. One that reads tables is apart from other pods, as an engine that a partner
    began: it reaches the data mesh and no pod."""
    spec = action.spec
    meta = _head(action, name, version, pool)
    tables = sorted(tables)
    if partner or tables:
        meta["labels"][KUSCIA_COMMUNICATION_ROLE_CLIENT] = "true"
        meta["annotations"] = {
            **({KUSCIA_INITIATOR: partner} if partner else {}),
            COTERIE_APP_IMAGE: table_component(action.metadata.name),
            COTERIE_ACTION_TABLES: ",".join(tables),
        }
    code: Object | None = None
    if spec.script or spec.archive:
        code = {"configMap": {"name": code_name(action.metadata.name, version)}}
    spread = _spread({ACTION_LABEL: pool or action.metadata.name})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {
            **_pod_spec(action, _environment(action, version), code, read_only_code=True),
            "topologySpreadConstraints": [spread],
        },
    }


def spare_key(action: Action) -> str:
    """Actions with the same key can use the same spare actors: these differ in nothing that a pod fixes. Empty: this one can use none, because its
    environment or its command are part of the pod, the image has the code, or it reads tables, which its network and its certificate allow."""
    spec = action.spec
    if spec.env or spec.command or spec.tables or not (spec.script or spec.archive):
        return ""
    return content_hash(_spare_spec(action, ""), None)


def spare_pod(action: Action, name: str, digest: str) -> Object:
    """As an actor of this action, but of none: no owner, no token, no code. `digest`: of the token that a claim has to show."""
    key = spare_key(action)
    labels = {SPARE_LABEL: key}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": action.metadata.namespace, "labels": labels},
        "spec": {**_spare_spec(action, digest), "topologySpreadConstraints": [_spread(labels)]},
    }


def _spare_spec(action: Action, digest: str) -> Object:
    own = {SPARE_VARIABLE: digest, "COTERIE_ACTOR_PORT": str(ACTOR_PORT)}
    variables = [{"name": name, "value": value} for name, value in own.items()]
    return _pod_spec(action, variables, {"emptyDir": {"sizeLimit": _CODE_SIZE}}, read_only_code=False)


def claimed_metadata(action: Action, version: str, pool: str, uid: str) -> Object:
    """What makes a spare pod one of the action's."""
    head = _head(action, "", version, pool)
    return {
        "uid": uid,
        "labels": {**head["labels"], SPARE_LABEL: None},
        "ownerReferences": head["ownerReferences"],
    }


def claimed_variables(action: Action, version: str, token: str) -> dict[str, str]:
    """The environment of the action's other actors."""
    return {**_variables(action, version), TOKEN_VARIABLE: token}


def _pod_spec(action: Action, variables: list[Object], code: Object | None, *, read_only_code: bool) -> Object:
    spec = action.spec
    volumes: list[Object] = [{"name": "tmp", "emptyDir": {"sizeLimit": DISK}}]
    mounts: list[Object] = [{"name": "tmp", "mountPath": "/tmp"}]
    if code is not None:
        volumes.append({"name": "code", **code})
        mounts.append({"name": "code", "mountPath": CODE_DIRECTORY, **({"readOnly": True} if read_only_code else {})})
    container: Object = {
        "name": CONTAINER,
        "image": spec.image,
        "imagePullPolicy": "IfNotPresent",
        **({"command": list(spec.command)} if spec.command else {}),
        "env": variables,
        "ports": [{"name": CONTAINER, "containerPort": ACTOR_PORT}],
        "resources": _resources(spec.resources),
        "startupProbe": _probe(period=1, failures=LOAD_SECONDS + 15),
        "readinessProbe": _probe(period=10, failures=2),
        "livenessProbe": _probe(period=10, failures=LOAD_SECONDS // 10 + 1),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": spec.timeout_seconds + _DRAIN_SECONDS,
        "securityContext": {"fsGroup": _USER},
        "containers": [container],
        "volumes": volumes,
    }


def _variables(action: Action, version: str) -> dict[str, str]:
    spec = action.spec
    return {
        "COTERIE_ACTION": action.metadata.name,
        "COTERIE_ACTION_VERSION": version,
        "COTERIE_ACTION_HANDLER": spec.handler,
        "COTERIE_ACTION_NEXT": ",".join(spec.targets),
        "COTERIE_ACTION_CONCURRENCY": str(spec.concurrency),
        "COTERIE_ACTION_TIMEOUT": str(spec.timeout_seconds),
        "COTERIE_ACTION_LOAD_TIMEOUT": str(LOAD_SECONDS),
    }


def _environment(action: Action, version: str) -> list[Object]:
    own = {**_variables(action, version), "COTERIE_ACTOR_PORT": str(ACTOR_PORT)}
    key = {"name": token_name(action.metadata.name), "key": TOKEN_KEY}
    token: Object = {"name": TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": key}}
    kept = {*own, TOKEN_VARIABLE, SPARE_VARIABLE}
    given = [{"name": each.name, "value": each.value} for each in action.spec.env or () if each.name not in kept]
    return [*given, *({"name": name, "value": value} for name, value in own.items()), token]


def _resources(wanted: ActionResources) -> Object:
    """What the action says is reserved for each of its actors. Without that an actor reserves little and may use `CPU` and `MEMORY`."""
    cpu, memory = wanted.cpu, wanted.memory
    return {
        "limits": {"cpu": cpu or CPU, "memory": memory or MEMORY, "ephemeral-storage": DISK},
        "requests": {**_REQUESTS, **({"cpu": cpu} if cpu else {}), **({"memory": memory} if memory else {})},
    }


def _probe(period: int, failures: int) -> Object:
    check = {"path": "/healthz", "port": ACTOR_PORT}
    return {"httpGet": check, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}


def _spread(labels: dict[str, str]) -> Object:
    """Actors of one action on all machines, as far as there is room."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }


def _head(action: Action, name: str, version: str = "", pool: str = "") -> Object:
    labels = {ACTION_LABEL: pool or action.metadata.name}
    if version:
        labels[VERSION_LABEL] = version
    resource = ACTIONS.resource
    owner = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": action.metadata.name,
        "uid": action.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": action.metadata.namespace,
        "labels": labels,
        "ownerReferences": [owner],
    }
