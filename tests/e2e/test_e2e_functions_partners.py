"""The lookup of examples/functions/partner_lookup between two real domains: HTTP at alice's, her action, both Envoys, bob's action on his table, and back."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import psutil
import pytest
from jobs_kit import Domain, Net, network, until
from kubectl_runner import chosen

from coterie.kube.client import kubeconfig

pytestmark = [pytest.mark.xdist_group("e2e-jobs")]
EXAMPLE = Path(__file__).parents[2] / "examples" / "functions" / "partner_lookup"
GRANTS = "/apis/coterie.io/v1alpha1/namespaces/bob/actiongrants"
_ROOMY = {"capacity": {"cpu": 4, "memory": "8Gi"}, "reservedResources": {"cpu": 0, "memory": 0}}


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    """The steps of the example's README."""
    root = tmp_path_factory.mktemp("functions") / "net"
    with network(root, "p2p", "alice", "bob", kubectl=chosen()[-1], settings={"": _ROOMY}) as made:
        coterie(made, "data", "add", str(EXAMPLE / "customers.csv"), "--domain", "bob")
        coterie(made, "data", "grant", "customers", "alice", "--domain", "bob", "--columns", "id,segment,credit_limit")
        for domain in ("bob", "alice"):
            coterie(made, "apply", "-f", str(EXAMPLE / f"{domain}.yaml"), "--domain", domain)
        yield made
        assert [line for each in made.domains.values() for line in each.complaints()] == []


