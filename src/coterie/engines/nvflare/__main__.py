"""`python -m coterie.engines.nvflare [--job DIRECTORY] CONFIG`: one party of a job of NVFlare.

    server   the server of NVFlare, who submits the job, and a client if it has rows     own table ──data mesh──> rows.csv
    others   a client, whose job finds the rows by the environment variable COTERIE_ROWS

0  done      1  failed: data, partner, job      2  the configuration cannot be used
`--job` is for images that bring their own: which code runs at a party is for that party to say, never for a task.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from coterie.engines.launching import own_table, programs
from coterie.engines.launching.configuration import BadConfig
from coterie.engines.launching.http_relay import SOURCE_HEADER, HttpCall, HttpReply, NotReached, RelayTarget
from coterie.engines.launching.own_table import TableUnreadable
from coterie.engines.launching.programs import Programs, fail
from coterie.engines.nvflare import jobs, passage, startup
from coterie.engines.nvflare.relay import FrameRelay, RelayRules
from coterie.engines.nvflare.startup import BadCertificateRequest, TaskAuthority
from coterie.engines.nvflare.task import SERVER_SITE, NvflareTask, parse

APPS = Path(__file__).parent / "apps"
COME_ALONG = ("logistic",)
START_SECONDS = 180.0
"""For all partners to come."""
LOST_SECONDS = 60.0
"""For a partner that was there to come back."""
STATE_PATH, CERTIFICATE_PATH = "/coterie/run", "/coterie/certificate"
RUNNING, COMPLETED, FAILED = "running", "completed", "failed"
_PAUSE = 1.0


class NvflareFailed(Exception):
    """The sentence goes to the log."""


def main(words: list[str]) -> int:
    own_job = ""
    if words[:1] == ["--job"] and len(words) == 3:
        own_job, words = words[1], words[2:]
    if len(words) != 1:
        return fail("usage: python -m coterie.engines.nvflare [--job DIRECTORY] CONFIG", 2)
    folder = Path(tempfile.mkdtemp(prefix="nvflare-"))
    try:
        task = parse(Path(words[0]).read_text(encoding="utf-8"))
        jobs.prepared(chosen_job(task, own_job), folder / "job", task.values, task.owners)
        for site in (*([SERVER_SITE] if task.server == task.own else []), *([task.own] if task.table else [])):
            jobs.app_of(folder / "job", site)
    except (BadConfig, OSError, UnicodeDecodeError) as problem:
        shutil.rmtree(folder, ignore_errors=True)
        return fail(str(problem), 2)
    try:
        with Programs(folder, _environment(task, folder)) as started:
            run(task, folder, started)
        return 0
    except (NvflareFailed, TableUnreadable, OSError) as problem:
        return fail(f"task {task.id} failed at {task.own}: {problem}", 1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def chosen_job(task: NvflareTask, own: str) -> Path:
    if own:
        if task.app:
            raise BadConfig("task_input_config: app is not for images that bring their own")
        if not (Path(own) / "meta.json").is_file():
            raise BadConfig(f"{own} is no job of NVFlare: there is no meta.json")
        return Path(own).absolute()
    if task.app not in COME_ALONG:
        raise BadConfig(f"task_input_config: app is one of {', '.join(COME_ALONG)}, or the image brings its own")
    return APPS / task.app


def run(task: NvflareTask, folder: Path, started: Programs) -> None:
    if task.table:
        own_table.write(folder / "rows.csv", own_table.fetch(task.table, task.columns), task.columns)
    if task.server == task.own:
        serve(task, folder, started)
    else:
        take_part(task, folder, started)


class ServerSide:
    """What the launchers of the owners ask that of the server."""

    def __init__(self, owners: tuple[str, ...], authority: TaskAuthority) -> None:
        self._owners, self._authority = owners, authority
        self._lock = threading.Lock()
        self._given: dict[str, tuple[bytes, bytes]] = {}
        self.informed: set[str] = set()
        """Those that know how the job ended."""
        self.state = RUNNING
        self._last_calls: dict[str, float] = {}

    def lost(self) -> str:
        """An owner that asked before, and no longer does."""
        late = time.monotonic() - LOST_SECONDS
        with self._lock:
            return next((owner for owner, last in sorted(self._last_calls.items()) if last < late), "")

    def source(self, source: str) -> str:
        return source if source in self._owners else ""

    def answer(self, call: HttpCall) -> HttpReply:
        if call.source not in self._owners:
            return HttpReply(403)
        with self._lock:
            self._last_calls[call.source] = time.monotonic()
        if (call.method, call.path) == ("GET", STATE_PATH):
            state = self.state
            if state != RUNNING:
                self.informed.add(call.source)
            return HttpReply(200, state.encode())
        if (call.method, call.path) == ("POST", CERTIFICATE_PATH):
            return self.certificate(call.source, call.body)
        return HttpReply(404)

    def certificate(self, owner: str, request: bytes) -> HttpReply:
        """One for each: several would count as several owners. The same again, where an answer was lost."""
        with self._lock:
            try:
                given = self._given.get(owner) or (request, self._authority.certificate(owner, request))
            except BadCertificateRequest as problem:
                return HttpReply(400, str(problem).encode())
            if given[0] != request:
                return HttpReply(403)
            self._given[owner] = given
        answer = {"certificate": given[1].decode(), "root": self._authority.root.decode()}
        return HttpReply(200, json.dumps(answer).encode())


def serve(task: NvflareTask, folder: Path, started: Programs) -> None:
    authority = TaskAuthority()
    side = ServerSide(task.owners, authority)
    startup.write_server(folder / "server", authority, task.server_port, task.admin_port)
    startup.write_administrator(folder / "administrator", authority, task.admin_port)
    _start(started, "server", folder, "secure_train=true", "config_folder=config", f"org={startup.PROJECT}")
    ports = (task.server_port, task.admin_port)
    if not programs.until(lambda: bool(started.ended()) or all(map(programs.listens, ports)), START_SECONDS):
        raise NvflareFailed("the server of NVFlare does not start")
    _look(started)
    target = f"127.0.0.1:{task.server_port}"
    at_server, at_client = passage.refused_at_server, passage.refused_at_client
    FrameRelay("", task.fed_port, RelayRules(target, side.source, at_server, at_client, calls=side.answer))
    if task.table:
        own = FrameRelay("127.0.0.1", 0, RelayRules(target, lambda _: task.own, at_server, at_client))
        reply = side.certificate(task.own, startup.key_and_request(folder / "client"))
        start_client(task, reply.body, own.port, folder, started)
    try:
        run_job(task, side, folder, started)
        side.state = COMPLETED
    except NvflareFailed:
        side.state = FAILED
        raise
    finally:
        others = {*task.owners} - {task.own}
        programs.until(lambda: side.informed >= others, LOST_SECONDS if side.state == COMPLETED else _PAUSE * 5)
    if not side.informed >= others:
        raise NvflareFailed(f"{', '.join(sorted(others - side.informed))} did not ask how the job ended")


def run_job(task: NvflareTask, side: ServerSide, folder: Path, started: Programs) -> None:
    shutil.copytree(folder / "job", folder / "submitted")  # NVFlare writes signatures into it
    words = [sys.executable, "-P", "-m", "coterie.engines.nvflare.submit"]
    words += [str(folder / "administrator"), str(folder / "submitted"), *task.owners]
    process = started.start("submit", words)
    began = time.monotonic()
    missing = {*task.owners}
    while process.poll() is None:
        ended = started.ended()
        if ended is not None and ended[0] != "submit":
            _look(started)
        if missing:
            missing -= present(folder / "administrator")
            if time.monotonic() - began > START_SECONDS:
                names = ", ".join(sorted(missing))
                raise NvflareFailed(f"the client of {names} has not come within {START_SECONDS:.0f} s")
        elif lost := side.lost():
            raise NvflareFailed(f"{lost} has not called for {LOST_SECONDS:.0f} s")
        time.sleep(0.2)
    started.forget("submit")
    if process.returncode:
        raise NvflareFailed("the job has not completed; the lines above tell why")


def present(administrator: Path) -> set[str]:
    """The clients that NVFlare's server has seen."""
    try:
        return {*(administrator / "clients").read_text().split(",")}
    except FileNotFoundError:
        return set()


