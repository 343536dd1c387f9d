"""Rules of CertificateSigningRequests. Who asked and who may decide is the server's admission (`admission/certificates.py`)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from coterie.base.lazy_import import lazy_import
from coterie.kube.api.certificate_signers import APPROVED, DENIED, FAILED, GROUP, LEGACY_UNKNOWN
from coterie.kube.api.errors import duplicate, forbidden_field, invalid, not_supported, required, too_long
from coterie.kube.api.names import dns_label_faults, dns_subdomain_faults
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules, take_only_status

if TYPE_CHECKING:
    from coterie.base import certificate_requests, pki
else:
    certificate_requests = lazy_import("coterie.base.certificate_requests")
    pki = lazy_import("coterie.base.pki")

USAGES = (
    "any", "cert sign", "client auth", "code signing", "content commitment", "crl sign", "data encipherment",
    "decipher only", "digital signature", "email protection", "encipher only", "ipsec end system", "ipsec tunnel",
    "ipsec user", "key agreement", "key encipherment", "microsoft sgc", "netscape sgc", "ocsp signing", "s/mime",
    "server auth", "signing", "timestamping",
)  # fmt: skip
FROM_REQUESTER = ("username", "uid", "groups", "extra")
"""Fields of the spec that only the server sets."""
_SHORTEST = 600
_LONGEST_DOMAIN = 253
_LONGEST_PATH = 253 + 63 + 1
_HIDDEN = "<certificate data>"
_DECISIONS = (APPROVED, DENIED)
_FINAL = (APPROVED, DENIED, FAILED)


def decoded(value: Any) -> bytes:
    """Base64 as Go reads it; what is none is empty."""
    try:
        return base64.b64decode(value or "", validate=True)
    except (binascii.Error, ValueError, TypeError):
        return b""


def _create(obj: Obj) -> None:
    for key in FROM_REQUESTER:
        (obj.get("spec") or {}).pop(key, None)


def _update(new: Obj, old: Obj) -> None:
    """The request is what was asked for; only metadata changes."""
    new.pop("spec", None)
    if "spec" in old:
        new["spec"] = old["spec"]


def _validate_create(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    errors: Errors = []
    request = decoded(spec.get("request"))
    if len(request) > certificate_requests.MAX_REQUEST_BYTES:
        errors.append(too_long("spec.request", certificate_requests.MAX_REQUEST_BYTES))
    else:
        try:
            certificate_requests.read_request(request)
        except pki.PkiError as error:
            errors.append(invalid("spec.request", "<request data>", str(error)))
    errors += _check_usages(spec.get("usages") or ())
    errors += signer_name_faults(spec.get("signerName") or "", "spec.signerName")
    seconds = spec.get("expirationSeconds")
    if seconds is not None and seconds < _SHORTEST:
        why = f"may not specify a duration less than {_SHORTEST} seconds (10 minutes)"
        errors.append(invalid("spec.expirationSeconds", seconds, why))
    return errors


def _check_usages(usages: Sequence[str]) -> Errors:
    if not usages:
        return [required("spec.usages")]
    errors: Errors = []
    seen: set[str] = set()
    for index, usage in enumerate(usages):
        if usage not in USAGES:
            errors.append(not_supported(f"spec.usages[{index}]", usage, USAGES))
        if usage in seen:
            errors.append(duplicate(f"spec.usages[{index}]", usage))
        seen.add(usage)
    return errors


def signer_name_faults(name: str, path: str) -> Errors:
    if not name:
        return [required(path)]
    if name == LEGACY_UNKNOWN:
        return [invalid(path, name, "the legacy signerName is not allowed via this API version")]
    segments = name.split("/")
    if len(segments) != 2:
        why = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
        return [invalid(path, name, why)]
    domain, rest = segments
    errors: Errors = []
    if len(domain) > _LONGEST_DOMAIN:
        errors.append(too_long(path, _LONGEST_DOMAIN))
    labels = domain.split(".")
    bad = next((label for label in labels if dns_label_faults(label)), None)
    if bad is not None:
        errors += [invalid(path, domain, f'validating label "{bad}": {why}') for why in dns_label_faults(bad)]
    if len(labels) < 2:
        errors.append(invalid(path, domain, "should be a domain with at least two segments separated by dots"))
    bad = next((label for label in rest.split(".") if dns_subdomain_faults(label)), None)
    if bad is not None:
        errors += [invalid(path, rest, f'validating label "{bad}": {why}') for why in dns_subdomain_faults(bad)]
    if len(rest) > _LONGEST_PATH:
        errors.append(too_long(path, _LONGEST_PATH))
    return errors


def _conditions(obj: Obj, kind: str = "") -> list[Obj]:
    found = (obj.get("status") or {}).get("conditions") or ()
    return [each for each in found if not kind or each.get("type") == kind]


def _check_conditions(obj: Obj) -> Errors:
    errors: Errors = []
    seen: set[str] = set()
    for index, each in enumerate(_conditions(obj)):
        path = f"status.conditions[{index}]"
        kind, status = each.get("type") or "", each.get("status") or ""
        allowed = ("True",) if kind in _FINAL else ("False", "True", "Unknown")
        if not kind:
            errors.append(required(f"{path}.type"))
        if not status:
            errors.append(required(f"{path}.status"))
        elif status not in allowed:
            errors.append(not_supported(f"{path}.status", status, allowed))
        if kind in _DECISIONS and seen & (set(_DECISIONS) - {kind}):
            why = "Approved and Denied conditions are mutually exclusive"
            errors.append(invalid(f"{path}.type", kind, why))
        if kind in seen:
            errors.append(duplicate(f"{path}.type", kind))
        seen.add(kind)
    return errors


def _check_change(new: Obj, old: Obj, *, decides: bool) -> Errors:
    """What was decided stays; `decides`: the write may add a decision, otherwise it may add a certificate."""
    errors = _check_conditions(new)
    path = "status.conditions"
    for kind in _FINAL:
        before, after = _conditions(old, kind), _conditions(new, kind)
        if len(after) < len(before):
            errors.append(forbidden_field(path, f'updates may not remove a condition of type "{kind}"'))
        elif decides or kind == FAILED:
            continue
        elif len(after) > len(before):
            errors.append(forbidden_field(path, f'updates may not add a condition of type "{kind}"'))
        elif after != before:
            errors.append(forbidden_field(path, f'updates may not modify a condition of type "{kind}"'))
    certificate = (new.get("status") or {}).get("certificate") or ""
    known = (old.get("status") or {}).get("certificate") or ""
    if certificate == known:
        return errors
    path = "status.certificate"
    if decides:
        errors.append(forbidden_field(path, "updates may not set certificate content"))
    elif known:
        errors.append(forbidden_field(path, "updates may not modify existing certificate content"))
    elif why := certificate_requests.certificates_problem(decoded(certificate)):
        errors.append(invalid(path, _HIDDEN, why))
    return errors


def _prepare_approval(new: Obj, old: Obj) -> None:
    """Of a write to `/approval` only conditions and the free part of metadata are taken."""
    take_only_status(new, old)
    status = dict(new.get("status") or {})
    certificate = (old.get("status") or {}).get("certificate")
    status.pop("certificate", None)
    new["status"] = {**status, "certificate": certificate} if certificate else status


RULES: dict[tuple[str, str], KindRules] = {
    (GROUP, "CertificateSigningRequest"): replace(
        make_rules(
            validate_create=_validate_create,
            status=True,
            create=_create,
            update=_update,
            validate_status=lambda new, old: _check_change(new, old, decides=False),
        ),
        prepare_approval_update=_prepare_approval,
        validate_approval_update=lambda new, old: _check_change(new, old, decides=True),
    ),
}
