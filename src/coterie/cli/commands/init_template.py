"""The text of a new configuration: what was chosen stands there, the rest is comments that show the defaults."""

from __future__ import annotations

from collections.abc import Mapping

MODES = {
    "master": "a control plane; nodes of its domains join it",
    "lite": "a node of a domain; it runs pods and joins a master",
    "autonomy": "a control plane and a node in one",
}
_HEAD = """\
# Configuration of one Coterie node. Run it with: coterie start -c {file}
# A line that begins with "# " and a key shows the default; remove the "# " to change it.

# {mode}: {about}.
mode: {mode}
"""
_SETTINGS = {
    "domainID": 'Id of the domain: lower-case letters, digits and "-".',
    "domainKeyData": "RSA key of the domain. Anyone who has it can act as this domain: keep this file secret.",
    "masterEndpoint": "Gateway of the master, and the one-time deploy token from the master.",
    "liteDeployToken": "",
    "join": "Join file from `coterie node add`; it contains a private key.",
    "datastoreEndpoint": "Database for the objects (Kuscia's name of `store`).",
    "runtime": "Container runtime: runp (confined processes), runc (containers), runk (pods of another Kubernetes cluster).",
    "capacity": "What the node offers of the backing cluster: set it to what the domain may use there.",
    "runk": "The backing cluster. An empty kubeconfigFile: the service account of the pod in which this node runs.",
    "enableWorkloadApprove": "All jobs and deployments of partners wait for approval here.",
}
"""Chosen or not there at all."""
RUNK = {
    "capacity": '{cpu: "4", memory: 8Gi}',
    "runk": '{namespace: "", kubeconfigFile: ""}',
}
"""Of a node whose pods run in another cluster."""
_COMMON = """\
# Authentication at the public port: MTLS (client certificate), TLS (no client certificate), NOTLS (plain text).
{protocol}

# Root directory of the state, with one subdirectory per domain. --root overrides it.
# root: ~/.coterie

# Log level: DEBUG, INFO, WARN or ERROR. Log format: text or json.
{logLevel}
# logFormat: text

# Public port for partners. `external: none`: no public port.
# gateway:
#   external: {{host: 0.0.0.0, port: 1080}}
#   workers: 1               # worker threads of Envoy

# DNS for the services of the domain. Other names are forwarded to `upstream` (default: /etc/resolv.conf).
# dns:
#   upstream: []
"""
_API = """
# Where the objects are stored; default: a file below `root`. postgresql://user@host/database?passwordFile=/file and
# etcd://host:2379/prefix can be shared by several control planes.
# store: ""

# The Kubernetes API of this node.
# apiServer:
#   host: 127.0.0.1          # listen address; 0.0.0.0 for all
#   port: 6443               # 0 picks a free one
#   names: []                # additional names and addresses in the certificate
#   eventTTLSeconds: 3600    # how long Event objects are kept
#   auditLog: audit.jsonl    # file below var/logs with one JSON line per change; "": none
#   auditPolicy: ""          # file with an audit policy of Kubernetes, which decides what is recorded
"""
_AGENT = """
# The node agent, which runs pods.
# agent:
#   address: 127.0.0.1       # address of the node, its endpoint and its pods
#   port: 10250              # port of the agent's endpoint; 0 picks a free one
#   taint: false             # true: only task pods are scheduled here, as in Kuscia
#   hostPaths: []            # directories below which hostPath volumes are allowed
#   defaults:                # limits of pods that set none
#     pids: 4096             # processes and threads of one pod; 0: no limit
#     openFiles: 65536       # open files of one process
#     memory: ""             # memory of one pod; empty: what the node can allocate
#     ephemeralStorage: ""   # disk of one pod; empty: 20Gi, or half of the disk
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
