"""Which columns a query reads, and what is refused: the rule alone, no server."""

from __future__ import annotations

import re

import pytest

from coterie.kuscia.sources.protocol import SqlTable
from coterie.kuscia.sources.sql_queries import RefusedQuery, parse_query, resolve, statement

TABLES = {
    "people": ("id", "age", "name", "salary"),
    "visits": ("id", "day", "cost"),
    'odd"; drop table people; --': ("id",),
    "a.b": ("id",),
    "Mixed": ("Id",),
    "back`tick": ("id",),
}


def reads(text: str, dialect: str = "postgres") -> dict[str, tuple[str, ...]]:
    query = parse_query(text, dialect)
    assert set(query.tables) <= set(TABLES), query.tables
    return {name: tuple(sorted(found)) for name, found in resolve(query, TABLES).reads.items()}


def made(text: str, dialect: str = "postgres") -> str:
    query = resolve(parse_query(text, dialect), TABLES)
    return statement(query, {name: SqlTable(("main", name), TABLES[name]) for name in query.reads})


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("SELECT id FROM people", "id"),
        ("SELECT * FROM people", "age id name salary"),
        ("SELECT p.* FROM people AS p", "age id name salary"),
        ("SELECT count(*) FROM people", ""),
        ("SELECT id FROM people WHERE salary > 3", "id salary"),
        ("SELECT id FROM people ORDER BY salary", "id salary"),
        ("SELECT count(*) FROM people GROUP BY age HAVING max(salary) > 1", "age salary"),
        ("SELECT a.id FROM people a JOIN people b ON a.age = b.salary", "age id salary"),
        ("SELECT id, rank() OVER (PARTITION BY age ORDER BY salary) FROM people", "age id salary"),
        ("SELECT sum(age) FILTER (WHERE salary > 1) FROM people", "age salary"),
        ("SELECT id FROM people WHERE age > (SELECT avg(salary) FROM people)", "age id salary"),
        ("SELECT x FROM (SELECT id AS x, name AS y FROM people) q", "id name"),
        ("SELECT 1 FROM people p WHERE EXISTS (SELECT 1 FROM people q WHERE q.name = p.salary)", "name salary"),
        ("WITH people AS (SELECT id FROM people) SELECT * FROM people", "id"),
        ("WITH q AS (SELECT * FROM people) SELECT id FROM q", "age id name salary"),
        ("SELECT id FROM people UNION ALL SELECT salary FROM people", "id salary"),
        ("SELECT CASE WHEN salary > 1 THEN 1 ELSE 0 END FROM people", "salary"),
        ("SELECT DISTINCT ON (age) id FROM people ORDER BY age, salary", "age id salary"),
        ("SELECT id AS salary FROM people ORDER BY salary", "id"),
        ("SELECT ID FROM People", "id"),
        ("TABLE people", "age id name salary"),
    ],
)
def test_every_column_that_is_read_counts(text: str, columns: str) -> None:
    assert reads(text) == {"people": tuple(columns.split())}


def test_columns_of_joined_tables() -> None:
    assert reads("SELECT day FROM people JOIN visits USING (id) WHERE cost > age") == {
        "people": ("age", "id"),
        "visits": ("cost", "day", "id"),
    }
    assert reads("SELECT name FROM people WHERE id IN (SELECT id FROM visits ORDER BY cost)") == {
        "people": ("id", "name"),
        "visits": ("cost", "id"),
    }


