"""The variable `authorizer` of CEL expressions in webhooks and policies: what it is asked, this server's authorizer answers."""

from __future__ import annotations

from coterie.http.messages import UserInfo
from coterie.kube.api.cel.lib_authorization import AccessDecision, AccessQuery, AuthorizerValue
from coterie.kube.apiserver.auth.rbac import RbacAuthorizer
from coterie.kube.apiserver.auth.rules import Attributes
from coterie.kube.apiserver.auth.tokens import service_account_user


def authorizer_value(authorizer: RbacAuthorizer, user: UserInfo) -> AuthorizerValue:
    """`user`: who is asked about unless an expression names a service account."""

    def decide(query: AccessQuery) -> AccessDecision:
        asking = user if query.service_account is None else service_account_user(*query.service_account)
        decision = authorizer.allowed(
            asking,
            Attributes(
                query.verb, query.group, query.resource, query.subresource, query.namespace, query.path, query.name
            ),
        )
        return AccessDecision(decision.allowed, decision.reason)

    return AuthorizerValue(decide)
