"""The unit with which systemd runs a node. Pure.

Pods and the gateway outlive the node's process, so only that one is signalled (KillMode=process) and the unit's cgroup is ours
(Delegate). A node with pods gets no mount namespace of its own: the next process of the service would have another one and not see the
mounts of the pods that run. A node without pods (a master, or runtime runk) is confined much further.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PREFIX = "coterie-"
_NEVER = (
    "CAP_SYS_MODULE",
    "CAP_SYS_BOOT",
    "CAP_SYS_TIME",
    "CAP_WAKE_ALARM",
    "CAP_MAC_ADMIN",
    "CAP_MAC_OVERRIDE",
    "CAP_AUDIT_CONTROL",
    "CAP_BLOCK_SUSPEND",
)
"""Capabilities that no pod gets, whatever it asks for."""
_CONFINED = (
    "NoNewPrivileges=yes",
    "ProtectSystem=strict",
    "PrivateDevices=yes",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "RestrictSUIDSGID=yes",
    "RestrictNamespaces=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "SystemCallArchitectures=native",
    "CapabilityBoundingSet=CAP_NET_BIND_SERVICE CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_KILL CAP_SETUID CAP_SETGID",
)
_PLAIN = re.compile(r"[-A-Za-z0-9_./:@+=%$]+")
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|\S+')
_SHORT = "/tmp"
_WORDS = 8
"""Of the command of a unit."""


@dataclass(frozen=True, slots=True)
class NodeService:
    domain: str
    python: str
    """The interpreter in whose environment Coterie is."""
    config: Path
    root: Path
    log: Path
    runs_pods: bool
    user: bool
    """Whether it is a unit of the user's own manager."""

    @property
    def unit(self) -> str:
        return f"{PREFIX}{self.domain}.service"

    @property
    def command(self) -> tuple[str, ...]:
        return (self.python, "-m", "coterie", "start", "-c", str(self.config), "--root", str(self.root))


def unit_text(service: NodeService) -> str:
    lines = [
        "# Written by `coterie service install`. `coterie service upgrade` writes it anew; put changes of your own into a drop-in",
        f"# (`systemctl edit {service.unit}`).",
        "[Unit]",
        f"Description=Coterie node of domain {service.domain}",
        *([] if service.user else ["Wants=network-online.target", "After=network-online.target"]),
        "StartLimitIntervalSec=300",
        "StartLimitBurst=10",
        "",
        "[Service]",
        "Type=notify",
        "NotifyAccess=main",
        f"ExecStart={quoted(service.command)}",
        "ExecReload=/bin/kill -HUP $MAINPID",
        # A lite waits for its master for as long as that takes.
        "TimeoutStartSec=infinity",
        "TimeoutStopSec=60",
        "Restart=always",
        "RestartSec=2",
        "KillMode=process",
        "Delegate=yes",
        "OOMPolicy=continue",
        "TasksMax=infinity",
        "LimitNOFILE=1048576" if not service.user else "LimitNOFILE=infinity",
        "UMask=0077",
        f"StandardOutput=append:{escaped(service.log)}",
        "StandardError=inherit",
        "WorkingDirectory=/",
        "LockPersonality=yes",
        "RestrictRealtime=yes",
    ]
    if not service.user:
        if service.runs_pods:
            lines.append(f"CapabilityBoundingSet=~{' '.join(_NEVER)}")
        else:
            # Sockets of a domain whose path is long are in /tmp.
            lines += [*_CONFINED, f"ReadWritePaths={quoted((str(service.root), _SHORT))}"]
    lines += ["", "[Install]", f"WantedBy={'default' if service.user else 'multi-user'}.target"]
    return "\n".join(lines) + "\n"


def quoted(words: Sequence[str]) -> str:
    """A command line of a unit: systemd replaces `%` and `$`, and splits at blanks."""
    return " ".join(_word(each) for each in words)


def _word(text: str) -> str:
    text = escaped(text).replace("$", "$$")
    if _PLAIN.fullmatch(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def escaped(text: str | Path) -> str:
    return str(text).replace("%", "%%")


def python_of(text: str) -> str:
    """The interpreter of a unit that `unit_text` wrote; empty: it is another one."""
    return _command(text)[0]


def config_of(text: str) -> tuple[str, str]:
    """(configuration, root) of a unit that `unit_text` wrote; empty: it is another one."""
    command = _command(text)
    return command[5], command[7]


def _command(text: str) -> tuple[str, ...]:
    line = next((each for each in text.splitlines() if each.startswith("ExecStart=")), "")
    words = tuple(_unquoted(found[0]) for found in _WORD.finditer(line.removeprefix("ExecStart=")))
    shape = (words[1:5], words[6:7]) == (("-m", "coterie", "start", "-c"), ("--root",))
    return words if shape and len(words) == _WORDS else ("",) * _WORDS


def _unquoted(word: str) -> str:
    if word.startswith('"'):
        word = re.sub(r"\\(.)", r"\1", word[1:-1])
    return word.replace("$$", "$").replace("%%", "%")
