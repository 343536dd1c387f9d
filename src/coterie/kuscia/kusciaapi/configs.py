"""Values that a domain keeps for its engines and data sources: Kuscia's config store.

It is the ConfigMap `domain-config` of the domain's namespace, each value sealed with the domain's key. The agent opens
them when it renders an engine's files, the data mesh when a source has its settings under an `infoKey`.

Every write names the version it was decided on and is decided again when somebody else was faster: nobody's value is
lost, and of two that create the same key one is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from coterie.kube.api.errors import AlreadyExists
from coterie.kube.api.meta import Object
from coterie.kube.api.names import config_key_faults
from coterie.kube.api.rules.config import MAX_SIZE
from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kube.client.client import retry_on_conflict
from coterie.kuscia.api.types.domain import DOMAIN_CONFIG
from coterie.kuscia.identity.sealing import DecryptionError, decrypt_with, encrypt_for
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.certificate_input import encoded
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused, invalid
from coterie.kuscia.kusciaapi.operations import ApiOperation, OperationContext
from coterie.kuscia.kusciaapi.request_checks import find

PUBLIC_KEY = "domain-public-key"
"""Always there and never written: the key under which the values are sealed."""
_LONGEST_KEY = 256
_ATTEMPTS = 100
"""Each lost race is somebody else's progress, so this many only fail when that many write at once."""

ConfigChange = Callable[[Mapping[str, str]], Mapping[str, str | None]]
"""From what is there to what is to be set; None removes."""


