"""Owned tasks: failures reach the owner, nothing is left running."""

import asyncio

import pytest

from coterie.base.tasks import TaskEndedEarly, TaskFailed, TaskOwner


async def forever() -> None:
    await asyncio.Event().wait()


async def boom(after: float = 0) -> None:
    await asyncio.sleep(after)
    raise ValueError("boom")


async def test_wait_ends_when_all_tasks_ended():
    async with TaskOwner("t") as owner:
        task = owner.start("one", asyncio.sleep(0, "done"))
        owner.start("two", asyncio.sleep(0))
        assert task.get_name() == "t/one"
        assert owner.names == ["one", "two"]
        await owner.wait()
        assert task.result() == "done"
    assert len(owner) == 0


async def test_first_failure_stops_the_rest_and_is_raised():
    owner = TaskOwner("t")
    other = owner.start("other", forever())
    owner.start("bad", boom())
    with pytest.raises(TaskFailed, match="t/bad: ValueError: boom") as caught:
        await owner.wait()
    assert isinstance(caught.value.__cause__, ValueError)
    assert other.cancelled()
    assert caught.value.name == "bad"


async def test_owner_hears_of_the_first_failure_only():
    heard: list[TaskFailed] = []
    owner = TaskOwner("t", on_failure=heard.append)
    owner.start("first", boom())
    owner.start("second", boom())
    await owner.drain(1)
    await owner.close()
    assert [failure.name for failure in heard] == ["first"]


async def test_leaving_the_block_raises_an_unseen_failure():
    with pytest.raises(TaskFailed):
        async with TaskOwner("t") as owner:
            owner.start("bad", boom())
            await owner.drain(1)


async def test_the_bodys_own_error_wins():
    with pytest.raises(KeyError):
        async with TaskOwner("t") as owner:
            owner.start("bad", boom())
            await owner.drain(1)
            raise KeyError("mine")


async def test_an_endless_task_may_not_return():
    owner = TaskOwner("t")
    owner.start("loop", asyncio.sleep(0), endless=True)
    with pytest.raises(TaskFailed) as caught:
        await owner.wait()
    assert isinstance(caught.value.__cause__, TaskEndedEarly)


async def test_failure_of_a_task_that_is_not_vital_is_not_raised():
    async with TaskOwner("t") as owner:
        owner.start("extra", boom(), vital=False)
        await owner.wait()
    assert owner.failure is None


async def test_close_cancels_and_waits_for_clean_up():
    cleaned: list[str] = []

    async def careful() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0.001)
            cleaned.append("yes")

    owner = TaskOwner("t")
    owner.start("careful", careful())
    await asyncio.sleep(0)
    await owner.close()
    assert cleaned == ["yes"] and len(owner) == 0
    with pytest.raises(RuntimeError, match="closing"):
        owner.start("late", forever())


async def test_close_gives_up_on_the_deaf_after_the_grace():
    release = asyncio.Event()

    async def deaf() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    owner = TaskOwner("t", grace=0.01)
    task = owner.start("deaf", deaf())
    await asyncio.sleep(0)
    await owner.close()
    assert owner.names == ["deaf"]
    release.set()
    await task


async def test_drain_says_whether_all_ended():
    owner = TaskOwner("t")
    owner.start("long", forever())
    assert not await owner.drain(0.001)
    await owner.close()
    assert await owner.drain(0.001)
