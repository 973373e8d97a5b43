"""One seed of the cluster under faults: production nodes, clients, a nemesis, and everything that must hold.

Phases: the cluster comes up and gets its topics; faults and traffic, with the invariants checked as events run; then
everything is healed and progress is demanded by a deadline; then a fresh client reads everything from the beginning,
and histories and replicas are judged.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

from strandline.chaos.checkers.anomalies import judge, realtime_lag_ms
from strandline.chaos.checkers.copies import ConsistentRead
from strandline.chaos.checkers.history import History
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.replicas import compare_replicas
from strandline.chaos.cluster import DATA, SimCluster
from strandline.chaos.logs import LogCapture
from strandline.chaos.nemesis.kinds import DESTRUCTIVE, FAULTS, NODE_KINDS
from strandline.chaos.nemesis.minority import cripple
from strandline.chaos.nemesis.nemesis import Nemesis
from strandline.chaos.nemesis.operator import Operator
from strandline.chaos.nemesis.options import FaultOptions
from strandline.chaos.options import override
from strandline.chaos.preload import preload
from strandline.chaos.services.options import NODE, ServiceOptions
from strandline.chaos.services.services import Services
from strandline.chaos.sim.disk import DiskConfig
from strandline.chaos.sim.links import NetworkConfig
from strandline.chaos.sim.seeds import split
from strandline.chaos.sim.world import World, WorldConfig
from strandline.chaos.workload import Workload, WorkloadOptions
from strandline.log.config import INT64_MAX
from strandline.proto import marks

CLIENT = "client"
SERVICES = "services"

READY_MS = 30_000
FURIOUS_MS = 8_000
"""Longest storm of faults every few milliseconds: a hundred restarts teach no more than fifty."""
PROGRESS_MS = 60_000
"""After healing, so much virtual time for: every node unfenced, acks again, every replica in sync, everything read."""

_ACKS = 10
"""Under acks=all: so many, and one in every partition, show that writing works."""

LASTING_SHARE = 0.25
"""Of the seeds: once all is whole, one machine is broken and stays so, and the others must acknowledge without it."""

SEESAW_SHARE = 0.02
"""Of the seeds: two brokers lead in turn and never hear each other (`SEESAW`). No other fault is injected there."""

SEESAW: dict[str, Any] = {
    "split_layout": True,
    "duration_ms": 50_000,
    "kill_clients": False,
    "faults": {"kinds": ["seesaw"], "gap_min_ms": 1_500, "gap_max_ms": 2_000, "first": 1},
    "workload": {
        "topics": {"alpha": 2},
        "lanes": [0, 3, 4],
        "send_gap_ms": 60.0,
        "topic_configs": {"min.insync.replicas": "2"},
        "producer": {
            "request_timeout_ms": 1_000,
            "delivery_timeout_ms": 15_000,
            "socket_connection_setup_timeout_ms": 300,
            "reconnect_backoff_max_ms": 200,
        },
    },
    "node": {"broker.session.timeout.ms": "3000", "replica.lag.time.max.ms": "10000", "flush.policy": "ack"},
}
"""What those seeds have in common: each leader gets a tail of its own, so who comes back last finds that its log leaves
the leader's several epochs ago (mark `diverged-over-epochs`). Left to chance, not one seed in a thousand does so."""


SERVICES_SHARE = 0.2
"""Of the seeds: services run beside the plain clients (`chaos.services`), which do less there."""

BESIDE_SERVICES: dict[str, Any] = {
    "workload": {"topics": {"alpha": 1}, "lanes": [0], "many": 60, "consumers": 1, "rewinds_max": 0},
    "node": NODE,
}
"""What those seeds have in common: a seed is to cost what any other does."""


