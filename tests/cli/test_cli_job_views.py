"""What of a job is drawn at which size: pictures, lines for logs, graphs, timelines. No server."""

from __future__ import annotations

import json
import random
import re
import xml.etree.ElementTree as xml
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec
import pytest

from coterie.base.trace import trace_id
from coterie.cli.jobs import chart, graph
from coterie.cli.jobs.recorded_spans import read_spans, recorded_job
from coterie.cli.jobs.view import changes, list_row, picture
from coterie.cli.live_display import columns, without_escapes
from coterie.cli.terminal_format import TerminalFormat, cut, safe
from coterie.kuscia.api.jobs import timeline
from coterie.kuscia.api.jobs.job_state import JobState, PartyState, TaskState, job_state
from coterie.kuscia.api.jobs.timeline import Moment, PhaseTimes
from coterie.kuscia.api.types.job import KusciaJob, KusciaTask
from coterie.kuscia.api.types.task_resource import TaskResource


def parties(alice: str, bob: str) -> tuple[PartyState, ...]:
    return PartyState("alice", "", alice), PartyState("bob", "guest", bob)


WHY = "party alice: pod x-0: container main exited with 3 (Error)\nx-0 printed at the end:\nno pears"
JOB = JobState(
    "common-customers",
    "Running",
    "alice",
    (
        TaskState("split", "Succeeded", parties("Succeeded", "Succeeded"), progress=1.0, began=100, ended=103),
        TaskState("train-a", "Running", parties("Running", "Pending"), "", ("split",), 0.45, began=104, layer=1),
        TaskState("train-b", "Failed", parties("Failed", "Succeeded"), "", ("split",), 0, WHY, began=104, ended=105, layer=1),
        TaskState("merge", "Waiting", parties("Waiting", "Waiting"), "", ("train-a", "train-b"), layer=2),
    ),
    created=98,
)  # fmt: skip
NOW = 110.0


def test_how_long_is_waited_is_computed_and_not_written() -> None:
    since = "1970-01-01T00:00:50Z"
    words = f"Waiting for the approval of bob (since {since}). Ask bob."
    job = replace(JOB, message=words, waiting_since=since, tasks=())
    assert list_row(job, NOW)[-1] == "Waiting for the approval of bob (for 60s). Ask bob."
    assert "(for 2m50s)" in picture(job, TerminalFormat(width=120), NOW + 110)[1]


def test_a_stalled_task_and_a_later_attempt_are_marked() -> None:
    task = TaskState("a", "Running", parties("Running", "Running"), message="why", stalled=True, failed_attempts=1)
    drawn = "\n".join(picture(replace(JOB, tasks=(task,)), TerminalFormat(width=120), NOW))
    assert "Stalled; attempt 2; why" in drawn


# pictures


