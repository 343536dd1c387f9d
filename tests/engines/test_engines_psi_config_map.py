"""The input of Kuscia's own psi AppImage, `sf_psi_config_map`, as our engine reads it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from coterie.engines.launching.configuration import BadConfig
from coterie.engines.psi.config_map import translated
from coterie.engines.psi.task import parse

NAMES = ["alice", "bob"]


def part(role: str, source: str, target: str, **more: object) -> dict[str, Any]:
    return {
        "psi_config": {
            "protocolConfig": {
                "protocol": "PROTOCOL_ECDH",
                "ecdhConfig": {"curve": "CURVE_25519"},
                "role": role,
                "broadcastResult": True,
            },
            "inputConfig": {"type": "IO_TYPE_FILE_CSV", "path": f"/tmp/{source}.csv"},
            "outputConfig": {"type": "IO_TYPE_FILE_CSV", "path": f"/tmp/{target}.csv"},
            "keys": ["id0", "id1"],
            **more,
        }
    }


def given(**more: object) -> dict[str, Any]:
    alice = part("ROLE_RECEIVER", "receiver_input", "receiver_output", **more)
    return {"sf_psi_config_map": {"alice": alice, "bob": part("ROLE_SENDER", "sender_input", "sender_output", **more)}}


def test_it_says_the_same() -> None:
    found, unused = translated(given(debugOptions={"tracePath": "/tmp/t"}, recoveryConfig={"enabled": True}), NAMES)
    assert found == {
        "protocol": "ECDH",
        "inputs": {"alice": "receiver_input", "bob": "sender_input"},
        "outputs": {"alice": "receiver_output", "bob": "sender_output"},
        "keys": {"alice": ["id0", "id1"], "bob": ["id0", "id1"]},
        "receivers": NAMES,
        "join": "inner",
        "sort": True,
    }
    assert unused == ["debug_options", "recovery_config"]


def test_the_older_form_and_names_with_underscores() -> None:
    config = {
        "protocol_config": {"protocol": "PROTOCOL_KKRT", "broadcast_result": False},
        "input_config": {"path": "in.csv"},
        "output_config": {"path": "out.csv"},
        "keys": ["id"],
        "check_duplicates": False,
        "sort_output": False,
    }
    parts = {name: copy.deepcopy(config) for name in NAMES}
    for name, role in zip(NAMES, ("ROLE_SENDER", "ROLE_RECEIVER"), strict=True):
        parts[name]["protocol_config"]["role"] = role  # type: ignore[index]
    found, unused = translated({"sf_psi_config_map": parts}, NAMES)
    assert (found["protocol"], found["receivers"], found["outputs"]) == ("KKRT", ["bob"], {"bob": "out"})
    assert (found["sort"], unused) == (False, ["check_duplicates"])


@pytest.mark.parametrize(
    ("kind", "left", "join"),
    [
        ("LEFT_JOIN", "ROLE_RECEIVER", "left"),
        ("LEFT_JOIN", "ROLE_SENDER", "right"),
        ("RIGHT_JOIN", "ROLE_RECEIVER", "right"),
        ("RIGHT_JOIN", "ROLE_SENDER", "left"),
        ("FULL_JOIN", "ROLE_SENDER", "full"),
        ("DIFFERENCE", "ROLE_RECEIVER", "difference"),
    ],
)
def test_joins_keep_their_side(kind: str, left: str, join: str) -> None:
    found, _ = translated(given(advancedJoinType=f"ADVANCED_JOIN_TYPE_{kind}", leftSide=left), NAMES)
    assert found["join"] == join


def test_the_engine_takes_it() -> None:
    parties = [{"name": name, "services": [{"portName": "psi", "endpoints": [f"{name}.svc"]}]} for name in NAMES]
    task = parse(
        json.dumps(
            {
                "task_id": "t",
                "task_input_config": json.dumps(given(recoveryConfig={})),
                "task_cluster_def": json.dumps({"parties": parties, "selfPartyIdx": 1}),
                "allocated_ports": json.dumps({"ports": [{"port": 1}]}),
            }
        )
    )
    assert (task.own.data, task.own.output, task.own.keys) == ("sender_input", "sender_output", ("id0", "id1"))
    assert (task.protocol, task.unused) == ("ECDH", ("recovery_config",))


@pytest.mark.parametrize(
    ("where", "value", "sentence"),
    [
        (("alice", "ub_psi_config"), {}, "alice.ub_psi_config is not offered here"),
        (("alice", "link_config"), {}, "alice.link_config is not offered here"),
        (("bob", "psi_config", "dppsi"), 1, "bob.dppsi is not offered here"),
        (("bob", "psi_config", "protocolConfig", "role"), "ROLE_RECEIVER", "one role is ROLE_RECEIVER"),
        (("bob", "psi_config", "protocolConfig", "protocol"), "PROTOCOL_RR22", "protocol is not the same"),
        (("bob", "psi_config", "protocolConfig", "protocol"), "PROTOCOL_DP", "protocol is one of"),
        (("bob", "psi_config", "protocolConfig", "ecdhConfig", "curve"), "CURVE_SM2", "CURVE_25519 here"),
        (("bob", "psi_config", "protocolConfig", "broadcastResult"), False, "broadcast_result is not the same"),
        (("bob", "psi_config", "inputConfig", "path"), "", "input_config.path is missing"),
        (("bob", "psi_config", "inputConfig", "type"), "IO_TYPE_SQL", "IO_TYPE_FILE_CSV here"),
        (("bob", "psi_config", "advancedJoinType"), "OTHER", "advanced_join_type is not the same"),
        (("bob",), 1, "bob is an object"),
        (("carol",), {}, "one entry for each of two parties"),
    ],
)
def test_what_cannot_be_done_is_told(where: tuple[str, ...], value: object, sentence: str) -> None:
    config = given()
    place = config["sf_psi_config_map"]
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    with pytest.raises(BadConfig, match=sentence):
        translated(config, NAMES)


def test_our_own_fields_do_not_go_with_it() -> None:
    with pytest.raises(BadConfig, match="keys does not go with sf_psi_config_map"):
        translated({**given(), "keys": {}}, NAMES)
