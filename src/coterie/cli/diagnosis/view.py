"""The result as a table with one line for each link, and what is wrong below it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from coterie.cli.diagnosis.judge import rate_text, size_text
from coterie.cli.diagnosis.model import GraphResult, LinkResult
from coterie.cli.output import plain_table
from coterie.cli.tables import render_table
from coterie.kuscia.routes.facts import CheckOutcome, Finding

COLUMNS = ("From", "To", "Status", "Proto", "mTLS", "RTT", "Sent", "Received", "Body", "Idle", "Chunks", "Clock")
MARKS = {
    CheckOutcome.OK: "green",
    CheckOutcome.WRONG: "red",
    CheckOutcome.WARNING: "yellow",
    CheckOutcome.UNKNOWN: "yellow",
    CheckOutcome.SKIPPED: "dim",
}
_NONE = "-"
_LONGEST = 600


def graph_text(result: GraphResult, paint: Callable[[str, str], str], *, colour: bool, everything: bool = False) -> str:
    """`everything`: also what is well."""
    parts = [render_table(plain_table(COLUMNS, [link_row(each) for each in result.links]), colour=colour)]
    if result.parties:
        rows = [(each.party, each.status, printable(_first_line(each.findings))) for each in result.parties]
        parts.append("\n" + render_table(plain_table(("Party", "Status", "Engines and capacity"), rows), colour=colour))
    lines = list(_problems(result, paint, everything))
    return "".join(parts) + ("\n" + "\n".join(lines) + "\n" if lines else "")


def link_row(result: LinkResult) -> tuple[str, ...]:
    report = result.facts.report
    link = result.facts.link
    if report is None or not report.endpoint:
        return (link.source, link.destination, result.status, *(_NONE for _ in COLUMNS[3:]))
    protocol = printable(report.protocol or "HTTP/1.1")
    sent, received = report.sent_bits_per_second, report.received_bits_per_second
    idle = f"{report.idle_held:g}s+" if report.idle_held is not None else _NONE
    passed = size_text(report.body_passed) + ("" if report.body_refused else "+") if report.body_passed else _NONE
    return (
        link.source,
        link.destination,
        result.status,
        protocol + (" gRPC" if report.grpc else ""),
        "yes" if report.fingerprint else "no" if report.endpoint == "coterie" else _NONE,
        f"{report.rtt_ms:.1f}ms" if report.rtt_ms is not None else _NONE,
        rate_text(sent) if sent is not None else _NONE,
        rate_text(received) if received is not None else _NONE,
        passed,
        f"{report.idle_cut:.0f}s!" if report.idle_cut is not None else idle,
        _verdict(result.findings, "buffering"),
        f"{report.clock_offset:+.1f}s" if report.clock_offset is not None else _NONE,
    )


def printable(text: str) -> str:
    """Partners choose parts of these sentences; nothing in them is to steer the terminal."""
    shown = "".join(each if each.isprintable() else "?" for each in text[:_LONGEST])
    return shown if len(text) <= _LONGEST else shown + "..."


def _verdict(findings: tuple[Finding, ...], step: str) -> str:
    found = next((each.verdict for each in findings if each.step == step), None)
    return {CheckOutcome.OK: "as sent", CheckOutcome.WRONG: "held back"}.get(found, _NONE) if found else _NONE


def _first_line(findings: tuple[Finding, ...]) -> str:
    order = (CheckOutcome.WRONG, CheckOutcome.WARNING, CheckOutcome.UNKNOWN)
    worst = next((each for verdict in order for each in findings if each.verdict is verdict), None)
    return (
        worst.message if worst is not None else "; ".join(each.message for each in findings if each.step != "version")
    )


def _problems(result: GraphResult, paint: Callable[[str, str], str], everything: bool) -> Iterator[str]:
    named = [(str(each.facts.link), each.findings) for each in result.links]
    named += [(each.party, each.findings) for each in result.parties]
    for name, findings in named:
        for each in findings:
            if each.verdict is CheckOutcome.OK and not everything:
                continue
            mark = paint(f"{each.verdict.value:<8}", MARKS[each.verdict])
            yield f"{mark} {name}: {each.step}: {printable(each.message)}"
            if each.advice:
                yield f"{'':9}next: {printable(each.advice)}"
