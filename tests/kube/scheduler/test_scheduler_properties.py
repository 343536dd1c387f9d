"""What must hold whatever happens: nothing is overcommitted, gangs are whole, sums are right, nobody is overlooked."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from scheduling_kit import BANDWIDTH, GangEngine, bound, gang_facts, gang_pod, node, pod, task

from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.types.pods import Pod
from coterie.kube.scheduler.effects import Bind, Evict
from coterie.kube.scheduler.facts import pod_facts
from coterie.kube.scheduler.plan import Unschedulable, plan
from coterie.kube.scheduler.terms import NO_TERMS
from coterie.kuscia.gangs.effects import MarkFailed, MarkReserved

NODES = ("n0", "n1", "n2")
cpus = st.sampled_from(["500m", "1", "2", "3"])
choice = st.integers(0, 1 << 16)


class Cluster(RuleBasedStateMachine):
    """An engine, and beside it the plain truth: what the API server would hold."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.engine = GangEngine(lambda: self.now, seed=7)
        self.truth: dict[str, Pod] = {}
        self.rooms: dict[str, tuple[int, int]] = {}
        self.phases: dict[str, tuple[str, int]] = {}
        self.binding: list[Bind] = []
        self.marks: list[MarkReserved | MarkFailed] = []
        self.count = 0
        self.prompt = False

    @initialize(prompt=st.booleans(), cores=st.lists(st.integers(1, 4), min_size=1, max_size=3))
    def begin(self, prompt: bool, cores: list[int]) -> None:
        """`prompt`: the machinery keeps up with every change; otherwise changes pile up."""
        self.prompt = prompt
        for name, cpu in zip(NODES, cores, strict=False):
            self.node_appears_or_grows(name, cpu, 1)

    def settle(self) -> None:
        if not self.prompt:
            return
        for _ in range(20):
            self.engine_runs()
            while self.marks:
                self.a_mark_is_written()
            while self.binding:
                self.a_binding_is_answered(0, True)
            due = self.engine.next_due()
            if due is None or due > self.now:
                return

    # What users do.

    @rule(name=st.sampled_from(NODES), cpu=st.integers(0, 6), bandwidth=st.integers(0, 2))
    def node_appears_or_grows(self, name: str, cpu: int, bandwidth: int) -> None:
        old = self.rooms.get(name, (0, 0))
        # A node that shrinks below what runs there is overcommitted by its owner, not by us.
        self.rooms[name] = (max(cpu, old[0]), max(bandwidth, old[1]))
        cores, megabits = self.rooms[name]
        self.engine.node_seen(node(name, str(cores), bandwidth=megabits, labels={"zone": name[-1]}))
        self.settle()

    @rule(name=st.sampled_from(NODES))
    def node_leaves(self, name: str) -> None:
        self.engine.node_gone(name)
        for uid, one in list(self.truth.items()):
            if one.spec.node_name == name:
                self.engine.pod_gone(self.truth.pop(uid))
        self.rooms.pop(name, None)
        for effect in [effect for effect in self.binding if effect.node == name]:
            self.binding.remove(effect)
            self.engine.bind_failed(effect.pod)
        self.settle()

    @rule(cpu=cpus, bandwidth=st.integers(0, 1), priority=st.integers(0, 1), picky=st.booleans(), away=st.booleans())
    def pod_is_made(self, cpu: str, bandwidth: int, priority: int, picky: bool, away: bool) -> None:
        self.count += 1
        term = {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "zone"}
        rules = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        made = pod(
            f"p{self.count}",
            cpu,
            priority=priority,
            labels={"app": "x"} if away else {},
            requests={BANDWIDTH: bandwidth} if bandwidth else {},
            created=f"2026-01-01T00:{self.count // 60 % 60:02}:{self.count % 60:02}Z",
            **({"nodeSelector": {"zone": "1"}} if picky else {}),
            **({"affinity": rules} if away else {}),
        )
        self.truth[made.metadata.uid] = made
        self.engine.pod_seen(made)
        self.settle()

    @rule(pods=st.integers(1, 3), cpu=cpus, spare=st.integers(0, 1))
    def gang_is_made(self, pods: int, cpu: str, spare: int) -> None:
        self.count += 1
        name = f"t{self.count}"
        self.set_phase(name, "Reserving", max(1, pods - spare))
        for i in range(pods):
            made = gang_pod(f"{name}-{i}", name, cpu=cpu)
            self.truth[made.metadata.uid] = made
            self.engine.pod_seen(made)
        self.settle()

    @rule(which=choice)
    def pod_is_deleted(self, which: int) -> None:
        alone = [uid for uid, one in self.truth.items() if one.spec.scheduler_name == "default-scheduler"]
        if alone:
            self.engine.pod_gone(self.truth.pop(alone[which % len(alone)]))
        self.settle()

    @rule(which=choice, phase=st.sampled_from(["Schedulable", "Failed", "Reserving"]))
    def group_decides(self, which: int, phase: str) -> None:
        before = {"Schedulable": "Reserved", "Failed": "Reserved", "Reserving": "Failed"}[phase]
        ready = [name for name, (now, _) in self.phases.items() if now == before]
        if ready:
            name = ready[which % len(ready)]
            self.set_phase(name, phase, self.phases[name][1])
        self.settle()

    # What the machinery does.

    @rule()
    def engine_runs(self) -> None:
        for effect in self.engine.run():
            if isinstance(effect, Bind):
                self.binding.append(effect)
            elif isinstance(effect, MarkReserved | MarkFailed):
                self.marks.append(effect)
            elif isinstance(effect, Evict):
                for victim in effect.victims:
                    if victim.uid in self.truth:
                        self.engine.pod_gone(self.truth.pop(victim.uid))

    @rule(which=choice, works=st.booleans())
    def a_binding_is_answered(self, which: int, works: bool) -> None:
        if not self.binding:
            return
        effect = self.binding.pop(which % len(self.binding))
        current = self.truth.get(effect.pod.uid)
        if works and current is not None and not current.spec.node_name and effect.node in self.rooms:
            self.truth[effect.pod.uid] = bound(current, effect.node)
            self.engine.pod_seen(self.truth[effect.pod.uid], current)
        else:
            self.engine.bind_failed(effect.pod)

    @rule()
    def a_mark_is_written(self) -> None:
        if not self.marks:
            return
        effect = self.marks.pop(0)
        name = effect.key.name
        phase, least = self.phases[name]
        if isinstance(effect, MarkReserved):
            if phase == "Reserving" and effect.key in self.engine.reservations.held:
                self.set_phase(name, "Reserved", least)
        elif phase in ("Reserving", "Reserved"):
            self.set_phase(name, "Failed", least)
        else:
            self.set_phase(name, phase, least)

    @rule(seconds=st.sampled_from([0.5, 3.0, 11.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.settle()

    def set_phase(self, name: str, phase: str, least: int) -> None:
        self.phases[name] = (phase, least)
        self.engine.task_seen(task(name, phase, least=least))

    # What must hold.

    @invariant()
    def nothing_is_overcommitted(self) -> None:
        for name, (cores, megabits) in self.rooms.items():
            here = {uid: one for uid, one in self.truth.items() if one.spec.node_name == name}
            decided = {uid: self.truth[uid] for uid, where in self.engine.state.assumed.items() if where == name}
            facts = [gang_facts(one) for one in {**here, **decided}.values()]
            assert sum(one.cpu for one in facts) <= cores * 1000
            assert sum(dict(one.others).get(BANDWIDTH, 0) for one in facts) <= megabits

    @invariant()
    def sums_are_right(self) -> None:
        snapshot = self.engine.snapshot
        for state in snapshot.states.values():
            assert state.cpu == sum(one.cpu for one in state.pods.values())
            assert state.count == len(state.pods)
            for uid in state.pods:
                assert snapshot.places[uid] is state
        assert sum(snapshot.priorities.values()) == len(snapshot.places)

    @invariant()
    def only_what_is_decided_takes_room(self) -> None:
        bound_to = {uid for uid, one in self.truth.items() if one.spec.node_name}
        assert set(self.engine.snapshot.places) <= bound_to | set(self.engine.state.assumed)

    @invariant()
    def gangs_are_whole(self) -> None:
        for gang in self.engine.holding():
            assert gang.hold is not None and gang.task is not None
            placed = sum(1 for m in gang.members.values() if m.node or m.pod.uid in self.engine.state.assumed)
            assert placed >= gang.task.min_reserved
            assert not [m for m in gang.members.values() if m.node] or self.phases[gang.key.name][0] != "Reserving"

    @invariant()
    def no_hold_is_overdue_after_a_run(self) -> None:
        due = self.engine.reservations.next_deadline()
        assert due is None or self.engine.next_due() is not None

    @rule()
    def nobody_is_overlooked(self) -> None:
        """When nothing is left to do, every pod that waits alone really does not fit."""
        for _ in range(20):
            self.engine_runs()
            due = self.engine.next_due()
            if due is None or due > self.now:
                break
        if self.binding or self.marks:
            return  # these may still fail and then wake others
        for uid, one in self.engine.state.pending.items():
            if one.gang is None and self.engine.queue.state(uid) == "waiting":
                assert isinstance(plan(self.engine.snapshot, one), Unschedulable), one.key
                assert one.terms is NO_TERMS or one.labels
        for gang in self.engine.holding():
            assert gang.giving_up or (gang.hold is not None and gang.hold.deadline > self.now)


TestCluster = Cluster.TestCase
TestCluster.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_facts_do_not_depend_on_how_they_were_read() -> None:
    one = pod("a", "1500m", "1Gi", requests={BANDWIDTH: "5"})
    again = msgspec.json.decode(msgspec.json.encode(one), type=Pod)
    assert pod_facts(one).others == pod_facts(again).others == ((BANDWIDTH, 5),)
    assert ObjectKey("default", "a") == pod_facts(again).key


def test_a_node_that_was_promised_to_one_of_two_alike_is_taken_by_it() -> None:
    """Found by the search above: the other, which cannot have that node, was asked for both."""
    cluster = Cluster()
    cluster.begin(prompt=True, cores=[1, 3])
    cluster.gang_is_made(cpu="500m", pods=1, spare=0)
    cluster.group_decides(phase="Schedulable", which=0)
    cluster.gang_is_made(cpu="500m", pods=1, spare=0)
    cluster.pod_is_made(away=False, bandwidth=0, cpu="3", picky=True, priority=1)
    cluster.time_passes(seconds=31.0)
    cluster.pod_is_made(away=False, bandwidth=0, cpu="3", picky=True, priority=1)
    cluster.nobody_is_overlooked()
    assert "uid-default-p4" in cluster.engine.snapshot.places
