"""What the measurements of a link and the answers of a party mean, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from coterie.cli.diagnosis.model import (
    MIB,
    JobNeeds,
    LinkFacts,
    LinkThresholds,
    Measured,
    PartyAnswer,
    PartyNeeds,
)
from coterie.kuscia.api.engine_versions import is_range
from coterie.kuscia.gateway.diagnosis.messages import CHUNK_SECONDS, CHUNKS, EngineFacts, LinkReport, ProbePlan
from coterie.kuscia.routes.check import CLOCK_LIMIT, CLOCK_WARNING
from coterie.kuscia.routes.facts import CheckOutcome, Finding

_EXPECTED_SECONDS = CHUNKS * CHUNK_SECONDS
_BUFFERED = 0.4
"""Chunks that arrive within this part of the time in which they were sent were held back."""
_Step = Callable[[LinkFacts, LinkReport, JobNeeds, LinkThresholds], Iterator[Finding]]
OK, WRONG, WARNING, UNKNOWN = CheckOutcome.OK, CheckOutcome.WRONG, CheckOutcome.WARNING, CheckOutcome.UNKNOWN


def link_findings(facts: LinkFacts, needs: JobNeeds, plan: ProbePlan, thresholds: LinkThresholds) -> list[Finding]:
    found = [each for each in facts.route if each.verdict in (WRONG, WARNING)]
    if facts.route and not any(each.verdict is WRONG for each in found):
        found.append(Finding("route", OK, "it is ready"))
    report = facts.report
    if report is None:
        return [*found, _nobody(facts)]
    found.append(_reached(facts, report))
    if not report.reached:
        return found
    if not report.endpoint:
        return [*found, _silent(facts)]
    steps: list[_Step] = [_mtls, _http]
    steps += [_grpc] if plan.grpc else []
    steps.append(_rtt)
    steps += [_bandwidth] if plan.bandwidth_bytes else []
    steps += [_body] if plan.body_bytes else []
    steps += [_buffering, _idle, _clock]
    return [*found, *(each for step in steps for each in step(facts, report, needs, thresholds))]


def _nobody(facts: LinkFacts) -> Finding:
    link = facts.link
    message = f"unknown: {link.source} is not on this machine, and does not measure its links for us"
    advice = f"at {link.source}: coterie diagnose network {link.source} {link.destination}"
    return Finding("reach", UNKNOWN, message, advice)


def _silent(facts: LinkFacts) -> Finding:
    there = facts.link.destination
    message = (
        f"unknown: {there} lets the call in and answers no diagnosis (older version, another product, or switched off)"
    )
    advice = f"at {there}: leave gateway.diagnose on, or run `coterie diagnose network {there} {facts.link.source}` there too"
    return Finding("endpoint", UNKNOWN, message, advice)


def _reached(facts: LinkFacts, report: LinkReport) -> Finding:
    link, why = facts.link, report.problem or f"status {report.status}"
    if report.reached:
        return Finding("reach", OK, f"{link.destination} lets our calls in")
    if facts.measured is Measured.SOURCE:
        advice = f"at {link.source}: coterie route check {link.source} {link.destination}"
        return Finding("reach", WRONG, f"calls do not arrive: {why}", advice)
    advice = {
        0: f"does the gateway of {link.source} run? `coterie status`",
        401: f"{link.destination} does not accept the token: coterie route check {link.source} {link.destination}",
        404: f"add the route: coterie route add {link.source} {link.destination} --endpoint https://HOST:1080",
        502: f"something in front of {link.destination}'s gateway answers 502: check that proxy",
        504: f"something in front of {link.destination}'s gateway gave up: check that proxy",
    }.get(report.status, f"step by step: coterie route check {link.source} {link.destination}")
    return Finding("reach", WRONG, f"calls do not arrive: {why}", advice)


def _mtls(facts: LinkFacts, report: LinkReport, *_: object) -> Iterator[Finding]:
    if report.endpoint != "coterie":
        yield Finding("mtls", UNKNOWN, f"unknown: {facts.link.destination} does not tell how calls arrive")
    elif not report.fingerprint:
        message = "calls arrive without a client certificate: plain text, or TLS ends in front of the gateway"
        advice = (
            f"unless both sides want that, set protocol: MTLS at {facts.link.destination} and https:// in the route"
        )
        yield Finding("mtls", WARNING, message, advice)
    elif facts.fingerprint and report.fingerprint != facts.fingerprint:
        message = (
            f"calls arrive with the certificate {report.fingerprint[:16]}, which is not that of {facts.link.source}"
        )
        yield Finding(
            "mtls",
            WARNING,
            message,
            "expected on a route through a transit domain hop by hop; else find out whose it is",
        )
    else:
        yield Finding("mtls", OK, f"calls arrive with the certificate {report.fingerprint[:16]}")


def _http(facts: LinkFacts, report: LinkReport, *_: object) -> Iterator[Finding]:
    if not report.protocol:
        yield Finding("http", OK, "HTTP/1.1 passes")
    elif report.fingerprint and report.protocol != "HTTP/2":
        message = f"the gateways speak {report.protocol}, although both know HTTP/2"
        yield Finding("http", WARNING, message, "something in between does not let HTTP/2 pass: check TLS inspection")
    else:
        yield Finding("http", OK, f"{report.protocol} between the gateways")


def _grpc(facts: LinkFacts, report: LinkReport, needs: JobNeeds, _: LinkThresholds) -> Iterator[Finding]:
    bad = WRONG if needs.grpc or not needs.by_party else WARNING
    why = "" if needs.grpc or not needs.by_party else " (this job's engines do not need it)"
    if report.grpc is None:
        yield Finding("grpc", UNKNOWN, f"unknown: {facts.link.destination} did not answer a gRPC call")
    elif not report.grpc:
        message = f"gRPC does not pass: {report.grpc_problem}{why}"
        yield Finding("grpc", bad, message, "let HTTP/2 with trailers pass, or let TCP through without a proxy")
    elif report.grpc_streams is False:
        message = f"gRPC messages arrive only when the call ends{why}"
        yield Finding("grpc", bad, message, "switch off buffering of requests and answers in the proxy in between")
    else:
        yield Finding("grpc", OK, "gRPC passes, message by message")


def _rtt(facts: LinkFacts, report: LinkReport, _: JobNeeds, thresholds: LinkThresholds) -> Iterator[Finding]:
    if report.rtt_ms is None:
        yield Finding("rtt", UNKNOWN, "unknown: no call was answered")
    elif report.rtt_ms > thresholds.rtt_ms:
        message = f"a round trip takes {report.rtt_ms:.0f} ms, more than {thresholds.rtt_ms:g} ms"
        yield Finding("rtt", WARNING, message, "protocols with many rounds take that long for each of them")
    else:
        yield Finding("rtt", OK, f"{report.rtt_ms:.1f} ms")


def _bandwidth(facts: LinkFacts, report: LinkReport, _: JobNeeds, thresholds: LinkThresholds) -> Iterator[Finding]:
    rates = {"sent": report.sent_bits_per_second, "received": report.received_bits_per_second}
    known = {name: rate for name, rate in rates.items() if rate is not None}
    if not known:
        yield Finding("bandwidth", UNKNOWN, "unknown: not measured")
        return
    text = ", ".join(f"{rate_text(rate)} {name}" for name, rate in known.items())
    if min(known.values()) < thresholds.bits_per_second:
        message = f"{text}; less than {rate_text(thresholds.bits_per_second)}"
        advice = (
            "is the line used by others (`coterie job ls`), limited (coterie.io bandwidth limits) or shaped on the way?"
        )
        yield Finding("bandwidth", WARNING, message, advice)
    else:
        yield Finding("bandwidth", OK, text)


def _body(facts: LinkFacts, report: LinkReport, _: JobNeeds, thresholds: LinkThresholds) -> Iterator[Finding]:
    if report.body_refused:
        passed = size_text(report.body_passed) if report.body_passed else "nothing"
        message = f"bodies of {size_text(report.body_refused)} do not pass ({report.body_problem}); largest that did: {passed}"
        advice = "gateways have no such limit: raise it in the proxy in between (nginx: client_max_body_size; WAF: body limit)"
        yield Finding("body", WRONG if report.body_passed < thresholds.body_bytes else WARNING, message, advice)
    elif report.body_passed:
        yield Finding("body", OK, f"up to {size_text(report.body_passed)} tried, all passed")
    else:
        yield Finding("body", UNKNOWN, "unknown: not tried")


def _buffering(facts: LinkFacts, report: LinkReport, *_: object) -> Iterator[Finding]:
    apart = report.chunks_apart
    if apart is None:
        if report.buffering_problem:
            yield Finding("buffering", UNKNOWN, f"unknown: {report.buffering_problem}")
        return
    if apart < _BUFFERED * _EXPECTED_SECONDS:
        message = f"chunks sent over {_EXPECTED_SECONDS:g} s arrive within {apart:.2f} s: something holds them back"
        yield Finding(
            "buffering", WRONG, message, "switch off buffering in the proxy in between (nginx: proxy_buffering off)"
        )
    else:
        yield Finding("buffering", OK, "chunks arrive as they are sent")


def _idle(facts: LinkFacts, report: LinkReport, *_: object) -> Iterator[Finding]:
    if report.idle_cut is not None:
        message = f"a call without traffic ends after {report.idle_cut:.1f} s ({report.idle_problem})"
        advice = (
            "engines compute for minutes between two messages: raise the time-out of the proxy or firewall in between to an hour "
            "(nginx: proxy_read_timeout)"
        )
        yield Finding("idle", WRONG, message, advice)
    elif report.idle_held is not None:
        yield Finding("idle", OK, f"a silent call lives {report.idle_held:g} s; longer was not tried (--idle SECONDS)")


def _clock(facts: LinkFacts, report: LinkReport, *_: object) -> Iterator[Finding]:
    offset = report.clock_offset
    if offset is None:
        yield Finding("clock", UNKNOWN, f"unknown: {facts.link.destination} does not tell its time")
        return
    message = f"{facts.link.destination}'s clock is {abs(offset):.1f} s {'ahead' if offset > 0 else 'behind'}"
    if abs(offset) <= CLOCK_WARNING:
        yield Finding("clock", OK, message)
    else:
        advice = "set both clocks by NTP: registrations are refused from 5 minutes on, handshakes from 15"
        yield Finding("clock", WRONG if abs(offset) > CLOCK_LIMIT else WARNING, message, advice)


# Parties.


def party_findings(answer: PartyAnswer, needs: PartyNeeds, reference: Sequence[EngineFacts]) -> list[Finding]:
    """`reference`: the engines of the side that starts the job."""
    facts = answer.facts
    if facts is None:
        message = f"unknown: {answer.party} does not answer; its engines and its capacity are not known"
        return [Finding("party", UNKNOWN, message, f"ask {answer.party} for the output of `coterie engine ls`")]
    found = [Finding("version", OK, facts.version)] if facts.version else []
    known = {each.name: each for each in facts.engines}
    ours = {each.name: each for each in reference}
    for name in needs.engines:
        found.append(_engine(answer.party, name, known.get(name), ours.get(name)))
    if facts.fits is None:
        found.append(Finding("capacity", UNKNOWN, f"unknown: {answer.party} does not say"))
    elif facts.fits:
        found.append(Finding("capacity", OK, "its part fits on a node now"))
    else:
        asked = (
            f"{needs.cpu_milli / 1000:g} CPUs and {size_text(needs.memory)}"
            if needs.cpu_milli or needs.memory
            else "any pod"
        )
        message = f"no node of {answer.party} that is ready has {asked} free now"
        found.append(
            Finding("capacity", WARNING, message, "the task would wait: free capacity, add a node, or ask for less")
        )
    return found


def _engine(party: str, name: str, there: EngineFacts | None, ours: EngineFacts | None) -> Finding:
    if there is None:
        return Finding("engine", UNKNOWN, f"unknown: {party} does not say whether it has the AppImage {name}")
    if not there.present:
        return Finding(
            "engine", WRONG, f"{party} has no AppImage {name}", f"at {party}: coterie engine add, or apply the AppImage"
        )
    if ours is None or not ours.present:
        return Finding("engine", OK, f"{name}: {there.image}")
    if is_range(name):
        # Which versions go together the engines say themselves, and the parties agree on them when the job is approved.
        return Finding("engine", OK, f"{name}: {party} has {there.image}, the other side {ours.image}")
    if there.id and ours.id and there.id != ours.id:
        message = f"{name}: {party} has the image {short(there.id)}, the other side {short(ours.id)}"
        return Finding(
            "engine", WRONG, message, "agree on one version; engines of different versions often hang or fail"
        )
    if there.image.rpartition(":")[2] != ours.image.rpartition(":")[2] and not (there.id and ours.id):
        message = f"{name}: {party} has {there.image}, the other side {ours.image}"
        return Finding("engine", WARNING, message, "agree on one version, and write image.id into both AppImages")
    if not (there.id and ours.id):
        return Finding("engine", OK, f"{name}: {there.image} (no image id to compare)")
    return Finding("engine", OK, f"{name}: {there.image}, the same image id on both sides")


def short(identifier: str) -> str:
    return identifier.removeprefix("sha256:")[:12]


def rate_text(bits_per_second: float) -> str:
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits_per_second >= size:
            return f"{bits_per_second / size:.3g} {unit}"
    return f"{bits_per_second / 1e3:.3g} kbit/s"


def size_text(size: int) -> str:
    if size >= 1 << 30:
        return f"{size / (1 << 30):.3g} GiB"
    return f"{size / MIB:.3g} MiB" if size >= MIB else f"{size / 1024:.3g} KiB"