@pytest.mark.parametrize(
    ("width", "drawn"),
    [
        (
            120,
            """\
            common-customers  Running  1/4 tasks  ████░░░░░░░░  36%  12s
            ✔    split    Succeeded  ████████████ 100%     3s  alice ✔  bob(guest) ✔
            ├─┐
            ● │  train-a  Running    █████░░░░░░░  45%     6s  alice ●  bob(guest) ◌  ← split
            │ ✘  train-b  Failed                           1s  alice ✘  bob(guest) ✔  ← split
            │ │    party alice: pod x-0: container main exited with 3 (Error)
            ├─┘
            ○    merge    Waiting                              alice ○  bob(guest) ○  ← train-a, train-b
            """,
        ),
        (
            60,
            """\
            common-customers  Running  1/4 tasks  ████░░░░░░░░  36%  12s
            ✔    split    Succeeded     3s  alice ✔  bob(guest) ✔
            ├─┐
            ● │  train-a  Running       6s  alice ●  bob(guest) ◌
            │ ✘  train-b  Failed        1s  alice ✘  bob(guest) ✔
            │ │    party alice: pod x-0: container main exited with 3 (…
            ├─┘
            ○    merge    Waiting           alice ○  bob(guest) ○
            """,
        ),
        (
            40,
            """\
            common-custome…  Running  1/4 tasks  12s
            ✔    split    Succeeded     3s
            │      alice ✔  bob(guest) ✔
            ├─┐
            ● │  train-a  Running       6s
            │ │    alice ●  bob(guest) ◌
            │ ✘  train-b  Failed        1s
            │ │    alice ✘  bob(guest) ✔
            │ │    party alice: pod x-0: container …
            ├─┘
            ○    merge    Waiting
                   alice ○  bob(guest) ○
            """,
        ),
        (
            24,
            """\
            common-cu…  Running  12s
            ✔    split    Succeeded
            │      alice ✔  bob(gue…
            ├─┐
            ● │  train-a  Running
            │ │    alice ●  bob(gue…
            │ ✘  train-b  Failed
            │ │    alice ✘  bob(gue…
            │ │    party alice: pod…
            ├─┘
            ○    merge    Waiting
                   alice ○  bob(gue…
            """,
        ),
    ],
    ids=["roomy", "small", "narrow", "tiny"],
)
def test_the_picture_fits_the_width(width, drawn):
    assert "\n".join(picture(JOB, TerminalFormat(width), NOW)) + "\n" == dedent(drawn)


def test_colours_change_nothing_but_colours():
    for width in (30, 60, 100, 140):
        coloured = picture(JOB, TerminalFormat(width, colour=True), NOW)
        assert [without_escapes(line) for line in coloured] == picture(JOB, TerminalFormat(width), NOW)
    assert "\x1b[31m✘\x1b[0m" in "\n".join(picture(JOB, TerminalFormat(120, colour=True), NOW))


def test_plain_letters_where_there_are_no_others():
    lines = picture(JOB, TerminalFormat(80, letters=False), NOW)
    assert all(line.isascii() for line in lines)
    assert lines[3].startswith("* |  train-a  Running    #####.......  45%")


@pytest.mark.parametrize("height", [1, 2, 3, 5, 9, 30])
def test_a_low_terminal_shows_what_matters_and_counts_the_rest(height):
    party = (PartyState("alice", "", "Succeeded"),)
    done = [TaskState(f"done-{n}", "Succeeded", party, progress=1.0) for n in range(40)]
    working = TaskState("working", "Running", party)
    later = [TaskState(f"later-{n}", "Waiting", party, after=("working",)) for n in range(40)]
    lines = picture(replace(JOB, tasks=(*done, working, *later)), TerminalFormat(80, height), NOW)
    assert len(lines) <= height
    if height >= 3:
        assert "working" in "\n".join(lines)
        hidden = sum(int(number) for number in re.findall(r"(\d+) [SW]", lines[-1]))
        assert hidden + len(lines) - 2 == 81


def test_no_picture_is_wider_than_its_paper():
    rng = random.Random(5)
    phases = ("Succeeded", "Failed", "Running", "Pending", "Waiting", "Not run")
    for _ in range(150):
        aliases = [
            rng.choice(("a", "step", "真理", "a-rather-long-alias-of-a-task")) + str(n)
            for n in range(rng.randint(1, 14))
        ]
        tasks = tuple(
            TaskState(
                alias, rng.choice(phases), tuple(PartyState(f"domain-{p}", "", rng.choice(phases)) for p in range(rng.randint(1, 5))),
                "", tuple(rng.sample(aliases[:n], rng.randint(0, min(n, 3)))), rng.random(), rng.choice(("", "x" * 300, "\x1b[2J")),
                began=rng.choice((None, 3.0)), layer=n,
            )
            for n, alias in enumerate(aliases)
        )  # fmt: skip
        job = JobState(
            "j" * rng.randint(1, 60),
            rng.choice(("Running", "AwaitingApproval")),
            "alice",
            tasks,
            "m" * 200,
            created=1.0,
        )
        paper = TerminalFormat(rng.randint(16, 160), rng.choice((0, 4, 12)), letters=rng.random() < 0.7)
        lines = picture(job, paper, NOW)
        assert max(map(columns, lines)) <= paper.width
        assert not any("\x1b" in line for line in lines)
        assert not paper.height or len(lines) <= paper.height


