"""Rules of admission webhooks, and of the `clientConfig` that conversion webhooks share with them."""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from coterie.base.lazy_import import lazy_import
from coterie.kube.api.errors import duplicate, invalid, not_supported, required, too_many
from coterie.kube.api.names import dns_subdomain_faults, qualified_name_faults
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules, setdefaults
from coterie.kube.api.rules.common import optional_one_of
from coterie.kube.api.selectors import validate_selector

if TYPE_CHECKING:
    from coterie.kube.api.cel import errors as cel_errors
    from coterie.kube.api.cel import program, types
else:
    cel_errors = lazy_import("coterie.kube.api.cel.errors")
    program = lazy_import("coterie.kube.api.cel.program")
    types = lazy_import("coterie.kube.api.cel.types")

GROUP = "admissionregistration.k8s.io"
REVIEW_VERSIONS = ("v1", "v1beta1")
_OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_SCOPES = ("*", "Cluster", "Namespaced")
_MOST_CONDITIONS = 64
_URL_FORM = "; desired format: https://host[/path]"


def _default_webhook(webhook: Obj, *, mutating: bool) -> None:
    setdefaults(webhook, failurePolicy="Fail", matchPolicy="Equivalent", timeoutSeconds=10)
    for key in ("namespaceSelector", "objectSelector"):
        if webhook.get(key) is None:
            webhook[key] = {}
    if mutating:
        setdefaults(webhook, reinvocationPolicy="Never")
    default_client(webhook.get("clientConfig"))
    for rule in webhook.get("rules") or ():
        setdefaults(rule, scope="*")


def default_client(client: Obj | None) -> None:
    if client and client.get("service"):
        setdefaults(client["service"], port=443)


def _default_mutating(obj: Obj) -> None:
    for webhook in obj.get("webhooks") or ():
        _default_webhook(webhook, mutating=True)


def _default_validating(obj: Obj) -> None:
    for webhook in obj.get("webhooks") or ():
        _default_webhook(webhook, mutating=False)


def _validate(obj: Obj) -> Errors:
    errors: Errors = []
    seen: set[str] = set()
    for index, webhook in enumerate(obj.get("webhooks") or ()):
        path = f"webhooks[{index}]"
        errors += _check_webhook(webhook, path)
        name = webhook.get("name") or ""
        if name in seen:
            errors.append(duplicate(f"{path}.name", name))
        seen.add(name)
    return errors


def _check_webhook(webhook: Obj, path: str) -> Errors:
    errors = _check_name(webhook.get("name") or "", f"{path}.name")
    errors += check_review_versions(webhook.get("admissionReviewVersions") or [], f"{path}.admissionReviewVersions")
    for index, rule in enumerate(webhook.get("rules") or ()):
        errors += check_rule(rule, f"{path}.rules[{index}]")
    errors += optional_one_of(webhook.get("failurePolicy"), ("Fail", "Ignore"), f"{path}.failurePolicy")
    errors += optional_one_of(webhook.get("matchPolicy"), ("Equivalent", "Exact"), f"{path}.matchPolicy")
    if not webhook.get("sideEffects"):
        errors.append(required(f"{path}.sideEffects", "must specify one of None, NoneOnDryRun"))
    else:
        errors += optional_one_of(webhook["sideEffects"], ("None", "NoneOnDryRun"), f"{path}.sideEffects")
    errors += optional_one_of(webhook.get("reinvocationPolicy"), ("IfNeeded", "Never"), f"{path}.reinvocationPolicy")
    timeout = webhook.get("timeoutSeconds")
    if timeout is not None and not 1 <= timeout <= 30:
        errors.append(invalid(f"{path}.timeoutSeconds", timeout, "the timeout value must be between 1 and 30 seconds"))
    for key in ("namespaceSelector", "objectSelector"):
        errors += validate_selector(webhook.get(key) or {}, f"{path}.{key}")
    errors += check_client(webhook.get("clientConfig") or {}, f"{path}.clientConfig")
    errors += _check_conditions(webhook.get("matchConditions") or [], f"{path}.matchConditions")
    return errors


