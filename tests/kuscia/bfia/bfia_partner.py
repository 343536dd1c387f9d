"""A partner that speaks BFIA's scheduling interface, written from the description of the protocol alone: it imports nothing of ours.

As a participant it answers requests; as an initiator it builds them. All it knows are paths, JSON and states.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

PREFIX = "/v1/interconn/schedule/"
Json = dict[str, Any]


class BfiaParticipant:
    """`states`: what it says of tasks by component; `refuses`: paths that it answers with code 400; `away`: it answers nothing."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.jobs: dict[str, Json] = {}
        self.tasks: dict[str, tuple[str, str]] = {}
        self.states: dict[str, str] = {}
        self.refuses: dict[str, str] = {}
        self.away = False
        self.loses_answers = 0
        self.log: list[tuple[str, Json]] = []

    def paths(self) -> list[str]:
        return [path for path, _ in self.log]

    def answer(self, method: str, target: str, body: bytes) -> bytes | None:
        """None: nothing comes back."""
        if self.away:
            return None
        where = urlsplit(target)
        assert where.path.startswith(PREFIX)
        path = where.path[len(PREFIX) :]
        if method == "GET":
            asked: Json = {key: values[0] for key, values in parse_qs(where.query).items()}
        else:
            asked = json.loads(body)
        self.log.append((path, asked))
        if path in self.refuses:
            return self._say(400, self.refuses[path])
        found = self._carry_out(path, asked)
        if self.loses_answers:
            self.loses_answers -= 1
            return None
        return found

    def _carry_out(self, path: str, asked: Json) -> bytes:
        if path == "job/create":
            if asked["job_id"] in self.jobs:
                return self._say(400, "Job already exists")
            roles = asked["config"]["role"]
            assert any(self.node in nodes for nodes in roles.values()), "it is not for us"
            versions = {each["version"] for each in (asked["dag"], asked["config"], *asked["dag"]["components"])}
            assert versions == {"2.0.0"}, versions
            names = {each["name"] for each in asked["dag"]["components"]}
            self.jobs[asked["job_id"]] = {"components": names, "started": False, "stopped": False}
            return self._say(200, "success", {"status": "PENDING"})
        if path in ("job/start", "job/stop", "job/status_all"):
            job = self.jobs.get(asked["job_id"])
            if job is None:
                return self._say(400, "job not found")
            if path == "job/status_all":
                found = {task: self._state(name) for task, (of, name) in self.tasks.items() if of == asked["job_id"]}
                return self._say(200, "success", {"status": found})
            job["started" if path == "job/start" else "stopped"] = True
            return self._say(200, "success")
        if path == "task/start":
            job = self.jobs.get(asked["job_id"])
            if job is None or not job["started"] or asked["task_name"] not in job["components"]:
                return self._say(400, "task cannot be started")
            self.tasks[asked["task_id"]] = (asked["job_id"], asked["task_name"])
            return self._say(200, "success")
        if asked["task_id"] not in self.tasks:
            return self._say(400, "task not found")
        if path == "task/stop":
            self.states[self.tasks[asked["task_id"]][1]] = "FAILED"
            return self._say(200, "success")
        assert path == "task/poll"
        return self._say(200, "success", {"status": self._state(self.tasks[asked["task_id"]][1])})

    def _state(self, component: str) -> str:
        return self.states.get(component, "SUCCESS")

    def _say(self, code: int, message: str, data: Json | None = None) -> bytes:
        return json.dumps({"code": code, "msg": message, "data": data or {}}).encode()


Send = Callable[[str, str, dict[str, str], bytes], Awaitable[tuple[int, bytes]]]
"""Method, target, headers, body; status and body."""


class BfiaInitiator:
    def __init__(self, node: str, send: Send) -> None:
        self.node = node
        self._send = send

    async def post(self, path: str, body: Any, **headers: str) -> Json:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json", "x-node-id": self.node, "x-timestamp": "1700000000", **headers}
        return self._read(await self._send("POST", PREFIX + path, sent, content))

    async def status_all(self, job: str) -> Json:
        return self._read(
            await self._send("GET", f"{PREFIX}job/status_all?job_id={job}", {"x-node-id": self.node}, b"")
        )

    def _read(self, answered: tuple[int, bytes]) -> Json:
        status, body = answered
        assert status == 200, (status, body)
        found: Json = json.loads(body)
        assert set(found) == {"code", "msg", "data"}
        return found


def create_body(job: str, initiator: str, other: str, components: tuple[str, ...] = ("psi",), **params: Json) -> Json:
    """Each component needs the one before it. The initiator is the guest, the other the host."""
    dag = [
        {
            "code": "engine",
            "name": name,
            "module_name": name,
            "version": "2.0.0",
            "input": [{"type": "dataset", "key": f"{components[place - 1]}.data"}] if place else [],
            "output": [{"type": "dataset", "key": "data"}],
        }
        for place, name in enumerate(components)
    ]
    given = {name: params.get(name, {"column": "id"}) for name in components}
    return {
        "job_id": job,
        "flow_id": f"flow-{job}",
        "dag": {"version": "2.0.0", "components": dag},
        "config": {
            "version": "2.0.0",
            "role": {"guest": [initiator], "host": [other], "arbiter": []},
            "initiator": {"role": "guest", "node_id": initiator},
            "job_params": {},
            "task_params": {"guest": {"0": given}, "host": {"0": given}, "common": {}},
        },
    }