def take_part(task: NvflareTask, folder: Path, started: Programs) -> None:
    server = RelayTarget(task.endpoint, partner=True)
    answer = ask(task, server, CERTIFICATE_PATH, startup.key_and_request(folder / "client"))
    rules = RelayRules(
        task.endpoint, lambda _: task.own, passage.refused_at_server, passage.refused_at_client, partner=task.own
    )
    start_client(task, answer, FrameRelay("127.0.0.1", 0, rules).port, folder, started)
    refused = folder / "client" / "refused"
    while True:
        state = ask(task, server, STATE_PATH)
        if refused.exists():
            raise NvflareFailed(
                f"the app that {task.server} sends is not the one of this party's image: {refused.read_text()} differs"
            )
        _look(started)
        if state == COMPLETED.encode():
            return
        if state == FAILED.encode():
            raise NvflareFailed(f"the job failed at {task.server}; its log tells why")
        time.sleep(_PAUSE)


def ask(task: NvflareTask, server: RelayTarget, path: str, body: bytes = b"") -> bytes:
    """What the launcher of the server answers."""
    seconds, reason = START_SECONDS if body else LOST_SECONDS, ""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            # The header is written by the gateways; without gateways, in tests, it is ours.
            reply = server.call("POST" if body else "GET", path, body, {SOURCE_HEADER: task.own})
            if reply.status == 200:
                return reply.body
            reason = f"HTTP status {reply.status}"
        except NotReached as problem:
            reason = str(problem)
        time.sleep(_PAUSE)
    raise NvflareFailed(f"{task.server} cannot be reached: {reason}")


def start_client(task: NvflareTask, answer: bytes, port: int, folder: Path, started: Programs) -> None:
    try:
        found = json.loads(answer)
        certificate, root = str(found["certificate"]).encode(), str(found["root"]).encode()
    except (ValueError, LookupError, TypeError) as problem:
        raise NvflareFailed(f"{task.server} gives no certificate") from problem
    own_app = jobs.app_of(folder / "job", task.own)
    startup.write_client(folder / "client", certificate, root, port, own_app)
    options = (f"uid={task.own}", "secure_train=true", "config_folder=config", f"org={startup.PROJECT}")
    _start(started, "client", folder, *options, output=task.own != task.server)


def _start(started: Programs, which: str, folder: Path, *options: str, output: bool = True) -> None:
    words = [sys.executable, "-P", "-u", "-m", f"nvflare.private.fed.app.{which}.{which}_train"]
    words += ["-m", str(folder / which), "-s", f"fed_{which}.json", "--set", *options]
    started.start(which, words, output=output)


def _look(started: Programs) -> None:
    ended = started.ended()
    if ended is not None:
        name, status = ended
        raise NvflareFailed(f"the {name} of NVFlare ended with status {status}\n{started.tail(name)}".rstrip())


def _environment(task: NvflareTask, folder: Path) -> dict[str, str]:
    found = programs.environment(
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}", HOME=str(folder)
    )
    return {**found, "COTERIE_ROWS": str(folder / "rows.csv")} if task.table else found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
