"""A verifier of evidence files, written from docs/guide/evidence-format.md alone. It shares no code with the program."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256


class Wrong(Exception):
    """The file is not what it says."""


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def need(condition: object, why: str) -> None:
    if not condition:
        raise Wrong(why)


def leaf(event: bytes) -> bytes:
    return sha(b"\x00" + event)


def root(leaves: list[bytes]) -> bytes:
    """MTH of RFC 6962, from hashes of leaves, one level after the other."""
    if not leaves:
        return sha(b"")
    level = leaves
    while len(level) > 1:
        pairs = [sha(b"\x01" + level[i] + level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = pairs + ([level[-1]] if len(level) % 2 else [])
    return level[0]


def root_by_path(index: int, size: int, current: bytes, path: list[bytes]) -> bytes:
    """RFC 9162 section 2.1.3.2 in other words."""
    need(index < size, "no such leaf")
    at, last, rest = index, size - 1, list(path)
    while last:
        if at & 1 or at != last:
            need(rest, "the proof is too short")
            other = rest.pop(0)
            current = sha(b"\x01" + other + current) if at & 1 else sha(b"\x01" + current + other)
        at, last = at >> 1, last >> 1
    need(not rest, "the proof is too long")
    return current


class LogKey:
    def __init__(self, text: str) -> None:
        self.name, _, rest = text.partition("+")
        shown, _, encoded = rest.partition("+")
        raw = base64.b64decode(encoded, validate=True)
        need(len(raw) == 33 and raw[0] == 1, "no Ed25519 key of a log")
        self.public, self.id = raw[1:], sha(self.name.encode() + b"\n" + raw)[:4]
        need(self.id.hex() == shown, "the id is not that of the key")

    @property
    def witness(self) -> tuple[str, bytes]:
        name = self.name.partition(".coterie/")[0] + ".coterie/witness"
        return name, sha(name.encode() + b"\n\x04" + self.public)[:4]

    def check(self, signature: bytes, message: bytes) -> None:
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, message)
        except (InvalidSignature, ValueError):
            raise Wrong("a signature is wrong") from None


def certified(key: str, signature: str, domain_key: rsa.RSAPublicKey) -> None:
    try:
        domain_key.verify(
            base64.b64decode(signature, validate=True),
            b"coterie evidence key v1\n" + key.encode(),
            padding.PKCS1v15(),
            SHA256(),
        )
    except InvalidSignature:
        raise Wrong("the key is not certified") from None


def checkpoint(note: str, key: LogKey) -> tuple[int, bytes, str, list[tuple[str, bytes]]]:
    """Size, root, text and the other signatures."""
    text, gap, rest = note.rpartition("\n\n")
    need(gap, "no signatures")
    text += "\n"
    origin, size, encoded, end = text.split("\n")
    need(not end and origin == key.name and size == str(int(size)), "no checkpoint of this log")
    others, signed = [], False
    for line in rest.splitlines():
        dash, name, data = line.split(" ")
        need(dash == "\u2014", "no signature")
        raw = base64.b64decode(data, validate=True)
        if name == key.name and raw[:4] == key.id:
            key.check(raw[4:], text.encode())
            signed = True
        else:
            others.append((name, raw))
    need(signed, "not signed by the log")
    return int(size), base64.b64decode(encoded, validate=True), text, others


def verify(content: bytes, trusted: rsa.RSAPublicKey | None = None) -> dict[str, Any]:
    """What the file proves. Wrong, or another exception for what cannot be read at all."""
    need(content.endswith(b"\n"), "cut off")
    lines = content[:-1].split(b"\n")
    need(lines[0] == b"coterie-evidence 1", "no evidence file")
    header = json.loads(lines[1])
    key, whole = LogKey(header["key"]), header.get("whole", True)
    need(key.name == header["origin"], "origin and key differ")
    domain, _, number = key.name.partition(".coterie/evidence/")
    need(domain == header["domain"] and number.isdecimal(), "origin and domain differ")
    domain_key = x509.load_pem_x509_certificate(header["certificate"].encode()).public_key()
    need(isinstance(domain_key, rsa.RSAPublicKey), "no RSA key")
    assert isinstance(domain_key, rsa.RSAPublicKey)
    need(trusted is None or trusted.public_numbers() == domain_key.public_numbers(), "not the domain that is trusted")
    events: dict[int, bytes] = {}
    bodies: dict[int, bytes] = {}
    proofs: dict[int, list[bytes]] = {}
    heads: list[tuple[int, bytes]] = []
    disclosed: dict[str, str] = {}
    for line in lines[2:]:
        kind, _, rest = line.partition(b" ")
        if kind == b"e":
            index, shown, body = rest.split(b" ", 2)
            at = int(index)
            need(at not in events and (not whole or at == len(events)), "an event is missing or there twice")
            events[at] = bytes.fromhex(shown.decode())
            if body != b"-":
                need(leaf(body) == events[at], f"event {at} is another one")
                bodies[at] = body
        elif kind == b"p":
            index, *hashes = rest.split(b" ")
            proofs[int(index)] = [base64.b64decode(each, validate=True) for each in hashes]
        elif kind == b"h":
            size, head_root, _, _ = checkpoint(json.loads(rest), key)
            if whole:
                need(size == len(events), "events are missing before a checkpoint")
                need(root(list(events.values())) == head_root, "the events are not those that were signed")
            heads.append((size, head_root))
        elif kind == b"d":
            shown_value = json.loads(rest)
            salt = base64.b64decode(shown_value["salt"], validate=True)
            need(len(salt) == 32, "no salt")
            need(sha(salt + shown_value["value"].encode()).hex() == shown_value["commitment"], "a wrong disclosure")
            disclosed[shown_value["commitment"]] = shown_value["value"]
        else:
            need(kind in (b"w", b"s"), "an unknown line")
    need(heads, "no checkpoint")
    first = json.loads(bodies[0]) if 0 in bodies else {}
    need(first.get("kind") == "log.opened", "the first event is not there")
    need(first["more"]["key"] == header["key"], "another key was certified")
    certified(header["key"], first["more"]["certificate"], domain_key)
    if previous := first["more"].get("previous-key"):
        text = f"coterie evidence key rotation v1\n{previous}\n{header['key']}\n"
        LogKey(previous).check(base64.b64decode(first["more"]["by-previous"], validate=True), text.encode())
    if not whole:
        size, head_root = heads[-1]
        for at, hashed in events.items():
            need(at in proofs and root_by_path(at, size, hashed, proofs[at]) == head_root, f"event {at} is not proven")
    return {"events": len(events), "heads": heads, "disclosed": disclosed, "removed": len(events) - len(bodies)}


def verify_tlog_proof(text: str, log_key: str) -> tuple[int, bytes]:
    """Index and event."""
    head, gap, note = text.partition("\n\n")
    need(gap, "no checkpoint")
    first, extra, index, *hashes = head.split("\n")
    need(first == "c2sp.org/tlog-proof@v1" and extra.startswith("extra ") and index.startswith("index "), "no proof")
    size, head_root, _, _ = checkpoint(note, LogKey(log_key))
    body, at = base64.b64decode(extra[6:], validate=True), int(index[6:])
    path = [base64.b64decode(each, validate=True) for each in hashes]
    need(root_by_path(at, size, leaf(body), path) == head_root, "not in the log")
    return at, body
