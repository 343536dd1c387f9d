"""Who made a table is what the data mesh recorded, whatever an object says; and grants bind what really runs."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pyarrow.flight as fl
import pytest
from datamesh_kit import PEOPLE, PEOPLE_COLUMNS, World, command, reading, threaded, writing

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK
from coterie.cli.app import CliError
from coterie.cli.data_access import DataAccess
from coterie.kube.api.meta import Object
from coterie.kuscia.api.grants import columns_limit
from coterie.kuscia.api.types.data import (
    DOMAIN_DATA_GRANTS,
    DOMAIN_DATA_RECORDS,
    DOMAIN_DATA_SOURCES,
    DOMAIN_DATAS,
    DomainDataRecordSpec,
)
from coterie.kuscia.controllers.domain import objects
from coterie.kuscia.datamesh.errors import MeshError
from coterie.kuscia.identity import engine_certificates
from coterie.kuscia.identity.engine_certificates import EngineIdentity, EnginePair
from coterie.kuscia.sources import sealed_sources
from coterie.kuscia.sources.data_records import DataRecords
from coterie.kuscia.sources.local_roots import OUTSIDE_ANNOTATION, directory_fault
from coterie.kuscia.sources.protocol import SourceInfo

PLANTED = {
    "coterie.io/made-for": "bob",
    "coterie.io/made-by-job": "j1",
    "coterie.io/written-by-job": "j1",
    "coterie.io/flow": "f",
}


async def made_by_bob(alice: World, uri: str = "out") -> EnginePair:
    pair = await alice.engine("bob", job="j1")
    answer = await alice.call(
        pair, "CreateDomainData", domaindata_id="out", name="o", type="table", columns=PEOPLE_COLUMNS, relative_uri=uri
    )
    assert answer.status.code == 0, answer.status.message
    await writing(alice, pair, "out", PEOPLE)
    return pair


async def test_annotations_open_nothing(alice: World) -> None:
    await alice.table("people")
    await alice.client.patch(DOMAIN_DATAS, "people", "alice", {"metadata": {"annotations": PLANTED}})
    pair = await alice.engine("bob", job="j1", flow="f")
    with pytest.raises(fl.FlightUnauthorizedError, match="has no grant"):
        await reading(alice, pair, "people")
    assert "may not change" in (await alice.call(pair, "DeleteDomainData", domaindata_id="people")).status.message
    assert "has no grant" in (await alice.call(pair, "QueryDomainData", domaindata_id="people")).status.message


async def test_the_record_says_who_made_it(alice: World) -> None:
    await made_by_bob(alice)
    (record,) = (await alice.client.list(DOMAIN_DATA_RECORDS, "alice")).items
    spec = record.spec
    assert (spec.domain_data_id, spec.initiator, spec.job, spec.written_by) == ("out", "bob", "j1", "j1")


async def test_what_a_partner_made_is_not_registered_as_ours(alice: World) -> None:
    """Nor when its entry is gone: the file is still there."""
    await made_by_bob(alice)
    await alice.client.delete(DOMAIN_DATAS, "out", "alice")
    own = await alice.engine()
    asked = {"name": "o", "type": "table", "columns": PEOPLE_COLUMNS, "relative_uri": "out"}
    answer = await alice.call(own, "CreateDomainData", domaindata_id="ours", **asked)
    assert 'made by a task of "bob", job j1' in answer.status.message
    (record,) = (await alice.client.list(DOMAIN_DATA_RECORDS, "alice")).items
    assert f"coterie delete domaindatarecord {record.metadata.name}" in answer.status.message
    await alice.client.delete(DOMAIN_DATA_RECORDS, record.metadata.name, "alice")
    assert (await alice.call(own, "CreateDomainData", domaindata_id="ours", **asked)).status.code == 0


async def test_an_entry_of_ours_does_not_move_to_what_a_partner_made(alice: World) -> None:
    await made_by_bob(alice)
    await alice.table("people")
    answer = await alice.call(await alice.engine(), "UpdateDomainData", domaindata_id="people", relative_uri="out")
    assert "made by a task of" in answer.status.message


async def test_what_we_write_over_it_is_ours(alice: World) -> None:
    pair = await made_by_bob(alice)
    await writing(alice, await alice.engine(job="mine"), "out", PEOPLE)
    with pytest.raises(fl.FlightUnauthorizedError, match="has no grant"):
        await reading(alice, pair, "out")


async def test_a_file_that_was_replaced_is_not_what_the_partner_wrote(alice: World) -> None:
    place = alice.paths.data / "out"
    place.write_text("theirs")
    alice.shelf.tables.pop("out", None)
    pair = await made_by_bob(alice)
    assert (await reading(alice, pair, "out")).num_rows == 3
    fresh = place.with_name("fresh")
    fresh.write_text("ours now")
    fresh.replace(place)
    with pytest.raises(fl.FlightUnauthorizedError, match="has no grant"):
        await reading(alice, pair, "out")


async def test_another_partner_does_not_write_beside_it(alice: World) -> None:
    await made_by_bob(alice, "dir")
    await alice.client.delete(DOMAIN_DATAS, "out", "alice")
    answer = await alice.call(
        await alice.engine("carol"), "CreateDomainData", domaindata_id="mine", name="m", type="table",
        columns=PEOPLE_COLUMNS, relative_uri="dir/below",
    )  # fmt: skip
    assert "taken" in answer.status.message


async def test_a_link_is_followed_before_places_are_compared(alice: World, tmp_path: Path) -> None:
    await alice.table("people", relativeURI="deep/people.csv")
    (alice.paths.data / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(alice.paths.data / "deep")
    await alice.source("aside", "localfs", {"path": str(tmp_path / "link")})
    answer = await alice.call(
        await alice.engine("bob"), "CreateDomainData", domaindata_id="mine", name="m", type="table",
        columns=PEOPLE_COLUMNS, datasource_id="aside", relative_uri="people.csv",
    )  # fmt: skip
    assert "taken" in answer.status.message


async def test_data_add_adopts_nothing_of_others(alice: World) -> None:
    alice.paths.data.mkdir(parents=True, exist_ok=True)
    for name in ("people.csv", "theirs.csv"):
        (alice.paths.data / name).write_text("id\n1\n")
    await alice.table("people", author="bob", relativeURI="elsewhere.csv")
    catalogue = alice.mesh.catalogue
    data = DataAccess(SimpleNamespace(domain="alice"), alice.client, catalogue)  # type: ignore[arg-type]
    with pytest.raises(CliError, match=r"is an entry of bob.*coterie delete domaindata people -n alice"):
        await data.register("people", "people.csv")
    assert (await alice.client.get(DOMAIN_DATAS, "people", "alice")).spec.author == "bob"
    info = await catalogue.source_info("")
    location = sealed_sources.location(info, "theirs.csv")
    spec = DomainDataRecordSpec(domain_data_id="x", location=location, initiator="bob", job="j1")
    await DataRecords(alice.client, "alice").put(spec)
    with pytest.raises(CliError, match=r"coterie delete domaindatarecord place-.* -n alice"):
        await data.register("fresh", "theirs.csv")
    assert (await data.register("fresh", "people.csv"))["relativeURI"] == "people.csv"


def test_partners_have_no_rights_on_records() -> None:
    for rule in objects.PARTNER_RULES:
        assert "domaindatarecords" not in rule["resources"] and "*" not in rule["resources"]


# Grants.


async def unsigned(alice: World, **spec: str) -> None:
    body: Object = {"author": "alice", "domainDataID": "people", "grantDomain": "bob", **spec}
    await alice.client.create(DOMAIN_DATA_GRANTS.as_dynamic, {"metadata": {"name": "forged"}, "spec": body}, "alice")


@pytest.mark.parametrize(("spec", "why"), [({}, "does not bear"), ({"signature": "c2lnbmVk"}, "not the owner's")])
async def test_a_grant_is_the_owners_word(alice: World, spec: dict[str, str], why: str) -> None:
    await alice.table("people")
    await unsigned(alice, **spec)
    with pytest.raises(fl.FlightUnauthorizedError, match=why):
        await reading(alice, await alice.engine("bob"), "people")


async def test_a_changed_grant_is_not_the_owners_word(alice: World) -> None:
    """As a master could change that of its lite."""
    await alice.table("people")
    await alice.grant("to-bob", "people", "bob", useCount=1)
    await alice.client.patch(DOMAIN_DATA_GRANTS, "to-bob", "alice", {"spec": {"limit": {"useCount": 1000}}})
    with pytest.raises(fl.FlightUnauthorizedError, match="not the owner's"):
        await reading(alice, await alice.engine("bob"), "people")


@pytest.mark.parametrize(("partition", "why"), [("salary=10.5", "column salary"), ("id=1,salary=10.5", "salary")])
async def test_a_column_that_chooses_rows_is_read(alice: World, partition: str, why: str) -> None:
    await alice.table("people")
    await alice.grant("to-bob", "people", "bob", inputConfig=columns_limit(["id"]))
    query = command("CommandDomainDataQuery", domaindata_id="people", columns=["id"], partition_spec=partition)
    with alice.flight(await alice.engine("bob")) as client, pytest.raises(fl.FlightUnauthorizedError, match=why):
        await threaded(client.get_flight_info, fl.FlightDescriptor.for_command(query))


@pytest.mark.parametrize("partition", ["secret=x", "id=1,secret=x", "ID=1"])
async def test_a_column_that_the_entry_does_not_declare_chooses_no_rows(alice: World, partition: str) -> None:
    """A database knows it; a grant of the whole entry does not give it."""
    fields = [{"name": "ds", "type": "str"}]
    await alice.table("people", partitions={"type": "path", "fields": fields})
    await alice.grant("to-bob", "people", "bob")
    bob = await alice.engine("bob")

    async def asked(chosen: str) -> None:
        query = command("CommandDomainDataQuery", domaindata_id="people", columns=["id"], partition_spec=chosen)
        with alice.flight(bob) as client:
            await threaded(client.get_flight_info, fl.FlightDescriptor.for_command(query))

    with pytest.raises(fl.FlightUnauthorizedError, match=r"declares no column or partition (secret|ID)"):
        await asked(partition)
    await asked("ds=x,age=30")


async def test_a_granted_column_may_choose_rows(alice: World) -> None:
    await alice.table("people")
    await alice.grant("to-bob", "people", "bob", inputConfig=columns_limit(["id", "age"]))
    query = command("CommandDomainDataQuery", domaindata_id="people", columns=["id"], partition_spec="age=30")
    with alice.flight(await alice.engine("bob")) as client:
        found = await threaded(client.get_flight_info, fl.FlightDescriptor.for_command(query))
    assert found.schema.names == ["id"]


async def test_the_authority_of_servers_is_none_of_engines(alice: World) -> None:
    """What the domain's own authority signs is not an engine's, even when it says so."""
    await alice.table("people")
    await alice.engine()
    authority = pki.Authority(pki.load_certificate(alice.paths.ca_certificate.read_bytes()), alice.identity.key)
    engine = EngineIdentity("alice", "task-1-0", "uid")
    pair = engine_certificates.issue_client_pair(authority, engine, SYSTEM_CLOCK.now())
    with pytest.raises(fl.FlightUnavailableError):
        await reading(alice, pair, "people")


# Local sources.


def domain_at(root: Path, name: str) -> Path:
    (root / name / "var" / "certs").mkdir(parents=True)
    (root / name / "var" / "storage" / "data").mkdir(parents=True)
    return root / name


def test_directories_of_sources(tmp_path: Path) -> None:
    root = tmp_path / "root"
    alice, bob = domain_at(root, "alice"), domain_at(root, "bob")
    elsewhere = tmp_path / "tables"
    elsewhere.mkdir()
    for name, target in (("machine", "/"), ("certs", str(alice / "var/certs")), ("fine", str(elsewhere))):
        os.symlink(target, tmp_path / name)
    for good in (elsewhere, tmp_path / "fine", alice / "var/storage/data", alice / "var/storage/data/deep"):
        assert directory_fault(str(good), alice) == ""
    for bad in ("/", "/etc/..", "//", "tables", *(str(each) for each in (
        tmp_path / "machine", tmp_path / "certs", root, alice, alice / "var", alice / "var/storage", bob,
        bob / "var/storage/data", tmp_path, elsewhere / ".." / "certs",
    ))):  # fmt: skip
        assert directory_fault(bad, alice), bad


def test_a_link_to_the_domain_hides_its_keys_too(tmp_path: Path) -> None:
    real = domain_at(tmp_path / "real", "alice")
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    assert directory_fault(str(real / "var"), tmp_path / "linked" / "alice")
    assert directory_fault(str(tmp_path / "linked" / "alice" / "var"), real)
    assert directory_fault(str(real / "var/storage/data"), tmp_path / "linked" / "alice") == ""


async def test_a_source_of_the_whole_machine_is_refused(alice: World) -> None:
    await alice.source("all", "localfs", {"path": "/"})
    with pytest.raises(MeshError, match="whole machine"):
        await alice.mesh.catalogue.source_info("all")


async def test_a_lites_source_elsewhere_needs_its_operator(alice: World, tmp_path: Path) -> None:
    place = tmp_path / "tables"
    place.mkdir()
    await alice.source("aside", "localfs", {"path": str(place)})
    catalogue = alice.mesh.catalogue
    assert (await catalogue.source_info("aside")).path == str(place)
    catalogue._only_data_directory = True
    with pytest.raises(MeshError, match="operator of the control plane"):
        await catalogue.source_info("aside")
    assert (await catalogue.source_info("default-data-source")).path == str(alice.paths.data)
    marks = {"metadata": {"annotations": {OUTSIDE_ANNOTATION: "true"}}}
    await alice.client.patch(DOMAIN_DATA_SOURCES, "aside", "alice", marks)
    assert (await catalogue.source_info("aside")).path == str(place)


def test_places_of_databases_have_no_links() -> None:
    info = SourceInfo(kind="mysql", endpoint="h:1", database="D")
    assert sealed_sources.location(info, "T") == ("mysql", "h:1", "d", "t")
