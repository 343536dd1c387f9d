"""Domains: who takes part. A domain of ours comes with its nodes and deploy tokens, a partner with its certificate.

Everything else a domain needs (namespace, accounts, its route to us) the domain controller makes from the object.
"""

from __future__ import annotations

from typing import Any

import msgspec

from coterie.base.files import read_bytes_or_none
from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.names import dns_label_faults
from coterie.kuscia.api.domainroutes import public_key_of_certificate
from coterie.kuscia.api.types.domain import (
    DOMAINS,
    KUSCIA_PROTOCOL,
    PARTNER,
    RESERVED_DOMAINS,
    RSA_GEN,
    TOKEN,
    AuthCenter,
    Domain,
    DomainNodeStatus,
    DomainSpec,
)
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.certificate_input import NotACertificate, domain_certificate, encoded
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused, invalid
from coterie.kuscia.kusciaapi.operations import ApiOperation, OnLite, OperationContext

MASTER = "master"
"""Not a domain: whoever asks for it gets the certificate of the authority here."""


async def create(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    name = request.domain_id
    check_name("domain_id", name)
    if name in RESERVED_DOMAINS:
        raise invalid("domain_id", f"{name} is a reserved name; choose another")
    spec = _updated(DomainSpec(auth_center=AuthCenter(authentication_type=TOKEN, token_gen_method=RSA_GEN)), request)
    await _check_master(here, name, spec)
    obj: Object = {"metadata": {"name": name}, "spec": msgspec.to_builtins(spec)}
    try:
        await here.client.create(DOMAINS.as_dynamic, obj)
    except AlreadyExists as problem:
        raise CallRefused(ApiErrorCode.DOMAIN_EXISTS, f'domain "{name}" exists already') from problem
    return {}


async def query(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    name = request.domain_id
    if name == MASTER:
        return {"data": _authority(here)}
    check_name("domain_id", name)
    caller.must_be_one_of(name, to=f"query domain {name}")
    return {"data": _response(await known_domain(here, name), tokens=caller.everything)}


async def batch_query(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    if not request.domain_ids:
        raise invalid("domain_ids", "must name at least one domain")
    for index, name in enumerate(request.domain_ids):
        check_name(f"domain_ids[{index}]", name)
        if name != MASTER:
            caller.must_be_one_of(name, to=f"query domain {name}")
    found = {
        name: _authority(here) if name == MASTER else _response(await known_domain(here, name))
        for name in dict.fromkeys(request.domain_ids)
    }
    return {"data": {"domains": [_brief(found[name]) for name in request.domain_ids]}}


async def update(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    """What the request leaves empty stays as it is."""
    name = request.domain_id
    check_name("domain_id", name)
    caller.must_be_one_of(name, to=f"update domain {name}")

    def changed(found: Domain) -> Domain:
        spec = _updated(found.spec, request)
        if not caller.everything and spec != found.spec:
            # Whoever speaks for a lite's node could make itself the lite for good.
            raise CallRefused(
                ApiErrorCode.PERMISSION,
                f"domain {caller.domain} may not change itself, its certificate neither; its operator does, here",
            )
        if name == here.domain:
            _check_own(here, spec)
        return msgspec.structs.replace(found, spec=spec)

    # First whether it may be changed at all: else the answer would tell strangers which masters there are.
    await _check_master(here, name, changed(await known_domain(here, name)).spec)
    try:
        await here.client.modify(DOMAINS, name, "", changed)
    except NotFound as problem:
        raise _no_domain(name) from problem
    return {}


async def delete(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    name = request.domain_id
    check_name("domain_id", name)
    if name == here.domain:
        raise CallRefused(
            ApiErrorCode.DELETE_DOMAIN, f'"{name}" is the domain of this node itself and cannot be deleted'
        )
    try:
        await here.client.delete(DOMAINS, name)
    except NotFound as problem:
        raise _no_domain(name) from problem
    return {}


async def known_domain(here: OperationContext, name: str) -> Domain:
    try:
        return await here.client.get(DOMAINS, name)
    except NotFound as problem:
        raise _no_domain(name) from problem


async def _check_master(here: OperationContext, name: str, spec: DomainSpec) -> None:
    """Whoever lives under another control plane than its own says which, and we must know that one in the same role."""
    if spec.master in ("", name):
        return
    check_name("master_domain_id", spec.master)
    try:
        master = await here.client.get(DOMAINS, spec.master)
    except NotFound as problem:
        raise invalid("master_domain_id", f'there is no domain "{spec.master}"; create it first') from problem
    if master.spec.role != spec.role:
        message = f'has the role "{master.spec.role}", and "{name}" the role "{spec.role}"; they must have the same'
        raise invalid("master_domain_id", f"{spec.master} {message}")


def _authority(here: OperationContext) -> Object:
    return {"domain_id": MASTER, "cert": encoded(read_bytes_or_none(here.paths.ca_certificate) or b"")}


# Pure.


def check_name(field: str, name: str) -> None:
    if not name:
        raise invalid(field, "must be given")
    for fault in dns_label_faults(name):
        raise invalid(field, fault)


def _updated(spec: DomainSpec, request: Any) -> DomainSpec:
    """With what the request says; it leaves alone what it does not name."""
    given: dict[str, Any] = {}
    if request.role:
        if request.role != PARTNER:
            raise invalid("role", f'must be empty (a domain of this control plane) or "{PARTNER}"')
        given["role"] = request.role
        given["inter_conn_protocols"] = spec.inter_conn_protocols or (KUSCIA_PROTOCOL,)
    if request.cert.strip():
        try:
            given["cert"] = domain_certificate(request.cert, request.domain_id)
        except NotACertificate as fault:
            raise invalid("cert", str(fault)) from fault
    if request.HasField("auth_center"):
        given["auth_center"] = AuthCenter(
            authentication_type=request.auth_center.authentication_type or TOKEN,
            token_gen_method=request.auth_center.token_gen_method or RSA_GEN,
        )
    if request.master_domain_id:
        given["master"] = request.master_domain_id
    return msgspec.structs.replace(spec, **given)


def _check_own(here: OperationContext, spec: DomainSpec) -> None:
    """A slip of the hand must not cut this domain off from itself."""
    if spec.role:
        raise invalid("role", f'"{here.domain}" is the domain of this node itself and no partner')
    if spec.cert and public_key_of_certificate(spec.cert) != encoded(here.identity.public_key_pem):
        raise invalid("cert", "is of another key than this domain's own; its node puts the right one there")


def _no_domain(name: str) -> CallRefused:
    return CallRefused(ApiErrorCode.NO_DOMAIN, f'there is no domain "{name}"')


def _response(domain: Domain, *, tokens: bool = True) -> Object:
    """`tokens`: whether the caller may know the deploy tokens, with which nodes join."""
    spec, status = domain.spec, domain.status
    out: Object = {
        "domain_id": domain.metadata.name,
        "role": spec.role,
        "cert": spec.cert,
        "node_statuses": [
            {
                "name": node.name,
                "status": node.status,
                "version": node.version,
                "bandwidth_bits": node.bandwidth_bits or 0,
                "bandwidth_allocatable_bits": node.bandwidth_allocatable_bits or 0,
                **_times(node),
            }
            for node in status.node_statuses or ()
        ],
        "deploy_token_statuses": [
            {"token": each.token, "state": each.state, "last_transition_time": each.last_transition_time or ""}
            for each in (status.deploy_token_statuses if tokens else None) or ()
        ],
        "annotations": domain.metadata.annotations or {},
        "master_domain_id": spec.master,
    }
    if spec.auth_center is not None:
        out["auth_center"] = {
            "authentication_type": spec.auth_center.authentication_type,
            "token_gen_method": spec.auth_center.token_gen_method,
        }
    return out


def _times(node: DomainNodeStatus) -> Object:
    return {
        "last_heartbeat_time": node.last_heartbeat_time or "",
        "last_transition_time": node.last_transition_time or "",
    }


def _brief(response: Object) -> Object:
    return {name: response[name] for name in ("domain_id", "role", "cert", "node_statuses") if name in response}


OPERATIONS = (
    ApiOperation(
        "DomainService",
        "CreateDomain",
        "/api/v1/domain/create",
        ApiErrorCode.CREATE_DOMAIN,
        create,
        on_lite=OnLite.REFUSE,
        secret=True,
    ),
    ApiOperation(
        "DomainService",
        "QueryDomain",
        "/api/v1/domain/query",
        ApiErrorCode.QUERY_DOMAIN,
        query,
        for_domains=True,
        on_lite=OnLite.FORWARD,
        secret=True,
    ),
    ApiOperation(
        "DomainService",
        "UpdateDomain",
        "/api/v1/domain/update",
        ApiErrorCode.UPDATE_DOMAIN,
        update,
        for_domains=True,
        on_lite=OnLite.FORWARD,
        secret=True,
    ),
    ApiOperation(
        "DomainService",
        "DeleteDomain",
        "/api/v1/domain/delete",
        ApiErrorCode.DELETE_DOMAIN,
        delete,
        on_lite=OnLite.REFUSE,
    ),
    ApiOperation(
        "DomainService",
        "BatchQueryDomain",
        "/api/v1/domain/batchQuery",
        ApiErrorCode.QUERY_DOMAIN_STATUS,
        batch_query,
        for_domains=True,
        on_lite=OnLite.FORWARD,
    ),
)
