"""The engine for XGBoost: its configuration. XGBoost itself: tests/e2e/test_e2e_xgboost.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from party_config_kit import config, numbered

from coterie.engines.launching.configuration import BadConfig
from coterie.engines.xgboost import __main__ as launcher
from coterie.engines.xgboost.task import parse

PORTS = numbered("fed", "done")
GIVEN: dict[str, Any] = {
    "server": "alice",
    "inputs": {"bob": "b", "carol": "c"},
    "label": "ill",
    "features": ["age"],
    "rounds": 3,
    "parameters": {"max_depth": 3, "objective": "binary:logistic"},
}


def test_a_task_is_read() -> None:
    task = parse(config("carol", PORTS, GIVEN))
    assert (task.own, task.server, task.owners) == ("carol", "alice", ("bob", "carol"))
    assert (task.endpoint, task.done_endpoint, task.port, task.done_port) == ("127.0.0.1:11", "127.0.0.1:12", 31, 32)
    assert (task.table, task.label, task.features, task.rounds) == ("c", "ill", ("age",), 3)
    assert parse(config("alice", PORTS, GIVEN)).endpoint == ""


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"server": "dave"}, "server is one of alice, bob, carol"),
        ({"inputs": {"bob": "b"}}, "carol is not the server and has no table"),
        ({"label": ""}, "label is the name of a column"),
        ({"features": []}, "features is a list of names"),
        ({"features": ["age", "age"]}, "features is a list of names"),
        ({"features": ["ill"]}, "ill is the label and one of the features"),
        ({"rounds": 0}, "rounds is a number from 1"),
        ({"rounds": True}, "rounds is a number from 1"),
        ({"parameters": []}, "parameters is an object"),
        ({"parameters": {"dmlc_communicator": "x"}}, "parameters.dmlc_communicator is not for tasks to choose"),
        ({"parameters": {"process_type": "update"}}, "parameters.process_type is not for tasks to choose"),
        ({"parameters": {"max_depth": "3"}}, "parameters.max_depth is a number"),
        ({"parameters": {"objective": "rank:x"}}, "parameters.objective is one of binary:logistic"),
        ({"program": "x"}, "program is not known here"),
    ],
)
def test_what_cannot_be_used_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadConfig, match=sentence):
        parse(config("bob", PORTS, {**GIVEN, **given}))


def test_the_proxy_of_the_machines_network_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "task.conf"
    path.write_text(config("bob", PORTS, GIVEN))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert launcher.main([str(path)]) == 1
    assert "pods with a network of their own" in capsys.readouterr().err
