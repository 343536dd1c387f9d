"""What a Kuscia gateway puts on the wire, written from the description of its wire and sharing no code with ours: AES-GCM in
plain Python, its encryption of bodies.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# ---- AES-128 (FIPS 197) and GCM (NIST SP 800-38D), slow and short ----


@cache
def _sbox() -> bytes:
    made = [0x63] * 256
    p = q = 1
    while True:
        p ^= (p << 1 ^ (0x11B if p & 0x80 else 0)) & 0x1FF
        p &= 0xFF
        for shift in (1, 2, 4):
            q ^= q << shift
        q = (q ^ (0x09 if q & 0x80 else 0)) & 0xFF
        made[p] = q ^ _turned(q, 1) ^ _turned(q, 2) ^ _turned(q, 3) ^ _turned(q, 4) ^ 0x63
        if p == 1:
            return bytes(made)


def _turned(byte: int, by: int) -> int:
    return (byte << by | byte >> 8 - by) & 0xFF


def _double(byte: int) -> int:
    return (byte << 1 ^ (0x1B if byte & 0x80 else 0)) & 0xFF


@cache
def _round_keys(key: bytes) -> list[bytes]:
    words = [key[at : at + 4] for at in range(0, 16, 4)]
    box, constant = _sbox(), 1
    for number in range(4, 44):
        word = words[-1]
        if number % 4 == 0:
            word = bytes(box[each] for each in word[1:] + word[:1])
            word = bytes([word[0] ^ constant]) + word[1:]
            constant = _double(constant)
        words.append(bytes(one ^ other for one, other in zip(words[number - 4], word, strict=True)))
    return [b"".join(words[at : at + 4]) for at in range(0, 44, 4)]


def _block(key: bytes, block: bytes) -> bytes:
    box, keys = _sbox(), _round_keys(key)
    state = bytes(one ^ other for one, other in zip(block, keys[0], strict=True))
    for number in range(1, 11):
        state = bytes(box[state[(at + 4 * (at % 4)) % 16]] for at in range(16))
        if number < 10:
            mixed = bytearray()
            for at in range(0, 16, 4):
                column = state[at : at + 4]
                every = column[0] ^ column[1] ^ column[2] ^ column[3]
                mixed += bytes(column[n] ^ every ^ _double(column[n] ^ column[(n + 1) % 4]) for n in range(4))
            state = bytes(mixed)
        state = bytes(one ^ other for one, other in zip(state, keys[number], strict=True))
    return state


def _times(one: int, other: int) -> int:
    """In GF(2^128) as GCM numbers its bits."""
    product = 0
    for bit in range(127, -1, -1):
        if one >> bit & 1:
            product ^= other
        other = other >> 1 ^ (0xE1 << 120 if other & 1 else 0)
    return product


def _stream(key: bytes, nonce: bytes, length: int) -> bytes:
    blocks = (_block(key, nonce + (number + 2).to_bytes(4, "big")) for number in range((length + 15) // 16))
    return b"".join(blocks)[:length]


def _tag(key: bytes, nonce: bytes, sealed: bytes) -> bytes:
    secret, total = int.from_bytes(_block(key, bytes(16)), "big"), 0
    padded = sealed + bytes(-len(sealed) % 16) + (len(sealed) * 8).to_bytes(16, "big")
    for at in range(0, len(padded), 16):
        total = _times(total ^ int.from_bytes(padded[at : at + 16], "big"), secret)
    first = int.from_bytes(_block(key, nonce + (1).to_bytes(4, "big")), "big")
    return (total ^ first).to_bytes(16, "big")


def gcm_seal(key: bytes, nonce: bytes, plain: bytes) -> bytes:
    sealed = bytes(one ^ other for one, other in zip(plain, _stream(key, nonce, len(plain)), strict=True))
    return sealed + _tag(key, nonce, sealed)


def gcm_open(key: bytes, nonce: bytes, data: bytes) -> bytes:
    sealed, tag = data[:-16], data[-16:]
    assert _tag(key, nonce, sealed) == tag, "the tag is not that of the body"
    return bytes(one ^ other for one, other in zip(sealed, _stream(key, nonce, len(sealed)), strict=True))


# ---- Kuscia's encryption of bodies ----


def seal_body(token: str, nonce: bytes, plain: bytes) -> bytes:
    return gcm_seal(token[:16].encode(), nonce, plain)


def open_body(token: str, nonce: bytes, data: bytes) -> bytes:
    return gcm_open(token[:16].encode(), nonce, data)


def announced(revision: int, nonce: bytes) -> dict[str, str]:
    return {"kuscia-encrypt-version": str(revision), "kuscia-encrypt-iv": base64.b64encode(nonce).decode()}


def damaged(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Cut off at every byte, each byte changed, something added."""
    for at in range(len(data)):
        yield f"cut at {at}", data[:at]
        yield f"changed at {at}", data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]
    yield "longer", data + b"\0"


# ---- frames of Kuscia's reverse tunnels, by the protobuf library ----


@cache
def messages() -> tuple[Any, Any]:
    """(RequestMessage, ResponseMessage) by their field numbers."""
    file = descriptor_pb2.FileDescriptorProto(name="tunnel.proto", package="tunnel", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    shapes: dict[str, dict[str, tuple[int, int]]] = {
        "RequestMessage": {
            "id": (1, kinds.TYPE_STRING), "host": (2, kinds.TYPE_STRING), "path": (3, kinds.TYPE_STRING),
            "method": (4, kinds.TYPE_STRING), "headers": (5, kinds.TYPE_MESSAGE), "body": (6, kinds.TYPE_BYTES),
        },
        "ResponseMessage": {
            "status_code": (1, kinds.TYPE_INT32), "headers": (2, kinds.TYPE_MESSAGE), "body": (3, kinds.TYPE_BYTES),
            "end_stream": (4, kinds.TYPE_BOOL), "chunk_data": (5, kinds.TYPE_BOOL), "index": (6, kinds.TYPE_INT32),
        },
    }  # fmt: skip
    for name, fields in shapes.items():
        message = file.message_type.add(name=name)
        entry = message.nested_type.add(name="HeadersEntry")
        entry.options.map_entry = True
        for number, part in ((1, "key"), (2, "value")):
            entry.field.add(name=part, number=number, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
        for part, (number, kind) in fields.items():
            field = message.field.add(name=part, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
            if kind == kinds.TYPE_MESSAGE:
                field.label, field.type_name = kinds.LABEL_REPEATED, f".tunnel.{name}.HeadersEntry"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    request, response = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tunnel.{each}")) for each in shapes
    )
    return request, response


def frame(**parts: Any) -> bytes:
    """One call as it goes down a poll."""
    data: bytes = messages()[0](**parts).SerializeToString()
    return len(data).to_bytes(4, "big") + data


def reply(**parts: Any) -> bytes:
    data: bytes = messages()[1](**parts).SerializeToString()
    return data
