"""Definitions for fuzzing: schemas that are nearly right, and rules in a language that strangers write."""

from __future__ import annotations

import copy
from typing import Any

from fuzz_objects import CRD, NUMBERS, TEXTS, Maker

Object = dict[str, Any]
NAME = "widgets.fuzz.example"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/fuzz.example/v1/namespaces/default/widgets"

CEL = (
    "true", "self.size > 0", "self.", "(", "", " ", "\0", "// c", "self//", "not", "in", "!" * 500 + "true", "-" * 500 + "1 > 0", "(" * 400 + "true" + ")" * 400, "[" * 300 + "]" * 300 + " == []",
    "self.names.all(x, x.size() > 0)", "self.names.map(x, self.names.map(y, self.names.map(z, x + y + z))).size() > 0", "self.names.all(a, self.names.all(b, self.names.all(c, self.names.all(d, self.names.all(e, a + b + c + d + e != '')))))",
    "size(self.names) > 0", "self.x.y.z", "oldSelf.size < self.size", "has(self.free)", "has(self)", "has(self.names[0])", "self.free.x == 1", "'a' + 1 == ''", "1 / 0 == 1", "1 % 0 == 1", "9223372036854775807 + 1 > 0", "-9223372036854775808 - 1 == 0", "-(-9223372036854775808) > 0",
    "'a'.matches('[')", "'a'.matches('(a+)+$')", "'a'.matches('a{1000}{1000}')", "self.kind.matches(self.kind)", "duration('x') > duration('1s')", "duration('999999999999h') > duration('0s')", "timestamp('9999-12-31T23:59:59Z') + duration('1h') > timestamp('0001-01-01T00:00:00Z')",
    "timestamp('0001-01-01T00:00:00Z') - duration('1h') > timestamp(0)", "string(self) == ''", "int('x') > 0", "int('99999999999999999999') > 0", "int(1e300) > 0", "uint(-1) > 0u", "double('nan') < 1.0", "0.0 / 0.0 == 0.0", "bytes('x') == b'x'", "string(b'\\xff') == ''", "type(self) == int", "dyn(self).foo == 1", "self == self",
    "self.all(x, true)", "[1, 2, 3].exists_one(x, x > self.size)", "{'a': 1}['b'] == 1", "{1: 2, 1: 3}.size() == 1", "{[]: 1}.size() == 1", "self.names[99] == ''", "self.names[-1] == ''", "self.names[9223372036854775807] == ''", "quantity('1Gi').isGreaterThan(quantity('x'))", "quantity('1e999999999').isInteger()", "url('http://a:b').getPort() == ''",
    "ip('1.2.3.4').family() == 4", "cidr('x').prefixLength() == 1", "self.kind in ['a', 'b']", "self.parts.map(p, p.id).isSorted()", "'%s %d'.format([self.size]) == ''", "'%999999999d'.format([1]) == ''", "'%.999999999f'.format([1.0]) == ''", "'x'.repeat(9)", "a" * 5000, "self.size > 0 && " * 300 + "true", "self.size" + " + self.size" * 400 + " > 0",
    "'" + "x" * 9000 + "' == ''", "\"\\ud800\" == ''", "'\\U0011ffff' == ''", "r'\\' == ''", "0x == 1", "0xffffffffffffffffff > 1", "1e999 > 1.0", "99999999999999999999 > 1", "1u - 2u > 0u", "cel.bind(x, self, x.size > 0)", "optional.of(1).hasValue()", "self.?x.orValue(1) == 1", "oldSelf.orValue(1) == 1", "self.names.sum() > 1", "self.names.min() > ''", "[].min() > 1",
    "lists.range(1000000000).size() > 1", "base64.encode(b'x') == ''", "sets.contains([1], [2])", "math.greatest(1, 2) > 1", "authorizer.path('/').check('get').allowed()", "'abc'.substring(5) == ''", "'abc'.substring(-1, 2) == ''", "'abc'.charAt(99) == ''", "'a,b'.split(',', -99).size() == 1", "'a,b'.split('').size() == 1", "'a'.replace('', 'bb', 1000000000).size() > 1",
    "self.names.map(x, x.replace('', x)).size() > 1", "'x'.lowerAscii() == ''", "self.when > timestamp(0)", "string(timestamp(99999999999999)) == ''", "timestamp('2020-01-01T00:00:00Z').getHours('Nowhere/X') == 1", "timestamp('2020-01-01T00:00:00Z').getHours('99:99') == 1", "duration('1h').getMilliseconds() == 1", "true ? 1 : 'a'", "true ? self : 1", "size(1) == 1", "foo(1)", "self.foo(1)",
    "self.map(x, x)", "self.names.map(self, self) == []", "self.names.filter(x, y).size() == 1", "[self].map(x, [x, x]).map(x, [x, x]).map(x, [x, x]).size() > 0", "self.names.join(self.names[0]) == ''", "self.parts.all(p, p.port == 1)", "self.parts.all(p, type(p.port) == int)", "format.named('x').hasValue()", "isSemver('1')", "semver('1.2.3').major() == 1", "self.labels.transformMap(k, v, v) == {}", "self.labels['x'] == ''",
    "`self`", "self.`a-b`", "__namespace__ == ''", "self.__dot__", "for", "self.if", "null == self", "self.size == null", "b'\\377' == b''", "'''a\nb''' == ''", "\"\"\"x\"\"\" == ''", "true || 1", "1 || true", "[1, 'a'] == []", "{'a': 1, 'b': 'c'} == {}", "x{a: 1}", "google.protobuf.Timestamp{}", "1.size()", "-'a' == ''", "!1", "1 == 1.0", "1 < 'a'", "self < self", "[1] + ['a'] == []",
)  # fmt: skip
PATTERNS = (
    "^a+$",
    "(",
    "[",
    "(a+)+$",
    "\\d",
    "(?=a)",
    "(?P<x>a)",
    "a{1000000}",
    "(a{1000}){1000}",
    "\\p{L}",
    "x" * 3000,
    "(" * 500 + ")" * 500,
    "\\",
    "*",
    "(?i)a",
    "\0",
    "[^\\x00-\\uffff]",
)
FORMATS = (
    "int32",
    "int64",
    "float",
    "double",
    "date",
    "date-time",
    "byte",
    "email",
    "hostname",
    "ipv4",
    "cidr",
    "uri",
    "uuid",
    "duration",
    "password",
    "bsonobjectid",
    "creditcard",
    "isbn",
    "mac",
    "k8s-short-name",
    "x",
    "",
)
PATHS = (
    ".spec.size", ".spec.names[0]", ".spec.names[*]", ".spec['size']", '.spec.parts[?(@.id=="a")].port', ".", ".spec..size", "$.spec", ".spec[", "{.spec}", ".spec.names[99999999999999999999]", ".spec.names[" + "9" * 5000 + "]",
    ".spec.*", ".spec.names[-1:]", ".spec.names[::0]", ".spec.parts[?(@.id>1)]", ".spec.parts[?(", ".metadata.creationTimestamp", ".spec" + "..[*]" * 40, ".spec[0,0,0,0]" + "[*,*,*]" * 20, ".spec" + "[?(@" * 60 + ")]" * 60, ".spec.a\\.b", ".spec['a','b']", ".x" * 400, "",
)  # fmt: skip
_WORDS = {
    "type": ("object", "array", "string", "integer", "number", "boolean", "null", "x", ""),
    "format": FORMATS,
    "pattern": PATTERNS,
    "x-kubernetes-list-type": ("map", "set", "atomic", "x"),
    "x-kubernetes-map-type": ("atomic", "granular", "x"),
}
_FLAGS = (
    "nullable",
    "uniqueItems",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
)
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_OTHERS = (
    "title",
    "description",
    "$ref",
    "$schema",
    "id",
    "example",
    "dependencies",
    "definitions",
    "patternProperties",
    "additionalItems",
    "externalDocs",
)


