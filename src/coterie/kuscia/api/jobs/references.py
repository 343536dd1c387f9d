"""Whether the objects that a job names are there and fit: domains, AppImages, grants of data. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from coterie.kuscia.api import grants, labels
from coterie.kuscia.api.appimages import choose_template
from coterie.kuscia.api.engine_versions import missing_sentence
from coterie.kuscia.api.jobs.validation import Problem
from coterie.kuscia.api.types.data import DomainData, DomainDataGrant
from coterie.kuscia.api.types.domain import Domain
from coterie.kuscia.api.types.job import AppImage, KusciaJobSpec, TaskTemplate


class ReferenceProblems(NamedTuple):
    wrong: list[Problem]
    missing: list[Problem]
    """Objects that do not exist. They may only be late: objects arrive in any order."""


def reference_problems(
    spec: KusciaJobSpec, domains: Mapping[str, Domain], images: Mapping[str, AppImage]
) -> ReferenceProblems:
    """`domains`, `images`: those that exist here, images also by what tasks write (`images_named`). Engines are looked for only where we run them."""
    found = ReferenceProblems([], [])
    if spec.initiator and spec.initiator not in domains:
        found.missing.append(Problem("initiator", f'there is no domain "{spec.initiator}"'))
    for index, task in enumerate(spec.tasks):
        _check_task(found, f"tasks[{index}]", task, domains, images)
    return found


def _check_task(
    found: ReferenceProblems,
    path: str,
    task: TaskTemplate,
    domains: Mapping[str, Domain],
    images: Mapping[str, AppImage],
) -> None:
    image = images.get(task.app_image)
    runs_here = False
    for index, party in enumerate(task.parties):
        domain = domains.get(party.domain_id)
        if domain is None:
            if party.domain_id:
                text = f'there is no domain "{party.domain_id}"'
                found.missing.append(Problem(f"{path}.parties[{index}].domainID", text))
            continue
        if domain.partner:
            continue
        runs_here = True
        if image is not None and choose_template(image.spec.deploy_templates, party.role) is None:
            text = _no_such_role(image.metadata.name, party.role, image)
            found.wrong.append(Problem(f"{path}.parties[{index}].role", text))
    if runs_here and task.app_image and image is None:
        found.missing.append(Problem(f"{path}.appImage", missing_sentence(task.app_image, images.values())))


def _no_such_role(name: str, role: str, image: AppImage) -> str:
    known: Iterable[str] = sorted({template.role for template in image.spec.deploy_templates if template.role})
    return f'AppImage "{name}" has nothing for the role "{role}"; it knows {", ".join(known) or "none"}'


def ungranted(
    spec: KusciaJobSpec,
    ours: Iterable[str],
    datas: Mapping[str, Sequence[DomainData]],
    given: Mapping[str, Sequence[DomainDataGrant]],
    now: datetime,
    images: Mapping[str, AppImage],
) -> tuple[str, ...]:
    """Data of our domains that tasks name and their initiator may not use. `datas`, `given`: by the domain that owns them."""
    out: dict[str, None] = {}
    for task in spec.tasks:
        use = use_of(spec, task, images)
        for owner in ours:
            if owner in use.parties:
                for refusal in grants.check_task(use, owner, datas.get(owner, ()), given.get(owner, ()), now):
                    out[f"task {task.alias}: {refusal}"] = None
    return tuple(out)


def use_of(spec: KusciaJobSpec, task: TaskTemplate, images: Mapping[str, AppImage]) -> grants.DataUse:
    """What a task asks of the tables that it names."""
    return grants.DataUse(
        data="",
        initiator=spec.initiator,
        parties=frozenset(party.domain_id for party in task.parties),
        components=use_names_of(images.get(task.app_image), task.task_input_config),
        flow=spec.flow_id,
        input_config=task.task_input_config,
    )


def use_names_of(image: AppImage | None, input_config: str) -> tuple[str, ...]:
    """Names by which a grant may speak of what a task runs."""
    if image is None:
        return ()
    given = image.spec.image
    field = grants.component_field(image.metadata.annotations, given.name)
    components = grants.components_of(input_config, field)
    engine = grants.mark(image.metadata.annotations, labels.COTERIE_ENGINE)
    return grants.use_names(image.metadata.name, (given.id,) if given.id else (), components, engine)
