"""Rows of the language: what an expression evaluates to, or how it fails."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.kube.api.cel.errors import CelError, CompileError, CostExceeded
from coterie.kube.api.cel.program import compile_expression
from coterie.kube.api.cel.types import DYN, INT, STRING, CelType, list_of, map_of
from coterie.kube.api.cel.values import Duration, UInt, equal

SELF: dict[str, Any] = {
    "name": "web", "replicas": 3, "labels": {"app": "web"}, "ports": [80, 443], "empty": {}, "nothing": None,
    "items": [{"n": 1, "v": "a"}, {"n": 2, "v": "b"}],
}  # fmt: skip


def run(source: str, **variables: Any) -> Any:
    values = {"self": SELF, **variables}
    return compile_expression(source, dict.fromkeys(values, DYN)).evaluate(list(values.values()))


TRUE_ROWS = """
1 + 2 * 3 == 7
(1 + 2) * 3 == 9
7 / 2 == 3 && -7 / 2 == -3
7 % 3 == 1 && -7 % 3 == -1
7.0 / 2.0 == 3.5
2u * 3u == 6u
0x1F == 31 && 0xFFu == 255u
1e3 == 1000.0 && .5 == 0.5
-(3) == -3 && --3 == 3 && !!true
1 < 2 && 2 <= 2 && 3 > 2 && 3 >= 3 && 1 != 2
1 < 1.5 && 2u > 1 && 1.0 <= 1u
dyn(1) == dyn(1.0) && dyn(1u) == dyn(1)
dyn(1) != dyn(true) && dyn(1) != dyn('1') && dyn(null) != dyn(0)
'a' < 'b' && 'a' + 'b' == 'ab'
b'ab' + b'c' == b'abc' && b'\\xff'.size() == 1
'\\u00e9'.size() == 1 && '\\n'.size() == 1 && r'\\n'.size() == 2
\"\"\"a"b\"\"\" == 'a"b' && '''it's''' == "it's"
'\\101\\x42' == 'AB'
true ? 1 == 1 : false
false || true || false
1 / 0 == 1 || true
true || 1 / 0 == 1
!(false && 1 / 0 == 1)
!(1 / 0 == 1 && false)
[1, 2] + [3] == [1, 2, 3]
[1, 2.0, 3u][1] == 2.0
2 in [1, 2] && !(3 in [1, 2])
'a' in {'a': 1} && !('b' in {'a': 1})
{'a': 1, 'b': 2} == {'b': 2, 'a': 1}
{'a': {'b': [1]}}.a.b[0] == 1
{1: 'x'}[1] == 'x' && {true: 1}[true] == 1
[[1], [2]] != [[1], [3]]
size([1, 2]) == 2 && 'abc'.size() == 3 && size({'a': 1}) == 1 && size(b'ab') == 2
self.replicas == 3 && self['name'] == 'web'
has(self.name) && !has(self.missing) && has(self.nothing)
self.nothing == null
self.labels.app == 'web' && self.labels['app'] == 'web'
type(1) == int && type('a') == string && type(1.0) == double && type(1u) == uint
type(true) == bool && type(b'') == bytes && type([]) == list && type({}) == map && type(null) == null_type
type(int) == type && type(timestamp('2020-01-01T00:00:00Z')) == google.protobuf.Timestamp
int('42') == 42 && int(3.9) == 3 && int(-3.9) == -3 && int(5u) == 5
uint(5) == 5u && uint('7') == 7u && double('1.5') == 1.5 && double(2) == 2.0
string(12) == '12' && string(1.5) == '1.5' && string(2.0) == '2' && string(true) == 'true' && string(3u) == '3'
bool('true') && !bool('false') && bytes('a') == b'a' && string(b'a') == 'a'
'hello'.contains('ell') && 'hello'.startsWith('he') && 'hello'.endsWith('lo')
'hello'.matches('^h.*o$') && !'hello'.matches('^x') && matches('abc', 'b')
[1, 2, 3].all(x, x > 0) && ![1, 2].all(x, x > 1)
[1, 2, 3].exists(x, x == 2) && ![1].exists(x, x == 2)
[1, 2, 2].exists_one(x, x == 1) && ![2, 2].exists_one(x, x == 2) && [1].existsOne(x, x == 1)
[1, 2, 3].filter(x, x > 1) == [2, 3]
[1, 2].map(x, x * 2) == [2, 4] && [1, 2].map(x, x > 1, x * 10) == [20]
{'a': 1, 'b': 2}.all(k, k in ['a', 'b'])
{'a': 1}.exists(k, k == 'a') && {'a': 1, 'b': 2}.filter(k, k == 'a') == ['a']
[0, 2].exists(x, 1 / x == 0)
![0, 1].all(x, 4 / x < 4)
[[1, 2], [3]].all(row, row.all(x, x > 0))
[10, 20].all(i, v, v == (i + 1) * 10)
[1, 2].exists(i, v, i == 1 && v == 2)
[5, 6].existsOne(i, v, v == 6)
{'a': 1}.all(k, v, k == 'a' && v == 1)
[1, 2].transformList(i, v, i * v) == [0, 2]
[1, 2, 3].transformList(i, v, v > 1, v) == [2, 3]
{'a': 1}.transformMap(k, v, v + 1) == {'a': 2}
{'a': 1, 'b': 2}.transformMap(k, v, v > 1, v) == {'b': 2}
{'a': 'x'}.transformMapEntry(k, v, {v: k}) == {'x': 'a'}
cel.bind(x, 5, x * x) == 25
cel.bind(x, 1, cel.bind(y, x + 1, x + y)) == 3
[1].all(x, [2].all(x, x == 2) && x == 1)
self.?missing.orValue(7) == 7 && self.?replicas.orValue(7) == 3
!self.?missing.hasValue() && self.?labels.app.value() == 'web'
self.?labels.?zone.orValue('none') == 'none'
self.ports[?0].orValue(0) == 80 && self.ports[?9].orValue(-1) == -1
optional.of(1).or(optional.of(2)).value() == 1 && optional.none().or(optional.of(2)).value() == 2
optional.ofNonZeroValue(0).hasValue() == false && optional.ofNonZeroValue('x').hasValue()
[1, ?self.?missing, ?optional.of(3)] == [1, 3]
{?'a': optional.none(), 'b': 1} == {'b': 1}
optional.of(2).optMap(x, x * 2).value() == 4 && !optional.none().optMap(x, x).hasValue()
optional.of(2).optFlatMap(x, optional.of(x + 1)).value() == 3
'tacocat'.charAt(3) == 'o' && 'abc'.charAt(3) == ''
'hello mellow'.indexOf('ello') == 1 && 'hello mellow'.indexOf('ello', 2) == 7 && 'a'.indexOf('z') == -1
'hello mellow'.lastIndexOf('ello') == 7 && 'hello mellow'.lastIndexOf('ello', 6) == 1
['a', 'b'].join('-') == 'a-b' && ['a', 'b'].join() == 'ab'
'TacoCat'.lowerAscii() == 'tacocat' && 'TacoÉ'.upperAscii() == 'TACOÉ' && 'É'.lowerAscii() == 'É'
'he he'.replace('he', 'we') == 'we we' && 'he he'.replace('he', 'we', 1) == 'we he' && 'a'.replace('a', 'b', 0) == 'a'
'a,b,c'.split(',') == ['a', 'b', 'c'] && 'a,b,c'.split(',', 2) == ['a', 'b,c'] && 'a,b'.split(',', 0) == []
'abc'.split('') == ['a', 'b', 'c']
'tacocat'.substring(4) == 'cat' && 'tacocat'.substring(0, 4) == 'taco'
' \\t x '.trim() == 'x' && 'abc'.reverse() == 'cba'
strings.quote('a"b') == '"a\\\\"b"'
'%s is %d, %.2f, %x, %X, %o, %b, %%'.format(['a', 3, 1.5, 255, 255, 8, 5]) == 'a is 3, 1.50, ff, FF, 10, 101, %'
'%s'.format([[1, 'a', {'k': true}]]) == '[1, "a", {"k": true}]'
'%e'.format([1234.5]) == '1.234500e+03'
'abc 123'.find('[0-9]+') == '123' && 'abc'.find('[0-9]+') == ''
'1 2 3'.findAll('[0-9]') == ['1', '2', '3'] && '1 2 3'.findAll('[0-9]', 2) == ['1', '2']
[1, 2, 3].isSorted() && !['b', 'a'].isSorted() && [].isSorted()
[1, 2].sum() == 3 && [1.5, 2.5].sum() == 4.0 && [duration('1s'), duration('2s')].sum() == duration('3s')
[3, 1].min() == 1 && ['a', 'c'].max() == 'c'
[1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2 && [1].indexOf(5) == -1
[1, 1, 2].distinct() == [1, 2]
sets.contains([1, 2, 3], [2, 3]) && !sets.contains([1], [2])
sets.equivalent([1, 2, 2], [2, 1]) && sets.intersects([1, 2], [2]) && !sets.intersects([1], [2])
quantity('1').compareTo(quantity('1000m')) == 0 && quantity('1Gi') == quantity('1024Mi')
quantity('50k').add(quantity('20k')).compareTo(quantity('70k')) == 0 && quantity('50k').sub(20000) == quantity('30k')
quantity('2').isGreaterThan(quantity('1500m')) && quantity('1').isLessThan(quantity('2'))
quantity('50k').asInteger() == 50000 && !quantity('100m').isInteger() && quantity('-1').sign() == -1
quantity('100m').asApproximateFloat() == 0.1
isQuantity('1.3Gi') && !isQuantity('1.3GiB')
isURL('https://example.com:80/path?x=1') && !isURL('../relative') && isURL('/abs')
url('https://u@example.com:80/a b'.replace(' ', '%20')).getEscapedPath() == '/a%20b'
url('https://example.com:80/').getHost() == 'example.com:80' && url('https://[::1]:80/').getHostname() == '::1'
url('https://example.com:80/').getPort() == '80' && url('https://example.com/').getPort() == ''
url('https://x/?a=1&a=2').getQuery() == {'a': ['1', '2']} && url('/p').getScheme() == ''
isIP('127.0.0.1') && isIP('::1') && !isIP('127.0.0.1.1') && !isIP('::ffff:1.2.3.4') && !isIP('fe80::1%eth0')
ip('127.0.0.1').isLoopback() && ip('0.0.0.0').isUnspecified() && ip('fe80::1').isLinkLocalUnicast()
ip('224.0.0.1').isLinkLocalMulticast() && ip('8.8.8.8').isGlobalUnicast() && ip('::1').family() == 6
ip.isCanonical('127.0.0.1') && !ip.isCanonical('2001:DB8::1') && string(ip('1.2.3.4')) == '1.2.3.4'
ip('::1') == ip('0:0:0:0:0:0:0:1')
isCIDR('10.0.0.0/8') && !isCIDR('10.0.0.0') && !isCIDR('10.0.0.0/33')
cidr('10.0.0.0/8').containsIP(ip('10.1.2.3')) && cidr('10.0.0.0/8').containsIP('10.1.2.3')
cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && !cidr('10.1.0.0/16').containsCIDR(cidr('10.0.0.0/8'))
cidr('10.0.0.5/8').masked() == cidr('10.0.0.0/8') && cidr('10.0.0.5/8').prefixLength() == 8
cidr('10.0.0.5/8').ip() == ip('10.0.0.5') && !cidr('10.0.0.0/8').containsIP('::1')
!format.dns1123Label().validate('abc').hasValue() && format.dns1123Label().validate('A_').hasValue()
format.named('uuid').value().validate('x').value().size() == 1 && !format.named('nope').hasValue()
timestamp('2023-01-02T03:04:05Z') < timestamp('2023-01-02T03:04:06Z')
timestamp('2023-01-02T03:04:05Z') + duration('1h') == timestamp('2023-01-02T04:04:05Z')
timestamp('2023-01-02T05:04:05+02:00') == timestamp('2023-01-02T03:04:05Z')
timestamp('2023-01-02T00:00:00Z') - timestamp('2023-01-01T00:00:00Z') == duration('24h')
timestamp('2023-03-04T05:06:07.089Z').getFullYear() == 2023 && timestamp('2023-03-04T05:06:07.089Z').getMonth() == 2
timestamp('2023-03-04T05:06:07.089Z').getDate() == 4 && timestamp('2023-03-04T05:06:07.089Z').getDayOfMonth() == 3
timestamp('2023-03-04T05:06:07.089Z').getDayOfWeek() == 6 && timestamp('2023-03-04T05:06:07.089Z').getDayOfYear() == 62
timestamp('2023-03-04T05:06:07.089Z').getHours() == 5 && timestamp('2023-03-04T05:06:07Z').getHours('+02:00') == 7
timestamp('2023-03-04T05:06:07.089Z').getMinutes() == 6 && timestamp('2023-03-04T05:06:07.089Z').getMilliseconds() == 89
string(timestamp('2023-03-04T05:06:07.500Z')) == '2023-03-04T05:06:07.5Z' && timestamp(0) == timestamp('1970-01-01T00:00:00Z')
duration('1h30m') == duration('90m') && duration('-1.5s') == duration('-1500ms') && string(duration('90m')) == '5400s'
duration('3730s').getHours() == 1 && duration('3730s').getMinutes() == 62 && duration('1.5s').getMilliseconds() == 1500
-9223372036854775808 < 0 && 18446744073709551615u > 0u
""".strip().split("\n")


@pytest.mark.parametrize("source", [*TRUE_ROWS, "// a comment\n true"])
def test_expression_holds(source: str) -> None:
    assert run(source) is True


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("9223372036854775807 + 1", "integer overflow"),
        ("-9223372036854775808 - 1", "integer overflow"),
        ("-(-9223372036854775808)", "integer overflow"),
        ("9223372036854775807 * 2", "integer overflow"),
        ("18446744073709551615u + 1u", "unsigned integer overflow"),
        ("0u - 1u", "unsigned integer overflow"),
        ("uint(-1)", "unsigned integer overflow"),
        ("int(1e19)", "integer overflow"),
        ("1 / 0", "division by zero"),
        ("1 % 0", "modulus by zero"),
        ("self.missing", "no such key: missing"),
        ("self['missing']", "no such key: missing"),
        ("self.ports[7]", "index out of bounds: 7"),
        ("self.ports[-1]", "index out of bounds: -1"),
        ("self.name.foo", "no such overload"),
        ("self.name + self.replicas", "no such overload"),
        ("self.name && true", "no such overload"),
        ("self.name ? 1 : 2", "no such overload"),
        ("self.replicas.all(x, x)", "no such overload"),
        ("int('x')", "invalid syntax"),
        ("int('99999999999999999999')", "integer overflow"),
        ("timestamp(dyn('yesterday'))", "parsing time"),
        ("timestamp('9999-12-31T23:59:59Z') + duration('1h')", "timestamp overflow"),
        ("duration(dyn('1x'))", "invalid duration"),
        ("quantity('x')", "quantities must match"),
        ("quantity('1.5').asInteger()", "cannot convert value to integer"),
        ("ip('1.2.3')", "parse error"),
        ("cidr('1.2.3.4')", "invalid"),
        ("url('no')", "URL parse error"),
        ("'a'.matches(dyn('('))", "error parsing regexp"),
        ("'abc'.substring(2, 1)", "invalid substring range"),
        ("'abc'.charAt(4)", "index out of range: 4"),
        ("[].min()", "min called on empty list"),
        ("{'a': 1, 'a': 2}", "repeated key"),
        ("optional.none().value()", "dereference"),
        ("'%d'.format(['x'])", "can not be used with type string"),
        ("'%d'.format([])", "out of range"),
        ("[1, 2].exists_one(x, 1 / (x - 1) > 0)", "division by zero"),
        ("timestamp('2023-03-04T05:06:07Z').getHours('Nowhere/Land')", "unknown time zone"),
        ("string(b'\\xff')", "invalid UTF-8"),
        ("cel.bind(a, 'xxxxxxxx', cel.bind(b, a+a+a+a+a+a+a+a, cel.bind(c, b+b+b+b+b+b+b+b, cel.bind(d, c+c+c+c+c+c+c+c, "
         "cel.bind(e, d+d+d+d+d+d+d+d, cel.bind(f, e+e+e+e+e+e+e+e, f+f+f+f+f+f+f+f))))))", "too long"),
    ],
)  # fmt: skip
def test_expression_fails(source: str, message: str) -> None:
    with pytest.raises(CelError, match=message.replace("(", "\\(")):
        run(source)


TYPED: dict[str, CelType] = {
    "self": CelType("object", fields={"spec": ("spec", CelType("object", fields={"size": ("size", INT)})), "tags": ("tags", list_of(STRING)), "map": ("map", map_of(STRING, INT))}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("foo == 1", "1:1: undeclared reference to 'foo' (in container '')"),
        ("self.foo == 1", "1:5: undefined field 'foo'"),
        ("self.spec.sise > 1", "1:10: undefined field 'sise'"),
        ("has(self.foo)", "1:9: undefined field 'foo'"),
        ("self.spec.size == 'x'", "1:16: found no matching overload for '_==_' applied to '(int, string)'"),
        ("self.spec.size + 1.0 > 1.0", "found no matching overload for '_+_' applied to '(int, double)'"),
        ("self.spec.size.startsWith('x')", "found no matching overload for 'startsWith' applied to 'int.(string)'"),
        ("self.spec.size.foo", "type 'int' does not support field selection"),
        ("self.tags[0] > 1", "applied to '(string, int)'"),
        ("self.tags['a'] == 'x'", "applied to '(list(string), string)'"),
        ("self.tags.all(t, t > 1)", "applied to '(string, int)'"),
        ("self.map.all(k, k == 1)", "applied to '(string, int)'"),
        ("self.all(x, true)", "cannot be range of a comprehension"),
        ("nope(1)", "1:5: undeclared reference to 'nope'"),
        ("'a'.nope()", "undeclared reference to 'nope'"),
        ("1 +", "1:4: Syntax error: mismatched input '<EOF>'"),
        ("(1", "Syntax error: mismatched input '<EOF>' expecting ')'"),
        ("1 2", "Syntax error: mismatched input '2'"),
        ("'abc", "Syntax error: token recognition error at: '''"),
        ("1 = 2", "token recognition error at: '='"),
        ("'\\q'", "token recognition error"),
        ("self.in", "Syntax error: no viable alternative"),
        ("while", "reserved identifier: while"),
        ("99999999999999999999", "invalid int literal"),
        ("9223372036854775808", "invalid int literal"),
        ("has(1)", "invalid argument to has() macro"),
        ("[1].all(1, true)", "argument must be a simple name"),
        ("true && 1", "found no matching overload for '_&&_' applied to '(bool, int)'"),
        ("1 ? true : false", "found no matching overload for '_?_:_' applied to '(int, bool, bool)'"),
        ("true ? 1 : 'a'", "applied to '(bool, int, string)'"),
        ("[1].filter(x, x)", "applied to '(int, dyn, dyn)'"),
        ("true\n  && foo", "2:6: undeclared reference to 'foo'"),
        ("(" * 100 + "1" + ")" * 100, "recursion limit exceeded"),
        ("1" + "+1" * 500, "recursion limit exceeded"),
        ("self" + ".a" * 500, "recursion limit exceeded"),
        ("'" + "x" * 30_000 + "'", "exceeds limit"),
        ("Foo{a: 1}", "undeclared reference to 'Foo'"),
    ],
)
def test_expression_is_refused(source: str, message: str) -> None:
    with pytest.raises(CompileError) as refused:
        compile_expression(source, TYPED)
    assert message in str(refused.value)


def test_all_faults_are_shown_with_their_places() -> None:
    with pytest.raises(CompileError) as refused:
        compile_expression("foo > 1 && self.bar", TYPED)
    assert str(refused.value) == (
        "ERROR: <input>:1:1: undeclared reference to 'foo' (in container '')\n | foo > 1 && self.bar\n | ^\n"
        "ERROR: <input>:1:16: undefined field 'bar'\n | foo > 1 && self.bar\n | ...............^"
    )


@pytest.mark.parametrize(
    "source",
    [
        "self.all(a, self.all(b, self.all(c, self.all(d, true))))",
        "self.exists(a, self.exists(b, self.exists(c, self.exists(d, false)))) || true",
        "self.map(a, self.map(b, self.map(c, self.map(d, d)))).size() > 0",
        "self.all(a, !(-1 in self) && self.all(b, !(-1 in self)))",
    ],
)
def test_hostile_loops_end(source: str) -> None:
    program = compile_expression(source, {"self": DYN})
    with pytest.raises(CostExceeded):
        program.evaluate([list(range(300))], [200_000])


def test_shared_structures_cannot_make_comparison_explode() -> None:
    left = "cel.bind(a, [1, 1], cel.bind(b, [a, a], cel.bind(c, [b, b], cel.bind(d, [c, c], cel.bind(e, [d, d], "
    source = left + "[[[e,e],[e,e]],[[e,e],[e,e]]] == [[[e,e],[e,e]],[[e,e],[e,e]]])))))"
    assert run(source) is True


@pytest.mark.parametrize(
    "test", ["self.big == self.other", "[self.big] != [self.other]", "self.big in [self.other]", "[self.big].distinct().size() == 1"]
)  # fmt: skip
def test_comparisons_cost_all_that_is_compared(test: str) -> None:
    big, other = ({f"k{n}": [[m] for m in range(100)] for n in range(10)} for _ in range(2))
    program = compile_expression(f"self.turns.all(x, {test} || true)", {"self": DYN})
    with pytest.raises(CostExceeded):
        program.evaluate([{"turns": list(range(300)), "big": big, "other": other}], [200_000])


def test_long_chains_of_and_are_flat() -> None:
    assert run(" && ".join(["true"] * 2000)) is True


def test_equality_of_special_values() -> None:
    assert not equal(math.nan, math.nan)
    assert equal(UInt(1), 1) and equal(1, 1.0) and not equal(True, 1)
    assert not equal(Duration(1), 1)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(source=st.text(alphabet="self.abx12 ()[]{}'\"+-*/%<>=!&|?:,\\\nrtue", max_size=24))
def test_any_text_compiles_or_is_refused(source: str) -> None:
    try:
        compile_expression(source, TYPED)
    except CompileError as refused:
        assert "ERROR: <input>:" in str(refused)


@settings(max_examples=100, deadline=None)
@given(value=json_values)
def test_typed_programs_survive_data_of_the_wrong_type(value: Any) -> None:
    program = compile_expression("self.spec.size + 1 > 2 || self.tags.all(t, t.size() > 1) || 'a' in self.map", TYPED)
    for data in (value, {"spec": value, "tags": value, "map": value}, {"spec": {"size": value}}):
        with contextlib.suppress(CelError):
            program.evaluate([data])
