"""`coterie get`: lists and single objects as tables, JSON, YAML or names, once or as they change."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from coterie.cli import arguments as options
from coterie.cli import resource_arguments
from coterie.cli import session as sessions
from coterie.cli.app import App, UsageError
from coterie.cli.error_messages import refusal
from coterie.cli.listing import JSON, TABLE, ListQuery, as_table, changes, fetch
from coterie.cli.output import as_list, as_text, without_managed_fields
from coterie.cli.resource_arguments import ResourceArgument, kind_name
from coterie.cli.session import CliSession
from coterie.cli.tables import render_table
from coterie.kube.api.errors import Gone, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.apiserver.tables.jsonpath import Path, PathError, compile_path

HELP = """
List objects, one line each. A type can be a plural (`pods`), a short name (`po`, `svc`, `kj`), a name with its group
(`deployments.apps`) or a category (`all`). `coterie api-resources` lists the types.

Examples:
  coterie get pods                             # pods in the namespace of the context
  coterie get pods -A -o wide                  # in all namespaces, with more columns
  coterie get kj -n cross-domain               # Kuscia jobs
  coterie get domains alice -o yaml            # one object as it is stored
  coterie get deploy/web svc/web               # single objects of several types
  coterie get pods,services -l app=web         # several types, selected by label
  coterie get kt -A -w                         # tasks of all jobs, and every change to them
  coterie get events --sort-by .lastTimestamp
