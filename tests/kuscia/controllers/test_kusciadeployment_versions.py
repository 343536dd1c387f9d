"""Deployments that name an engine and a range: two control planes that tell each other what they offer, and what each pins."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest
from job_world import an_image
from serving_world import a_party, a_serving
from test_kusciadeployment_plan import a_view

from coterie.kube.api.meta import Object
from coterie.kuscia.api import labels
from coterie.kuscia.api.engine_versions import EngineRange, choose, local_engines, names_versions, versions_named
from coterie.kuscia.api.job_statements import OfferedEngine
from coterie.kuscia.api.types.deployment import KusciaDeployment, PartyDeploymentStatus, PartyStatuses
from coterie.kuscia.api.types.job import AppImage
from coterie.kuscia.controllers.kusciadeployment import versions
from coterie.kuscia.controllers.kusciadeployment.plan import Plan, View, failed_status, plan
from coterie.kuscia.controllers.kusciadeployment.status import Explanation
from coterie.kuscia.extensions.app_images import pinning_deployments
from coterie.kuscia.interconn.deployment_mirror import merge_partner_statuses

ALICE, BOB = ("alice", ""), ("bob", "")


def version(number: str, speaks: str = "", protocols: str = "") -> AppImage:
    image = an_image(f"psi-{number}")
    marks = {labels.COTERIE_ENGINE: "psi", labels.COTERIE_ENGINE_VERSION: number, labels.COTERIE_SPEAKS: speaks}
    image["metadata"]["annotations"] = {**marks, labels.COTERIE_PROTOCOLS: protocols}
    return msgspec.convert(image, AppImage)


def installed(*numbers: str, speaks: str = "") -> dict[str, AppImage]:
    return {f"psi-{each}": version(each, speaks) for each in numbers}


def a_deployment(ref: str = "psi>=0.5", theirs: str = "") -> Object:
    return a_serving(a_party("alice", image=ref), a_party("bob", image=theirs or ref))


class Side:
    """One control plane's look at a deployment that alice began; `say` and `hear` stand for the interconnection."""

    def __init__(self, name: str, images: dict[str, AppImage], body: Object | None = None) -> None:
        self.name, self.images = name, images
        self.deployment = msgspec.convert(body or a_deployment(), KusciaDeployment)
        self.done = Plan()

    def view(self) -> View:
        offers = {
            versions.key_of(party): local_engines(versions_named(party.app_image_ref, self.images.values()), {})
            for party in self.deployment.spec.parties
            if party.domain_id == self.name and names_versions(party.app_image_ref, self.images.values())
        }
        body: Any = {"metadata": {"name": "s", "namespace": "cross-domain"}, **msgspec.to_builtins(self.deployment)}
        shown = a_view(body, own=(self.name,), **msgspec.to_builtins(self.deployment.metadata))
        ports = {key: {"talk": 20000, "inner": 20001, "own": 20002} for key in (ALICE, BOB)}
        return replace(shown, images=self.images, offers=offers, ports=ports)

    def step(self) -> None:
        """As the controller: marks are written, and looked at once more."""
        for _ in range(3):
            view = self.view()
            self.done = done = plan(view)
            if done.mark is not None and "annotations" in done.mark:
                known = {**(self.deployment.metadata.annotations or {}), **done.mark["annotations"]}
                finalizers = tuple(done.mark.get("finalizers") or self.deployment.metadata.finalizers or ())
                meta = msgspec.structs.replace(self.deployment.metadata, annotations=known, finalizers=finalizers)
                self.deployment = msgspec.structs.replace(self.deployment, metadata=meta)
            elif done.failure is not None:
                status = failed_status(view, done.failure)
                self.deployment = msgspec.structs.replace(self.deployment, status=status)
            elif done.status is not None:
                self.deployment = msgspec.structs.replace(self.deployment, status=done.status)

    def say(self) -> PartyStatuses:
        return {name: each for name, each in self.deployment.party_statuses.items() if name == self.name}

    def hear(self, told: PartyStatuses, other: str) -> None:
        if (status := self.deployment.status) is None:
            return
        known = merge_partner_statuses(self.deployment.party_statuses, told, (other,))
        status = msgspec.structs.replace(status, party_deployment_statuses=known or None)
        self.deployment = msgspec.structs.replace(self.deployment, status=status)

    @property
    def pin(self) -> str:
        return next((pin.version for pin in versions.pins_of(self.deployment).values()), "")

    @property
    def runs(self) -> bool:
        return any(each.kind.resource.kind == "Deployment" for each in self.done.ensure)


def settle(alice: Side, bob: Side, order: Random | None = None) -> None:
    sides = [alice, bob]
    for _ in range(8):
        if order is not None:
            order.shuffle(sides)
        for side in sides:
            other = bob if side is alice else alice
            side.hear(other.say(), other.name)
            side.step()


def test_both_pin_the_newest_that_they_have_in_common_and_nothing_runs_before() -> None:
    alice, bob = Side("alice", installed("0.5", "0.6", "0.7")), Side("bob", installed("0.4", "0.6", speaks="<=0.6"))
    alice.step()
    assert not alice.runs and not alice.pin
    assert alice.deployment.status is not None and "bob" in alice.deployment.status.message
    settle(alice, bob)
    assert (alice.pin, bob.pin) == ("0.6", "0.6") and alice.runs and bob.runs
    [made] = [each.body for each in alice.done.ensure if each.kind.resource.kind == "Deployment"]
    assert made["spec"]["template"]["spec"]["containers"]
    shown = alice.deployment.party_statuses["alice"]["s"]
    assert (shown.engine_ref, [each.version for each in shown.engines or ()]) == ("psi>=0.5", ["0.6"])