REFUSED = [
    # no single SELECT
    "SELECT id FROM people; DROP TABLE people",
    "SELECT id FROM people; SELECT id FROM people",
    "DROP TABLE people",
    "INSERT INTO people VALUES (1)",
    "UPDATE people SET id = 1",
    "DELETE FROM people",
    "COPY people TO '/tmp/x'",
    "COPY people TO PROGRAM 'id'",
    "WITH x AS (DELETE FROM people RETURNING id) SELECT * FROM x",
    "SELECT id INTO other FROM people",
    "SELECT id FROM people FOR UPDATE",
    "EXPLAIN ANALYZE SELECT id FROM people",
    "SET search_path = x",
    "VALUES (1)",
    "CALL x()",
    "",
    ";",
    "--",
    # no table, or tables that are not the source's
    "SELECT 1",
    "SELECT id FROM public.people",
    "SELECT id FROM main.people",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM pg_catalog.pg_authid",
    # rows from elsewhere
    "SELECT * FROM people, generate_series(1, 10)",
    "SELECT generate_series(1, 1000000000) FROM people",
    "SELECT * FROM people, LATERAL (SELECT 1) x",
    "SELECT * FROM people, unnest(ARRAY[1]) x",
    "SELECT * FROM people, pg_ls_dir('/') x",
    "SELECT * FROM ROWS FROM (pg_ls_dir('/')) x, people",
    "SELECT * FROM people TABLESAMPLE SYSTEM (1)",
    "SELECT * FROM people, (VALUES (1)) v",
    "SELECT * FROM ONLY people",
    "SELECT * FROM json_to_recordset('[]') AS x(a int), people",
    "SELECT * FROM xmltable('/' PASSING '<a/>' COLUMNS a int), people",
    "WITH RECURSIVE r AS (SELECT 1 AS n FROM people UNION ALL SELECT n + 1 FROM r) SELECT n FROM r",
    # functions that do things, tell things or cost without bound
    "SELECT pg_sleep(100) FROM people",
    "SELECT pg_read_file('/etc/passwd') FROM people",
    "SELECT lo_import('/etc/passwd') FROM people",
    "SELECT dblink('host=x', 'select 1') FROM people",
    "SELECT query_to_xml('select * from secrets', true, true, '') FROM people",
    "SELECT set_config('search_path', 'x', false) FROM people",
    "SELECT current_setting('data_directory') FROM people",
    "SELECT current_user FROM people",
    "SELECT version() FROM people",
    "SELECT repeat('x', 1000000000) FROM people",
    "SELECT nextval('s') FROM people",
    "SELECT pg_catalog.pg_sleep(1) FROM people",
    "SELECT public.own(id) FROM people",
    "SELECT string_agg(name, '') FROM people",
    "SELECT 'pg_authid'::regclass FROM people",
    "SELECT CAST('x' AS pg_catalog.regclass) FROM people",
    "SELECT name || name || name || name || name || name || name || name || name || name FROM people",
    # columns that cannot be known
    "SELECT people FROM people",
    "SELECT p FROM people p",
    "SELECT (p).salary FROM people p",
    "SELECT row_to_json(p) FROM people p",
    "SELECT count(people.*) FROM people",
    "SELECT xmin FROM people",
    "SELECT ctid, tableoid FROM people",
    "SELECT nothing FROM people",
    "SELECT id FROM people a, people b",
    "SELECT * FROM people NATURAL JOIN visits",
    "SELECT b FROM people AS p(a, b)",
    "SELECT id FROM (people JOIN visits ON true)",
    "SELECT id FROM people LIMIT $1",
    "SELECT id FROM people WHERE name ~ '(a+)+$'",
    "SELECT " + "(" * 60 + "id" + ")" * 60 + " FROM people",
    "SELECT id FROM people WHERE " + " OR ".join(["id = 1"] * 2000),
    "SELECT '" + "x" * 20000 + "' FROM people",
]


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:60])
def test_what_is_refused(text: str) -> None:
    with pytest.raises(RefusedQuery):
        made(text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT load_file('/etc/passwd') FROM people",
        "SELECT sleep(100) FROM people",
        "SELECT benchmark(1000000000, md5('x')) FROM people",
        "SELECT get_lock('x', 10) FROM people",
        "SELECT id FROM people INTO OUTFILE '/tmp/x'",
        "SELECT id INTO @x FROM people",
        "SELECT id INTO DUMPFILE '/tmp/x' FROM people",
        "SELECT @@datadir FROM people",
        "SELECT @x := id FROM people",
        "SELECT /*+ SET_VAR(max_execution_time=0) */ id FROM people",
        "SELECT SQL_CALC_FOUND_ROWS id FROM people",
        "SELECT id FROM people PROCEDURE ANALYSE()",
        "SELECT id FROM people LOCK IN SHARE MODE",
        "SELECT user FROM mysql.user",
        "SELECT updatexml(1, name, 1) FROM people",
        "SELECT name COLLATE utf8mb4_bin FROM people",
        "HANDLER people OPEN",
        "SELECT id FROM people UNION SELECT 1 INTO OUTFILE 'x'",
    ],
)
def test_what_is_refused_of_mysql(text: str) -> None:
    with pytest.raises(RefusedQuery):
        made(text, "mysql")


