"""`python -m coterie.engines.nvflare.submit ADMINISTRATOR JOB CLIENT...`: submit a job when these clients are there, and wait for its end.

ADMINISTRATOR is a folder that `startup` wrote. In its file `clients` stands who is there, separated by commas.

0  completed      1  not
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from nvflare.apis.job_def import JobMetaKey, RunStatus
from nvflare.fuel.flare_api.flare_api import new_secure_session

from coterie.engines.nvflare.startup import ADMINISTRATOR

_SECONDS = 60.0
_PAUSE = 0.5


def main(administrator: Path, job: str, clients: set[str]) -> int:
    session = new_secure_session(ADMINISTRATOR, str(administrator), timeout=_SECONDS)
    try:
        present: set[str] = set()
        while not present >= clients:
            time.sleep(_PAUSE)
            present = {each.name for each in session.get_system_info().client_info}
            (administrator / "new").write_text(",".join(sorted(present)))
            (administrator / "new").replace(administrator / "clients")
        submitted = session.submit_job(job)
        _, meta = session.monitor_job_and_return_job_meta(submitted, poll_interval=_PAUSE)
    finally:
        session.close()
    status = str((meta or {}).get(JobMetaKey.STATUS.value))
    print(f"the job ended: {status}", flush=True)
    return 0 if status == RunStatus.FINISHED_COMPLETED.value else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], {*sys.argv[3:]}))