def test_text_of_others_cannot_steer_the_terminal():
    assert safe("one\x1b[31mtwo\r\nthree") == "one�[31mtwo"
    assert cut("漢字漢字", 5) == "漢字…"


# lines for a log


def test_changes_are_told_once_each():
    begun = replace(
        JOB,
        tasks=(
            replace(JOB.tasks[0], phase="Running", parties=parties("Running", "Pending"), progress=0.1),
            *JOB.tasks[1:],
        ),
    )
    assert changes(begun, begun) == []
    assert changes(begun, JOB) == ["task split is Succeeded (alice Succeeded, bob(guest) Succeeded)"]
    assert changes(None, JOB) == [
        "job common-customers is Running",
        "task split is Succeeded (alice Succeeded, bob(guest) Succeeded)",
        "task train-a is Running (alice Running, bob(guest) Pending)",
        "task train-b is Failed (alice Failed, bob(guest) Succeeded): party alice: pod x-0: container main exited with 3 (Error)",
    ]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"progress": 0.49}, []),
        ({"progress": 0.52}, ["task train-a is 52% done"]),
        ({"parties": parties("Running", "Running")}, ["task train-a: bob(guest) Running"]),
        ({"message": "the way to bob is shut"}, ["task train-a is Running: the way to bob is shut"]),
    ],
    ids=["little", "a-tenth", "party", "message"],
)
def test_changes_within_a_task(change, told):
    after = replace(JOB, tasks=(JOB.tasks[0], replace(JOB.tasks[1], **change), *JOB.tasks[2:]))
    assert changes(JOB, after) == told


def test_a_failure_that_is_tolerated_is_told_as_such():
    tolerated = replace(JOB, tasks=(replace(JOB.tasks[2], tolerable=True, after=()),))
    assert "tolerated; party alice: pod x-0" in "\n".join(picture(tolerated, TerminalFormat(80), NOW))


def test_approvals_and_the_end():
    asked = replace(JOB, phase="AwaitingApproval", message="Waiting for the approval of bob", tasks=())
    answered = replace(asked, approvals=(("bob", "JobAccepted"),))
    assert changes(asked, answered) == ["bob accepted job common-customers"]
    over = replace(JOB, phase="Failed", message="Task train-b failed", tasks=(JOB.tasks[0], replace(JOB.tasks[1], phase="Failed"), *JOB.tasks[2:]))  # fmt: skip
    assert changes(JOB, over)[-1] == "job common-customers is Failed: Task train-b failed"


def test_a_row_of_the_list():
    row = list_row(replace(JOB, message="one\ntwo"), NOW)
    assert row == ("common-customers", "alice", "Running", "1/4", "36%", "12s", "12s", "one")


# graphs


def drawing(*tasks: tuple[str, ...]) -> str:
    states = [TaskState(alias, "Waiting", (), after=after) for alias, *after in tasks]
    out = []
    for row in graph.lanes(states):
        line = row.lanes if row.task is None else f"{row.lanes[: row.at]}{row.task.alias}{row.lanes[row.at + 1 :]}"
        out.append(line)
    return "\n".join(out) + "\n"


@pytest.mark.parametrize(
    ("tasks", "drawn"),
    [
        ([("a",), ("b", "a"), ("c", "b")], "a\nb\nc\n"),
        ([("a",), ("b",), ("c",)], "a\nb\nc\n"),
        ([("a",), ("b",), ("c", "a", "b")], "a\n│ b\n├─┘\nc\n"),
        (
            [("r",), ("a", "r"), ("b", "r"), ("c", "r"), ("x", "a", "c"), ("y", "b"), ("z", "x", "y")],
            "r\n├─┬─┐\na │ │\n│ b │\n│ │ c\n├─┼─┘\nx │\n│ y\n├─┘\nz\n",
        ),
    ],
    ids=["chain", "apart", "join", "crossing"],
)
def test_lanes(tasks, drawn):
    assert drawing(*tasks) == drawn


