"""Who answered for a party is what the API server saw, not what the writer claims."""

from __future__ import annotations

import pytest

from coterie.kube.api.meta import Object
from coterie.kuscia.extensions.job_approvals import approval_records

OLD = {"bob": {"by": "ann", "at": "then"}}
NEW = {"by": "eve", "at": "now"}


@pytest.mark.parametrize(
    ("before", "after", "records"),
    [
        pytest.param({}, {"approveStatus": {"bob": "JobAccepted"}}, {"bob": NEW}, id="an answer"),
        pytest.param({}, {"approveStatus": {}, "approvalRecords": OLD}, {}, id="a claim without an answer"),
        pytest.param(
            {}, {"approveStatus": {"bob": "JobAccepted"}, "approvalRecords": OLD}, {"bob": NEW}, id="another's name"
        ),
        pytest.param(
            {"approveStatus": {"bob": "JobAccepted"}, "approvalRecords": OLD},
            {"approveStatus": {"bob": "JobAccepted"}},
            OLD,
            id="a record cannot be taken away",
        ),
        pytest.param(
            {"approveStatus": {"bob": "JobAccepted"}, "approvalRecords": OLD},
            {"approveStatus": {"bob": "JobRejected", "carol": "JobAccepted"}},
            {"bob": NEW, "carol": NEW},
            id="another answer",
        ),
        pytest.param({}, {"approveStatus": "garbage"}, {}, id="garbage"),
    ],
)
def test_records_of_answers(before: Object, after: Object, records: Object) -> None:
    assert approval_records(before, after, "eve", "now") == records
