"""The pure decision about grants: what control planes ask before a task starts, and the signed text."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from coterie.kuscia.api import grants
from coterie.kuscia.api.grants import DataUse, check_task, components_of, data_named, decide
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS, DOMAIN_DATAS, DomainData, DomainDataGrant

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def grant(name: str = "g", to: str = "bob", data: str = "people", **limit: Any) -> DomainDataGrant:
    spec = {"author": "alice", "domainDataID": data, "grantDomain": to, **({"limit": limit} if limit else {})}
    return DOMAIN_DATA_GRANTS.decode(json.dumps({"metadata": {"name": name}, "spec": spec}).encode())


def table(name: str, author: str = "alice", **marks: str) -> DomainData:
    spec = {"relativeURI": name, "author": author, "name": name, "type": "table", "dataSource": "s"}
    return DOMAIN_DATAS.decode(json.dumps({"metadata": {"name": name, "annotations": marks}, "spec": spec}).encode())


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('{"sf_node_eval_param": {"domain": "d", "name": "psi", "version": "1"}}', ("d/psi:1", "d/psi", "psi")),
        ('{"sf_node_eval_param": "{\\"name\\": \\"psi\\"}"}', ("psi",)),
        ('{"component": "psi"}', ("psi",)),
        ('{"component": 7}', ()),
        ("[1]", ()),
        ("nonsense", ()),
    ],
)
def test_components_of_a_task_input(text: str, names: tuple[str, ...]) -> None:
    assert components_of(text) == names


def test_tables_are_found_wherever_the_input_names_them() -> None:
    text = json.dumps({"a": ["x", {"b": "people"}], "c": json.dumps({"d": "visits"}), "people-2": "not a value"})
    assert data_named(text, {"people", "visits", "people-2", "d"}) == ("people", "visits")


TASK = DataUse("", "bob", frozenset(("alice", "bob")), ("psi",), "f", json.dumps({"in": "people", "out": "new"}))


@pytest.mark.parametrize(
    ("found", "limits"),
    [
        pytest.param([], ["grant"], id="none"),
        pytest.param([grant()], [], id="one"),
        pytest.param([grant(to="carol")], ["grantDomain"], id="for another"),
        pytest.param([grant("a", to="carol"), grant("b")], [], id="one of several"),
        pytest.param([grant(expirationTime="2026-04-30T00:00:00Z")], ["expirationTime"], id="ended"),
        pytest.param([grant(components=["train"])], ["components"], id="component"),
        pytest.param([grant(inputConfig=grants.columns_limit(["id"]))], [], id="columns are known when they are read"),
    ],
)
def test_a_task_of_a_partner_is_checked_before_it_starts(found: list[DomainDataGrant], limits: list[str]) -> None:
    assert [each.limit for each in check_task(TASK, "alice", [table("people")], found, NOW)] == limits


def test_an_own_task_needs_no_grant() -> None:
    own = DataUse("", "alice", input_config=TASK.input_config)
    assert check_task(own, "alice", [table("people")], [], NOW) == ()


def test_data_of_others_and_results_of_the_same_initiator_are_left_to_the_data_mesh() -> None:
    theirs, result = table("people", author="bob"), table("people", **{"coterie.io/made-for": "bob"})
    assert check_task(TASK, "alice", [theirs], [], NOW) == ()
    assert check_task(TASK, "alice", [result], [], NOW) == ()
    other = table("people", **{"coterie.io/made-for": "carol"})
    assert len(check_task(TASK, "alice", [other], [], NOW)) == 1


def test_the_ends_of_a_count_and_of_a_time_are_exact() -> None:
    def at(moment: datetime) -> bool:
        return (
            decide([grant(expirationTime="2026-05-01T00:00:00Z")], DataUse("people", "bob"), "alice", moment).grant
            is None
        )

    assert at(NOW)
    assert not at(NOW.replace(year=2025))


def test_the_signed_text_is_kuscias_to_the_letter() -> None:
    found = grant(useCount=3, components=["psi"], expirationTime="2026-05-01T02:00:00+02:00", flowID="a&b")
    assert grants.signed_text(found.spec) == (
        b'{"author":"alice","domainDataID":"people","grantDomain":"bob","limit":{"expirationTime":"2026-05-01T00:00:00Z",'
        b'"useCount":3,"grantMode":null,"flowID":"a\\u0026b","components":["psi"]}}'
    )
    assert grants.signed_text(grant().spec) == b'{"author":"alice","domainDataID":"people","grantDomain":"bob"}'


@pytest.mark.parametrize(
    ("annotations", "image", "field"),
    [
        ({}, "secretflow/secretflow-lite-anolis8", "sf_node_eval_param"),
        ({}, "registry/psi", ""),
        ({}, "secretflow/scql", ""),
        ({"coterie.io/component-field": "component"}, "registry/psi", "component"),
        ({"coterie.io/component-field": "none"}, "secretflow", ""),
    ],
)
def test_which_field_an_engine_reads(annotations: dict[str, str], image: str, field: str) -> None:
    assert grants.component_field(annotations, image) == field


@pytest.mark.parametrize("field", ["", "sf_node_eval_param", "component"])
def test_what_the_engine_does_not_read_is_not_believed(field: str) -> None:
    text = '{"sf_node_eval_param": {"name": "train"}, "component": "psi"}'
    assert components_of(text, field) == {"": (), "component": ("psi",), "sf_node_eval_param": ("train",)}[field]


def test_names_of_what_runs() -> None:
    names = grants.use_names("sf", ["sha256:1"], ["data_prep/psi", "psi"])
    assert names[0] == "data_prep/psi"
    assert {"psi", "sf", "sf@sha256:1", "sf#psi", "sf@sha256:1#data_prep/psi"} <= set(names)
    assert grants.use_names("", ["sha256:1"], []) == ()
