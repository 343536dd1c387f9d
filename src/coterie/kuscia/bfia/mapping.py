"""From BFIA's DAG and config to a KusciaJob, and back. Pure.

component.code   AppImage            component.name   alias of the task
dependency       input.type is the output.type of another component, and input.key is "<its name>.<its output.key>"
parties          nodes whose role has parameters for the component
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from coterie.kuscia.api.jobs.phases import JOB_ENDED
from coterie.kuscia.api.types.job import (
    JobParty,
    JobPhase,
    KusciaJob,
    KusciaJobSpec,
    KusciaTask,
    TaskPhase,
    TaskTemplate,
)
from coterie.kuscia.bfia.wire import (
    FAILURE,
    MAX_COMPONENTS,
    MAX_NODES,
    PENDING,
    ROLES,
    RUNNING,
    SUCCESS,
    BfiaRefused,
    Component,
    ConfigParams,
    ConfigRole,
    CreateJobRequest,
    Dag,
    JobConfig,
    Plain,
    TaskInput,
)

STRICT_MODE = "Strict"
MAX_PARALLELISM = 2
_TASK_STATES: dict[str, str] = {
    TaskPhase.PENDING: PENDING,
    TaskPhase.RUNNING: RUNNING,
    TaskPhase.SUCCEEDED: SUCCESS,
    TaskPhase.FAILED: FAILURE,
}
_FAILED_JOBS = (JobPhase.FAILED, JobPhase.CANCELLED, JobPhase.APPROVAL_REJECT)


# From a request to a job.


def job_spec(request: CreateJobRequest) -> KusciaJobSpec:
    """Raises BfiaRefused."""
    config, components = request.config, request.dag.components
    _check_config(config)
    _check_components(components)
    by_name = {each.name: each for each in components}
    tasks = tuple(_task(each, components, config) for each in components)
    _check_no_cycle(by_name, {task.alias: task.dependencies or () for task in tasks})
    return KusciaJobSpec(
        initiator=config.initiator.node_id,
        tasks=tasks,
        flow_id=request.flow_id,
        schedule_mode=STRICT_MODE,
        max_parallelism=MAX_PARALLELISM,
    )


def _check_config(config: JobConfig) -> None:
    nodes = [(role, node) for role in ROLES for node in config.role.of(role)]
    if not nodes or len(nodes) > MAX_NODES:
        raise BfiaRefused(f"config.role names between 1 and {MAX_NODES} nodes, not {len(nodes)}")
    if len(set(nodes)) < len(nodes):
        raise BfiaRefused("config.role names a node twice in one role")
    if config.initiator.node_id not in config.role.of(config.initiator.role):
        raise BfiaRefused(
            f"config.initiator: {config.initiator.node_id} is not a {config.initiator.role} in config.role"
        )


def _check_components(components: Sequence[Component]) -> None:
    if not 0 < len(components) <= MAX_COMPONENTS:
        raise BfiaRefused(f"dag.components has between 1 and {MAX_COMPONENTS} components, not {len(components)}")
    seen: set[str] = set()
    for each in components:
        if not each.name or not each.code:
            raise BfiaRefused("each component needs a name and a code")
        if each.name in seen:
            raise BfiaRefused(f"two components have the name {each.name}")
        seen.add(each.name)


def dependencies_of(component: Component, components: Iterable[Component]) -> tuple[str, ...]:
    """Raises BfiaRefused when an input comes from nowhere."""
    produced = {
        (output.type, f"{each.name}.{output.key}"): each.name
        for each in components
        if each.name != component.name
        for output in each.output
    }
    found: dict[str, None] = {}
    for wanted in component.input:
        producer = produced.get((wanted.type, wanted.key))
        if producer is None:
            raise BfiaRefused(f"{component.name}: no component has the output {wanted.key} of type {wanted.type}")
        found[producer] = None
    return tuple(found)


def _check_no_cycle(known: Mapping[str, Component], edges: Mapping[str, Sequence[str]]) -> None:
    left = {name: set(edges[name]) for name in known}
    while ready := [name for name, needs in left.items() if not needs]:
        for name in ready:
            del left[name]
        for needs in left.values():
            needs.difference_update(ready)
    if left:
        raise BfiaRefused(f"the components {', '.join(sorted(left))} need each other in a circle")


def parties_of(name: str, config: JobConfig) -> tuple[JobParty, ...]:
    """Nodes whose role has parameters for a component."""
    return tuple(
        JobParty(domain_id=node, role=role)
        for role in ROLES
        for index, node in enumerate(config.role.of(role))
        if _has(config.task_params.of(role), index, name)
    )


def _has(params: Plain, index: int, name: str) -> bool:
    of_node = params.get(str(index))
    return isinstance(of_node, dict) and name in of_node


def _task(component: Component, components: Sequence[Component], config: JobConfig) -> TaskTemplate:
    parties = parties_of(component.name, config)
    if not parties:
        raise BfiaRefused(f"{component.name}: config.task_params has parameters of no node for it")
    needs = dependencies_of(component, components)
    content = TaskInput(
        name=component.name,
        module_name=component.module_name,
        input=component.input,
        output=component.output,
        role=config.role,
        initiator=config.initiator,
        task_params=_params_of(component.name, config),
    )
    return TaskTemplate(
        alias=component.name,
        app_image=component.code,
        task_input_config=msgspec.json.encode(content).decode(),
        parties=parties,
        dependencies=needs or None,
    )


def _params_of(name: str, config: JobConfig) -> ConfigParams:
    """The parameters of one component."""
    params = config.task_params
    kept = {
        role: {
            str(index): {name: params.of(role)[str(index)][name]}
            for index in range(len(config.role.of(role)))
            if _has(params.of(role), index, name)
        }
        for role in ROLES
    }
    common = {name: params.common[name]} if name in params.common else {}
    return ConfigParams(host=kept["host"], guest=kept["guest"], arbiter=kept["arbiter"], common=common)


# From a job to a request.


def create_request(job: KusciaJob) -> CreateJobRequest:
    """What a partner is sent. BfiaRefused when a task's input is not that of a BFIA component."""
    inputs = {task.alias: task_input(task.alias, task.task_input_config) for task in job.spec.tasks}
    if not inputs:
        raise BfiaRefused("the job has no tasks")
    first = next(iter(inputs.values()))
    for name, each in inputs.items():
        if (each.role, each.initiator) != (first.role, first.initiator):
            raise BfiaRefused(f"task {name}: role and initiator must be the same in all tasks of a job")
    components = tuple(
        Component(
            code=task.app_image,
            name=task.alias,
            module_name=inputs[task.alias].module_name,
            input=inputs[task.alias].input,
            output=inputs[task.alias].output,
        )
        for task in job.spec.tasks
    )
    return CreateJobRequest(
        job_id=job.metadata.name,
        flow_id=job.spec.flow_id,
        dag=Dag(components=components),
        config=JobConfig(
            role=first.role,
            initiator=first.initiator,
            task_params=_joined([each.task_params for each in inputs.values()]),
        ),
    )


