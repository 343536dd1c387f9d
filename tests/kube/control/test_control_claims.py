"""Expectations, claims and slow start: the small rules under the workload controllers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from coterie.base.clock import VirtualClock
from coterie.kube.api.errors import Forbidden
from coterie.kube.api.meta import ObjectMeta, OwnerReference, PartialObjectMetadata
from coterie.kube.api.selectors import selector_of_map
from coterie.kube.api.types.merge import difference
from coterie.kube.control.controller_refs import sort_claims
from coterie.kube.control.expectations import Expectations
from coterie.kube.control.pod_control import slow_start


async def test_expectations_wait_for_the_cache_but_not_for_ever() -> None:
    clock = VirtualClock()
    informer = SimpleNamespace(resource_version="10")
    expected: Expectations[str] = Expectations(cast("Any", informer), clock, timeout=60)
    assert expected.fulfilled("a")
    expected.expect("a", "12")
    expected.expect("a", "11")  # answers may come in another order
    assert not expected.fulfilled("a") and expected.fulfilled("b")
    informer.resource_version = "11"
    assert not expected.fulfilled("a")
    informer.resource_version = ""  # starting anew
    assert not expected.fulfilled("a")
    informer.resource_version = "12"
    assert expected.fulfilled("a")
    expected.expect("a", "99")
    await clock.advance(59)
    assert not expected.fulfilled("a")
    await clock.advance(1)
    assert expected.fulfilled("a")
    expected.expect("a", "opaque")
    assert expected.fulfilled("a")


def thing(name: str, *, owner: str = "", label: str = "x", deleting: bool = False) -> PartialObjectMetadata:
    references = (
        (OwnerReference(api_version="apps/v1", kind="ReplicaSet", name=owner, uid=owner, controller=True),)
        if owner
        else None
    )
    meta = ObjectMeta(
        name=name,
        labels={"app": label},
        owner_references=references,
        deletion_timestamp="2026-01-02T03:04:05Z" if deleting else None,
    )
    return PartialObjectMetadata(metadata=meta)


@pytest.mark.parametrize(
    ("found", "owner_going", "wanted"),
    [
        (thing("a", owner="us"), False, "ours"),
        (thing("a", owner="us", label="y"), False, "release"),
        (thing("a", owner="us", label="y", deleting=True), False, ""),
        (thing("a", owner="us", label="y"), True, ""),
        (thing("a", owner="us"), True, "ours"),
        (thing("a", owner="them"), False, ""),
        (thing("a"), False, "adopt"),
        (thing("a"), True, ""),
        (thing("a", deleting=True), False, ""),
        (thing("a", label="y"), False, ""),
    ],
    ids=[
        "ours", "released", "going-stays", "owner-going-releases-none", "owner-going-keeps", "another's", "adopted",
        "owner-going-adopts-none", "going-not-adopted", "stranger",
    ],
)  # fmt: skip
def test_claims(found: PartialObjectMetadata, owner_going: bool, wanted: str) -> None:
    owner = ObjectMeta(name="us", uid="us", deletion_timestamp="2026-01-02T03:04:05Z" if owner_going else None)
    claims = sort_claims(owner, selector_of_map({"app": "x"}), [found])
    assert {name: len(getattr(claims, name)) for name in ("ours", "adopt", "release")} == {
        name: int(name == wanted) for name in ("ours", "adopt", "release")
    }


@pytest.mark.parametrize(
    ("count", "fails_at", "asked", "done"),
    [(0, None, 0, 0), (10, None, 10, 10), (100, 0, 1, 0), (100, 1, 3, 2), (100, 40, 63, 62)],
    ids=["none", "all", "first", "second-batch", "late"],
)
async def test_slow_start(count: int, fails_at: int | None, asked: int, done: int) -> None:
    calls = []

    async def attempt(i: int) -> None:
        calls.append(i)
        if i == fails_at:
            raise Forbidden("exceeded quota")

    outcome = await slow_start(count, attempt)
    assert (len(calls), outcome.done) == (asked, done)
    assert (outcome.refused is not None) == (fails_at is not None)


async def test_slow_start_passes_on_what_is_no_refusal() -> None:
    async def attempt(i: int) -> None:
        raise ValueError("a fault of ours")

    with pytest.raises(ValueError, match="fault"):
        await slow_start(3, attempt)


@pytest.mark.parametrize(
    ("before", "after", "patch"),
    [
        ({"a": 1}, {"a": 1}, {}),
        ({"a": 1}, {}, {"a": None}),
        ({}, {"a": 0}, {"a": 0}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, {"a": {"c": 3}}),
        ({"a": [1, 2]}, {"a": [1]}, {"a": [1]}),
        ({"a": 1}, {"a": True}, {"a": True}),
    ],
    ids=["same", "gone", "new", "inside", "list", "bool-is-no-number"],
)
def test_merge_difference(before: dict[str, Any], after: dict[str, Any], patch: dict[str, Any]) -> None:
    assert difference(before, after) == patch