@dataclass
class ScenarioOptions:
    """Everything that the seed decides, expanded: printed when a run fails."""

    world: WorldConfig
    faults: FaultOptions
    workload: WorkloadOptions
    node: dict[str, str]
    """Settings of the nodes, by Kafka's names."""
    duration_ms: int
    kill_clients: bool
    split_layout: bool = False
    """Three controllers and three brokers instead of three combined nodes."""
    services: ServiceOptions | None = None

    @classmethod
    def draw(cls, seed: int) -> ScenarioOptions:
        rng = split(seed, "options")
        network = NetworkConfig(
            latency_min_us=50,
            latency_max_us=rng.choice((300, 1_000, 10_000)),
            loss_probability=rng.choice((0.0, 0.0, 0.002)),
            fragment_probability=rng.choice((0.0, 0.05, 0.3)),
            coalesce_probability=rng.choice((0.0, 0.05, 0.3)),
            give_up_us=rng.choice((2_000_000, 8_000_000)),
            late_probability=rng.choice((0.0, 0.0, 0.01)),
            repeat_probability=rng.choice((0.0, 0.0, 0.01)),
        )
        disk = DiskConfig(
            sync_max_us=rng.choice((500, 4_000, 20_000)),
            sector_bytes=rng.choice((512, 4096)),
            cold_probability=rng.choice((0.0, 0.02)),
        )
        world = WorldConfig(network, disk, clock_rate_error=rng.choice((0.0, 0.001, 0.03)), wall_error_ms=1000.0)
        workload = WorkloadOptions.draw(rng)
        kinds = NODE_KINDS
        if workload.topic_configs["min.insync.replicas"] == "1":
            # An ISR of one may hold the only copy of what is committed: nothing may destroy it.
            kinds = tuple(kind for kind in NODE_KINDS if kind not in DESTRUCTIVE)
        faults = FaultOptions.draw(rng, kinds)
        node = {
            "controller.quorum.election.timeout.ms": rng.choice(("200", "1000")),
            "controller.quorum.fetch.timeout.ms": rng.choice(("500", "2000")),
            "metadata.log.segment.bytes": rng.choice(("2048", "65536", "67108864")),
            "metadata.log.max.record.bytes.between.snapshots": rng.choice(("2000", "20000", "20971520")),
            "broker.session.timeout.ms": rng.choice(("3000", "9000")),
            "replica.lag.time.max.ms": rng.choice(("1000", "10000")),
        }
        needs_disks = ("fail_sync", "one_stays_dead", *DESTRUCTIVE)
        if rng.random() < 0.2 and not any("power" in kind or kind in needs_disks for kind in faults.kinds):
            # The memory of min.insync.replicas machines counts: no promise over power cuts. Nor over lost disks: each
            # restart may have lost something there (KIP-966), so that the last one in the ISR may be the only one left.
            node["flush.policy"] = "replicate"
        # Machines' clocks are hours apart here: clients of one may be of the future to another.
        node["log.message.timestamp.after.max.ms"] = str(INT64_MAX)
        # A generator of its own: what is drawn besides stays as it is.
        node["disk.sync.timeout.ms"] = split(seed, "hung syncs").choice(("1000", "5000"))
        node["broker.silence.timeout.ms"] = split(seed, "silence").choice(("500", "2500"))
        # Half of the runs look for rot where nobody reads; in the others what rots is met by readers, or by nobody.
        node["log.scrub.interval.ms"] = split(seed, "scrub").choice(("1500", "604800000"))
        duration_ms = rng.choice((5_000, 10_000, 20_000))
        drawn = cls(
            world,
            faults,
            workload,
            node,
            duration_ms=min(duration_ms, FURIOUS_MS) if faults.gap_max_ms <= 200 else duration_ms,
            kill_clients=rng.random() < 0.3,
            split_layout=rng.random() < 0.2,
        )
        # Generators of their own: what all other seeds draw stays as it is.
        if split(seed, "seesaw").random() < SEESAW_SHARE:
            return override(drawn, SEESAW)
        rng = split(seed, "services")
        if rng.random() < SERVICES_SHARE:
            drawn = override(drawn, BESIDE_SERVICES)
            drawn.services = ServiceOptions.draw(rng)
            destroys = any(kind in DESTRUCTIVE for kind in drawn.faults.kinds)
            drawn.services.lowers_min_isr = not destroys
        return drawn