async def create(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    new = await _sealed(here, _values_of_request(request), ApiErrorCode.CREATE_CONFIG)

    def change(there: Mapping[str, str]) -> Mapping[str, str | None]:
        for key in new:
            if key in there:
                raise CallRefused(
                    ApiErrorCode.CREATE_CONFIG, f'key "{key}" exists already; update it, or delete it first'
                )
        return new

    await _write(here, change, ApiErrorCode.CREATE_CONFIG)
    return {}


async def update(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    new = await _sealed(here, _values_of_request(request), ApiErrorCode.UPDATE_CONFIG)
    await _write(here, lambda there: new, ApiErrorCode.UPDATE_CONFIG)
    return {}


async def delete(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    """Keys that are not there are as good as deleted."""
    keys = _keys(request, writing=True)
    await _write(here, lambda there: {key: None for key in keys if key in there}, ApiErrorCode.DELETE_CONFIG)
    return {}


async def query(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    _check_key("key", request.key)
    values = await _decrypted_values(here, [request.key], ApiErrorCode.QUERY_CONFIG)
    return {"key": request.key, "value": values.get(request.key, "")}


async def batch_query(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    keys = _keys(request, writing=False)
    values = await _decrypted_values(here, keys, ApiErrorCode.BATCH_QUERY_CONFIG)
    return {"data": [{"key": key, "value": values.get(key, "")} for key in keys]}


# The store.


async def _write(here: OperationContext, change: ConfigChange, code: ApiErrorCode) -> None:
    async def attempt() -> None:
        found = await find(here, CONFIG_MAPS, DOMAIN_CONFIG, here.domain)
        if found is None:
            await _make(here)
            found = await here.client.get(CONFIG_MAPS, DOMAIN_CONFIG, here.domain)
        there = found.data or {}
        changed = change(there)
        if not changed:
            return
        _check_room({**there, **changed}, code)
        exactly = {"uid": found.metadata.uid, "resourceVersion": found.metadata.resource_version}
        patch = {"metadata": exactly, "data": dict(changed)}
        await here.client.patch(CONFIG_MAPS, DOMAIN_CONFIG, here.domain, patch)

    await retry_on_conflict(attempt, _ATTEMPTS)


async def _make(here: OperationContext) -> None:
    """The domain controller makes it with the domain; somebody may have removed it since."""
    obj = {"metadata": {"name": DOMAIN_CONFIG, "namespace": here.domain}}
    try:
        await here.client.create(CONFIG_MAPS.as_dynamic, obj, here.domain)
    except AlreadyExists:
        return


async def _sealed(here: OperationContext, values: Mapping[str, str], code: ApiErrorCode) -> dict[str, str]:
    _check_room(values, code)  # before the work
    key = here.identity.key.public_key()
    return await asyncio.to_thread(lambda: {name: encrypt_for(value, key) for name, value in values.items()})


async def _decrypted_values(here: OperationContext, keys: Iterable[str], code: ApiErrorCode) -> dict[str, str]:
    wanted = set(keys)
    found = await find(here, CONFIG_MAPS, DOMAIN_CONFIG, here.domain)
    data = {name: text for name, text in ((found and found.data) or {}).items() if name in wanted}
    data.pop(PUBLIC_KEY, None)  # Kuscia keeps it there, in a form of its own
    values = await asyncio.to_thread(_open, here, data, code)
    return values | ({PUBLIC_KEY: encoded(here.identity.public_key_pem)} if PUBLIC_KEY in wanted else {})


def _open(here: OperationContext, data: Mapping[str, str], code: ApiErrorCode) -> dict[str, str]:
    out = {}
    for name, text in data.items():
        try:
            out[name] = decrypt_with(text, here.identity.key)
        except DecryptionError:
            # Without the cause, which might quote what was opened.
            why = f'the value of "{name}" is not encrypted with the domain\'s present key; set it again'
            raise CallRefused(code, why) from None
    return out


# Requests. Pure.


def _values_of_request(request: Any) -> dict[str, str]:
    if not request.data:
        raise invalid("data", "must hold at least one key")
    out: dict[str, str] = {}
    for index, each in enumerate(request.data):
        at = f"data[{index}].key"
        _check_key(at, each.key, writing=True)
        if each.key in out:
            raise invalid(at, f"{each.key} stands there twice")
        out[each.key] = each.value
    return out


def _keys(request: Any, *, writing: bool) -> list[str]:
    if not request.keys:
        raise invalid("keys", "must name at least one key")
    for index, key in enumerate(request.keys):
        _check_key(f"keys[{index}]", key, writing=writing)
    return list(request.keys)


def _check_key(field: str, key: str, *, writing: bool = False) -> None:
    if not key:
        raise invalid(field, "must be given")
    if len(key.encode()) > _LONGEST_KEY:
        raise invalid(field, f"must have no more than {_LONGEST_KEY} bytes")
    for fault in config_key_faults(key):
        raise invalid(field, fault)
    if writing and key == PUBLIC_KEY:
        raise invalid(field, f"{PUBLIC_KEY} is the domain's own and cannot be changed")


def _check_room(values: Mapping[str, str | None], code: ApiErrorCode) -> None:
    size = sum(len(key) + len(value.encode()) for key, value in values.items() if value is not None)
    if size > MAX_SIZE:
        raise CallRefused(
            code,
            f"the config store would take {size} bytes and can hold {MAX_SIZE} "
            "(values take nearly twice their length); "
            "delete what is not needed, or keep large things in files",
        )


OPERATIONS = (
    ApiOperation(
        "ConfigService", "CreateConfig", "/api/v1/config/create", ApiErrorCode.CREATE_CONFIG, create, secret=True
    ),
    ApiOperation("ConfigService", "QueryConfig", "/api/v1/config/query", ApiErrorCode.QUERY_CONFIG, query, secret=True),
    ApiOperation(
        "ConfigService", "UpdateConfig", "/api/v1/config/update", ApiErrorCode.UPDATE_CONFIG, update, secret=True
    ),
    ApiOperation(
        "ConfigService", "DeleteConfig", "/api/v1/config/delete", ApiErrorCode.DELETE_CONFIG, delete, secret=True
    ),
    ApiOperation(
        "ConfigService",
        "BatchQueryConfig",
        "/api/v1/config/batchQuery",
        ApiErrorCode.BATCH_QUERY_CONFIG,
        batch_query,
        secret=True,
    ),
)