def task_input(alias: str, text: str) -> TaskInput:
    try:
        found = msgspec.json.decode(text, type=TaskInput)
    except (msgspec.MsgspecError, RecursionError) as problem:
        raise BfiaRefused(f"task {alias}: its input is not that of a BFIA component: {problem}") from problem
    if found.name != alias:
        raise BfiaRefused(f"task {alias}: its input is that of the component {found.name}")
    return found


def _joined(each: Iterable[ConfigParams]) -> ConfigParams:
    out: dict[str, Plain] = {role: {} for role in (*ROLES, "common")}
    for params in each:
        out["common"] |= params.common
        for role in ROLES:
            for index, components in params.of(role).items():
                out[role].setdefault(index, {}).update(components)
    return ConfigParams(**out)


def role_index(role: ConfigRole, node: str) -> tuple[str, int] | None:
    """The role of a node and its place in it; None: it has none."""
    for name in ROLES:
        if node in role.of(name):
            return name, role.of(name).index(node)
    return None


# States.


def task_state(task: KusciaTask | None) -> str:
    if task is None:
        return PENDING
    return _TASK_STATES.get(task.status.phase, PENDING)


def job_states(job: KusciaJob, tasks: Mapping[str, KusciaTask]) -> dict[str, str]:
    """By task id. What never began in a job that ended badly has failed."""
    broken = job.status.phase in _FAILED_JOBS and job.status.phase in JOB_ENDED
    out: dict[str, str] = {}
    for template in job.spec.tasks:
        if not template.task_id:
            continue
        state = task_state(tasks.get(template.task_id))
        out[template.task_id] = FAILURE if broken and state in (PENDING, RUNNING) else state
    return out


def party_state(task: KusciaTask | None, role: str) -> str:
    """Of one role; of all of them when it is not named."""
    if task is None:
        return PENDING
    states = [
        _TASK_STATES.get(each.phase, PENDING) for each in task.status.party_task_status or () if role in ("", each.role)
    ]
    if task.status.phase == TaskPhase.FAILED:
        states = [FAILURE if state in (PENDING, RUNNING) else state for state in states]
    for state in (FAILURE, RUNNING, PENDING):
        if state in states:
            return state
    return SUCCESS if states else task_state(task)
