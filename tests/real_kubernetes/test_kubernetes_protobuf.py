"""Our protobuf against Kubernetes' own types: what we encode means to Go what the same JSON means to it.

Needs `.tools/kubernetes/protobuf-codec` (scripts/get-kubernetes).
"""

from __future__ import annotations

import base64
import random
import string
import subprocess
from pathlib import Path
from typing import Any

import orjson
import pytest

from coterie.kube.api.wire import decode, table
from coterie.kube.api.wire import encode as encoding

CODEC = Path(__file__).resolve().parents[2] / ".tools/kubernetes/protobuf-codec"
pytestmark = pytest.mark.skipif(not CODEC.exists(), reason="scripts/get-kubernetes was not run")

TABLE: dict[str, list[tuple[str, str, str]]] = {}
for _line in Path(table.__file__).with_name("messages.tsv").read_text().splitlines():
    if not _line.startswith("#"):
        _message, _, _name, _kind, _shape, _ = _line.split("\t")
        TABLE.setdefault(_message, []).append((_name, _kind, _shape))
GROUPS = {
    "core": "",
    "flowcontrol": "flowcontrol.apiserver.k8s.io/",
    "rbac": "rbac.authorization.k8s.io/",
} | {name: f"{name}/" for name in ("apps", "autoscaling", "batch", "policy")}
KINDS = sorted(
    name
    for name, rows in TABLE.items()
    if rows[0][0] == "metadata" and not name.startswith(("meta.", "core.v1.RangeAllocation", "core.v1.List"))
)


def go(verb: str, lines: list[bytes]) -> list[bytes]:
    ran = subprocess.run([CODEC, verb], input=b"\n".join(lines) + b"\n", capture_output=True, check=True, timeout=120)
    return ran.stdout.splitlines()


def _value(rng: random.Random, kind: str, depth: int) -> Any:
    match kind:
        case "string":
            return "".join(rng.choices(string.ascii_letters + "é\n", k=rng.choice([0, 1, 7, 130])))
        case "bytes":
            return base64.b64encode(rng.randbytes(rng.randrange(0, 9))).decode()
        case "int32":
            return rng.choice([0, 1, -1, 127, 128, 2**31 - 1, -(2**31)])
        case "int64":
            return rng.choice([0, 1, -1, 2**63 - 1, -(2**63)])
        case "bool":
            return rng.random() < 0.5
        case "double":
            return rng.choice([0.0, 1.5, -2.25])
        case "api.resource.Quantity":
            return rng.choice(["1", "10Mi", "0", "100m"])
        case "util.intstr.IntOrString":
            return rng.choice([0, 1, -2, "50%", ""])
        case "meta.v1.Time":
            return rng.choice([None, "2026-11-14T22:13:20Z", "1970-01-01T00:00:00Z"])
        case "meta.v1.MicroTime":
            return rng.choice([None, "2026-11-14T22:13:20.123456Z"])
        case "meta.v1.FieldsV1" | "runtime.RawExtension" | "apiextensions.v1.JSON":
            return {"f": [1, None, "x"]}
        case "apiextensions.v1.JSONSchemaPropsOrBool":
            return rng.choice([True, False, {"type": "string"}])
        case "apiextensions.v1.JSONSchemaPropsOrArray":
            return rng.choice([{"type": "string"}, [{"type": "string"}, {"type": "integer"}]])
        case "apiextensions.v1.JSONSchemaPropsOrStringArray":
            return rng.choice([{"type": "string"}, ["a", "b"]])
    if kind.endswith("ExtraValue"):
        return ["a", "b"]
    return _object(rng, kind, depth + 1)


def _object(rng: random.Random, message: str, depth: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, kind, shape in TABLE.get(message, ()):
        if shape == "inline":
            out |= _object(rng, kind, depth)
        elif depth > 4 or rng.random() < 0.5:
            continue
        elif shape == "list":
            out[name] = [_value(rng, kind, depth) for _ in range(rng.randrange(0, 3))]
            if kind in ("meta.v1.Time", "meta.v1.MicroTime"):
                del out[name]
        elif shape.startswith("map<"):
            inner = shape[4:-1].split(",")[1]
            out[name] = {key: _value(rng, inner, depth) for key in ("k", "")}
        else:
            out[name] = _value(rng, kind, depth)
    return out


def _objects(seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    out = []
    for kind in KINDS:
        group, version, name = kind.rsplit(".", 2)
        api_version = GROUPS.get(group, f"{group}.k8s.io/") + version
        out.append({"apiVersion": api_version, "kind": name} | _object(rng, kind, 0))
    return out


@pytest.mark.parametrize("seed", range(8))
def test_go_reads_from_our_bytes_what_it_reads_from_the_json(seed: int) -> None:
    objects = _objects(seed)
    theirs = go("encode", [orjson.dumps(obj) for obj in objects])
    usable = [(obj, line) for obj, line in zip(objects, theirs, strict=True) if not line.startswith(b"error")]
    assert len(usable) > 0.9 * len(objects), [line for line in theirs if line.startswith(b"error")][:5]
    ours = [base64.b64encode(encoding.encode(obj) or b"") for obj, _ in usable]
    want, got = go("decode", [line for _, line in usable]), go("decode", ours)
    for (obj, _), mine, right in zip(usable, got, want, strict=True):
        assert not mine.startswith(b"error"), (obj["kind"], mine)
        assert orjson.loads(mine) == orjson.loads(right), obj["kind"]


@pytest.mark.parametrize("seed", range(4))
def test_we_read_the_bytes_of_go_as_go_does(seed: int) -> None:
    objects = _objects(100 + seed)
    theirs = [line for line in go("encode", [orjson.dumps(obj) for obj in objects]) if not line.startswith(b"error")]
    again = [base64.b64encode(encoding.encode(decode(base64.b64decode(line))) or b"") for line in theirs]
    for mine, right in zip(go("decode", again), go("decode", theirs), strict=True):
        assert orjson.loads(mine) == orjson.loads(right)
