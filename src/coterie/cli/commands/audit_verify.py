"""`coterie audit verify`: checks exported files, offline."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.x509.oid import NameOID

from coterie.base import pki
from coterie.base.pki import PkiError
from coterie.cli import arguments as options
from coterie.cli import audit_log
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.output import as_text
from coterie.cli.progress import working
from coterie.kuscia.api.log_query import printable
from coterie.kuscia.evidence import tlog_proof, verification
from coterie.kuscia.evidence.signed_notes import NoteError, NoteKey
from coterie.kuscia.evidence.verification import LogReport

HELP = """
Check exported files: offline, without a node, without trust in who made them. All hashes, signatures and certificates
are computed anew; the first byte that is wrong is named. Exit status 0: all files are valid. Files of successive logs of
one domain are also checked to follow each other.

Examples:
  coterie audit verify alice.evidence --trust alice.crt
  coterie audit verify alice.1.evidence alice.2.evidence
  coterie audit verify alice.evidence -o json
  coterie audit verify event.tlog-proof --log-key "$KEY"
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="written by `coterie audit export` or `prove`")
    parser.add_argument("--trust", metavar="CERT", action="append", default=[], help="certificate of a domain")
    parser.add_argument(
        "--log-key", metavar="KEY", default="", help="key of the log, for tlog-proof files: name+id+base64"
    )
    options.output_option(parser, ("table", "json", "yaml"))
    parser.complete(files="files", trust="files")


def run(args: argparse.Namespace, app: App) -> int:
    with audit_log.failures():
        if [path for path in args.files if is_tlog_proof(path)]:
            return _verify_proofs(args, app)
        if args.log_key:
            raise UsageError("--log-key is for tlog-proof files; evidence files contain the key and its certificate")
        trusted = trusted_keys(args.trust)
        reports = []
        for path in args.files:
            with working(
                app, path, "computing all hashes and signatures", done="checked", quiet=args.output != "table"
            ):
                reports.append((path, _verified(path, trusted)))
    gaps = verification.gaps_between([report for _, report in reports])
    valid = all(report.ok for _, report in reports) and not gaps
    if args.output != "table":
        app.write(as_text([{"file": path, **report_json(report)} for path, report in reports], args.output))
    else:
        for path, report in reports:
            for line in report_lines(path, report):
                (app.say if report.ok else app.warn)(printable(line))
    for each in gaps:
        app.warn(printable(each))
    return 0 if valid else 1


def _verified(path: str, trusted: dict[str, RSAPublicKey]) -> LogReport:
    with Path(path).open("rb") as file:
        return verification.verify(file, trusted=trusted)


def is_tlog_proof(path: str) -> bool:
    with Path(path).open("rb") as file:
        return file.read(len(tlog_proof.HEADER)) == tlog_proof.HEADER.encode()


def _verify_proofs(args: argparse.Namespace, app: App) -> int:
    if not args.log_key or args.trust:
        raise UsageError("tlog-proof files are checked with --log-key KEY, which an evidence file of the log contains")
    try:
        key = NoteKey.parse(args.log_key)
    except NoteError as problem:
        raise UsageError(f"--log-key: {problem}") from problem
    rows, valid = [], True
    for path in args.files:
        try:
            found = tlog_proof.read_proof(Path(path).read_text(), key)
        except (NoteError, UnicodeDecodeError) as problem:
            valid = False
            rows.append({"file": path, "valid": False, "fault": str(problem)})
            if args.output == "table":
                app.warn(printable(f"{path}: NOT VALID: {problem}"))
            continue
        size = found.checkpoint.size
        event = found.body.decode("utf-8", "replace")
        rows.append({"file": path, "valid": True, "index": found.index, "size": size, "event": event})
        if args.output == "table":
            app.say(f"{path}: valid: event {found.index} of log {key.name}, head of size {size}")
            app.say(f"  {printable(event)}")
    if args.output != "table":
        app.write(as_text(rows, args.output))
    return 0 if valid else 1


def trusted_keys(files: Sequence[str]) -> dict[str, RSAPublicKey]:
    """Of the domains that these certificates name."""
    found = {}
    for path in files:
        try:
            certificate = pki.load_certificate(Path(path).read_bytes())
            key = pki.public_key_of(certificate)
        except PkiError as problem:
            raise CliError(f"{path} is no certificate: {problem}") from problem
        if not isinstance(key, RSAPublicKey):
            raise CliError(f"{path}: a domain has an RSA key")
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if len(names) != 1:
            raise CliError(f"{path} names no domain")
        found[str(names[0].value)] = key
    return found


def report_lines(path: str, report: LogReport) -> Iterator[str]:
    if report.fault is not None:
        yield f"{path}: NOT VALID: {report.fault}"
        return
    head = report.heads[-1].checkpoint
    yield f"{path}: valid: {report.events} events of {report.header.domain}, log {report.header.origin}, head of size {head.size}"
    if report.removed:
        yield f"  {report.removed} events were removed by retention; their hashes are there"
    if report.unsigned:
        yield f"  {report.unsigned} events behind the last head are not signed yet"
    if not report.trusted:
        yield f"  the certificate of {report.header.domain} is the file's own: compare it with one that you trust (--trust FILE)"
    for statement in report.statements:
        lacks = f", not by {', '.join(statement.missing)}" if statement.missing else ""
        yield f"  statement of task {statement.predicate.task}: signed by {', '.join(statement.signed)}{lacks}"
        if statement.unproven:
            yield f"    with keys that are not proven: {', '.join(statement.unproven)} (--trust FILE: the certificates of these domains)"
    known = {name: each for each in report.heads for name in each.cosigned}
    unknown = sorted({name for each in report.heads for name in each.unknown} - known.keys())
    if not known and not unknown:
        yield "  no partner cosigned a head: one-sided"
    if known:
        yield f"  heads cosigned by: {', '.join(sorted(known))}"
        for name, each in sorted(known.items()):
            when = datetime.fromtimestamp(each.cosigned[name], UTC).strftime("%Y-%m-%d %H:%M:%S")
            yield f"    {name}: the first {each.checkpoint.size} events, at {when}"
    if unknown:
        yield f"  cosigned with keys that are not proven: {', '.join(unknown)} (--trust FILE: the certificates of these domains)"


def report_json(report: LogReport) -> dict[str, Any]:
    return {
        "valid": report.ok,
        "fault": {"offset": report.fault.offset, "message": report.fault.sentence} if report.fault else None,
        "domain": report.header.domain,
        "origin": report.header.origin,
        "events": report.events,
        "removed": report.removed,
        "unsigned": report.unsigned,
        "trusted": report.trusted,
        "statements": [
            {
                "job": each.predicate.job,
                "task": each.predicate.task,
                "agreement": each.predicate.agreement,
                "signed": list(each.signed),
                "missing": list(each.missing),
                "notProven": list(each.unproven),
            }
            for each in report.statements
        ],
        "heads": [
            {
                "size": each.checkpoint.size,
                "root": each.checkpoint.root.hex(),
                "cosigned": dict(each.cosigned),
                "notProven": list(each.unknown),
            }
            for each in report.heads
        ],
    }
