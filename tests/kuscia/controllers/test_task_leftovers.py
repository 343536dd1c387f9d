"""Nothing of a task outlives it, whatever comes late, is lost or was left by others."""

from __future__ import annotations

from job_world import CONFIG_MAP, CROSS_DOMAIN, GROUP, JOB, POD, TASK, JobWorld, a_job, a_task, by_task, job_world

from coterie.kube.api.meta import Object, ObjectKey
from coterie.kube.client.informers import Informers
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import KUSCIA_TASKS
from coterie.kuscia.control.partner_quotas import PartnerQuotas
from coterie.kuscia.control.port_pool import PortPool
from coterie.kuscia.controllers.kusciatask.controller import KusciaTaskReconciler


async def running(w: JobWorld) -> None:
    w.outcome = by_task(a="Running")
    await w.client.create(JOB, a_job(a_task("a", taskID="t")))

    async def runs() -> bool:
        tasks = await w.tasks()
        return bool(tasks) and (tasks["a"].get("status") or {}).get("phase") == "Running"

    await w.until(runs)


async def vanish(w: JobWorld) -> None:
    """The job and its task go while no controller sees to what they made."""
    await w.stop()
    for kind, name in ((TASK, "t"), (JOB, "j")):
        await w.client.patch(kind, name, CROSS_DOMAIN, {"metadata": {"finalizers": None}})
        await w.client.delete(kind, name, CROSS_DOMAIN)
    assert len((await w.client.list(POD)).items) == 2


async def no_pods(w: JobWorld) -> bool:
    return not (await w.client.list(POD)).items


async def test_what_belongs_to_a_task_that_is_gone_is_removed_at_the_start() -> None:
    async with job_world() as w:
        await running(w)
        await vanish(w)
        await w.start()
        await w.until(lambda: no_pods(w))
        await w.until_clean()


async def test_pods_of_a_task_that_the_cache_does_not_have_yet_stay() -> None:
    """A pod may be heard of before its task."""
    async with job_world() as w:
        await running(w)
        pods = {pod["metadata"]["uid"] for pod in (await w.client.list(POD)).items}
        await w.stop()
        await w.start()
        await w.settle(10)
        assert {pod["metadata"]["uid"] for pod in (await w.client.list(POD)).items} == pods


async def test_a_pod_of_an_earlier_task_of_the_same_name_makes_way() -> None:
    async with job_world() as w:
        await running(w)
        await vanish(w)
        w.outcome = by_task()
        old = {pod["metadata"]["uid"] for pod in (await w.client.list(POD)).items}
        await w.client.create(JOB, a_job(a_task("a", taskID="t")))
        await w.start()
        await w.until_phase("Succeeded")
        await w.until_clean()
        assert not old & {pod["metadata"]["uid"] for pod in (await w.client.list(POD)).items}


async def test_pods_of_others_are_left_alone() -> None:
    async with job_world() as w:
        body = {
            "metadata": {"name": "mine", "namespace": "alice", "annotations": {labels.KUSCIA_TASK_ID: "t"}},
            "spec": {"containers": [{"name": "main", "image": "i"}]},
        }
        await w.client.create(POD, body)
        await w.settle(5)
        assert await w.exists(POD, "mine", "alice")


async def test_a_group_that_the_cache_does_not_have_yet_is_removed_with_its_task() -> None:
    async with job_world() as w:
        await running(w)
        await w.stop()
        for pod in (await w.client.list(POD)).items:
            await w.client.delete(POD, "t-0", pod["metadata"]["namespace"], grace=0)
        await w.client.delete(TASK, "t", CROSS_DOMAIN)
        behind = Informers(w.client)
        reconciler = KusciaTaskReconciler(
            w.client, behind, ports=PortPool(), quotas=PartnerQuotas(behind), events=None, clock=w.clock
        )
        reconciler.tasks.replace([await w.client.get(KUSCIA_TASKS, "t", CROSS_DOMAIN)])
        await reconciler.reconcile(ObjectKey(CROSS_DOMAIN, "t"))
        assert not await w.exists(TASK, "t", CROSS_DOMAIN)
        assert not await w.exists(GROUP, "t", "")
        await w.start()


async def test_config_maps_of_an_earlier_task_of_the_same_name_are_not_taken_for_ours() -> None:
    """They are collected a moment later, and the engine would find nothing."""
    async with job_world() as w:
        w.outcome = by_task(a="Running")
        await w.client.create(JOB, a_job(a_task("a", taskID="t")))
        await w.until(lambda: w.exists(GROUP, "t", ""))
        names = [each["metadata"]["name"] for each in await w.list(CONFIG_MAP, "bob") if each["metadata"].get("labels")]
        await w.client.delete(JOB, "j", CROSS_DOMAIN)
        await w.until(lambda: no_pods(w))
        await w.settle(5)
        values = next(name for name in names if name.startswith("t-0"))
        marks = {labels.KUSCIA_TASK_UID: "gone"}
        old: Object = {"metadata": {"name": values, "namespace": "bob", "labels": marks}}
        await w.client.create(CONFIG_MAP, old)
        await w.client.create(JOB, a_job(a_task("a", taskID="t")))
        await w.settle(5)
        assert (await w.task_status("a"))["phase"] == "Pending", "not begun with what others left"
        await w.client.delete(CONFIG_MAP, values, "bob")

        async def runs() -> bool:
            return (await w.task_status("a")).get("phase") == "Running"

        await w.until(runs)
        made = await w.get(CONFIG_MAP, values, "bob")
        assert made["metadata"]["labels"][labels.KUSCIA_TASK_UID] == (await w.tasks())["a"]["metadata"]["uid"]
