"""The PSI engine's parts that need no library and no partner: what a task may say, keys as text, rows by number."""

from __future__ import annotations

import http.server
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.engines.launching.configuration import BadConfig
from coterie.engines.psi import intersect, keys, protobytes
from coterie.engines.psi.intersect import Impossible
from coterie.engines.psi.keyfile import order_of
from coterie.engines.psi.link import PartnerWatch, answers
from coterie.engines.psi.mesh import reason
from coterie.engines.psi.store import Store, found_numbers, in_table_order, turned
from coterie.engines.psi.task import Party, Task, parse
from coterie.kuscia.datamesh import messages

WISHES: dict[str, Any] = {
    "inputs": {"alice": "customers", "bob": "visitors"},
    "keys": {"alice": ["id"], "bob": ["uid"]},
}


def config(names: tuple[str, ...] = ("bob", "alice"), own: int = 0, **wishes: Any) -> str:
    parties = [
        {"name": name, "role": "", "services": [{"portName": "psi", "endpoints": [f"t-0-psi.{name}.svc"]}]}
        for name in names
    ]
    return json.dumps(
        {
            "task_id": "t",
            "task_input_config": json.dumps({**WISHES, **wishes}),
            "task_cluster_def": json.dumps({"parties": parties, "selfPartyIdx": own, "selfEndpointIdx": 0}),
            "allocated_ports": json.dumps({"ports": [{"name": "psi", "port": 21000, "scope": "Cluster"}]}),
        }
    )


class TestTask:
    def test_what_is_left_out_has_its_default(self) -> None:
        task = parse(config())
        assert (task.protocol, task.join, task.sort, task.port) == ("RR22", "inner", True, 21000)
        assert [each.name for each in task.parties] == ["alice", "bob"]
        assert task.own.name == "bob" and task.rank == 1
        assert [each.endpoint for each in task.partners] == ["t-0-psi.alice.svc"]
        assert [each.output for each in task.parties] == ["t-alice", "t-bob"]
        assert all(each.receives for each in task.parties)

    def test_three_parties_use_ecdh(self) -> None:
        three = ("alice", "bob", "carol")
        wishes = {"inputs": dict.fromkeys(three, "t1"), "keys": {party: ["id"] for party in three}}
        assert parse(config(three, **wishes)).protocol == "ECDH"

    @pytest.mark.parametrize(
        ("wishes", "sentence"),
        [
            ({"protocol": "ROT13"}, "protocol is one of RR22, KKRT, ECDH"),
            ({"join": "cross"}, "join is one of"),
            ({"sort": 1}, "sort is true or false"),
            ({"inputs": {"alice": "x"}}, "inputs.bob is missing"),
            ({"inputs": {"alice": "x", "bob": "y", "eve": "z"}}, "inputs.eve is of no party"),
            ({"keys": {"alice": ["id"]}}, "keys.bob is missing"),
            ({"keys": {"alice": ["id"], "bob": ["uid", "day"]}}, "not the same number"),
            ({"keys": {"alice": "id", "bob": ["uid"]}}, "keys.alice is missing"),
            ({"receivers": []}, "receivers is a list"),
            ({"receivers": ["eve"]}, "receivers is a list"),
            ({"outputs": {"alice": "customers"}}, "the table it is made from"),
            ({"outputs": ["alice"]}, "outputs has one entry for each party"),
        ],
        ids=lambda value: json.dumps(value)[:30] if isinstance(value, dict) else None,
    )
    def test_what_cannot_be_is_refused_with_the_field(self, wishes: dict[str, Any], sentence: str) -> None:
        with pytest.raises(BadConfig, match=sentence):
            parse(config(**wishes))

    def test_one_party_has_nobody_to_ask(self) -> None:
        with pytest.raises(BadConfig, match="two or three parties, not by 1"):
            parse(config(("alice",)))

    def test_types_that_cannot_be_equal(self) -> None:
        task = parse(config())
        facts = [{"keys": ["integer"]}, {"keys": ["text"]}]
        with pytest.raises(
            Impossible, match='column "id" of alice is of type integer, but column "uid" of bob is of type text'
        ):
            intersect.check(task, facts)
        intersect.check(task, [{"keys": ["text"]}, {"keys": ["text"]}])


