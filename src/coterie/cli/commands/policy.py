"""`coterie policy`: what partners may begin here without being asked, and why something was or was not accepted."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from coterie.base.clock import SYSTEM_CLOCK
from coterie.cli import arguments as options
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.output import as_text, plain_table, without_managed_fields
from coterie.cli.session import CliSession
from coterie.cli.tables import render_table
from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.meta import Object, find_condition
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kuscia.api import labels
from coterie.kuscia.api.domain_ownership import is_own
from coterie.kuscia.api.jobs.commands import approval_patch, approvers
from coterie.kuscia.api.jobs.conditions import ADMITTED
from coterie.kuscia.api.log_query import ALL_SOURCES
from coterie.kuscia.api.partner_policy import (
    AdmissionDecision,
    Verdict,
    decide,
    is_open,
    policy_faults,
    policy_of,
    quota_of,
)
from coterie.kuscia.api.partner_requests import deployment_digest
from coterie.kuscia.api.types.deployment import KUSCIA_DEPLOYMENTS, KusciaDeployment
from coterie.kuscia.api.types.domain import DOMAINS, Domain
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, JobPhase, KusciaJob
from coterie.kuscia.api.types.partner_policy import (
    ANY,
    ASK,
    DEPLOYMENT,
    JOB,
    PARTNER_POLICIES,
    RECORD,
    REFUSE,
    REQUIRE,
    PartnerPolicy,
    PartnerPolicySpec,
)
from coterie.kuscia.control import partner_admission
from coterie.kuscia.control.job_snapshots import JOBS

HELP = """
Decide what partners may begin at our domains. A partner without a policy is asked about: each of its jobs and
deployments waits until somebody approves it. A policy accepts automatically what is inside it. Everything else waits
(--outside ask) or is refused (--outside refuse), and both sides see the reason. The quota holds for all work of a
partner together, also for what was approved by hand.

  ls                    list partners and their policies
  show PARTNER          show a policy with its defaults
  allow PARTNER         accept automatically: everything, or what the options say; replaces the policy
  deny PARTNER          refuse everything
  set PARTNER           change only what the options say
  rm PARTNER            remove the policy: the partner is asked about again
  explain NAME          say why a job or deployment was accepted, waits or was refused (job/NAME, deployment/NAME)
  approve NAME          accept, or with --reject reject, a job or deployment that waits (job/NAME, deployment/NAME)

Examples:
  coterie policy ls
  coterie policy allow bob
  coterie policy allow bob --app-image secretflow-image:1.11.0b1 --component "ml.predict/*" --tables visitors
  coterie policy set bob --cpu 4 --memory 8Gi --hours "Mon-Fri 08:00-18:00" --time-zone Europe/Berlin
  coterie policy set bob --max-tasks 2 --outside refuse
  coterie policy set bob --runtime-class gvisor      # a stronger wall around what bob begins
  coterie policy set bob --logs engine --logs-failed-only yes --redact "customer-[0-9]{4}"
  coterie policy set bob --hours any                 # takes the rule away
  coterie policy explain common-customers
  coterie policy approve deployment/scores