def test_lanes_of_any_graph_stay_connected():
    """Each task has as many lanes above it as it waits for tasks: none is lost and none is invented."""
    rng = random.Random(3)
    for _ in range(60):
        names = [f"t{n}" for n in range(rng.randint(1, 20))]
        tasks = [
            TaskState(name, "Waiting", (), after=tuple(rng.sample(names[:n], rng.randint(0, min(n, 4)))))
            for n, name in enumerate(names)
        ]
        rows = graph.lanes(tasks)
        assert [row.task for row in rows if row.task is not None] == tasks
        ends = sum(row.lanes.count(sign) for row in rows for sign in "┘┴")
        assert ends == sum(max(0, len(task.after) - 1) for task in tasks)


def test_mermaid():
    odd = replace(JOB.tasks[0], alias='a "b" <c>')
    told = graph.mermaid(replace(JOB, tasks=(odd, replace(JOB.tasks[1], after=(odd.alias,)))))
    assert told.splitlines() == [
        "flowchart TD",
        '  t0["a &quot;b&quot; &lt;c&gt;<br/>alice, bob(guest)<br/>Succeeded"]:::done',
        '  t1["train-a<br/>alice, bob(guest)<br/>Running"]:::running',
        "  t0 --> t1",
        "  classDef done fill:#d3f2d8,stroke:#2f7d3b,color:#123",
        "  classDef running fill:#d5e6fb,stroke:#2457a6,color:#123",
    ]


# timelines


def at(seconds: int) -> str:
    return f"2026-01-02T03:04:{seconds:02d}Z"


def condition(type_: str, seconds: int) -> dict[str, str]:
    return {"type": type_, "status": "True", "lastTransitionTime": at(seconds)}


def a_job(phase: str = "Succeeded", ended: int | None = 30) -> KusciaJob:
    tasks = [
        {"alias": alias, "taskID": f"j-{alias}", "appImage": "e", "taskInputConfig": "", "dependencies": after,
         "parties": [{"domainID": "alice"}, {"domainID": "bob"}]}
        for alias, after in (("one", None), ("two", ["one"]))
    ]  # fmt: skip
    status: dict[str, Any] = {"phase": phase, "conditions": [condition("JobValidated", 1)]}
    if ended is not None:
        status["completionTime"] = at(ended)
    meta = {"name": "j", "uid": "u", "creationTimestamp": at(0)}
    return msgspec.convert(
        {"metadata": meta, "spec": {"initiator": "alice", "tasks": tasks}, "status": status}, KusciaJob
    )


def a_task(alias: str, begin: int, *, phase: str = "Succeeded") -> KusciaTask:
    pod = {"podName": f"j-{alias}-0", "podPhase": phase, "namespace": "alice", "createTime": at(begin + 1),
           "scheduleTime": at(begin + 4), "startTime": at(begin + 4), "readyTime": at(begin + 6)}  # fmt: skip
    conditions = [condition("ResourceCreated", begin + 1), condition("Running", begin + 6)]
    if phase == "Succeeded":
        conditions.append(condition("Success", begin + 12))
    status = {"phase": phase, "podStatuses": {"alice/p": pod}, "conditions": conditions,
              "partyTaskStatus": [{"domainID": "alice", "phase": phase}, {"domainID": "bob", "phase": phase}]}  # fmt: skip
    meta = {
        "name": f"j-{alias}",
        "uid": alias,
        "creationTimestamp": at(begin),
        "labels": {"kuscia.secretflow/job-uid": "u"},
    }
    return msgspec.convert({"metadata": meta, "spec": {"initiator": "a", "taskInputConfig": "", "parties": []}, "status": status}, KusciaTask)  # fmt: skip


