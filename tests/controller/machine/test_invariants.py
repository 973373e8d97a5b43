"""Random histories of the machine, its invariants checked after every step (rules B; rule E7: seeds replay)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.controller import api
from strandline.controller.machine import elections
from strandline.controller.metadata.features import LEVEL_OF_MOVES
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.replay import check_partition
from strandline.log.findings import LogCondition
from strandline.proto.ids import NO_NODE

STEPS = (
    "produce",
    "produce",
    "fence",
    "crash",
    "start",
    "restart_cleanly",
    "shrink",
    "expand",
    "config",
    "elect",
    "fail_over",
    "balance",
    "grow",
    "hear",
    "wait_out",
    "fill",
    "move",
    "cancel",
)


class Watched:
    """A cluster whose every step is judged."""

    def __init__(self, cluster: Any, rng: random.Random, *, unclean: bool) -> None:
        self.cluster = cluster
        self.rng = rng
        self.unclean = unclean
        self.synced = cluster.flush_policy != "replicate"
        self.lost: int | None = None
        """Whose registration says that it lacks what it had."""
        self.joining: list[int] = []
        """Whom a leader proposes: it has caught up."""
        # A model of the data: what is committed in a partition, and how far each replica's log reaches.
        self.committed: dict[tuple[str, int], int] = {}
        self.reaches: dict[tuple[str, int, int], int] = {}
        cluster.on_append = self.check
        cluster.create("t", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        cluster.create("u", [[1, 2], [4, 3]], min_insync_replicas="1")
        if unclean:
            cluster.set_config("unclean.leader.election.enable", "true")

    def step(self, kind: str) -> None:
        getattr(self, kind)()

    # Steps

    def _node(self, *, active: bool) -> int | None:
        nodes = [node for node, info in self.cluster.image.brokers.items() if info.active == active]
        return self.rng.choice(nodes) if nodes else None

    def fence(self) -> None:
        if (node := self._node(active=True)) is not None:
            self.cluster.fence(node)

    def crash(self) -> None:
        if (node := self._node(active=True)) is not None:
            self.cluster.fence(node)
            self._restart_uncleanly(node)

    def start(self) -> None:
        if (node := self._node(active=False)) is not None:
            if self.rng.random() < 0.5:
                self._restart_uncleanly(node)
            self._tell_logs()
            self.cluster.beat(node)

    def _restart_uncleanly(self, node: int) -> None:
        if self.synced:
            self._restart_on_what_is_left(node)
            return
        # Power is lost, and with it whatever the node had: the worst case that KIP-966 allows for.
        for topic, info in self.cluster.image.partitions():
            self.reaches[topic.name, info.partition, node] = 0
        self.cluster.register(node)

    def _restart_on_what_is_left(self, node: int) -> None:
        """What was synced is there, or not, partition by partition: bounded only by an honest copy on another broker
        that counts."""
        found: dict[tuple[str, int], LogCondition | None] = {}
        for topic, info in self.cluster.image.partitions():
            key = (topic.name, info.partition)
            if self._another_is_honest(node, topic.name, info):
                found[key] = self.rng.choice([LogCondition.INTACT, LogCondition.CUT, LogCondition.LACKING, None])
                if found[key] is not LogCondition.INTACT or self.rng.random() < 0.5:
                    # Where it looks intact the disk gave back zeros for what it had synced.
                    self.reaches[(*key, node)] = self.rng.randint(0, self.reaches.get((*key, node), 0))
                if found[key] is None:
                    self.reaches[(*key, node)] = 0
            else:
                found[key] = self.rng.choice([LogCondition.INTACT, LogCondition.CUT])
        self._tell_logs()
        self.lost = node
        self.cluster.register(node, findings=self.cluster.findings(node, found.__getitem__))
        self.lost = None

    def _another_is_honest(self, node: int, name: str, info: Any) -> bool:
        committed = self.committed.get((name, info.partition), 0)
        counting = {*info.isr, *info.eligible_leader_replicas, *info.last_known_elr}
        return node not in counting or any(
            self.reaches.get((name, info.partition, other), 0) >= committed for other in counting - {node}
        )

    def _tell_logs(self) -> None:
        """What the replicas tell of their logs from now on."""
        for topic, info in self.cluster.image.partitions():
            for node in info.replicas:
                end = self.reaches.get((topic.name, info.partition, node), 0)
                self.cluster.logs[node, topic.name, info.partition] = (0 if end else -1, end)

    def hear(self) -> None:
        """All live brokers tell where the logs end that nobody leads."""
        self._tell_logs()
        for node in [node for node, info in self.cluster.image.brokers.items() if info.active]:
            self.cluster.beat(node)

    def wait_out(self) -> None:
        """Nobody waits any longer for a report (rule B30), where an honest copy is among those that are back."""
        for topic, info in self.cluster.image.partitions():
            committed = self.committed.get((topic.name, info.partition), 0)
            back = [node for node in info.replicas if self.cluster.image.is_active(node)]
            honest = any(self.reaches.get((topic.name, info.partition, node), 0) >= committed for node in back)
            if not info.has_leader and not honest and self.synced:
                return
        self.hear()
        self.cluster.wait_out()

    def produce(self) -> None:
        """A record to every partition; committed under the strict high watermark rule."""
        for topic, info in self.cluster.image.partitions():
            key = (topic.name, info.partition)
            min_isr = self.cluster.state.resolver.min_insync_replicas(self.cluster.image, topic.name, info)
            if info.has_leader and len(info.isr) >= min_isr:
                self.committed[key] = self.committed.get(key, 0) + 1
                for node in info.isr:
                    self.reaches[(*key, node)] = self.committed[key]

    def restart_cleanly(self) -> None:
        if (node := self._node(active=True)) is not None:
            epoch = self.cluster.stop_cleanly(node)
            self.cluster.register(node, previous_broker_epoch=epoch)

    def _led(self) -> tuple[str, Any] | None:
        led = [(topic.name, info) for topic, info in self.cluster.image.partitions() if info.has_leader]
        return self.rng.choice(led) if led else None

    def shrink(self) -> None:
        if (found := self._led()) is not None:
            name, info = found
            kept = [node for node in info.isr if node == info.leader or self.rng.random() < 0.5]
            self.cluster.alter_isr(kept, name, info.partition, recovering=info.recovering and len(kept) == 1)

    def expand(self) -> None:
        if (found := self._led()) is not None:
            name, info = found
            joined = [node for node in info.replicas if node in info.isr or self.rng.random() < 0.7]
            self.joining = joined
            self.cluster.alter_isr(joined, name, info.partition)
            self.joining = []

    def fill(self) -> None:
        """A disk is full, or has room again."""
        if (node := self._node(active=True)) is not None:
            self.cluster.full.symmetric_difference_update({node})
            self.cluster.beat(node)

    def move(self) -> None:
        """To any replicas: more, fewer, others, or the same in another order; also in the middle of a move."""
        topic, info = self.rng.choice(list(self.cluster.image.partitions()))
        replicas = self.rng.sample(sorted(self.cluster.image.brokers), self.rng.randint(1, 4))
        self.cluster.move(replicas, topic.name, info.partition)

    def cancel(self) -> None:
        moving = [(topic.name, info.partition) for topic, info in self.cluster.image.partitions() if info.is_moving]
        if moving:
            self.cluster.move(None, *self.rng.choice(moving))

    def config(self) -> None:
        value = self.rng.choice([None, "1", "2", "3"])
        self.cluster.set_config("min.insync.replicas", value, self.rng.choice(["t", "u", None]))

    def elect(self) -> None:
        self.cluster.elect(api.ElectionKind.PREFERRED, everything=True)

    def balance(self) -> None:
        self.cluster.run(elections.balance_leaders(self.cluster.state))

    def grow(self) -> None:
        self.cluster.create_topic(api.CreatableTopic(f"more-{len(self.cluster.log)}", num_partitions=2))

    def fail_over(self) -> None:
        before = self.cluster.image
        self.cluster.fail_over()
        assert replaceable(self.cluster.image) == replaceable(before)

    # Invariants

    def check(self, before: MetadataImage) -> None:
        image = self.cluster.image
        for topic, info in image.partitions():
            check_partition(info)
            assert info.leader == NO_NODE or image.is_active(info.leader), info
            assert all(image.is_active(node) for node in info.isr), info
            assert len({image.has_room(node) for node in info.isr}) < 2, info
            min_isr = self.cluster.state.resolver.min_insync_replicas(image, topic.name, info)
            if len(info.isr) >= min_isr:
                assert not info.eligible_leader_replicas, info
            old = before.partition(topic.name, info.partition)
            if old is not None and old != info:
                self.check_change(topic.name, old, info)
        assert all(earlier.broker_epoch <= image.brokers[node].broker_epoch for node, earlier in before.brokers.items())

    def check_change(self, name: str, old: Any, new: Any) -> None:
        assert new.partition_epoch > old.partition_epoch
        assert new.leader_epoch >= old.leader_epoch
        if new.leader != old.leader:
            assert new.leader_epoch > old.leader_epoch
        gone = self.check_move(name, old, new)
        self.follow_data(name, old, new)
        if not new.isr and not new.eligible_leader_replicas and (old.isr or old.eligible_leader_replicas):
            # Only a log in doubt may take the last one, and then it is remembered; or its loss.
            assert new.last_known_elr or self.lost is not None or (gone and self.unclean), (old, new)
        if self.synced:
            counting = {*new.isr, *new.eligible_leader_replicas}
            assert not counting & set(new.last_known_elr), new
            assert len(new.isr) < self.min_isr(name, new) or not new.last_known_elr, new

    def check_move(self, name: str, old: Any, new: Any) -> set[int]:
        """Rules B41, B44 to B46; the replicas that are gone."""
        gone = {*old.replicas} - {*new.replicas}
        if gone or (old.is_moving and not new.is_moving and new.target_replicas == old.target_replicas):
            assert new.leader_epoch > old.leader_epoch, (old, new)
        for node in gone:
            self.reaches[name, new.partition, node] = 0  # it is deleted on the broker
        ends = gone & {*old.removing_replicas}
        assert not ends or {*new.isr} == {*new.replicas} or new.is_moving or self.unclean, (old, new)
        if gone & {*old.isr} and not self.unclean:
            assert len(new.isr) >= self.min_isr(name, new), (old, new)
        assert not new.is_moving or new.recovering or not {*new.target_replicas} <= {*new.isr}, (old, new)
        return gone

    def min_isr(self, name: str, info: Any) -> int:
        state = self.cluster.state
        return int(state.resolver.min_insync_replicas(state.image, name, info))

    def follow_data(self, name: str, old: Any, new: Any) -> None:
        key = (name, new.partition)
        committed = self.committed.get(key, 0)
        elected = new.has_leader and new.leader != old.leader
        for node in new.isr:
            if node not in old.isr and (node != new.leader or node in self.joining):
                self.reaches[(*key, node)] = committed  # it has caught up before it joins
        if elected and new.leader not in (*old.isr, *old.eligible_leader_replicas, *self.joining):
            if self.synced and not new.recovering:
                assert new.leader in old.last_known_elr, (old, new)
            else:
                # Said aloud: the partition recovers, and what the new leader lacks is gone.
                assert new.recovering
                assert self.unclean or (old.last_known_elr == (new.leader,) and not self.synced)
                self.committed[key] = committed = self.reaches.get((*key, new.leader), 0)
        if new.has_leader:
            assert self.reaches.get((*key, new.leader), 0) >= committed, ("committed records are lost", name, old, new)


def replaceable(image: MetadataImage) -> tuple[Any, ...]:
    """What two controllers must agree on."""
    return image.brokers, image.topics, image.configs, image.next_producer_id


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    steps=st.lists(st.sampled_from(STEPS), min_size=5, max_size=60),
    unclean=st.booleans(),
    policy=st.sampled_from(["ack", "replicate"]),
)
def test_any_history_keeps_the_invariants(
    machine_cluster_factory: Callable[..., Any], seed: int, steps: list[str], unclean: bool, policy: str
) -> None:
    """Leader in ISR, ISR and ELR within replicas and disjoint, epochs monotone, no clean election from outside."""
    watched = Watched(
        machine_cluster_factory(4, flush_policy=policy, level=LEVEL_OF_MOVES), random.Random(seed), unclean=unclean
    )
    for step in steps:
        watched.step(step)


@pytest.mark.parametrize("seed", range(40))
def test_crashes_lose_nothing_that_an_honest_copy_has(machine_cluster_factory: Callable[..., Any], seed: int) -> None:
    """docs/correctness.md, "After a crash: who may lead": logs rot, are zeroed, vanish or are older copies, as long as
    one broker that counts has everything; whoever leads has it too. Once all are back and say so, somebody leads."""
    rng = random.Random(seed)
    watched = Watched(machine_cluster_factory(4, level=LEVEL_OF_MOVES), rng, unclean=False)
    kinds = (
        *["produce", "start", "expand"] * 3,
        "fence",
        "crash",
        "crash",
        "hear",
        "wait_out",
        "fail_over",
        "config",
        "move",
        "cancel",
    )
    for _ in range(200):
        watched.step(rng.choice(kinds))
    for node, broker in watched.cluster.image.brokers.items():
        if broker.fenced:
            watched._tell_logs()
            watched.cluster.start(node)
    watched.hear()
    watched.cluster.wait_out()
    for topic, info in watched.cluster.image.partitions():
        committed = watched.committed.get((topic.name, info.partition), 0)
        assert info.has_leader or not committed, info


@pytest.mark.parametrize("policy", ["ack", "replicate"])
@pytest.mark.parametrize("seed", range(20))
def test_long_histories(machine_cluster_factory: Callable[..., Any], seed: int, policy: str) -> None:
    """The same over 300 steps each; and a history replayed gives the same log (determinism)."""
    logs = []
    for _ in range(2):
        rng = random.Random(seed)
        watched = Watched(
            machine_cluster_factory(4, flush_policy=policy, level=LEVEL_OF_MOVES), rng, unclean=seed % 4 == 0
        )
        for _ in range(300):
            watched.step(rng.choice(STEPS))
        logs.append(watched.cluster.log)
    assert logs[0] == logs[1]
