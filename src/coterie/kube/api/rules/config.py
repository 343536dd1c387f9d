"""Rules of configuration: config maps, secrets, service accounts. Values of secrets never appear in a complaint."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any

from coterie.kube.api import labels as well_known
from coterie.kube.api.errors import FieldError, forbidden_field, invalid, required
from coterie.kube.api.names import config_key_faults
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules
from coterie.kube.api.rules.common import immutable

MAX_SIZE = 1024 * 1024
_FROZEN = "field is immutable when `immutable` is set"
_REDACTED = "<secret contents redacted>"


def _too_big() -> FieldError:
    return FieldError("[]", "FieldValueTooLong", f"Too long: may not be more than {MAX_SIZE} bytes")


def _decoded(value: Any) -> bytes | None:
    try:
        return base64.b64decode(value or "", validate=True)
    except (binascii.Error, ValueError):
        return None


def _check_frozen(new: Obj, old: Obj, keys: tuple[str, ...]) -> Errors:
    if not old.get("immutable"):
        return []
    errors = [] if new.get("immutable") else [forbidden_field("immutable", _FROZEN)]
    return errors + [forbidden_field(key, _FROZEN) for key in keys if (new.get(key) or {}) != (old.get(key) or {})]


# ---- config maps --------------------------------------------------------------------------------------------------


def _validate_config_map(obj: Obj) -> Errors:
    errors: Errors = []
    total = 0
    data, binary = obj.get("data") or {}, obj.get("binaryData") or {}
    for key, value in data.items():
        if faults := config_key_faults(key):
            errors += [invalid(f"data[{key}]", key, fault) for fault in faults]
        if key in binary:
            errors.append(invalid(f"data[{key}]", key, "duplicate of key present in binaryData"))
        total += len(value or "")
    for key, value in binary.items():
        if faults := config_key_faults(key):
            errors += [invalid(f"binaryData[{key}]", key, fault) for fault in faults]
        raw = _decoded(value)
        if raw is None:
            errors.append(invalid(f"binaryData[{key}]", key, "illegal base64 data"))
        total += len(raw or b"")
    # Characters are counted first: encoding every value would cost more than all other checks.
    if total > MAX_SIZE // 4:
        total += sum(len((value or "").encode("utf-8", "surrogatepass")) - len(value or "") for value in data.values())
        if total > MAX_SIZE:
            errors.append(_too_big())
    return errors


def _config_map_change(new: Obj, old: Obj) -> Errors:
    return _check_frozen(new, old, ("data", "binaryData"))


# ---- secrets ------------------------------------------------------------------------------------------------------


def _default_secret(obj: Obj) -> None:
    if not obj.get("type"):
        obj["type"] = "Opaque"
    if texts := obj.pop("stringData", None):
        data = obj.get("data") or {}
        for key, value in texts.items():
            data[key] = base64.b64encode((value or "").encode("utf-8", "surrogatepass")).decode("ascii")
        obj["data"] = data


def _validate_secret(obj: Obj) -> Errors:
    errors: Errors = []
    total = 0
    data = obj.get("data") or {}
    for key, value in data.items():
        if faults := config_key_faults(key):
            errors += [invalid(f"data[{key}]", key, fault) for fault in faults]
        raw = _decoded(value)
        if raw is None:
            errors.append(invalid(f"data[{key}]", _REDACTED, "illegal base64 data"))
        total += len(raw or b"")
    if total > MAX_SIZE:
        errors.append(_too_big())
    if check := _SECRET_TYPES.get(obj.get("type") or ""):
        errors += check(obj, data)
    return errors


def _check_account_token(obj: Obj, data: Obj) -> Errors:
    annotations = (obj.get("metadata") or {}).get("annotations") or {}
    if annotations.get(well_known.SERVICE_ACCOUNT_NAME):
        return []
    return [required(f"metadata.annotations[{well_known.SERVICE_ACCOUNT_NAME}]")]


def _check_json(key: str) -> Callable[[Obj, Obj], Errors]:
    def check(obj: Obj, data: Obj) -> Errors:
        if key not in data:
            return [required(f"data[{key}]")]
        raw = _decoded(data[key])
        try:
            json.loads(raw or b"")
        except (ValueError, RecursionError):
            return [invalid(f"data[{key}]", _REDACTED, "must be a JSON object")]
        return []

    return check


def _check_keys(*keys: str) -> Callable[[Obj, Obj], Errors]:
    def check(obj: Obj, data: Obj) -> Errors:
        return [required(f"data[{key}]") for key in keys if key not in data]

    return check


def _check_basic_auth(obj: Obj, data: Obj) -> Errors:
    if "username" in data or "password" in data:
        return []
    return [required("data[username]"), required("data[password]")]


_SECRET_TYPES: dict[str, Callable[[Obj, Obj], Errors]] = {
    "kubernetes.io/service-account-token": _check_account_token,
    "kubernetes.io/dockercfg": _check_json(".dockercfg"),
    "kubernetes.io/dockerconfigjson": _check_json(".dockerconfigjson"),
    "kubernetes.io/basic-auth": _check_basic_auth,
    "kubernetes.io/ssh-auth": _check_keys("ssh-privatekey"),
    "kubernetes.io/tls": _check_keys("tls.crt", "tls.key"),
}


def _secret_change(new: Obj, old: Obj) -> Errors:
    return immutable(new, old, "", "type") + _check_frozen(new, old, ("data",))


RULES: dict[tuple[str, str], KindRules] = {
    ("", "ConfigMap"): make_rules(validate=_validate_config_map, changed=_config_map_change),
    ("", "Secret"): make_rules(default=_default_secret, validate=_validate_secret, changed=_secret_change),
    ("", "ServiceAccount"): make_rules(),
}
