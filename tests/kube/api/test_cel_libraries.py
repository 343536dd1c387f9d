"""The libraries that Kubernetes adds to CEL: rows from its documentation, each true, or with the error it fails with."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.kube.api.cel.errors import CelError, CompileError, CostExceeded
from coterie.kube.api.cel.lib_authorization import AccessDecision, AccessQuery, AuthorizerValue
from coterie.kube.api.cel.program import compile_expression
from coterie.kube.api.cel.types import AUTHORIZER, DYN, CelType

TRUE_ROWS = """
math.greatest(1) == 1 && math.greatest(1u, 2u) == 2u && math.greatest(-42.0, -21.5, -100.0) == -21.5
math.greatest([-42.0, -21.5, -100.0]) == -21.5 && math.greatest(1, 2.5, 2u) == 2.5
math.least(1, 2) == 1 && math.least([3, 1, 2]) == 1 && math.least(-1, 0u, 3.5) == -1
math.bitAnd(3, 5) == 1 && math.bitAnd(-3, -5) == -7 && math.bitOr(1u, 2u) == 3u && math.bitXor(3, 5) == 6
math.bitNot(1) == -2 && math.bitNot(0u) == 18446744073709551615u
math.bitShiftLeft(1, 2) == 4 && math.bitShiftLeft(-1, 2) == -4 && math.bitShiftLeft(1, 200) == 0
math.bitShiftRight(1024, 2) == 256 && math.bitShiftRight(-1024, 3) == 2305843009213693824
math.bitShiftRight(1024u, 2) == 256u && math.bitShiftRight(1024u, 64) == 0u
math.ceil(1.2) == 2.0 && math.ceil(-1.2) == -1.0 && math.floor(1.2) == 1.0 && math.floor(-1.2) == -2.0
math.round(1.2) == 1.0 && math.round(1.5) == 2.0 && math.round(-1.5) == -2.0 && math.round(2.5) == 3.0
math.trunc(-1.3) == -1.0 && math.trunc(1.3) == 1.0
math.abs(-1) == 1 && math.abs(1u) == 1u && math.abs(-3.14) == 3.14
math.sign(-42) == -1 && math.sign(0) == 0 && math.sign(42u) == 1u && math.sign(-0.3) == -1.0
math.isInf(1.0 / 0.0) && !math.isInf(1.2) && math.isNaN(0.0 / 0.0) && !math.isNaN(1.2)
math.isFinite(1.2) && !math.isFinite(0.0 / 0.0) && math.sqrt(81) == 9.0 && math.isNaN(math.sqrt(-1))
semver('1.2.3').major() == 1 && semver('1.2.3').minor() == 2 && semver('1.2.3').patch() == 3
isSemver('1.0.0') && isSemver('0.1.0-alpha.1') && !isSemver('hello') && !isSemver('v1.0') && !isSemver('01.0.0')
isSemver('v1.0', true) && isSemver('1.0', true) && isSemver('01.01.01', true) && !isSemver('1.0-rc', true)
semver('v1.0.0', true) == semver('1.0.0') && semver('01.01.01', true) == semver('1.1.1') && semver('v1', true).minor() == 0
semver('1.2.3').compareTo(semver('1.2.3')) == 0 && semver('1.2.3').compareTo(semver('2.0.0')) == -1
semver('1.2.3').isGreaterThan(semver('1.2.3-rc.1')) && semver('1.0.0-alpha').isLessThan(semver('1.0.0-alpha.1'))
semver('1.0.0-alpha.1').isLessThan(semver('1.0.0-beta')) && semver('1.0.0-2').isLessThan(semver('1.0.0-11'))
semver('1.0.0+a').compareTo(semver('1.0.0+b')) == 0
{'a': 1, 'b': 2}.all(k, v, k != 'c' && v > 0) && [1, 2].exists(i, v, i == 1 && v == 2)
{'a': 1}.transformList(k, v, k) == ['a'] && [3, 4].transformMap(i, v, v * 2) == {0: 6, 1: 8}
{'a': 1}.transformMapEntry(k, v, {v: k}) == {1: 'a'} && [1, 1].existsOne(i, v, i == 0)
optional.of(1).hasValue() && optional.none().orValue(2) == 2 && {'a': 1}[?'b'].or(optional.of(3)).value() == 3
[1, 2, 3, 4].slice(1, 3) == [2, 3] && [1, 2, 2, 3].distinct() == [1, 2, 3] && [5, 3, 1, 2].reverse() == [2, 1, 3, 5]
[1, [2, 3], [4, [5]]].flatten() == [1, 2, 3, 4, [5]] && [1, [2, [3, [4]]]].flatten(2) == [1, 2, 3, [4]]
lists.range(5) == [0, 1, 2, 3, 4] && [3, 2, 1].sort() == [1, 2, 3] && ['b', 'c', 'a'].sort() == ['a', 'b', 'c']
[{'n': 'b', 's': 1}, {'n': 'a', 's': 2}].sortBy(e, e.n).map(e, e.s) == [2, 1] && lists.range(3).sortBy(n, -n) == [2, 1, 0]
[1, 2].first().value() == 1 && [1, 2].last().value() == 2 && ![].first().hasValue()
[optional.of(1), optional.none(), optional.of(2)].unwrapOpt() == [1, 2] && optional.unwrap([optional.of('a')]) == ['a']
quantity('1k').asInteger() == 1000 && quantity('50M').compareTo(quantity('50Mi')) == -1
ip('10.0.0.1').family() == 4 && cidr('10.0.0.0/8').containsIP('10.1.2.3') && !isCIDR('10.0.0.0')
url('https://example.com:80/a?b=c').getHost() == 'example.com:80' && !isURL('no url')
'abc 123'.find('[0-9]+') == '123' && '1 2 3'.findAll('[0-9]', 2) == ['1', '2']
sets.contains([1, 2], [2]) && sets.equivalent([1, 1], [1]) && sets.intersects([1], [1, 2])
format.dns1123Label().validate('My-label') != optional.none() && format.named('uuid').hasValue()
""".strip().splitlines()


def run(source: str, **variables: Any) -> Any:
    return compile_expression(source, dict.fromkeys(variables, DYN)).evaluate(list(variables.values()))


@pytest.mark.parametrize("source", TRUE_ROWS)
def test_row_is_true(source: str) -> None:
    assert run(source) is True


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("math.greatest([]) == 1", "must not be empty"),
        ("math.greatest(dyn('a'), 1) == 1", "no such overload"),
        ("[1, 2].slice(1, 5) == []", r"cannot slice\(1, 5\), list is length 2"),
        ("[1, 2].slice(2, 1) == []", "start index must be less than or equal to end index"),
        ("[1, dyn('a')].sort() == []", "list elements must have the same type"),
        ("[[1], [2]].sort() == []", "list elements must be comparable"),
        ("lists.range(1000000000) == []", "list is too long"),
        ("math.bitShiftLeft(1, -1) == 1", "negative offset: -1"),
        ("math.abs(-9223372036854775808) == 1", "integer overflow"),
        ("semver('200K') == semver('1.0.0')", "is not a semantic version"),
        ("semver('1.0-rc', true) == semver('1.0.0')", "short version cannot contain PreRelease/Build meta data"),
        ("semver('99999999999999999999.0.0').major() == 1", "is not a semantic version"),
    ],
)
def test_row_fails(source: str, message: str) -> None:
    with pytest.raises(CelError, match=message):
        run(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("duration('1 hour') > duration('1s')", "ERROR: <input>:1:10: invalid duration argument"),
        ("timestamp('today') > timestamp(0)", "invalid timestamp argument"),
        ("'a'.matches('[')", "invalid matches argument"),
    ],
)
def test_literals_are_checked_before(source: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        run(source)


def test_long_lists_cost_what_they_are_long() -> None:
    with pytest.raises(CostExceeded):
        run("lists.range(1000).all(x, lists.range(1000000).size() > x)")


@pytest.mark.parametrize("source", ["math.greatest()", "math.greatest('a')", "math.ceil(1)", "semver(1)"])
def test_types_are_checked_before(source: str) -> None:
    with pytest.raises(CompileError):
        run(source)


def ask(source: str, allowed: set[AccessQuery]) -> tuple[Any, list[AccessQuery]]:
    asked: list[AccessQuery] = []

    def decide(query: AccessQuery) -> AccessDecision:
        asked.append(query)
        return AccessDecision(query in allowed, "because")

    variables: dict[str, CelType] = {"authorizer": AUTHORIZER}
    return compile_expression(source, variables).evaluate([AuthorizerValue(decide)]), asked


def test_authorizer_asks_for_the_user() -> None:
    query = AccessQuery(None, "create", group="apps", resource="deployments", namespace="test", name="backend")
    source = "authorizer.group('apps').resource('deployments').namespace('test').name('backend').check('create')"
    assert ask(f"{source}.allowed()", {query}) == (True, [query])
    assert ask(f"{source}.reason()", set())[0] == "because"
    assert ask(f"{source}.errored() || {source}.error() != ''", set())[0] is False


def test_authorizer_asks_for_a_service_account() -> None:
    query = AccessQuery(("default", "robot"), "get", path="/healthz")
    source = "authorizer.serviceAccount('default', 'robot').path('/healthz').check('get').allowed()"
    assert ask(source, {query}) == (True, [query])
    for wrong in ("serviceAccount('a@b', 'x').path('/')", "path('  ')", "group('').resource('')"):
        with pytest.raises(CelError):
            ask(f"authorizer.{wrong}.check('get').allowed()", set())
