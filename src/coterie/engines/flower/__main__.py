"""`python -m coterie.engines.flower [--app DIRECTORY] CONFIG`: one party of a Flower app.

    server   flower-superlink, `flwr run APP`, and a SuperNode if it has rows     own table ──data mesh──> rows.csv
    others   flower-supernode --node-config 'data="rows.csv" party="bob"'

0  done      1  failed: data, partner, app      2  the configuration cannot be used
`--app` is for images that bring their own: which code runs at a party is for that party to say, never for a task.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from coterie.engines.flower import fleet
from coterie.engines.flower.fleet import LinkSide, NodeSide
from coterie.engines.flower.task import FlowerTask, parse
from coterie.engines.launching import http_relay, own_table, programs
from coterie.engines.launching.configuration import BadConfig
from coterie.engines.launching.http_relay import SOURCE_HEADER, NotReached, RelayTarget
from coterie.engines.launching.own_table import TableUnreadable
from coterie.engines.launching.programs import Programs, fail

APPS = Path(__file__).parent / "apps"
COME_ALONG = ("logistic",)
START_SECONDS = 180.0
"""For all partners to come."""
LOST_SECONDS = 60.0
"""For a partner that was there to come back."""
_BIN = Path(sys.executable).parent
_PAUSE = 1.0


class FlowerFailed(Exception):
    """The sentence goes to the log."""


def main(words: list[str]) -> int:
    own_app = ""
    if words[:1] == ["--app"] and len(words) == 3:
        own_app, words = words[1], words[2:]
    if len(words) != 1:
        return fail("usage: python -m coterie.engines.flower [--app DIRECTORY] CONFIG", 2)
    try:
        task = parse(Path(words[0]).read_text(encoding="utf-8"))
        app = chosen_app(task, own_app)
    except (BadConfig, OSError, UnicodeDecodeError) as problem:
        return fail(str(problem), 2)
    folder = Path(tempfile.mkdtemp(prefix="flower-"))
    try:
        with Programs(folder, _environment(folder)) as started:
            run(task, app, folder, started)
        return 0
    except (FlowerFailed, TableUnreadable, OSError) as problem:
        return fail(f"task {task.id} failed at {task.own}: {problem}", 1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def chosen_app(task: FlowerTask, own: str) -> Path:
    if own:
        if task.app:
            raise BadConfig("task_input_config: app is not for images that bring their own")
        if not (Path(own) / "pyproject.toml").is_file():
            raise BadConfig(f"{own} is no Flower app: there is no pyproject.toml")
        return Path(own).absolute()
    if task.app not in COME_ALONG:
        raise BadConfig(f"task_input_config: app is one of {', '.join(COME_ALONG)}, or the image brings its own")
    return APPS / task.app


def run(task: FlowerTask, app: Path, folder: Path, started: Programs) -> None:
    if task.table:
        own_table.write(folder / "rows.csv", own_table.fetch(task.table, task.columns), task.columns)
    if task.server == task.own:
        serve(task, app, folder, started)
    else:
        take_part(task, app, folder, started)


def serve(task: FlowerTask, app: Path, folder: Path, started: Programs) -> None:
    port = task.superlink_port
    options = ("--insecure", "--host", "127.0.0.1", "--port", str(port), "--disable-runtime-dependency-installation")
    started.start("superlink", [str(_BIN / "flower-superlink"), *options], output=False)
    if not programs.until(lambda: started.ended() is not None or programs.listens(port), START_SECONDS):
        raise FlowerFailed("the SuperLink does not start")
    _look(started)
    side = LinkSide(RelayTarget(f"127.0.0.1:{port}", partner=False), task.owners)
    http_relay.serve("", task.fleet_port, side.from_partner)
    if task.table:
        own = http_relay.serve("127.0.0.1", 0, lambda call: side.from_owner(task.own, call))
        start_supernode(task, int(own.server_address[1]), folder, started)
    if not programs.until(lambda: started.ended() is not None or side.arrived >= {*task.owners}, START_SECONDS):
        missing = ", ".join(sorted({*task.owners} - side.arrived))
        raise FlowerFailed(f"the SuperNode of {missing} has not come within {START_SECONDS:.0f} s")
    _look(started)
    try:
        run_app(task, app, folder, started)
        side.state = fleet.COMPLETED
    except FlowerFailed:
        side.state = fleet.FAILED
        raise
    finally:
        others = {*task.owners} - {task.own}
        programs.until(lambda: side.informed >= others, LOST_SECONDS if side.state == fleet.COMPLETED else _PAUSE * 5)
    if not side.informed >= others:
        raise FlowerFailed(f"{', '.join(sorted(others - side.informed))} did not ask how the run ended")


def run_app(task: FlowerTask, app: Path, folder: Path, started: Programs) -> None:
    home = folder / "flwr"
    home.mkdir(exist_ok=True)
    connection = f'address = "127.0.0.1:{task.superlink_port}"\ninsecure = true\n'
    (home / "config.toml").write_text(f'[superlink]\ndefault = "task"\n[superlink.task]\n{connection}')
    (folder / "run-config.toml").write_text(task.run_config, encoding="utf-8")
    words = [str(_BIN / "flwr"), "run", str(app), "task", "--stream"]
    words += ["--run-config", str(folder / "run-config.toml")] if task.run_config else []
    process = started.start("run", words)
    while process.poll() is None:
        ended = started.ended()
        if ended is not None and ended[0] != "run":
            _look(started)
        time.sleep(0.2)
    started.forget("run")
    if process.returncode:
        raise FlowerFailed(f"`flwr run` ended with status {process.returncode}")
    listed = subprocess.run(
        [str(_BIN / "flwr"), "list", "task", "--format", "json"],
        cwd=folder,
        env=_environment(folder),
        capture_output=True,
        timeout=LOST_SECONDS,
        check=False,
    )
    try:
        found = json.loads(listed.stdout)["runs"][0]
        status, details = str(found["status"]), str(found["status-details"])
    except (ValueError, LookupError, TypeError) as problem:
        raise FlowerFailed(f"`flwr list` does not tell how the run ended: {problem}") from problem
    if status != "finished:completed":
        raise FlowerFailed(f"the ServerApp has not completed: {status} {details}".rstrip())


def take_part(task: FlowerTask, app: Path, folder: Path, started: Programs) -> None:
    server = RelayTarget(task.endpoint, partner=True)
    side = NodeSide(task.own, server, built(app, folder))
    own = http_relay.serve("127.0.0.1", 0, side.answer)
    start_supernode(task, int(own.server_address[1]), folder, started)
    last_answer, reached = time.monotonic(), False
    while True:
        if side.other_app.is_set():
            raise FlowerFailed(f"the app that {task.server} runs is not the one of this party's image")
        _look(started)
        try:
            # The header is written by the gateways; without gateways, in tests, it is ours.
            reply = server.call("GET", fleet.STATE_PATH, headers={SOURCE_HEADER: task.own})
            reason = f"HTTP status {reply.status}"
        except NotReached as problem:
            reply, reason = None, str(problem)
        if reply is not None and reply.status == 200:
            last_answer, reached = time.monotonic(), True
            state = json.loads(reply.body).get("state")
            if state == fleet.COMPLETED:
                return
            if state == fleet.FAILED:
                raise FlowerFailed(f"the run failed at {task.server}; its log tells why")
        elif time.monotonic() - last_answer > (LOST_SECONDS if reached else START_SECONDS):
            raise FlowerFailed(f"{task.server} cannot be reached: {reason}")
        time.sleep(_PAUSE)


def built(app: Path, folder: Path) -> bytes:
    """The app as Flower carries it."""
    made = folder / "built"
    made.mkdir()
    done = subprocess.run(
        [str(_BIN / "flwr"), "build", "--app", str(app)],
        cwd=made,
        env=_environment(folder),
        capture_output=True,
        text=True,
        timeout=LOST_SECONDS,
        check=False,
    )
    found = list(made.glob("*.fab"))
    if done.returncode or len(found) != 1:
        raise FlowerFailed(f"the app {app} cannot be built: {(done.stderr or done.stdout).strip()[-500:]}")
    return found[0].read_bytes()


def start_supernode(task: FlowerTask, link: int, folder: Path, started: Programs) -> None:
    node = f"data={json.dumps(str(folder / 'rows.csv'))} party={json.dumps(task.own)}"
    options = ["--insecure", "--superlink", f"127.0.0.1:{link}", "--host", "127.0.0.1"]
    options += ["--port", str(task.supernode_port), "--node-config", node]
    started.start("supernode", [str(_BIN / "flower-supernode"), *options], output=task.own != task.server)


def _look(started: Programs) -> None:
    ended = started.ended()
    if ended is not None:
        name, status = ended
        raise FlowerFailed(f"flower-{name} ended with status {status}\n{started.tail(name)}".rstrip())


def _environment(folder: Path) -> dict[str, str]:
    return programs.environment(
        PATH=f"{_BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        HOME=str(folder),
        FLWR_HOME=str(folder / "flwr"),
        FLWR_TELEMETRY_ENABLED="0",
        FLWR_DISABLE_UPDATE_CHECK="1",
        NO_COLOR="1",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
