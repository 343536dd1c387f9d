"""Our files against a verifier that was written from the document alone, and every byte of them changed once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import independent_verifier
import pytest
from evidence_world import LoggingDomain, opened, two_domains

from coterie.kuscia.evidence import export, verification


@pytest.fixture
async def alice(tmp_path: Path) -> LoggingDomain:
    made, _ = await two_domains(tmp_path)
    await made.log.file.remove_bodies(3)
    return made


def test_it_shares_no_code_with_the_program() -> None:
    folder = Path(__file__).parent
    program = "import sys, independent_verifier; print([m for m in sys.modules if m.startswith('coterie')])"
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_both_verifiers_say_the_same(alice: LoggingDomain) -> None:
    for content in (alice.whole(disclose=("person",)), alice.some("job-1", disclose=("person",))):
        ours = verification.verify(opened(content), trusted={"alice": alice.public_key})
        theirs = independent_verifier.verify(content, alice.public_key)
        assert ours.ok, ours.fault
        assert theirs["events"] == ours.events
        assert theirs["removed"] == ours.removed
        assert theirs["disclosed"] == ours.disclosed
        assert theirs["heads"] == [(each.checkpoint.size, each.checkpoint.root) for each in ours.heads]


async def test_the_proof_of_each_event(alice: LoggingDomain) -> None:
    for stored in alice.log.file.events():
        if stored.body is None:
            continue
        text = export.tlog_proof_of(alice.log.file, stored.index)
        assert independent_verifier.verify_tlog_proof(text, str(alice.log.key)) == (stored.index, stored.body)
        forged = text.replace(f"index {stored.index}\n", f"index {stored.index + 1}\n")
        with pytest.raises(independent_verifier.Wrong):
            independent_verifier.verify_tlog_proof(forged, str(alice.log.key))


async def test_whatever_one_verifier_refuses_the_other_does_not_believe(alice: LoggingDomain) -> None:
    """Every byte once. What both accept says the same as before; what only one accepts is a matter of spelling, never of content."""
    content = alice.whole()
    good = independent_verifier.verify(content)
    for at in range(len(content)):
        changed = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        report = verification.verify(opened(changed))
        try:
            theirs = independent_verifier.verify(changed)
        except Exception:  # noqa: BLE001 - whatever a parser says to rubbish
            theirs = None
        if theirs is not None:
            assert theirs == good, f"byte {at}"
        if report.ok:
            found = [(each.checkpoint.size, each.checkpoint.root) for each in report.heads]
            assert (report.events, found) == (good["events"], good["heads"]), f"byte {at}"