def test_the_choice_is_that_of_jobs_whoever_is_quicker() -> None:
    random = Random(11)
    numbers = ["0.5", "0.6", "0.7", "0.8"]
    speaks = ["", ">=0.6", "<0.7", "==0.6", ">=0.8"]
    for _ in range(40):
        has = [
            {
                f"psi-{each}": version(each, random.choice(speaks))
                for each in random.sample(numbers, random.randint(1, 3))
            }
            for _ in range(2)
        ]
        alice, bob = Side("alice", has[0]), Side("bob", has[1])
        settle(alice, bob, random)
        offers = {
            name: [each.offer for each in local_engines(versions_named("psi>=0.5", images.values()), {})]
            for name, images in zip(("alice", "bob"), has, strict=True)
        }
        wanted = choose(EngineRange("psi"), offers)
        assert [alice.pin, bob.pin] == [wanted.pins[each].version if wanted.pins else "" for each in ("alice", "bob")]
        assert alice.runs is bob.runs is bool(wanted.pins)
        if wanted.problem:
            told = {each.done.failure for each in (alice, bob)}
            assert told == {Explanation(versions.ENGINE_MISMATCH, wanted.problem)}


def test_versions_that_come_later_do_not_touch_what_runs_until_the_range_changes() -> None:
    alice, bob = Side("alice", installed("0.6")), Side("bob", installed("0.6"))
    settle(alice, bob)
    before = [each.body for each in alice.done.ensure]
    alice.images |= installed("0.7")
    bob.images |= installed("0.7")
    settle(alice, bob)
    assert (alice.pin, bob.pin) == ("0.6", "0.6") and [each.body for each in alice.done.ensure] == before
    for side in (alice, bob):
        spec = msgspec.convert(a_deployment("psi>=0.7"), KusciaDeployment).spec
        side.deployment = msgspec.structs.replace(side.deployment, spec=spec)
    alice.step()
    assert not alice.runs, "what bob said was for the range before"
    settle(alice, bob)
    assert (alice.pin, bob.pin) == ("0.7", "0.7") and alice.runs


def test_a_kuscia_partner_says_nothing_and_nobody_waits_for_it() -> None:
    alice = Side("alice", installed("0.6", "0.7"))
    entry = PartyDeploymentStatus(replicas=1, updated_replicas=1, available_replicas=1, unavailable_replicas=0)
    alice.step()
    alice.hear({"bob": {"s": entry}}, "bob")
    alice.step()
    assert alice.pin == "0.7" and alice.runs


def test_the_name_of_an_app_image_means_it_as_in_kuscia() -> None:
    alice = Side("alice", installed("0.6"), a_deployment("psi-0.6"))
    alice.step()
    assert alice.runs and not alice.pin
    assert labels.COTERIE_DEPLOYED_ENGINES not in (alice.deployment.metadata.annotations or {})


def test_who_lacks_what_is_said() -> None:
    alice, bob = Side("alice", installed("0.7")), Side("bob", installed("0.4"))
    settle(alice, bob)
    assert not alice.runs and not bob.runs and bob.done.failure is not None
    assert bob.done.failure.message == (
        "no version of the engine psi is in >=0.5: there is 0.4 (coterie engine upgrade psi)"
    )


@pytest.mark.parametrize(
    "hostile",
    [
        (OfferedEngine(version="\x1b[2J"),),
        (OfferedEngine(version="0.6", speaks="nonsense"),),
        tuple(OfferedEngine(version=f"0.6.{each}") for each in range(40)),
        (OfferedEngine(version="9" * 10_000),),
    ],
)
def test_what_a_partner_offers_is_data(hostile: tuple[OfferedEngine, ...]) -> None:
    alice = Side("alice", installed("0.6", "0.7"))
    alice.step()
    entry = PartyDeploymentStatus(
        replicas=0,
        updated_replicas=0,
        available_replicas=0,
        unavailable_replicas=1,
        engine_ref="psi>=0.5",
        engines=hostile,
    )
    alice.hear({"bob": {"s": entry}}, "bob")
    alice.step()
    taken = alice.deployment.party_statuses["bob"]["s"].engines or ()
    assert len(taken) <= 16 and "\x1b" not in str(alice.done)


def test_before_a_partners_deployment_is_approved_it_is_told_no_versions() -> None:
    bob = Side("bob", installed("0.6"))
    view = replace(bob.view(), partner=True)
    held = replace(view, admission=replace(view.admission, verdict=view.admission.verdict.__class__.ASK))
    status = plan(held).status
    assert status is not None
    entry = (status.party_deployment_statuses or {})["bob"]["s"]
    assert (entry.engine_ref, entry.engines) == ("psi>=0.5", None)


def test_a_version_that_a_deployment_is_pinned_to_stays() -> None:
    class Entry:
        name = "s"
        raw = msgspec.json.encode(
            {
                "metadata": {
                    "annotations": {labels.COTERIE_DEPLOYED_ENGINES: '{"alice":{"ref":"psi","appImage":"psi-0.6"}}'}
                }
            }
        )

    class Found:
        def entries(self, namespace: str) -> list[Entry]:
            return [Entry()]

    assert pinning_deployments(lambda key: Found(), "psi-0.6") == ["s"]  # type: ignore[arg-type, return-value]
    assert pinning_deployments(lambda key: Found(), "psi-0.7") == []  # type: ignore[arg-type, return-value]