def _check_name(name: str, path: str) -> Errors:
    if not name:
        return [required(path)]
    if faults := dns_subdomain_faults(name):
        return [invalid(path, name, fault) for fault in faults]
    if len(name.split(".")) < 3:
        return [invalid(path, name, "should be a domain with at least three segments separated by dots")]
    return []


def check_review_versions(versions: list[str], path: str, known: tuple[str, ...] = REVIEW_VERSIONS) -> Errors:
    if not versions:
        return [required(path, f"must specify one of {', '.join(known)}")]
    errors: Errors = []
    seen: set[str] = set()
    for index, version in enumerate(versions):
        if version in seen:
            errors.append(invalid(f"{path}[{index}]", version, "duplicate version"))
        seen.add(version)
    if not errors and not seen & set(known):
        errors.append(invalid(path, versions, f"must include at least one of {', '.join(known)}"))
    return errors


def check_rule(rule: Obj, path: str) -> Errors:
    errors = _check_list(rule.get("operations") or [], f"{path}.operations", "operations")
    for index, operation in enumerate(rule.get("operations") or ()):
        if operation not in _OPERATIONS:
            errors.append(not_supported(f"{path}.operations[{index}]", operation, _OPERATIONS))
    errors += _check_list(rule.get("apiGroups") or [], f"{path}.apiGroups", "API groups")
    errors += _check_list(rule.get("apiVersions") or [], f"{path}.apiVersions", "API versions")
    for index, version in enumerate(rule.get("apiVersions") or ()):
        if not version:
            errors.append(required(f"{path}.apiVersions[{index}]"))
    errors += _check_resources(rule.get("resources") or [], f"{path}.resources")
    return errors + optional_one_of(rule.get("scope"), _SCOPES, f"{path}.scope")


def _check_list(values: list[str], path: str, what: str) -> Errors:
    if not values:
        return [required(path)]
    if len(values) > 1 and "*" in values:
        return [invalid(path, values, f"if '*' is present, must not specify other {what}")]
    return []


def _check_resources(resources: list[str], path: str) -> Errors:
    if not resources:
        return [required(path)]
    errors: Errors = []
    seen: set[str] = set()
    with_all = {text.partition("/")[0] for text in resources if text.endswith("/*")}
    all_with = {text.partition("/")[2] for text in resources if text.startswith("*/")}
    for index, text in enumerate(resources):
        at = f"{path}[{index}]"
        name, slash, sub = text.partition("/")
        if not text:
            errors.append(required(at))
            continue
        if text in seen:
            errors.append(duplicate(at, text))
        seen.add(text)
        if slash and sub != "*" and name in with_all:
            errors.append(invalid(at, text, f"if '{name}/*' is present, must not specify {text}"))
        if slash and name != "*" and sub in all_with:
            errors.append(invalid(at, text, f"if '*/{sub}' is present, must not specify {text}"))
    if "*/*" in resources and len(resources) > 1:
        errors.append(invalid(path, resources, "if '*/*' is present, must not specify other resources"))
    if "*" in resources and any("/" not in text for text in resources if text != "*"):
        why = "if '*' is present, must not specify other resources without subresources"
        errors.append(invalid(path, resources, why))
    return errors


# ---- how the server is reached --------------------------------------------------------------------------------------


def check_client(client: Obj, path: str) -> Errors:
    url, service = client.get("url"), client.get("service")
    if (url is None) == (service is None):
        return [required(path, "exactly one of url or service is required")]
    errors = _check_bundle(client.get("caBundle"), f"{path}.caBundle")
    if url is not None:
        return errors + _check_url(url, f"{path}.url")
    return errors + _check_service(service or {}, f"{path}.service")


def _check_bundle(bundle: Any, path: str) -> Errors:
    if not bundle:
        return []
    try:
        text = binascii.a2b_base64(bundle)
    except ValueError:
        return [invalid(path, "...", "must be base64")]
    if b"-----BEGIN CERTIFICATE-----" not in text:
        return [invalid(path, "...", "unable to load root certificates: unable to parse bytes as PEM block")]
    return []


