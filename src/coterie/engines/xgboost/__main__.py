"""`python -m coterie.engines.xgboost CONFIG`: one party of federated training with XGBoost.

    server   XGBoost's server, and a worker if it has rows       own table ──data mesh──> rows.csv
    others   a worker, which reaches the server through the gateways by gRPC

0  done      1  failed: data, partner, training      2  the configuration cannot be used
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from coterie.engines.launching import http_relay, own_table, programs
from coterie.engines.launching.configuration import BadConfig
from coterie.engines.launching.http_relay import SOURCE_HEADER, HttpCall, HttpReply, NotReached, RelayTarget
from coterie.engines.launching.own_table import TableUnreadable
from coterie.engines.launching.programs import Programs, fail
from coterie.engines.xgboost.task import XgboostTask, parse

START_SECONDS = 180.0
LOST_SECONDS = 60.0
_READY, _DONE = "/coterie/ready", "/coterie/done"
_PACKAGE = "coterie.engines.xgboost"


class TrainingFailed(Exception):
    """The sentence goes to the log."""


def main(words: list[str]) -> int:
    if len(words) != 1:
        return fail("usage: python -m coterie.engines.xgboost CONFIG", 2)
    try:
        task = parse(Path(words[0]).read_text(encoding="utf-8"))
    except (BadConfig, OSError, UnicodeDecodeError) as problem:
        return fail(str(problem), 2)
    folder = Path(tempfile.mkdtemp(prefix="xgboost-"))
    try:
        if os.environ.get("http_proxy") and task.endpoint:
            raise TrainingFailed(
                "XGBoost reaches partners only from pods with a network of their own, and this has none"
            )
        with Programs(folder, programs.environment()) as started:
            run(task, folder, started)
        return 0
    except (TrainingFailed, TableUnreadable, OSError) as problem:
        return fail(f"task {task.id} failed at {task.own}: {problem}", 1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(task: XgboostTask, folder: Path, started: Programs) -> None:
    if task.table:
        own_table.write(folder / "rows.csv", own_table.fetch(task.table, task.columns), task.columns)
    done: set[str] = set()
    if task.server == task.own:

        def answer(call: HttpCall) -> HttpReply:
            if call.source not in task.owners:
                return HttpReply(403)
            if call.path == _READY:
                return HttpReply(200 if programs.listens(task.port) else 503)
            if call.path != _DONE:
                return HttpReply(404)
            done.add(call.source)
            return HttpReply(200)

        http_relay.serve("", task.done_port, answer)
        words = [sys.executable, "-P", "-m", f"{_PACKAGE}.server", str(len(task.owners)), str(task.port)]
        started.start("server", words)
        if not programs.until(lambda: started.ended() is not None or programs.listens(task.port), START_SECONDS):
            raise TrainingFailed("the server of XGBoost does not start")
        _look(started)
    else:
        ask(task, _READY, START_SECONDS)  # a worker does not wait for its server
    if task.table:
        work(task, folder, started)
    if task.server == task.own:
        others = {*task.owners} - {task.own}
        while not done >= others:
            _look(started)
            time.sleep(0.2)
    else:
        ask(task, _DONE, LOST_SECONDS)  # the server waits until nobody needs it


def work(task: XgboostTask, folder: Path, started: Programs) -> None:
    endpoint = task.endpoint if ":" in task.endpoint else f"{task.endpoint}:80"
    given = {
        "rows": str(folder / "rows.csv"),
        "model": str(folder / "model.json"),
        "server": endpoint if task.endpoint else f"127.0.0.1:{task.port}",
        "workers": len(task.owners),
        "rank": task.owners.index(task.own),
        "features": task.features,
        "label": task.label,
        "rounds": task.rounds,
        "parameters": task.parameters,
    }
    (folder / "worker.json").write_text(json.dumps(given), encoding="utf-8")
    worker = started.start("worker", [sys.executable, "-P", "-m", f"{_PACKAGE}.worker", str(folder / "worker.json")])
    while worker.poll() is None:
        ended = started.ended()
        if ended is not None and ended[0] != "worker":
            _look(started)
        time.sleep(0.1)
    if worker.returncode:
        raise TrainingFailed(f"the worker ended with status {worker.returncode}")
    started.forget("worker")


def ask(task: XgboostTask, path: str, seconds: float) -> None:
    """Until the launcher of the server says yes."""
    server = RelayTarget(task.done_endpoint, partner=True)
    deadline, reason = time.monotonic() + seconds, ""
    while time.monotonic() < deadline:
        try:
            # The header is written by the gateways; without gateways, in tests, it is ours.
            reply = server.call("POST", path, headers={SOURCE_HEADER: task.own})
            if reply.status == 200:
                return
            reason = f"HTTP status {reply.status}"
        except NotReached as problem:
            reason = str(problem)
        time.sleep(0.5)
    raise TrainingFailed(f"{task.server} cannot be reached: {reason}")


def _look(started: Programs) -> None:
    ended = started.ended()
    if ended is not None:
        raise TrainingFailed(f"the {ended[0]} of XGBoost ended with status {ended[1]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
