"""Engines that call their partner through the gateways all the time, and tell the test what came back.

Each serves on its port and calls the engine of the other party about twenty times a second, by the name and in the way a
real engine does. A report says what all calls since the last report came to.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any

from jobs_kit import PATIENCE, Object, app_image, until
from puppets import Puppets

TALKER = "talker"
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
line.sendall(f"{config['task']} {config['domain']} talk\\n".encode())
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


class Talkers(Puppets):
    """Puppets that talk; a job's engines are held until the test releases them."""

    def image(self, name: str = TALKER, **more: Any) -> Object:
        made = super().image(name, **more)
        script = _SCRIPT.replace("PATH", repr(self.path))
        own = app_image(name, script, sys.executable, **more)
        own["spec"]["image"] = made["spec"]["image"]
        own["spec"]["configTemplates"] = {"task.conf": _CONFIG}
        return own

    def report(self, job: str, domain: str) -> Report:
        """Of the newest engine of a job at a party."""
        line = self.line(job, domain)
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