"""
_ACTIONS = ("ls", "list", "show", "allow", "deny", "set", "rm", "explain", "approve")
_POLICY = PARTNER_POLICIES.as_dynamic
_RUNTIME_CLASS = Kind.dynamic(builtin("runtimeclasses", "node.k8s.io"))
_DEPLOYMENT = KUSCIA_DEPLOYMENTS.as_dynamic
_NONE = "any"
"""The value that takes a rule away."""
_WORDS = {Verdict.ALLOW: "accepted", Verdict.ASK: "waits for approval", Verdict.REFUSE: "refused"}


def arguments(parser: options.Parser) -> None:
    parser.add_argument("action", choices=_ACTIONS, metavar="ls|show|allow|deny|set|rm|explain|approve", help="action")
    options.words_argument(parser)
    rules = parser.add_argument_group("rules, for allow and set (`any` takes a rule away)")
    rules.add_argument(
        "--app-image", metavar="NAME[:VERSION][@ID]", action="append", default=[], help="AppImages; may be repeated"
    )
    rules.add_argument(
        "--component", metavar="PATTERN", action="append", default=[], help="components of engines; may be repeated"
    )
    rules.add_argument("--tables", metavar="IDS", default="", help="tables that may be used at most")
    rules.add_argument("--kinds", metavar="KINDS", default="", help="job, deployment (default: both)")
    rules.add_argument("--cpu", metavar="AMOUNT", default="", help="CPUs of one task or deployment")
    rules.add_argument("--memory", metavar="AMOUNT", default="", help="memory of one task or deployment")
    rules.add_argument("--bandwidth", metavar="N", default="", help="bandwidth that one of them may reserve")
    rules.add_argument("--gpus", metavar="N", default="", help="GPUs of one task or deployment (default: none)")
    rules.add_argument("--priority", metavar="N", default="", help="highest priority of a task")
    rules.add_argument("--retries", metavar="N", default="", help="how often a task may be begun again")
    rules.add_argument(
        "--hours", metavar="HOURS", action="append", default=[], help='when: "Mon-Fri 08:00-18:00"; may be repeated'
    )
    rules.add_argument("--time-zone", metavar="ZONE", default="", help="of the hours (default: UTC)")
    rules.add_argument("--outside", choices=("ask", "refuse"), default="", help="what happens to everything else")
    rules.add_argument(
        "--runtime-class",
        metavar="NAME",
        default="",
        help="RuntimeClass of the partner's pods: bubblewrap, gvisor, ...",
    )
    rules.add_argument(
        "--witness",
        choices=("record", "require"),
        default="",
        help="whether tasks start only when the partner cosigned our evidence log",
    )
    rules.add_argument(
        "--plans",
        choices=("none", "summary", "full"),
        default="",
        help="what the partner learns from a dry run (`coterie job run --dry-run=plan`)",
    )
    logs = parser.add_argument_group("logs, for allow and set: requests of the partner for our log lines")
    logs.add_argument(
        "--logs",
        metavar="ALL_SOURCES",
        default="",
        help="answer without a person: engine,gateway,... (`any`: always ask)",
    )
    logs.add_argument("--logs-lines", metavar="N", default="", help="lines of such an answer (default: 500)")
    logs.add_argument("--logs-per-day", metavar="N", default="", help="such answers in 24 hours (default: 10)")
    logs.add_argument(
        "--logs-failed-only", choices=("yes", "no"), default="", help="only logs of tasks that failed (default: no)"
    )
    logs.add_argument(
        "--redact", metavar="REGEX", action="append", default=[], help="cut out of every answer; may be repeated"
    )
    quota = parser.add_argument_group("quota, for allow and set: all work of the partner together")
    quota.add_argument("--max-tasks", metavar="N", default="", help="tasks at once")
    quota.add_argument("--max-pods", metavar="N", default="", help="pods at once")
    quota.add_argument("--max-cpu", metavar="AMOUNT", default="", help="CPUs")
    quota.add_argument("--max-memory", metavar="AMOUNT", default="", help="memory")
    quota.add_argument("--max-disk", metavar="AMOUNT", default="", help="disk")
    quota.add_argument("--max-gpus", metavar="N", default="", help="GPUs (default: as --gpus says)")
    parser.add_argument("--reject", action="store_true", help="for approve: reject it")
    options.output_option(parser, ("table", "json", "yaml"))
    options.connection_options(parser)
    parser.complete(
        words={
            **dict.fromkeys(("show", "allow", "deny", "set", "rm"), ("domains",)),
            **dict.fromkeys(("explain", "approve"), ("jobs",)),
        },
        app_image="engines",
        tables="tables,",
        kinds=("job", "deployment"),
        runtime_class="runtime-classes",
    )


def run(args: argparse.Namespace, app: App) -> int:
    action = "ls" if args.action == "list" else args.action
    wanted = 0 if action == "ls" else 1
    if len(args.words) != wanted:
        raise UsageError(f"coterie policy {action} takes {'one name' if wanted else 'no names'}")
    if action not in ("allow", "set") and (_changes(args) or _quota_changes(args) or _log_changes(args)):
        raise UsageError("rules and quotas are for `coterie policy allow` and `coterie policy set`")
    return sessions.run(args, app, lambda session: _RUN[action](session, args))


# Options.


def _listed(values: list[str], name: str) -> Object:
    if not values:
        return {}
    return {name: None if values == [_NONE] else values}


def _changes(args: argparse.Namespace) -> Object:
    """Fields of the spec that the options name; None takes one away."""
    kinds = {JOB.lower(): JOB, DEPLOYMENT.lower(): DEPLOYMENT, _NONE: _NONE}
    given_kinds = [each.strip().lower() for each in args.kinds.split(",") if each.strip()]
    if unknown := [each for each in given_kinds if each not in kinds]:
        raise UsageError(f"--kinds: {unknown[0]} is neither job nor deployment")
    out: Object = {
        **_listed([ANY if each == _NONE else each for each in args.app_image], "appImages"),
        **_listed(args.component, "components"),
        **_listed([each.strip() for each in args.tables.split(",") if each.strip()], "tables"),
        **_listed([kinds[each] for each in given_kinds], "kinds"),
        **_listed(args.hours, "hours"),
    }
    texts = (
        ("cpu", args.cpu),
        ("memory", args.memory),
        ("timeZone", args.time_zone),
        ("runtimeClass", args.runtime_class),
    )
    for field, text in texts:
        if text:
            out[field] = None if text == _NONE else text
    for field, text in (
        ("bandwidth", args.bandwidth),
        ("gpus", args.gpus),
        ("priority", args.priority),
        ("retries", args.retries),
    ):
        if text:
            out[field] = _number(f"--{field}", text)
    if args.outside:
        out["outside"] = REFUSE if args.outside == "refuse" else ASK
    if args.witness:
        out["witness"] = REQUIRE if args.witness == "require" else RECORD
    if args.plans:
        out["dryRun"] = args.plans
    return out


def _quota_changes(args: argparse.Namespace) -> Object:
    out: Object = {}
    for field, text in (("tasks", args.max_tasks), ("pods", args.max_pods), ("gpus", args.max_gpus)):
        if text:
            out[field] = _number(f"--max-{field}", text)
    for field, text in (("cpu", args.max_cpu), ("memory", args.max_memory), ("disk", args.max_disk)):
        if text:
            out[field] = None if text == _NONE else text
    return out


def _log_changes(args: argparse.Namespace) -> Object:
    out: Object = _listed([each.strip() for each in args.logs.split(",") if each.strip()], "sources")
    if unknown := [each for each in out.get("sources") or () if each not in ALL_SOURCES]:
        raise UsageError(f"--logs: {unknown[0]} is unknown; there are {', '.join(ALL_SOURCES)}")
    for field, option, text in (
        ("maxLines", "--logs-lines", args.logs_lines),
        ("perDay", "--logs-per-day", args.logs_per_day),
    ):
        if text:
            out[field] = _number(option, text)
    if args.logs_failed_only:
        out["onlyFailed"] = args.logs_failed_only == "yes"
    return {**out, **_listed(args.redact, "redact")}


def _number(option: str, text: str) -> int | None:
    if text == _NONE:
        return None
    if not text.isdecimal():
        raise UsageError(f"{option}: {text!r} is not a number")
    return int(text)


# Writing.


async def _allow(session: CliSession, args: argparse.Namespace) -> int:
    spec = {"appImages": [ANY], **_without_none(_changes(args))}
    if quota := _without_none(_quota_changes(args)):
        spec["quota"] = quota
    if logs := _without_none(_log_changes(args)):
        spec["logs"] = logs
    return await _replace(session, args, spec)


async def _deny(session: CliSession, args: argparse.Namespace) -> int:
    return await _replace(session, args, {"outside": REFUSE})


async def _set(session: CliSession, args: argparse.Namespace) -> int:
    changes, quota, logs = _changes(args), _quota_changes(args), _log_changes(args)
    if not changes and not quota and not logs:
        raise UsageError("name what to change, such as --cpu 4 (`coterie policy --help`)")
    try:
        before = (await session.client.get(_POLICY, args.words[0])).get("spec") or {}
    except NotFound as problem:
        raise _no_policy(args.words[0]) from problem
    spec = _without_none({**before, **changes})
    kept = _without_none({**(before.get("quota") or {}), **quota})
    kept_logs = _without_none({**(before.get("logs") or {}), **logs})
    rest = {key: value for key, value in spec.items() if key not in ("quota", "logs")}
    return await _replace(session, args, {**rest, **_if("quota", kept), **_if("logs", kept_logs)})


def _if(name: str, value: Object) -> Object:
    return {name: value} if value else {}


def _without_none(given: Mapping[str, Any]) -> Object:
    return {key: value for key, value in given.items() if value is not None}


def _no_policy(name: str) -> CliError:
    return CliError(f"Error: there is no policy for {name}; `coterie policy allow {name}` makes one")


async def _replace(session: CliSession, args: argparse.Namespace, spec: Object) -> int:
    (name,) = args.words
    typed = msgspec.convert(spec, PartnerPolicySpec)
    if faults := policy_faults(typed):
        raise UsageError("; ".join(faults))
    if typed.runtime_class:
        await _check_runtime_class(session, typed.runtime_class)
    body = policy_of(await _partner(session, name), spec)
    try:
        written = await session.client.create(_POLICY, body)
    except AlreadyExists:
        written = await session.client.modify(_POLICY, name, "", lambda old: {**old, "spec": spec})
    if args.output != "table":
        session.app.write(as_text(without_managed_fields(written), args.output))
    else:
        session.app.say(f"policy of {name}: {summary(typed)}")
    return 0


async def _check_runtime_class(session: CliSession, name: str) -> None:
    known = sorted(each["metadata"]["name"] for each in (await session.client.list(_RUNTIME_CLASS)).items)
    if name not in known:
        raise CliError(f"Error: there is no RuntimeClass {name} here; there are {', '.join(known) or 'none'}")


async def _partner(session: CliSession, name: str) -> Domain:
    try:
        domain = await session.client.get(DOMAINS, name)
    except NotFound as problem:
        words = f"`coterie domain add {name} --partner --cert FILE` adds it"
        raise CliError(f"Error: there is no domain {name} here; {words}") from problem
    if is_own(domain):
        raise CliError(f"Error: {name} is a domain of ours; policies are for partners")
    return domain


async def _remove(session: CliSession, args: argparse.Namespace) -> int:
    (name,) = args.words
    try:
        await session.client.delete(PARTNER_POLICIES, name)
    except NotFound as problem:
        raise _no_policy(name) from problem
    session.app.say(f"policy of {name} removed; what {name} begins waits for approval")
    return 0


# Reading.


def summary(spec: PartnerPolicySpec) -> str:
    """In one line."""
    outside = "refuses" if spec.outside == REFUSE else "asks about"
    behind = f"; its pods run in {spec.runtime_class}" if spec.runtime_class else ""
    behind += "; its cosignature is required" if spec.witness == REQUIRE else ""
    behind += f"; its dry runs: {spec.dry_run}" if spec.dry_run else ""
    if is_open(spec):
        return f"accepts everything{behind}"
    if not spec.app_images:
        return f"{outside} everything{behind}"
    rules = [
        f"{name} {', '.join(map(str, value)) if isinstance(value, tuple) else value}"
        for name, value in (
            ("kinds", spec.kinds),
            ("images", spec.app_images if ANY not in spec.app_images else None),
            ("components", spec.components),
            ("tables", spec.tables),
            ("cpu", spec.cpu),
            ("memory", spec.memory),
            ("bandwidth", spec.bandwidth),
            ("gpus", spec.gpus),
            ("priority", spec.priority),
            ("retries", spec.retries),
            ("hours", spec.hours),
        )
        if value is not None
    ]
    return f"accepts {'; '.join(rules)}; {outside} the rest{behind}"


async def _list(session: CliSession, args: argparse.Namespace) -> int:
    policies = {each.metadata.name: each for each in (await session.client.list(PARTNER_POLICIES)).items}
    domains = (await session.client.list(DOMAINS)).items
    names = sorted({domain.metadata.name for domain in domains if domain.partner} | policies.keys())
    if args.output != "table":
        found = [{"partner": name, "policy": _document(policies.get(name))} for name in names]
        session.app.write(as_text(found, args.output))
        return 0
    if not names:
        session.app.say("There are no partners; `coterie domain add NAME --partner --cert FILE` adds one.")
        return 0
    rows = [
        (
            name,
            summary(policies[name].spec) if name in policies else "asks about everything",
            _quota_line(policies.get(name)),
        )
        for name in names
    ]
    session.app.write(render_table(plain_table(("PARTNER", "POLICY", "QUOTA"), rows), colour=session.app.colour))
    return 0


def _document(policy: PartnerPolicy | None) -> Object | None:
    if policy is None:
        return None
    return {**msgspec.to_builtins(policy.spec), "outside": policy.spec.outside, "quota": _quota(policy)}


def _quota(policy: PartnerPolicy | None) -> Object:
    found: Object = msgspec.to_builtins(quota_of(policy.spec if policy is not None else None))
    return found


def _quota_line(policy: PartnerPolicy | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in _quota(policy).items())


async def _show(session: CliSession, args: argparse.Namespace) -> int:
    (name,) = args.words
    try:
        policy = await session.client.get(PARTNER_POLICIES, name)
    except NotFound as problem:
        raise _no_policy(name) from problem
    if args.output != "table":
        session.app.write(as_text(_document(policy), args.output))
        return 0
    session.app.say(f"{name}: {summary(policy.spec)}")
    document = _document(policy) or {}
    rows = [
        (key, ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else _inner(value))
        for key, value in document.items()
    ]
    session.app.write(render_table(plain_table(("RULE", "VALUE"), rows), colour=session.app.colour))
    return 0


def _inner(value: Any) -> str:
    return ", ".join(f"{key} {each}" for key, each in value.items()) if isinstance(value, dict) else str(value)


# explain and approve.


async def _find(session: CliSession, word: str) -> KusciaJob | KusciaDeployment:
    kind, slash, name = word.rpartition("/")
    if slash and kind not in ("job", "deployment"):
        raise UsageError(f"{word}: take job/NAME or deployment/NAME")
    if kind != "deployment":
        try:
            return await session.client.get(KUSCIA_JOBS, name, CROSS_DOMAIN)
        except NotFound:
            if kind == "job":
                raise
    try:
        return await session.client.get(KUSCIA_DEPLOYMENTS, name, CROSS_DOMAIN)
    except NotFound as problem:
        raise CliError(f"Error: there is no job and no deployment {name} here") from problem


async def _explain(session: CliSession, args: argparse.Namespace) -> int:
    found = await _find(session, args.words[0])
    domains = await partner_admission.domains_by_name(session.client)
    initiator = found.spec.initiator
    what = f"{'job' if isinstance(found, KusciaJob) else 'deployment'} {found.metadata.name}"
    if is_own(domains.get(initiator)):
        raise CliError(f"Error: {what} was begun here, by {initiator}; policies are for what partners begin")
    policy = await partner_admission.policy_for(session.client, initiator, domains)
    asked = (await partner_admission.own_side(session.client, found, domains)).request
    decision = decide(policy.spec if policy is not None else None, asked, SYSTEM_CLOCK.now())
    recorded = _recorded(found)
    if args.output != "table":
        session.app.write(as_text(_explanation(found, decision, recorded, policy), args.output))
        return 0
    session.app.say(f"{what} of {initiator}: {recorded or 'nothing was decided yet'}")
    whose = f"the policy of {policy.metadata.name}" if policy is not None else f"no policy for {initiator}"
    session.app.say(f"As it is now ({whose}): {_sentence(decision)}")
    if policy is not None and policy.spec.runtime_class:
        session.app.say(f"Its pods here run in the RuntimeClass {policy.spec.runtime_class}, as the policy demands.")
    if decision.verdict is not Verdict.ALLOW:
        name = found.metadata.name
        verb = f"job approve {name}" if isinstance(found, KusciaJob) else f"policy approve deployment/{name}"
        session.app.say(
            f"To accept this one: coterie {verb}; to accept such always: coterie policy set {initiator} ..."
        )
    return 0


def _sentence(decision: AdmissionDecision) -> str:
    return _WORDS[decision.verdict] + (f": {decision.sentence}" if decision.reasons else "")


def _recorded(found: KusciaJob | KusciaDeployment) -> str:
    """What the controllers decided."""
    if isinstance(found, KusciaJob):
        admitted = find_condition(found.status.conditions, ADMITTED)
        if admitted is None:
            return ""
        decided = AdmissionDecision(Verdict(admitted.reason))
        words = _sentence(decided) + (f": {admitted.message}" if admitted.message else "")
        return f"{words}; it is {found.status.phase}"
    known = found.metadata.annotations or {}
    digest = deployment_digest(found.spec)
    if known.get(labels.COTERIE_APPROVED) == digest:
        return "accepted"
    if known.get(labels.COTERIE_REJECTED) == digest:
        return "rejected here"
    return f"{found.status.reason}: {found.status.message}" if found.status is not None else ""


def _explanation(
    found: KusciaJob | KusciaDeployment, decision: AdmissionDecision, recorded: str, policy: PartnerPolicy | None
) -> Object:
    return {
        "name": found.metadata.name,
        "initiator": found.spec.initiator,
        "policy": policy.metadata.name if policy is not None else None,
        "runtimeClass": policy.spec.runtime_class if policy is not None else "",
        "recorded": recorded,
        "verdict": str(decision.verdict),
        "reasons": [{"rule": each.rule, "sentence": each.sentence} for each in decision.reasons],
    }


async def _approve(session: CliSession, args: argparse.Namespace) -> int:
    found = await _find(session, args.words[0])
    name = found.metadata.name
    done = "rejected" if args.reject else "accepted"
    if isinstance(found, KusciaJob):
        if found.status.phase != JobPhase.AWAITING_APPROVAL:
            raise CliError(f"Error: job {name} is {found.status.phase}; it waits for nobody's approval")
        patch = approval_patch(found, approvers(found), reject=args.reject)
        written = await session.client.patch_status(JOBS, name, CROSS_DOMAIN, patch)
    else:
        try:
            initiator = await session.client.get(DOMAINS, found.spec.initiator)
        except NotFound:
            initiator = None
        if is_own(initiator):
            raise CliError(
                f"Error: deployment {name} was begun here, by {found.spec.initiator}; it waits for nobody here"
            )
        digest = deployment_digest(found.spec)
        marks = {labels.COTERIE_APPROVED: digest, labels.COTERIE_REJECTED: None}
        if args.reject:
            marks = {labels.COTERIE_APPROVED: None, labels.COTERIE_REJECTED: digest}
        meta = {"annotations": marks, "resourceVersion": found.metadata.resource_version}
        written = await session.client.patch(_DEPLOYMENT, name, CROSS_DOMAIN, {"metadata": meta})
    if args.output != "table":
        session.app.write(as_text(without_managed_fields(written), args.output))
    else:
        session.app.say(f"{'job' if isinstance(found, KusciaJob) else 'deployment'} {name} {done}")
    return 0


_RUN: dict[str, Callable[[CliSession, argparse.Namespace], Awaitable[int]]] = {
    "ls": _list,
    "show": _show,
    "allow": _allow,
    "deny": _deny,
    "set": _set,
    "rm": _remove,
    "explain": _explain,
    "approve": _approve,
}