def coterie(net: Net, *words: str, codes: tuple[int, ...] = (0,)) -> str:
    command = [sys.executable, "-m", "coterie", *words, "--root", str(net.root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode in codes, done.stderr
    return done.stdout


def ask(alice: Domain, seconds: float = 25.0, **params: Any) -> tuple[int, str]:
    """An HTTP call of alice's client, through the API's proxy to the Service of the gateway."""
    at = urlsplit(kubeconfig.read(alice.paths.kubeconfig).resolve().server)
    connection = http.client.HTTPSConnection(at.hostname or "", at.port, timeout=seconds, context=alice._tls())
    path = f"/api/v1/namespaces/alice/services/serverless-gateway:6810/proxy/credit?{urlencode(params)}"
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def answered(net: Net, customer: str, amount: int) -> tuple[int, str]:
    """As soon as the gateway serves: it starts with the first Trigger."""

    def look() -> tuple[int, str] | None:
        found = ask(net.at("alice"), customer=customer, amount=amount)
        return found if "decision" in found[1] else None

    return until(f"{customer} is answered", look, 90)


def grant(net: Net) -> dict[str, Any]:
    return dict(net.at("bob").get(f"{GRANTS}/score-alice"))


def functions_pid(domain: Domain) -> int:
    home = str(domain.paths.home)
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if "coterie.functions" in words and home in words:
            return process.pid
    return 0


def decision(found: tuple[int, str]) -> tuple[int, str]:
    return found[0], json.loads(found[1])["decision"]


def test_an_action_of_alice_asks_one_of_bob_which_looks_into_his_table(net: Net) -> None:
    assert decision(answered(net, "C0007", 1200)) == (200, "yes")
    assert decision(ask(net.at("alice"), customer="c0007", amount=9000)) == (200, "no")
    assert decision(ask(net.at("alice"), customer="C0000", amount=10)) == (200, "no"), "blocked"
    assert decision(ask(net.at("alice"), customer="C9999", amount=10)) == (404, "unknown")
    status, text = ask(net.at("alice"), customer="C0007", amount="much")
    assert (status, text.strip()) == (400, "amount must be a number")
    found = until("the uses are in the status", lambda: (s := grant(net).get("status", {})).get("uses") == 4 and s)
    assert found["phase"] == "Ready"
    assert len(found["useRecords"]) == 4
    events = json.loads(coterie(net, "audit", "ls", "--kind", "grant.used", "--domain", "bob", "-o", "json"))
    recorded = [each for each in events if each["grant"][0] == "score-alice"]
    assert [each["count"] for each in recorded] == [1, 2, 3, 4] and {each["partner"] for each in recorded} == {"alice"}
    uses = coterie(net, "data", "uses", "--domain", "bob")
    assert "customers" in uses and "alice" in uses, "reads of the table are uses of the grant of data"
    pods = net.at("bob").list("/api/v1/namespaces/bob/pods")
    (actor,) = [each for each in pods if each["metadata"]["labels"].get("coterie.io/action") == "score.alice"]
    assert actor["metadata"]["annotations"]["kuscia.secretflow/initiator"] == "alice"


def test_columns_that_were_not_granted_stay_hidden_whatever_the_code_says(net: Net) -> None:
    bob = net.at("bob")
    path = "/apis/coterie.io/v1alpha1/namespaces/bob/actions/score"
    before = bob.get(path)["spec"]["script"]
    greedy = before.replace('columns=["segment", "credit_limit"]', 'columns=["segment", "credit_limit", "income"]')
    assert greedy != before
    bob.merge(path, {"spec": {"script": greedy}})
    try:

        def refused() -> bool:
            status, text = ask(net.at("alice"), customer="C0007", amount=1)
            return (status, text.strip()) == (500, "the action failed")

        until("the new code is refused the column", refused)
    finally:
        bob.merge(path, {"spec": {"script": before}})
    until("the old code is back", lambda: ask(net.at("alice"), customer="C0007", amount=1)[0] == 200)


def test_bob_reads_his_own_table_in_calls_of_his_own(net: Net, tmp_path: Path) -> None:
    """The example of the guide: the tables that `spec.tables` names, without a grant, and no others."""
    script = tmp_path / "spend.py"
    script.write_text(
        "from serverless import Response\n"
        "from serverless.tables import TableError, read_rows\n\n"
        "def action(req):\n"
        "    try:\n"
        "        return Response({'rows': read_rows(req.param('table'), where={'id': req.param('customer')})})\n"
        "    except TableError as problem:\n"
        "        return Response(str(problem), problem.status)\n"
    )
    coterie(net, "action", "create", "spend", "--script", str(script), "--table", "customers", "--domain", "bob")
    call = ("action", "invoke", "spend", "--domain", "bob", "-p", "customer=C0007", "-o", "json", "-p")
    found = json.loads(coterie(net, *call, "table=customers"))
    assert found["status"] == 200 and found["body"]["rows"][0]["id"] == "C0007", found
    assert len(found["body"]["rows"][0]) > 3, "all columns: it is bob's own table"
    uses = grant(net)["status"].get("uses", 0)
    others = shutil.copy(EXAMPLE / "customers.csv", tmp_path / "others.csv")
    coterie(net, "data", "add", str(others), "--domain", "bob")
    refused = json.loads(coterie(net, *call, "table=others", codes=(0, 1)))
    assert (refused["status"], refused["body"].strip()) == (403, 'spec.tables of the Action does not name "others"')
    assert grant(net)["status"].get("uses", 0) == uses
    coterie(net, "action", "rm", "spend", "--domain", "bob")


def test_a_side_that_is_away_or_killed_is_waited_for(net: Net) -> None:
    bob, alice = net.at("bob"), net.at("alice")
    first = until("bob's functions run", lambda: functions_pid(bob))
    os.kill(first, signal.SIGKILL)
    assert decision(ask(alice, customer="C0007", amount=1)) == (200, "yes"), "a call while bob's process is dead"
    assert until("it runs again", lambda: functions_pid(bob)) != first
    os.kill(functions_pid(alice), signal.SIGKILL)
    until("alice's process is back", lambda: ask(alice, customer="C0007", amount=1)[0] == 200)
    with ThreadPoolExecutor(1) as client:
        os.kill(bob.envoy, signal.SIGSTOP)
        try:
            waiting = client.submit(ask, alice, customer="C0002", amount=1)
            time.sleep(3)
            assert not waiting.done(), "bob is away"
        finally:
            os.kill(bob.envoy, signal.SIGCONT)
        assert decision(waiting.result(25)) == (200, "yes")


def test_an_exhausted_grant_and_a_revoked_one(net: Net) -> None:
    bob, alice = net.at("bob"), net.at("alice")
    until("the uses are settled", lambda: ask(alice, customer="C0007", amount=1)[0] == 200)
    time.sleep(1.2)
    used = grant(net)["status"]["uses"]
    bob.merge(f"{GRANTS}/score-alice", {"spec": {"limit": {"calls": used + 1}}})

    def exhausted() -> bool:
        status, text = ask(alice, customer="C0007", amount=1)
        return status == 403 and f"the grant was for {used + 1} calls, and all were used" in text

    until("the grant is exhausted", exhausted)
    until("its phase says so", lambda: grant(net)["status"]["phase"] == "Exhausted")
    assert grant(net)["status"]["uses"] == used + 1
    bob.call("DELETE", f"{GRANTS}/score-alice")
    until("the grant is gone", lambda: bob.get(f"{GRANTS}/score-alice") is None)

    def revoked() -> bool:
        status, text = ask(alice, customer="C0007", amount=1)
        return status == 403 and "ActionGrant" in text

    until("bob's gateway lets nobody in", revoked)

    def actors() -> list[str]:
        pods = bob.list("/api/v1/namespaces/bob/pods")
        return [
            each for each in (pod["metadata"]["labels"].get("coterie.io/action", "") for pod in pods) if "." in each
        ]

    until("the actors for alice are gone", lambda: not actors())
