"""Versions of engines: what AppImages say, what jobs ask for, and what parties agree on, against a search through everything."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from coterie.kube.api.meta import ObjectMeta
from coterie.kuscia.api import engine_versions, labels
from coterie.kuscia.api.engine_versions import (
    EngineRange,
    EngineRangeError,
    agreed_engines,
    annotation_faults,
    as_offers,
    choose,
    images_named,
    local_engines,
    missing_sentence,
    parse_pins,
    parse_range,
    pinned_image,
    pins_text,
    version_of,
    versions_named,
)
from coterie.kuscia.api.job_statements import OfferedEngine, PartyStatement, TaskStatement
from coterie.kuscia.api.types.job import (
    AppImage,
    AppImageName,
    AppImageSpec,
    DeployTemplate,
    JobParty,
    KusciaJobSpec,
    TaskTemplate,
)

_DIGEST = f"sha256:{'a' * 64}"


def app_image(name: str, engine: str = "", version: str = "", *, id: str = "", **more: str) -> AppImage:
    said = {
        labels.COTERIE_ENGINE: engine,
        labels.COTERIE_ENGINE_VERSION: version,
        labels.COTERIE_SPEAKS: more.get("speaks", ""),
        labels.COTERIE_PROTOCOLS: more.get("protocols", ""),
    }
    annotations = {key: value for key, value in said.items() if value} or None
    return AppImage(
        metadata=ObjectMeta(name=name, annotations=annotations),
        spec=AppImageSpec(
            image=AppImageName(name=f"team/{engine or name}", tag=version or "latest", id=id),
            deploy_templates=(DeployTemplate(name=name, spec={"containers": []}),),
        ),
    )


def offer(version: str, speaks: str = "", *protocols: str, digest: str = "") -> OfferedEngine:
    return OfferedEngine(version=version, speaks=speaks, protocols=protocols or None, digest=digest)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("psi", EngineRange("psi")),
        ("secretflow-image", EngineRange("secretflow-image")),
        ("psi>=0.5,<0.7", EngineRange("psi", ">=0.5,<0.7")),
        ("psi >= 0.5, < 0.7", EngineRange("psi", ">=0.5,<0.7")),
        ("psi==0.6.*", EngineRange("psi", "==0.6.*")),
        ("psi~=1.11", EngineRange("psi", "~=1.11")),
    ],
)
def test_what_a_task_asks_for(text: str, wanted: EngineRange) -> None:
    assert parse_range(text) == wanted


@pytest.mark.parametrize("text", ["psi>=", "psi>=x", "psi=0.5", ">=0.5", "PSI>=1", f"psi>={'1' * 300}"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(EngineRangeError):
        parse_range(text)


def test_names_without_versions_mean_the_appimage_as_in_kuscia() -> None:
    plain = app_image("secretflow-image")
    assert [each.app_image for each in versions_named("secretflow-image", [plain])] == ["secretflow-image"]
    assert version_of(plain).version == ""
    assert versions_named("secretflow-image>=1", [plain]) == ()
    assert versions_named("nothing", [plain]) == ()
    # An exact name wins over an engine of that name that others are versions of.
    other = app_image("other", "secretflow-image", "2.0")
    assert [each.app_image for each in versions_named("secretflow-image", [plain, other])] == ["secretflow-image"]


def test_an_engine_means_its_newest_version_and_pins_of_the_domain_narrow_it() -> None:
    images = [app_image("psi", "psi", "0.6"), app_image("psi-0.10", "psi", "0.10"), app_image("psi-0.9", "psi", "0.9")]
    named = [each.version for each in versions_named("psi", images)]
    assert named == ["0.10", "0.9", "0.6"]
    assert [each.version for each in versions_named("psi<0.10", images)] == ["0.9", "0.6"]
    assert [each.version for each in versions_named("psi", images, {"psi": "==0.6"})] == ["0.6"]
    assert versions_named("psi>0.6", images, {"psi": "==0.6"}) == ()
    # A name that is one of several versions: the AppImage itself.
    assert [each.version for each in versions_named("psi-0.9", images)] == ["0.9"]
    by_name = {image.metadata.name: image for image in images}
    resolved = images_named(("psi", "psi<0.7"), by_name)
    assert (resolved["psi"].metadata.name, resolved["psi<0.7"].metadata.name) == ("psi-0.10", "psi")


def test_a_missing_version_says_what_is_there() -> None:
    images = [app_image("psi", "psi", "0.6"), app_image("psi-0.9", "psi", "0.9")]
    assert missing_sentence("psi>=1", images) == (
        "no version of the engine psi is in >=1: there is 0.9, 0.6 (coterie engine upgrade psi)"
    )
    assert missing_sentence("other>=1", images).startswith("there is no version of the engine other;")
    assert missing_sentence("other", images) == 'there is no AppImage "other"'
    assert "is no range of versions" in missing_sentence("psi>=x", images)


@pytest.mark.parametrize(
    ("annotations", "count"),
    [
        (None, 0),
        ({"coterie.io/engine": "psi", "coterie.io/engine-version": "0.6"}, 0),
        ({"coterie.io/engine": "psi"}, 1),
        ({"coterie.io/engine-version": "0.6"}, 1),
        ({"coterie.io/engine": "psi", "coterie.io/engine-version": "six", "coterie.io/speaks": "new"}, 2),
    ],
)
def test_annotations_are_checked(annotations: dict[str, str] | None, count: int) -> None:
    assert len(annotation_faults(annotations)) == count


def test_offers_have_the_digest_of_the_appimage_or_of_the_nodes() -> None:
    images = [
        app_image("psi-0.6", "psi", "0.6", id=_DIGEST.removeprefix("sha256:"), speaks=">=0.5", protocols="b/2, a/1"),
        app_image("psi-0.5", "psi", "0.5", id="abc"),
        app_image("psi-0.4", "psi", "0.4"),
    ]
    found = versions_named("psi", images)
    digests = {"team/psi:0.5": "sha256:05"}
    local = local_engines(found, digests)
    offered = as_offers(found, digests)
    assert [each.digest for each in offered] == [_DIGEST, "sha256:05", ""]
    assert (offered[0].speaks, offered[0].protocols) == (">=0.5", ("a/1", "b/2"))
    assert pinned_image(offered[1], local) == "psi-0.5"
    assert pinned_image(offer("9"), local) == ""


def test_two_with_the_same_version_are_told_apart_by_their_content() -> None:
    images = [
        app_image(name, "psi", "0.6", id=f"sha256:{letter * 64}") for name, letter in (("one", "1"), ("two", "2"))
    ]
    found = local_engines(versions_named("psi", images), {})
    assert [pinned_image(each.offer, found) for each in found] == [each.app_image for each in found] == ["one", "two"]


@pytest.mark.parametrize(
    ("wanted", "offers", "sentence"),
    [
        (
            "psi",
            {"alice": [offer("1.14", ">=1.13")], "bob": [offer("1.11")]},
            "alice has 1.14, bob 1.11; psi 1.14 speaks >=1.13: bob must add psi >=1.13 (coterie engine upgrade psi)",
        ),
        (
            "psi",
            {"alice": [offer("1.11", "<1.13")], "bob": [offer("1.14")]},
            "alice has 1.11, bob 1.14; psi 1.11 speaks <1.13: alice must add a version that speaks to 1.14 "
            "(coterie engine upgrade psi)",
        ),
        (
            "psi>=0.6",
            {"alice": [offer("0.7"), offer("0.6")], "bob": [offer("0.5")]},
            "alice has 0.7, 0.6; bob 0.5; the job asks for psi >=0.6: bob must add psi >=0.6 (coterie engine upgrade psi)",
        ),
        (
            "psi",
            {"alice": [offer("2", "", "link/2")], "bob": [offer("1", "", "link/1")]},
            "alice has 2, bob 1; psi 2 speaks link/2 and 1 speaks link/1: bob must add a version with one of link/2 "
            "(coterie engine upgrade psi)",
        ),
    ],
)
def test_a_mismatch_says_who_must_do_what(
    wanted: str, offers: Mapping[str, list[OfferedEngine]], sentence: str
) -> None:
    choice = choose(parse_range(wanted), offers)
    assert choice.pins == {} and choice.problem == sentence


def test_three_that_pairwise_agree_and_together_do_not() -> None:
    offers = {
        "alice": [offer("1", "", "x"), offer("2", "", "y")],
        "bob": [offer("1", "", "x"), offer("2", "", "z")],
        "carol": [offer("1", "", "y"), offer("2", "", "z")],
    }
    choice = choose(EngineRange("psi"), offers)
    assert "no choice of one version each speaks to all others" in choice.problem


def test_kuscia_parties_do_not_narrow_the_choice() -> None:
    offers = {"alice": [offer("1.14", ">=1.13"), offer("1.11")], "bob": [offer("")]}
    assert choose(EngineRange("psi"), offers).pins == {"alice": offers["alice"][0], "bob": offers["bob"][0]}
    task = TaskTemplate(
        alias="join",
        app_image="psi>=1",
        task_input_config="",
        parties=(JobParty(domain_id="bob"), JobParty(domain_id="alice"), JobParty(domain_id="kuscia")),
    )
    spec = KusciaJobSpec(initiator="alice", tasks=(task,))
    statements = {
        "alice": PartyStatement(tasks={"join": TaskStatement(engines=(offer("2"), offer("1")))}),
        "bob": PartyStatement(tasks={"join": TaskStatement(engines=(offer("1.5"),))}),
        "other": PartyStatement(),
    }
    assert agreed_engines(spec, statements)["join"].pins == {"alice": offer("2"), "bob": offer("1.5")}
    assert agreed_engines(spec, {})["join"] == engine_versions.EngineChoice()


def test_versions_that_cannot_be_read_are_not_offered() -> None:
    offers = {"alice": [offer("1")], "bob": [offer("one"), offer("2", "about 1")]}
    assert "bob must add psi" in choose(EngineRange("psi"), offers).problem


def test_a_partner_cannot_make_the_choice_take_long() -> None:
    """Each two parties have versions that speak to each other, and all together never do."""
    parties = [f"p{number}" for number in range(12)]
    offers = {
        party: [
            offer(
                f"{number}.{at}",
                "",
                *(f"{a}-{b}-{(number + 1 if party == b else 0)}" for a in parties for b in parties),
            )
            for number in range(8)
            for at in range(2)
        ]
        for party in parties
    }
    choice = choose(EngineRange("psi"), offers)
    assert choice == choose(EngineRange("psi"), offers)


def test_pins_of_a_domain_are_text() -> None:
    pins = {"psi": "==0.6", "secretflow": ">=1.11,<1.13"}
    assert parse_pins(pins_text(pins)) == pins
    assert parse_pins("psi; x=1; ; sf<2") == {"sf": "<2"}


# Against a search through everything.

_VERSIONS = st.sampled_from(["", "0.5", "0.6", "0.6.1", "0.7", "1.0rc1", "1.0", "1.11"])
_RANGES = st.sampled_from(["", ">=0.6", "<0.7", ">=0.5,<1", "==0.6.*", "!=1.0", ">=1.0rc1", "<2"])
_PROTOCOLS = st.lists(st.sampled_from(["a/1", "a/2", "b/1"]), max_size=2, unique=True)
_OFFER = st.builds(
    lambda version, speaks, protocols, digest: offer(version, speaks, *protocols, digest=digest),
    _VERSIONS,
    _RANGES,
    _PROTOCOLS,
    st.sampled_from(["", "sha256:1", "sha256:2"]),
)


def _works(one: OfferedEngine, other: OfferedEngine) -> bool:
    """Written from the document alone."""
    for a, b in ((one, other), (other, one)):
        if a.speaks and b.version and not SpecifierSet(a.speaks).contains(Version(b.version), prereleases=True):
            return False
    return not one.protocols or not other.protocols or bool(set(one.protocols) & set(other.protocols))


def _in_range(version: str, wanted: str) -> bool:
    if not wanted:
        return True
    return bool(version) and SpecifierSet(wanted).contains(Version(version), prereleases=True)


def _rank(each: OfferedEngine) -> Version:
    return Version(each.version or "0.dev0")


@settings(max_examples=300, deadline=None)
@given(
    wanted=_RANGES,
    sets=st.lists(st.lists(_OFFER, min_size=1, max_size=4), min_size=2, max_size=3),
    shuffle=st.randoms(use_true_random=False),
)
def test_the_choice_is_the_best_of_all_combinations(
    wanted: str, sets: list[list[OfferedEngine]], shuffle: object
) -> None:
    parties = ["alice", "bob", "carol"][: len(sets)]
    choice = choose(EngineRange("psi", wanted), dict(zip(parties, sets, strict=True)))
    possible = [
        combination
        for combination in itertools.product(*sets)
        if all(_in_range(each.version, wanted) for each in combination)
        and all(_works(one, other) for one, other in itertools.combinations(combination, 2))
    ]
    assert bool(choice.problem) is not bool(possible)
    if possible:
        best = max(tuple(map(_rank, combination)) for combination in possible)
        assert tuple(map(_rank, choice.pins.values())) == best
        assert tuple(choice.pins.values()) in possible and list(choice.pins) == parties
    else:
        assert "coterie engine upgrade psi" in choice.problem
    # The same on a side that got the offers in another order.
    for each in sets:
        shuffle.shuffle(each)  # type: ignore[attr-defined]
    again = choose(EngineRange("psi", wanted), dict(zip(parties, sets, strict=True)))
    assert again.pins == choice.pins and bool(again.problem) == bool(choice.problem)


@settings(max_examples=100, deadline=None)
@given(wanted=_RANGES, sets=st.lists(st.lists(_OFFER, min_size=1, max_size=4), min_size=3, max_size=3))
def test_who_knows_fewer_statements_finds_no_problem_that_goes_away(
    wanted: str, sets: list[list[OfferedEngine]]
) -> None:
    known = choose(EngineRange("psi", wanted), dict(zip(("alice", "bob"), sets, strict=False)))
    everybody = choose(EngineRange("psi", wanted), dict(zip(("alice", "bob", "carol"), sets, strict=True)))
    if known.problem:
        assert everybody.problem
