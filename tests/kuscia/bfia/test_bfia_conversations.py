"""Conversations that a real node had with a partner of another vendor (`make bfia-conversations` records them), held again in virtual time: what was
asked and answered then must be asked and answered now, to the letter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bfia_planes import Plane, own_job, plane
from job_world import JOB

HERE = Path(__file__).parent
PREFIX = "/v1/interconn/schedule/"
Exchange = dict[str, Any]
MODES = {"fail": "Failed", "wait": ""}
"""What becomes of our engines, by their parameter."""


def read(name: str) -> list[Exchange]:
    found = [json.loads(line) for line in (HERE / name).read_text().splitlines()]
    assert len(found) > 20
    return found


def job_of(said: Exchange) -> str:
    return str(said["body"].get("job_id") or said["target"].partition("job_id=")[2])


def outcome(pod: Any) -> str:
    env = {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}
    return MODES.get(env.get("runtime.component.parameter.mode", ""), "Succeeded")


OF_ALICE, OF_THE_PARTNER = read("of_alice.jsonl"), read("of_the_partner.jsonl")
OWN_JOBS = [job_of(each) for each in OF_ALICE if each["target"] == PREFIX + "job/create"]


@pytest.mark.parametrize("job", OWN_JOBS)
async def test_what_we_ask_a_partner(job: str) -> None:
    said = [each for each in OF_ALICE if each["to"] == "bank" and each["method"] == "POST"]
    said = [each for each in said if job_of(each) == job or str(each["body"].get("task_id", "")).startswith(f"{job}-")]
    (created,) = [each["body"] for each in said if each["target"] == PREFIX + "job/create"]
    async with plane("bank") as made:
        world, bank = made.world, made.partners["bank"]
        world.outcome = outcome
        polls = [each for each in said if each["target"] == PREFIX + "task/poll"]
        for each in polls:
            component = each["body"]["task_id"].removeprefix(f"{job}-")
            bank.states[component] = each["answer"]["data"]["status"]
        await world.client.create(JOB, own_job(job, created))
        asked = [each for each in said if each not in polls]

        async def all_asked() -> bool:
            return len(without_polls(bank.log)) >= len(asked)

        if any(each["target"] == PREFIX + "job/stop" for each in asked) and job == "a-stop":

            async def polled() -> bool:
                return "task/poll" in bank.paths()

            await world.until(polled)
            await world.order("Stop", 5, name=job)
        await world.until(all_asked, seconds=120)
        await world.settle(20)
        ids = {task: f"{job}-{component}" for task, (_, component) in bank.tasks.items()}
        mine = json.loads(renamed(json.dumps(without_polls(bank.log)), ids))
        assert in_order(mine) == in_order([[each["target"].removeprefix(PREFIX), each["body"]] for each in asked])


def without_polls(log: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return [each for each in log if each[0] != "task/poll"]


def in_order(asked: list[Any]) -> list[Any]:
    """The stop of a task and of its job are two conversations: whichever comes first."""
    return [each for each in asked if "stop" not in each[0]] + sorted(each for each in asked if "stop" in each[0])


def renamed(text: str, names: dict[str, str]) -> str:
    for old, new in names.items():
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("job", ["b-echo", "b-fails", "b-stop", "b-task"])
async def test_what_we_answer_a_partner(job: str) -> None:
    said = [each for each in OF_THE_PARTNER if job in json.dumps([each["body"], each["target"]])]
    assert len(said) > 3
    async with plane("bank") as made:
        made.world.outcome = outcome
        bank = made.partners["bank"]
        bank.jobs[job] = {"components": set(), "started": True, "stopped": False}
        for each in said:
            if each["target"] == PREFIX + "task/start" and each["answer"]["code"] == 200:
                bank.tasks[each["body"]["task_id"]] = (job, each["body"]["task_name"])
                bank.states[each["body"]["task_name"]] = "SUCCESS"
            await same(made, each)
            await made.world.settle(2)


async def same(made: Plane, said: Exchange) -> None:
    """Where it is about a state, it comes to that; all else is said at once."""
    body = json.dumps(said["body"]).encode() if said["method"] == "POST" else b""

    async def answer() -> Any:
        status, content = await made.send("bank", said["method"], said["target"], {"x-node-id": "bank"}, body)
        assert status == 200
        return json.loads(content)

    async def it_is() -> bool:
        return bool(await answer() == said["answer"])

    if "poll" in said["target"] or "status_all" in said["target"]:
        if said["answer"]["data"].get("status") in ("PENDING", "RUNNING"):
            return  # it may be over already
        await made.world.until(it_is)
    else:
        assert await answer() == said["answer"]
