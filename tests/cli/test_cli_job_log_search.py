"""`coterie job logs` with a query."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

import pytest
from job_plane import a_job, a_task

from coterie.cli.app import App
from coterie.cli.jobs.log_search import Followed, collect, json_of, label_of, text_of
from coterie.cli.main import main
from coterie.kube.api.errors import Forbidden
from coterie.kube.client.fake import FakeTransport, json_reply
from coterie.kube.client.transport import TransportRequest, TransportResponse
from coterie.kuscia.api.log_query import LogLine, LogPage, LogQuery


def line(second: int, text: str = "", **more: str) -> LogLine:
    at = f"2026-01-02T03:{second // 60:02d}:{second % 60:02d}.000000000Z"
    return replace(LogLine(at, "engine", "alice", "j-1", "j-1-0", text or f"line {second}"), **more)


class Pages:
    def __init__(self, *pages: LogPage) -> None:
        self.pages = list(pages)
        self.asked: list[LogQuery] = []

    async def query(self, query: LogQuery) -> LogPage:
        self.asked.append(query)
        return self.pages.pop(0)


def collected(pages: Pages, most: int) -> tuple[list[LogLine], bool, list[str]]:
    notes: list[str] = []
    lines, more = asyncio.run(collect(pages, LogQuery("j"), most, notes.append))
    return lines, more, notes


def test_pages_are_put_in_order_and_notes_are_given_once() -> None:
    pages = Pages(LogPage((line(3), line(4)), "c", ("n",)), LogPage((), "d", ("n",)), LogPage((line(1), line(2))))
    lines, more, notes = collected(pages, 0)
    assert [each.text for each in lines] == ["line 1", "line 2", "line 3", "line 4"]
    assert (more, notes) == (False, ["n"])
    assert [each.cursor for each in pages.asked] == ["", "c", "d"]


def test_it_ends_when_there_are_enough() -> None:
    lines, more, _ = collected(Pages(LogPage((line(2), line(3), line(4)), "c")), 2)
    assert ([each.text for each in lines], more) == (["line 3", "line 4"], True)


def test_following_gives_late_lines_and_none_twice() -> None:
    followed = Followed(LogQuery("j"))
    assert len(followed.fresh([line(100), line(101)])) == 2
    late, newer = line(95, "late"), line(102)
    assert followed.fresh([late, line(100), line(101), newer]) == [late, newer]
    since = followed.next_query().since
    assert since is not None and since.second == 27, "15 s before the newest"
    assert followed.fresh([line(100), newer]) == []


def test_what_an_engine_prints_cannot_control_a_terminal() -> None:
    evil = line(1, "\x1b]0;owned\x07\x1b[2Jhidden\r\x9b31m")
    assert text_of(evil, terminal=True) == ["\\x1b]0;owned\\x07\\x1b[2Jhidden\\x0d\\x9b31m"]
    assert text_of(evil, terminal=False) == [evil.text]
    assert json_of(evil, terminal=True).isascii()
    assert "\x1b" not in json_of(evil, terminal=True)


def test_labels() -> None:
    assert label_of(line(1), {"j-1": "psi"}) == "alice/psi/0"
    assert label_of(line(1, source="gateway"), {"j-1": "psi"}) == "alice/psi/gateway"
    assert label_of(line(1, source="controller", party="", task=""), {}) == "-/-/controller"


# The command.


class Server:
    def __init__(self, phase: str = "Succeeded") -> None:
        made: dict[str, Any] = a_job("j", {**a_task("only"), "taskID": "j-1"})
        made["metadata"] |= {"uid": "u", "resourceVersion": "5"}
        self.job = {**made, "status": {"phase": phase}}
        self.asked: dict[str, dict[str, list[str]]] = {}
        self.transport = FakeTransport(self.answer)

    def answer(self, call: TransportRequest) -> TransportResponse:
        if call.path.endswith("/pods/%2A/log") or call.path.endswith("/pods/*/log"):
            namespace = call.path.split("/")[4]
            self.asked[namespace] = parse_qs(call.query)
            if namespace == "cross-domain":
                raise Forbidden("no")
            found = {"at": "2026-01-02T03:04:05.000000000Z", "source": "engine", "party": namespace, "task": "j-1",
                     "pod": "j-1-0", "text": f"from {namespace} \x1b[2J"}  # fmt: skip
            return json_reply({"lines": [found], "cursor": "", "notes": []})
        if call.path.endswith("/kusciajobs/j"):
            return json_reply(self.job)
        return json_reply({"metadata": {"resourceVersion": "5"}, "items": []})


def test_a_query_is_sent_as_it_was_written(fake) -> None:
    server = Server()
    chosen = ("--grep", "a|b", "--source", "gateway", "--source", "engine", "--task", "only", "--tail", "5")
    told = fake(server.transport)("job", "logs", "j", "--since", "2026-01-01T00:00:00Z", *chosen)
    assert told.lines == ["alice/only/0 | from alice \x1b[2J", "bob/only/0 | from bob \x1b[2J"], told.err
    assert server.asked["alice"] == {
        "job": ["j"], "task": ["j-1"], "since": ["2026-01-01T00:00:00.000000Z"], "grep": ["a|b"],
        "source": ["engine,gateway"], "limit": ["5"],
    }  # fmt: skip


def test_one_party_and_all_sources(fake) -> None:
    server = Server()
    told = fake(server.transport)("job", "logs", "j", "--source", "all", "-o", "json")
    assert [json.loads(each)["party"] for each in told.lines] == ["alice", "bob"]
    assert set(server.asked) == {"alice", "bob", "cross-domain"}
    assert server.asked["alice"]["tasks"] == ["j-1"]
    server.asked.clear()
    fake(server.transport)("job", "logs", "j", "--source", "all", "--party", "bob")
    assert set(server.asked) == {"bob"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("environ", [{}, {"NO_COLOR": "1"}])
def test_on_a_terminal_parties_have_colours_and_sequences_do_nothing(fake, environ: dict[str, str]) -> None:
    runner, out = fake(Server().transport), Terminal()
    app = App(out, Terminal(), {**runner.environ, **environ}, connect=lambda _: runner.transport)
    assert main(["job", "logs", "j", "--limit", "5"], app) == 0
    begin, end = ("\x1b[36m", "\x1b[0m") if not environ else ("", "")
    assert out.getvalue().splitlines()[0] == f"{begin}alice/only/0 | {end}from alice \\x1b[2J"


def test_following_ends_with_the_job(fake) -> None:
    told = fake(Server().transport)("job", "logs", "j", "--grep", "from", "-f")
    assert len(told.lines) == 2
