"""DomainDataSourceService: every code, each mode, and secrets that never come out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import definitions_kit
import pytest
from google.protobuf import json_format
from kuscia.proto.api.v1alpha1.kusciaapi import domaindatasource_pb2
from kusciaapi_kit import World, domain_caller, here

from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kuscia.api.types.data import DOMAIN_DATA_SOURCES
from coterie.kuscia.identity.sealing import encrypt_for
from coterie.kuscia.kusciaapi.datasources import OPERATIONS
from coterie.kuscia.kusciaapi.operations import Mode
from coterie.kuscia.sources import sealed_sources

LOCALFS = {"localfs": {"path": "/data/alice"}}
OSS = {
    "oss": {
        "endpoint": "https://s3.example", "bucket": "b", "prefix": "p/", "access_key_id": "id-secret",
        "access_key_secret": "key-secret", "virtualhost": True, "version": "s3v4",
    }
}  # fmt: skip
DATABASE = {"database": {"endpoint": "db:3306", "user": "u-secret", "password": "p-secret", "database": "d"}}
ODPS = {
    "odps": {"endpoint": "odps", "project": "p", "access_key_id": "id-secret", "access_key_secret": "key-secret"}
}  # fmt: skip
INFO = {
    "localfs": LOCALFS, "oss": OSS, "mysql": DATABASE, "postgresql": DATABASE, "hive": DATABASE, "dameng": DATABASE,
    "odps": ODPS,
}  # fmt: skip


@pytest.fixture
async def alice(tmp_path: Path) -> AsyncIterator[World]:
    async with here(tmp_path, namespaces=["bob"]) as world:
        yield world


async def call(world: World, method: str, **request: Any) -> Any:
    return await world.call(OPERATIONS, method, **{"domain_id": "alice", **request})


async def made(world: World, id_: str = "s", kind: str = "localfs", **request: Any) -> None:
    given = {"info": INFO[kind], **request}
    answer = await call(world, "CreateDomainDataSource", datasource_id=id_, type=kind, **given)
    assert answer.status.code == 0, answer.status.message


async def opened(world: World, name: str) -> sealed_sources.SourceInfo:
    store = (await world.client.get(CONFIG_MAPS, "domain-config", "alice")).data if await has_store(world) else {}
    source = await world.client.get(DOMAIN_DATA_SOURCES, name, "alice")
    return sealed_sources.source_info(source, world.here.identity.key, store or {})


async def has_store(world: World) -> bool:
    return any(each.metadata.name == "domain-config" for each in (await world.client.list(CONFIG_MAPS, "alice")).items)


async def config(world: World, key: str, text: str) -> None:
    value = encrypt_for(text, world.here.identity.key.public_key())
    obj = {"metadata": {"name": "domain-config"}, "data": {key: value}}
    await world.client.create(CONFIG_MAPS.as_dynamic, obj, "alice")


def test_messages_are_those_of_the_stubs() -> None:
    assert definitions_kit.differences(domaindatasource_pb2) == []


@pytest.mark.parametrize("kind", INFO)
async def test_settings_are_sealed_and_their_secrets_never_told(alice: World, kind: str) -> None:
    await made(alice, kind=kind)
    plain = await alice.client.get(DOMAIN_DATA_SOURCES.as_dynamic, "s", "alice")
    answer = await call(alice, "QueryDomainDataSource", datasource_id="s")
    assert "secret" not in str(plain["spec"])
    assert "secret" not in json_format.MessageToJson(answer)
    found = answer.data
    assert (found.domain_id, found.datasource_id, found.name, found.type) == ("alice", "s", "s", kind)
    assert (found.status, found.access_directly, found.info_key) == ("Available", False, "")
    [(part, settings)] = INFO[kind].items()
    told = getattr(found.info, part)
    for field, value in settings.items():
        assert getattr(told, field) == ("" if "secret" in str(value) else value), field
    kept = await opened(alice, "s")
    assert (kept.kind, kept.endpoint) == (kind, str(settings.get("endpoint", "")))
    if kind in ("mysql", "oss"):
        secret = kept.password if kind == "mysql" else kept.access_key_secret
        assert secret is not None
        assert secret.reveal() == settings["password" if kind == "mysql" else "access_key_secret"]


async def test_a_source_without_a_name_gets_one(alice: World) -> None:
    answer = await call(alice, "CreateDomainDataSource", type="localfs", info=LOCALFS, access_directly=True, name="N")
    name = answer.data.datasource_id
    assert name.startswith("localfs-")
    assert len(name) == len("localfs-") + 32
    found = (await call(alice, "QueryDomainDataSource", datasource_id=name)).data
    assert (found.name, found.access_directly, found.info.localfs.path) == ("N", True, "/data/alice")
    kept = await alice.client.get(DOMAIN_DATA_SOURCES, name, "alice")
    assert kept.metadata.labels == {"kuscia.secretflow/domaindatasource-type": "localfs"}


async def test_a_name_that_is_taken(alice: World) -> None:
    await made(alice)
    again = await call(alice, "CreateDomainDataSource", datasource_id="s", type="mysql", info=DATABASE)
    assert again.status.code == 11805
    assert (await opened(alice, "s")).path == "/data/alice"


@pytest.mark.parametrize(
    ("kind", "info", "field"),
    [
        pytest.param("", LOCALFS, "type", id="no type"),
        pytest.param("floppy", LOCALFS, "type", id="unknown type"),
        pytest.param("localfs", None, "info", id="no settings"),
        pytest.param("localfs", DATABASE, "info.localfs", id="settings of another type"),
        pytest.param("localfs", {"localfs": {}}, "info.localfs.path", id="no path"),
        pytest.param("localfs", {"localfs": {"path": "data"}}, "info.localfs.path", id="relative path"),
        pytest.param("localfs", {"localfs": {"path": "/"}}, "info.localfs.path", id="the whole machine"),
        pytest.param("localfs", {"localfs": {"path": "/data/../.."}}, "info.localfs.path", id="the machine, hidden"),
        *(
            pytest.param(kind, {part: {**info, field: ""}}, f"info.{part}.{field}", id=f"{kind} without {field}")
            for kind, (part, info) in ((kind, next(iter(each.items()))) for kind, each in INFO.items())
            for field in info
            if field in ("endpoint", "bucket", "access_key_id", "access_key_secret", "user", "database", "project")
        ),
        pytest.param("oss", {"oss": {**OSS["oss"], "version": "s3v9"}}, "info.oss.version", id="unknown signature"),
    ],
)
async def test_refused(alice: World, kind: str, info: Any, field: str) -> None:
    answer = await call(alice, "CreateDomainDataSource", datasource_id="s", type=kind, info=info)
    assert answer.status.code == 11100
    assert answer.status.message.startswith(f"{field}: ")
    assert "-secret" not in answer.status.message
    assert (await alice.client.list(DOMAIN_DATA_SOURCES, "alice")).items == []


# Settings in the config store.


async def test_a_key_of_the_config_store_goes_before_settings(alice: World) -> None:
    await config(alice, "my-db", '{"database": {"endpoint": "other:1", "user": "u", "password": "p-secret"}}')
    await made(alice, kind="mysql", info_key="my-db")
    found = (await call(alice, "QueryDomainDataSource", datasource_id="s")).data
    assert (found.info_key, found.info.database.endpoint, found.info.database.password) == ("my-db", "other:1", "")
    assert (await opened(alice, "s")).endpoint == "other:1"
    assert (await alice.client.get(DOMAIN_DATA_SOURCES, "s", "alice")).spec.data is None


@pytest.mark.parametrize(
    "text",
    [
        '{"database": {"endpoint": 5, "Password": "x-secret", "passWord": ["x-secret"], "database": {"a": 1}}}',
        '{"oss": {"accessKeySecret": "x-secret", "endpoint": "e", "region": "r"}, "unknown": {"token": "x-secret"}}',
        '{"database": "x-secret", "oss": null}',
        '["x-secret"]',
        "x-secret",
    ],
)
async def test_whatever_people_write_there_is_answered_without_secrets(alice: World, text: str) -> None:
    await config(alice, "my-db", text)
    await made(alice, kind="mysql", info_key="my-db")
    answer = await call(alice, "QueryDomainDataSource", datasource_id="s")
    assert (answer.status.code, answer.data.datasource_id) == (0, "s")
    assert "x-secret" not in str(answer)


@pytest.mark.parametrize("store", [True, False])
async def test_a_key_that_is_not_in_the_config_store(alice: World, store: bool) -> None:
    if store:
        await config(alice, "other", "{}")
    answer = await call(alice, "CreateDomainDataSource", datasource_id="s", type="mysql", info_key="my-db")
    assert (answer.status.code, answer.status.message[:9]) == (11100, "info_key:")


async def test_settings_that_cannot_be_opened_are_not_told(alice: World) -> None:
    await made(alice, kind="mysql")
    patch = {"spec": {"data": {"encryptedInfo": "bm9uc2Vuc2U="}}}
    await alice.client.patch(DOMAIN_DATA_SOURCES, "s", "alice", patch)
    answer = await call(alice, "QueryDomainDataSource", datasource_id="s")
    assert (answer.status.code, answer.data.info.HasField("database")) == (0, False)


# Changing.


async def test_an_update_leaves_what_it_does_not_say(alice: World) -> None:
    await made(alice, access_directly=True, name="N")
    assert (await call(alice, "UpdateDomainDataSource", datasource_id="s", name="M")).status.code == 0
    found = (await call(alice, "QueryDomainDataSource", datasource_id="s")).data
    assert (found.name, found.access_directly, found.type, found.info.localfs.path) == (
        "M",
        True,
        "localfs",
        "/data/alice",
    )
    await call(alice, "UpdateDomainDataSource", datasource_id="s", access_directly=False)
    assert not (await call(alice, "QueryDomainDataSource", datasource_id="s")).data.access_directly


async def test_settings_are_replaced_as_a_whole(alice: World) -> None:
    """Else who may not know a password could have it sent to another server."""
    await made(alice, kind="mysql")
    elsewhere = {"database": {"endpoint": "evil:1", "user": "u", "database": "d"}}
    answer = await call(alice, "UpdateDomainDataSource", datasource_id="s", type="mysql", info=elsewhere)
    assert answer.status.code == 0
    kept = await opened(alice, "s")
    assert (kept.endpoint, kept.password) == ("evil:1", None)
    back = (await call(alice, "QueryDomainDataSource", datasource_id="s")).data.info
    again = await call(alice, "UpdateDomainDataSource", datasource_id="s", info=back)
    assert (again.status.code, again.status.message) == (11100, "info.database.user: must be given")


async def test_from_settings_to_the_config_store_and_to_another_type(alice: World) -> None:
    await config(alice, "my-db", '{"database": {"endpoint": "other:1"}}')
    await made(alice, kind="mysql")
    await call(alice, "UpdateDomainDataSource", datasource_id="s", info_key="my-db")
    assert (await opened(alice, "s")).endpoint == "other:1"
    bare = await call(alice, "UpdateDomainDataSource", datasource_id="s", type="localfs")
    assert (bare.status.code, bare.status.message[:5]) == (11100, "info:")
    assert (
        await call(alice, "UpdateDomainDataSource", datasource_id="s", type="localfs", info=LOCALFS)
    ).status.code == 0
    kept = await alice.client.get(DOMAIN_DATA_SOURCES, "s", "alice")
    assert (kept.spec.info_key, kept.spec.type, kept.spec.uri) == ("", "localfs", "/data/alice")
    assert (kept.metadata.labels or {})["kuscia.secretflow/domaindatasource-type"] == "localfs"
    assert (await opened(alice, "s")).path == "/data/alice"


async def test_what_is_not_there(alice: World) -> None:
    assert (await call(alice, "UpdateDomainDataSource", datasource_id="none", name="x")).status.code == 11806
    assert (await call(alice, "QueryDomainDataSource", datasource_id="none")).status.code == 11806
    assert (await call(alice, "DeleteDomainDataSource", datasource_id="none")).status.code == 0


async def test_deleted_is_gone(alice: World) -> None:
    await made(alice)
    assert (await call(alice, "DeleteDomainDataSource", datasource_id="s")).status.code == 0
    assert (await alice.client.list(DOMAIN_DATA_SOURCES, "alice")).items == []


# Several.


async def test_batches_and_lists(alice: World) -> None:
    for name in ("a", "b", "c"):
        await made(alice, name)
    asked = [{"domain_id": "alice", "datasource_id": name} for name in ("c", "none", "a")]
    batch = await alice.call(OPERATIONS, "BatchQueryDomainDataSource", data=asked)
    assert (batch.status.code, [each.datasource_id for each in batch.data.datasource_list]) == (0, ["c", "a"])
    assert (await alice.call(OPERATIONS, "BatchQueryDomainDataSource")).status.code == 11100
    listed = (await call(alice, "ListDomainDataSource")).data
    assert ([each.datasource_id for each in listed.datasource_list], listed.next_page_token) == (["a", "b", "c"], "")
    first = (await call(alice, "ListDomainDataSource", page_size=2)).data
    rest = (await call(alice, "ListDomainDataSource", page_size=2, page_token=first.next_page_token)).data
    assert [each.datasource_id for each in (*first.datasource_list, *rest.datasource_list)] == ["a", "b", "c"]


# Where, and who.

ALL = [
    ("CreateDomainDataSource", {"type": "localfs", "info": LOCALFS}),
    ("UpdateDomainDataSource", {"datasource_id": "s", "name": "x"}),
    ("DeleteDomainDataSource", {"datasource_id": "s"}),
    ("QueryDomainDataSource", {"datasource_id": "s"}),
    ("ListDomainDataSource", {}),
]


@pytest.mark.parametrize(("method", "request_"), ALL)
async def test_only_the_own_domain(alice: World, method: str, request_: dict[str, Any]) -> None:
    await made(alice)
    other = await call(alice, method, **request_, domain_id="bob")
    assert (other.status.code, "must be alice" in other.status.message) == (11100, True)
    nobody = await call(alice, method, **request_, domain_id="")
    assert (nobody.status.code, nobody.status.message) == (11100, "domain_id: must be given")
    assert (await call(alice, method, **request_, caller=domain_caller("alice"))).status.code == 11102


@pytest.mark.parametrize(("method", "request_"), ALL)
async def test_a_master_has_none(tmp_path: Path, method: str, request_: dict[str, Any]) -> None:
    async with here(tmp_path, mode=Mode.MASTER, domain="master", namespaces=["alice"]) as master:
        answer = await call(master, method, **request_)
        assert (answer.status.code, "master has no data sources" in answer.status.message) == (11100, True)


async def test_a_lite_has_its_own(alice: World, tmp_path: Path) -> None:
    async with here(tmp_path / "lite", mode=Mode.LITE, client=alice.client) as lite:
        await made(lite, kind="mysql")
        assert (await call(lite, "QueryDomainDataSource", datasource_id="s")).data.info.database.endpoint == "db:3306"


def test_what_holds_secrets_is_never_logged() -> None:
    assert {each.method for each in OPERATIONS if each.secret} == {"CreateDomainDataSource", "UpdateDomainDataSource"}


@pytest.mark.parametrize("kind", ["oss", "mysql", "odps"])
async def test_a_password_in_an_endpoint_is_refused_because_endpoints_are_shown(alice: World, kind: str) -> None:
    ((part, fields),) = INFO[kind].items()
    info = {part: {**fields, "endpoint": "https://u:swordfish@host"}}
    answer = await call(alice, "CreateDomainDataSource", datasource_id="s", type=kind, info=info)
    assert answer.status.code == 11100 and answer.status.message.startswith(f"info.{part}.endpoint: ")
    assert "swordfish" not in answer.status.message


async def test_settings_of_another_form_are_told_and_not_quoted(alice: World) -> None:
    await made(alice, kind="mysql")
    text = encrypt_for('{"database": "swordfish"}', alice.here.identity.key.public_key())
    await alice.client.patch(DOMAIN_DATA_SOURCES, "s", "alice", {"spec": {"data": {"encryptedInfo": text}}})
    with pytest.raises(sealed_sources.NotReadable, match="none of type mysql") as told:
        await opened(alice, "s")
    assert "swordfish" not in str(told.value)
    assert (await call(alice, "QueryDomainDataSource", datasource_id="s")).status.code == 0


async def test_a_lite_opens_its_data_directory_only(tmp_path: Path) -> None:
    """Other directories are opened by the operator at its control plane."""
    async with here(tmp_path, mode=Mode.LITE, namespaces=["alice"]) as lite:
        refused = await call(lite, "CreateDomainDataSource", type="localfs", info=LOCALFS)
        assert "the operator of the control plane" in refused.status.message
        inside = {"localfs": {"path": str(lite.here.paths.data / "deep")}}
        assert (await call(lite, "CreateDomainDataSource", type="localfs", info=inside)).status.code == 0
