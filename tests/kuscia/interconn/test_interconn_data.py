"""Grants between domains of one control plane, and between control planes."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from domain_world import key_pair
from interconn_kit import network
from job_world import JOB, JOB_PLANE, POD, JobWorld, a_job, a_task, job_world

from coterie.base.clock import rfc3339
from coterie.kube.api.meta import Object
from coterie.kuscia.api import labels
from coterie.kuscia.api.grants import signed_text
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS, DOMAIN_DATAS, DomainDataGrantSpec
from coterie.kuscia.controllers.domaindatagrant import controller as domaindatagrant
from coterie.kuscia.controllers.domaindatagrant import plan
from coterie.kuscia.interconn import data_mirror

DATA, GRANT = DOMAIN_DATAS.as_dynamic, DOMAIN_DATA_GRANTS.as_dynamic
PLANE = (*JOB_PLANE, domaindatagrant.make)


def a_table(name: str = "people", owner: str = "alice", **spec: Any) -> Object:
    body = {"relativeURI": f"{name}.csv", "author": owner, "name": name, "type": "table", "dataSource": "default"}
    return {"metadata": {"name": name, "namespace": owner}, "spec": {**body, **spec}}


def a_grant(name: str = "g", data: str = "people", owner: str = "alice", to: str = "bob", **spec: Any) -> Object:
    body = {"author": owner, "domainDataID": data, "grantDomain": to, **spec}
    if "signature" not in spec:
        signature = key_pair(owner)[0].sign(
            signed_text(msgspec.convert(body, DomainDataGrantSpec)), padding.PKCS1v15(), hashes.SHA256()
        )
        body["signature"] = base64.b64encode(signature).decode()
    elif not spec["signature"]:
        del body["signature"]
    return {"metadata": {"name": name, "namespace": owner}, "spec": body}


async def phase(w: JobWorld, name: str = "g", namespace: str = "alice") -> tuple[str, str]:
    status = (await w.get(GRANT, name, namespace)).get("status") or {}
    return status.get("phase", ""), status.get("message", "")


async def test_a_grantee_sees_the_table_and_the_grant_until_it_is_taken_back() -> None:
    async with job_world(makes=PLANE) as w:
        await w.client.create(DATA, a_table())
        await w.client.create(GRANT, a_grant())
        await w.settle(3)
        assert await phase(w) == ("Ready", "") == await phase(w, namespace="bob")
        copy = await w.get(DATA, "people", "bob")
        assert copy["spec"]["vendor"] == "grant" and copy["spec"]["author"] == "alice"
        assert copy["metadata"]["labels"][labels.KUSCIA_OWNER_REFERENCES] == "people"
        await w.client.patch(DATA, "people", "alice", {"spec": {"relativeURI": "new.csv"}})
        await w.settle(3)
        assert (await w.get(DATA, "people", "bob"))["spec"]["relativeURI"] == "new.csv"
        await w.client.create(GRANT, a_grant("second"))
        await w.settle(3)
        await w.client.delete(GRANT, "g", "alice")
        await w.settle(3)
        assert not await w.exists(GRANT, "g", "bob") and await w.exists(DATA, "people", "bob")
        await w.client.delete(GRANT, "second", "alice")
        await w.settle(3)
        assert not await w.exists(GRANT, "second", "bob") and not await w.exists(DATA, "people", "bob")


REFUSED = [
    (a_grant(to="alice"), "a domain needs no grant for its own data"),
    (a_grant(data="nothing"), 'there is no DomainData "nothing"'),
    (a_grant(limit={"expirationTime": "2020-01-01T00:00:00Z"}), "Expirated"),
    (a_grant(signature=base64.b64encode(b"x" * 128).decode()), "Verify error"),
]


@pytest.mark.parametrize(("grant", "word"), REFUSED, ids=[row[1] for row in REFUSED])
async def test_a_grant_that_is_not_good_says_so(grant: Object, word: str) -> None:
    async with job_world(makes=PLANE) as w:
        await w.client.create(DATA, a_table())
        await w.client.create(GRANT, grant)
        await w.settle(3)
        assert await phase(w) == ("Unavailable", word)


async def test_a_signature_of_the_author_is_good() -> None:
    async with job_world(makes=PLANE) as w:
        grant = a_grant(limit={"useCount": 2})
        spec = msgspec.convert(grant["spec"], DomainDataGrantSpec)
        signature = key_pair("alice")[0].sign(signed_text(spec), padding.PKCS1v15(), hashes.SHA256())
        grant["spec"]["signature"] = base64.b64encode(signature).decode()
        await w.client.create(DATA, a_table())
        await w.client.create(GRANT, grant)
        await w.settle(3)
        assert await phase(w) == ("Ready", "")


async def test_a_control_plane_signs_grants_of_its_own_domain_only() -> None:
    """Not those of its lites, for which it has no key; and it replaces no signature."""

    def make(client: Any, informers: Any, **more: Any) -> Any:
        signer = domaindatagrant.GrantSigner("alice", lambda: key_pair("alice")[0])
        return domaindatagrant.make(client, informers, signer=signer, **more)

    async with job_world(makes=(*JOB_PLANE, make)) as w:
        for owner, to in (("alice", "bob"), ("bob", "alice")):
            await w.client.create(DATA, a_table(owner=owner, name=f"of-{owner}"))
            await w.client.create(GRANT, a_grant("g", f"of-{owner}", owner, to, signature=""))
        await w.client.create(GRANT, a_grant("bad", "of-alice", signature="AAAA"))
        await w.settle(3)
        assert await phase(w) == ("Ready", "")
        assert (await w.get(GRANT, "g", "alice"))["spec"]["signature"]
        assert await phase(w, namespace="bob") == ("Unavailable", plan.UNSIGNED)
        assert not (await w.get(GRANT, "g", "bob"))["spec"].get("signature")
        assert await phase(w, "bad") == ("Unavailable", "Verify error")


def test_only_listed_fields_are_taken_from_a_host() -> None:
    shown = a_table()
    shown["metadata"] |= {
        "resourceVersion": "7",
        "finalizers": ["x/y"],
        "ownerReferences": [{"name": "n"}],
        "labels": {labels.KUSCIA_DOMAINDATA_TYPE: "table", "planted": "x", labels.KUSCIA_OWNER_REFERENCES: "other"},
        "annotations": {labels.COTERIE_MADE_FOR: "bob", labels.KUSCIA_INITIATOR: "alice", "coterie.io/flow": "f"},
    }
    shown["spec"]["unknown"] = 1
    shown["status"] = {"x": 1}
    assert data_mirror.copy_of(shown, "alice", "bob") == {
        "metadata": {
            "name": "people",
            "namespace": "bob",
            "labels": {
                labels.KUSCIA_DOMAINDATA_TYPE: "table",
                labels.KUSCIA_OWNER_REFERENCES: "people",
                labels.KUSCIA_HOST_RESOURCE_VERSION: "7",
            },
            "annotations": {labels.KUSCIA_INITIATOR: "alice", labels.KUSCIA_INITIATOR_MASTER_DOMAIN: "alice"},
        },
        "spec": a_table()["spec"],
    }


async def test_a_grant_ends_by_time_and_by_use() -> None:
    async with job_world(makes=PLANE) as w:
        await w.client.create(DATA, a_table())
        soon = rfc3339(w.clock.now().replace(microsecond=0) + timedelta(seconds=60))
        await w.client.create(GRANT, a_grant("timed", limit={"expirationTime": soon}))
        await w.client.create(GRANT, a_grant("counted", limit={"useCount": 1}))
        await w.settle(3)
        assert (await phase(w, "timed"), await phase(w, "counted")) == (("Ready", ""), ("Ready", ""))
        used = {"use_records": [{"use_time": "2026-01-01T00:00:00Z", "grant_domain": "bob"}]}
        await w.client.patch_status(GRANT, "counted", "alice", {"status": used})
        await w.settle(70)
        assert await phase(w, "timed") == ("Unavailable", "Expirated")
        assert await phase(w, "counted", "bob") == ("Unavailable", "UseCount is exhausted")


async def test_a_partner_sees_what_it_was_granted_and_only_that() -> None:
    async with network("alice", "bob", "carol", makes=PLANE) as net:
        for name in ("people", "secret"):
            await net["alice"].client.create(DATA, a_table(name))
        await net["alice"].client.create(GRANT, a_grant())

        async def seen() -> bool:
            return await net["bob"].exists(DATA, "people", "bob") and await net["bob"].exists(GRANT, "g", "bob")

        await net.until(seen)
        await net.settle(3)
        copy = await net["bob"].get(GRANT, "g", "bob")
        assert copy["metadata"]["annotations"][labels.KUSCIA_INITIATOR_MASTER_DOMAIN] == "alice"
        assert copy["status"]["phase"] == "Ready"
        assert not (await net["bob"].client.list(DATA, "alice")).items
        assert not await net["bob"].exists(DATA, "secret", "bob")
        assert not (await net["carol"].client.list(DATA)).items
        await net["alice"].client.delete(GRANT, "g", "alice")

        async def gone() -> bool:
            return not (await net["bob"].client.list(DATA)).items and not (await net["bob"].client.list(GRANT)).items

        await net.until(gone)


async def test_a_host_cannot_show_what_is_not_its_own() -> None:
    """A partner that writes something into our namespace of its cluster in another's name is not believed."""
    async with network("alice", "bob", "carol", makes=PLANE) as net:
        forged = a_table(owner="carol")
        forged["metadata"]["namespace"] = "bob"
        forged["metadata"]["annotations"] = {
            labels.KUSCIA_INITIATOR: "carol",
            labels.KUSCIA_INTERCONN_KUSCIA_PARTIES: "bob",
        }
        await net["alice"].client.create(DATA, forged)
        await net.settle(5)
        assert not (await net["bob"].client.list(DATA, "bob")).items


async def test_a_job_without_the_grant_it_needs_is_refused_before_it_starts() -> None:
    async with network("alice", "bob", makes=PLANE) as net:
        await net["bob"].client.create(DATA, a_table("theirs", owner="bob"))
        asks = a_task("a", taskInputConfig='{"sf_input_ids": ["theirs"]}')
        await net["alice"].client.create(JOB, a_job(asks, name="early"))
        (status,) = await net.until_phase("Failed", "alice", job="early")
        assert 'has no grant for "theirs" of "bob"' in status["message"], status["message"]
        assert not [each for plane in net.planes.values() for each in (await plane.client.list(POD)).items]
        await net["bob"].client.create(GRANT, a_grant(data="theirs", owner="bob", to="alice"))
        await net["alice"].client.create(JOB, a_job(asks, name="late"))
        await net.until_phase("Succeeded", job="late")
