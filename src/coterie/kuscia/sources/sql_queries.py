"""SQL that engines send: which columns of which tables it reads, and the statement that is run in its place. Pure.

    text ──parse_query──> tables ──resolve (columns of each table)──> columns that are read ──statement──> SQL

What an engine wrote is never run. It is parsed; whatever is not on the lists below is refused (one SELECT without side effects, of
tables of the source, with functions that only compute). The statement is made from what was understood:

    - each table becomes `(SELECT <the columns that are read> FROM <schema>.<table>)`. A column that the resolution had missed does not
      exist for the database, so the statement fails and tells nothing;
    - each table has its schema, each common table expression a name of ours. No name can be taken for a table of the server's own;
    - comments, also those that MySQL executes, are left out; texts are written so that no mode of the server ends them early.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.base.lazy_import import lazy_import
from coterie.kuscia.sources.protocol import SourceError, SqlTable

sqlglot = lazy_import("sqlglot")
exp = lazy_import("sqlglot.expressions")
sql_errors = lazy_import("sqlglot.errors")
sql_schema = lazy_import("sqlglot.schema")
sql_scope = lazy_import("sqlglot.optimizer.scope")
sql_normalize = lazy_import("sqlglot.optimizer.normalize_identifiers")
sql_qualify = lazy_import("sqlglot.optimizer.qualify")

DIALECTS = ("postgres", "mysql", "sqlite")
"""Whose texts and names are written as the server reads them."""
_LONGEST = 16 << 10
_DEEPEST = 40
_MOST_NODES = 4000
_MOST_JOINED = 16
"""Texts that are put together: each doubles what a row may need."""
_CTE = "coterie_cte_"
_NUMBER = re.compile(r"\d+(\.\d*)?([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?")
_WORDS = re.compile(r"[A-Za-z_ ]{0,30}")
_INTERVAL = re.compile(r"[0-9. ]{1,20}( ?[a-zA-Z]{1,12})?")
_UNITS = "YEAR YEARS QUARTER MONTH MONTHS WEEK WEEKS DAY DAYS HOUR HOURS MINUTE MINUTES SECOND SECONDS DOW DOY EPOCH ISODOW ISOYEAR"
_NODES = (
    # Queries
    "Select Union Except Intersect Subquery From Join Where Group Having Order Ordered Limit Offset Distinct With CTE TableAlias Table "
    "Alias Column Identifier Star Paren Tuple Window WindowSpec Filter "
    # Values and conditions
    "Literal Boolean Null And Or Not EQ NEQ GT GTE LT LTE NullSafeEQ NullSafeNEQ Is In Between Like ILike Escape Exists Add Sub Mul Div IntDiv Mod "
    "Neg DPipe Case If Cast DataType DataTypeParam Interval Var Extract "
    # Functions
    "Count Sum Avg Min Max Stddev StddevPop StddevSamp Variance VariancePop Coalesce Nullif Greatest Least Abs Round Floor Ceil Sqrt Pow "
    "Exp Ln Sign Upper Lower Trim Length Substring Left Right Concat ConcatWs StrPosition MD5 Year Month Day TimestampTrunc CurrentDate CurrentTimestamp "
    "RowNumber Rank DenseRank PercentRank CumeDist Ntile Lag Lead FirstValue LastValue"
)
_TYPES = (
    "TINYINT UTINYINT SMALLINT USMALLINT INT UINT BIGINT UBIGINT FLOAT DOUBLE DECIMAL BOOLEAN CHAR NCHAR VARCHAR TEXT DATE DATETIME TIME TIMESTAMP "
    "TIMESTAMPTZ UUID BINARY VARBINARY"
)
_ARGUMENTS = {
    "Select": "expressions distinct from_ joins where group having windows order limit offset with_ kind",
    "Union": "this expression distinct order limit offset with_",
    "Except": "this expression distinct order limit offset with_",
    "Intersect": "this expression distinct order limit offset with_",
    "Subquery": "this alias order limit offset",
    "Table": "this alias",
    "Join": "this on side kind using",
    "With": "expressions",
    "CTE": "this alias",
    "Column": "this table",
    "DataType": "this expressions nested",
    "Cast": "this to",
    "Limit": "expression",
    "Window": "this partition_by order spec over alias",
}
"""What nodes may have beside their usual parts; everything else of these is refused where it says something."""


class RefusedQuery(SourceError):
    """The SQL is not run. The sentence says why."""


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    dialect: str
    tables: tuple[str, ...]
    """Names in the source, as the server would spell them."""
    tree: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class ResolvedQuery:
    dialect: str
    reads: Mapping[str, tuple[str, ...]]
    """By table: every column that the query reads, for its result or only to choose, join, group or order rows."""
    tree: Any = field(repr=False)


# Understanding.


def parse_query(text: str, dialect: str) -> ParsedQuery:
    """Raises RefusedQuery."""
    if dialect not in DIALECTS:
        raise RefusedQuery(f"SQL of the dialect {dialect!r} is not understood; there are {', '.join(DIALECTS)}")
    if len(text.encode("utf-8", "replace")) > _LONGEST:
        raise RefusedQuery(f"the query is longer than {_LONGEST >> 10} KiB")
    if "\0" in text or _depth(text) > _DEEPEST:
        raise RefusedQuery("the query has a NUL, or more than 40 levels of parentheses")
    try:
        trees = [each for each in sqlglot.parse(text, read=dialect) if each is not None]
    except (sql_errors.SqlglotError, RecursionError, ValueError) as problem:
        raise RefusedQuery(f"the query is not understood: {_first_line(problem)}") from None
    if len(trees) != 1:
        raise RefusedQuery(f"a query is one SELECT, not {len(trees)} statements")
    [tree] = trees
    if not isinstance(tree, (exp.Select, exp.SetOperation)):
        raise RefusedQuery("a query is one SELECT; nothing else is run")
    try:
        _check(tree)
        tree = sql_normalize.normalize_identifiers(tree, dialect=dialect)
        tables = dict.fromkeys(node.name for node in _physical(tree))
    except (sql_errors.SqlglotError, RecursionError) as problem:
        raise RefusedQuery(f"the query is not understood: {_first_line(problem)}") from None
    if not tables:
        raise RefusedQuery("the query reads no table of the source")
    return ParsedQuery(dialect, tuple(tables), tree)


def resolve(query: ParsedQuery, columns: Mapping[str, Sequence[str]]) -> ResolvedQuery:
    """`columns`: of each table, those that there are for whoever asks; `*` means these. Raises RefusedQuery."""
    known = {name: dict.fromkeys(columns[name], "text") for name in query.tables}
    schema = sql_schema.MappingSchema(known, dialect=query.dialect, normalize=False)
    try:
        tree = sql_qualify.qualify(
            query.tree.copy(), dialect=query.dialect, schema=schema, quote_identifiers=True, identify=True
        )
        _check(tree)
        reads: dict[str, dict[str, None]] = {name: {} for name in query.tables}
        for scope in sql_scope.traverse_scope(tree):
            for column in scope.columns:
                if isinstance(column.this, exp.Star):
                    raise RefusedQuery("`*` is a column of its own, or stands in count(*)")
                source = scope.sources.get(column.table)
                if isinstance(source, exp.Table):
                    if column.name not in known.get(source.name, ()):
                        raise RefusedQuery(f'there is no column "{column.name}" in {source.name}')
                    reads[source.name][column.name] = None
        _check_stars(tree)
    except (sql_errors.SqlglotError, RecursionError) as problem:
        raise RefusedQuery(f"the query's columns cannot be resolved: {_first_line(problem)}") from None
    return ResolvedQuery(query.dialect, {name: tuple(found) for name, found in reads.items()}, tree)


def statement(query: ResolvedQuery, tables: Mapping[str, SqlTable]) -> str:
    """What is run. Raises RefusedQuery."""
    tree = query.tree.copy()
    try:
        physical = {id(node) for node in _physical(tree)}
        _rename_ctes(tree, physical)
        for node in list(tree.find_all(exp.Table)):
            if id(node) in physical:
                node.replace(_confined(query, node, tables[node.name]))
        for node in list(tree.walk()):
            node.comments = None
            if isinstance(node, exp.Literal) and node.is_string and not isinstance(node.parent, exp.Interval):
                node.replace(exp.Var(this=_text(node.this, query.dialect)))
        if query.dialect == "postgres":
            for node in tree.find_all(exp.Substring):
                # From a text would be from where a regular expression matches.
                node.set("start", exp.cast(node.args["start"], "int"))
        made: str = tree.sql(dialect=query.dialect, comments=False, identify=True)
    except (sql_errors.SqlglotError, RecursionError, ValueError) as problem:
        raise RefusedQuery(f"the query cannot be run: {_first_line(problem)}") from None
    return made


# What may stand in a query.


def _check(tree: Any) -> None:
    """Every part of it is on the lists."""
    good = tuple(getattr(exp, name) for name in _NODES.split())
    texts = count = 0
    for node in tree.walk():
        count += 1
        kind = type(node).__name__
        if type(node) not in good:
            raise RefusedQuery(f"{_words_of(node)} cannot stand in a query here; see docs/guide/sources.md")
        if kind in ("DPipe", "Concat", "ConcatWs"):
            texts += 2 if kind == "DPipe" else len(node.expressions)
        _check_arguments(node, kind)
    if count > _MOST_NODES or texts > _MOST_JOINED:
        raise RefusedQuery("the query has too many parts, or puts too many texts together")


def _check_arguments(node: Any, kind: str) -> None:
    allowed = _ARGUMENTS.get(kind, "").split()
    for name, value in node.args.items():
        if allowed and name not in allowed and value not in (None, False, [], ""):
            raise RefusedQuery(f"{kind.upper()} with {name.rstrip('_')} cannot stand in a query here")
        if isinstance(value, str) and kind not in ("Identifier", "Literal", "Var") and not _WORDS.fullmatch(value):
            raise RefusedQuery(f"{kind.upper()} cannot be understood")
    if kind == "Select" and node.args.get("kind"):
        raise RefusedQuery("SELECT AS cannot stand in a query here")
    if kind == "Table" and not isinstance(node.this, exp.Identifier):
        raise RefusedQuery("FROM takes tables of the source and subqueries, no functions")
    if kind == "Subquery" and isinstance(node.this, (exp.Table, exp.Join)):
        raise RefusedQuery("joins in parentheses are not understood; write them without")
    if kind == "Join" and isinstance(node.this, (exp.Tuple, exp.Paren)):
        raise RefusedQuery("joins in parentheses are not understood; write them without")
    if kind == "Identifier" and (not node.this or any(ord(each) < 32 or ord(each) == 127 for each in node.this)):
        raise RefusedQuery("a name is empty or has control characters")
    if kind == "Literal" and not node.is_string and not _NUMBER.fullmatch(node.this):
        raise RefusedQuery("a number cannot be understood")
    if kind == "Literal" and isinstance(node.parent, exp.Interval) and not _INTERVAL.fullmatch(node.this):
        raise RefusedQuery("an INTERVAL is a number and a unit")
    if kind == "Var" and str(node.this).upper() not in _UNITS.split():
        raise RefusedQuery(f"{str(node.this)[:40]!r} cannot stand in a query here")
    if kind == "DataType" and getattr(node.this, "name", "") not in _TYPES.split():
        raise RefusedQuery("a CAST is to a number, a text, bytes, a boolean, a date or a time")


def _check_stars(tree: Any) -> None:
    for star in tree.find_all(exp.Star):
        if not isinstance(star.parent, exp.Count) or star.args.get("except_") or star.args.get("replace"):
            raise RefusedQuery("`*` is a column of its own, or stands in count(*)")


def _words_of(node: Any) -> str:
    """How people know it."""
    if isinstance(node, exp.Anonymous):
        return f"the function {str(node.this)[:60]}"
    if isinstance(node, exp.Func):
        return f"the function {node.sql_name()}"
    return f"{type(node).__name__}"


def _depth(text: str) -> int:
    """At most: quotes are not looked at."""
    now = most = 0
    for each in text:
        now += (each in "([{") - (each in ")]}" and now > 0)
        most = max(most, now)
    return most


def _first_line(problem: BaseException) -> str:
    return (
        str(problem).partition("\n")[0][:200] if not isinstance(problem, RecursionError) else "it is nested too deeply"
    )


# Tables.


def _physical(tree: Any) -> list[Any]:
    """The nodes that stand for tables of the source. Raises RefusedQuery if one of the others stands for nothing."""
    found, seen = [], set()
    for scope in sql_scope.traverse_scope(tree):
        for node, source in scope.selected_sources.values():
            if isinstance(node, exp.Table):
                seen.add(id(node))
                if isinstance(source, exp.Table):
                    found.append(node)
    if any(id(node) not in seen for node in tree.find_all(exp.Table)):
        raise RefusedQuery("a table in the query cannot be resolved; give each its own alias")
    return found


def _rename_ctes(tree: Any, physical: Iterable[int]) -> None:
    """No name of an expression can be that of a table of the server."""
    names: dict[int, str] = {}
    for scope in sql_scope.traverse_scope(tree):
        for node, source in scope.selected_sources.values():
            if not isinstance(node, exp.Table) or isinstance(source, exp.Table):
                continue
            cte = source.expression.find_ancestor(exp.CTE)
            if cte is None or cte.this is not source.expression:
                raise RefusedQuery("a table in the query cannot be resolved")
            fresh = names.setdefault(id(cte), f"{_CTE}{len(names)}")
            node.set("this", exp.to_identifier(fresh, quoted=True))
    for cte in tree.find_all(exp.CTE):
        fresh = names.setdefault(id(cte), f"{_CTE}{len(names)}")
        cte.args["alias"].set("this", exp.to_identifier(fresh, quoted=True))
    for node in tree.find_all(exp.Table):
        if id(node) not in physical and not node.name.startswith(_CTE):
            raise RefusedQuery("a table in the query cannot be resolved")


def _confined(query: ResolvedQuery, node: Any, table: SqlTable) -> Any:
    """The table with nothing but the columns that are read."""
    chosen: list[Any] = []
    for name in query.reads[node.name]:
        column: Any = exp.column(exp.to_identifier(name, quoted=True))
        if name in table.widened:
            column = exp.Add(this=column, expression=exp.Literal.number("0e0"))
        chosen.append(exp.alias_(column, exp.to_identifier(name, quoted=True)))
    chosen = chosen or [exp.alias_(exp.Literal.number(1), exp.to_identifier("coterie_row", quoted=True))]
    parts = [exp.to_identifier(each, quoted=True) for each in table.path]
    whole = exp.Table(**dict(zip(("this", "db", "catalog"), reversed(parts), strict=False)))
    alias = exp.to_identifier(node.alias or node.name, quoted=True)
    return exp.Subquery(this=exp.Select(expressions=chosen).from_(whole), alias=exp.TableAlias(this=alias))


def _text(value: str, dialect: str) -> str:
    """A text as the server reads it in each of its modes."""
    if "\0" in value:
        raise RefusedQuery("a text cannot hold a NUL")
    if dialect == "mysql":
        return f"_utf8mb4 x'{value.encode().hex()}'" if value else "''"
    doubled = value.replace("'", "''")
    return f"'{doubled}'"
