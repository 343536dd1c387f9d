"""The input of Kuscia's own psi AppImage, `sf_psi_config_map`, said in our words. Pure.

{"sf_psi_config_map": {"alice": {"psi_config": {"protocol_config": {"protocol": "PROTOCOL_RR22", "role": "ROLE_RECEIVER",
 "broadcast_result": true}, "input_config": {"path": "/…/customers.csv"}, "output_config": {"path": "/…/common.csv"},
 "keys": ["id"]}}, "bob": {…}}}

Names are as in SecretFlow's psi library (LaunchConfig), with `_` or in camel case; the older form lacks `psi_config`. A path
stands for a table: its file name without the ending is the id. Files are not read by it, since partners write it.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from coterie.engines.launching.configuration import BadConfig

KEY = "sf_psi_config_map"
_PROTOCOLS = {"PROTOCOL_ECDH": "ECDH", "PROTOCOL_KKRT": "KKRT", "PROTOCOL_RR22": "RR22"}
_JOINS = {
    "ADVANCED_JOIN_TYPE_UNSPECIFIED": "inner",
    "ADVANCED_JOIN_TYPE_INNER_JOIN": "inner",
    "ADVANCED_JOIN_TYPE_LEFT_JOIN": "left",
    "ADVANCED_JOIN_TYPE_RIGHT_JOIN": "right",
    "ADVANCED_JOIN_TYPE_FULL_JOIN": "full",
    "ADVANCED_JOIN_TYPE_DIFFERENCE": "difference",
}
_RECEIVER, _SENDER = "ROLE_RECEIVER", "ROLE_SENDER"
_NO_EFFECT = {"recovery_config", "debug_options", "skip_duplicates_check", "check_duplicates"}
"""About files, traces and a check: the result is the same."""
_KNOWN = {
    "protocol_config",
    "input_config",
    "output_config",
    "keys",
    "disable_alignment",
    "sort_output",
    "advanced_join_type",
    "left_side",
    *_NO_EFFECT,
}


def translated(options: dict[str, Any], names: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Our own options, and what of the others has no effect here."""
    if set(options) != {KEY}:
        raise BadConfig(f"task_input_config: {', '.join(sorted(set(options) - {KEY}))} does not go with {KEY}")
    found = options[KEY]
    if not isinstance(found, dict) or sorted(found) != names or len(names) != 2:
        raise BadConfig(
            f"task_input_config: {KEY} has one entry for each of two parties; here take part: {', '.join(names)}"
        )
    parts = {name: _party(name, found[name]) for name in names}
    roles = {name: part["protocol_config"].get("role") for name, part in parts.items()}
    if sorted(map(str, roles.values())) != [_RECEIVER, _SENDER]:
        raise BadConfig(f"task_input_config: in {KEY} one role is {_RECEIVER} and the other {_SENDER}")
    receiver = next(name for name, role in roles.items() if role == _RECEIVER)
    broadcast = _same(parts, "broadcast_result", lambda part: bool(part["protocol_config"].get("broadcast_result")))
    new = {
        "protocol": _same(parts, "protocol", lambda part: _protocol(part["protocol_config"])),
        "inputs": {name: _table(name, "input_config", part) for name, part in parts.items()},
        "outputs": {
            name: _table(name, "output_config", part) for name, part in parts.items() if broadcast or name == receiver
        },
        "keys": {name: part.get("keys") for name, part in parts.items()},
        "receivers": names if broadcast else [receiver],
        "join": _join(parts, names, roles),
        "sort": _same(parts, "disable_alignment", _sorted),
    }
    unused = sorted({key for part in parts.values() for key in part if key in _NO_EFFECT})
    return new, unused


def _party(name: str, given: object) -> dict[str, Any]:
    part = _snake(given)
    if isinstance(part, dict) and "psi_config" in part:
        others = sorted(set(part) - {"psi_config"})
        if others:  # unbalanced PSI, PIR; links are ours to make
            raise BadConfig(f"task_input_config: {KEY}.{name}.{others[0]} is not offered here; psi_config is")
        part = part["psi_config"]
    if not isinstance(part, dict):
        raise BadConfig(f"task_input_config: {KEY}.{name} is an object")
    unknown = sorted(set(part) - _KNOWN)
    if unknown:
        raise BadConfig(f"task_input_config: {KEY}.{name}.{unknown[0]} is not offered here")
    if not isinstance(part.get("protocol_config"), dict):
        raise BadConfig(f"task_input_config: {KEY}.{name}.protocol_config is missing")
    return part


def _protocol(given: dict[str, Any]) -> str:
    found = given.get("protocol")
    if found not in _PROTOCOLS:
        raise BadConfig(f"task_input_config: protocol is one of {', '.join(_PROTOCOLS)}, not {found!r}")
    ecdh = given.get("ecdh_config")
    curve = ecdh.get("curve", "CURVE_25519") if isinstance(ecdh, dict) else "CURVE_25519"
    if found == "PROTOCOL_ECDH" and curve != "CURVE_25519":
        raise BadConfig(f"task_input_config: the curve of ECDH is CURVE_25519 here, not {curve!r}")
    return _PROTOCOLS[found]


def _table(name: str, key: str, part: dict[str, Any]) -> str:
    given = part.get(key)
    path = given.get("path") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(path, str) or not PurePosixPath(path).stem:
        raise BadConfig(f"task_input_config: {KEY}.{name}.{key}.path is missing; its file name is the id of a table")
    kind = given.get("type", "IO_TYPE_FILE_CSV")
    if kind != "IO_TYPE_FILE_CSV":
        raise BadConfig(f"task_input_config: {KEY}.{name}.{key}.type is IO_TYPE_FILE_CSV here, not {kind!r}")
    return PurePosixPath(path).stem


def _join(parts: dict[str, dict[str, Any]], names: list[str], roles: dict[str, Any]) -> str:
    found = _same(
        parts, "advanced_join_type", lambda part: part.get("advanced_join_type", "ADVANCED_JOIN_TYPE_UNSPECIFIED")
    )
    if found not in _JOINS:
        raise BadConfig(f"task_input_config: advanced_join_type is one of {', '.join(_JOINS)}, not {found!r}")
    left = _same(parts, "left_side", lambda part: part.get("left_side") or _RECEIVER)
    if left not in (_RECEIVER, _SENDER):
        raise BadConfig(f"task_input_config: left_side is {_RECEIVER} or {_SENDER}")
    join = _JOINS[found]
    # Of ours the left one comes first by name.
    turned = {"left": "right", "right": "left"}
    return join if roles[names[0]] == left else turned.get(join, join)


def _sorted(part: dict[str, Any]) -> bool:
    return bool(part["sort_output"]) if "sort_output" in part else not part.get("disable_alignment", False)


def _same(parts: dict[str, dict[str, Any]], what: str, of: Any) -> Any:
    first, second = (of(part) for part in parts.values())
    if first != second:
        raise BadConfig(f"task_input_config: {what} is not the same for both parties in {KEY}")
    return first


def _snake(value: object) -> Any:
    if isinstance(value, dict):
        return {re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", str(key)).lower(): _snake(each) for key, each in value.items()}
    return [_snake(each) for each in value] if isinstance(value, list) else value
