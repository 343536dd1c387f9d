"""Which phases are ends.

    job          Succeeded, ApprovalReject, Cancelled   final
                 Failed                                 an end, but the job can be restarted
    task, party  Succeeded, Failed                      final; a restart makes new tasks
    reservation  Schedulable, Failed                    ends of one attempt; the group may begin another
    deployment   none                                   it runs until it is deleted, and Failed is tried again

Phases are compared as text, because statuses of partners may hold anything.
"""

from __future__ import annotations

from typing import Final

from coterie.kuscia.api.types.job import JobPhase, TaskPhase

JOB_FINAL: Final[frozenset[str]] = frozenset((JobPhase.SUCCEEDED, JobPhase.APPROVAL_REJECT, JobPhase.CANCELLED))
"""No command changes such a job any more."""
JOB_ENDED: Final[frozenset[str]] = JOB_FINAL | {JobPhase.FAILED}
JOB_UNSUCCESSFUL: Final[frozenset[str]] = JOB_ENDED - {JobPhase.SUCCEEDED}
JOB_NEW: Final[frozenset[str]] = frozenset(("", JobPhase.INITIALIZED))
"""Not validated yet."""
TASK_ENDED: Final[frozenset[str]] = frozenset((TaskPhase.SUCCEEDED, TaskPhase.FAILED))
"""Of tasks, and of the part of each party."""
