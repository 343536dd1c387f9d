"""Engines that call their partner through the gateways all the time, and tell the test what came back.

Each serves on its port and calls the engine of the other party about twenty times a second, by the name and in the way a
real engine does. A report says what all calls since the last report came to. An engine reaches nothing of the machine's
network, so test and engines meet at a Unix socket in a directory that the engines' image makes visible.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs_kit import PATIENCE, Net, app_image, until

from coterie.kube.agent.images.store import ImageStore

TALKER = "talker"
_IMAGE = "coterie-test/talker"
_CONFIG = json.dumps(
    {
        "task": "{{.TASK_ID}}",
        "domain": "{{.KUSCIA_DOMAIN_ID}}",
        "parties": "{{.TASK_CLUSTER_DEFINE}}",
        "ports": "{{.ALLOCATED_PORTS}}",
    }
)
_SCRIPT = """
import collections, http.client, http.server, json, os, socket, threading, time
config = json.load(open("task.conf"))
port = json.loads(config["ports"])["ports"][0]["port"]
(partner,) = [
    service["endpoints"][0].partition(":")[0]
    for party in json.loads(config["parties"])["parties"]
    if party["name"] != config["domain"]
    for service in party["services"]
]

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
    def log_message(self, *words):
        pass

threading.Thread(target=http.server.ThreadingHTTPServer(("", port), Handler).serve_forever, daemon=True).start()
results = collections.deque()

def call():
    try:
        line = http.client.HTTPConnection(partner, 80, timeout=5)
        line.request("GET", "/")
        answer = line.getresponse()
        answer.read()
        line.close()
        return str(answer.status)
    except (OSError, http.client.HTTPException) as problem:
        return type(problem).__name__

def poll():
    while True:
        results.append(call())
        time.sleep(0.05)

threading.Thread(target=poll, daemon=True).start()
line = socket.socket(socket.AF_UNIX)
line.connect(PATH)
line.sendall(f"{config['task']} {config['domain']}\\n".encode())
for words in line.makefile():
    if words.strip() != "?":
        os._exit(int(words))
    known = collections.Counter(results.popleft() for _ in range(len(results)))
    users = open("/proc/self/uid_map").read().split()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        trial.connect(("100.64.0.1", 9))
        place = [trial.getsockname()[0], users, os.readlink("/proc/self/ns/net")]
    line.sendall(json.dumps([known, place]).encode() + b"\\n")
os._exit(99)
"""


@dataclass(frozen=True, slots=True)
class Report:
    calls: dict[str, int]
    """By status, or by the name of the error."""
    place: list[Any]
    """The engine's address, range of users and network namespace."""


@dataclass(frozen=True, slots=True)
class Talker:
    task: str
    domain: str
    line: socket.socket


class Talkers:
    """The test's end of the engines. They end at once, unless their job is held."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="talkers-"))
        self._directory.chmod(0o755)
        self._path = str(self._directory / "test.sock")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path)
        os.chmod(self._path, 0o666)
        self._listener.listen(64)
        self._lock = threading.Lock()
        self._known: list[Talker] = []
        self._held: set[str] = set()
        self._thread = threading.Thread(target=self._accept, name="talkers", daemon=True)

    def __enter__(self) -> Talkers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        for each in self._known:
            each.line.close()
        shutil.rmtree(self._directory)

    def register(self, net: Net) -> None:
        """The AppImage, and what it runs on each node. An engine whose test is gone ends badly."""
        for domain in net.domains.values():
            ImageStore(domain.paths.images).add_host(_IMAGE, [sys.executable], visible=[str(self._directory)])
        made = app_image(TALKER, _SCRIPT.replace("PATH", repr(self._path)), sys.executable)
        made["spec"]["image"] = {"name": _IMAGE, "tag": "latest"}
        made["spec"]["configTemplates"] = {"task.conf": _CONFIG}
        net.register(made)

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            words = line.makefile("r").readline().split()
            if len(words) == 2:
                self._greet(Talker(*words, line))
            else:
                line.close()

    def _greet(self, talker: Talker) -> None:
        with self._lock:
            self._known.append(talker)
            held = any(talker.task.startswith(f"{name}-") for name in self._held)
        if not held:
            self._end(talker)

    def _end(self, talker: Talker) -> None:
        with contextlib.suppress(OSError):
            talker.line.sendall(b"0\n")

    def hold(self, job: str) -> None:
        with self._lock:
            self._held.add(job)

    def release(self, job: str) -> None:
        """Engines of this job end well, those that are still to come too."""
        with self._lock:
            self._held.discard(job)
        for each in self.starts(job):
            self._end(each)

    def starts(self, job: str) -> list[Talker]:
        with self._lock:
            return [each for each in self._known if each.task.startswith(f"{job}-")]

    def once_each(self, job: str) -> bool:
        found = [(each.task, each.domain) for each in self.starts(job)]
        return len(set(found)) == len(found)

    def until_started(self, job: str, count: int) -> None:
        until(f"{count} engines of {job} run", lambda: len(self.starts(job)) >= count)

    def report(self, job: str, domain: str) -> Report:
        """Of the newest engine of a job at a party."""
        line = [each.line for each in self.starts(job) if each.domain == domain][-1]
        line.settimeout(PATIENCE)
        line.sendall(b"?\n")
        text = b""
        while not text.endswith(b"\n"):
            piece = line.recv(65536)
            assert piece, f"the engine of {job} at {domain} ended"
            text += piece
        return Report(*json.loads(text))

    def until_talking(self, job: str, *domains: str) -> dict[str, list[Report]]:
        """Until the engines of all these parties have been answered for a while without exception. All reports until then."""
        seen: dict[str, list[Report]] = {domain: [] for domain in domains}

        def talks(domain: str) -> bool:
            time.sleep(0.3)  # enough for some calls
            seen[domain].append(self.report(job, domain))
            calls = seen[domain][-1].calls
            return set(calls) == {"200"} and calls["200"] > 2

        for domain in domains:
            until(f"the engine of {job} at {domain} reaches its partner", lambda domain=domain: talks(domain))
        return seen
