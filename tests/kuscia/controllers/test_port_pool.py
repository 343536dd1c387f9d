"""Port numbers: given out once, known again after a restart, given back when their owner is gone."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from coterie.kube.api.meta import Object, ObjectMeta
from coterie.kube.api.types.pods import Pod, PodStatus
from coterie.kube.client.informer import ObjectChange
from coterie.kube.control.pod_hooks import PodHookProblem
from coterie.kuscia.api import labels
from coterie.kuscia.api.engine_template import EngineTemplateError
from coterie.kuscia.api.types.job import PartyAllocatedPorts
from coterie.kuscia.control.port_pool import PortPool, PortRange

FOUR = PortRange(10, 13)


def a_pool() -> PortPool:
    return PortPool(FOUR, Random(1))


def a_template(**ports: int) -> Object:
    marks = {f"{labels.COTERIE_PORT_PREFIX}{name}": str(number) for name, number in ports.items()}
    listed = [{"name": name, "containerPort": number} for name, number in ports.items()]
    shown = {labels.KUSCIA_METRIC_PORT: str(next(iter(ports.values())))} if ports else {}
    return {
        "metadata": {"namespace": "alice", "labels": {labels.KUSCIA_KD_UID: "kd"}, "annotations": {**marks, **shown}},
        "spec": {"containers": [{"name": "side"}, {"name": "main", "ports": listed}]},
    }


def seen(body: Object, uid: str, phase: str = "Running") -> Pod:
    meta = ObjectMeta(name=uid, uid=uid, namespace="alice", annotations=body["metadata"]["annotations"])
    return Pod(metadata=meta, status=PodStatus(phase=phase))


def number(body: Object) -> int:
    found: int = body["spec"]["containers"][1]["ports"][0]["containerPort"]
    return found


def test_numbers_are_given_once_in_each_domain() -> None:
    pool = a_pool()
    first = pool.allot("t1", "alice", ["a", "b"])
    second = pool.allot("t2", "alice", ["a", "b"])
    assert {*first.values(), *second.values()} == {10, 11, 12, 13}
    with pytest.raises(EngineTemplateError, match="domain alice has no free ports left"):
        pool.allot("t3", "alice", ["a"])
    assert pool.allot("t3", "bob", ["a"])["a"] in range(10, 14)
    pool.release("t1")
    assert pool.allot("t3", "alice", ["a", "b"]).keys() == {"a", "b"}


def test_what_is_learned_is_taken_until_it_is_unlearned() -> None:
    pool = a_pool()
    told = [PartyAllocatedPorts(domain_id="alice", named_port={"x/a": 10, "x/b": 11})]
    pool.learn("t", told)
    pool.learn("t", told)
    assert set(pool.allot("u", "alice", ["a", "b"]).values()) == {12, 13}
    pool.learn("t", None)
    assert set(pool.allot("v", "alice", ["a", "b"]).values()) == {10, 11}


def test_a_pod_has_the_numbers_of_its_template_if_no_other_pod_has_them() -> None:
    pool = a_pool()
    pool.learn("kd", [PartyAllocatedPorts(domain_id="alice", named_port={"talk": 10})])
    template = a_template(talk=10)
    one, two = pool.prepare_pod(template), pool.prepare_pod(template)
    assert number(one) == 10 and number(two) in (11, 12, 13)
    assert two["metadata"]["annotations"][f"{labels.COTERIE_PORT_PREFIX}talk"] == str(number(two))
    assert two["metadata"]["annotations"][labels.KUSCIA_METRIC_PORT] == str(number(two))
    assert number(template) == 10, "the template is not touched"


@pytest.mark.parametrize("end", ["deleted", "ended", "never made"])
def test_a_pods_number_comes_back(end: str) -> None:
    pool = a_pool()
    template = a_template(talk=10)
    made = [pool.prepare_pod(template) for _ in range(4)]
    with pytest.raises(PodHookProblem):
        pool.prepare_pod(template)
    if end == "never made":
        pool.abandon_pod(made[2])
    else:
        pool.follow(ObjectChange("added", seen(made[2], "p")))
        with pytest.raises(PodHookProblem):
            pool.prepare_pod(template)
        change: Any = ObjectChange("deleted", seen(made[2], "p")) if end == "deleted" else ObjectChange("updated", seen(made[2], "p", "Failed"))  # fmt: skip
        pool.follow(change)
    assert number(pool.prepare_pod(template)) == number(made[2])


def test_pods_without_such_ports_are_none_of_its_business() -> None:
    pool = a_pool()
    template = a_template()
    assert pool.prepare_pod(template) is template
    pool.follow(ObjectChange("added", seen(template, "p")))
    assert len(pool.allot("t", "alice", list("abcd"))) == 4


def test_domains_of_one_machine_do_not_get_in_each_others_way_while_there_is_room():
    pool = PortPool(PortRange(7000, 7003), Random(1))
    alice = pool.allot("a", "alice", ["x", "y"])
    bob = pool.allot("b", "bob", ["x", "y"])
    assert {*alice.values(), *bob.values()} == {7000, 7001, 7002, 7003}
    carol = pool.allot("c", "carol", ["x", "y"])
    assert set(carol.values()) <= {7000, 7001, 7002, 7003}, "elsewhere the numbers may be the same"