def test_where_the_time_went():
    job = a_job()
    line = timeline.timeline(job, timeline.facts(job, [a_task("one", 2), a_task("two", 16)]), 0.0)
    assert "\n".join(chart.bars(line, TerminalFormat(60))) + "\n" == dedent("""\
        j         ca=======================================      30s
          one       pprrrrss=========                            12s
            alice     rrrrss=========                            11s
            bob*      rrrrss=========                            11s
          two                          pprrrrsss========         12s
            alice                        rrrrsss========         11s
            bob*                         rrrrsss========         11s
                  0s                 15s                30s

        c check    the job is checked
        a agree    the parties accept it and create it on their side
        p prepare  ports, services and pods are made
        r reserve  room is reserved at all parties
        s start    the engine is started
        = run      the engine works (a job: its tasks)
        * as the partner reported it

        The longest chain: one -> two.
        30s in all: check 1s (3%), agree 1s (3%), prepare 2s (7%),
        reserve 6s (20%), start 4s (13%), run 12s (40%), between 4s
        (13%)
        Trace id: 015928563002cc4475b0008e1728fdf0
        Objects record whole seconds; `coterie job run --timeline`
        measures while the job runs.
        """)


def test_shares_add_up_to_the_whole():
    job = a_job()
    line = timeline.timeline(job, timeline.facts(job, [a_task("one", 2), a_task("two", 16)]), 0.0)
    told = dict(timeline.shares(line))
    assert told == {"check": 1, "agree": 1, "prepare": 2, "reserve": 6, "start": 4, "run": 12, "between": 4}
    assert sum(told.values()) == line.seconds


def test_what_has_not_ended_goes_on_until_now():
    job = a_job("Running", None)
    begin = timeline.facts(job, [])[Moment("created")]
    assert begin is not None
    line = timeline.timeline(job, timeline.facts(job, [a_task("one", 2, phase="Running")]), begin + 20)
    assert line.seconds == 20
    assert [(span.kind, span.seconds) for span in line.bars[1].spans] == [
        ("prepare", 1),
        ("reserve", 3),
        ("start", 2),
        ("run", 12),
    ]


def event(reason: str, seconds: int, name: str = "j-one-0", type_: str = "Normal", **more: Any) -> dict[str, Any]:
    about = {"kind": "Pod", "namespace": "alice", "name": name}
    return {"involvedObject": about, "type": type_, "reason": reason, "firstTimestamp": at(seconds), **more}


def test_waiting_held_and_pulling_are_told_apart():
    job = a_job()
    marks = {"name": "r", "namespace": "alice", "annotations": {"kuscia.secretflow/task-id": "j-one"}}
    held = {"phase": "Reserved", "conditions": [condition("Reserved", 5)]}
    reservation = msgspec.convert({"metadata": marks, "status": held}, TaskResource)
    events = [event("Pulling", 7), event("Pulled", 8), event("Pulling", 9, "another-0")]
    known = timeline.facts(job, [a_task("one", 2)], reservations=[reservation], events=events)
    (bar,) = [each for each in timeline.timeline(job, known, 0.0).bars if each.label == "alice"]
    # made at 3, held from 5, placed at 6, image from 7 to 8, running at 8, ended at 14
    assert [(each.kind, each.seconds) for each in bar.spans] == [
        ("wait", 2),
        ("reserve", 1),
        ("start", 1),
        ("pull", 1),
        ("run", 6),
    ]
    assert not bar.reported


def test_what_a_partner_reported_is_marked_so():
    job = a_job()
    line = timeline.timeline(job, timeline.facts(job, [a_task("one", 2)]), 0.0)
    assert [(each.label, each.reported) for each in line.bars if each.depth == 2] == [("alice", False), ("bob", True)]
    assert ">bob*<" in chart.svg(line)
    waits = a_task("one", 2, phase="Pending")
    line = timeline.timeline(a_job("Running", None), timeline.facts(job, [waits]), line.begin + 9)
    assert [(each.label, each.reported) for each in line.bars if each.depth == 2] == [("alice", False), ("bob", True)]


