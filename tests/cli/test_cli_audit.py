"""`coterie audit` on a log whose node does not run: look, hand out, check."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EventRequest, EvidenceEvent
from coterie.kuscia.evidence.service import open_domain_log
from coterie.kuscia.identity import domain_identity


async def write_log(paths: DomainPaths) -> None:
    log = await open_domain_log(paths, "alice", SYSTEM_CLOCK)
    used = EvidenceEvent(kind=evidence.GRANT_USED, job="job-1", partner="bob", grant=("g", "d" * 64))
    await log.record_requests(
        [
            EventRequest(
                event=EvidenceEvent(kind=evidence.JOB_CREATED, job="job-1", parties=("alice", "bob")), person="carol"
            ),
            EventRequest(event=used, tables=("salaries",)),
            EventRequest(event=EvidenceEvent(kind=evidence.JOB_ENDED, job="job-1", outcome="=2+2")),
            EventRequest(
                event=EvidenceEvent(kind=evidence.ROUTE_CHANGED, object=("x/routes",)), object_name="r\x1b[2J#1"
            ),
        ]
    )
    await log.file.close()


@pytest.fixture
def alice(cli: Any) -> Any:
    paths = DomainPaths.of(cli.folder / ".coterie", "alice")
    paths.prepare()
    domain_identity.ensure(paths, "alice", None, SYSTEM_CLOCK.now())
    paths.kubeconfig.write_text("{}")
    asyncio.run(write_log(paths))
    return cli


def test_a_log_is_read_handed_out_and_checked(alice: Any, tmp_path: Path) -> None:
    listed = alice("audit", "ls")
    assert listed.code == 0
    assert [line.split()[3] for line in listed.lines[1:]] == [
        evidence.LOG_OPENED,
        evidence.JOB_CREATED,
        evidence.GRANT_USED,
        evidence.JOB_ENDED,
        evidence.ROUTE_CHANGED,
    ]
    assert "carol" in listed.out
    assert "salaries" in listed.out
    assert "\x1b[2J" not in listed.out
    found = json.loads(alice("audit", "ls", "--kind", "grant.", "-o", "json").out)
    assert [(each["index"], each["partner"]) for each in found] == [(2, "bob")]
    assert "no such events" in alice("audit", "ls", "--since", "1h", "--until", "30m").out
    assert "salaries" in alice("audit", "show", "2").out

    file = str(tmp_path / "alice.evidence")
    assert alice("audit", "export", "--file", file).code == 0
    assert "carol" not in Path(file).read_text()
    checked = alice("audit", "verify", file)
    assert (checked.code, "valid: 5 events of alice" in checked.err + checked.out) == (0, True)
    certificate = DomainPaths.of(alice.folder / ".coterie", "alice").domain_certificate
    trusted = json.loads(alice("audit", "verify", file, "--trust", str(certificate), "-o", "json").out)
    assert trusted[0]["trusted"] is True
    Path(file).write_bytes(Path(file).read_bytes().replace(b'"bob"', b'"bab"'))
    broken = alice("audit", "verify", file)
    assert (broken.code, "NOT VALID: byte" in broken.err) == (1, True)

    one = str(tmp_path / "one.evidence")
    assert alice("audit", "prove", "2", "--disclose", "table", "--file", one).code == 0
    assert "salaries" in Path(one).read_text()
    assert alice("audit", "verify", one).code == 0
    proof = str(tmp_path / "one.tlog-proof")
    key = alice("audit", "prove", "2", "--format", "tlog-proof", "--file", proof).out.partition("--log-key ")[2][:-2]
    assert "valid: event 2" in alice("audit", "verify", proof, "--log-key", key).out
    assert "--log-key KEY" in alice("audit", "verify", proof).err
    Path(proof).write_text(Path(proof).read_text().replace("index 2", "index 3"))
    assert "NOT VALID" in alice("audit", "verify", proof, "--log-key", key).err
    same = alice("audit", "compare", one, one)
    assert (same.code, "same domain" in same.err, "the file's own" in same.err) == (1, True, True)
    known = alice("audit", "compare", one, one, "--trust", str(certificate))
    assert (known.code, "the file's own" in known.err) == (1, False)


def test_events_for_other_programs(alice: Any) -> None:
    table = alice("audit", "export", "--format", "csv").out
    assert "'=2+2" in table, "a table program must not take it for a formula"
    sent = json.loads(alice("audit", "export", "--format", "otlp", "--job", "job-1").out)
    records = sent["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    assert [each["body"]["stringValue"] for each in records] == ["job.created", "grant.used", "job.ended"]
    said = {each["key"].rpartition(".")[2]: each["value"] for each in records[0]["attributes"]}
    assert said["index"] == {"intValue": "1"}
    assert said["parties"] == {"arrayValue": {"values": [{"stringValue": "alice"}, {"stringValue": "bob"}]}}
    assert records[0]["timeUnixNano"].isdecimal()
    lines = alice("audit", "export", "--format", "json").lines
    assert len([json.loads(line) for line in lines]) == 5


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("show", "x"), "INDEX is the number"),
        (("show", "99"), "the log has no event 99; `coterie audit ls` lists them"),
        (("export", "--job", "nope", "--file", "x"), "there are no such events"),
        (("show",), "INDEX"),
        (("compare", "a"), "FILE"),
        (("prove", "2"), "--file"),
        (("prove", "2", "--file", "x", "--format", "tlog-proof", "--disclose", "table"), "nothing else"),
        (("export", "--format", "csv", "--disclose", "table"), "format evidence"),
        (("erase", "carol", "--log", "1"), "unrecognized"),
        (("retain", "5", "--since", "1d"), "unrecognized"),
        (("reopen", "--log", "1"), "unrecognized"),
        (("frob",), "cannot"),
        (("export",), "--file"),
        (("export", "--file", "x", "--disclose", "secrets"), "none of person"),
        (("verify", "/no/such"), "No such file"),
        (("ls", "--since", "yesterday"), "neither a duration nor a time"),
        (("ls", "--log", "7"), "no evidence log 7"),
        (("retain", "-5"), "DAYS is a number"),
        (("retain", "5"), "does not run"),
        (("erase", "carol"), "does not run"),
    ],
)
def test_refusals(alice: Any, words: tuple[str, ...], why: str) -> None:
    refused = alice("audit", *words[:1], *(["--"] if words[1:2] == ("-5",) else []), *words[1:])
    assert refused.code != 0
    assert why in refused.err


def test_no_log(cli: Any) -> None:
    paths = DomainPaths.of(cli.folder / ".coterie", "alice")
    paths.prepare()
    paths.kubeconfig.write_text("{}")
    refused = cli("audit", "ls")
    assert (refused.code, "has no evidence log" in refused.err) == (1, True)