class Definer(Maker):
    """Schemas along the grammar of schemas: each keyword with a value of its type, or now and then of another."""

    def schema(self, depth: int = 3) -> Object:
        draw = self.random
        kind = draw.choice(("object", "object", "array", "string", "integer", "number", "boolean"))
        out: Object = {"type": kind}
        if kind == "object" and draw.random() < 0.8:
            names = draw.sample(
                ("a", "b", "size", "names", "", "x-y", "metadata", "a.b", "spec"), draw.choice((1, 2, 3))
            )
            out["properties"] = {name: self.schema(depth - 1) for name in names} if depth > 0 else {}
        elif kind == "object":
            out["additionalProperties"] = self.schema(depth - 1) if depth > 0 else True
        elif kind == "array":
            out["items"] = self.schema(depth - 1) if depth > 0 else {"type": "string"}
        for _ in range(draw.choice((0, 0, 0, 1, 1, 2))):
            self.keyword(out, depth)
        return out

    def keyword(self, node: Object, depth: int = 1) -> None:
        """Put one more keyword into a schema."""
        draw = self.random
        key = draw.choice((*_WORDS, *_FLAGS, *_COUNTS, *_OTHERS, "minimum", "maximum", "multipleOf", "enum", "default", "required", "allOf", "anyOf", "oneOf", "not", "x-kubernetes-list-map-keys", "x-kubernetes-validations"))  # fmt: skip
        inner = depth - 1 if depth > 0 else 0
        value: Any
        if draw.random() < 0.05:
            value = self.wrong()
        elif key in _WORDS:
            value = draw.choice(_WORDS[key])
        elif key in _FLAGS:
            value = draw.random() < 0.8
        elif key in _COUNTS:
            value = draw.choice((0, 1, 5, -1, 2**62))
        elif key in ("minimum", "maximum", "multipleOf"):
            value = draw.choice((*NUMBERS, 0.1, 1e-300, 1e300))
        elif key in ("enum", "default"):
            found = [self.wrong(), draw.choice(TEXTS)]
            value = found if key == "enum" else draw.choice(found)
        elif key in ("required", "x-kubernetes-list-map-keys"):
            value = draw.choice((["a"], ["id"], ["a", "a"], [""], []))
        elif key in ("allOf", "anyOf", "oneOf"):
            value = [self.schema(inner) for _ in range(draw.choice((1, 2)))]
            for part in value if draw.random() < 0.7 else ():
                part.pop("type")
        elif key == "x-kubernetes-validations":
            value = [self.rule() for _ in range(draw.choice((1, 1, 2)))]
        else:
            value = self.schema(inner) if key == "not" else draw.choice(TEXTS)
        node[key] = value

    def rule(self) -> Object:
        draw = self.random
        out: Object = {"rule": draw.choice(CEL)}
        if draw.random() < 0.3:
            out["messageExpression"] = draw.choice(("'a'", "string(self.size)", "1", "''", "'x\\ny'", *CEL[:20]))
        if draw.random() < 0.2:
            out["message"] = draw.choice(("m", "", "a\nb", "x" * 5000))
        if draw.random() < 0.2:
            out["reason"] = draw.choice(("FieldValueInvalid", "FieldValueRequired", "x"))
        if draw.random() < 0.2:
            out["fieldPath"] = draw.choice((".size", ".a.b", "a[", "['x']", ".names[0]", ".labels.x", ".", ".free.x"))
        if draw.random() < 0.2:
            out["optionalOldSelf"] = True
        return out

    def definition(self) -> Object:
        """A definition whose schema is made up, or the good one with a few more keywords and rules."""
        draw, spec = self.random, copy.deepcopy(CRD)
        version = spec["versions"][0]
        schema = version["schema"]["openAPIV3Schema"]
        inside = schema["properties"]["spec"]
        if draw.random() < 0.4:
            schema["properties"] = {"spec": self.schema(4), "status": self.schema(2)}
        else:
            for _ in range(draw.choice((0, 1, 2))):
                self.keyword(draw.choice([inside, *inside["properties"].values()]))
            if isinstance(inside, dict) and draw.random() < 0.7:
                inside["x-kubernetes-validations"] = [self.rule()]
        if draw.random() < 0.3:
            version["additionalPrinterColumns"] = [{"name": "a", "type": draw.choice(("string", "date", "integer", "number", "boolean")), "jsonPath": draw.choice(PATHS)}]  # fmt: skip
        if draw.random() < 0.1:
            version["selectableFields"] = [{"jsonPath": draw.choice((".spec.kind", ".spec.size", ".spec.nope", ".spec", "x", "."))}]  # fmt: skip
        if draw.random() < 0.1:
            version["subresources"] = {
                "scale": {"specReplicasPath": draw.choice(PATHS), "statusReplicasPath": ".status.x"}
            }
        return definition(spec)

    def widget(self, name: str) -> Object:
        draw = self.random
        spec: Any = {
            "size": draw.choice((1, 2, 9, "x", None, -1, 1.0, 2**63 - 1)),
            "names": draw.choice((["a"], ["a", "b"], [], None, ["A"], "a")),
            "kind": draw.choice(("a", "c")),
            "free": self.wrong(),
            "when": draw.choice(("2026-01-01T00:00:00Z", "x", None)),
            "labels": {"a": "b"},
            "parts": draw.choice(([{"id": "a", "port": 1}, {"id": "a"}], [{"id": "b", "port": "x"}], [{}], [None])),
        }
        if draw.random() < 0.3:
            spec = draw.choice((self.wrong(), {"a": self.wrong(), "b": self.wrong(), "size": 1}))
        return {
            "apiVersion": "fuzz.example/v1",
            "kind": "Widget",
            "metadata": {"name": name},
            "spec": spec,
            "status": self.wrong(),
        }


def definition(spec: Object) -> Object:
    name = {"name": f"{spec['names']['plural']}.{spec['group']}"}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": name, "spec": spec}


def with_rule(**rule: Any) -> Object:
    """The good definition with one rule of its own."""
    spec = copy.deepcopy(CRD)
    spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"] = [rule]
    return definition(spec)