"""


def arguments(parser: options.Parser) -> None:
    options.words_argument(parser)
    options.namespace_option(parser)
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="in all namespaces")
    options.selector_options(parser)
    options.output_option(parser)
    parser.add_argument("-w", "--watch", action="store_true", help="watch for changes after listing")
    parser.add_argument("--sort-by", metavar="PATH", default="", help="sort by this field, e.g. .metadata.name")
    parser.add_argument("--show-labels", action="store_true", help="show labels as the last column")
    parser.add_argument(
        "-L",
        "--label-columns",
        metavar="KEYS",
        action="append",
        default=[],
        help="show these labels as columns, e.g. app,tier",
    )
    parser.add_argument("--no-headers", action="store_true", help="omit the header line")
    parser.add_argument("--show-managed-fields", action="store_true", help="include managedFields in json and yaml")
    parser.add_argument("--ignore-not-found", action="store_true", help="do not fail if an object does not exist")
    options.connection_options(parser)
    parser.complete(words="objects")


def run(args: argparse.Namespace, app: App) -> int:
    order = _sort_path(args.sort_by)
    return sessions.run(args, app, lambda session: _get(session, args, order))


def _sort_path(text: str) -> Path | None:
    if not text:
        return None
    try:
        return compile_path(text)
    except PathError as error:
        raise UsageError(f"--sort-by: {error}") from error


async def _get(session: CliSession, args: argparse.Namespace, order: Path | None) -> int:
    wanted = resource_arguments.parse(args.words, await session.catalogue(), "get")
    if any(target.names for target in wanted):
        if args.selector or args.field_selector:
            raise UsageError("names and selectors cannot be used together; leave one of them out")
        if args.all_namespaces:
            raise UsageError("an object with a name lives in one namespace; use -n instead of -A")
    if args.watch and (len(wanted) > 1 or len(wanted[0].names) > 1):
        raise UsageError("--watch follows one type, or one object, at a time")
    getter = _Getter(session, args, order, qualified=len(wanted) > 1)
    if args.watch:
        return await getter.watch(wanted[0])
    if args.output in ("table", "wide"):
        return await getter.tables(wanted)
    return await getter.objects(wanted)


class _Getter:
    def __init__(self, session: CliSession, args: argparse.Namespace, order: Path | None, *, qualified: bool) -> None:
        self.session = session
        self.args = args
        self.order = order
        self.qualified = qualified
        self.labels = [key for listed in args.label_columns for key in listed.split(",") if key]
        self.failed = 0

    def questions(self, target: ResourceArgument) -> list[ListQuery]:
        args = self.args
        namespace = self.session.place(target.resource, args.all_namespaces)
        question = ListQuery(
            target.resource, namespace, "", args.selector, args.field_selector, whole_rows=self.order is not None
        )
        if not target.names:
            return [question]
        return [ListQuery(target.resource, namespace, name, whole_rows=question.whole_rows) for name in target.names]

    async def answer(self, question: ListQuery, accept: str) -> Object | None:
        """None when there is no such object, which has then been told."""
        try:
            return await fetch(self.session.client, question, accept)
        except NotFound as error:
            if not question.name:
                raise
            if not self.args.ignore_not_found:
                self.session.app.warn(refusal(error))
                self.failed = 1
            return None

    # Tables.

    async def tables(self, wanted: Sequence[ResourceArgument]) -> int:
        printed = 0
        for target in wanted:
            table: Object = {}
            for question in self.questions(target):
                answer = await self.answer(question, TABLE)
                if answer is not None:
                    part = as_table(answer, time.time())
                    table = {**part, "rows": [*table.get("rows", ()), *(part.get("rows") or ())]}
            if table.get("rows"):
                self.session.app.write(("\n" if printed else "") + self.text(target, self.sorted(table)))
                printed += 1
        if not printed and not self.failed and not self.args.ignore_not_found:
            self.session.app.warn(self.nothing(wanted))
        return self.failed

    def text(
        self, target: ResourceArgument, table: Object, widths: list[int] | None = None, headers: bool = True
    ) -> str:
        args = self.args
        return render_table(
            table,
            wide=args.output == "wide",
            no_headers=args.no_headers or not headers,
            colour=self.session.app.colour,
            kind=target.kind if self.qualified else "",
            namespaces=args.all_namespaces and target.resource.namespaced,
            show_labels=args.show_labels,
            label_columns=self.labels,
            widths=widths,
        )

    def sorted(self, table: Object) -> Object:
        order = self.order
        if order is None:
            return table
        return {**table, "rows": sorted(table["rows"], key=lambda row: _rank(order(row.get("object") or {})))}

    def nothing(self, wanted: Sequence[ResourceArgument]) -> str:
        if self.args.all_namespaces or not any(target.resource.namespaced for target in wanted):
            return "No resources found"
        return f"No resources found in {self.session.namespace} namespace."

    # Whole objects.

    async def objects(self, wanted: Sequence[ResourceArgument]) -> int:
        objects: list[Object] = []
        for target in wanted:
            for question in self.questions(target):
                answer = await self.answer(question, JSON)
                if answer is not None:
                    objects += [answer] if question.name else answer.get("items") or []
        order = self.order
        if order is not None:
            objects.sort(key=lambda obj: _rank(order(obj)))
        single = len(wanted) == 1 and len(wanted[0].names) == 1
        if self.args.output == "name":
            self.names(objects, wanted)
        elif single and objects:
            self.whole(objects[0])
        elif not single or not (self.failed or self.args.ignore_not_found):
            managed = self.args.show_managed_fields
            listed = as_list([without_managed_fields(obj, managed=managed) for obj in objects])
            self.session.app.write(as_text(listed, self.args.output))
        return self.failed

    def whole(self, obj: Object) -> None:
        self.session.app.write(
            as_text(without_managed_fields(obj, managed=self.args.show_managed_fields), self.args.output)
        )

    def names(self, objects: Sequence[Object], wanted: Sequence[ResourceArgument]) -> None:
        kinds = {(t.resource.api_version, t.resource.kind): t.kind for t in wanted}
        for obj in objects:
            kind = kinds.get((obj["apiVersion"], obj["kind"])) or obj["kind"].lower()
            self.session.app.say(f"{kind}/{obj['metadata']['name']}")

    # Changes.

    async def watch(self, target: ResourceArgument) -> int:
        tabular = self.args.output in ("table", "wide")
        widths: list[int] = []
        headers = True
        while True:
            (question,) = self.questions(target)
            answer = await self.answer(question, TABLE if tabular else JSON)
            if answer is None:
                return self.failed
            version = str(answer["metadata"].get("resourceVersion") or "")
            if tabular:
                table = self.sorted(as_table(answer, time.time()))
                columns = table["columnDefinitions"]
                if table.get("rows"):
                    self.session.app.write(self.text(target, table, widths, headers))
                    headers = False
            else:
                for obj in answer["items"] if not question.name else [answer]:
                    self.change(target, obj)
            try:
                async for _, obj in changes(self.session.client, question, TABLE if tabular else JSON, version):
                    if not tabular:
                        self.change(target, obj)
                        continue
                    # Only the first event of a watch says what the columns are.
                    table = as_table(obj, time.time())
                    columns = table.get("columnDefinitions") or columns
                    self.session.app.write(self.text(target, {**table, "columnDefinitions": columns}, widths, headers))
                    headers = False
            except Gone:
                self.session.app.warn("The watch fell too far behind what the server remembers; listing again.")

    def change(self, target: ResourceArgument, obj: Object) -> None:
        if self.args.output == "name":
            self.session.app.say(f"{kind_name(target.resource)}/{obj['metadata']['name']}")
        else:
            self.session.app.write("---\n" if self.args.output == "yaml" else "")
            self.whole(obj)


def _rank(found: Sequence[Any]) -> tuple[int, Any]:
    """Something to sort by, whatever stands there: missing, then numbers, then texts."""
    if not found or found[0] is None:
        return 0, 0
    value = found[0]
    if isinstance(value, (bool, int, float)):
        return 1, value
    return 2, str(value)
