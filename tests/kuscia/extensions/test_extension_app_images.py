"""AppImages whose `image.id` pins nothing are accepted, as Kuscia's examples have such ids, with a warning."""

from __future__ import annotations

import pytest

from coterie.base.clock import SYSTEM_CLOCK
from coterie.http.messages import Request, UserInfo
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.extensions.apiserver import KUSCIA

_PATH = "/apis/kuscia.secretflow/v1alpha1/appimages"
_BODY = (
    '{"apiVersion": "kuscia.secretflow/v1alpha1", "kind": "AppImage", "metadata": {"name": "a"}, "spec": {"image":'
    ' {"name": "engine", "tag": "1", "id": "ID"}, "deployTemplates": [{"name": "a", "spec": {"containers": [{"name": "a", "workingDir": "/"}]}}]}}'
)


@pytest.mark.parametrize(("written", "warned"), [("", False), ("abc", True), ("sha256:" + "a" * 64, False)])
async def test_a_word_that_is_no_digest_is_warned_of(written: str, warned: bool) -> None:
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(extensions=[KUSCIA]), SYSTEM_CLOCK)
    await server.start()
    try:
        user = UserInfo("admin", ("system:masters",))
        body = _BODY.replace("ID", written).encode()
        request = Request("POST", _PATH, headers={"content-type": "application/json"}, body=body, user=user)
        answer = server.handle(request)
        response = answer if not hasattr(answer, "__await__") else await answer
        assert response.status == 201, response.body
        warnings = [value for name, value in response.headers if name.lower() == "warning"]
        assert any("is no digest" in text for text in warnings) is warned
    finally:
        await server.stop()
        await store.close()
