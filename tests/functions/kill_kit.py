"""Processes of functions that are killed: gateways, the functions process (benchmarks/functions_host.py) and actors, on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

from coterie.http.plain_client import HttpFailure, Pool

TOKEN = "kill-token"
ROOT = Path(__file__).parents[2]
_PASS_ON = """
import os
from serverless import Invoke

def action(req):
    with open({effects!r}, "a") as file:
        file.write(f"{{req.id}}\\n")
    return Invoke({following!r}, params=dict(n=req.param("n")), body=req.body())
"""
_ANSWER = """
from serverless import Response

def action(req):
    with open({effects!r}, "a") as file:
        file.write(f"{{req.id}}\\n")
    return Response(f"answer {{req.param('n')}}")
"""


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class KilledProcess:
    """A program that is started again when it was killed."""

    def __init__(self, arguments: list[str], environment: dict[str, str], log: Path) -> None:
        self._arguments = arguments
        self._environment = {**os.environ, **environment, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
        self._log = log
        self.kills = 0
        self._lock = threading.Lock()
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as out:
            return subprocess.Popen(
                [sys.executable, *self._arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def kill_and_start(self) -> None:
        with self._lock:  # two answers may choose the same process at the same time
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.kills += 1
            self.process = self._start()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class KilledFunctions:
    """A chain of three actions, two actors each, and two gateways."""

    def __init__(self, folder: Path, actors_each: int = 2) -> None:
        self.folder = folder
        self.http_ports = free_ports(2)
        link_ports = free_ports(2)
        self.gateways: list[KilledProcess] = []
        self.actors: list[KilledProcess] = []
        names = ["first", "second", "third"]
        actions = []
        for name, following in zip(names, [*names[1:], ""], strict=True):
            code = folder / name
            code.mkdir()
            text = _PASS_ON if following else _ANSWER
            (code / "action.py").write_text(text.format(following=following, effects=str(self.effects(name))))
            ports = free_ports(actors_each)
            for port in ports:
                environment = {
                    "COTERIE_ACTION": name,
                    "COTERIE_ACTION_NEXT": following,
                    "COTERIE_ACTION_CONCURRENCY": "4",
                    "COTERIE_ACTOR_TOKEN": TOKEN,
                    "COTERIE_ACTOR_HOST": "127.0.0.1",
                    "COTERIE_ACTOR_PORT": str(port),
                    "COTERIE_ACTOR_CODE": str(code),
                }
                log = folder / f"{name}.log"
                self.actors.append(KilledProcess(["-m", "coterie.engines.actor"], environment, log))
            actions.append(
                {
                    "name": name,
                    "next": [following] if following else [],
                    "concurrency": 4,
                    "actors": ports,
                    "retries": 50,
                }
            )
        for http_port, link_port in zip(self.http_ports, link_ports, strict=True):
            environment = {
                "COTERIE_LINK_TOKEN": TOKEN,
                "COTERIE_GATEWAY_ADDRESS": "127.0.0.1",
                "COTERIE_GATEWAY_PORT": str(http_port),
                "COTERIE_GATEWAY_LINK_PORT": str(link_port),
            }
            self.gateways.append(
                KilledProcess(["-m", "coterie.functions.gateway"], environment, folder / "gateway.log")
            )
        specification = {
            "directory": str(folder),
            "token": TOKEN,
            "gateways": [{"uid": f"g{number}", "port": port} for number, port in enumerate(link_ports)],
            "actions": actions,
            "routes": [{"path": "/first", "action": "first"}],
        }
        (folder / "host.json").write_text(json.dumps(specification))
        self.host = KilledProcess(
            ["-m", "benchmarks.functions_host", str(folder / "host.json")], {}, folder / "host.log"
        )

    def effects(self, name: str) -> Path:
        return self.folder / f"{name}.effects"

    def end(self) -> None:
        for process in (*self.gateways, *self.actors, self.host):
            process.end()

    async def kill_one(self, random: Random) -> None:
        chosen = random.choice([self.host, random.choice(self.gateways), random.choice(self.actors)])
        await asyncio.to_thread(chosen.kill_and_start)

    async def call(self, pools: list[Pool], number: int) -> tuple[int, bytes, int]:
        """As a careful client: it repeats with its key until there is an answer. Status, body, attempts."""
        for attempt in range(200):
            pool = pools[(number + attempt) % len(pools)]
            try:
                async with asyncio.timeout(20):
                    headers = {"Host": "gateway", "Idempotency-Key": f"call {number}", "Coterie-Timeout": "15"}
                    response = await pool.request("POST", f"/first?n={number}", headers, b"body")
                    body = await response.read()
            except (HttpFailure, TimeoutError):
                await asyncio.sleep(0.05)
                continue
            if response.status == 200:
                return response.status, body, attempt
            if response.status not in (503, 504):
                return response.status, body, attempt
            await asyncio.sleep(0.1)
        return 0, b"", attempt