class ScenarioRun:
    """One seed."""

    def __init__(self, seed: int, options: ScenarioOptions | None = None) -> None:
        preload()
        marks.reset()
        self.seed = seed
        self.options = options or ScenarioOptions.draw(seed)
        self.world = World(seed, self.options.world)
        self.cluster = SimCluster(self.world, self.options.node, split=self.options.split_layout)
        self.world.add_machine(CLIENT)
        self.history = History()
        self.workload = Workload(self.cluster.bootstrap, self.options.workload, self.history, lambda: self.world.now_ms)
        self.services: Services | None = None
        if self.options.services is not None:
            self.world.add_machine(SERVICES)
            self.services = Services(
                self.cluster.bootstrap, self.options.services, self.history, lambda: self.world.now_ms
            )
        self.nemesis = Nemesis(
            self.world,
            split(seed, "faults"),
            self.cluster.names,
            self.cluster.start,
            self.options.faults,
            stop=self.cluster.stop,
            leader=lambda: self.cluster.leader(split(seed, "victims", self.world.loop.now_us)),
            controller=self.cluster.controller,
            on_fault=self.cluster.inspect,
        )
        self.cluster.may_fall = self.nemesis.excused
        self.cluster.without_vote = self.nemesis.without_vote
        self.cluster.forced = self.nemesis.forced
        self.operator = Operator(
            self.world,
            self.cluster.quorums,
            self.cluster.controllers,
            self.nemesis.note,
            self.nemesis.victim,
            self.nemesis.force_vote,
            self.cluster.leaderless,
            self.cluster.elect_uncleanly,
            self.cluster.offline,
            self.nemesis.start_again,
        )
        self._reads = ConsistentRead()
        self._logs = LogCapture(lambda: self.world.now_ms)
        self._turns = 0
        self.world.loop.observe = self._observe
        self.world.loop.observe_every = 16

    def _observe(self) -> None:
        self.cluster.observe()
        self._reads.check(self.history.polls)
        self._turns += 1
        if self._turns % 200 == 0:
            self.cluster.inspect()

    def expanded(self) -> dict[str, Any]:
        return asdict(self.options)

    def timeline(self) -> list[tuple[int, str]]:
        return sorted([*self.nemesis.events, *self._logs.lines], key=lambda line: line[0])

    def execute(self) -> dict[str, Any]:
        """Run it.

        Raises:
            InvariantViolated
        """
        self.world.run(self._scenario())
        return self._figures()

    async def _scenario(self) -> None:
        for name in self.cluster.names:
            self.cluster.start(name)
        operating = self.world.loop.create_task(self.operator.work())
        await self.cluster.wait_ready(READY_MS)
        self._start_clients()
        await self.cluster.wait_for("the topics exist", READY_MS, lambda: self.workload.topics_exist)
        self.nemesis.note("topics exist: faults begin")
        if self.options.kill_clients:
            self.world.loop.call_later(self.options.duration_ms / 2000, self._replace_clients)
        if self.options.services is not None and self.options.services.kill:
            self.world.loop.call_later(self.options.duration_ms / 1500, self._replace_services)
        await self.nemesis.run(self.options.duration_ms, FAULTS)
        self.cluster.inspect()
        self.nemesis.heal()
        if self.services is not None:
            self.services.calm = True
        await self._recover()
        await self._finish()
        operating.cancel()
        self._judge()

    def _start_clients(self) -> None:
        self.world.spawn(CLIENT, self.workload.main)
        if self.services is not None and self.world.process(SERVICES) is None:
            self.world.spawn(SERVICES, self.services.main)

    def _replace_services(self) -> None:
        assert self.services is not None
        self.nemesis.note("kill the services, start others")
        self.world.kill(SERVICES)
        self.world.spawn(SERVICES, self.services.main)

    def _replace_clients(self) -> None:
        """Clients die too: what they had sent becomes indeterminate."""
        self.nemesis.note("kill the clients, start others")
        self.world.kill(CLIENT)
        self._start_clients()

    async def _recover(self) -> None:
        """Liveness: with everything healed the cluster gets whole again, and acknowledges."""
        await self.cluster.wait_ready(PROGRESS_MS)
        self.nemesis.note("every node is unfenced")
        await self._acks_again()
        await self.cluster.wait_in_sync(PROGRESS_MS)
        self.nemesis.note("every replica is in sync")
        await self.cluster.wait_for("every controller has its vote", PROGRESS_MS, self.cluster.all_vote)
        self.operator.victim = ""
        rng = split(self.seed, "minority")
        # At min.insync.replicas 1 a leader that hears nobody is soon alone in its ISR, and nobody may take its place.
        several = self.options.workload.topic_configs["min.insync.replicas"] != "1"
        if rng.random() < LASTING_SHARE and several:
            await self._do_without_one(rng)

    async def _acks_again(self) -> None:
        """In every partition under acks=all: what is answered by one broker, or by none, proves nothing."""
        workload = self.workload
        before = workload.acked.copy()

        def came() -> bool:
            more = workload.acked - before
            return more.total() >= _ACKS and all(where in more for where in workload.partitions)

        await self.cluster.wait_for("acks come again in every partition", PROGRESS_MS, came)
        self.nemesis.note("acks come again")

    async def _do_without_one(self, rng: random.Random) -> None:
        """A minority stays broken."""
        acks_synced = self.options.node.get("flush.policy") != "replicate"
        mend = cripple(self.nemesis, self.cluster.names, rng, acks_synced=acks_synced)
        await self.world.sleep_ms(1_000)
        await self._acks_again()
        mend()
        await self.cluster.wait_ready(PROGRESS_MS)
        await self.cluster.wait_in_sync(PROGRESS_MS)
        self.nemesis.note("every replica is in sync again")

    async def _finish(self) -> None:
        self.workload.sending = False
        lanes = len(self.options.workload.lanes)
        await self.cluster.wait_for("the producers have flushed", 2 * PROGRESS_MS, lambda: self.workload.idle >= lanes)
        self.world.kill(CLIENT)
        process = self.world.spawn(CLIENT, self.workload.read_everything)
        assert process.main is not None
        main = process.main
        await self.cluster.wait_for("everything is read", PROGRESS_MS, main.done)
        main.result()
        if self.services is not None:
            await self._finish_services(self.services)
        await self.cluster.wait_in_sync(PROGRESS_MS)
        await self.world.sleep_ms(2_000)  # followers hear of the last high watermark
        self.cluster.inspect()

    async def _finish_services(self, services: Services) -> None:
        """Every acknowledged record of a topic that lives is handled; then fresh clients look at everything."""
        deadline_ms = self.world.now_ms + PROGRESS_MS
        while not services.settled:
            if self.world.now_ms > deadline_ms:
                facts = {"open": services.open[:10], **services.figures()}
                raise InvariantViolated("HandledAtLeastOnce", "records are not handled and committed in time", **facts)
            await self.world.sleep_ms(50)
        self.world.kill(SERVICES)
        main = self.world.spawn(SERVICES, services.look_at_the_end).main
        assert main is not None
        await self.cluster.wait_for("the services' topics are read", PROGRESS_MS, main.done)
        main.result()

    def _judge(self) -> None:
        anomalies = judge(self.history)
        if anomalies:
            first = anomalies[0]
            raise InvariantViolated(first.name, str(first), count=len(anomalies))
        disks = {name: self.world.machines[name].disk for name in self.cluster.brokers}
        compacted = self.cluster.compacted()
        compare_replicas(disks, DATA, self.cluster.high_watermarks(), self.history.sends, compacted)
        if self.world.loop.unhandled:
            raise InvariantViolated("NoUnhandledErrors", _describe(self.world.loop.unhandled[0]))

    def _figures(self) -> dict[str, Any]:
        history = self.history
        virtual_s = self.world.now_ms / 1000
        return {
            "trace": f"{self.world.trace:016x}",
            "events": self.world.loop.events,
            "virtual_s": round(virtual_s, 1),
            "wakeups_per_s": {
                name: round(sum(one.wakeups for one in self.world.processes if one.machine.name == name) / virtual_s)
                for name in self.world.machines
            },
            "sent": len(history.sends),
            "acked": sum(send.acked for send in history.sends),
            "polled": sum(len(poll.records) for poll in history.polls),
            "faults": len(self.nemesis.events),
            **self.cluster.counted(),
            "marks": {name: count for name, count in marks.counts().items() if count},
            "struck": {name: count for name, count in sorted(self.nemesis.struck.items()) if count},
            "effects": {name: count for name, count in sorted(self.world.loop.effects.items()) if count},
            "realtime_lag_ms": round(realtime_lag_ms(history)),
            "errors": self.workload.errors,
            **({} if self.services is None else {"services": self.services.figures()}),
        }


def _describe(context: dict[str, Any]) -> str:
    """An unhandled error of a run, in one line."""
    error = context.get("exception")
    return f"{context.get('owner')} at {context.get('at_us')} us: {context.get('message')}: {error!r}"