def _check_url(url: str, path: str) -> Errors:
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError as problem:
        return [required(path, f"url must be a valid URL: {problem}{_URL_FORM}")]
    errors: Errors = []
    if parts.scheme != "https":
        errors.append(invalid(path, parts.scheme, f"'https' is the only allowed URL scheme{_URL_FORM}"))
    if not host:
        errors.append(invalid(path, parts.netloc, f"host must be specified{_URL_FORM}"))
    if parts.username or parts.password:
        errors.append(invalid(path, "...", "user information is not permitted in the URL"))
    if parts.fragment:
        errors.append(invalid(path, parts.fragment, "fragments are not permitted in the URL"))
    if parts.query:
        errors.append(invalid(path, parts.query, "query parameters are not permitted in the URL"))
    if any(not "!" <= mark <= "~" for mark in url):
        errors.append(invalid(path, url, "must be percent-encoded"))
    return errors


def _check_service(service: Obj, path: str) -> Errors:
    errors: Errors = []
    if not service.get("name"):
        errors.append(required(f"{path}.name", "service name is required"))
    if not service.get("namespace"):
        errors.append(required(f"{path}.namespace", "service namespace is required"))
    port = service.get("port")
    if port is not None and not 1 <= port <= 65535:
        errors.append(invalid(f"{path}.port", port, "port is not valid: must be between 1 and 65535, inclusive"))
    text = service.get("path")
    if text is None or text in ("", "/"):
        return errors
    if not text.startswith("/"):
        return [*errors, invalid(f"{path}.path", text, "must start with a '/'")]
    segments = text[1:].removesuffix("/").split("/")
    for index, segment in enumerate(segments):
        if not segment:
            errors.append(invalid(f"{path}.path", text, f"segment[{index}] may not be empty"))
        else:
            errors += [
                invalid(f"{path}.path", text, f"segment[{index}]: {fault}") for fault in dns_subdomain_faults(segment)
            ]
    return errors


# ---- match conditions -----------------------------------------------------------------------------------------------


def _check_conditions(conditions: list[Obj], path: str) -> Errors:
    errors: Errors = []
    if len(conditions) > _MOST_CONDITIONS:
        errors.append(too_many(path, len(conditions), _MOST_CONDITIONS))
    seen: set[str] = set()
    for index, condition in enumerate(conditions):
        at, name = f"{path}[{index}]", condition.get("name") or ""
        if not name:
            errors.append(required(f"{at}.name"))
        else:
            errors += [invalid(f"{at}.name", name, fault) for fault in qualified_name_faults(name)]
        if name and name in seen:
            errors.append(duplicate(f"{at}.name", name))
        seen.add(name)
        errors += _check_expression((condition.get("expression") or "").strip(), f"{at}.expression")
    return errors


def compile_condition(expression: str) -> program.CelProgram:
    """To be evaluated with: the object, the old one, the request, an authorizer, its check of the resource of the request.

    Raises CompileError."""
    return program.compile_expression(
        expression,
        {
            "object": types.DYN,
            "oldObject": types.DYN,
            "request": types.DYN,
            "authorizer": types.AUTHORIZER,
            "authorizer.requestResource": types.RESOURCE_CHECK,
        },
    )


def _check_expression(expression: str, path: str) -> Errors:
    if not expression:
        return [required(path)]
    try:
        compiled = compile_condition(expression)
    except cel_errors.CompileError as fault:
        return [invalid(path, expression, f"compilation failed: {fault}")]
    if compiled.type is not types.BOOL and compiled.type is not types.DYN:
        return [invalid(path, expression, "must evaluate to bool")]
    return []


RULES: dict[tuple[str, str], KindRules] = {
    (GROUP, "MutatingWebhookConfiguration"): make_rules(
        default=_default_mutating, validate=_validate, generation=("webhooks",)
    ),
    (GROUP, "ValidatingWebhookConfiguration"): make_rules(
        default=_default_validating, validate=_validate, generation=("webhooks",)
    ),
}
