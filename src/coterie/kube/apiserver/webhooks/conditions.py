"""Match conditions of webhooks: CEL expressions over the request, all of which must hold."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from coterie.http.messages import UserInfo
from coterie.kube.api.cel.errors import CelError
from coterie.kube.api.cel.lib_authorization import ResourceCheck
from coterie.kube.api.cel.program import BUDGET, CelProgram
from coterie.kube.api.rules.webhooks import compile_condition
from coterie.kube.apiserver.auth.cel_authorizer import authorizer_value
from coterie.kube.apiserver.auth.nodes import NodeAuthorizer
from coterie.kube.apiserver.webhooks.matching import Webhook

Object = dict[str, Any]


@lru_cache(maxsize=256)
def _compiled(expression: str) -> CelProgram:
    return compile_condition(expression)


def hold(webhook: Webhook, values: list[Any]) -> bool:
    """Raises CelError when one cannot be evaluated and none of the others is false."""
    problem: CelError | None = None
    budget = [BUDGET]
    for condition in webhook.conditions:
        try:
            if _compiled(condition["expression"].strip()).evaluate(values, budget) is not True:
                return False
        except CelError as fault:
            problem = problem or CelError(f"{condition.get('name')}: {fault}")
    if problem is not None:
        raise problem
    return True


def variables(
    authorizer: NodeAuthorizer, user: UserInfo, request: Object, obj: Object | None, old: Object | None
) -> list[Any]:
    """`request`: that of the AdmissionReview, without its objects."""
    value = authorizer_value(authorizer, user)
    resource = request["requestResource"]
    check = ResourceCheck(
        value,
        resource["group"],
        resource["resource"],
        request.get("requestSubResource", ""),
        request.get("namespace", ""),
        request.get("name", ""),
    )
    return [obj, old, request, value, check]
