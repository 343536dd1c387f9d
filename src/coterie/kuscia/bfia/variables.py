"""The environment of an engine of a BFIA task. Pure.

    config.task_id, config.session_id, config.trace_id, config.token
    config.self_role             `<role>.<index>`
    config.inst_id.<role>.<i>, config.node_id.<role>.<i>
    runtime.component.name, runtime.component.parameter.<name>
    runtime.component.input.<name>, runtime.component.output.<name>   {"namespace": "<job>-<role>-<i>", "name": "<task>-<key>"}

Names of inputs and outputs are those of the component specification, an annotation of the AppImage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from coterie.kuscia.api import labels
from coterie.kuscia.api.types.domain import BFIA_PROTOCOL
from coterie.kuscia.api.types.job import AppImage, KusciaTask
from coterie.kuscia.bfia.mapping import role_index, task_input
from coterie.kuscia.bfia.wire import ROLES, BfiaRefused, TaskInput

_MOST_PLACES = 64


def component_names(specification: Mapping[str, str], component: str, direction: str) -> tuple[str, ...]:
    """Names of inputs or outputs (`direction`) of a component, in their order: `component.N.input.M.name`."""
    for number in range(1, _MOST_PLACES + 1):
        if specification.get(f"component.{number}.name") != component:
            continue
        found = []
        for place in range(1, _MOST_PLACES + 1):
            name = specification.get(f"component.{number}.{direction}.{place}.name")
            if name is None:
                break
            found.append(name)
        return tuple(found)
    return ()


def variables(
    job: str,
    task_id: str,
    content: TaskInput,
    node: str,
    task_ids: Mapping[str, str],
    specification: Mapping[str, str],
    as_role: str = "",
) -> dict[str, str]:
    """`task_ids`: of all tasks of the job, by alias. `specification`: of the component, {} where the AppImage has none. `as_role`: of a node that has several. Raises BfiaRefused."""
    named = content.role.of(as_role)
    place = (as_role, named.index(node)) if node in named else role_index(content.role, node)
    if place is None:
        raise BfiaRefused(f"{node} has no role in task {content.name}")
    role, index = place
    found = {
        "config.task_id": task_id,
        "config.session_id": f"session_{task_id}",
        "config.trace_id": f"trace_{task_id}",
        "config.token": f"token_{task_id}",
        "config.self_role": f"{role}.{index}",
        "runtime.component.name": content.module_name or content.name,
    }
    for other in ROLES:
        for number, name in enumerate(content.role.of(other)):
            found[f"config.inst_id.{other}.{number}"] = name
            found[f"config.node_id.{other}.{number}"] = name
    parameters = {
        **_plain(content.task_params.common.get(content.name)),
        **_plain(_plain(content.task_params.of(role).get(str(index))).get(content.name)),
    }
    for name, value in parameters.items():
        found[f"runtime.component.parameter.{name}"] = value if isinstance(value, str) else _json(value)
    namespace = f"{job}-{role}-{index}"
    inputs = component_names(specification, content.module_name or content.name, "input")
    for number, each in enumerate(content.input):
        producer, _, key = each.key.rpartition(".")
        name = inputs[number] if number < len(inputs) else key
        found[f"runtime.component.input.{name}"] = _json(
            {"namespace": namespace, "name": f"{task_ids.get(producer, producer)}-{key}"}
        )
    outputs = component_names(specification, content.module_name or content.name, "output")
    for number, each in enumerate(content.output):
        name = outputs[number] if number < len(outputs) else each.key
        found[f"runtime.component.output.{name}"] = _json({"namespace": namespace, "name": f"{task_id}-{each.key}"})
    return found


def _plain(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def engine_variables(task: KusciaTask, node: str, role: str, image: AppImage | None) -> dict[str, str]:
    """Of one party of a task; {} when it is not of a BFIA job. Raises BfiaRefused."""
    meta = task.metadata
    if (meta.labels or {}).get(labels.KUSCIA_INTERCONN_PROTOCOL_TYPE) != BFIA_PROTOCOL:
        return {}
    marks = meta.annotations or {}
    content = task_input(marks.get(labels.KUSCIA_TASK_ALIAS, ""), task.spec.task_input_config)
    ids = _names(marks.get(labels.COTERIE_BFIA_TASK_IDS, ""), "task ids")
    component_spec = (
        (image.metadata.annotations or {}).get(labels.KUSCIA_COMPONENT_SPEC, "") if image is not None else ""
    )
    specification = _names(component_spec, f"annotation {labels.KUSCIA_COMPONENT_SPEC} of the AppImage")
    return variables(marks.get(labels.KUSCIA_JOB_ID, ""), meta.name, content, node, ids, specification, role)


def _names(text: str, what: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str]) if text else {}
    except msgspec.MsgspecError as problem:
        raise BfiaRefused(f"{what}: {problem}") from problem