def test_a_table_is_nothing_but_the_columns_that_are_read() -> None:
    assert made("SELECT p.id FROM people p WHERE p.age > 3") == (
        'SELECT "p"."id" AS "id" FROM (SELECT "id" AS "id", "age" AS "age" FROM "main"."people") AS "p" WHERE "p"."age" > 3'
    )
    assert '(SELECT 1 AS "coterie_row" FROM "main"."people")' in made("SELECT count(*) FROM people")


def test_names_of_expressions_are_never_those_of_tables() -> None:
    text = "WITH pg_authid AS (SELECT id FROM people) SELECT * FROM pg_authid JOIN (WITH pg_class AS (SELECT 1 AS n FROM visits) SELECT n FROM pg_class) q ON true"
    out = made(text)
    assert 'FROM "coterie_cte_' in out and 'FROM "pg_' not in out
    # Outside of the query that it belongs to, the name is a table of the source again.
    assert (
        "pg_class"
        in parse_query(
            "SELECT * FROM pg_class, (WITH pg_class AS (SELECT id FROM people) SELECT id FROM pg_class) q", "postgres"
        ).tables
    )


@pytest.mark.parametrize(
    ("text", "dialect", "table"),
    [
        ('SELECT id FROM "odd""; drop table people; --"', "postgres", '"main"."odd""; drop table people; --"'),
        ('SELECT id FROM "a.b"', "postgres", '"main"."a.b"'),
        ('SELECT "Id" FROM "Mixed"', "postgres", '"main"."Mixed"'),
        ("SELECT id FROM `back``tick`", "mysql", "`main`.`back``tick`"),
    ],
)
def test_odd_names(text: str, dialect: str, table: str) -> None:
    assert f"FROM {table})" in made(text, dialect)


@pytest.mark.parametrize("start", ["'(a+)+$'", "name", "'a' || name", "2"])
def test_a_part_of_a_text_begins_at_a_number(start: str) -> None:
    """In PostgreSQL a text in its place is a regular expression, which may run for minutes."""
    out = made(f"SELECT substring(name FROM {start}) FROM people")
    assert re.search(r'SUBSTRING\("people"."name" FROM CAST\(.* AS INT\)\)', out), out
    assert "CAST" not in made("SELECT substring(name, 2) FROM people", "mysql")


def test_comments_are_left_out() -> None:
    for text in (
        "SELECT id /*!50000 , salary */ FROM people",
        "SELECT id /*M! , salary */ FROM people -- x\n",
        "SELECT id # , salary\n FROM people",
    ):
        assert reads(text, "mysql") == {"people": ("id",)}
        assert "salary" not in made(text, "mysql")


@pytest.mark.parametrize("text", ["it's", "x\\", "\\' OR 1=1 -- ", "日本\n", '"'])
def test_texts_end_where_they_ended(text: str) -> None:
    quoted = "'" + text.replace("'", "''") + "'"
    assert f'"name" = {quoted}' in made(f"SELECT id FROM people WHERE name = {quoted}")
    escaped = "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    assert f"`name` = _utf8mb4 x'{text.encode().hex()}'" in made(
        f"SELECT id FROM people WHERE name = {escaped}", "mysql"
    )
