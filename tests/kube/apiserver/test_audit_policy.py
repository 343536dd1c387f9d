"""Audit policies: how files are read, which rule counts, and what is written for a request."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from server_kit import ADMIN, CMS, Api, Watch, config_map, serving

from coterie.base.secret import SecretValue
from coterie.http.messages import UserInfo
from coterie.kube.apiserver.audit import AuditRecord, FileSink
from coterie.kube.apiserver.audit_policy import AuditedRequest, AuditLevel, AuditPolicyError, parse_policy
from coterie.kube.apiserver.server import Settings
from coterie.kuscia.extensions.apiserver import KUSCIA

HEAD: dict[str, Any] = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy"}
SECRETS = "/api/v1/namespaces/default/secrets"
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"password": "hunter2"}}
HIDDEN = ("hunter2", "aHVudGVyMg==")
ANN = UserInfo("ann", ("dev", "system:authenticated"))


def policy(*rules: dict[str, Any], **more: Any) -> bytes:
    return yaml.safe_dump({**HEAD, "rules": list(rules), **more}).encode()


# ---- reading ----


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"{", "is not YAML"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"", "the policy: must be a mapping"),
        (b"[1]", "the policy: must be a mapping"),
        (b"{apiVersion: audit.k8s.io/v1beta1, kind: Policy, rules: [{level: None}]}", "must have apiVersion audit.k8s.io/v1"),
        (policy(), "rules: there must be at least one rule"),
        (policy({"level": "metadata"}), "rules[0].level: must be one of None, Metadata, Request, RequestResponse, not 'metadata'"),
        (policy({}), "rules[0].level: must be one of"),
        (policy({"level": "None", "user": ["ann"]}), "rules[0]: unknown field 'user'"),
        (policy({"level": "None"}, {"level": "None", "verbs": "get"}), "rules[1].verbs: must be a list of texts"),
        (policy({"level": "None"}, omitStages=["Received"]), "omitStages: must be a list of RequestReceived"),
        (policy({"level": "None", "omitStages": ["x"]}), "rules[0].omitStages: must be a list"),
        (policy({"level": "None", "omitManagedFields": "yes"}), "rules[0].omitManagedFields: must be true or false"),
        (policy({"level": "None", "nonResourceURLs": ["/x"], "namespaces": ["a"]}), "rules cannot apply to both regular resources and non-resource URLs"),
        (policy({"level": "None", "nonResourceURLs": ["/a*b"]}), "may have * only at the end"),
        (policy({"level": "None", "nonResourceURLs": ["x"]}), "must begin with /"),
        (policy({"level": "None", "resources": [{"resourceNames": ["a"]}]}), "requires at least one resource"),
        (policy({"level": "None", "resources": [{"group": "apps/v1"}]}), "must be the name of an API group without version"),
        (policy({"level": "None", "resources": ["pods"]}), "rules[0].resources[0]: must be a mapping"),
    ],
)  # fmt: skip
def test_what_is_no_policy_is_refused_with_the_place(text: bytes, why: str):
    with pytest.raises(AuditPolicyError) as caught:
        parse_policy(text)
    assert why in str(caught.value)


def asked(**change: Any) -> AuditedRequest:
    values: dict[str, Any] = {
        "user": ANN,
        "verb": "get",
        "path": "/x",
        "resource": "pods",
        "namespace": "dev",
        "name": "p",
    }
    return AuditedRequest(**{**values, **change})


@pytest.mark.parametrize(
    ("rule", "request_", "matches"),
    [
        ({}, asked(), True),
        ({"users": ["ann"]}, asked(), True),
        ({"users": ["bob"]}, asked(), False),
        ({"userGroups": ["x", "dev"]}, asked(), True),
        ({"userGroups": ["ops"]}, asked(), False),
        ({"verbs": ["get", "list"]}, asked(), True),
        ({"verbs": ["*"]}, asked(), False),
        ({"namespaces": ["dev"]}, asked(), True),
        ({"namespaces": [""]}, asked(), False),
        ({"namespaces": [""]}, asked(resource="nodes", namespace=""), True),
        ({"resources": [{"group": ""}]}, asked(), True),
        ({"resources": [{"group": "apps"}]}, asked(), False),
        ({"resources": [{"resources": ["pods"]}]}, asked(), True),
        ({"resources": [{"resources": ["pods"]}]}, asked(subresource="log"), False),
        ({"resources": [{"resources": ["pods/log"]}]}, asked(subresource="log"), True),
        ({"resources": [{"resources": ["pods/*"]}]}, asked(subresource="log"), True),
        ({"resources": [{"resources": ["*/log"]}]}, asked(subresource="log"), True),
        ({"resources": [{"resources": ["*"]}]}, asked(subresource="log"), True),
        ({"resources": [{"resources": ["pods"], "resourceNames": ["q"]}]}, asked(), False),
        ({"resources": [{"resources": ["pods"], "resourceNames": ["p"]}]}, asked(), True),
        ({"nonResourceURLs": ["/x"]}, asked(), False),
        ({"nonResourceURLs": ["/healthz*", "/x"]}, asked(resource="", path="/x"), True),
        ({"nonResourceURLs": ["/healthz*"]}, asked(resource="", path="/healthz/ping"), True),
        ({"nonResourceURLs": ["*"]}, asked(resource="", path="/anything"), True),
        ({"resources": [{"group": ""}]}, asked(resource="", path="/x"), False),
    ],
)
def test_the_first_matching_rule_counts(rule: dict[str, Any], request_: AuditedRequest, matches: bool):
    made = parse_policy(policy({"level": "Request", **rule}, {"level": "Metadata"}))
    assert made.rule_for(request_).level == (AuditLevel.REQUEST if matches else AuditLevel.METADATA)


def test_without_a_matching_rule_nothing_is_recorded():
    assert parse_policy(policy({"level": "Metadata", "users": ["bob"]})).rule_for(asked()).level == AuditLevel.NONE


# ---- recording ----


@asynccontextmanager
async def audited(text: bytes) -> AsyncIterator[tuple[Api, list[dict[str, Any]]]]:
    events: list[dict[str, Any]] = []

    def record(event: AuditRecord) -> None:
        events.append(json.loads(json.dumps(event.as_json())))

    tokens = [(SecretValue("admin-token"), ADMIN), (SecretValue("ann-token"), ANN)]
    settings = Settings(
        audit_policy=parse_policy(text), audit_record=record, static_tokens=tokens, extensions=(KUSCIA,)
    )
    async with serving(settings) as api:
        events.clear()  # what the server itself made at its start
        yield api, events


async def test_a_change_in_kubernetes_format():
    async with audited(policy({"level": "RequestResponse", "omitManagedFields": True})) as (api, events):
        headers = {"user-agent": "kubectl/v1", "audit-id": "given-1", "content-type": "application/json"}
        await api.post(CMS, config_map("a", key="value"), query="fieldManager=me", headers=headers)
        received, complete = events
        assert received["stage"] == "RequestReceived" and "responseStatus" not in received
        assert {key: complete[key] for key in complete if not key.endswith("Timestamp")} == {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "RequestResponse",
            "auditID": "given-1",
            "stage": "ResponseComplete",
            "requestURI": f"{CMS}?fieldManager=me",
            "verb": "create",
            "user": {"username": "admin", "groups": ["system:masters", "system:authenticated"]},
            "sourceIPs": [],
            "userAgent": "kubectl/v1",
            "objectRef": {"resource": "configmaps", "namespace": "default", "name": "a", "apiVersion": "v1"},
            "responseStatus": {"metadata": {}, "code": 201},
            "requestObject": config_map("a", key="value"),
            "responseObject": complete["responseObject"],
            "annotations": {"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": ""},
        }
        assert complete["responseObject"]["data"] == {"key": "value"}
        assert "managedFields" not in complete["responseObject"]["metadata"]
        assert complete["requestReceivedTimestamp"] and complete["stageTimestamp"]


@pytest.mark.parametrize(
    ("level", "bodies"),
    [
        ("None", None),
        ("Metadata", set()),
        ("Request", {"requestObject"}),
        ("RequestResponse", {"requestObject", "responseObject"}),
    ],
)
async def test_levels(level: str, bodies: set[str] | None):
    async with audited(policy({"level": level}, omitStages=["RequestReceived"])) as (api, events):
        await api.post(CMS, config_map("a", key="value"))
        if bodies is None:
            assert events == []
            return
        (event,) = events
        assert {key for key in event if key.endswith("Object")} == bodies
        await api.patch(f"{CMS}/a", {"data": {"key": "other"}})
        if bodies:
            assert events[-1]["requestObject"] == {"data": {"key": "other"}}
        await api.get(f"{CMS}/a")
        assert events[-1]["verb"] == "get" and ("responseObject" in events[-1]) is ("responseObject" in bodies)


async def test_managed_fields_stay_unless_the_rule_leaves_them_out():
    rules = ({"level": "RequestResponse", "verbs": ["get"]}, {"level": "None"})
    async with audited(policy(*rules, omitStages=["RequestReceived"])) as (api, events):
        await api.post(CMS, config_map("a"), query="fieldManager=me")
        await api.get(CMS + "/a")
        assert events[0]["responseObject"]["metadata"]["managedFields"]


@pytest.mark.parametrize("level", ["Request", "RequestResponse"])
async def test_secrets_are_not_meant_by_a_rule_for_everything(level: str):
    broad = (
        policy({"level": level}),
        policy({"level": level, "resources": [{"group": ""}]}),
        policy({"level": level, "resources": [{"group": "", "resources": ["*"]}]}),
        policy({"level": level, "namespaces": ["default"]}),
    )
    for text in broad:
        async with audited(text) as (api, events):
            await api.post(SECRETS, SECRET)
            await api.put(f"{SECRETS}/s", SECRET)
            await api.patch(f"{SECRETS}/s", {"stringData": {"password": "hunter2"}})
            await api.get(SECRETS)
            await api.get(f"{SECRETS}/s")
            await api.call("POST", SECRETS, {**SECRET, "metadata": {"name": "t"}, "data": "hunter2"})
            account = "/api/v1/namespaces/default/serviceaccounts"
            await api.post(account, {"metadata": {"name": "robot"}})
            review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "hunter2"}}
            await api.post("/apis/authentication.k8s.io/v1/tokenreviews", review)
            assert len([each for each in events if each["stage"] == "ResponseComplete"]) >= 6
            assert not any(word in json.dumps(events) for word in HIDDEN)
    async with audited(policy({"level": level, "resources": [{"group": "", "resources": ["secrets"]}]})) as (
        api,
        events,
    ):
        await api.post(SECRETS, SECRET)
        assert events[-1]["requestObject"]["stringData"] == {"password": "hunter2"}  # the operator's own decision


async def test_bodies_of_domains_are_as_secret():
    async with audited(policy({"level": "RequestResponse"})) as (api, events):
        domain = {"apiVersion": "kuscia.secretflow/v1alpha1", "kind": "Domain", "metadata": {"name": "bob"}, "spec": {}}
        await api.post("/apis/kuscia.secretflow/v1alpha1/domains", domain)
        assert events[-1]["objectRef"]["name"] == "bob" and "requestObject" not in events[-1]
        # Errors quote what was sent.
        quoted = await api.call("POST", "/apis/kuscia.secretflow/v1alpha1/domains", {"spec": "hunter2"})
        assert quoted.status == 400 and "hunter2" in quoted.message
        assert events[-1]["responseStatus"]["reason"] == "BadRequest" and "hunter2" not in json.dumps(events)


async def test_answers_in_other_formats_are_recorded_as_json():
    async with audited(policy({"level": "RequestResponse"}, omitStages=["RequestReceived"])) as (api, events):
        await api.post(CMS, config_map("a", key="value"))
        answer = await api.call("GET", f"{CMS}/a", headers={"accept": "application/vnd.kubernetes.protobuf"})
        assert answer.status == 200
        assert events[-1]["responseObject"]["data"] == {"key": "value"}
        missing = await api.call("GET", f"{CMS}/b", headers={"accept": "application/vnd.kubernetes.protobuf"})
        assert missing.status == 404 and events[-1]["responseStatus"]["reason"] == "NotFound"


async def test_a_large_body_is_left_out_and_said_so():
    async with audited(policy({"level": "RequestResponse"}, omitStages=["RequestReceived"])) as (api, events):
        await api.post(CMS, config_map("a", key="x" * 200_000))
        (event,) = events
        assert "requestObject" not in event and "responseObject" not in event
        assert event["annotations"]["audit.k8s.io/truncated"] == "true"


async def test_a_watch_has_a_beginning_and_an_end():
    async with audited(policy({"level": "Metadata"}, omitStages=["RequestReceived"])) as (api, events):
        watch: Watch = await api.watch(CMS)
        assert [each["stage"] for each in events] == ["ResponseStarted"]
        watch.leave()
        assert [each["stage"] for each in events] == ["ResponseStarted", "ResponseComplete"]
        assert {each["verb"] for each in events} == {"watch"} and len({each["auditID"] for each in events}) == 1


async def test_refusals_are_recorded_with_who_asked():
    async with audited(policy({"level": "Metadata"}, omitStages=["RequestReceived"])) as (api, events):
        ann = {"authorization": "Bearer ann-token"}
        await api.refused(403, "GET", SECRETS, user=None, headers=ann)
        assert events[-1]["user"]["username"] == "ann"
        assert events[-1]["annotations"]["authorization.k8s.io/decision"] == "forbid"
        assert events[-1]["responseStatus"]["reason"] == "Forbidden" and events[-1]["responseStatus"]["code"] == 403
        await api.refused(401, "GET", SECRETS, user=None, headers={"authorization": "Bearer guess"})
        assert events[-1]["user"] == {} and events[-1]["responseStatus"]["code"] == 401
        assert "guess" not in json.dumps(events)
        await api.refused(403, "GET", SECRETS, user=None, headers={**ann, "impersonate-user": "boss"})
        assert events[-1]["user"]["username"] == "ann" and "impersonatedUser" not in events[-1]


async def test_both_users_of_an_impersonated_request_are_recorded_and_the_real_one_is_matched():
    rules = ({"level": "Metadata", "users": ["admin"]}, {"level": "None"})
    async with audited(policy(*rules, omitStages=["RequestReceived"])) as (api, events):
        headers = {
            "authorization": "Bearer admin-token",
            "impersonate-user": "eve",
            "impersonate-uid": "7",
            "impersonate-extra-team": "red\nblue",
        }
        await api.refused(403, "GET", SECRETS, user=None, headers=headers)
        (event,) = events
        assert event["user"]["username"] == "admin"
        assert event["impersonatedUser"] == {
            "username": "eve", "groups": ["system:authenticated"], "uid": "7", "extra": {"team": ["red", "blue"]},
        }  # fmt: skip


async def test_paths_that_are_no_resources():
    text = policy(
        {"level": "None", "nonResourceURLs": ["/healthz*"]}, {"level": "Metadata", "nonResourceURLs": ["/version"]}
    )
    async with audited(text) as (api, events):
        await api.call("GET", "/healthz")
        await api.get("/version")
        await api.get(CMS)
        assert [(each["requestURI"], each["verb"]) for each in events] == [("/version", "get")] * 2
        assert "objectRef" not in events[0]


async def test_a_log_that_cannot_be_written_breaks_no_request(tmp_path: Path):
    def fails(event: AuditRecord) -> None:
        raise OSError("disk full")

    made = parse_policy(policy({"level": "Metadata"}))
    async with serving(Settings(audit_policy=made, audit_record=fails)) as api:
        await api.post(CMS, config_map("a"))
    sink = FileSink(tmp_path / "audit.jsonl")
    async with serving(Settings(audit_policy=made, audit_record=sink.record)) as api:
        await api.post(CMS, config_map("a"))
    sink.close()
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert any(line["objectRef"].get("name") == "a" for line in lines if "objectRef" in line)
