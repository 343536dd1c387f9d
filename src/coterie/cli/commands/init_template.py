"""The text of a new configuration: what was chosen stands there, the rest is comments that show the defaults."""

from __future__ import annotations

from collections.abc import Mapping

MODES = {
    "master": "a control plane: it serves the API, and nodes of its domains join it",
    "lite": "a node of a domain: it runs pods and joins a master",
    "autonomy": "a control plane and a node in one",
}
_HEAD = """\
# Configuration of one Coterie node. Run it with: coterie start -c {file}
# A line that begins with "# " and a key shows the default; remove the "# " to change it.

# {mode}: {about}.
mode: {mode}
"""
_SETTINGS = {
    "domainID": 'The organisation this node belongs to: lower-case letters, digits and "-".',
    "domainKeyData": "The domain's RSA key: whoever has it can speak as this domain. Keep this file to yourself.",
    "masterEndpoint": "Its master's gateway, and the one-time token of the domain's object there.",
    "liteDeployToken": "",
    "join": "How it came to its master: a file of `coterie node add`, which holds a key.",
    "datastoreEndpoint": "Where objects are stored.",
    "runtime": "How pods run: runp, as confined processes.",
    "enableWorkloadApprove": "Jobs of others wait until they are approved here.",
}
"""Chosen or not there at all."""
_COMMON = """\
# What partners must show at the public port: MTLS (their certificate), TLS (nothing), NOTLS (it is plain text).
{protocol}

# Where state lives; one directory for each domain. --root wins over it.
# root: ~/.coterie

# DEBUG, INFO, WARN or ERROR; and text for people or json for machines.
{logLevel}
# logFormat: text

# The public port for partners, and the one for this node's own pods. `external: none`: partners cannot call in.
# gateway:
#   external: {{host: 0.0.0.0, port: 1080}}
#   internal: {{host: 127.0.0.1, port: 80}}
#   workers: 1               # threads of the gateway

# The names of the domain's services; other names are asked for at `upstream`, or as /etc/resolv.conf says.
# dns:
#   host: 127.0.0.1
#   port: 53
#   upstream: []
"""
_API = """
# The Kubernetes API of this node.
# apiServer:
#   host: 127.0.0.1          # address to listen on; 0.0.0.0 for all
#   port: 6443               # 0 picks a free one
#   names: []                # more names and addresses under which clients reach it
#   eventTTLSeconds: 3600    # how long Event objects are kept
#   auditLog: ""             # a file below var/logs with one JSON line for each change; empty: none
"""
_AGENT = """
# The agent, which runs pods.
# agent:
#   address: 127.0.0.1       # the node's address: its endpoint and its pods are reached there
#   port: 10250              # of its endpoint; 0 picks a free one
#   taint: false             # true: only pods of tasks are placed here, as in Kuscia
#   hostPaths: []            # directories below which hostPath volumes may lie
"""
_DEFAULTS = {"protocol": "MTLS", "logLevel": "INFO"}


def fill(values: Mapping[str, str], mode: str, file: str) -> str:
    """`values`: chosen keys with their values as YAML has them."""
    parts = [_HEAD.format(file=file, mode=mode, about=MODES[mode])]
    for key, comment in _SETTINGS.items():
        if key in values:
            about = f"# {comment}\n" if comment else ""
            parts.append(f"{about}{key}: {values[key]}\n")
    shown = {
        key: f"{key}: {values[key]}" if key in values else f"# {key}: {default}" for key, default in _DEFAULTS.items()
    }
    parts.append(_COMMON.format(**shown))
    text = "\n".join(parts)
    return text + (_API if mode != "lite" else "") + (_AGENT if mode != "master" else "")
