"""ConfigService: every code, each mode; and that engines and data sources find what was put there."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kusciaapi_kit import World, domain_caller, here, logged

from coterie.base import pki
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import CONFIG_MAPS
from coterie.kuscia.api.types.data import DOMAIN_DATA_SOURCES
from coterie.kuscia.engine.templates import template
from coterie.kuscia.engine.templates.config_store import DomainConfig
from coterie.kuscia.identity.sealing import encrypt_for
from coterie.kuscia.kusciaapi.configs import OPERATIONS
from coterie.kuscia.kusciaapi.operations import Mode
from coterie.kuscia.sources import sealed_sources


def code(answer: Any) -> tuple[int, str]:
    return answer.status.code, answer.status.message


def pairs(**values: str) -> Object:
    return {"data": [{"key": key, "value": value} for key, value in values.items()]}


@pytest.fixture
async def alice(tmp_path: Path) -> AsyncIterator[World]:
    async with here(tmp_path) as world:
        yield world


async def raw(world: World) -> dict[str, str]:
    return (await world.client.get(CONFIG_MAPS, "domain-config", world.here.domain)).data or {}


async def value(world: World, key: str) -> str:
    answer = await world.call(OPERATIONS, "QueryConfig", key=key)
    assert code(answer) == (0, "success")
    assert answer.key == key
    return str(answer.value)


async def test_values_are_kept_sealed_and_told(alice: World) -> None:
    assert code(await alice.call(OPERATIONS, "CreateConfig", **pairs(LEVEL="INFO", TLS='{"ca":"x"}'))) == (0, "success")
    assert [await value(alice, key) for key in ("LEVEL", "TLS", "MISSING")] == ["INFO", '{"ca":"x"}', ""]
    batch = await alice.call(OPERATIONS, "BatchQueryConfig", keys=["TLS", "MISSING", "LEVEL"])
    assert [(each.key, each.value) for each in batch.data] == [
        ("TLS", '{"ca":"x"}'),
        ("MISSING", ""),
        ("LEVEL", "INFO"),
    ]
    kept = await raw(alice)
    assert set(kept) == {"LEVEL", "TLS"}
    assert "INFO" not in json.dumps(kept)


@pytest.mark.parametrize("text", ["", "ümläut 你好", "x" * 5000], ids=["empty", "letters", "long"])
async def test_any_text_comes_back(alice: World, text: str) -> None:
    await alice.call(OPERATIONS, "CreateConfig", **pairs(key=text))
    assert await value(alice, "key") == text


async def test_what_exists_is_updated_not_created(alice: World) -> None:
    await alice.call(OPERATIONS, "CreateConfig", **pairs(a="1"))
    refused = code(await alice.call(OPERATIONS, "CreateConfig", **pairs(b="2", a="3")))
    assert refused == (11900, 'key "a" exists already; update it, or delete it first')
    assert set(await raw(alice)) == {"a"}
    assert code(await alice.call(OPERATIONS, "UpdateConfig", **pairs(a="3", c="4")))[0] == 0
    assert [await value(alice, key) for key in "abc"] == ["3", "", "4"]


async def test_deleted_keys_are_gone_and_may_be_made_again(alice: World) -> None:
    await alice.call(OPERATIONS, "CreateConfig", **pairs(a="1", b="2"))
    assert code(await alice.call(OPERATIONS, "DeleteConfig", keys=["a", "never"]))[0] == 0
    assert set(await raw(alice)) == {"b"}
    assert code(await alice.call(OPERATIONS, "CreateConfig", **pairs(a="3")))[0] == 0


BAD: dict[str, tuple[str, Object, str]] = {
    "nothing": ("CreateConfig", {}, "data: must hold at least one key"),
    "nothing to update": ("UpdateConfig", {}, "data: must hold at least one key"),
    "no key": ("CreateConfig", {"data": [{"key": "a"}, {"value": "x"}]}, "data[1].key: must be given"),
    "long": ("CreateConfig", pairs(**{"k" * 257: "x"}), "data[0].key: must have no more than 256 bytes"),
    "longer than a key may be": ("CreateConfig", pairs(**{"k" * 254: "x"}), "data[0].key: must be no more than 253"),
    "letters": ("CreateConfig", pairs(**{"a b": "x"}), "data[0].key: a valid config key"),
    "twice": ("UpdateConfig", {"data": [{"key": "a"}, {"key": "a"}]}, "data[1].key: a stands there twice"),
    "the public key": ("CreateConfig", pairs(**{"domain-public-key": "x"}), "data[0].key: domain-public-key is"),
    "its update": ("UpdateConfig", pairs(**{"domain-public-key": "x"}), "data[0].key: domain-public-key is"),
    "its end": ("DeleteConfig", {"keys": ["a", "domain-public-key"]}, "keys[1]: domain-public-key is"),
    "no keys to delete": ("DeleteConfig", {}, "keys: must name at least one key"),
    "no keys": ("BatchQueryConfig", {}, "keys: must name at least one key"),
    "an empty one": ("BatchQueryConfig", {"keys": ["a", ""]}, "keys[1]: must be given"),
    "no query": ("QueryConfig", {}, "key: must be given"),
}


@pytest.mark.parametrize(("method", "request_", "sentence"), BAD.values(), ids=BAD.keys())
async def test_refusals_name_the_field(alice: World, method: str, request_: Object, sentence: str) -> None:
    refused = code(await alice.call(OPERATIONS, method, **request_))
    assert refused[0] == 11100
    assert sentence in refused[1]
    assert not [each for each in (await alice.client.list(CONFIG_MAPS, "alice")).items if each.data]


async def test_the_store_is_bounded(alice: World) -> None:
    # In front of the work: this much plain text would take seconds to seal.
    huge = code(await alice.call(OPERATIONS, "CreateConfig", **pairs(a="x" * (4 << 20))))
    assert huge[0] == 11900
    assert "config store" in huge[1]
    for key in "abc":
        # Sealed, each takes nearly two thirds of what there is together.
        answer = code(await alice.call(OPERATIONS, "UpdateConfig", **pairs(**{key: "x" * 350_000})))
        assert answer[0] == (0 if key == "a" else 11902), answer
    assert set(await raw(alice)) == {"a"}
    assert await value(alice, "a") == "x" * 350_000


async def test_the_public_key_is_always_there(alice: World) -> None:
    told = await value(alice, "domain-public-key")
    assert base64.b64decode(told) == alice.here.identity.public_key_pem


async def test_a_value_of_another_key_says_so(alice: World) -> None:
    other = pki.new_key("rsa").public_key()
    obj = {"metadata": {"name": "domain-config"}, "data": {"a": encrypt_for("x", other), "b": "nonsense"}}  # type: ignore[arg-type]
    await alice.client.create(CONFIG_MAPS.as_dynamic, obj, "alice")
    for key in "ab":
        refused = code(await alice.call(OPERATIONS, "QueryConfig", key=key))
        assert refused[0] == 11901
        assert f'the value of "{key}" is not encrypted with the domain\'s present key; set it again' == refused[1]
    assert code(await alice.call(OPERATIONS, "BatchQueryConfig", keys=["c", "a"]))[0] == 11904
    assert code(await alice.call(OPERATIONS, "UpdateConfig", **pairs(a="new")))[0] == 0
    assert await value(alice, "a") == "new"


async def test_writers_at_once_lose_nothing(alice: World) -> None:
    async def write(number: int) -> None:
        assert code(await alice.call(OPERATIONS, "CreateConfig", **pairs(**{f"k{number}": str(number)})))[0] == 0

    await asyncio.gather(*(write(number) for number in range(24)))
    batch = await alice.call(OPERATIONS, "BatchQueryConfig", keys=[f"k{number}" for number in range(24)])
    assert [each.value for each in batch.data] == [str(number) for number in range(24)]


async def test_one_of_two_that_create_the_same_key_is_refused(alice: World) -> None:
    answers = await asyncio.gather(
        *(alice.call(OPERATIONS, "CreateConfig", **pairs(key=str(number))) for number in range(6))
    )
    assert sorted(each.status.code for each in answers) == [0, *[11900] * 5]
    winner = next(number for number, each in enumerate(answers) if not each.status.code)
    assert await value(alice, "key") == str(winner)


# Who reads it.


async def test_engines_find_values_in_their_files(alice: World) -> None:
    await alice.call(OPERATIONS, "CreateConfig", **pairs(SERVING_LOG_LEVEL='say "hi"'))
    store = DomainConfig(alice.client, "alice", lambda: alice.here.identity.key)
    parsed = template.parse('level: "{{.SERVING_LOG_LEVEL}}"')
    found = await store.look_up(parsed.names)
    assert template.render(parsed, found) == 'level: "say \\"hi\\""'


async def test_data_sources_find_their_settings(alice: World) -> None:
    info = {"oss": {"endpoint": "oss.example", "bucket": "b", "access_key_id": "id", "access_key_secret": "secret"}}
    await alice.call(OPERATIONS, "CreateConfig", **pairs(**{"my-oss": json.dumps(info)}))
    obj = {"metadata": {"name": "oss"}, "spec": {"name": "oss", "type": "oss", "uri": "b/", "infoKey": "my-oss"}}
    await alice.client.create(DOMAIN_DATA_SOURCES.as_dynamic, obj, "alice")
    source = await alice.client.get(DOMAIN_DATA_SOURCES, "oss", "alice")
    found = sealed_sources.source_info(source, alice.here.identity.key, await raw(alice))
    assert (found.bucket, found.access_key_secret and found.access_key_secret.reveal()) == ("b", "secret")


# Who and where.


@pytest.mark.parametrize("mode", Mode)
async def test_every_mode_has_a_store_of_its_own(tmp_path: Path, mode: Mode) -> None:
    async with here(tmp_path, mode=mode) as world:
        assert code(await world.call(OPERATIONS, "CreateConfig", **pairs(a="1"))) == (0, "success")
        assert await value(world, "a") == "1"


async def test_other_domains_have_no_business_here(alice: World) -> None:
    for each in OPERATIONS:
        assert code(await alice.call(OPERATIONS, each.method, caller=domain_caller("bob")))[0] == 11102
        assert each.secret


async def test_nothing_of_it_is_logged(alice: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await alice.call(OPERATIONS, "CreateConfig", **pairs(a="swordfish"))
    await alice.call(OPERATIONS, "CreateConfig", **pairs(a="swordfish"))
    await alice.call(OPERATIONS, "CreateConfig", **pairs(**{"b c": "swordfish"}))
    await alice.call(OPERATIONS, "QueryConfig", key="a")
    assert "swordfish" not in logged(caplog)
