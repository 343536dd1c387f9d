"""Secrets that are planted at bob for tests of log requests and bundles, and the search for them."""

from __future__ import annotations

import base64
import subprocess
import sys
import tarfile
from pathlib import Path

from jobs_kit import API, Net, Object, until

SECRET = "planted-in-a-secret-of-bob"
VARIABLE = "planted-in-a-variable-of-bob"
REQUESTS = f"/apis/{API}/namespaces/%s/logrequests"


def coterie(net: Net, domain: str, *words: str) -> str:
    command = [sys.executable, "-m", "coterie", *words, "--root", str(net.root), "--domain", domain]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=net.root)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def planted(net: Net) -> dict[str, str]:
    """What nobody but bob may ever see; the engine prints all of it."""
    bob = net.at("bob")
    key = next(path for path in bob.paths.home.rglob("*.key") if "PRIVATE KEY" in path.read_text()).read_text()
    branch = {"apiVersion": API, "kind": "Domain", "metadata": {"name": "branch"}, "spec": {}}
    branch["spec"] = {"authCenter": {"authenticationType": "Token", "tokenGenMethod": "UID-RSA-GEN"}}
    bob.call("POST", f"/apis/{API}/domains", branch)

    def tokens() -> list[Object]:
        return ((bob.get(f"/apis/{API}/domains/branch") or {}).get("status") or {}).get("deployTokenStatuses") or []

    return {
        "secret": SECRET,
        "variable": VARIABLE,
        "key": key.splitlines()[2],
        "deploy token": until("a deploy token", tokens)[0]["token"],
        "password": "hunter2-in-a-url",
        "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJib2IifQ.c2lnbmF0dXJlLW9mLWJvYg",
    }


def script_of(secrets: dict[str, str]) -> str:
    lines = ["begin of bob"]
    for name, value in secrets.items():
        if name != "password":  # of which only its place in the URL tells
            lines += [f"got {value} here", f"encoded {base64.b64encode(value.encode()).decode()}"]
    lines += [f"GET https://bob:{secrets['password']}@db/x", f"Authorization: Bearer {secrets['jwt']}", "ERROR rows 12"]
    return "\n".join((*(f"echo '{line}'" for line in lines), "exit 3"))


def found_in(text: str, secrets: dict[str, str]) -> list[str]:
    out = [name for name, value in secrets.items() if value in text]
    encoded = {name: base64.b64encode(value.encode()).decode().rstrip("=") for name, value in secrets.items()}
    return out + [f"{name} in base64" for name, value in encoded.items() if value in text]


def unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {
            member.name.partition("/")[2]: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }
