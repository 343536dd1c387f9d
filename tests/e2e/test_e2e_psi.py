"""The PSI engine in a real network: what comes out equals a plain join, whatever the tables hold, also many at once."""

from __future__ import annotations

import csv
import io
import itertools
import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kubectl_runner
import pytest
from jobs_kit import Net, job, network, task, until

from coterie.cli import psi_environment
from coterie.cli.app import App
from coterie.cli.main import main

PLACE = psi_environment.directory(App.standard())
pytestmark = [
    pytest.mark.xdist_group("e2e-jobs"),
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        not psi_environment.installed(PLACE), reason="the environment of the PSI engine is not there: make psi"
    ),
    pytest.mark.skipif(not shutil.which("sort"), reason="SPU sorts with the program sort"),
]
Row = dict[str, Any]
PARTIES = ("alice", "bob", "carol")
KEY = {"alice": "id", "bob": "uid", "carol": "key"}
STRANGE = ["zoë", "x,y", 'say "hi"', "two\nlines", "100%", "%2C", "a|b", " blank ", "", 'naïve,\n"all" %', "日本"]


@dataclass(frozen=True)
class Case:
    alice: list[Any]
    bob: list[Any]
    wishes: dict[str, Any] = field(default_factory=dict)
    more: tuple[str, ...] = ()
    """Further columns, whose values follow from the key."""

    def rows(self, party: str) -> list[Row]:
        return [
            {KEY[party]: key, "n": at, **{name: f"{name} of {key}" for name in self.more}}
            for at, key in enumerate(getattr(self, party))
        ]


def _random(seed: int, rows: int, most: int) -> list[Any]:
    """Duplicates, NULLs and strange texts among a thousand keys."""
    dice = random.Random(seed)
    pool = [f"k{number}" for number in range(most)] + STRANGE
    return [None if dice.random() < 0.01 else dice.choice(pool) for _ in range(rows)]


MANY = (_random(1, 1000, 900), _random(2, 1000, 900))
ONCE = ([f"k{number}" for number in range(300, 0, -1)], [f"k{number}" for number in range(150, 500)])
EIGHT = tuple(f"c{number}" for number in range(8))
FEW = (["b", "a", "a", None, "q"], ["a", "x", "b", None, "a"])
CASES = {
    "rr22": Case(*MANY),
    "kkrt": Case(*MANY, {"protocol": "KKRT"}),
    "ecdh": Case(*MANY, {"protocol": "ECDH"}),
    "once": Case(*ONCE),
    "once-full": Case(*ONCE, {"join": "full"}),
    "once-at-one": Case(ONCE[0], MANY[1], {"protocol": "KKRT"}),
    "ten-columns": Case(*MANY, {"keys": {"alice": ["id", *EIGHT], "bob": ["uid", *EIGHT]}}, EIGHT),
    "table-order": Case(*FEW, {"sort": False}),
    "left": Case(*FEW, {"join": "left", "protocol": "ECDH"}),
    "full": Case(*FEW, {"join": "full"}),
    "difference": Case(*FEW, {"join": "difference", "protocol": "KKRT"}),
    "one-sided": Case(*FEW, {"receivers": ["bob"]}),
    "numbers": Case([3, -1, 7, 7], [7, 3, 10**12]),
    "disjoint": Case(["a", "b"], ["c"]),
    "empty": Case([], ["a", "b"]),
    "empty-full": Case([], ["a", None, "a"], {"join": "full"}),
}


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    root = tmp_path_factory.mktemp("psi") / "net"
    with network(root, "p2p", *PARTIES, kubectl=kubectl_runner.chosen()[-1]) as found:
        assert coterie(found, "engine", "add", "psi") == "added engine psi (alice, bob, carol)\n"
        yield found


@pytest.fixture(scope="module")
def answered(net: Net) -> Net:
    """All cases are asked at once, and have been answered."""
    for name, case in CASES.items():
        for party in ("alice", "bob"):
            table(net, party, f"{name}-in-{party}", case.rows(party))
        ask(net, name, ("alice", "bob"), case.wishes)
    for name in CASES:
        until(f"{name} is over", lambda name=name: phase(net, name) in ("Succeeded", "Failed"), 200)
    return net


