"""The catalogue through the services: Kuscia's rules, who may change what, secrets that stay here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from datamesh_kit import PEOPLE, PEOPLE_COLUMNS, World, reading, world, writing

from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kuscia.api.types.data import DOMAIN_DATA_SOURCES, DOMAIN_DATAS, DomainDataSource
from coterie.kuscia.datamesh.errors import MeshError
from coterie.kuscia.identity.sealing import DecryptionError, decrypt_with, encrypt_for
from coterie.kuscia.sources import sealed_sources
from coterie.kuscia.sources.catalogue_entries import new_name
from coterie.kuscia.sources.source_creation import source_object

COLUMNS = [{"name": "id", "type": "int64"}]


async def test_what_is_left_out_gets_kuscias_defaults(alice: World) -> None:
    answer = await alice.call(await alice.engine(job="j"), "CreateDomainData", name="Würfel & Co", type="model")
    name = answer.data.domaindata_id
    made = await alice.client.get(DOMAIN_DATAS, name, "alice")
    assert name.startswith("w-rfel-co-")
    assert (made.spec.data_source, made.spec.vendor, made.spec.author) == ("default-data-source", "manual", "alice")
    assert made.spec.relative_uri == name
    labels = made.metadata.labels or {}
    assert labels["kuscia.secretflow/domaindata-type"] == "model"
    assert labels["kuscia.secretflow/interconn-protocol-type"] == "kuscia"
    assert (made.metadata.annotations or {})["coterie.io/made-by-job"] == "j"


async def test_to_create_what_is_there_is_to_update_it(alice: World) -> None:
    pair = await alice.engine()
    await alice.call(
        pair,
        "CreateDomainData",
        domaindata_id="t",
        name="a",
        type="table",
        columns=COLUMNS,
        attributes={"x": "1", "y": "2"},
    )
    again = await alice.call(pair, "CreateDomainData", domaindata_id="t", name="b", attributes={"x": "3"})
    assert again.status.code == 0
    found = (await alice.call(pair, "QueryDomainData", domaindata_id="t")).data
    assert (found.name, found.type, dict(found.attributes), [c.name for c in found.columns]) == (
        "b",
        "table",
        {"x": "3"},
        ["id"],
    )
    assert (found.author, found.relative_uri) == ("alice", "t")


async def test_deleted_is_gone(alice: World) -> None:
    pair = await alice.engine()
    await alice.call(pair, "CreateDomainData", domaindata_id="t", name="a", type="report")
    assert (await alice.call(pair, "DeleteDomainData", domaindata_id="t")).status.code == 0
    assert (await alice.call(pair, "QueryDomainData", domaindata_id="t")).status.code == 12201


@pytest.mark.parametrize(
    ("request_", "code", "why"),
    [
        pytest.param({"type": "carpet"}, 12100, "type must be one of", id="type"),
        pytest.param(
            {"type": "table", "columns": [{"name": "a", "type": "complex"}]}, 12100, "unknown type", id="column type"
        ),
        pytest.param({"type": "table", "columns": [*COLUMNS, *COLUMNS]}, 12100, "same name", id="two columns alike"),
        pytest.param({"type": "model", "relative_uri": "../../etc/passwd"}, 12100, "inside", id="out of the source"),
        pytest.param({"type": "model", "relative_uri": "a/../../b"}, 12100, "inside", id="out of the source, hidden"),
        pytest.param({"type": "model", "datasource_id": "none"}, 12305, "no DomainDataSource", id="source"),
        pytest.param({"type": "model", "domaindata_id": "x'; DROP TABLE y; --"}, 12100, "", id="SQL in a name"),
        pytest.param({"type": "model", "domaindata_id": "../x"}, 12100, "", id="a path as name"),
        pytest.param({"type": "model", "file_format": 77}, 12100, "file_format", id="file format"),
    ],
)
async def test_refused(alice: World, request_: dict[str, Any], code: int, why: str) -> None:
    given = {"domaindata_id": "t", "name": "t", **request_}
    answer = await alice.call(await alice.engine(), "CreateDomainData", **given)
    assert answer.status.code == code, answer.status.message
    assert why in answer.status.message
    assert (await alice.client.list(DOMAIN_DATAS, "alice")).items == []


# Tasks that partners began.


async def test_a_partners_task_makes_writes_and_reads_its_own(alice: World) -> None:
    first, second = await alice.engine("bob", job="j1"), await alice.engine("bob", job="j1")
    await alice.call(first, "CreateDomainData", domaindata_id="out", name="o", type="table", columns=PEOPLE_COLUMNS)
    with pytest.raises(Exception, match="has no grant"):
        await reading(alice, first, "out")
    await writing(alice, first, "out", PEOPLE)
    assert (await reading(alice, second, "out")).equals(PEOPLE)
    with pytest.raises(Exception, match="has no grant"):
        await reading(alice, await alice.engine("bob", job="j2"), "out")
    with pytest.raises(Exception, match="has no grant"):
        await reading(alice, await alice.engine("carol", job="j1"), "out")


async def test_a_flow_reads_what_its_earlier_jobs_wrote(alice: World) -> None:
    first, later = await alice.engine("bob", job="j1", flow="f"), await alice.engine("bob", job="j2", flow="f")
    await alice.call(first, "CreateDomainData", domaindata_id="out", name="o", type="table", columns=PEOPLE_COLUMNS)
    await writing(alice, first, "out", PEOPLE)
    assert (await reading(alice, later, "out")).equals(PEOPLE)


@pytest.mark.parametrize(
    "uri",
    ["people.csv", "people.csv/part", "./people.csv", "x/../people.csv", "/people.csv", "unregistered.csv"],
)
async def test_a_partners_task_cannot_register_what_is_there(alice: World, uri: str) -> None:
    """It could read it as its own result, or write over it."""
    await alice.table("people")
    alice.shelf.tables["unregistered.csv"] = PEOPLE
    pair = await alice.engine("bob")
    answer = await alice.call(
        pair, "CreateDomainData", domaindata_id="mine", name="m", type="table", columns=PEOPLE_COLUMNS, relative_uri=uri
    )
    assert answer.status.code in (12100, 12200), answer
    assert len((await alice.client.list(DOMAIN_DATAS, "alice")).items) == 1


async def test_nor_by_another_source_of_the_same_place(alice: World) -> None:
    await alice.table("people", relativeURI="deep/people.csv")
    await alice.source("aside", "localfs", {"path": str(alice.paths.data / "deep")})
    answer = await alice.call(
        await alice.engine("bob"), "CreateDomainData", domaindata_id="mine", name="m", type="table",
        columns=PEOPLE_COLUMNS, datasource_id="aside", relative_uri="people.csv",
    )  # fmt: skip
    assert "taken" in answer.status.message


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
async def test_nor_inside_of_a_table_of_another_type(alice: World, kind: str) -> None:
    """One more file in its log would be one more version of the table."""
    await alice.source("lake", kind, {"path": str(alice.paths.data / "lake")})
    await alice.table("people", dataSource="lake", relativeURI="people", fileFormat="unknown")
    answer = await alice.call(
        await alice.engine("bob"), "CreateDomainData", domaindata_id="mine", name="m", type="table",
        columns=PEOPLE_COLUMNS, relative_uri="lake/people/_delta_log/00000000000000000001.json",
    )  # fmt: skip
    assert "taken" in answer.status.message


@pytest.mark.parametrize("method", ["UpdateDomainData", "DeleteDomainData", "CreateDomainData"])
async def test_a_partners_task_changes_nothing_of_ours(alice: World, method: str) -> None:
    await alice.table("people")
    await alice.grant("to-bob", "people", "bob")
    more = {} if method == "DeleteDomainData" else {"name": "stolen"}
    answer = await alice.call(await alice.engine("bob"), method, domaindata_id="people", **more)
    assert "may not change" in answer.status.message
    assert (await alice.client.get(DOMAIN_DATAS, "people", "alice")).spec.name == "people"
    with pytest.raises(Exception, match="may not change"):
        await writing(alice, await alice.engine("bob"), "people", PEOPLE)


async def test_what_a_task_made_stays_where_it_is(alice: World) -> None:
    await alice.table("people")
    pair = await alice.engine("bob")
    await alice.call(pair, "CreateDomainData", domaindata_id="out", name="o", type="table", columns=PEOPLE_COLUMNS)
    await writing(alice, pair, "out", PEOPLE)
    answer = await alice.call(pair, "UpdateDomainData", domaindata_id="out", relative_uri="people.csv")
    assert "cannot be changed" in answer.status.message


async def test_a_partners_task_gives_itself_no_grants(alice: World) -> None:
    await alice.table("people")
    pair = await alice.engine("bob")
    made = await alice.call(pair, "CreateDomainDataGrant", domaindata_id="people", grant_domain="bob")
    assert "may not touch grants" in made.status.message
    await alice.grant("to-bob", "people", "bob", useCount=1)
    for method, more in (("UpdateDomainDataGrant", {"limit": {"use_count": 9}}), ("DeleteDomainDataGrant", {})):
        answer = await alice.call(pair, method, domaindatagrant_id="to-bob", **more)
        assert "may not touch grants" in answer.status.message
    assert (await alice.call(pair, "QueryDomainDataGrant", domaindatagrant_id="to-bob")).data.limit.use_count == 1


async def test_metadata_of_what_is_not_granted_is_not_told(alice: World) -> None:
    await alice.table("people")
    answer = await alice.call(await alice.engine("bob"), "QueryDomainData", domaindata_id="people")
    assert answer.status.code == 12201
    assert not answer.HasField("data")


# Grants.


async def test_a_job_knows_again_what_it_registered_without_writing(alice: World) -> None:
    """A report has no rows, and a result may have its rows at another party only."""
    pair = await alice.engine("bob", job="job-1")
    for name, kind in (("scores", "table"), ("evaluation", "report"), ("bundle", "serving_model")):
        assert (await alice.call(pair, "CreateDomainData", domaindata_id=name, type=kind)).status.code == 0
        assert (await alice.call(pair, "QueryDomainData", domaindata_id=name)).data.type == kind
    with pytest.raises(fl.FlightUnauthorizedError, match="has no grant"):
        await reading(alice, pair, "scores")
    for other in (await alice.engine("bob", job="job-2"), await alice.engine("carol", job="job-1")):
        assert (await alice.call(other, "QueryDomainData", domaindata_id="scores")).status.code == 12201
    with pytest.raises(pa.ArrowInvalid, match="scores has no columns here"):
        await reading(alice, await alice.engine(), "scores")


async def test_a_grant_comes_signed_and_is_changed_as_a_whole(alice: World) -> None:
    await alice.table("people")
    pair = await alice.engine()
    made = await alice.call(
        pair, "CreateDomainDataGrant", domaindata_id="people", grant_domain="bob",
        limit={"expiration_time": 4102444800, "use_count": 3, "components": ["psi"]}, description={"why": "<tests> & more"},
    )  # fmt: skip
    name = made.data.domaindatagrant_id
    assert name.startswith("domaindatagrant-")
    found = (await alice.call(pair, "QueryDomainDataGrant", domaindatagrant_id=name)).data
    assert (found.author, found.limit.expiration_time, found.limit.use_count) == ("alice", 4102444800, 3)
    assert found.signature
    changed = await alice.call(pair, "UpdateDomainDataGrant", domaindatagrant_id=name, limit={"use_count": 1})
    assert changed.status.code == 0, changed
    found = (await alice.call(pair, "QueryDomainDataGrant", domaindatagrant_id=name)).data
    assert (found.limit.use_count, list(found.limit.components), found.limit.expiration_time) == (1, [], 0)
    assert (await reading(alice, await alice.engine("bob"), "people")).equals(PEOPLE)
    assert (await alice.call(pair, "DeleteDomainDataGrant", domaindatagrant_id=name)).status.code == 0
    assert (await alice.call(pair, "QueryDomainDataGrant", domaindatagrant_id=name)).status.code == 12405


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({"domaindata_id": "none", "grant_domain": "bob"}, 12400),
        ({"domaindata_id": "people", "grant_domain": "alice"}, 12100),
    ],
    ids=["of what is not there", "to oneself"],
)
async def test_grants_that_make_no_sense(alice: World, request_: dict[str, str], code: int) -> None:
    await alice.table("people")
    answer = await alice.call(await alice.engine(), "CreateDomainDataGrant", **request_)
    assert answer.status.code == code


# Sources.


async def test_engines_see_no_secrets(alice: World) -> None:
    info = {"endpoint": "db:3306", "user": "u-secret", "password": "p-secret", "database": "d"}
    await alice.source("db", "mysql", info)
    pair = await alice.engine()
    answer = await alice.call(pair, "QueryDomainDataSource", datasource_id="db")
    assert (answer.data.info.database.endpoint, answer.data.info.database.database) == ("db:3306", "d")
    assert "secret" not in str(answer)
    kept = json.dumps(await alice.client.get(DOMAIN_DATA_SOURCES.as_dynamic, "db", "alice"))
    assert "secret" not in kept.replace("kuscia.secretflow", "")


async def test_a_path_is_told_where_engines_may_go_there(alice: World) -> None:
    pair = await alice.engine()
    own = await alice.call(pair, "QueryDomainDataSource", datasource_id="default-data-source")
    assert (own.data.info.localfs.path, own.data.access_directly) == (str(alice.paths.data), True)
    await alice.source("hidden", "localfs", {"path": "/srv/secret"})
    hidden = await alice.call(pair, "QueryDomainDataSource", datasource_id="hidden")
    assert hidden.data.info.localfs.path == ""


async def test_engines_of_other_machines_are_not_sent_to_files(tmp_path: Path) -> None:
    async with world(tmp_path, node="node-1") as alice:
        for node, path in (("node-1", str(alice.paths.data)), ("node-2", "")):
            pair = await alice.engine(node=node)
            told = await alice.call(pair, "QueryDomainDataSource", datasource_id="default-data-source")
            assert (told.data.info.localfs.path, told.data.access_directly) == (path, bool(path))


async def test_a_partners_task_is_sent_to_the_data_mesh(alice: World) -> None:
    """The same source: at the files nobody would look at its grants."""
    told = await alice.call(await alice.engine("bob"), "QueryDomainDataSource", datasource_id="default-data-source")
    assert (told.status.code, told.data.info.localfs.path, told.data.access_directly) == (0, "", False)
    assert str(alice.paths.data) not in str(told)


async def test_there_is_a_source_that_is_reached_through_the_data_mesh_only(alice: World) -> None:
    told = await alice.call(await alice.engine(), "QueryDomainDataSource", datasource_id="default-dp-data-source")
    assert (told.data.type, told.data.access_directly, told.data.info.localfs.path) == ("localfs", False, "")
    found = await alice.mesh.catalogue.source_info("default-dp-data-source")
    assert found.path == str(alice.paths.data)


async def test_the_source_itself_gets_the_secrets(alice: World) -> None:
    await alice.source("db", "mysql", {"endpoint": "db:3306", "user": "u", "password": "p", "database": "d"})
    info = await alice.mesh.catalogue.source_info("db")
    assert info.password is not None
    assert (info.password.reveal(), info.user) == ("p", "u")
    assert "password=Secret(******)" in repr(info)


async def test_settings_of_another_key_are_told_without_what_was_in_them(alice: World) -> None:
    obj = source_object("alice", "db", "mysql", {"password": "p-secret"}, alice.identity.key.public_key())
    obj["spec"]["data"]["encryptedInfo"] = "bm9uc2Vuc2U="
    await alice.client.create(DOMAIN_DATA_SOURCES.as_dynamic, obj, "alice")
    with pytest.raises(MeshError, match="present key") as caught:
        await alice.mesh.catalogue.source_info("db")
    assert caught.value.__cause__ is None


async def test_settings_may_be_in_the_config_store(alice: World) -> None:
    own = alice.identity.key.public_key()
    obj = source_object("alice", "db", "mysql", {}, own)
    obj["spec"]["infoKey"] = "my-db"
    await alice.client.create(DOMAIN_DATA_SOURCES.as_dynamic, obj, "alice")
    with pytest.raises(MeshError, match="config store, which is not there"):
        await alice.mesh.catalogue.source_info("db")
    info = {"database": {"endpoint": "db:3306", "user": "u", "password": "p-secret"}}
    store = {"metadata": {"name": "domain-config"}, "data": {"my-db": encrypt_for(json.dumps(info), own)}}
    await alice.client.create(CONFIG_MAPS.as_dynamic, store, "alice")
    found = await alice.mesh.catalogue.source_info("db")
    assert (found.endpoint, found.password and found.password.reveal()) == ("db:3306", "p-secret")
    answer = await alice.call(await alice.engine(), "QueryDomainDataSource", datasource_id="db")
    assert (answer.data.info.database.endpoint, answer.data.info.database.password) == ("db:3306", "")


def test_sealed_text_of_any_length_opens_again(key: Any) -> None:
    for text in ("", "x", "ä" * 500):
        assert decrypt_with(encrypt_for(text, key.public_key()), key) == text
    with pytest.raises(DecryptionError):
        decrypt_with("%%%", key)


def test_a_source_without_sealed_settings_has_its_uri(key: Any) -> None:
    spec = {"name": "s", "type": "localfs", "uri": "/data"}
    source = DOMAIN_DATA_SOURCES.decode(json.dumps({"metadata": {"name": "s"}, "spec": spec}).encode())
    assert isinstance(source, DomainDataSource)
    assert sealed_sources.source_info(source, key, {}).path == "/data"


def test_new_names_are_valid_and_never_the_same() -> None:
    assert new_name("") != new_name("")
    assert len(new_name("A" * 300)) == 16 + 1 + 32
