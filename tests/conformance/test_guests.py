"""Other people's clients, each with a small real programme, against a real server over TLS.

The programmes lie in `guests/` and run as processes of their own, as their users run them: their warnings and their
loops are theirs. Each tells the steps it took; a step that fails ends the programme with its trace.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from server_process import ApiFailed, ServerProcess

from coterie.base import pki

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(120)]

GUESTS = Path(__file__).with_name("guests")
STEPS = {
    "official.py": "version_and_discovery create_read_list change workloads autoscaling watching informer custom_objects "
    "dynamic_client from_yaml access election services clean_up",
    "official_async.py": "reads_and_writes watches anything clean_up",
    "kr8s_guest.py": "identity objects scaling_and_owners custom_resources asynchronously clean_up",
    "lightkube_guest.py": "typed_objects patches applies workloads custom_resources watches asynchronously clean_up",
}
_SOON = 20.0


def environment(server: ServerProcess, home: Path) -> dict[str, str]:
    """KUBECONFIG names the server; no cache or setting of this machine is seen."""
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "LANG", "LC_ALL", "PYTHONPATH")}
    return {**kept, "KUBECONFIG": str(server.next_kubeconfig()), "HOME": str(home), "PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize("programme", STEPS)
def test_a_guest_is_at_home(server: ServerProcess, tmp_path: Path, programme: str) -> None:
    done = subprocess.run(
        [sys.executable, str(GUESTS / programme)],
        env=environment(server, tmp_path),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    told = [line.removeprefix("did ") for line in done.stdout.splitlines() if line.startswith("did ")]
    assert (done.returncode, told) == (0, STEPS[programme].split()), done.stdout + done.stderr


# -- an operator ------------------------------------------------------------------------------------------------------

SPACE = "kopf"
GROUP = "kopf.example"
WIDGETS = f"/apis/{GROUP}/v1/namespaces/{SPACE}/widgets"
MAPS = f"/api/v1/namespaces/{SPACE}/configmaps"
MERGE = "application/merge-patch+json"


def soon(look: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + _SOON
    while not (found := look()):
        assert time.monotonic() < deadline, f"not seen within {_SOON:.0f} s: {what}"
        time.sleep(0.05)
    return found


def found(server: ServerProcess, path: str) -> Any:
    """The object, or None."""
    try:
        return server.api("GET", path)
    except ApiFailed as refusal:
        if refusal.status != 404:
            raise
        return None


class Operator:
    """`kopf run` beside a server; stopped as a container would be."""

    def __init__(
        self, server: ServerProcess, home: Path, programme: str = "kopf_operator.py", space: str = SPACE, **more: str
    ) -> None:
        """`more`: of its environment."""
        self._log = home / "kopf.log"
        command = [sys.executable, "-m", "kopf", "run", "--verbose", "-n", space, str(GUESTS / programme)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env={**environment(server, home), **more}, stdout=log, stderr=log)

    def stop(self) -> str:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return self._log.read_text()


def test_an_operator_does_its_work(server: ServerProcess, tmp_path: Path) -> None:
    sys.path.insert(0, str(GUESTS))
    try:
        from widgets import definition, widget  # noqa: PLC0415 - a module of the guests, not of the tests
    finally:
        sys.path.remove(str(GUESTS))
    server.api("POST", "/api/v1/namespaces", {"metadata": {"name": SPACE}})
    server.api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition(GROUP))
    server.api("POST", MAPS, {"metadata": {"name": "ledger"}})
    operator = Operator(server, tmp_path)
    try:
        server.api("POST", WIDGETS, widget(GROUP, "w", size=2))
        status = soon(lambda: _status_with(server, "created", "second", "ticks"), "the status of the handlers")
        assert status["created"] == {"map": "w-map"} and status["second"] == "after one more try"
        one = server.api("GET", f"{WIDGETS}/w")
        assert one["metadata"]["finalizers"] == [f"{GROUP}/finalizer"]
        owned = server.api("GET", f"{MAPS}/w-map")
        assert (
            owned["data"] == {"size": "2"} and owned["metadata"]["ownerReferences"][0]["uid"] == one["metadata"]["uid"]
        )
        soon(lambda: "Made" in _reasons(server), "the operator's event")
        soon(lambda: server.api("GET", f"{WIDGETS}/w")["status"].get("ticks") == 2, "the timer")

        server.api("PATCH", f"{WIDGETS}/w", {"spec": {"size": 3}}, MERGE)
        soon(lambda: _status_with(server, "resized"), "the change")
        assert server.api("GET", f"{WIDGETS}/w")["status"]["resized"] == "2 to 3"
        assert server.api("GET", f"{MAPS}/w-map")["data"] == {"size": "3"}

        server.api("POST", MAPS, {"metadata": {"name": "seen", "labels": {"made-by": "test"}}})
        soon(lambda: _ledger(server).get("seen") == "ADDED", "the event of a built-in kind")
    finally:
        log = operator.stop()
    again = Operator(server, tmp_path)
    try:
        soon(lambda: _status_with(server, "resumed"), "the resumption by a second run")
        server.api("DELETE", f"{WIDGETS}/w")
        soon(lambda: found(server, f"{WIDGETS}/w") is None, "the end of the object")
        assert _ledger(server)["w"] == "cleaned"
        soon(lambda: found(server, f"{MAPS}/w-map") is None, "the end of what it owned")
    finally:
        log += again.stop()
    assert "Traceback" not in log, log[-4000:]
    server.api("DELETE", f"/api/v1/namespaces/{SPACE}")


HOOKS = "hooks.example"
HOOKS_SPACE = "kopf-hooks"
HOOKED = f"/apis/{HOOKS}/v1/namespaces/{HOOKS_SPACE}/widgets"
REGISTERED = "/apis/admissionregistration.k8s.io/v1"


def certificates(home: Path) -> dict[str, str]:
    """Of the operator's webhook server: kopf makes its own only with a library that is not needed otherwise."""
    now = datetime.now(UTC)
    authority = pki.self_signed_ca("hooks", pki.new_key(), now=now)
    key = pki.new_key()
    issued = pki.issue_server(authority, "hooks", key.public_key(), names=("127.0.0.1",), now=now)
    files = {
        "HOOK_CA": pki.certificate_pem(authority.certificate),
        "HOOK_CERTIFICATE": pki.certificate_pem(issued),
        "HOOK_KEY": pki.key_pem(key),
    }
    for name, text in files.items():
        (home / name).write_bytes(text)
    return {name: str(home / name) for name in files}


