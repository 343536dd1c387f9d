"""Signatures as cosign makes them are demanded at the pull and at the start; wrong, missing and replayed ones are refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from image_kit import entry, sha, tar
from registry_kit import MANIFEST, Content, Registry

from coterie.base.clock import VirtualClock
from coterie.kube.agent.images import pull as pulling
from coterie.kube.agent.images.model import SIGNATURE_FAILED, ImageRefused, RequiredImage, StoredImage
from coterie.kube.agent.images.node_images import NodeImages
from coterie.kube.agent.images.references import RegistryEndpoint
from coterie.kube.agent.images.signature_policy import SignatureRule, required_rule
from coterie.kube.agent.images.sources import PullSettings
from coterie.kube.agent.images.store import HOST_IMAGE, ImageStore

PAYLOAD_TYPE = "application/vnd.dev.cosign.simplesigning.v1+json"
BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
STATEMENT_TYPE = "application/vnd.in-toto+json"
LAYER = tar([entry("f", b"12345")])
Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey
KEYS: dict[str, Key] = {
    "ecdsa": ec.generate_private_key(ec.SECP256R1()),
    "ed25519": ed25519.Ed25519PrivateKey.generate(),
    "rsa": rsa.generate_private_key(65537, 2048),
}
OURS = KEYS["ecdsa"]
OTHER = ec.generate_private_key(ec.SECP256R1())


def sign(key: Key, message: bytes) -> bytes:
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(message, ec.ECDSA(hashes.SHA256()))
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(message)
    return key.sign(message, padding.PKCS1v15(), hashes.SHA256())


def claim(digest: str, kind: str = "cosign container image signature") -> bytes:
    identity = {"docker-reference": "registry.example/team/app"}
    return json.dumps(
        {
            "critical": {"identity": identity, "image": {"docker-manifest-digest": digest}, "type": kind},
            "optional": None,
        }
    ).encode()


def attach(content: Content, digest: str, payload: bytes, signature: bytes, *tags: str) -> str:
    """As `cosign sign --key` leaves it in a registry."""
    content.blobs[sha(payload)] = payload
    about = b"{}"
    content.blobs[sha(about)] = about
    layer = {
        "mediaType": PAYLOAD_TYPE,
        "digest": sha(payload),
        "size": len(payload),
        "annotations": {"dev.cosignproject.cosign/signature": base64.b64encode(signature).decode()},
    }
    body = {"schemaVersion": 2, "mediaType": MANIFEST, "config": {"digest": sha(about), "size": 2}, "layers": [layer]}
    return content.manifest(body, *(tags or (f"sha256-{digest[7:]}.sig",)))


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry(Content()).serving() as serving:
        yield serving


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


def rule(tmp_path: Path, *keys: Key) -> SignatureRule:
    files = []
    for number, key in enumerate(keys or (OURS,)):
        path = tmp_path / f"cosign-{number}.pub"
        path.write_bytes(pem(key))
        files.append(str(path))
    return SignatureRule(("127.0.0.1:*", "team/*"), tuple(files))


def pem(key: Key) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def replace_key(demanded: SignatureRule, key: bytes | None) -> None:
    path = Path(demanded.keys[0])
    if key is None:
        path.unlink()
    else:
        path.write_bytes(key)


def pull(store: ImageStore, registry: Registry, signed_by: SignatureRule | None) -> StoredImage:
    wanted = pulling.parse(f"{registry.host}/team/app:1")
    return pulling.pull(store, wanted, [RegistryEndpoint.of(registry.host)], signed_by=signed_by)


@pytest.mark.parametrize("kind", sorted(KEYS))
def test_a_signature_by_one_of_the_keys_is_enough(
    store: ImageStore, registry: Registry, tmp_path: Path, kind: str
) -> None:
    digest = registry.content.add([LAYER], "1")
    attach(registry.content, digest, claim(digest), sign(KEYS[kind], claim(digest)))
    image = pull(store, registry, rule(tmp_path, OTHER, KEYS[kind]))
    assert len(image.signatures) == 1 and store.find(image.name) == image


@pytest.mark.parametrize(
    "wrong", ["missing", "another key", "another digest", "another claim", "changed payload", "empty", "no JSON"]
)
def test_images_without_a_valid_signature_are_not_fetched(
    store: ImageStore, registry: Registry, tmp_path: Path, wrong: str
) -> None:
    content = registry.content
    digest = content.add([LAYER], "1")
    other = content.add([tar([entry("other", b"signed before")])], "2")
    good = claim(digest)
    cases = {
        "another key": (good, sign(OTHER, good)),
        "another digest": (
            claim(other),
            sign(OURS, claim(other)),
        ),  # a signature of another image, under this one's tag
        "another claim": (claim(digest, "x"), sign(OURS, claim(digest, "x"))),
        "changed payload": (good, sign(OURS, claim(other))),
        "empty": (good, b""),
        "no JSON": (b"[" * 50_000, sign(OURS, b"[" * 50_000)),
    }
    if wrong in cases:
        attach(content, digest, *cases[wrong])
    with pytest.raises(ImageRefused) as refused:
        pull(store, registry, rule(tmp_path))
    assert refused.value.reason == SIGNATURE_FAILED
    assert ("it has no signature" in str(refused.value)) is (wrong in ("missing", "empty"))
    assert not store.layers.exists() and store.find(f"{registry.host}/team/app:1") is None


def test_an_index_may_be_signed_as_a_whole_or_for_this_machine(
    store: ImageStore, registry: Registry, tmp_path: Path
) -> None:
    content = registry.content
    own = content.add([LAYER])
    index = content.index(own, "1")
    for digest in (own, index):
        attach(content, digest, claim(digest), sign(OURS, claim(digest)))
        image = pull(store, registry, rule(tmp_path))
        assert (image.manifest, image.platform_manifest) == (index, own)
        content.manifests.pop(f"sha256-{digest[7:]}.sig")


@pytest.mark.parametrize("form", ["referrers", "tag", "bundle"])
def test_signatures_that_refer_to_the_image(store: ImageStore, registry: Registry, tmp_path: Path, form: str) -> None:
    content = registry.content
    digest = content.add([LAYER], "1")
    kind = "application/vnd.dev.cosign.artifact.sig.v1+json"
    if form == "bundle":
        kind = BUNDLE_TYPE
        statement = json.dumps({"subject": [{"digest": {"sha256": digest[7:]}}]}).encode()
        message = b"DSSEv1 %d %s %d %s" % (len(STATEMENT_TYPE), STATEMENT_TYPE.encode(), len(statement), statement)
        envelope = {
            "payload": base64.b64encode(statement).decode(),
            "payloadType": STATEMENT_TYPE,
            "signatures": [{"sig": base64.b64encode(sign(OURS, message)).decode()}],
        }
        bundle = json.dumps({"mediaType": BUNDLE_TYPE, "dsseEnvelope": envelope}).encode()
        content.blobs[sha(bundle)] = bundle
        layer = {"mediaType": BUNDLE_TYPE, "digest": sha(bundle), "size": len(bundle)}
        signature = content.manifest({"schemaVersion": 2, "mediaType": MANIFEST, "layers": [layer]})
    else:
        signature = attach(content, digest, claim(digest), sign(OURS, claim(digest)), "unused")
    index = {"schemaVersion": 2, "manifests": [{"digest": signature, "artifactType": kind}]}
    if form == "tag":
        content.manifest(index, f"sha256-{digest[7:]}")
    else:
        content.referrers[digest] = json.dumps(index).encode()
    assert len(pull(store, registry, rule(tmp_path)).signatures) == 1
    with pytest.raises(ImageRefused):
        pull(store, registry, rule(tmp_path, OTHER))


async def test_signatures_are_verified_again_at_the_start(
    store: ImageStore, registry: Registry, tmp_path: Path
) -> None:
    content = registry.content
    digest = content.add([LAYER], "1")
    image = pull(store, registry, None)  # before signatures were demanded
    demanded = rule(tmp_path)
    settings = PullSettings(remote=True, signatures=(demanded,))
    images = NodeImages(store, settings, VirtualClock())
    with pytest.raises(ImageRefused, match="no valid signature") as refused:
        await images.verified(image.name)
    assert refused.value.reason == SIGNATURE_FAILED
    # The registry has one meanwhile.
    attach(content, digest, claim(digest), sign(OURS, claim(digest)))
    assert images.needed(image.name, "IfNotPresent") and not images.needed(image.name, "Never")
    await images.pull(image.name, ())
    assert not images.needed(image.name, "IfNotPresent")
    assert await images.verified(image.name) is not None
    # Under another name of the same image the demand stays, and a replayed signature is good for its own image only.
    signed = store.find(image.name)
    assert signed is not None
    store.save(replace(signed, name="team/other:1", manifest="sha256:" + "0" * 64, platform_manifest=""))
    with pytest.raises(ImageRefused):
        await images.verified("team/other:1")
    # A key that is taken back, or cannot be read, ends it.
    for key in (pem(OTHER), b"no key", None):
        replace_key(demanded, key)
        with pytest.raises(ImageRefused, match="must be signed"):
            await images.verified(image.name)
    await images.close()


async def test_an_app_image_may_bring_the_signature_of_an_image_that_no_registry_has(
    store: ImageStore, tmp_path: Path
) -> None:
    image = store.add_host("team/engine:1", ("/usr/bin/env",))
    images = NodeImages(store, PullSettings(signatures=(rule(tmp_path),)), VirtualClock())
    good = base64.b64encode(sign(OURS, image.id.encode())).decode()
    bad = base64.b64encode(sign(OURS, b"sha256:" + b"0" * 64)).decode()
    assert await images.verified("team/engine:1", RequiredImage(image.id, good)) is not None
    for wrong in ("", bad, "not base64"):
        with pytest.raises(ImageRefused):
            await images.verified("team/engine:1", RequiredImage(image.id, wrong))
    everything = NodeImages(store, PullSettings(signatures=(replace(rule(tmp_path), images=("*",)),)), VirtualClock())
    assert await everything.verified(HOST_IMAGE) is not None  # what comes with Coterie


def test_which_rule_counts() -> None:
    rules = (
        SignatureRule(("registry.example/open/*",), required=False),
        SignatureRule(("registry.example/*", "team/*"), ("k",)),
    )
    assert required_rule(rules, "registry.example/open/app:1") is None
    assert required_rule(rules, "registry.example/team/app:1@sha256:1") is rules[1]
    assert required_rule(rules, "elsewhere.example/app:1") is None
    # Found under another name than the pod's: the stricter one counts.
    assert required_rule(rules, "registry.example/open/app:1", "team/app:1") is rules[1]
