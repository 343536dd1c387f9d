"""Questions about access, asked as objects."""

from datetime import UTC, datetime
from typing import Any

import pytest

from coterie.base import pki
from coterie.base.clock import VirtualClock
from coterie.http.messages import UserInfo
from coterie.kube.api.errors import BadRequest, Invalid
from coterie.kube.apiserver.auth.authn import Authenticator
from coterie.kube.apiserver.auth.rbac import RbacAuthorizer
from coterie.kube.apiserver.auth.reviews import (
    local_subject_access_review,
    self_subject_access_review,
    self_subject_review,
    self_subject_rules_review,
    subject_access_review,
    token_review,
)
from coterie.kube.apiserver.auth.tokens import ISSUER, Lookups, TokenSigner, request_token

ANN = UserInfo("ann", ("dev",), "7", (("scopes", ("a", "b")),))
AUTH = RbacAuthorizer(
    roles=lambda: [
        {
            "metadata": {"name": "r", "namespace": "dev"},
            "rules": [{"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]}],
        }
    ],
    role_bindings=lambda: [
        {
            "metadata": {"name": "b", "namespace": "dev"},
            "roleRef": {"kind": "Role", "name": "r"},
            "subjects": [{"kind": "Group", "name": "dev"}],
        }
    ],
    cluster_roles=lambda: [{"metadata": {"name": "c"}, "rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]}],
    cluster_role_bindings=lambda: [
        {
            "metadata": {"name": "c"},
            "roleRef": {"kind": "ClusterRole", "name": "c"},
            "subjects": [{"kind": "User", "name": "ann"}],
        }
    ],
)


def review(**spec: Any) -> dict[str, Any]:
    return {"metadata": {}, "spec": spec}


LIST_PODS = {"verb": "list", "resource": "pods", "namespace": "dev", "version": "v1"}


def test_self_subject_access_review():
    answer = self_subject_access_review(review(resourceAttributes=LIST_PODS), AUTH, ANN)
    assert answer == {
        "kind": "SelfSubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "metadata": {},
        "spec": {"resourceAttributes": LIST_PODS},
        "status": {"allowed": True, "reason": 'RBAC: allowed by RoleBinding "b/dev" of Role "r" to Group "dev"'},
    }
    elsewhere = self_subject_access_review(review(resourceAttributes=LIST_PODS | {"namespace": "prod"}), AUTH, ANN)
    assert elsewhere["status"] == {"allowed": False}
    url = review(nonResourceAttributes={"verb": "get", "path": "/x"})
    assert self_subject_access_review(url, AUTH, ANN)["status"]["allowed"]


def test_subject_access_review_is_about_the_named_user():
    answer = subject_access_review(review(resourceAttributes=LIST_PODS, user="bob", groups=["dev"]), AUTH)
    assert answer["kind"] == "SubjectAccessReview" and answer["status"]["allowed"]
    assert not subject_access_review(review(resourceAttributes=LIST_PODS, user="ann"), AUTH)["status"]["allowed"]


def test_local_subject_access_review_stays_in_its_namespace():
    asked = review(resourceAttributes=LIST_PODS, groups=["dev"])
    assert local_subject_access_review(asked, AUTH, "dev")["status"]["allowed"]
    with pytest.raises(Invalid, match=r"must match metadata\.namespace"):
        local_subject_access_review(asked, AUTH, "prod")
    with pytest.raises(Invalid, match="nonResourceAttributes"):
        local_subject_access_review(review(nonResourceAttributes={"path": "/x"}, user="a"), AUTH, "dev")


@pytest.mark.parametrize(
    "spec",
    [{}, {"user": "a"}, {"resourceAttributes": LIST_PODS}, {"resourceAttributes": {}, "nonResourceAttributes": {}, "user": "a"}],
    ids=["empty", "nothing-asked", "nobody", "both"],
)  # fmt: skip
def test_incomplete_questions(spec):
    with pytest.raises(Invalid):
        subject_access_review(review(**spec), AUTH)


def test_a_spec_that_is_no_object():
    with pytest.raises(BadRequest):
        subject_access_review({"spec": []}, AUTH)


def test_rules_review():
    status = self_subject_rules_review(review(namespace="dev"), AUTH, ANN)["status"]
    assert status == {
        "resourceRules": [{"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]}],
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}],
        "incomplete": False,
    }
    with pytest.raises(BadRequest):
        self_subject_rules_review(review(), AUTH, ANN)


def test_who_am_i():
    answer = self_subject_review({"metadata": {}, "apiVersion": "authentication.k8s.io/v1beta1"}, ANN)
    assert answer == {
        "kind": "SelfSubjectReview",
        "apiVersion": "authentication.k8s.io/v1beta1",
        "metadata": {},
        "status": {"userInfo": {"username": "ann", "uid": "7", "groups": ["dev"], "extra": {"scopes": ["a", "b"]}}},
    }


def test_token_review():
    clock = VirtualClock(datetime(2026, 1, 2, tzinfo=UTC))
    account = {"metadata": {"name": "robot", "namespace": "dev", "uid": "u"}}
    lookups = Lookups(service_account=lambda *_: account)
    signer = TokenSigner(pki.new_key())
    authenticator = Authenticator(signer=signer, lookups=lookups, clock=clock)
    token = request_token({}, account, signer, lookups, clock.now())["status"]["token"]
    status = token_review(review(token=token), authenticator)["status"]
    assert status["authenticated"] is True
    assert status["user"]["username"] == "system:serviceaccount:dev:robot"
    assert status["audiences"] == [ISSUER]
    assert token_review(review(token=token, audiences=["other"]), authenticator)["status"] == {
        "user": {},
        "error": "the token has another audience",
    }
    refused = token_review(review(token="rubbish"), authenticator)["status"]
    assert "authenticated" not in refused and refused["error"]
    with pytest.raises(BadRequest):
        token_review(review(), authenticator)
