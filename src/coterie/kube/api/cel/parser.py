"""Tokens to a syntax tree: precedence climbing, one function for prefix forms and one for what follows them."""

from __future__ import annotations

from typing import Final, NoReturn

from coterie.kube.api.cel.ast import (
    CallNode,
    Conditional,
    Ident,
    Index,
    ListLiteral,
    Literal,
    Logic,
    MapLiteral,
    MessageLiteral,
    Node,
    Select,
    dotted,
)
from coterie.kube.api.cel.errors import CelIssue, CompileError
from coterie.kube.api.cel.lexer import RESERVED, CelToken, tokens
from coterie.kube.api.cel.values import INT64_MAX

MAX_SOURCE: Final = 20_000
MAX_DEPTH: Final = 60
"""How deep brackets may nest: far above any rule, far below Python's recursion limit."""
_BINARY: Final = {
    "<": 3,
    "<=": 3,
    ">": 3,
    ">=": 3,
    "==": 3,
    "!=": 3,
    "in": 3,
    "+": 4,
    "-": 4,
    "*": 5,
    "/": 5,
    "%": 5,
}
_NAMES: Final = {"in": "@in", **{op: f"_{op}_" for op in _BINARY if op != "in"}}
_UNARY: Final = {"!": "!_", "-": "-_"}


def parse(source: str) -> Node:
    """The tree of `source`; raises CompileError."""
    if len(source) > MAX_SOURCE:
        raise CompileError(source[:80], [CelIssue(0, f"expression code point size exceeds limit: size: {len(source)}")])
    return _Parser(source).whole()