def test_sentences_about_waits_stand_below_the_bars():
    job = a_job("Running", None)
    begin = timeline.facts(job, [])[Moment("created")]
    assert begin is not None
    waits = a_task("two", 16, phase="Pending")
    message = "Waiting for room at alice (since …). Free resources.\x1b[2J\nsecond line"
    waits = msgspec.structs.replace(waits, status=msgspec.structs.replace(waits.status, message=message))
    failed = event(
        "FailedScheduling", 4, type_="Warning", message="0/1 nodes: Insufficient cpu", count=7, lastTimestamp=at(9)
    )
    found = timeline.wait_notes(job, [a_task("one", 2), waits], [failed, event("Pulled", 5)], begin + 20)
    assert [(each.about, each.at - begin, each.until - begin, each.count) for each in found] == [
        ("one, alice", 4, 9, 7),
        ("two", 16, 20, 1),
    ]
    line = timeline.timeline(job, timeline.facts(job, [waits]), begin + 20, notes=found)
    shown = chart.bars(line, TerminalFormat(80))
    assert "+4s one, alice (x7): FailedScheduling: 0/1 nodes: Insufficient cpu" in shown
    assert any(text.startswith("+16s two: Waiting for room at alice") for text in shown)
    assert not any("\x1b" in text or "second line" in text for text in shown)


def test_a_stopwatch_keeps_the_first_sight():
    job, watch = a_job(), PhaseTimes()
    watch.note({Moment("created"): None}, 0.0)
    watch.note({Moment("created"): None, Moment("valid"): None}, 0.25)
    watch.note(timeline.facts(job, []), 1.5)
    line = timeline.timeline(job, watch.seen, 1.5, exact=True)
    assert [(span.kind, span.seconds) for span in line.bars[0].spans] == [("check", 0.25), ("agree", 1.25)]
    assert "1.50s in all: check 250ms (17%), agree 1.25s (83%)" in "\n".join(chart.bars(line, TerminalFormat(80)))


def test_a_job_that_never_began_has_a_timeline_too():
    for phase in ("", "initialized", "Failed", "Cancelled"):
        job = a_job(phase, None)
        line = timeline.timeline(job, timeline.facts(job, []), 0.0)
        assert chart.bars(line, TerminalFormat(40))
        xml.fromstring(chart.svg(line))


def test_the_picture_of_a_timeline_is_sound():
    job = a_job()
    drawn = chart.svg(timeline.timeline(job, timeline.facts(job, [a_task("one", 2), a_task("two", 16)]), 0.0))
    root = xml.fromstring(drawn)
    told = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "two: reserve 3s" in told
    width = float(root.attrib["viewBox"].split()[2])
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(rect.attrib["x"]) + float(rect.attrib["width"]) <= width


def test_bars_fit_their_paper():
    job = a_job()
    line = timeline.timeline(job, timeline.facts(job, [a_task("one", 2), a_task("two", 16)]), 0.0)
    for width in (40, 60, 100):
        assert max(columns(without_escapes(text)) for text in chart.bars(line, TerminalFormat(width))) <= width


# states


@pytest.mark.parametrize(
    ("phase", "over", "code"),
    [("Succeeded", True, 0), ("Failed", True, 1), ("Cancelled", True, 3), ("ApprovalReject", True, 3), ("Suspended", False, None)],
)  # fmt: skip
def test_ends_and_exit_statuses(phase, over, code):
    state = job_state(a_job(phase), [])
    assert state.over is over
    assert not over or state.exit_code == code


def test_tasks_that_will_never_run_are_told_apart():
    job = a_job("Running", None)
    failed = msgspec.structs.replace(
        a_task("one", 2), status=msgspec.structs.replace(a_task("one", 2).status, phase="Failed")
    )
    assert [task.phase for task in job_state(job, [failed]).tasks] == ["Failed", "Not run"]
    assert [task.phase for task in job_state(job, []).tasks] == ["Waiting", "Waiting"]
    stranger = msgspec.structs.replace(failed, metadata=msgspec.structs.replace(failed.metadata, labels={}))
    assert [task.phase for task in job_state(job, [stranger]).tasks] == ["Waiting", "Waiting"]


