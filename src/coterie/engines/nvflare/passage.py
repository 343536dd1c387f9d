"""Which messages pass between a client of NVFlare and its server. Pure.

    client ──> relay (loopback) ──> gateways ──> relay ──> server (loopback)

A message of NVFlare names its origin, its destination, a channel and a topic. NVFlare's server may command much more at a client
than training needs (run shell commands, change the log configuration, which creates objects), and serves administrators, its own
processes and messages from client to client in the same place. Here only what a job needs passes, under the sender's own name.
"""

from __future__ import annotations

from coterie.engines.nvflare.frames import DATA, HELLO, PING, PONG, READY, F3Frame
from coterie.engines.nvflare.task import SERVER_SITE

_STREAM = "sm__STREAM"
_EITHER_WAY: dict[str, frozenset[str] | None] = {
    "aux_communication": None,
    "download_service__": None,
    "return_only": None,
    "credential_manager": None,
    "cellnet.channel": frozenset({"bye"}),
    _STREAM: None,
}
"""Channels and their topics; None: all."""
_TO_SERVER = {
    **_EITHER_WAY,
    "task": frozenset({"challenge", "register", "quit", "heart_beat", "report_job_failure"}),
    "server_command": frozenset({"get_task", "submit_update"}),
}
_TO_CLIENT = {**_EITHER_WAY, "admin": None}
"""What arrives on `admin` is looked at once more in the client itself: `site_policy.py`."""


def refused_at_server(frame: F3Frame, owner: str) -> str:
    """Why a frame that an owner's client sends does not pass; empty: it does."""
    return _refused(frame, owner, SERVER_SITE, _TO_SERVER)


def refused_at_client(frame: F3Frame, owner: str) -> str:
    """Why a frame that the server sends to an owner's client does not pass; empty: it does."""
    return _refused(frame, SERVER_SITE, owner, _TO_CLIENT)


def _refused(frame: F3Frame, sender: str, receiver: str, channels: dict[str, frozenset[str] | None]) -> str:
    if frame.type in (PING, PONG):
        return ""
    headers = frame.headers
    if frame.type in (HELLO, READY):
        name = headers.get("endpoint_name")
        return "" if _of(name, sender) else f"a connection of {name!r}"
    if frame.type != DATA:
        return f"a frame of type {frame.type}"
    for key, site in (("origin", sender), ("from", sender), ("destination", receiver), ("to", receiver)):
        name = headers.get(f"cn__{key}")
        if not _of(name, site):
            return f"a message with {key} {name!r}"
    if "cn__conn_url" in headers:
        return "an address to connect to"  # NVFlare would, past the relays
    kind, channel, topic = (headers.get(f"cn__{key}") for key in ("msg_type", "channel", "topic"))
    if kind not in ("req", "reply", "return"):
        return f"a message of type {kind!r}"
    if kind != "req":
        return ""  # only programs that asked take it
    if channel == _STREAM and "sm__ch" in headers:
        channel, topic = headers["sm__ch"], headers.get("sm__tp")
        if channel == _STREAM:
            return "a stream within a stream"
    if not isinstance(channel, str) or channel not in channels:
        return f"a message for the channel {channel!r}"
    topics = channels[channel]
    if topics is not None and topic not in topics:
        return f"a message for {topic!r} in the channel {channel!r}"
    return ""


def _of(name: object, site: str) -> bool:
    """Whether a program belongs to a site: `bob`, or `bob.<job>` and below."""
    return isinstance(name, str) and name.split(".", 1)[0] == site
