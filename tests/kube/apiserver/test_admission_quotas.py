"""Admission: quotas, limit ranges, priorities, service accounts, rights that are handed on."""

import asyncio
from typing import Any

import pytest
from server_kit import CMS, IN_PROCESS, PODS, STRATEGIC, Api, config_map, pod

from coterie.http.messages import UserInfo

QUOTAS = "/api/v1/namespaces/default/resourcequotas"
LIMITS = "/api/v1/namespaces/default/limitranges"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


async def quota(api: Api, name: str = "q", scopes: list[str] | None = None, **hard: str) -> None:
    spec = {"hard": {key.replace("__", "."): value for key, value in hard.items()}}
    if scopes:
        spec["scopes"] = scopes  # type: ignore[assignment]
    await api.post(QUOTAS, {"metadata": {"name": name}, "spec": spec})


# ---- quotas ----


async def test_a_quota_refuses_what_is_too_much(api: Api):
    await quota(api, configmaps="2")
    await api.config_map("a")
    await api.config_map("b")
    answer = await api.refused(403, "POST", CMS, config_map("c"))
    assert answer.reason == "Forbidden"
    assert answer.message == (
        'configmaps "c" is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=2, '
        "limited: configmaps=2"
    )
    await api.ok("DELETE", f"{CMS}/a")
    await api.config_map("c")


async def test_room_is_exact_when_everybody_comes_at_once(api: Api):
    await quota(api, configmaps="37")
    answers = await asyncio.gather(*(api.call("POST", CMS, config_map(f"c{n}")) for n in range(100)))
    assert [answer.status for answer in answers].count(201) == 37
    assert {answer.status for answer in answers} == {201, 403}
    assert len((await api.get(CMS))["items"]) == 37


async def test_nobody_is_refused_while_there_is_room(api: Api):
    """A write counts once, also between the moment it is durable and the moment its writer hears of it."""
    await quota(api, configmaps="105")

    async def lane(number: int) -> None:
        for n in range(15 if number == 0 else 10):
            await api.config_map(f"c{number}-{n}")

    await asyncio.gather(*(lane(number) for number in range(10)))
    await api.refused(403, "POST", CMS, config_map("more"))


def _sized(name: str, cpu: str) -> dict[str, Any]:
    made = pod(name)
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return made


async def test_a_resize_counts(api: Api):
    """With the greatest of what the spec asks for, the node gave and the container has; what is infeasible does not."""
    await quota(api, requests__cpu="1")
    made = await api.post(PODS, _sized("p", "200m"))
    container = made["spec"]["containers"][0]["name"]

    def body(cpu: str) -> dict[str, Any]:
        return {"spec": {"containers": [{"name": container, "resources": {"requests": {"cpu": cpu}}}]}}

    headers = {"content-type": STRATEGIC}
    answer = await api.refused(403, "PATCH", f"{PODS}/p/resize", body("1100m"), headers=headers)
    assert "exceeded quota: q, requested: requests.cpu=900m, used: requests.cpu=200m" in answer.message
    await api.patch(f"{PODS}/p/resize", body("900m"), STRATEGIC)
    await api.refused(403, "POST", PODS, _sized("more", "200m"))
    # Back again, but the node has not taken it back from the container yet.
    given = {"name": container, "allocatedResources": {"cpu": "900m"}, "resources": {"requests": {"cpu": "900m"}}}
    await api.patch(f"{PODS}/p/status", {"status": {"containerStatuses": [given]}})
    await api.patch(f"{PODS}/p/resize", body("200m"), STRATEGIC)
    await api.refused(403, "POST", PODS, _sized("more", "200m"))
    given |= {"allocatedResources": {"cpu": "200m"}, "resources": {"requests": {"cpu": "200m"}}}
    await api.patch(f"{PODS}/p/status", {"status": {"containerStatuses": [given]}})
    await api.post(PODS, _sized("more", "200m"))
    await api.patch(f"{PODS}/p/resize", body("800m"), STRATEGIC)
    refused = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
    await api.patch(f"{PODS}/p/status", {"status": {"conditions": [refused]}})
    await api.post(PODS, _sized("another", "600m"))


async def test_a_resize_stays_within_the_limit_range(api: Api):
    limits = [{"type": "Container", "max": {"cpu": "1"}, "default": {"cpu": "500m"}}]
    await api.post(LIMITS, {"metadata": {"name": "l"}, "spec": {"limits": limits}})
    made = await api.post(PODS, _sized("p", "200m"))
    container = made["spec"]["containers"][0]["name"]
    body = {"spec": {"containers": [{"name": container, "resources": {"limits": {"cpu": "2"}}}]}}
    answer = await api.refused(403, "PATCH", f"{PODS}/p/resize", body, headers={"content-type": STRATEGIC})
    assert "maximum cpu usage per Container is 1, but limit is 2" in answer.message


