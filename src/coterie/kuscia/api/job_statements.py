"""What each party of a job says about its own part when it approves: engines it has, commitments to its inputs, its grants. Pure.

All parties get all statements, compute the same pins and the same agreement digest from them, and say that digest too. A task begins
only where all of them are equal. docs/designs/evidence.md says when each is written.

A partner's statement is data of somebody else: `statements_taken` takes from it what is short and well formed, names what is not, and
never takes back what was taken before.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from coterie.kube.api.meta import Model

MOST_LISTED: Final = 16
"""Inputs, grants, engines or protocols of one task; who has more inputs commits to their list."""
MOST_PARTS: Final = 256
LONGEST_STATEMENT: Final = 256 << 10
"""Of one party, in bytes of JSON."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_IMAGE: Final = re.compile(r"[A-Za-z0-9:+._-]{0,128}")
_PART: Final = re.compile(r"[0-9a-f]{8}")
_WORD: Final = re.compile(r"[ -~]{0,128}")


class OfferedEngine(Model, frozen=True, kw_only=True):
    """One version of an engine that a party has."""

    version: str = ""
    """PEP 440; empty: the AppImage does not say."""
    digest: str = ""
    """Of the content: an image's digest, or of all files of a host environment."""
    speaks: str = ""
    """Which versions of the other parties it works with: `>=1.11,<1.13`; empty: all."""
    protocols: tuple[str, ...] | None = None
    """What it can speak, `spu-link/2`; parties need one in common where both name any."""


class TaskStatement(Model, frozen=True, kw_only=True):
    """Of one party about one task."""

    engines: tuple[OfferedEngine, ...] | None = None
    """The newest first."""
    inputs: tuple[str, ...] | None = None
    """Commitments to the tables that this party gives."""
    grants: tuple[str, ...] | None = None
    """Digests of the grants that it gives them under."""
    agreement: str = ""
    """The digest that this party computed; empty: it does not know everybody's statements yet."""
    parts: dict[str, str] | None = None
    """The first digits of the digest of each part of the agreement, so that the part that differs can be named."""


class PartyStatement(Model, frozen=True, kw_only=True):
    tasks: dict[str, TaskStatement] | None = None
    """By the task's alias."""
    verifier_key: str = ""
    """Of the party's evidence log, as C2SP writes it: `name+hash+key`."""
    problem: str = ""
    """What the partner that took the statement found wrong with it, and left out."""


Statements = Mapping[str, PartyStatement]
"""By party."""


def statements_taken(
    known: Statements | None, reported: Statements | None, named: Collection[str], aliases: Collection[str]
) -> dict[str, PartyStatement] | None:
    """`known` with what is reported of the `named` parties. `aliases`: of the job's tasks. What a party said once stays: later only an
    agreement is added, where there was none."""
    out = dict(known or {})
    for party in named:
        theirs = (reported or {}).get(party)
        if theirs is not None:
            before = out.get(party)
            out[party] = _bounded(theirs, aliases) if before is None else _completed(before, theirs)
    return out or None


def _bounded(theirs: PartyStatement, aliases: Collection[str]) -> PartyStatement:
    if len(msgspec.json.encode(theirs)) > LONGEST_STATEMENT:
        return PartyStatement(problem=f"the statement has more than {LONGEST_STATEMENT} bytes")
    tasks: dict[str, TaskStatement] = {}
    problems: list[str] = []
    for alias, statement in sorted((theirs.tasks or {}).items()):
        if alias not in aliases:
            problems.append(f"the job has no task {alias[:64]!a}")
        elif (fault := next(_faults(statement), None)) is not None:
            problems.append(f"{fault} of task {alias} cannot be used")
        else:
            tasks[alias] = statement
    key = theirs.verifier_key
    if not _WORD.fullmatch(key):
        problems.append("the key of the evidence log cannot be used")
        key = ""
    more = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
    return PartyStatement(tasks=tasks or None, verifier_key=key, problem="; ".join(problems[:3]) + more)


def _faults(statement: TaskStatement) -> Iterator[str]:
    engines = statement.engines or ()
    if len(engines) > MOST_LISTED or not all(_engine_usable(each) for each in engines):
        yield "the engines"
    for name, digests in (("inputs", statement.inputs), ("grants", statement.grants)):
        if len(digests or ()) > MOST_LISTED or not all(_DIGEST.fullmatch(each) for each in digests or ()):
            yield f"the {name}"
    if not _agreement_usable(statement):
        yield "the agreement"


def _engine_usable(engine: OfferedEngine) -> bool:
    protocols = engine.protocols or ()
    words = (engine.version, engine.speaks, *protocols)
    return (
        len(protocols) <= MOST_LISTED
        and all(_WORD.fullmatch(each) for each in words)
        and bool(_IMAGE.fullmatch(engine.digest))
    )


def offers_taken(engines: tuple[OfferedEngine, ...] | None) -> tuple[OfferedEngine, ...] | None:
    """Of those that a partner offers, the ones that can be used."""
    return tuple(each for each in (engines or ())[:MOST_LISTED] if _engine_usable(each)) or None


def _agreement_usable(statement: TaskStatement) -> bool:
    parts = statement.parts or {}
    return (
        (not statement.agreement or bool(_DIGEST.fullmatch(statement.agreement)))
        and len(parts) <= MOST_PARTS
        and all(_WORD.fullmatch(name) and _PART.fullmatch(value) for name, value in parts.items())
    )


def _completed(before: PartyStatement, theirs: PartyStatement) -> PartyStatement:
    tasks = {}
    for alias, known in (before.tasks or {}).items():
        reported = (theirs.tasks or {}).get(alias)
        if not known.agreement and reported is not None and reported.agreement and _agreement_usable(reported):
            known = replace(known, agreement=reported.agreement, parts=reported.parts)
        tasks[alias] = known
    return replace(before, tasks=tasks or None)


def without_agreements(statements: Statements | None) -> dict[str, PartyStatement]:
    """What a party acts on before a task begins."""
    return {
        party: replace(
            each,
            tasks={alias: replace(task, agreement="", parts=None) for alias, task in (each.tasks or {}).items()}
            or None,
        )
        for party, each in (statements or {}).items()
    }
