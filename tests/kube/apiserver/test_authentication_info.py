"""What aggregated API servers find in kube-system: whose certificates and headers to accept."""

from __future__ import annotations

import json

from server_kit import serving

from coterie.http.messages import UserInfo
from coterie.kube.apiserver.auth.authentication_info import AuthenticationInfo
from coterie.kube.apiserver.server import Settings
from coterie.kube.store.memory import MemoryStore

PATH = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
SETTINGS = Settings(authentication_info=AuthenticationInfo("client authority", "proxy authority"))


async def test_the_authorities_are_published():
    async with serving(SETTINGS) as api:
        data = (await api.get(PATH))["data"]
        assert data["client-ca-file"] == "client authority"
        assert data["requestheader-client-ca-file"] == "proxy authority"
        assert json.loads(data["requestheader-allowed-names"]) == ["front-proxy-client"]
        assert json.loads(data["requestheader-username-headers"]) == ["X-Remote-User"]
        assert json.loads(data["requestheader-group-headers"]) == ["X-Remote-Group"]
        assert json.loads(data["requestheader-extra-headers-prefix"]) == ["X-Remote-Extra-"]


async def test_a_change_of_the_authorities_is_published_and_what_others_added_stays():
    store = MemoryStore()
    await store.open()
    async with serving(SETTINGS, store=store) as api:
        await api.patch(PATH, {"data": {"client-ca-file": "forged", "mine": "kept"}})
    async with serving(SETTINGS, store=store) as api:
        data = (await api.get(PATH))["data"]
        assert data["client-ca-file"] == "client authority" and data["mine"] == "kept"
    await store.close()


async def test_the_reader_role_gives_this_one_object():
    async with serving(SETTINGS) as api:
        roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system"
        role = await api.get(f"{roles}/roles/extension-apiserver-authentication-reader")
        (rule,) = role["rules"]
        assert rule["resources"] == ["configmaps"] and rule["resourceNames"] == ["extension-apiserver-authentication"]
        scheduler = UserInfo("system:kube-scheduler", ("system:authenticated",))
        await api.get(PATH, user=scheduler)
        await api.refused(403, "GET", "/api/v1/namespaces/kube-system/configmaps/other", user=scheduler)
        adapter = UserInfo("system:serviceaccount:default:adapter", ("system:authenticated",))
        await api.refused(403, "GET", PATH, user=adapter)
        subject = {"kind": "ServiceAccount", "name": "adapter", "namespace": "default"}
        await api.post(
            f"{roles}/rolebindings",
            {
                "metadata": {"name": "adapter"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "Role",
                    "name": "extension-apiserver-authentication-reader",
                },
                "subjects": [subject],
            },
        )
        await api.get(PATH, user=adapter)
