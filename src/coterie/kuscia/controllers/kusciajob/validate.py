"""What is wrong with a job, in sentences that begin with the field. Pure.

What may only be missing because objects reach us in any order (domains, engines) is kept apart from what is wrong for
good: the controller waits a moment before it holds the first against a job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from coterie.kube.api import quantity
from coterie.kube.api.names import dns_label_faults
from coterie.kube.api.quantity import QuantityError
from coterie.kuscia.api import grants
from coterie.kuscia.api.appimages import choose_template
from coterie.kuscia.api.types.data import DomainData, DomainDataGrant
from coterie.kuscia.api.types.domain import Domain
from coterie.kuscia.api.types.job import AppImage, JobParty, JobSpec, TaskTemplate
from coterie.kuscia.controllers.kusciajob.graph import circle

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Faults:
    wrong: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        found = (*self.wrong, *self.missing)
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        return "; ".join(found[:_SHOWN]) + more


def faults(spec: JobSpec, domains: Mapping[str, Domain], images: Mapping[str, AppImage]) -> Faults:
    """`domains`, `images`: those that exist here. Engines are looked for only where we run them."""
    wrong = [
        *_graph(spec),
        *(fault for index, task in enumerate(spec.tasks) for fault in _task(f"tasks[{index}]", task)),
    ]
    missing = []
    if spec.initiator not in domains:
        missing.append(f'initiator: there is no domain "{spec.initiator}"')
    for index, task in enumerate(spec.tasks):
        there, not_there = _references(f"tasks[{index}]", task, domains, images)
        wrong += there
        missing += not_there
    return Faults(tuple(wrong), tuple(dict.fromkeys(missing)))


def _graph(spec: JobSpec) -> Iterator[str]:
    if not spec.tasks:
        yield "tasks: name at least one"
    aliases = [task.alias for task in spec.tasks]
    yield from _twice("tasks", "alias", aliases)
    yield from _twice("tasks", "taskID", [task.task_id for task in spec.tasks if task.task_id])
    known = set(aliases)
    for index, task in enumerate(spec.tasks):
        for other in task.dependencies or ():
            if other not in known:
                yield f'tasks[{index}].dependencies: there is no task with the alias "{other}"'
            elif other == task.alias:
                yield f'tasks[{index}].dependencies: "{other}" waits for itself'
    found = circle(spec.tasks)
    if len(found) > 2:
        yield f"tasks: wait for each other in a circle: {' -> '.join(found)}"


def _twice(where: str, what: str, values: list[str]) -> Iterator[str]:
    for value in sorted({value for value in values if values.count(value) > 1}):
        yield f'{where}: the {what} "{value}" is used {values.count(value)} times'


def _task(path: str, task: TaskTemplate) -> Iterator[str]:
    if not task.alias:
        yield f"{path}.alias: give the task a name"
    if task.task_id:
        for fault in dns_label_faults(task.task_id):
            yield f"{path}.taskID: {fault}"
    if not task.parties:
        yield f"{path}.parties: name at least one"
    seen: set[tuple[str, str]] = set()
    for index, party in enumerate(task.parties):
        if (party.domain_id, party.role) in seen:
            role = f' with the role "{party.role}"' if party.role else ""
            yield f"{path}.parties[{index}]: {party.domain_id}{role} is named twice"
        seen.add((party.domain_id, party.role))
        yield from _resources(f"{path}.parties[{index}].resources", party)
    members = task.schedule_config.min_reserved_members if task.schedule_config is not None else None
    if members is not None and members > len(task.parties):
        yield f"{path}.scheduleConfig.minReservedMembers: is {members}, but there are {len(task.parties)} parties"


def _resources(path: str, party: JobParty) -> Iterator[str]:
    if party.resources is None:
        return
    amounts: dict[tuple[str, str], quantity.Quantity] = {}
    for kind, named in (("requests", party.resources.requests), ("limits", party.resources.limits)):
        for name, text in (named or {}).items():
            try:
                amount = quantity.parse(text)
            except QuantityError:
                yield f'{path}.{kind}.{name}: "{text}" is no quantity; write e.g. 2, 500m or 4Gi'
                continue
            if amount.nanos < 0:
                yield f"{path}.{kind}.{name}: must not be negative"
            amounts[kind, name] = amount
    for (kind, name), amount in amounts.items():
        limit = amounts.get(("limits", name))
        if kind == "requests" and limit is not None and amount > limit:
            yield f"{path}.requests.{name}: {amount} is more than its limit {limit}"


def _references(
    path: str, task: TaskTemplate, domains: Mapping[str, Domain], images: Mapping[str, AppImage]
) -> tuple[list[str], list[str]]:
    wrong: list[str] = []
    missing: list[str] = []
    ours = False
    for index, party in enumerate(task.parties):
        domain = domains.get(party.domain_id)
        if domain is None:
            missing.append(f'{path}.parties[{index}].domainID: there is no domain "{party.domain_id}"')
            continue
        if domain.partner:
            continue
        ours = True
        image = images.get(task.app_image)
        if image is not None and choose_template(image.spec.deploy_templates, party.role) is None:
            wrong.append(f"{path}.parties[{index}].role: {_no_role(task.app_image, party.role, image)}")
    if ours and task.app_image not in images:
        missing.append(f'{path}.appImage: there is no AppImage "{task.app_image}"')
    return wrong, missing


def _no_role(name: str, role: str, image: AppImage) -> str:
    known: Iterable[str] = sorted({template.role for template in image.spec.deploy_templates if template.role})
    return f'AppImage "{name}" has nothing for the role "{role}"; it knows {", ".join(known) or "none"}'


def ungranted(
    spec: JobSpec,
    ours: Iterable[str],
    datas: Mapping[str, Sequence[DomainData]],
    given: Mapping[str, Sequence[DomainDataGrant]],
    now: datetime,
) -> tuple[str, ...]:
    """Data of our domains that tasks name and their initiator may not use. `datas`, `given`: by the domain that owns them."""
    out: dict[str, None] = {}
    for task in spec.tasks:
        parties = frozenset(party.domain_id for party in task.parties)
        use = grants.Use(
            data="",
            initiator=spec.initiator,
            parties=parties,
            components=grants.components_of(task.task_input_config),
            flow=spec.flow_id,
            input_config=task.task_input_config,
        )
        for owner in ours:
            if owner in parties:
                for refusal in grants.check_task(use, owner, datas.get(owner, ()), given.get(owner, ()), now):
                    out[f"task {task.alias}: {refusal}"] = None
    return tuple(out)