# what a domain recorded


def recorded(name: str, begin: float, end: float, span: str = "", parent: str = "", **marks: str) -> dict[str, Any]:
    created = timeline.facts(a_job(), [])[Moment("created")] or 0.0
    return {
        "traceId": TRACE,
        "spanId": span or name,
        "parentSpanId": parent,
        "name": name,
        "startTimeUnixNano": str(round((created + begin) * 1e9)),
        "endTimeUnixNano": str(round((created + end) * 1e9)),
        "attributes": [
            {"key": key.replace("_", ".", 1), "value": {"stringValue": value}} for key, value in marks.items()
        ],
    }


TRACE = trace_id("alice", "j")


def test_recorded_spans_make_the_timeline_exact_and_show_what_objects_do_not_know(tmp_path):
    one = {"coterie_task": "j-one", "coterie_domain": "alice"}
    party = {**one, "coterie_party": "alice"}
    pod = {**party, "k8s.pod.name": "j-one-0"}
    spans = [
        recorded("job j", 0.25, 30.5),
        recorded("check", 0.25, 1.125),
        recorded("task one", 2.25, 14.5, **one),
        recorded("reserve", 3.25, 5.5, **party),
        recorded("wait for partners", 5.5, 6.25, **party),
        recorded("pod j-one-0", 6.25, 14.25, "p", **pod),
        recorded("image pull", 6.5, 7.5, parent="p"),
        recorded("start", 6.25, 8.5, "s", "p", **pod),
        recorded("run", 8.5, 14.25, "r", "p", **pod),
        recorded("data read", 9.0, 9.5, parent="p", **{**one, "coterie_data": "people"}),
        recorded("calls to j-one-0-x.bob.svc", 10, 12, **one),
        recorded("calls to other", 10, 12, coterie_task="another"),
    ]
    file = tmp_path / "traces.jsonl"
    other = {"resourceSpans": [{"scopeSpans": [{"spans": [{**spans[0], "traceId": "ab" * 16}]}]}]}
    lines = [json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": part}]}]}) for part in (spans[:4], spans[4:])]
    (tmp_path / "traces.jsonl.1").write_text(lines[0] + "\n")
    file.write_text("\n".join((json.dumps(other), lines[1], lines[1][:-40])))
    read = read_spans(file, TRACE)
    assert len(read) == len(spans)
    job = a_job()
    found = recorded_job(job, read)
    assert found.whole
    times = timeline.facts(job, [a_task("one", 2)]) | dict(found.moments)
    line = timeline.timeline(job, times, 0.0, exact=True, details=found.details)
    assert round(line.seconds, 3) == 30.25
    assert [(each.kind, round(each.seconds, 3)) for each in line.bars[0].spans][:2] == [
        ("check", 0.875),
        ("agree", 1.125),
    ]
    drawn = [(bar.label, bar.depth, [(each.kind, round(each.seconds, 3)) for each in bar.spans]) for bar in line.bars]
    assert (
        "alice",
        2,
        [("wait", 2.25), ("reserve", 0.75), ("start", 0.25), ("pull", 1), ("start", 1), ("run", 5.75)],
    ) in drawn
    assert drawn[drawn.index(("read people", 3, [("data", 0.5)])) + 1] == (
        "calls to j-one-0-x.bob.svc",
        3,
        [("call", 2)],
    )
    shown = "\n".join(chart.bars(line, TerminalFormat(80)))
    assert "read people" in shown and "500ms" in shown and "calls to other" not in shown


def test_a_domain_that_recorded_nothing():
    assert read_spans(Path("/nowhere/traces.jsonl"), TRACE) == []
    assert recorded_job(a_job(), []) == ({}, {}, False)
