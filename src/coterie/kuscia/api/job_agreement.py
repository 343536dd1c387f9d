"""What the parties of a task agree on before it begins, and whether they do. Pure: each party computes it from the job and all statements.

    spec, statements ─▶ task_agreement ─▶ digest, and a short digest of each part ─▶ said in the own statement
    digests of all parties ─▶ disagreement: the sentence that names the part that differs; or who has not said its digest yet

Parties that give no statements (a Kuscia) are left out: of them nothing is agreed but that they take part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from coterie.kuscia.api import evidence
from coterie.kuscia.api.engine_versions import agreed_engines, offers_for
from coterie.kuscia.api.job_statements import OfferedEngine, PartyStatement, Statements, TaskStatement
from coterie.kuscia.api.types.job import KusciaJobSpec, TaskTemplate

DIGEST_LENGTH: Final = 64
_DIGITS: Final = 8


@dataclass(frozen=True, slots=True)
class TaskAgreement:
    digest: str
    parts: Mapping[str, str]
    engines: Mapping[str, OfferedEngine]
    """By party, of those that say what they run."""


def task_agreement(job: str, spec: KusciaJobSpec, task: TaskTemplate, statements: Statements) -> TaskAgreement:
    roles: dict[str, list[str]] = {}
    for party in task.parties:
        roles.setdefault(party.domain_id, []).append(party.role)
    parties = {name: ",".join(sorted(each)) for name, each in roles.items()}
    stated = {
        name: (statements[name].tasks or {}).get(task.alias, TaskStatement()) for name in parties if name in statements
    }
    engines = chosen_engines(spec, task, statements)
    digests = {name: _engine_digest(each) for name, each in engines.items()}
    parameters = hashlib.sha256(task.task_input_config.encode()).hexdigest()
    inputs = {name: each.inputs or () for name, each in stated.items()}
    grants = {name: each.grants or () for name, each in stated.items()}
    digest = evidence.agreement(
        job=job,
        task=task.alias,
        parties=parties,
        engines=digests,
        parameters=parameters,
        inputs=inputs,
        grants=grants,
    )
    parts: dict[str, object] = {"job": [job, task.alias], "parties": parties, "parameters": parameters}
    for name in stated:
        parts[f"engine of {name}"] = digests.get(name, "")
        parts[f"inputs of {name}"] = sorted(inputs[name])
        parts[f"grants of {name}"] = sorted(grants[name])
    return TaskAgreement(
        digest, {name: evidence.object_digest(each)[:_DIGITS] for name, each in parts.items()}, engines
    )


def chosen_engines(spec: KusciaJobSpec, task: TaskTemplate, statements: Statements) -> dict[str, OfferedEngine]:
    """By party, what it runs the task with. Where they have nothing in common, what each has first: the job is not begun."""
    choice = agreed_engines(replace(spec, tasks=(task,)), statements)[task.alias]
    if not choice.problem:
        return dict(choice.pins)
    return {party: offered[0] for party, offered in offers_for(spec.initiator, task, statements).items()}


def _engine_digest(engine: OfferedEngine) -> str:
    """An engine without a digest is known by its version alone."""
    return engine.digest or (f"version {engine.version}" if engine.version else "")


def with_agreements(
    job: str, spec: KusciaJobSpec, statements: Mapping[str, PartyStatement] | None, own: Collection[str]
) -> dict[str, PartyStatement] | None:
    """With the digests of our own parties, where they are not said yet. For jobs that every party has approved."""
    known = dict(statements or {})
    agreed: dict[str, TaskAgreement] = {}
    templates = {task.alias: task for task in spec.tasks}
    for party in own:
        statement = known.get(party)
        if statement is None:
            continue
        tasks = dict(statement.tasks or {})
        for alias, task in tasks.items():
            if task.agreement or alias not in templates:
                continue
            if alias not in agreed:
                agreed[alias] = task_agreement(job, spec, templates[alias], statements or {})
            tasks[alias] = replace(task, agreement=agreed[alias].digest, parts=dict(agreed[alias].parts))
        known[party] = replace(statement, tasks=tasks or None)
    return known or None


@dataclass(frozen=True, slots=True)
class AgreementCheck:
    """Whether a task may begin: it may when nothing differs and nobody is awaited."""

    differs: str = ""
    """A sentence."""
    awaited: tuple[str, ...] = ()
    """Parties that have not said their digest."""


def check_agreement(
    ours: TaskAgreement,
    task: TaskTemplate,
    statements: Statements,
    *,
    awaited: Iterable[str],
    host: str = "",
    host_digest: str = "",
) -> AgreementCheck:
    """`awaited`: the parties without whose digest the task does not begin. `host`, `host_digest`: what the control plane of the initiator
    wrote on its task."""
    missing = []
    waits_for = set(awaited)
    for party in dict.fromkeys(each.domain_id for each in task.parties):
        statement = statements.get(party)
        if statement is None:
            continue
        stated = (statement.tasks or {}).get(task.alias)
        if stated is None:
            why = statement.problem or "it says nothing about it"
            return AgreementCheck(f"the statement of {party} about task {task.alias} cannot be used: {why}")
        if stated.agreement and stated.agreement != ours.digest:
            return AgreementCheck(_difference(ours, stated, task.alias, party))
        if not stated.agreement and party in waits_for and not (party == host and host_digest):
            missing.append(party)
    if host_digest and host_digest != ours.digest:
        return AgreementCheck(_difference(ours, TaskStatement(), task.alias, host))
    return AgreementCheck(awaited=tuple(missing))


def _difference(ours: TaskAgreement, theirs: TaskStatement, alias: str, party: str) -> str:
    parts = theirs.parts or {}
    names = [name for name in {**ours.parts, **parts} if parts and ours.parts.get(name) != parts.get(name)]
    words = f"has other {', '.join(names[:8])} than" if names else "agreed to something else than"
    return f"the parties do not agree about task {alias}: {party} {words} this control plane"
