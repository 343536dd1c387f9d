"""A node of another vendor as a process: BFIA's scheduling interface and message queue, written from the description of the protocol
alone. It imports nothing of ours, and knows nothing of Kuscia's headers.

    python bfia_vendor.py NODE HOST:PORT OUT_HOST:PORT STATE_FILE

    partner ══mutual TLS══> its gateway ──> HOST:PORT   /v1/interconn/schedule/...   jobs and tasks that others begin
                                                        /v1/interconn/chan/invoke    messages for its engines
    its gateway at OUT_HOST:PORT ══> partner            requests and messages of its own
    the test ──> HOST:PORT /control/...                 what it shall do; what was said (`/control/log`)

Its engine: an echo. It takes the messages of a session, topic `there`, and sends each back in upper case under topic `back`. It says `RUNNING`
until it has sent `ends_after` messages back (or until it is told how it ends). All it knows of jobs lies in STATE_FILE: it may be killed.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
from collections import defaultdict, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bfia_partner import PREFIX, BfiaParticipant

CHANNEL = "/v1/interconn/chan/"
Json = dict[str, Any]


def outbound(payload: bytes = b"", code: str = "E0000000000", message: str = "") -> bytes:
    """TransportOutbound{1 payload, 2 code, 3 message} by hand."""

    def field(number: int, value: bytes) -> bytes:
        size, length = len(value), b""
        while size > 127:
            length += bytes([size & 127 | 128])
            size >>= 7
        return bytes([number << 3 | 2]) + length + bytes([size]) + value if value else b""

    return field(1, payload) + field(2, code.encode()) + field(3, message.encode())


class Vendor:
    def __init__(self, node: str, out: str, file: Path) -> None:
        self.node, self.out, self.file = node, out, file
        self.lock = threading.RLock()
        self.participant = BfiaParticipant(node)
        self.messages: defaultdict[tuple[str, str], deque[bytes]] = defaultdict(deque)
        self.said: list[Json] = []
        self.plan: dict[str, Json] = {}
        """By component: `ends_after` messages, or `state`."""
        if file.exists():
            kept = json.loads(file.read_text())
            self.participant.jobs = {name: {**job, "components": set(job["components"])} for name, job in kept["jobs"].items()}  # fmt: skip
            self.participant.tasks = {name: tuple(each) for name, each in kept["tasks"].items()}
            self.plan, self.said = kept["plan"], kept["said"]
            self.participant.states = kept["states"]

    def keep(self) -> None:
        told = self.participant
        jobs = {name: {**job, "components": sorted(job["components"])} for name, job in told.jobs.items()}
        kept = {"jobs": jobs, "tasks": told.tasks, "plan": self.plan, "states": told.states, "said": self.said}
        passing = self.file.with_suffix(".new")
        passing.write_text(json.dumps(kept))
        passing.replace(self.file)

    # What partners ask.

    def scheduled(self, method: str, target: str, headers: Json, body: bytes) -> bytes | None:
        with self.lock:
            answer = self.participant.answer(method, target, body)
            asked = json.loads(body) if body else {}
            said = {
                "from": headers.get("x-node-id", ""),
                "to": self.node,
                "method": method,
                "target": target,
                "body": asked,
            }
            self.said.append({**said, "answer": json.loads(answer) if answer else None})
            self.keep()
        if target == PREFIX + "task/start" and answer and json.loads(answer)["code"] == 200:
            self.start_engine(asked["task_id"], asked["task_name"])
        return answer

    def start_engine(self, task: str, component: str) -> None:
        plan = self.plan.get(component, {})
        if "ends_after" in plan:
            self.participant.states.setdefault(component, "RUNNING")
            threading.Thread(target=self.engine, args=(task, component, plan), daemon=True).start()
        elif "state" in plan:
            self.participant.states.setdefault(component, plan["state"])

    def resume(self) -> None:
        for task, (_, component) in self.participant.tasks.items():
            if self.participant.states.get(component) == "RUNNING":
                self.start_engine(task, component)

    def engine(self, task: str, component: str, plan: Json) -> None:
        session, done = f"session_{task}", 0
        while done < plan["ends_after"]:
            with self.lock:
                body = self.messages[session, "there"].popleft() if self.messages[session, "there"] else None
            if body is None:
                time.sleep(0.02)
                continue
            self.push(plan["partner"], session, "back", body.upper())
            done += 1
        with self.lock:
            self.participant.states[component] = "SUCCESS"
            self.keep()

    def push(self, target: str, session: str, topic: str, body: bytes) -> tuple[int, bytes]:
        headers = {
            "x-ptp-version": "2",
            "x-ptp-tech-provider-code": "vendor",
            "x-ptp-trace-id": "1",
            "x-ptp-token": "t",
        }
        headers |= {"x-ptp-source-node-id": self.node, "x-ptp-target-node-id": target}
        return self.send(
            "POST", CHANNEL + "invoke", {**headers, "x-ptp-session-id": session, "x-ptp-topic": topic}, body
        )

    # What it asks itself.

    def send(self, method: str, target: str, headers: Json, body: bytes) -> tuple[int, bytes]:
        link = http.client.HTTPConnection(self.out, timeout=40)
        try:
            link.request(method, target, body or None, headers)
            answer = link.getresponse()
            return answer.status, answer.read()
        finally:
            link.close()

    def ask(self, method: str, path: str, body: Json | None) -> Json:
        """A request of an initiator."""
        headers = {"x-node-id": self.node, "x-timestamp": str(int(time.time())), "content-type": "application/json"}
        status, answer = self.send(
            method, PREFIX + path, headers, json.dumps(body).encode() if body is not None else b""
        )
        found = {"status": status, "answer": json.loads(answer) if status == 200 else answer.decode(errors="replace")}
        with self.lock:
            said = {"from": self.node, "to": "", "method": method, "target": PREFIX + path, "body": body or {}}
            self.said.append({**said, "answer": found["answer"]})
            self.keep()
        return found

    def control(self, path: str, body: Json) -> Json:
        if path == "/control/plan":
            with self.lock:
                self.plan |= body
                self.keep()
            return {}
        if path == "/control/states":
            with self.lock:
                self.participant.states |= body
                self.keep()
            return {}
        if path == "/control/own":
            # A job that it begins: how its own part is, for whoever asks.
            with self.lock:
                self.participant.jobs[body["job"]] = {
                    "components": body["components"],
                    "started": True,
                    "stopped": False,
                }
                self.participant.tasks[body["task"]] = (body["job"], body["component"])
                self.keep()
            self.start_engine(body["task"], body["component"])
            return {}
        if path == "/control/ask":
            return self.ask(body["method"], body["path"], body.get("body"))
        if path == "/control/push":
            status, answer = self.push(body["target"], body["session"], body["topic"], body["body"].encode())
            return {"status": status, "answer": answer.hex()}
        with self.lock:
            told = self.participant
            return {"said": self.said, "tasks": told.tasks, "states": told.states, "jobs": sorted(told.jobs)}


def handler(vendor: Vendor) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {key.lower(): value for key, value in self.headers.items()}
            if self.path.startswith("/control/"):
                self.answer(200, json.dumps(vendor.control(self.path, json.loads(body or b"{}"))).encode())
            elif self.path.startswith(PREFIX):
                found = vendor.scheduled(self.command, self.path, headers, body)
                self.answer(200 if found is not None else 503, found or b"")
            elif self.path.partition("?")[0] == CHANNEL + "invoke":
                with vendor.lock:
                    vendor.messages[headers["x-ptp-session-id"], headers["x-ptp-topic"]].append(body)
                self.answer(200, outbound(), "application/proto")
            else:
                self.answer(404, b"")

        def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True


def main(node: str, here: str, out: str, file: str) -> None:
    vendor = Vendor(node, out, Path(file))
    host, _, port = here.rpartition(":")
    server = Server((host, int(port)), handler(vendor))
    vendor.resume()
    print("ready", os.getpid(), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