def coterie(net: Net, *words: str) -> str:
    out, err = io.StringIO(), io.StringIO()
    code = main([*words, "--root", str(net.root)], App(out, err))
    assert code == 0, f"coterie {' '.join(words)}: {out.getvalue()}{err.getvalue()}"
    return out.getvalue()


def table(net: Net, party: str, name: str, rows: list[Row]) -> None:
    """Registered with its owner, and granted to alice."""
    file = Path(net.domains[party].paths.data) / f"{name}.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(rows[0] if rows else [KEY[party], "n"])
        writer.writerows(["NULL" if value is None else value for value in row.values()] for row in rows)
    coterie(net, "data", "add", str(file), "--domain", party)
    if party != "alice":
        coterie(net, "data", "grant", name, "alice", "--domain", party)


def ask(net: Net, name: str, parties: tuple[str, ...], wishes: dict[str, Any]) -> None:
    full = {
        "inputs": {party: f"{name}-in-{party}" for party in parties},
        "keys": {party: [KEY[party]] for party in parties},
        "outputs": {party: f"{name}-{party}" for party in parties},
        **wishes,
    }
    net.at("alice").submit(job(f"psi-{name}", "alice", task("psi", *parties, image="psi", input=json.dumps(full))))


def phase(net: Net, name: str) -> str:
    found = net.at("alice").get(f"/apis/kuscia.secretflow/v1alpha1/namespaces/cross-domain/kusciajobs/psi-{name}")
    return str((found.get("status") or {}).get("phase"))


def result(net: Net, name: str, party: str) -> list[Row]:
    text = coterie(net, "data", "head", f"{name}-{party}", "-l", "100000", "-o", "json", "--domain", party)
    found: list[Row] = json.loads(text)
    return found


def told(net: Net, name: str, party: str) -> str:
    return json.dumps(net.at(party).tasks(f"psi-{name}"))


def plain_join(case: Case, join: str) -> list[tuple[Row | None, Row | None]]:
    left, right = case.rows("alice"), case.rows("bob")
    pairs = [
        (one, other)
        for one, other in itertools.product(left, right)
        if one["id"] is not None and one["id"] == other["uid"]
    ]
    known = {one["n"] for one, _ in pairs}, {other["n"] for _, other in pairs}
    lonely_left = [(one, None) for one in left if one["n"] not in known[0]]
    lonely_right = [(None, other) for other in right if other["n"] not in known[1]]
    return {
        "inner": [*pairs],
        "left": [*pairs, *lonely_left],
        "full": [*pairs, *lonely_left, *lonely_right],
        "difference": [*lonely_left, *lonely_right],
    }[join]


def numbers(pairs: list[Any]) -> list[tuple[int, ...]]:
    """Pairs as numbers of rows, in an order of their own; -1 where there is none."""
    return sorted(tuple(-1 if row is None or row["n"] is None else row["n"] for row in pair) for pair in pairs)


ALIGNED = [name for name, case in CASES.items() if not {"sort", "receivers"} & set(case.wishes)]


@pytest.mark.parametrize("name", ALIGNED)
def test_the_result_is_a_plain_join(answered: Net, name: str) -> None:
    assert phase(answered, name) == "Succeeded", told(answered, name, "alice") + told(answered, name, "bob")
    case = CASES[name]
    ours, theirs = result(answered, name, "alice"), result(answered, name, "bob")
    expected = plain_join(case, case.wishes.get("join", "inner"))
    assert numbers(list(zip(ours, theirs, strict=True))) == numbers(expected)
    rows = {party: case.rows(party) for party in ("alice", "bob")}
    for party, found in (("alice", ours), ("bob", theirs)):
        assert all(row == rows[party][row["n"]] for row in found if row["n"] is not None)


