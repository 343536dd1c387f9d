"""`python -m coterie.engines.serving FILE`: answer callers until told to end.

    GET /         who answers: service, party, pod, greeting
    GET /health   200 when calls may come, 503 before and after that
    GET /ask      what each partner's service answers, asked through the gateway; 502 when one does not

Told to end (SIGTERM) it is not healthy any more but goes on answering for a while: those who send calls here hear of it
a moment later. A new version can so take over without a call being lost.

0  ended as told      2  the configuration cannot be used
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from coterie.engines.serving.settings import BadConfig, Settings, read

DEFAULT_FILE = "kuscia/serving-config.conf"
_ASK_SECONDS = 5.0
_IDLE_SECONDS = 60.0
_LARGEST = 1 << 20


class Service(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, settings: Settings) -> None:
        super().__init__(("", settings.port), Handler)
        self.settings = settings
        self.began = time.monotonic()
        self.ending = threading.Event()

    @property
    def healthy(self) -> bool:
        return not self.ending.is_set() and time.monotonic() - self.began >= self.settings.warmup

    def end_later(self, *_: Any) -> None:
        """Of SIGTERM."""
        if not self.ending.is_set():
            self.ending.set()
            threading.Timer(self.settings.drain, self.shutdown).start()

    def about(self) -> dict[str, str]:
        known = self.settings
        pod = os.environ.get("HOSTNAME", "")
        return {"serving": known.id, "party": known.party, "role": known.role, "pod": pod, "greeting": known.greeting}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    server: Service

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/":
            self._answer(200, self.server.about())
        elif path == "/health":
            self._answer(200 if self.server.healthy else 503, {"ready": self.server.healthy})
        elif path == "/ask":
            answers = {name: ask(endpoint) for name, endpoint in self.server.settings.partners.items()}
            self._answer(502 if any("error" in each for each in answers.values()) else 200, answers)
        else:
            self._answer(404, {"error": "there is /, /health and /ask"})

    def _answer(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.server.ending.is_set():
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Calls are not worth a line each."""


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """A partner's answer leads nowhere else: services of our own domain answer us, and not the partner."""

    def redirect_request(self, *_: object) -> None:
        return None


_opener = urllib.request.build_opener(NoRedirects)


def ask(endpoint: str) -> dict[str, Any]:
    """Where `http_proxy` is set the call goes there, as with any other program."""
    try:
        with _opener.open(f"http://{endpoint}/", timeout=_ASK_SECONDS) as answer:
            answer_body = json.loads(answer.read(_LARGEST))
    except (OSError, ValueError) as problem:
        return {"error": str(problem)}
    return answer_body if isinstance(answer_body, dict) else {"error": "not an answer of this service"}


def main(words: list[str]) -> int:
    try:
        settings = read(words[0] if words else DEFAULT_FILE)
    except BadConfig as problem:
        print(problem, file=sys.stderr, flush=True)
        return 2
    service = Service(settings)
    signal.signal(signal.SIGTERM, service.end_later)
    print(f"{settings.party} serves {settings.id} on port {settings.port}", flush=True)
    service.serve_forever(poll_interval=0.1)
    service.server_close()
    print(f"{settings.party} has ended", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