async def test_a_refused_create_gives_its_room_back(api: Api):
    await quota(api, configmaps="1")
    await api.refused(422, "POST", CMS, config_map("Not A Name"))
    await api.config_map("a")
    await api.refused(403, "POST", CMS, config_map("b"))
    assert len((await api.get(CMS))["items"]) == 1


async def test_dry_runs_take_no_room_but_are_judged(api: Api):
    await quota(api, configmaps="1")
    for _ in range(3):
        await api.post(f"{CMS}?dryRun=All", config_map("a"))
    await api.config_map("a")
    await api.refused(403, "POST", f"{CMS}?dryRun=All", config_map("b"))


@IN_PROCESS
async def test_a_writer_who_leaves_keeps_its_room_until_its_write_is_settled(api: Api, monkeypatch: pytest.MonkeyPatch):
    await quota(api, configmaps="1")
    flush = api.store._flush
    monkeypatch.setattr(api.store, "_flush", lambda: None)
    leaving = asyncio.create_task(api.call("POST", CMS, config_map("a")))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    await api.refused(403, "POST", CMS, config_map("b"))
    monkeypatch.undo()
    flush()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert len((await api.get(CMS))["items"]) == 1
    await api.refused(403, "POST", CMS, config_map("b"))


async def test_compute_resources(api: Api):
    await quota(api, requests__cpu="1", limits__memory="1Gi", pods="10")
    answer = await api.refused(403, "POST", PODS, pod("p"))
    assert "must specify limits.memory for: main; requests.cpu for: main" in answer.message

    def sized(name: str, cpu: str, memory: str) -> dict:
        return pod(name, resources={"requests": {"cpu": cpu}, "limits": {"memory": memory}})

    await api.post(PODS, sized("a", "600m", "512Mi"))
    over = await api.refused(403, "POST", PODS, sized("b", "500m", "256Mi"))
    assert "requested: requests.cpu=500m, used: requests.cpu=600m, limited: requests.cpu=1" in over.message
    await api.post(PODS, sized("b", "400m", "512Mi"))
    await api.patch(f"{PODS}/a/status", {"status": {"phase": "Succeeded"}})
    await api.post(PODS, sized("c", "600m", "512Mi"))


async def test_a_bad_quantity_is_the_clients_mistake(api: Api):
    await quota(api, requests__cpu="1")
    await api.post(
        LIMITS, {"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}}
    )
    bad = pod("p", resources={"requests": {"cpu": "abc"}, "limits": {"cpu": "xyz"}})
    assert 400 <= (await api.call("POST", PODS, bad)).status < 500
    assert (await api.call("POST", PODS, {"metadata": {"name": "p"}})).status in (403, 422)
    assert (await api.call("POST", PODS, {"metadata": {"name": "p"}, "spec": {"containers": []}})).status in (403, 422)


async def test_scopes_choose_pods(api: Api):
    await quota(api, "best", scopes=["BestEffort"], pods="1")
    await api.post(PODS, pod("a"))
    await api.refused(403, "POST", PODS, pod("b"))
    await api.post(PODS, pod("c", resources={"requests": {"cpu": "1"}}))


async def test_counting_by_object(api: Api):
    await quota(api, **{"count/deployments__apps": "0", "services__nodeports": "0"})
    labels = {"app": "d"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    body = {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
    await api.refused(403, "POST", "/apis/apps/v1/namespaces/default/deployments", body)


async def test_a_quota_made_later_counts_what_is_there(api: Api):
    for name in "abc":
        await api.config_map(name)
    await quota(api, configmaps="4")
    await api.config_map("d")
    await api.refused(403, "POST", CMS, config_map("e"))
    await api.patch(f"{QUOTAS}/q", {"spec": {"hard": {"configmaps": "5"}}})
    await api.config_map("e")
    await api.ok("DELETE", f"{QUOTAS}/q")
    await api.config_map("f")


async def test_other_namespaces_do_not_count(api: Api):
    await quota(api, configmaps="1")
    await api.namespace("other")
    for name in "abc":
        await api.config_map(name, "other")
    await api.config_map("a")
    await api.refused(403, "POST", CMS, config_map("b"))


# ---- limit ranges ----


async def limits(api: Api, **item: object) -> None:
    await api.post(LIMITS, {"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", **item}]}})