def test_results_in_the_order_of_their_tables(answered: Net) -> None:
    assert [row["n"] for row in result(answered, "table-order", "alice")] == [0, 1, 1, 2, 2]
    assert [row["n"] for row in result(answered, "table-order", "bob")] == [0, 0, 2, 4, 4]


def test_only_receivers_have_a_result(answered: Net) -> None:
    assert phase(answered, "one-sided") == "Succeeded", told(answered, "one-sided", "alice")
    assert [row["uid"] for row in result(answered, "one-sided", "bob")] == ["a", "a", "a", "a", "b"]
    tables = json.loads(coterie(answered, "data", "ls", "-o", "json", "--domain", "alice"))
    assert "one-sided-alice" not in {each["id"] for each in tables}


def test_the_input_of_kuscias_own_psi_image(answered: Net) -> None:
    def part(party: str, role: str) -> dict[str, Any]:
        return {
            "psi_config": {
                "protocolConfig": {"protocol": "PROTOCOL_ECDH", "role": role, "broadcastResult": True},
                "inputConfig": {
                    "type": "IO_TYPE_FILE_CSV",
                    "path": f"/home/kuscia/var/storage/one-sided-in-{party}.csv",
                },
                "outputConfig": {"type": "IO_TYPE_FILE_CSV", "path": f"/home/kuscia/var/storage/mapped-{party}.csv"},
                "keys": [KEY[party]],
                "recoveryConfig": {"enabled": True, "folder": "/tmp/recovery"},
            }
        }

    given = json.dumps(
        {"sf_psi_config_map": {"alice": part("alice", "ROLE_RECEIVER"), "bob": part("bob", "ROLE_SENDER")}}
    )
    answered.at("alice").submit(job("psi-mapped", "alice", task("psi", "alice", "bob", image="psi", input=given)))
    until("mapped is over", lambda: phase(answered, "mapped") in ("Succeeded", "Failed"), 200)
    assert phase(answered, "mapped") == "Succeeded", told(answered, "mapped", "alice")
    assert [row["uid"] for row in result(answered, "mapped", "bob")] == ["a", "a", "a", "a", "b"]
    assert len(result(answered, "mapped", "alice")) == 5


def test_three_parties(net: Net) -> None:
    rows = {"alice": ["a", "b", "ü,", "d"], "bob": ["ü,", "a", "x"], "carol": ["y", "a", "z", "ü,"]}
    for party, keys in rows.items():
        table(net, party, f"three-in-{party}", [{KEY[party]: key, "n": at} for at, key in enumerate(keys)])
    ask(net, "three", PARTIES, {"protocol": "ECDH"})
    net.at("alice").until_phase("psi-three", "Succeeded")
    for party in PARTIES:
        assert [row[KEY[party]] for row in result(net, "three", party)] == ["a", "ü,"]


@pytest.mark.parametrize(
    ("name", "alice", "bob", "wishes", "sentence"),
    [
        ("column", ["a"], ["a"], {"keys": {"alice": ["id"], "bob": ["nope"]}}, "it has uid, n"),
        ("types", ["a"], [1], {}, "is of type text, but column"),
        ("wish", ["a"], ["a"], {"protocol": "ROT13"}, "protocol is one of RR22, KKRT, ECDH"),
        ("table", ["a"], ["a"], {"inputs": {"alice": "nowhere", "bob": "table-in-bob"}}, "there is no DomainData"),
    ],
    ids=["column", "types", "wish", "table"],
)  # fmt: skip
def test_what_cannot_be_done_is_told(
    net: Net, name: str, alice: list[Any], bob: list[Any], wishes: dict[str, Any], sentence: str
) -> None:
    case = Case(alice, bob)
    for party in ("alice", "bob"):
        table(net, party, f"{name}-in-{party}", case.rows(party))
    ask(net, name, ("alice", "bob"), wishes)
    net.at("alice").until_phase(f"psi-{name}", "Failed")
    until("somebody says why", lambda: sentence in told(net, name, "alice") + told(net, name, "bob"))
