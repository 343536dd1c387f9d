"""Actors of functions read tables for a partner: with the package `serverless`, by the partner's grants, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from datamesh_kit import PEOPLE, World, reading, threaded, writing

from coterie.engines.actor.library.serverless import tables
from coterie.engines.actor.library.serverless.tables import TableError, read_rows
from coterie.functions.actor_pods import actor_pod
from coterie.kube.api.types.pods import PODS
from coterie.kuscia.api.functions.types import Action
from coterie.kuscia.api.grants import columns_limit
from coterie.kuscia.identity.engine_certificates import EngineIdentity, EnginePair


async def actor(world: World, partner: str, granted: Sequence[str], name: str = "score-x1") -> EnginePair:
    """A pod as the functions process makes it, and the certificate that its agent gave it."""
    made = {"metadata": {"name": "score", "namespace": world.domain, "uid": "u"}, "spec": {"script": "x"}}
    pool = f"score.{partner}" if partner else ""
    pod = actor_pod(msgspec.convert(made, Action), "v1", name, pool=pool, partner=partner, tables=granted)
    del pod["metadata"]["ownerReferences"]
    created = await world.client.create(PODS.as_dynamic, pod, world.domain)
    return world.issue(EngineIdentity(world.domain, name, created["metadata"]["uid"], "", ""))


class _Code:
    """What the code of an action does."""

    def __init__(self, world: World, pair: EnginePair, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tables, "_ADDRESS", ("localhost", world.mesh.http_port))
        for variable, content in (("CLIENT_CERT_FILE", pair.certificate), ("CLIENT_PRIVATE_KEY_FILE", pair.key)):
            (directory / variable).write_bytes(content)
            monkeypatch.setenv(variable, str(directory / variable))
        monkeypatch.setenv("TRUSTED_CA_FILE", str(world.paths.ca_certificate))

    async def rows(self, *given: Any, **named: Any) -> list[dict[str, Any]]:
        return await threaded(lambda: read_rows(*given, **named))

    async def refusal(self, *given: Any, **named: Any) -> tuple[int, str]:
        with pytest.raises(TableError) as caught:
            await self.rows(*given, **named)
        return caught.value.status, str(caught.value)


async def test_it_reads_what_the_partner_was_granted(
    alice: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("people", "others"):
        await alice.table(name)
    await alice.grant("g", "people", "bob", inputConfig=columns_limit(["id", "age"]), useCount=4)
    code = _Code(alice, await actor(alice, "bob", ["people"]), tmp_path, monkeypatch)
    assert await code.rows("people", where={"id": 2}) == [{"id": 2, "age": 41}]
    assert await code.rows("people", ["age"], limit=2) == [{"age": 30}, {"age": 41}]
    assert await code.rows("people", ["age"], where={"id": "no number"}) == []
    for given in (("people", ["salary"]), ("people", ["id"], {"salary": 30.5})):
        assert await code.refusal(*given) == (
            403,
            'pod score-x1 may not use people: grant "g" does not give column salary',
        )
    assert len((await alice.the_grant("g")).uses) == 3, "each read is a use; a refused one is none"
    assert len(await code.rows("people", ["id"])) == 3
    status, sentence = await code.refusal("people", ["id"])
    assert (status, "was used 4 times" in sentence) == (403, True)


async def test_a_table_that_the_action_grant_does_not_name(
    alice: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("people", "others"):
        await alice.table(name)
        await alice.grant(f"g-{name}", name, "bob")
    pair = await actor(alice, "bob", ["people"])
    code = _Code(alice, pair, tmp_path, monkeypatch)
    assert len(await code.rows("people")) == 3
    assert await code.refusal("others") == (403, 'the ActionGrant of "bob" does not name "others"')
    with pytest.raises(Exception, match='does not name "others"'):
        await reading(alice, pair, "others")


async def test_another_partners_grant_and_one_for_another_action_do_not_count(alice: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    await alice.table("people")
    await alice.grant("g", "people", "carol")
    await alice.grant("h", "people", "bob", components=["action/other"])
    code = _Code(alice, await actor(alice, "bob", ["people"]), tmp_path, monkeypatch)
    assert (await code.refusal("people"))[0] == 403
    await alice.grant("i", "people", "bob", components=["action/score"])
    assert len(await code.rows("people")) == 3


async def test_it_writes_nothing(alice: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await alice.table("people")
    await alice.grant("g", "people", "bob")
    pair = await actor(alice, "bob", ["people", "mine"])
    with pytest.raises(Exception, match="only reads"):
        await writing(alice, pair, "people", PEOPLE)
    created = await alice.call(
        pair, "CreateDomainData", domaindata_id="mine", name="mine", type="table", relative_uri="m.csv"
    )
    assert "only reads" in created.status.message
    granted = await alice.call(pair, "CreateDomainDataGrant", domaindata_id="people", grant_domain="carol")
    assert "may not touch grants" in granted.status.message


async def test_questions_that_are_none(alice: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await alice.table("people")
    await alice.grant("g", "people", "bob")
    code = _Code(alice, await actor(alice, "bob", ["people"]), tmp_path, monkeypatch)
    assert (await code.refusal("people", ["nothing"]))[0] == 400
    assert (await code.refusal("people", where={"nothing": 1}))[0] in (400, 403)
    assert (await code.refusal("people", limit=0))[0] == 400
    assert (await code.refusal("people", where={"id": json.loads("[1]")}))[0] == 400
    assert (await code.refusal("unknown"))[0] == 404
    assert not (await alice.the_grant("g")).uses


async def test_an_actor_without_a_certificate_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_CERT_FILE", str(tmp_path / "none"))
    with pytest.raises(TableError, match="reads no tables"):
        read_rows("people")


async def test_in_calls_of_our_own_it_reads_what_the_action_names(
    alice: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("people", "others"):
        await alice.table(name)
    pair = await actor(alice, "", ["people"])
    code = _Code(alice, pair, tmp_path, monkeypatch)
    assert await code.rows("people", ["age"], where={"id": 2}) == [{"age": 41}]
    assert await code.refusal("others") == (403, 'spec.tables of the Action does not name "others"')
    with pytest.raises(Exception, match="only reads"):
        await writing(alice, pair, "people", PEOPLE)