async def test_defaults_for_containers(api: Api):
    await limits(api, default={"cpu": "500m", "memory": "1Gi"}, defaultRequest={"cpu": "100m"})
    made = await api.post(PODS, pod("a"))
    assert made["spec"]["containers"][0]["resources"] == {
        "limits": {"cpu": "500m", "memory": "1Gi"},
        "requests": {"cpu": "100m", "memory": "1Gi"},
    }
    own = await api.post(PODS, pod("b", resources={"limits": {"cpu": "2"}}))
    resources = own["spec"]["containers"][0]["resources"]
    assert resources["limits"]["cpu"] == "2" and resources["requests"]["cpu"] == "2"


@pytest.mark.parametrize(
    ("item", "resources", "words"),
    [
        ({"min": {"cpu": "100m"}}, {"requests": {"cpu": "50m"}}, "minimum cpu usage per Container is 100m"),
        ({"min": {"cpu": "100m"}}, {}, ""),
        ({"max": {"cpu": "1"}}, {"limits": {"cpu": "2"}}, "maximum cpu usage per Container is 1, but limit is 2"),
        ({"max": {"cpu": "1"}}, {"limits": {"cpu": "1"}}, ""),
        ({"maxLimitRequestRatio": {"cpu": "2"}}, {"requests": {"cpu": "1"}, "limits": {"cpu": "3"}}, "ratio"),
        ({"maxLimitRequestRatio": {"cpu": "3"}}, {"requests": {"cpu": "1"}, "limits": {"cpu": "3"}}, ""),
        ({"type": "Pod", "max": {"memory": "1Gi"}}, {"limits": {"memory": "2Gi"}}, "maximum memory usage per Pod"),
        ({"type": "Pod", "min": {"memory": "1Gi"}}, {}, "minimum memory usage per Pod is 1Gi"),
    ],
)
async def test_bounds(api: Api, item: dict, resources: dict, words: str):
    await limits(api, **item)
    answer = await api.call("POST", PODS, pod("p", resources=resources))
    if words:
        assert answer.status == 403 and words in answer.message, answer
    else:
        assert answer.status == 201, answer


async def test_bounds_of_volume_claims(api: Api):
    claims = "/api/v1/namespaces/default/persistentvolumeclaims"
    await limits(api, type="PersistentVolumeClaim", min={"storage": "1Gi"}, max={"storage": "10Gi"})

    def claim(name: str, size: str) -> dict:
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
        return {"metadata": {"name": name}, "spec": spec}

    await api.post(claims, claim("a", "5Gi"))
    assert "minimum storage" in (await api.refused(403, "POST", claims, claim("b", "1Mi"))).message
    assert "maximum storage" in (await api.refused(403, "POST", claims, claim("c", "1Ti"))).message


# ---- priorities and accounts ----


async def test_priority_classes(api: Api):
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    plain = (await api.post(PODS, pod("plain")))["spec"]
    assert plain["priority"] == 0 and plain["preemptionPolicy"] == "PreemptLowerPriority"
    await api.post(classes, {"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"})
    await api.post(classes, {"metadata": {"name": "usual"}, "value": 5, "globalDefault": True})
    high = (await api.post(PODS, pod("a", priorityClassName="high")))["spec"]
    assert (high["priority"], high["preemptionPolicy"]) == (1000, "Never")
    usual = (await api.post(PODS, pod("b")))["spec"]
    assert (usual["priority"], usual["priorityClassName"]) == (5, "usual")
    assert "no PriorityClass" in (await api.refused(403, "POST", PODS, pod("c", priorityClassName="none"))).message
    assert "priority" in (await api.refused(403, "POST", PODS, pod("d", priority=77))).message
    await api.post(PODS, pod("e", priority=5))


async def test_service_accounts(api: Api):
    assert (await api.post(PODS, pod("a")))["spec"]["serviceAccountName"] == "default"
    answer = await api.refused(403, "POST", PODS, pod("b", serviceAccountName="robot"))
    assert "'robot' not found" in answer.message
    await api.post("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "robot"}})
    made = (await api.post(PODS, pod("b", serviceAccountName="robot")))["spec"]
    assert made["serviceAccountName"] == made["serviceAccount"] == "robot"


# ---- rights ----

ALICE = UserInfo("alice", ("system:authenticated",))


async def grant(api: Api, rules: list[dict]) -> None:
    await api.post(f"{RBAC}/clusterroles", {"metadata": {"name": "alice"}, "rules": rules})
    subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "alice"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "alice"}
    body = {"metadata": {"name": "alice"}, "subjects": [subject], "roleRef": reference}
    await api.post(f"{RBAC}/clusterrolebindings", body)