def texts(*columns: Any, party: int = 0, first: int = 0) -> list[str]:
    names = tuple(f"c{at}" for at in range(len(columns)))
    batch = pa.record_batch([each if isinstance(each, pa.Array) else pa.array(each) for each in columns], names=names)
    found: list[str] = keys.texts(batch, names, party, first).to_pylist()
    return found


class TestKeys:
    def test_what_separates_is_written_otherwise(self) -> None:
        found = texts(["a,b", 'say "x"', "two\nlines\r", "100%", "a|b", "", "日本", "\0"])
        assert not [each for each in found if set(each) & set(',"\n\r|\0')]
        assert len(set(found)) == len(found) and all(each.startswith("k") for each in found)

    def test_what_looks_like_the_writing_is_not_the_same(self) -> None:
        assert texts([","]) != texts(["%2C"])
        assert texts(["a|b"], ["c"]) != texts(["a"], ["b|c"])
        assert texts(["ab"], ["c"]) != texts(["a"], ["bc"])

    def test_null_equals_nothing(self) -> None:
        ours = texts(pa.array(["a", None, None], pa.string()))
        theirs = texts(pa.array([None, None], pa.string()), party=1)
        assert len({*ours, *theirs}) == 5
        assert not set(ours) & set(texts(["", "n%0.1", "null"]))
        assert texts(["a"], pa.array([None], pa.string()))[0].startswith("n%")

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (pa.array([7], pa.int8()), pa.array([7], pa.uint64())),
            (pa.array(["x"]), pa.array(["x"], pa.large_string())),
            (pa.array([1], pa.date32()), pa.array([86_400_000], pa.date64())),
        ],
        ids=["integer", "text", "date"],
    )
    def test_one_family_is_compared(self, one: pa.Array, other: pa.Array) -> None:
        assert keys.family(one.type) == keys.family(other.type) != ""
        assert texts(one) == texts(other)

    @pytest.mark.parametrize("kind", [pa.float64(), pa.binary(), pa.list_(pa.int8())], ids=str)
    def test_what_cannot_be_compared_exactly(self, kind: pa.DataType) -> None:
        assert keys.family(kind) == ""


class TestStore:
    def filled(self, directory: Path, rows: int, size: int) -> Store:
        table = pa.table({"id": [f"k{at}" for at in range(rows)], "n": range(rows)})
        store = Store(directory, table.schema)
        store.fill(table.to_batches(max_chunksize=size), ("id",), 0)
        return store

    def test_rows_by_their_numbers(self, tmp_path: Path) -> None:
        store = self.filled(tmp_path, 200_000, 999)
        dice = random.Random(3)
        wanted = [None if dice.random() < 0.1 else dice.randrange(200_000) for _ in range(5_000)]
        found = pa.Table.from_batches(store.taken([pa.array(wanted[:1000]), pa.array(wanted[1000:])]))
        assert found.column("n").to_pylist() == wanted
        assert found.column("id").to_pylist() == [None if each is None else f"k{each}" for each in wanted]

    def test_keys_as_the_library_reads_them(self, tmp_path: Path) -> None:
        store = self.filled(tmp_path, 3, 2)
        assert store.keys.read_text() == "k,row\nkk0,0\nkk1,1\nkk2,2\n"
        assert store.rows == 3

    def test_nothing_gives_nothing(self, tmp_path: Path) -> None:
        store = self.filled(tmp_path, 0, 1)
        assert store.rows == 0 and list(store.taken([])) == []


