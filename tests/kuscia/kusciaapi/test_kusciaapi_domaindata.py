"""DomainDataService: every code, both roles, each mode; data that is removed, and data that is not."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import definitions_kit
import pytest
from kuscia.proto.api.v1alpha1.kusciaapi import domaindata_pb2
from kusciaapi_kit import World, domain_caller, here

from coterie.kuscia.api.types.data import DEFAULT_SOURCE, DOMAIN_DATA_SOURCES, DOMAIN_DATAS
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.kusciaapi import domaindata
from coterie.kuscia.kusciaapi.domaindata import OPERATIONS
from coterie.kuscia.kusciaapi.operations import Mode
from coterie.kuscia.sources.protocol import DataLocation, SourceError, SourceInfo
from coterie.kuscia.sources.source_creation import ensure_default_source, source_object

COLUMNS = [{"name": "id", "type": "str", "comment": "who"}, {"name": "age", "type": "int", "not_nullable": True}]
TABLE = {"domain_id": "alice", "type": "table", "relative_uri": "train/people.csv", "columns": COLUMNS}


async def furnished(world: World) -> World:
    for name in ("alice", "bob"):
        await world.client.create(DOMAINS.as_dynamic, {"metadata": {"name": name}, "spec": {}})
        await ensure_default_source(world.client, name, world.here.paths.data, world.here.identity.key.public_key())
    return world


@pytest.fixture
async def alice(tmp_path: Path) -> AsyncIterator[World]:
    async with here(tmp_path, namespaces=["bob"]) as world:
        yield await furnished(world)


async def call(world: World, method: str, **request: Any) -> Any:
    return await world.call(OPERATIONS, method, **request)


async def made(world: World, name: str = "people", **request: Any) -> Any:
    answer = await call(world, "CreateDomainData", **{**TABLE, "domaindata_id": name, **request})
    assert answer.status.code == 0, answer.status.message
    return answer.data.domaindata_id


async def data(world: World, name: str, domain: str = "alice") -> Any:
    return (await call(world, "QueryDomainData", data={"domain_id": domain, "domaindata_id": name})).data


def test_messages_are_those_of_the_stubs() -> None:
    assert definitions_kit.differences(domaindata_pb2) == []


# Creating and changing.


async def test_what_was_created_is_told(alice: World) -> None:
    await made(alice, attributes={"a": "1"}, vendor="me", file_format=1, partition={"type": "path"})
    found = await data(alice, "people")
    assert (found.domaindata_id, found.domain_id, found.author) == ("people", "alice", "alice")
    assert (found.name, found.type, found.relative_uri) == ("people.csv", "table", "train/people.csv")
    assert (found.datasource_id, found.vendor, found.status, found.file_format) == (
        DEFAULT_SOURCE,
        "me",
        "Available",
        1,
    )
    assert [(each.name, each.type, each.comment, each.not_nullable) for each in found.columns] == [
        ("id", "str", "who", False),
        ("age", "int", "", True),
    ]
    assert (dict(found.attributes), found.partition.type) == ({"a": "1"}, "path")


async def test_what_is_left_out_gets_kuscias_defaults(alice: World) -> None:
    answer = await call(alice, "CreateDomainData", domain_id="alice", type="model", relative_uri="/Models/The Best.bin")
    name = answer.data.domaindata_id
    assert name.startswith("the-best-bin-")
    assert len(name) == len("the-best-bin-") + 32
    found = await alice.client.get(DOMAIN_DATAS, name, "alice")
    assert (found.spec.name, found.spec.relative_uri, found.spec.vendor) == (
        "The Best.bin",
        "Models/The Best.bin",
        "manual",
    )
    assert found.metadata.labels == {
        "kuscia.secretflow/domaindata-type": "model",
        "kuscia.secretflow/domaindata-vendor": "manual",
        "kuscia.secretflow/interconn-protocol-type": "kuscia",
    }
    assert found.metadata.annotations == {"kuscia.secretflow/initiator": "alice"}


async def test_to_create_what_is_there_is_to_update_it(alice: World) -> None:
    await made(alice, attributes={"a": "1", "b": "2"})
    again = await call(
        alice, "CreateDomainData", domaindata_id="people", domain_id="alice", type="table", relative_uri="other.csv",
        attributes={"a": "3"},
    )  # fmt: skip
    assert (again.status.code, again.data.domaindata_id) == (0, "people")
    found = await data(alice, "people")
    assert (found.relative_uri, dict(found.attributes), len(found.columns)) == ("other.csv", {"a": "3"}, 2)


async def test_an_update_leaves_what_it_does_not_say(alice: World) -> None:
    await made(alice, vendor="me")
    answer = await call(alice, "UpdateDomainData", domain_id="alice", domaindata_id="people", name="renamed")
    assert answer.status.code == 0
    found = await data(alice, "people")
    assert (found.name, found.vendor, found.relative_uri, len(found.columns)) == (
        "renamed",
        "me",
        "train/people.csv",
        2,
    )


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [
        pytest.param({"domain_id": ""}, 11100, "domain_id: must be given", id="no domain"),
        pytest.param({"domain_id": "Alice!"}, 11100, "domain_id: ", id="no name of a domain"),
        pytest.param({"domain_id": "carol"}, 11305, "carol", id="unknown domain"),
        pytest.param({"type": ""}, 11100, "type: must be given", id="no type"),
        pytest.param({"type": "carpet"}, 11100, "type: must be one of", id="unknown type"),
        pytest.param({"relative_uri": ""}, 11100, "relative_uri: must be given", id="no uri"),
        pytest.param({"relative_uri": "///"}, 11100, "relative_uri: must name", id="the source itself"),
        pytest.param({"relative_uri": "a/../../b"}, 11100, "relative_uri: must stay inside", id="out of the source"),
        pytest.param({"domaindata_id": "A b"}, 11100, "domaindata_id: ", id="no name"),
        pytest.param({"datasource_id": "none"}, 11806, 'no DomainDataSource "none"', id="unknown source"),
        pytest.param({"datasource_id": "../x"}, 11100, "datasource_id: ", id="no name of a source"),
        pytest.param({"file_format": 77}, 11100, "file_format: ", id="unknown format"),
        pytest.param({"columns": [{"type": "int"}]}, 11100, "columns: need names", id="a column without name"),
        pytest.param({"columns": [*COLUMNS, *COLUMNS]}, 11100, "columns: must not", id="columns alike"),
    ],
)
async def test_refused(alice: World, change: dict[str, Any], code: int, why: str) -> None:
    answer = await call(alice, "CreateDomainData", **{**TABLE, "domaindata_id": "t", **change})
    assert answer.status.code == code, answer.status.message
    assert why in answer.status.message
    assert (await alice.client.list(DOMAIN_DATAS, "alice")).items == []


async def test_of_two_that_create_at_once_one_is_told(alice: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await made(alice)

    async def too_early(*_: Any) -> None:
        return None

    monkeypatch.setattr(domaindata, "find", too_early)
    assert (await call(alice, "CreateDomainData", **TABLE, domaindata_id="people")).status.code == 11507


@pytest.mark.parametrize("method", ["UpdateDomainData", "DeleteDomainData", "DeleteDomainDataAndRaw"])
async def test_what_is_not_there_is_not_changed(alice: World, method: str) -> None:
    assert (await call(alice, method, domain_id="alice", domaindata_id="none")).status.code == 11506


async def test_copies_of_what_others_granted_are_changed_by_them(alice: World) -> None:
    copy = {
        "metadata": {"name": "theirs", "labels": {"kuscia.secretflow/owner-references": "theirs"}},
        "spec": {"author": "bob", "name": "t", "type": "table", "relativeURI": "x.csv", "dataSource": DEFAULT_SOURCE},
    }
    await alice.client.create(DOMAIN_DATAS.as_dynamic, copy, "alice")
    (alice.here.paths.data / "x.csv").write_text("ours")
    update = await call(alice, "UpdateDomainData", domain_id="alice", domaindata_id="theirs", name="n")
    raw = await call(alice, "DeleteDomainDataAndRaw", domain_id="alice", domaindata_id="theirs")
    assert (update.status.code, raw.status.code) == (11505, 11501)
    assert (alice.here.paths.data / "x.csv").exists()


# Looking.


async def test_a_batch_leaves_out_what_is_not_there(alice: World) -> None:
    for name in ("a", "b"):
        await made(alice, name)
    asked = [{"domain_id": "alice", "domaindata_id": name} for name in ("b", "none", "a")]
    answer = await call(alice, "BatchQueryDomainData", data=asked)
    assert (answer.status.code, [each.domaindata_id for each in answer.data.domaindata_list]) == (0, ["b", "a"])
    assert (await call(alice, "BatchQueryDomainData")).status.code == 11100
    bad = await call(alice, "BatchQueryDomainData", data=[asked[0], {"domain_id": "alice"}])
    assert (bad.status.code, bad.status.message) == (11100, "data[1].domaindata_id: must be given")


async def listed(world: World, **request: Any) -> tuple[list[str], str]:
    answer = await call(world, "ListDomainData", data={"domain_id": "alice", **request})
    assert answer.status.code == 0, answer.status.message
    return [each.domaindata_id for each in answer.data.domaindata_list], answer.data.next_page_token


async def test_lists_are_filtered_and_of_one_domain(alice: World) -> None:
    await made(alice, "t1", vendor="secretflow")
    await made(alice, "t2")
    await made(alice, "m1", type="model")
    await made(alice, "other", domain_id="bob")
    assert await listed(alice) == (["m1", "t1", "t2"], "")
    assert await listed(alice, domaindata_type="table") == (["t1", "t2"], "")
    assert await listed(alice, domaindata_type="table", domaindata_vendor="secretflow") == (["t1"], "")
    unknown = await call(alice, "ListDomainData", data={"domain_id": "carol"})
    assert unknown.status.code == 11305


async def test_pages_of_a_list_are_of_one_moment(alice: World) -> None:
    for index in range(5):
        await made(alice, f"t{index}")
    first, token = await listed(alice, page_size=2)
    await made(alice, "t1a")
    await call(alice, "DeleteDomainData", domain_id="alice", domaindata_id="t3")
    second, token = await listed(alice, page_size=2, page_token=token)
    third, end = await listed(alice, page_size=2, page_token=token)
    assert (first + second + third, end) == ([f"t{index}" for index in range(5)], "")


@pytest.mark.parametrize(
    ("request_", "field"),
    [({"page_size": -1}, "data.page_size"), ({"page_size": 2, "page_token": "nonsense"}, "data.page_token")],
)
async def test_pages_that_cannot_be(alice: World, request_: dict[str, Any], field: str) -> None:
    answer = await call(alice, "ListDomainData", data={"domain_id": "alice", **request_})
    assert answer.status.code == 11100
    assert answer.status.message.startswith(f"{field}: ")


# Who may.


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("CreateDomainData", {**TABLE, "domaindata_id": "x"}),
        ("UpdateDomainData", {"domain_id": "alice", "domaindata_id": "people", "name": "x"}),
        ("DeleteDomainData", {"domain_id": "alice", "domaindata_id": "people"}),
        ("QueryDomainData", {"data": {"domain_id": "alice", "domaindata_id": "people"}}),
        ("BatchQueryDomainData", {"data": [{"domain_id": "alice", "domaindata_id": "people"}]}),
        ("ListDomainData", {"data": {"domain_id": "alice"}}),
    ],
)
async def test_a_domain_has_its_own_and_nothing_else(alice: World, method: str, request_: dict[str, Any]) -> None:
    await made(alice)
    assert (await call(alice, method, caller=domain_caller("bob"), **request_)).status.code == 11102
    assert (await data(alice, "people")).name == "people.csv"
    assert (await call(alice, method, caller=domain_caller("alice"), **request_)).status.code == 0


async def test_domains_cannot_have_data_removed(alice: World) -> None:
    await made(alice)
    request = {"domain_id": "alice", "domaindata_id": "people"}
    answer = await call(alice, "DeleteDomainDataAndRaw", caller=domain_caller("alice"), **request)
    assert answer.status.code == 11102


async def test_a_lite_has_only_its_own(alice: World, tmp_path: Path) -> None:
    async with here(tmp_path / "lite", mode=Mode.LITE, client=alice.client) as lite:
        await made(lite)
        assert (await data(lite, "people")).domain_id == "alice"
        answer = await call(lite, "ListDomainData", data={"domain_id": "bob"})
        assert (answer.status.code, "must be alice" in answer.status.message) == (11100, True)


async def test_a_master_has_the_entries_of_all_and_the_data_of_none(tmp_path: Path) -> None:
    async with here(tmp_path, mode=Mode.MASTER, domain="master", namespaces=["alice", "bob"]) as master:
        await furnished(master)
        await made(master, domain_id="bob")
        raw = await call(master, "DeleteDomainDataAndRaw", domain_id="bob", domaindata_id="people")
        assert (raw.status.code, "ask its own node" in raw.status.message) == (11501, True)
        assert (await call(master, "DeleteDomainData", domain_id="bob", domaindata_id="people")).status.code == 0


# The data itself.


async def removed(world: World, name: str = "people") -> tuple[int, str]:
    answer = await call(world, "DeleteDomainDataAndRaw", domain_id="alice", domaindata_id=name)
    return answer.status.code, answer.status.message


async def test_without_raw_the_file_stays(alice: World) -> None:
    (alice.here.paths.data / "a.csv").write_text("x")
    await made(alice, relative_uri="a.csv")
    assert (await call(alice, "DeleteDomainData", domain_id="alice", domaindata_id="people")).status.code == 0
    assert (alice.here.paths.data / "a.csv").exists()


async def test_a_file_is_removed_with_its_entry(alice: World) -> None:
    folder = alice.here.paths.data / "train"
    folder.mkdir()
    for name in ("people.csv", "others.csv"):
        (folder / name).write_text("id\n1\n")
    await made(alice)
    assert (await removed(alice))[0] == 0
    assert [each.name for each in folder.iterdir()] == ["others.csv"]
    assert (await alice.client.list(DOMAIN_DATAS, "alice")).items == []


async def test_an_entry_whose_file_is_gone_already_is_removed(alice: World) -> None:
    await made(alice)
    assert (await removed(alice))[0] == 0
    assert (await alice.client.list(DOMAIN_DATAS, "alice")).items == []


@pytest.mark.parametrize("link", ["file", "folder"])
async def test_links_that_lead_out_are_not_followed(alice: World, tmp_path: Path, link: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.csv").write_text("x")
    if link == "folder":
        os.symlink(outside, alice.here.paths.data / "train")
    else:
        (alice.here.paths.data / "train").mkdir()
        os.symlink(outside / "secret.csv", alice.here.paths.data / "train" / "secret.csv")
    await made(alice, relative_uri="train/secret.csv")
    code, _ = await removed(alice)
    assert (outside / "secret.csv").exists()
    assert code == 11501
    assert (await data(alice, "people")).domaindata_id == "people"


async def source(world: World, name: str, kind: str, info: dict[str, Any]) -> None:
    obj = source_object("alice", name, kind, info, world.here.identity.key.public_key())
    await world.client.create(DOMAIN_DATA_SOURCES.as_dynamic, obj, "alice")


@pytest.mark.parametrize("path", ["outside", "alice/var/storage/data/../../../../outside"])
async def test_files_outside_of_the_data_directory_stay(alice: World, tmp_path: Path, path: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.csv").write_text("x")
    await source(alice, "wide", "localfs", {"path": str(tmp_path / path)})
    await made(alice, relative_uri="a.csv", datasource_id="wide")
    code, why = await removed(alice)
    assert (code, "outside of the domain's data directory" in why) == (11501, True)
    assert (tmp_path / "outside" / "a.csv").exists()


async def test_a_source_below_the_data_directory(alice: World) -> None:
    folder = alice.here.paths.data / "team" / "x"
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text("x")
    await source(alice, "team", "localfs", {"path": str(alice.here.paths.data / "team")})
    await made(alice, relative_uri="x/a.csv", datasource_id="team")
    assert (await removed(alice))[0] == 0
    assert list(folder.iterdir()) == []


class Shelf:
    """A source that only notes what is removed."""

    def __init__(self) -> None:
        self.removed: list[tuple[SourceInfo, DataLocation]] = []
        self.problem: SourceError | None = None

    def open_source(self, info: SourceInfo) -> Shelf:
        self.info = info
        return self

    async def __aenter__(self) -> Shelf:
        return self

    async def __aexit__(self, *problem: object) -> None:
        return None

    async def delete(self, place: DataLocation) -> None:
        if self.problem is not None:
            raise self.problem
        self.removed.append((self.info, place))


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    made = Shelf()
    monkeypatch.setattr(domaindata, "source_registry", SimpleNamespace(open_source=made.open_source))
    return made


DATABASE = {"endpoint": "db:3306", "user": "u", "password": "p-secret", "database": "d"}


@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
async def test_tables_are_dropped_in_their_database(alice: World, shelf: Shelf, kind: str) -> None:
    await source(alice, "db", kind, DATABASE)
    await made(alice, relative_uri="people", datasource_id="db")
    assert (await removed(alice))[0] == 0
    [(info, place)] = shelf.removed
    assert (info.kind, info.endpoint, info.database, place.uri) == (kind, "db:3306", "d", "people")
    assert info.password is not None
    assert info.password.reveal() == "p-secret"


async def test_objects_are_removed_from_their_bucket(alice: World, shelf: Shelf) -> None:
    await source(alice, "s3", "oss", {"endpoint": "s3", "bucket": "b", "prefix": "p", "access_key_id": "k"})
    await made(alice, relative_uri="a/b.csv", datasource_id="s3")
    assert (await removed(alice))[0] == 0
    [(info, place)] = shelf.removed
    assert (info.bucket, info.prefix, place.uri) == ("b", "p", "a/b.csv")


async def test_what_cannot_be_removed_stays_known(alice: World, shelf: Shelf) -> None:
    await source(alice, "db", "mysql", DATABASE)
    await made(alice, datasource_id="db")
    shelf.problem = SourceError("the server does not let us in")
    assert await removed(alice) == (11501, "the data cannot be removed: the server does not let us in")
    assert (await data(alice, "people")).domaindata_id == "people"


async def test_kinds_that_nobody_here_opens(alice: World, shelf: Shelf) -> None:
    await source(alice, "odps", "odps", {"endpoint": "e", "project": "p"})
    await made(alice, datasource_id="odps")
    code, why = await removed(alice)
    assert (code, "type odps" in why, shelf.removed) == (11501, True, [])
