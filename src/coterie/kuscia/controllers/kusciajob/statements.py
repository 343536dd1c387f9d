"""What a domain of ours says about its part of a job: which of its tables tasks name, under which grants, with which engines.

A partner learns of a table only a commitment, and of a grant a digest. Pure but for the commitments, whose salts the evidence log keeps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from coterie.kuscia.api import evidence, grants
from coterie.kuscia.api.job_statements import MOST_LISTED, OfferedEngine, PartyStatement, TaskStatement
from coterie.kuscia.api.jobs.references import use_of
from coterie.kuscia.api.types.data import DomainData, DomainDataGrant
from coterie.kuscia.api.types.job import AppImage, KusciaJobSpec, TaskTemplate
from coterie.kuscia.control.job_evidence import JobEvidence


@dataclass(frozen=True, slots=True)
class StatementFacts:
    images: Mapping[str, AppImage]
    """By what tasks name."""
    engines: Mapping[tuple[str, str], Sequence[OfferedEngine]]
    """By party and alias, the newest first."""
    datas: Callable[[str], Sequence[DomainData]]
    """By the domain that owns them."""
    grants: Callable[[str], Sequence[DomainDataGrant]]
    now: datetime
    log: JobEvidence | None


@dataclass(frozen=True, slots=True)
class PreparedStatement:
    statement: PartyStatement
    tables: tuple[str, ...] = ()
    """What its commitments stand for: recorded with the approval, before anybody gets the statement."""


def prepare(party: str, spec: KusciaJobSpec, facts: StatementFacts) -> PreparedStatement:
    """Raises EvidenceError."""
    tasks: dict[str, TaskStatement] = {}
    shown: dict[str, None] = {}
    datas = {each.metadata.name: each for each in facts.datas(party) if each.spec.author == party} if facts.log else {}
    for task in spec.tasks:
        if all(each.domain_id != party for each in task.parties):
            continue
        engines = tuple(facts.engines.get((party, task.alias), ()))
        used = [datas[name] for name in grants.data_named(task.task_input_config, datas.keys())]
        values = _listed([table_value(each) for each in used])
        shown |= dict.fromkeys(values)
        tasks[task.alias] = TaskStatement(
            engines=engines[:MOST_LISTED] or None,
            inputs=facts.log.commitments(values) or None if facts.log is not None else None,
            grants=_grants(party, spec, task, used, facts) or None,
        )
    key = facts.log.verifier_key if facts.log is not None else ""
    return PreparedStatement(PartyStatement(tasks=tasks or None, verifier_key=key), tuple(shown))


def table_value(data: DomainData) -> str:
    """What is committed to: the table, with its schema and place as they are now."""
    return f"{data.metadata.name}@{evidence.object_digest(msgspec.to_builtins(data.spec))}"


def _listed(values: Sequence[str]) -> tuple[str, ...]:
    """More tables than a statement lists are one value: their list."""
    return tuple(values) if len(values) <= MOST_LISTED else (",".join(values),)


def _grants(
    party: str, spec: KusciaJobSpec, task: TaskTemplate, used: Sequence[DomainData], facts: StatementFacts
) -> tuple[str, ...]:
    """Digests of those under which the initiator gets the tables; none for the owner's own jobs."""
    if spec.initiator == party or not used:
        return ()
    use = use_of(spec, task, facts.images)
    given = facts.grants(party)
    found: dict[str, None] = {}
    for data in used:
        decided = grants.decide(given, grants.for_table(use, data.metadata.name), party, facts.now)
        if decided.grant is not None:
            found[evidence.object_digest(msgspec.to_builtins(decided.grant.spec))] = None
    digests = sorted(found)
    if len(digests) > MOST_LISTED:
        return (hashlib.sha256(",".join(digests).encode()).hexdigest(),)
    return tuple(digests)
