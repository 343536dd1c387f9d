"""Jobs with a partner that speaks BFIA, in both roles, in virtual time: what is sent, what is written, how it ends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from bfia_partner import BfiaInitiator, create_body
from bfia_planes import ORIGIN, Plane, own_job, plane
from job_world import JOB, JOB_PLANE, POD

from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import CROSS_DOMAIN
from coterie.kuscia.bfia import wire
from coterie.kuscia.controllers.kusciajob import controller as kusciajob

# We begin.


async def test_a_job_of_ours_is_created_started_polled_and_succeeds() -> None:
    async with plane("bob") as made:
        world, bob = made.world, made.partners["bob"]
        bob.states["psi"] = "RUNNING"
        await world.client.create(JOB, own_job("j", create_body("j", "alice", "bob", ("psi", "train"))))

        async def polled() -> bool:
            return bob.paths().count("task/poll") >= 2

        await world.until(polled)
        assert bob.paths()[:3] == ["job/create", "job/start", "task/start"]
        (created,) = [asked for path, asked in bob.log if path == "job/create"]
        wanted = create_body("j", "alice", "bob", ("psi", "train"))
        assert created["config"]["task_params"]["host"] == wanted["config"]["task_params"]["host"]
        assert [each["code"] for each in created["dag"]["components"]] == ["engine", "engine"]
        assert (await world.job())["metadata"]["labels"][labels.KUSCIA_INTERCONN_PROTOCOL_TYPE] == "bfia"
        pods = [pod for pod in await world.list(POD, "alice")]
        found = {each["name"]: each["value"] for each in pods[0]["spec"]["containers"][0]["env"] if "value" in each}
        assert found["config.self_role"] == "guest.0"
        assert found["runtime.component.parameter.column"] == "id"
        assert found["config.node_id.host.0"] == "bob"
        bob.states["psi"] = "SUCCESS"
        status = await world.until_phase("Succeeded", seconds=120)
        assert status["stageStatus"]["bob"] == "JobStartStageSucceeded"
        assert bob.paths().count("job/create") == 1
        assert "job/stop" not in bob.paths()
        assert {name for _, name in bob.tasks.values()} == {"psi", "train"}


async def test_every_partner_of_any_task_is_told() -> None:
    """Kuscia tells only the partners of the first task."""
    async with plane("bob", "carol") as made:
        world = made.world
        body = create_body("j", "alice", "bob", ("psi", "train"))
        config = body["config"]
        config["role"]["host"] = ["bob", "carol"]
        given = config["task_params"]["host"]["0"]
        config["task_params"]["host"] = {"0": {"psi": given["psi"]}, "1": {"train": given["train"]}}
        await world.client.create(JOB, own_job("j", body))
        await world.until_phase("Succeeded", seconds=120)
        for name, component in (("bob", "psi"), ("carol", "train")):
            partner = made.partners[name]
            assert partner.paths()[:2] == ["job/create", "job/start"]
            assert [of for _, of in partner.tasks.values()] == [component]


async def test_a_stop_is_sent_to_the_partners() -> None:
    async with plane("bob") as made:
        world, bob = made.world, made.partners["bob"]
        bob.states["psi"] = "RUNNING"
        await world.client.create(JOB, own_job("j", create_body("j", "alice", "bob")))

        async def polled() -> bool:
            return "task/poll" in bob.paths()

        await world.until(polled)
        await world.order("Stop", 5)
        await world.until_phase("Failed")

        async def stopped() -> bool:
            return bob.jobs["j"]["stopped"]

        await world.until(stopped)
        await world.settle(20)
        assert bob.paths().count("job/stop") == 1


async def test_a_refused_job_fails_with_the_partners_words_and_a_failed_part_fails_the_task() -> None:
    async with plane("bob") as made:
        world, bob = made.world, made.partners["bob"]
        bob.refuses["job/create"] = "no such component"
        await world.client.create(JOB, own_job("j", create_body("j", "alice", "bob")))
        status = await world.until_phase("Failed")
        assert "bob could not create the job: no such component" in status["message"]
        del bob.refuses["job/create"]
        bob.states["psi"] = "FAILED"
        await world.client.create(JOB, own_job("k", create_body("k", "alice", "bob")))
        status = await world.until_phase("Failed", "k")
        assert "bob says that its part failed" in status["message"]


async def test_a_lost_answer_is_no_duplicate_and_another_job_of_that_name_is() -> None:
    async with plane("bob") as made:
        world, bob = made.world, made.partners["bob"]
        bob.loses_answers = 1
        await world.client.create(JOB, own_job("j", create_body("j", "alice", "bob")))
        await world.until_phase("Succeeded", seconds=120)
        assert bob.paths().count("job/create") == 2
        bob.jobs["k"] = {"components": set(), "started": False, "stopped": False}
        await world.client.create(JOB, own_job("k", create_body("k", "alice", "bob")))
        status = await world.until_phase("Failed", "k")
        assert "Job already exists" in status["message"]


async def test_a_partner_that_falls_silent_is_lost_after_a_while() -> None:
    async with plane("bob") as made:
        world, bob = made.world, made.partners["bob"]
        bob.states["psi"] = "RUNNING"
        await world.client.create(JOB, own_job("j", create_body("j", "alice", "bob")))

        async def polled() -> bool:
            return "task/poll" in bob.paths()

        await world.until(polled)
        bob.away = True
        await world.settle(60)
        assert (await world.job_status())["phase"] == "Running"
        status = await world.until_phase("Failed", seconds=400)
        assert "bob has not said for" in status["message"]


async def test_what_is_no_bfia_job_is_refused_with_a_reason() -> None:
    async with plane("bob") as made:
        body = own_job("j", create_body("j", "alice", "bob"))
        body["spec"]["tasks"][0]["taskInputConfig"] = "{}"
        await made.world.client.create(JOB, body)
        status = await made.world.until_phase("Failed")
        assert "its input is not that of a BFIA component" in status["message"]
        assert not made.partners["bob"].log


async def test_a_job_that_is_deleted_is_stopped_at_the_partners_first() -> None:
    async with plane("bob") as made:
        world, bob = made.world, made.partners["bob"]
        bob.states["psi"] = "RUNNING"
        await world.client.create(JOB, own_job("j", create_body("j", "alice", "bob")))
        await world.until_phase("Running")
        await world.settle(2)
        await world.client.delete(JOB, "j", CROSS_DOMAIN)

        async def gone() -> bool:
            return not await world.list(JOB, CROSS_DOMAIN)

        await world.until(gone)
        assert bob.jobs["j"]["stopped"]


async def test_suspend_and_restart_are_refused() -> None:
    async with plane("bob") as made:
        world, bob = made.world, made.partners["bob"]
        bob.states["psi"] = "RUNNING"
        await world.client.create(JOB, own_job("j", create_body("j", "alice", "bob")))
        await world.until_phase("Running")
        await world.order("Suspend", 5)

        async def refused() -> bool:
            return (await world.job_status())["stageStatus"]["alice"] == "JobSuspendStageFailed"

        await world.until(refused)
        assert (await world.job_status())["phase"] == "Running"


async def test_partners_of_two_protocols_do_not_go_together() -> None:
    async with plane("bob") as made:
        world = made.world
        await world.add_domain("carol", nodes=0, role="partner")
        body = create_body("j", "alice", "bob")
        body["config"]["role"]["arbiter"] = ["carol"]
        body["config"]["task_params"]["arbiter"] = {"0": {"psi": {}}}
        await world.client.create(JOB, own_job("j", body))
        status = await world.until_phase("Failed")
        assert "one job has partners of one protocol" in status["message"]


# A partner begins.


async def begun(made: Plane, job: str = "j", *components: str) -> BfiaInitiator:
    bob = made.initiator("bob")
    body = create_body(job, "bob", "alice", components or ("psi",))
    assert await bob.post("job/create", body) == {"code": 200, "msg": "success", "data": {"status": "PENDING"}}
    return bob


async def test_a_partners_job_runs_our_part() -> None:
    async with plane("bob") as made:
        world, them = made.world, made.partners["bob"]
        bob = await begun(made)
        assert (await bob.post("job/create", create_body("j", "bob", "alice")))["msg"] == "Job already exists"
        job = await world.job()
        assert (job["spec"]["scheduleMode"], job["spec"]["maxParallelism"]) == ("Strict", 2)
        for _ in range(2):  # again is the same
            assert (await bob.post("job/start", {"job_id": "j"}))["code"] == 200
        them.jobs["j"], them.tasks["t-1"], them.states["psi"] = {"started": True}, ("j", "psi"), "RUNNING"
        start = {"task_id": "t-1", "job_id": "j", "task_name": "psi"}
        for _ in range(2):
            assert (await bob.post("task/start", start))["code"] == 200
        assert (await bob.post("task/poll", {"task_id": "t-1", "role": "host"}))["code"] == 200
        other = await bob.post("task/start", {**start, "task_id": "t-2"})
        assert (other["code"], "has the id t-1 already" in other["msg"]) == (400, True)

        async def ended() -> bool:
            told = await bob.post("task/poll", {"task_id": "t-1", "role": "host"})
            return bool(told["data"]["status"] == "SUCCESS")

        await world.until(ended)
        assert (await world.job_status())["phase"] == "Running", "bob's part still runs"
        assert (await bob.status_all("j"))["data"]["status"] == {"t-1": "RUNNING"}
        them.states["psi"] = "SUCCESS"
        await world.until_phase("Succeeded")
        assert (await bob.status_all("j"))["data"]["status"] == {"t-1": "SUCCESS"}
        assert (await bob.post("job/stop", {"job_id": "j"}))["code"] == 200, "over is over"
        assert (await world.job_status())["phase"] == "Succeeded"


async def test_a_partners_job_waits_for_our_approval() -> None:
    makes = tuple(
        ("kusciajob-controller", _asking) if isinstance(each, tuple) and each[0] == "kusciajob-controller" else each
        for each in JOB_PLANE
    )
    async with plane("bob", makes=makes) as made:
        world, them = made.world, made.partners["bob"]
        bob = await begun(made)
        await world.until_phase("AwaitingApproval")
        assert (await bob.post("job/start", {"job_id": "j"}))["code"] == 200
        start = {"task_id": "t-1", "job_id": "j", "task_name": "psi"}
        assert (await bob.post("task/start", start))["code"] == 200
        await world.settle(20)
        assert (await bob.post("task/poll", {"task_id": "t-1", "role": "host"}))["data"]["status"] == "PENDING"
        assert not await world.tasks()
        them.jobs["j"], them.tasks["t-1"] = {"started": True}, ("j", "psi")
        approved = {"status": {"approveStatus": {"alice": "JobAccepted"}}}
        await world.client.patch_status(JOB, "j", CROSS_DOMAIN, approved)
        await world.until_phase("Succeeded")
        await begun(made, "k")
        await world.until_phase("AwaitingApproval", "k")
        rejected = {"status": {"approveStatus": {"alice": "JobRejected"}}}
        await world.client.patch_status(JOB, "k", CROSS_DOMAIN, rejected)
        await world.until_phase("ApprovalReject", "k")
        late = await bob.post("job/start", {"job_id": "k"})
        assert (late["code"], "ApprovalReject" in late["msg"]) == (400, True)


def _asking(client: Any, informers: Any, **more: Any) -> Any:
    return kusciajob.make(client, informers, requires_approval=True, **more)


async def test_a_partner_stops_its_job() -> None:
    async with plane("bob") as made:
        bob = await begun(made)
        await bob.post("job/start", {"job_id": "j"})
        await made.world.settle(2)
        assert (await bob.post("job/stop", {"job_id": "j"}))["code"] == 200
        await made.world.until_phase("Failed")
        late = await bob.post("job/start", {"job_id": "j"})
        assert (late["code"], "is Failed" in late["msg"]) == (400, True)
        late = await bob.post("task/start", {"task_id": "t", "job_id": "j", "task_name": "psi"})
        assert late["code"] == 400


async def test_a_partner_stops_one_task() -> None:
    async with plane("bob") as made:
        made.world.outcome = lambda pod: ""
        bob = await begun(made)
        await bob.post("job/start", {"job_id": "j"})
        await bob.post("task/start", {"task_id": "t", "job_id": "j", "task_name": "psi"})

        async def there() -> bool:
            return bool(await made.world.tasks())

        await made.world.until(there)
        assert (await bob.post("task/stop", {"task_id": "t"}))["code"] == 200
        await made.world.until_phase("Failed")
        assert (await bob.post("task/poll", {"task_id": "t", "role": ""}))["data"]["status"] == "FAILED"


async def test_an_initiator_that_falls_silent_ends_our_part() -> None:
    async with plane("bob") as made:
        made.world.outcome = lambda pod: ""
        made.partners["bob"].away = True
        bob = await begun(made)
        await bob.post("job/start", {"job_id": "j"})
        await bob.post("task/start", {"task_id": "t", "job_id": "j", "task_name": "psi"})
        await made.world.settle(60)
        assert (await made.world.job_status())["phase"] == "Running"
        status = await made.world.until_phase("Failed", seconds=400)
        assert "bob has not answered for" in status["message"]


async def test_only_the_initiator_commands_and_only_parties_look() -> None:
    async with plane("bob", "carol") as made:
        await begun(made)
        carol = made.initiator("carol")
        for path, body in (
            ("job/start", {"job_id": "j"}),
            ("job/stop", {"job_id": "j"}),
            ("task/start", {"task_id": "t", "job_id": "j", "task_name": "psi"}),
        ):
            assert (await carol.post(path, body))["msg"] == "there is no such job"
        assert (await carol.status_all("j"))["msg"] == (await carol.status_all("none"))["msg"]
        forged = create_body("k", "bob", "alice")
        assert "comes from carol" in (await carol.post("job/create", forged))["msg"]
        spoofed = await carol.post("job/create", create_body("k", "carol", "alice"), **{"x-node-id": "bob"})
        assert "X-Node-Id names bob" in spoofed["msg"]
        for name in ("mallory", ""):
            assert (await made.send(name, "POST", wire.SCHEDULE + "job/stop", {}, b'{"job_id": "j"}'))[0] == 403
        assert (await made.world.job())["metadata"]["labels"][labels.KUSCIA_JOB_STAGE] == "Create"


async def test_what_cannot_be_read_is_told_and_changes_nothing() -> None:
    async with plane("bob") as made:
        bob = made.initiator("bob")
        whole = json.dumps(create_body("j", "bob", "alice")).encode()
        bodies = [b"", b"null", b"[]", b"\xff", b"[" * 5000, *(whole[:cut] for cut in range(0, len(whole), 97))]
        for body in bodies:
            assert (await bob.post("job/create", body))["code"] == 400
        for name in ("", "Upper", "a/b", "x" * 64, "../j"):
            assert (await bob.post("job/create", create_body(name, "bob", "alice")))["code"] == 400
        for task in ("", "Upper", "a/b", "a.b", "session_a", "x" * 214):
            refused = await bob.post("task/start", {"task_id": task, "job_id": "j", "task_name": "psi"})
            assert (refused["code"], "task_id: at most 213" in refused["msg"]) == (400, True), task
        assert "no node of this control plane" in (await bob.post("job/create", create_body("j", "bob", "dave")))["msg"]
        assert (await made.send("bob", "GET", wire.SCHEDULE + "job/stop", {}, b""))[0] == 405
        assert not await made.world.list(JOB, CROSS_DOMAIN)


async def test_requests_that_one_partner_never_ends_hold_up_no_other(tmp_path: Path) -> None:
    async with plane("bob", "carol") as made:
        made.server._socket = tmp_path / "s"
        running = asyncio.ensure_future(made.server.run())
        await made.server.ready.wait()

        async def ask(caller: str, whole: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
            head = (
                f"POST {wire.SCHEDULE}job/stop HTTP/1.1\r\nhost: a\r\n{ORIGIN}: {caller}\r\ncontent-length: 14\r\n\r\n"
            )
            writer.write(head.encode() + b'{"job_id": "j"}'[: 14 if whole else 1])
            return reader, writer

        opened = [await ask("bob", whole=False) for _ in range(40)]
        lines = {asyncio.ensure_future(reader.readline()) for reader, _ in opened}
        refused: set[asyncio.Future[bytes]] = set()
        async with asyncio.timeout(30):
            while len(refused) < 8:
                done, lines = await asyncio.wait(lines, return_when=asyncio.FIRST_COMPLETED)
                refused |= done
        assert {each.result() for each in refused} == {b"HTTP/1.1 429 Too Many Requests\r\n"}
        opened.append(await ask("carol", whole=True))
        async with asyncio.timeout(30):
            assert await opened[-1][0].readline() == b"HTTP/1.1 200 OK\r\n"
        assert len(refused) == 8 and not any(each.done() for each in lines)
        for each in lines:
            each.cancel()
        for _, writer in opened:
            writer.close()
        made.server.stop()
        await running
