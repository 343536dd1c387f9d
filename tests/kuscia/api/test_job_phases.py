"""Which phases are ends, and that the SDK, which imports nothing of this, agrees."""

from __future__ import annotations

import pytest

from coterie.kuscia.api.jobs.phases import JOB_ENDED, JOB_FINAL, JOB_NEW, JOB_UNSUCCESSFUL, TASK_ENDED
from coterie.kuscia.api.types.job import JobPhase, TaskPhase
from coterie.sdk import models

ROWS = [
    # phase, new, ended, final, ended without success
    ("", True, False, False, False),
    (JobPhase.INITIALIZED, True, False, False, False),
    (JobPhase.AWAITING_APPROVAL, False, False, False, False),
    (JobPhase.PENDING, False, False, False, False),
    (JobPhase.RUNNING, False, False, False, False),
    (JobPhase.SUSPENDED, False, False, False, False),
    (JobPhase.SUCCEEDED, False, True, True, False),
    (JobPhase.FAILED, False, True, False, True),
    (JobPhase.APPROVAL_REJECT, False, True, True, True),
    (JobPhase.CANCELLED, False, True, True, True),
]


@pytest.mark.parametrize(("phase", "new", "ended", "final", "lost"), ROWS, ids=[str(row[0] or "none") for row in ROWS])
def test_phases_of_a_job(phase: str, new: bool, ended: bool, final: bool, lost: bool) -> None:
    text = str(phase)
    assert (text in JOB_NEW, text in JOB_ENDED, text in JOB_FINAL, text in JOB_UNSUCCESSFUL) == (
        new,
        ended,
        final,
        lost,
    )
    assert (text in models.ENDED) == ended


def test_every_phase_has_a_row() -> None:
    assert {row[0] for row in ROWS} == {"", *JobPhase}


@pytest.mark.parametrize("phase", [*TaskPhase, ""])
def test_phases_of_a_task(phase: str) -> None:
    assert (str(phase) in TASK_ENDED) == (phase in (TaskPhase.SUCCEEDED, TaskPhase.FAILED))
