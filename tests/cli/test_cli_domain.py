"""`coterie domain` and `coterie route` against a real API server; nothing but the objects is looked at."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache

import pytest
import yaml

from coterie.base import pki
from coterie.cli import gateway_status
from coterie.cli.gateway_status import GatewayState
from coterie.kube.client import kubeconfig
from coterie.kube.client.client import Client
from coterie.kube.client.http_transport import HttpTransport
from coterie.kuscia.api.kuscia_wire import KusciaWireForm
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.routes.model import RouteLine
from coterie.node import config


@cache
def certificate(name: str) -> str:
    made = pki.self_signed_ca(name, pki.new_key("rsa"), now=datetime.now(UTC))
    return pki.certificate_pem(made.certificate).decode()


@pytest.fixture
def plane(live):
    """The control plane of `own-...`, whose kubeconfig is named after it; domains of this test bear its number."""
    own = f"own-{abs(hash(str(live.folder))) % 10**8}"
    file = live.folder / "live-kubeconfig"
    connection = kubeconfig.read(file).resolve()
    kubeconfig.make(own, connection.server, token=connection.token, namespace=connection.namespace).write(file)
    (live.folder / "own.crt").write_text(certificate(own))
    assert live("domain", "add", own, "--cert", "own.crt", "-o", "json").code == 0
    live.own = own
    live.peer = own.replace("own", "bob")
    (live.folder / "bob.crt").write_text(certificate(live.peer))
    return live


def befriended(plane):
    made = plane("domain", "add", plane.peer, "--partner", "--cert", "bob.crt")
    assert made.code == 0, made.err
    return made


def a_route(plane, name):
    return json.loads(plane("get", "cdr", name, "-o", "json").out)["spec"]


# Domains.


def test_partners_come_with_their_certificate(plane):
    made = befriended(plane)
    assert made.lines == [
        f"domain {plane.peer} added as a partner",
        f"Next: coterie route add {plane.own} {plane.peer} --endpoint https://HOST-OF-{plane.peer.upper()}:1080 --both",
        f"What {plane.peer} begins waits for your approval; accept it with `coterie policy allow {plane.peer}`",
    ]
    assert befriended(plane).lines[0] == f"domain {plane.peer} unchanged"
    told = {each["name"]: each for each in json.loads(plane("domain", "ls", "-o", "json").out)}
    assert (told[plane.own]["role"], told[plane.peer]["role"]) == ("self", "partner")
    shown = pki.load_certificate(certificate(plane.peer).encode())
    assert told[plane.peer]["fingerprint"] == pki.fingerprint(shown)
    row = next(line.split() for line in plane("domain", "ls").lines if line.startswith(plane.peer))
    assert row[1] == "partner" and pki.fingerprint(shown).startswith(row[3])
    assert plane("domain", "rm", plane.peer).code == 0
    assert plane("get", "domains", plane.peer).code == 1


def test_a_new_certificate_takes_the_place_of_the_old_one(plane):
    befriended(plane)
    certificate.cache_clear()
    (plane.folder / "bob.crt").write_text(certificate(plane.peer))
    assert befriended(plane).lines[0] == f"domain {plane.peer} has a new certificate"


def test_our_own_certificate_is_printed(plane):
    assert plane("domain", "cert").out == certificate(plane.own)
    told = yaml.safe_load(plane("domain", "cert", "-o", "yaml").out)
    assert (told["domain"], told["certificate"]) == (plane.own, certificate(plane.own))


def test_a_partners_lite_comes_with_its_master(plane):
    befriended(plane)
    lite = plane.own.replace("own", "lite")
    (plane.folder / "lite.crt").write_text(certificate(lite))
    words = ("domain", "add", lite, "--cert", "lite.crt", "--master")
    assert "add it first: coterie domain add nobody --partner" in plane(*words, "nobody").err
    assert "add its domains without --master" in plane(*words, plane.own).err
    made = plane(*words, plane.peer)
    assert made.lines[0] == f"domain {lite} added as a partner", made.err
    assert "coterie route add OUR-DOMAIN" in made.lines[1]
    spec = json.loads(plane("get", "domain", lite, "-o", "json").out)["spec"]
    assert (spec["role"], spec["master"], spec["interConnProtocols"]) == ("partner", plane.peer, ["kuscia"])
    row = next(line.split() for line in plane("domain", "ls").lines if line.startswith(lite))
    assert (row[1], row[-1]) == ("partner", plane.peer)
    assert plane(*words, plane.peer).lines[0] == f"domain {lite} unchanged"
    assert "served by" in plane("domain", "add", lite, "--partner", "--cert", "lite.crt").err
    (plane.folder / "other.crt").write_text(certificate(other := lite.replace("lite", "other")))
    assert "it is served by" in plane("domain", "add", other, "--cert", "other.crt", "--master", lite).err
    told = plane("route", "add", plane.own, lite, "--endpoint", "https://10.0.0.2:1080", "--both")
    assert f"Next, at {plane.peer}, once {plane.own} is known there" in told.out, told.err
    steps = json.loads(plane("route", "check", plane.own, lite, "-o", "json").out)["steps"]
    (masters,) = [each for each in steps if each["step"] == "masters"]
    assert masters["verdict"] == "warning"
    assert f"coterie route add {plane.own} {plane.peer} --endpoint" in masters["advice"]


def test_certificates_of_hosted_domains_are_printed(plane):
    befriended(plane)
    lite = plane.own.replace("own", "lite")
    (plane.folder / "lite.crt").write_text(certificate(lite))
    assert plane("domain", "add", lite, "--cert", "lite.crt", "-o", "json").code == 0
    assert plane("domain", "cert", lite).out == certificate(lite)
    assert json.loads(plane("domain", "cert", lite, "-o", "json").out)["domain"] == lite
    assert "at its own control plane" in plane("domain", "cert", plane.peer).err
    assert "has registered here yet" in plane("domain", "cert", "nobody-knows").err


def test_a_token_comes_with_the_line_to_type(plane):
    name = plane.own.replace("own", "carol")
    assert plane("apply", "-f", "-", stdin=json.dumps(_domain(name))).code == 0
    # Nobody makes tokens here; a controller would.
    file = plane.folder / "live-kubeconfig"
    status = {"status": {"deployTokenStatuses": [{"token": "s3cret", "state": "unused"}]}}
    _patch_status(kubeconfig.read(file).resolve(), name, status)
    told = plane("domain", "token", name, "--endpoint", "https://10.0.0.1:1080")
    pin = pki.fingerprint(pki.load_certificate(certificate(plane.own).encode()))
    assert told.code == 0, told.err
    line = f"  coterie init --mode lite --domain {name} -m https://10.0.0.1:1080 -t - -o {name}.yaml"
    assert told.lines == [
        f"token s3cret.{pin}",
        f"It is good for one node of {name}. Next, on that machine (the first command asks for the token):",
        line,
        f"  coterie start -c {name}.yaml",
    ]
    assert plane(*line.split()[1:], stdin=f"s3cret.{pin}\n").code == 0
    made = config.load(plane.folder / f"{name}.yaml")
    assert made.gateway.deploy_token.reveal() == f"s3cret.{pin}"
    assert json.loads(plane("domain", "token", name, "-o", "json").out)["token"] == "s3cret"


def _domain(name):
    return {"apiVersion": "kuscia.secretflow/v1alpha1", "kind": "Domain", "metadata": {"name": name}, "spec": {}}


def _patch_status(connection, name, status):
    async def patch():
        client = Client(HttpTransport(connection))
        try:
            await client.patch_status(DOMAINS.as_dynamic, name, "", status)
        finally:
            await client.close()

    asyncio.run(patch())


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("domain", "add", "bob", "--partner"), 2, "known by its certificate"),
        (("domain", "add", "default"), 2, "reserved"),
        (("domain", "add", "dora", "--partner", "--cert", "bob.crt"), 1, 'not of "dora"'),
        (("domain", "add", "dora", "--partner", "--cert", "none.crt"), 1, "cannot be read"),
        (("domain", "add", "dora", "--partner", "--cert", "live-kubeconfig"), 1, "`coterie domain cert`"),
        (("domain", "add"), 2, "one NAME"),
        (("domain", "ls", "x"), 2, "no names"),
        (("domain", "rm", "nobody-knows"), 1, "not found"),
        (("domain", "token", "nobody-knows"), 1, "not found"),
        (("route", "ls", "x"), 2, "takes no names"),
        (("route", "add", "alice"), 2, "coterie route add SOURCE DESTINATION"),
        (("route", "add", "ann", "ben", "--endpoint", "https://x:1"), 1, "knows no domain ann"),
        (("route", "add", "ann", "ben", "--via", "joe", "--tunnel"), 2, "not both"),
        (("route", "add", "ann", "ben", "--endpoint", "ftp://x"), 2, "must look like https://host:1080"),
        (("route", "rm", "ann", "ben"), 1, "no route ann -> ben"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_is_said(plane, words, code, said):
    told = plane(*words)
    assert (told.code, said in told.err, told.err.count("\n")) == (code, True, 1)


def test_our_own_domain_stays(plane):
    assert "own domain" in plane("domain", "rm", plane.own).err
    assert "nothing joins it here" in plane("domain", "token", plane.own).err
    assert "remove it first" in plane("domain", "add", plane.own, "--partner", "--cert", "own.crt").err


# Routes.


def test_a_route_is_made_changed_listed_and_removed(plane):
    befriended(plane)
    ends = (plane.own, plane.peer)
    made = plane("route", "add", *ends, "--endpoint", "https://10.0.0.2:1080", "--both")
    assert made.code == 0, made.err
    assert made.lines[:2] == [
        f"route {plane.own} -> {plane.peer} added",
        f"route {plane.peer} -> {plane.own} added",
    ]
    assert f"at {plane.peer}" in made.lines[2] and made.lines[-1].endswith(f"coterie route check {' '.join(ends)}")
    spec = a_route(plane, "-".join(ends))
    assert spec["endpoint"]["ports"][0] == {"name": "http", "protocol": "HTTP", "port": 1080, "isTLS": True}
    assert "endpoint" not in a_route(plane, f"{plane.peer}-{plane.own}")

    again = plane("route", "add", *ends, "--endpoint", "https://10.0.0.2:1080")
    assert again.lines[0] == f"route {plane.own} -> {plane.peer} unchanged"
    moved = plane("route", "add", *ends, "--endpoint", "https://10.0.0.3:1080", "--body-encryption", "-o", "json")
    spec = json.loads(moved.out)["spec"]
    assert (spec["endpoint"]["host"], spec["bodyEncryption"]) == ("10.0.0.3", {"algorithm": "AES"})

    rows = [line.split() for line in plane("route", "ls").lines if line.startswith((plane.own, plane.peer))]
    assert sorted(row[:4] for row in rows) == sorted(
        [[plane.own, plane.peer, "<none>", "Token+AES"], [plane.peer, plane.own, "<none>", "Token"]]
    )
    told = plane("route", "check", *ends, "-o", "json")
    assert told.code == 1 and json.loads(told.out)["steps"][0]["step"] == "route"
    assert plane("route", "rm", *ends, "--both").lines == [
        f"route {plane.own} -> {plane.peer} removed",
        f"route {plane.peer} -> {plane.own} removed",
    ]


def test_a_partner_comes_with_its_route(plane):
    made = plane("route", "add", plane.own, plane.peer, "--endpoint", "https://b:1080", "--cert", "bob.crt")
    assert made.lines[:2] == [f"domain {plane.peer} added as a partner", f"route {plane.own} -> {plane.peer} added"]
    wrong = plane("route", "add", plane.own, "dora", "--endpoint", "https://b:1080", "--cert", "bob.crt")
    assert (wrong.code, "no end of this route" in wrong.err) == (1, True)


@pytest.mark.parametrize(("option", "way"), [("--via", "THIRD-DOMAIN"), ("--tunnel", "REVERSE-TUNNEL")], ids=str)
def test_ways_that_are_not_direct(plane, option, way):
    befriended(plane)
    words = (option, "joe") if option == "--via" else (option,)
    made = plane("route", "add", plane.own, plane.peer, *words)
    assert made.code == 0, made.err
    assert a_route(plane, f"{plane.own}-{plane.peer}")["transit"]["transitMethod"] == way
    if option == "--via":
        assert f"cdr joe-{plane.peer} coterie.io/carry-for={plane.own}" in made.out


def test_weaker_forms_are_asked_for_and_named(plane):
    befriended(plane)
    words = ("route", "add", plane.own, plane.peer, "--endpoint", "https://b:1080", "--both", "--kuscia-wire")
    refused = plane(*words, "nonsense")
    assert (refused.code, "none of body-encryption, no-client-certificate" in refused.err) == (2, True)
    refused = plane(*words, "body-encryption")
    assert (refused.code, "needs --body-encryption" in refused.err) == (1, True)
    refused = plane(*words, "reverse-tunnel")
    assert (refused.code, "needs --tunnel" in refused.err) == (1, True)
    alone = ("route", "add", plane.own, plane.peer, "--endpoint", "https://b:1080", "--kuscia-wire")
    assert "is for a route from a partner" in plane(*alone, "no-client-certificate").err
    made = plane(*words, "no-client-certificate,changing-certificate")
    assert made.code == 0, made.err
    assert made.err.count("Warning: ") == 2 and "whoever learns its token" in made.err
    listed = {each["source"]: each["kusciaWire"] for each in json.loads(plane("route", "ls", "-o", "json").out)}
    assert (listed[plane.own], listed[plane.peer]) == (["changing-certificate"], ["no-client-certificate"])
    steps = json.loads(plane("route", "check", plane.peer, plane.own, "-o", "json").out)["steps"]
    assert [each["verdict"] for each in steps if each["step"] == "wire"] == ["warning"]
    assert plane(*words[:-1]).lines[0].endswith(" changed")
    listed = {each["source"]: each["kusciaWire"] for each in json.loads(plane("route", "ls", "-o", "json").out)}
    assert (listed[plane.own], listed[plane.peer]) == ([], [])


def test_a_route_of_ours_needs_an_address(plane):
    befriended(plane)
    told = plane("route", "add", plane.own, plane.peer)
    assert told.code == 1
    assert f"--endpoint: give the address of {plane.peer}'s gateway" in told.err


def test_a_route_that_is_not_there_is_not_checked_further(plane):
    befriended(plane)
    told = plane("route", "check", plane.own, plane.peer)
    assert told.code == 1
    assert told.lines[0].startswith("wrong    route       this control plane has no route")
    assert told.err == f"Error: {plane.own} does not reach {plane.peer}: route\n"


# What status says.

READY = RouteLine("alice", "bob", "", "Token", True, "Success", "", 1.0)


def node(**more):
    return config.parse({"mode": "autonomy", "domainID": "alice", **more})


@pytest.mark.parametrize(
    ("more", "line", "said"),
    [
        ({}, READY, []),
        ({"protocol": "NOTLS"}, READY, ["plain text (protocol: NOTLS)", "KusciaAPI"]),
        ({"protocol": "TLS"}, READY, ["(protocol: TLS)"]),
        ({"agent": {"allowPrivileged": True}}, READY, ["agent.allowPrivileged"]),
        ({"agent": {"hostPaths": ["/srv"]}}, READY, ["agent.hostPaths: /srv"]),
        (
            {"dataMesh": {"dataProxyList": [{"endpoint": "proxy:1", "dataSourceTypes": ["odps"]}]}},
            READY,
            ["data proxy at proxy:1 in clear text"],
        ),
        ({}, RouteLine("alice", "bob", "", "None", True, "Success", "", None), ["alice -> bob: no token is asked for"]),
    ],
    ids=["none", "plain", "tls", "privileged", "host paths", "data proxy", "no token"],
)
def test_protections_that_are_switched_off(more, line, said):
    found = gateway_status.switched_off([node(**more)], [line])
    assert [part in sentence for part, sentence in zip(said, found, strict=True)] == [True] * len(said)


def test_weaker_forms_of_a_route_are_protections_off():
    line = replace(READY, kuscia_wire=(KusciaWireForm.BODY_ENCRYPTION,))
    (said,) = gateway_status.switched_off([], [line, line])
    assert said.startswith("alice -> bob: bodies are encrypted in Kuscia's format")
    assert said.endswith("(coterie.io/kuscia-wire: body-encryption)")


def test_what_does_not_work_is_said_with_the_next_step():
    state = GatewayState(
        "alice", "127.0.1.1:1080", live=True, refused=("lds.json",), reasons=("bad port",), dns="silent"
    )
    late = RouteLine("alice", "bob", "", "Token", False, "DestinationUnreachable", "", None)
    said = gateway_status.problems([state, GatewayState("bob", "")], [READY, late])
    assert [sentence.partition(";")[0].partition(",")[0] for sentence in said] == [
        "bob: its gateway does not answer",
        "alice: its gateway did not take lds.json: bad port",
        "alice: its DNS does not answer",
        "alice -> bob: DestinationUnreachable",
    ]
    assert gateway_status.problems([GatewayState("alice", "x", live=True, dns="answers")], [READY]) == []


def test_versions_that_were_written(tmp_path):
    (tmp_path / "lds.json").write_text('{"version_info": "abc", "resources": []}')
    (tmp_path / "rds-x.json").write_text("{")
    (tmp_path / "bootstrap.json").write_text("{}")
    assert gateway_status.written_versions(tmp_path) == {"lds.json": "abc"}
