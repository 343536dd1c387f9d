"""What the server of a partner may have NVFlare's client do here. The client makes `OwnAppDeployer` when it starts.

NVFlare's client runs the app that the server sends, and obeys commands whose authorization the server itself vouches for. Here
only the app of the own image is put where jobs run, and the client answers only those commands that a job needs.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.workspace import Workspace
from nvflare.fuel.utils.zip_utils import unzip_all_from_bytes, zip_directory_to_bytes
from nvflare.private.defs import TrainingTopic
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.utils.app_deployer import AppDeployer

from coterie.engines.nvflare.jobs import difference

NEEDED = frozenset(
    (
        TrainingTopic.DEPLOY,
        TrainingTopic.START_JOB,
        TrainingTopic.CHECK_RESOURCE,
        TrainingTopic.CANCEL_RESOURCE,
        TrainingTopic.NOTIFY_JOB_STATUS,
        TrainingTopic.ABORT,
    )
)
"""Others run shell commands, show or change how the client runs, remove what is there, or stop it."""
_JOB_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""It becomes part of paths and of a command line."""


class OwnAppDeployer(AppDeployer):
    def __init__(self, own_app: str, refused: str) -> None:
        """`refused`: the file in which the launcher finds that an app was refused."""
        self._own, self._refused = own_app, Path(refused)
        processors = ClientRequestProcessors.request_processors
        processors[:] = [each for each in processors if NEEDED.issuperset(each.get_topics())]

    def deploy(
        self,
        workspace: Workspace,
        job_id: str,
        job_meta: dict[str, Any],
        app_name: str,
        app_data: bytes,
        fl_ctx: FLContext,
    ) -> str:
        if not isinstance(job_id, str) or not _JOB_ID.fullmatch(job_id):
            return "this is no id of a job"
        with tempfile.TemporaryDirectory() as given:
            unzip_all_from_bytes(app_data, given)
            name = difference(Path(self._own), Path(given))
        if name:
            self._refused.write_text(name, encoding="utf-8")
            return f"the app is not the one of this party's image: {name} differs"
        # What arrived is never put where a job runs, not even for the time of a check.
        own = zip_directory_to_bytes(self._own, "")
        return str(super().deploy(workspace, job_id, job_meta, "app", own, fl_ctx) or "")