class TestFound:
    def written(self, path: Path, rows: list[tuple[str | None, int | None]]) -> Path:
        lines = [f"{'NULL' if key is None else key},{'NULL' if row is None else row}" for key, row in rows]
        path.write_text("\n".join(['"k","row"', *lines]) + "\n")
        return path

    def numbers(self, path: Path, *, second: bool) -> list[int | None]:
        return [each for part in found_numbers(path, second=second) for each in part.to_pylist()]

    def test_the_two_sides_make_all_pairs(self, tmp_path: Path) -> None:
        first = self.written(tmp_path / "a", [("ka", 1), ("ka", 1), ("ka", 2), ("ka", 2), ("kb", 0), (None, None)])
        other = self.written(tmp_path / "b", [("ka", 7), ("ka", 7), ("ka", 9), ("ka", 9), ("kb", 5), ("kx", 3)])
        pairs = list(zip(self.numbers(first, second=False), self.numbers(other, second=True), strict=True))
        assert pairs == [(1, 7), (1, 9), (2, 7), (2, 9), (0, 5), (None, 3)]

    def test_a_key_is_not_torn_apart(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("coterie.engines.psi.store._RESULT_ROWS", 1)
        rows = [("ka", 7)] * 40_000 + [("ka", 9)] * 40_000 + [("kb", 1)]
        found = self.numbers(self.written(tmp_path / "b", rows), second=True)
        assert found == [7, 9] * 40_000 + [1]

    def test_nothing_found(self, tmp_path: Path) -> None:
        assert self.numbers(self.written(tmp_path / "a", []), second=True) == []

    def test_in_the_order_of_the_table(self) -> None:
        parts = [pa.array([5, None, 1]), pa.array([3, 1])]
        assert [each for part in in_table_order(parts) for each in part.to_pylist()] == [1, 1, 3, 5, None]

    def test_rows_that_stand_alone_stay(self) -> None:
        assert turned(["a", "b", "b", None], [1, 2, 3, None]) == [1, 2, 3, None]


def _task(join: str, rank: int, *, receives: bool = True) -> Task:
    parties = tuple(Party(name, "", "t", ("id",), (), "o", receives) for name in ("alice", "bob"))
    return Task("t", parties, rank, 1, "", "RR22", join, True)


@pytest.mark.parametrize(
    ("join", "rank", "rows", "expected"),
    [
        ("inner", 1, [0, 3], []),
        ("left", 1, [0, 3], []),
        ("right", 0, [0, 2], [None, None]),
        ("right", 1, [0, 2], [0, 1]),
        ("full", 0, [0, 2], [None, None]),
        ("difference", 0, [2, 0], [0, 1]),
    ],
)
def test_a_table_without_rows(join: str, rank: int, rows: list[int], expected: list[int | None]) -> None:
    found = intersect.without_partner(_task(join, rank), rows)
    assert [each for part in found for each in part.to_pylist()] == expected


class TestWire:
    def test_commands_are_what_the_data_mesh_reads(self) -> None:
        made = protobytes.command("CommandDomainDataQuery", (1, "täble"), *protobytes.each(2, ["a", "b"]), (3, 1))
        name, data = messages.unpacked(made)
        query = messages.mesh(name).FromString(data)
        assert (query.domaindata_id, list(query.columns), query.content_type) == ("täble", ["a", "b"], 1)

    def test_what_the_data_mesh_says_is_read(self) -> None:
        status = messages.Status(code=12302, message="x" * 300)
        data = messages.mesh("CreateDomainDataResponse")(status=status).SerializeToString()
        ((number, inner),) = protobytes.fields(data)
        assert isinstance(inner, bytes)
        assert (number, dict(protobytes.fields(inner))) == (1, {1: 12302, 2: b"x" * 300})

    @pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\xff", b"\x0b"], ids=["short", "endless", "group"])
    def test_what_is_no_message(self, data: bytes) -> None:
        with pytest.raises(ValueError):
            list(protobytes.fields(data))

    def test_errors_of_flight_as_sentences(self) -> None:
        text = 'Flight returned not found error, with message: 12302: there is no DomainData "x". gRPC client debug context: UNKNOWN'
        assert reason(text) == 'there is no DomainData "x"'


@pytest.fixture
def partner() -> Iterator[tuple[Party, list[int]]]:
    """Somebody who answers with the first of the statuses."""
    statuses = [404]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses[0])
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield Party("bob", f"127.0.0.1:{server.server_port}", "t", ("id",), (), "o", True), statuses
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_partner_that_is_gone_is_noticed(partner: tuple[Party, list[int]]) -> None:
    bob, statuses = partner
    own = Party("alice", "", "t", ("id",), (), "o", True)
    told: list[str] = []
    lost = threading.Event()

    def heard(sentence: str) -> None:
        told.append(sentence)
        lost.set()

    assert answers(bob, 30), "whoever answers is there, whatever it says"
    statuses[0] = 503
    assert not answers(bob, 30), "so speaks the gateway for one who is gone"
    with PartnerWatch(Task("t", (own, bob), 0, 1, "", "RR22", "inner", True), heard, silence=0.2, every=0.05):
        assert lost.wait(30)
    assert told == ["bob has not answered for 0.2 s"]


