"""The official client's asynchronous half: the same API on aiohttp."""

from __future__ import annotations

import asyncio

from kubernetes.aio import client, config, dynamic, watch
from kubernetes.aio.client.exceptions import ApiException
from story import tell

SPACE = "official-async"


async def reads_and_writes() -> None:
    await config.load_kube_config()
    async with client.ApiClient() as api:
        core = client.CoreV1Api(api)
        await core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=SPACE)))
        names = [f"m{number}" for number in range(20)]
        made = [client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name), data={"a": name}) for name in names]
        await asyncio.gather(*(core.create_namespaced_config_map(SPACE, each) for each in made))
        found = {item.metadata.name for item in (await core.list_namespaced_config_map(SPACE)).items}
        assert set(names) <= found
        changed = await core.patch_namespaced_config_map("m0", SPACE, {"data": {"b": "c"}})
        assert changed.data == {"a": "m0", "b": "c"}
        try:
            await core.read_namespaced_config_map("absent", SPACE)
            raise AssertionError("404 was expected")
        except ApiException as error:
            assert error.status == 404


async def watches() -> None:
    async with client.ApiClient() as api:
        core = client.CoreV1Api(api)
        begun = (await core.list_namespaced_config_map(SPACE)).metadata.resource_version
        await core.delete_namespaced_config_map("m1", SPACE)
        async with watch.Watch().stream(
            core.list_namespaced_config_map, SPACE, resource_version=begun, timeout_seconds=5
        ) as stream:
            async for event in stream:
                assert (event["type"], event["object"].metadata.name) == ("DELETED", "m1")
                break


async def anything() -> None:
    async with client.ApiClient() as api:
        found = await dynamic.DynamicClient(api)
        maps = await found.resources.get(api_version="v1", kind="ConfigMap")
        listed = await maps.get(namespace=SPACE, label_selector="!x")
        assert "m2" in {item.metadata.name for item in listed.items}


async def clean_up() -> None:
    async with client.ApiClient() as api:
        await client.CoreV1Api(api).delete_namespace(SPACE)


if __name__ == "__main__":
    tell([reads_and_writes, watches, anything, clean_up])