class _Parser:
    def __init__(self, source: str) -> None:
        self.source = source
        self.tokens = tokens(source)
        self.at = 0
        self.depth = 0

    def whole(self) -> Node:
        tree = self.expression()
        if self.now.kind != "end":
            self._unexpected("<EOF>")
        return tree

    @property
    def now(self) -> CelToken:
        return self.tokens[self.at]

    def _is(self, text: str) -> bool:
        token = self.tokens[self.at]
        return token.kind == "op" and token.text == text

    def _take(self, text: str) -> CelToken:
        token = self.now
        if not self._is(text):
            self._unexpected(f"'{text}'")
        self.at += 1
        return token

    def _accept(self, text: str) -> bool:
        if self._is(text):
            self.at += 1
            return True
        return False

    def _fail(self, pos: int, message: str) -> NoReturn:
        raise CompileError(self.source, [CelIssue(pos, message)])

    def _unexpected(self, wanted: str) -> NoReturn:
        self._fail(self.now.pos, f"Syntax error: mismatched input '{self.now.text}' expecting {wanted}")

    def expression(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self._fail(self.now.pos, "expression recursion limit exceeded")
        test = self._chain("||")
        if self._is("?"):
            pos = self._take("?").pos
            then = self._chain("||")
            self._take(":")
            test = Conditional(pos, test, then, self.expression())
        self.depth -= 1
        return test

    def _chain(self, op: str) -> Node:
        is_and = op == "&&"
        terms = [self._binary(3) if is_and else self._chain("&&")]
        pos = self.now.pos
        while self._accept(op):
            terms.append(self._binary(3) if is_and else self._chain("&&"))
        return terms[0] if len(terms) == 1 else Logic(pos, is_and, tuple(terms))

    def _binary(self, floor: int) -> Node:
        left = self._unary()
        length = 0
        while True:
            token = self.now
            power = _BINARY.get(token.text) if token.kind == "op" else None
            if power is None or power < floor:
                return left
            length += 1
            if length > MAX_DEPTH * 2:
                self._fail(token.pos, "expression recursion limit exceeded")
            self.at += 1
            left = CallNode(token.pos, _NAMES[token.text], (left, self._binary(power + 1)))

    def _unary(self) -> Node:
        signs: list[CelToken] = []
        while self._is("!") or self._is("-"):
            signs.append(self.now)
            self.at += 1
        if len({sign.text for sign in signs}) > 1:
            self._unexpected("an operand")
        bare = self.now.kind == "literal"
        node = self._member()
        number = isinstance(node, Literal) and type(node.value) in (int, float)
        if bare and number and signs and signs[-1].text == "-" and isinstance(node, Literal):
            # A sign belongs to the literal: so the least int64 can be written.
            node = Literal(signs.pop().pos, -node.value)
        elif isinstance(node, Literal) and type(node.value) is int and node.value > INT64_MAX:
            self._fail(node.pos, "Syntax error: invalid int literal")
        # Pairs cancel out, so a row of signs is never a deep tree.
        return CallNode(signs[0].pos, _UNARY[signs[0].text], (node,)) if len(signs) % 2 else node

    def _member(self) -> Node:
        node = self._primary()
        steps = 0
        while self.now.kind == "op":
            token = self.now
            if token.text in (".", ".?"):
                self.at += 1
                node = self._after_dot(node, token)
            elif token.text in ("[", "[?"):
                self.at += 1
                index = self.expression()
                self._take("]")
                node = Index(token.pos, node, index, token.text == "[?")
            elif token.text == "{" and _is_name(node):
                node = self._message(dotted(node))
            else:
                break
            steps += 1
            if steps > MAX_DEPTH * 2:
                self._fail(token.pos, "expression recursion limit exceeded")
        return node

    def _after_dot(self, node: Node, dot: CelToken) -> Node:
        name = self.now
        if name.kind not in ("ident", "quoted"):
            # `in`, `true` and the like are refused here as cel-go does; fields of that name are escaped.
            self._fail(name.pos, f"Syntax error: no viable alternative at input '.{name.text}'")
        self.at += 1
        if self._is("(") and name.kind == "ident" and dot.text == ".":
            pos = self._take("(").pos
            return CallNode(pos, name.text, self._arguments(")"), node)
        return Select(dot.pos, node, name.text, dot.text == ".?")

    def _arguments(self, close: str) -> tuple[Node, ...]:
        out: list[Node] = []
        while not self._is(close):
            out.append(self.expression())
            if not self._accept(","):
                break
        self._take(close)
        return tuple(out)

    def _primary(self) -> Node:
        token = self.now
        if token.kind == "literal":
            self.at += 1
            return Literal(token.pos, token.value)
        if token.kind == "op":
            if token.text == "(":
                self.at += 1
                inner = self.expression()
                self._take(")")
                return inner
            if token.text in ("[", "[?"):
                return self._list()
            if token.text == "{":
                return self._map()
            if token.text == "." and self.tokens[self.at + 1].kind == "ident":
                self.at += 1
                token = self.now
        if token.kind != "ident":
            self._unexpected(
                "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', "
                "NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}"
            )
        if token.text in RESERVED:
            self._fail(token.pos, f"reserved identifier: {token.text}")
        self.at += 1
        if self._is("("):
            pos = self._take("(").pos
            return CallNode(pos, token.text, self._arguments(")"))
        return Ident(token.pos, token.text)

    def _list(self) -> Node:
        pos = self.now.pos
        items: list[tuple[Node, bool]] = []
        optional = self.now.text == "[?"
        self.at += 1
        while optional or not self._is("]"):
            optional = optional or self._accept("?")
            items.append((self.expression(), optional))
            optional = False
            if not self._accept(","):
                break
        self._take("]")
        return ListLiteral(pos, tuple(items))

    def _message(self, name: str) -> Node:
        pos = self._take("{").pos
        fields: list[tuple[str, Node, bool]] = []
        while not self._is("}"):
            optional = self._accept("?")
            field = self.now
            if field.kind not in ("ident", "quoted"):
                self._unexpected("IDENTIFIER")
            self.at += 1
            self._take(":")
            fields.append((field.text, self.expression(), optional))
            if not self._accept(","):
                break
        self._take("}")
        return MessageLiteral(pos, name, tuple(fields))

    def _map(self) -> Node:
        pos = self._take("{").pos
        entries: list[tuple[Node, Node, bool]] = []
        while not self._is("}"):
            optional = self._accept("?")
            key = self.expression()
            self._take(":")
            entries.append((key, self.expression(), optional))
            if not self._accept(","):
                break
        self._take("}")
        return MapLiteral(pos, tuple(entries))


def _is_name(node: Node) -> bool:
    return isinstance(node, Ident) or (isinstance(node, Select) and _is_name(node.operand))