def rule(verbs: str, group: str, resources: str, **more: object) -> dict:
    return {"verbs": verbs.split(), "apiGroups": [group], "resources": resources.split(), **more}


async def test_nobody_hands_out_more_than_they_have(api: Api):
    rbac = "rbac.authorization.k8s.io"
    await grant(api, [rule("create update patch", rbac, "roles rolebindings"), rule("get", "", "pods")])
    roles = f"{RBAC}/namespaces/default/roles"
    small = {"metadata": {"name": "small"}, "rules": [rule("get", "", "pods")]}
    large = {"metadata": {"name": "large"}, "rules": [rule("get delete", "", "pods")]}
    await api.post(roles, small, user=ALICE)
    refused = await api.refused(403, "POST", roles, large, user=ALICE)
    assert "attempting to grant RBAC permissions not currently held" in refused.message
    grown = {"rules": large["rules"]}
    headers = {"content-type": "application/merge-patch+json"}
    await api.refused(403, "PATCH", f"{roles}/small", grown, headers=headers, user=ALICE)
    await api.post(roles, large)
    binding = {
        "metadata": {"name": "b"},
        "subjects": [{"kind": "User", "apiGroup": rbac, "name": "bob"}],
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "large"},
    }
    bindings = f"{RBAC}/namespaces/default/rolebindings"
    await api.refused(403, "POST", bindings, binding, user=ALICE)
    binding["roleRef"]["name"] = "small"  # type: ignore[index]
    await api.post(bindings, binding, user=ALICE)


async def test_rights_take_effect_at_once(api: Api):
    refused = await api.refused(403, "GET", CMS, user=ALICE)
    assert refused.message == (
        'configmaps is forbidden: User "alice" cannot list resource "configmaps" in API group "" '
        'in the namespace "default"'
    )
    await grant(api, [rule("list", "", "configmaps")])
    await api.get(CMS, user=ALICE)
    await api.refused(403, "GET", f"{CMS}?watch=1", user=ALICE)
    await api.ok("DELETE", f"{RBAC}/clusterrolebindings/alice")
    await api.refused(403, "GET", CMS, user=ALICE)


async def test_a_namespace_is_seen_with_rights_in_it(api: Api):
    """For rules the namespace object lies in itself, so that who administers a namespace can look at it."""
    await api.namespace("mine")
    await api.namespace("other")
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "alice"}
    body = {"metadata": {"name": "v"}, "subjects": [subject], "roleRef": reference}
    await api.post(f"{RBAC}/clusterroles", {"metadata": {"name": "reader"}, "rules": [rule("get", "", "namespaces")]})
    body["roleRef"] = {**reference, "name": "reader"}
    await api.post(f"{RBAC}/namespaces/mine/rolebindings", body)
    await api.get("/api/v1/namespaces/mine", user=ALICE)
    await api.refused(403, "GET", "/api/v1/namespaces/other", user=ALICE)
    await api.refused(403, "GET", "/api/v1/namespaces", user=ALICE)


async def test_names_in_rules(api: Api):
    await grant(api, [rule("get update", "", "configmaps", resourceNames=["a"]), rule("create", "", "secrets")])
    made = await api.config_map("a")
    await api.config_map("b")
    await api.put(f"{CMS}/a", {**made, "data": {"x": "1"}}, user=ALICE)
    await api.refused(403, "GET", f"{CMS}/b", user=ALICE)
    await api.refused(403, "GET", CMS, user=ALICE)
    secret = {"metadata": {"name": "s"}}
    await api.post("/api/v1/namespaces/default/secrets", secret, user=ALICE)
    await api.refused(403, "GET", "/api/v1/namespaces/default/secrets/s", user=ALICE)


async def test_a_selector_names_only_what_is_selected(api: Api):
    """Names in rules also hold for lists of just that name, but a create is not narrowed by a selector."""
    await grant(api, [rule("*", "", "configmaps", resourceNames=["a"])])
    await api.config_map("a")
    await api.config_map("b")
    assert (await api.call("GET", f"{CMS}?fieldSelector=metadata.name%3Da", user=ALICE)).names == ["a"]
    await api.refused(403, "GET", f"{CMS}?fieldSelector=metadata.name%3Db", user=ALICE)
    await api.refused(403, "POST", f"{CMS}?fieldSelector=metadata.name%3Da", config_map("c"), user=ALICE)
    await api.refused(403, "POST", f"{CMS}?fieldSelector=metadata.name=a", config_map("c"), user=ALICE)
    await api.ok("DELETE", f"{CMS}?fieldSelector=metadata.name%3Da", user=ALICE)
    assert (await api.call("GET", CMS)).names == ["b"]