def test_an_operator_serves_admission_webhooks(server: ServerProcess, tmp_path: Path) -> None:
    sys.path.insert(0, str(GUESTS))
    try:
        from widgets import definition, widget  # noqa: PLC0415 - a module of the guests, not of the tests
    finally:
        sys.path.remove(str(GUESTS))
    server.api("POST", "/api/v1/namespaces", {"metadata": {"name": HOOKS_SPACE}})
    server.api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition(HOOKS))
    operator = Operator(server, tmp_path, "kopf_webhooks.py", HOOKS_SPACE, **certificates(tmp_path))
    try:
        for kind in ("mutating", "validating"):
            path = f"{REGISTERED}/{kind}webhookconfigurations/managed.{HOOKS}"
            soon(lambda path=path: (found(server, path) or {}).get("webhooks"), f"the {kind} configuration")
        made = server.api("POST", HOOKED, widget(HOOKS, "one", size=2))
        assert made["spec"] == {"size": 2, "parts": {"made": "by-webhook", "for": "coterie-admin"}}
        with pytest.raises(ApiFailed, match=r"409: admission webhook .* denied the request: thirteen is not a size"):
            server.api("POST", HOOKED, widget(HOOKS, "two", size=13))
        with pytest.raises(ApiFailed, match="thirteen is not a size"):
            server.api("PATCH", f"{HOOKED}/one", {"spec": {"size": 13}}, MERGE)
        changed = server.api("PATCH", f"{HOOKED}/one", {"spec": {"size": 60, "parts": {"a": "b"}}}, MERGE)
        assert changed["spec"]["parts"] == {"made": "by-webhook", "for": "coterie-admin", "a": "b"}
        server.api("PATCH", f"{HOOKED}/one", {"metadata": {"labels": {"keep": "yes"}}}, MERGE)
        with pytest.raises(ApiFailed, match="one is to be kept"):
            server.api("DELETE", f"{HOOKED}/one")
        server.api("PATCH", f"{HOOKED}/one", {"metadata": {"labels": {"keep": None}}}, MERGE)
        server.api("DELETE", f"{HOOKED}/one")
        soon(lambda: found(server, f"{HOOKED}/one") is None, "the end of the object")
    finally:
        log = operator.stop()
        for kind in ("mutating", "validating"):
            found_one = found(server, f"{REGISTERED}/{kind}webhookconfigurations/managed.{HOOKS}")
            if found_one is not None:
                server.api("DELETE", f"{REGISTERED}/{kind}webhookconfigurations/managed.{HOOKS}")
    assert "Traceback" not in log, log[-4000:]
    server.api("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.{HOOKS}")
    server.api("DELETE", f"/api/v1/namespaces/{HOOKS_SPACE}")


def _status_with(server: ServerProcess, *names: str) -> Any:
    status = server.api("GET", f"{WIDGETS}/w").get("status") or {}
    return status if all(name in status for name in names) else None


def _reasons(server: ServerProcess) -> set[str]:
    return {event.get("reason") for event in server.api("GET", f"/api/v1/namespaces/{SPACE}/events")["items"]}


def _ledger(server: ServerProcess) -> dict[str, str]:
    return server.api("GET", f"{MAPS}/ledger").get("data") or {}
