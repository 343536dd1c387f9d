"""The sample service as a process: what it reads, what it answers, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.engines.serving import settings
from coterie.kuscia.engine.builtin_appimages import SAMPLE_SERVING
from coterie.kuscia.engine.templates import template

PATIENCE = 20.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def config(port: int, partners: dict[str, str], **wishes: Any) -> str:
    """As the agent renders it from the AppImage's own template."""
    others = [
        {"name": name, "role": "", "services": [{"portName": "serve", "endpoints": [endpoint]}]}
        for name, endpoint in partners.items()
    ]
    own = {"name": "alice", "role": "", "services": [{"portName": "serve", "endpoints": ["s-serve.alice.svc"]}]}
    values = {
        "SERVING_ID": "s",
        "INPUT_CONFIG": json.dumps(wishes),
        "CLUSTER_DEFINE": json.dumps({"parties": [*others, own], "selfPartyIdx": len(others), "selfEndpointIdx": 0}),
        "ALLOCATED_PORTS": json.dumps({"ports": [{"name": "serve", "port": port, "scope": "Cluster"}]}),
    }
    (text,) = SAMPLE_SERVING["spec"]["configTemplates"].values()
    return template.render(template.parse(text), values)


@contextmanager
def running(folder: Path, text: str) -> Iterator[subprocess.Popen[str]]:
    file = folder / f"{abs(hash(text))}.conf"
    file.write_text(text)
    environment = {
        "PYTHONPATH": str(Path(coterie.__file__).parents[1]),
        "HOSTNAME": "pod-1",
        "PATH": os.environ["PATH"],
    }
    command = [sys.executable, "-S", "-P", "-m", "coterie.engines.serving", str(file)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None and "serves s on port" in process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def get(port: int, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.loads(refused.read())


def until(port: int, path: str, status: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while get(port, path)[0] != status:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_answers_and_asks_its_partners(tmp_path: Path) -> None:
    here, there = free_port(), free_port()
    with (
        running(tmp_path, config(there, {}, greeting="good day")),
        running(tmp_path, config(here, {"bob": f"127.0.0.1:{there}"})),
    ):
        about = {"serving": "s", "party": "alice", "role": "", "pod": "pod-1", "greeting": "hello"}
        assert get(here, "/") == (200, about)
        assert get(here, "/health?x=1") == (200, {"ready": True})
        assert get(here, "/ask") == (200, {"bob": {**about, "greeting": "good day"}})
        assert get(here, "/other")[0] == 404


def test_a_partner_that_does_not_answer_is_told_of(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, config(port, {"bob": f"127.0.0.1:{free_port()}"})):
        status, told = get(port, "/ask")
        assert status == 502 and "refused" in told["bob"]["error"]


def test_a_partner_cannot_lead_it_to_our_own_services(tmp_path: Path) -> None:
    """Whoever may call `/ask` would read what they answer."""

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{secret}/")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    port, secret = free_port(), free_port()
    partner = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=partner.serve_forever, daemon=True).start()
    try:
        with (
            running(tmp_path, config(secret, {}, greeting="secret")),
            running(tmp_path, config(port, {"bob": f"127.0.0.1:{partner.server_address[1]}"})),
        ):
            status, told = get(port, "/ask")
            assert status == 502 and "302" in told["bob"]["error"] and "secret" not in str(told)
    finally:
        partner.shutdown()
        partner.server_close()


def test_it_is_healthy_after_its_warmup_and_goes_on_answering_while_it_ends(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, config(port, {}, warmup=0.5, drain=0.5)) as process:
        assert get(port, "/health") == (503, {"ready": False})
        assert get(port, "/")[0] == 200
        until(port, "/health", 200)
        process.send_signal(signal.SIGTERM)
        until(port, "/health", 503)
        assert get(port, "/")[0] == 200
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "not a JSON object"),
        (config(1, {}, warmup=-1), "warmup is a number of seconds"),
        (json.dumps({"cluster_def": '{"parties": []}', "allocated_ports": '{"ports": []}'}), "lacks something"),
        (config(1, {}).replace("serve", "other"), "no port named serve"),
    ],
    ids=["list", "warmup", "parties", "port"],
)
def test_a_bad_configuration_is_refused_in_a_sentence(text: str, words: str) -> None:
    with pytest.raises(settings.BadConfig, match=words):
        settings.parse(text)