SPECIAL = pa.table({"id": pa.array(["a,b", None, 'x"y', "", "zwei\nZeilen"])})


@pytest.mark.parametrize(("limit", "rows"), [(1 << 20, [3, 0, 2, 4, 1]), (0, [0, 1, 2, 3, 4])], ids=["ordered", "many"])
def test_keys_are_written_as_the_library_can_read_them(tmp_path: Path, limit: int, rows: list[int]) -> None:
    store = Store(tmp_path, SPECIAL.schema, limit)
    store.fill(SPECIAL.to_batches(), ("id",), 1)
    found = csv.read_csv(store.keys)
    assert found.column("row").to_pylist() == rows
    assert len(store.keys.read_bytes().splitlines()) == 6
    assert store.unique == (limit > 0), "nobody looks where there are many"


@pytest.mark.parametrize(
    ("keys", "unique"),
    [(["b", "a", "c"], True), (["b", "a", "b"], False), ([None, None], True), ([], False), (["ü", "u", "z"], True)],
    ids=["different", "again", "nulls", "none", "unicode"],
)
def test_keys_that_come_once_are_known(tmp_path: Path, keys: list[str | None], unique: bool) -> None:
    table = pa.table({"id": pa.array(keys, pa.string())})
    store = Store(tmp_path, table.schema)
    store.fill(table.to_batches(), ("id",), 0)
    lines = store.keys.read_bytes().splitlines()[1:]
    assert store.unique == unique and lines == sorted(lines), (
        "in the order of bytes, as the library's own program has it"
    )


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20), max_size=60))
def test_texts_are_ordered_by_their_bytes(texts: list[str]) -> None:
    """Also those that differ behind their first sixteen bytes only."""
    found = pa.array([*texts, *(f"0123456789abcde{each}" for each in texts)], pa.string())
    assert found.take(order_of(found)).to_pylist() == sorted(found.to_pylist(), key=str.encode)


@pytest.mark.parametrize(("keys", "there"), [(["b", "a"], True), (["b", "b"], False)], ids=["different", "again"])
def test_the_library_is_told_only_what_is_true(tmp_path: Path, keys: list[str], there: bool) -> None:
    table = pa.table({"id": pa.array(keys, pa.string())})
    store = Store(tmp_path, table.schema)
    store.fill(table.to_batches(), ("id",), 0)
    note = tmp_path / "keys.csv.meta"
    assert note.exists() == there
    if there:
        told = json.loads(note.read_text())
        assert told["originalCnt"] == told["uniqueKeyCnt"] == 2
        assert int(told["sourceFileSize"]) == store.keys.stat().st_size
