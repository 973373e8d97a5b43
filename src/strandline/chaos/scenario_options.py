"""Options that a seed of the cluster scenario draws: its world, its faults, what its clients do, the settings of its
nodes."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from strandline.chaos.drains import DRAINS_SHARE
from strandline.chaos.nemesis.kinds import BESIDE, DESTRUCTIVE, NODE_KINDS, OF_CLIENTS, OF_CLOCKS, OF_SEVERAL
from strandline.chaos.nemesis.options import FaultOptions
from strandline.chaos.nemesis.voters import VOTERS_SHARE, VoterOptions
from strandline.chaos.options import override
from strandline.chaos.restored import RESTORED_SHARE, RestoredOptions
from strandline.chaos.secured.options import SECURED_SHARE, SecuredOptions
from strandline.chaos.services.options import NODE, ServiceOptions
from strandline.chaos.sim.disk import DiskConfig
from strandline.chaos.sim.links import NetworkConfig
from strandline.chaos.sim.seeds import split
from strandline.chaos.sim.world import WorldConfig
from strandline.chaos.tiered import SERVICES_BESIDE, TIERED_SHARE, TieredOptions
from strandline.chaos.transacting.options import (
    BESIDE_TRANSACTIONS,
    NODE_BESIDE_TRANSACTIONS,
    TRANSACTING_SHARE,
    TransactionOptions,
)
from strandline.chaos.users.options import BESIDE_USERS, NODE_BESIDE_USERS, USERS_SHARE, UserOptions
from strandline.chaos.workload import WorkloadOptions
from strandline.log.config import INT64_MAX

FURIOUS_MS = 8_000
"""Longest storm of faults every few milliseconds: a hundred restarts teach no more than fifty."""

SEESAW_SHARE = 0.02
"""Share of the seeds in which two brokers lead in turn and never hear each other (`SEESAW`). No other fault is
injected there."""

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
"""Options of those seeds: each leader gets a tail of its own, so who comes back last finds that its log leaves the
leader's several epochs ago (mark `diverged-over-epochs`). Left to chance, not one seed in a thousand does so."""


DATED_SHARE = 0.25
"""Share of the seeds in which clocks are set by days."""

DATED: dict[str, Any] = {
    "node": {
        "log.retention.check.interval.ms": "500",
        "offsets.retention.check.interval.ms": "500",
        "log.stray.delete.delay.ms": "604800000",
    },
    "workload": {"topic_configs": {"retention.ms": "604800000"}},
}
"""Options of those seeds: a week is kept of everything, so a clock that is wrong by more shows. Runs take seconds,
so nothing else makes a record a week old."""

DIRECTORIES_SHARE = 0.3
"""Share of the seeds in which nodes have two or three log directories, on disks of their own."""

RESTING_SHARE = 0.5
"""Share of the seeds with services in which one topic rests, and a consumer stands at its end."""
DAMAGED_FILES_SHARE = 0.25
"""Share of the seeds in which files beside the logs are damaged on any machine, several in one run. Not where one
machine's copy may be the only one: a node that cannot tell what it has leads only after others."""

CUT_OFF_SHARE = 0.3
"""Share of the seeds in which nodes are cut off from each other, and not from clients."""

LEVELS_SHARE = 0.2
"""Share of the seeds in which nodes of two builds are mixed, as in a rolling upgrade, at the level of the older one."""

ROLLED_SHARE = 0.6
"""Share of those seeds in which the upgrade is finalized, and taken back, in the middle of the faults."""

REASSIGNED_SHARE = 0.3
"""Share of the seeds in which partitions are moved between brokers in the middle of the faults."""

SERVICES_SHARE = 0.2
"""Share of the seeds in which services run beside the plain clients (`chaos.services`), which do less there."""

BESIDE_SERVICES: dict[str, Any] = {
    "workload": {"topics": {"alpha": 1}, "lanes": [0], "many": 60, "consumers": 1, "rewinds_max": 0},
    "node": NODE,
}
"""Options of those seeds: a seed is to cost what any other does."""


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
    older: float = 0.0
    """The share of all starts that are those of the build before, in a cluster at its level."""
    rolled_after_ms: float | None = None
    """Milliseconds after which those nodes are upgraded to this build, and the level is raised and lowered; None:
    never."""
    fewest_replicas: int | None = None
    """Minimum replicas of a partition while an operator moves it between brokers during the faults; None: no
    operator."""
    directories: int = 1
    """Log directories of each node, each on a disk of its own."""
    """Three controllers and three brokers instead of three combined nodes."""
    services: ServiceOptions | None = None
    users: UserOptions | None = None
    secured: SecuredOptions | None = None
    tiered: TieredOptions | None = None
    restored: RestoredOptions | None = None
    transactions: TransactionOptions | None = None
    voters: VoterOptions | None = None
    drains: bool = False
    """An operator cordons and drains brokers in the middle of the faults."""

    def __post_init__(self) -> None:
        """Remove options that exclude each other: see `_draw_voters` and `_draw_drains`."""
        if self.older or self.restored is not None:
            self.voters = None
        if self.older or self._others:
            self.drains = False

    @property
    def _others(self) -> bool:
        """True if there are other clients than the plain ones."""
        return any((self.services, self.users, self.secured, self.restored, self.transactions))

    @classmethod
    def draw(cls, seed: int, *, scenario: str = "cluster") -> ScenarioOptions:
        """`scenario`: "tiered": every seed has tiered topics, and more of them have services; "transactions": every
        seed has transactional clients, and none of the other services and users."""
        tiered, transactions = scenario == "tiered", scenario == "transactions"
        rng = split(seed, "options")
        world = _draw_world(rng)
        workload = WorkloadOptions.draw(rng)
        if transactions:
            workload.topic_configs["min.insync.replicas"] = "2"
        # An ISR of one may hold the only copy of what is committed: nothing may destroy it.
        spared = DESTRUCTIVE if workload.topic_configs["min.insync.replicas"] == "1" else ()
        kinds = tuple(kind for kind in NODE_KINDS if kind not in spared)
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
        if (
            rng.random() < 0.2
            and not transactions
            and not any("power" in kind or kind in needs_disks for kind in faults.kinds)
        ):
            # The memory of min.insync.replicas machines counts: no promise over power cuts. Nor over lost disks: each
            # restart may have lost something there (KIP-966), so that the last one in the ISR may be the only one left.
            node["flush.policy"] = "replicate"
        # Machines' clocks are hours apart here: clients of one may be of the future to another.
        node["log.message.timestamp.after.max.ms"] = str(INT64_MAX)
        # A generator of its own: what is drawn besides stays as it is.
        node["disk.sync.timeout.ms"] = split(seed, "hung syncs").choice(("1000", "5000"))
        node["broker.silence.timeout.ms"] = split(seed, "silence").choice(("500", "2500"))
        # In some, disks take long to make files: a few partitions are more than a turn of the event loop makes.
        world.disk.name_us = split(seed, "slow names").choice((0, 0, 0, 400, 4_000))
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
        if split(seed, "seesaw").random() < SEESAW_SHARE and scenario == "cluster":
            return override(drawn, SEESAW)
        drawn._draw_directories(split(seed, "directories"))
        drawn._draw_moves(split(seed, "reassignments"))
        drawn._draw_levels(split(seed, "levels of builds"), never=transactions)
        one_may_have_all = workload.topic_configs["min.insync.replicas"] == "1" or "flush.policy" in node
        if split(seed, "damaged files").random() < DAMAGED_FILES_SHARE and not one_may_have_all:
            drawn.faults.kinds = (*drawn.faults.kinds, *BESIDE)
        if split(seed, "cut off").random() < CUT_OFF_SHARE:
            drawn.faults.kinds = (*drawn.faults.kinds, *OF_CLIENTS)
        tier_rng = split(seed, "tiered")
        beside = tiered and tier_rng.random() < SERVICES_BESIDE
        rng = split(seed, "services")
        if (rng.random() < SERVICES_SHARE or beside) and not transactions:
            drawn = override(drawn, BESIDE_SERVICES)
            drawn.services = ServiceOptions.draw(rng)
            drawn.node["log.cleaner.backoff.ms"] = str(drawn.services.cleaner_backoff_ms)
            destroys = any(kind in DESTRUCTIVE for kind in drawn.faults.kinds)
            drawn.services.lowers_min_isr = not destroys
            drawn.services.rests = split(seed, "resting").random() < RESTING_SHARE
        if not transactions:
            drawn = drawn._draw_users(split(seed, "users"))
        if (rng := split(seed, "secured")).random() < SECURED_SHARE and not transactions:
            drawn.secured = SecuredOptions.draw(rng)
            drawn.node |= drawn.secured.node
        if tiered or tier_rng.random() < TIERED_SHARE:
            drawn = drawn._draw_tiered(tier_rng, None if transactions else split(seed, "restored"))
        drawn._draw_voters(split(seed, "voters"), never=transactions)
        drawn = drawn._draw_dates(split(seed, "dates"))
        rngs = split(seed, "transactions"), split(seed, "races of transactions")
        return drawn._draw_transactions(*rngs, always=transactions)._draw_drains(split(seed, "drains"))

    def _draw_drains(self, rng: random.Random) -> ScenarioOptions:
        """Whether brokers are cordoned and drained. Where the plain clients are alone: while one of three brokers is
        cordoned no topic of three replicas can be made, which others want to do."""
        return replace(self, drains=rng.random() < DRAINS_SHARE)

    def _draw_voters(self, rng: random.Random, *, never: bool) -> None:
        """Whether voters come and go. Not beside builds that know nothing of it, nor where the cluster is lost: the
        other one begins with voters of its own."""
        if rng.random() < VOTERS_SHARE and not (never or self.older or self.restored):
            self.voters = VoterOptions.draw(rng, self.duration_ms)

    def _draw_levels(self, rng: random.Random, *, never: bool) -> None:
        """Draw whether nodes of two builds are mixed, and when the older ones are rolled."""
        if rng.random() < LEVELS_SHARE and not never:
            self.older = rng.choice((0.2, 0.5, 0.8))
            if rng.random() < ROLLED_SHARE:
                self.rolled_after_ms = rng.uniform(0, self.duration_ms / 2)

    def _draw_moves(self, rng: random.Random) -> None:
        """Draw whether partitions are moved between brokers. One replica is left where one in sync is enough, and
        nothing destroys it."""
        if rng.random() < REASSIGNED_SHARE:
            one_is_enough = self.workload.topic_configs["min.insync.replicas"] == "1"
            self.fewest_replicas = 1 if one_is_enough and "flush.policy" not in self.node else 2

    def _draw_users(self, rng: random.Random) -> ScenarioOptions:
        if rng.random() >= USERS_SHARE:
            return self
        drawn = override(self, {} if self.services is not None else BESIDE_USERS)
        drawn.users = UserOptions.draw(rng)
        drawn.node = NODE_BESIDE_USERS | drawn.node
        return drawn

    def _draw_transactions(self, rng: random.Random, races: random.Random, *, always: bool) -> ScenarioOptions:
        """Transactional clients, where no other clients but the plain ones are, and nodes of one build. Not where one
        machine may have the only copy of something: what a coordinator has promised is on no other disk then."""
        beside = self.services or self.users or self.secured or self.restored or self.older
        one_may_have_all = self.workload.topic_configs["min.insync.replicas"] == "1" or "flush.policy" in self.node
        if beside or one_may_have_all or (rng.random() >= TRANSACTING_SHARE and not always):
            return self
        drawn = override(self, BESIDE_TRANSACTIONS)
        drawn.transactions = TransactionOptions.draw(rng)
        drawn.node = NODE_BESIDE_TRANSACTIONS | drawn.node
        return override(drawn, drawn.transactions.draw_races(races, drawn.duration_ms))

    def _draw_tiered(self, rng: random.Random, restored_rng: random.Random | None) -> ScenarioOptions:
        """Options of tiered topics, and whether the cluster is lost and restored from their object store (None: it is
        not)."""
        tier = TieredOptions.draw(rng, self.workload)
        drawn = override(self, {"tiered": tier, **tier.changes(self.faults.kinds)})
        if drawn.services is not None:
            drawn.services.tiered = dict(tier.topics)
        if restored_rng is None or restored_rng.random() >= RESTORED_SHARE:
            return drawn
        if drawn.services is None and drawn.secured is None and drawn.users is None:
            drawn.restored = RestoredOptions.draw(restored_rng)
        return drawn

    def _draw_dates(self, rng: random.Random) -> ScenarioOptions:
        """Whether clocks are set by days, and who stamps."""
        if rng.random() >= DATED_SHARE:
            return self
        drawn = override(self, DATED)
        wiped = "wipe" in drawn.faults.kinds
        drawn.faults.kinds = (*drawn.faults.kinds, *(kind for kind in OF_CLOCKS if wiped or kind not in DESTRUCTIVE))
        drawn.workload.topic_configs["message.timestamp.type"] = rng.choice(("CreateTime", "LogAppendTime"))
        return drawn

    def _draw_directories(self, rng: random.Random) -> None:
        """Draw the number of directories, and which faults of one of them there are besides."""
        if rng.random() >= DIRECTORIES_SHARE:
            return
        self.directories = rng.choice((2, 3))
        kinds = rng.sample(OF_SEVERAL, rng.choice((0, 1, 1, 2, 3)))
        if self.workload.topic_configs["min.insync.replicas"] == "1":
            kinds = [kind for kind in kinds if kind not in DESTRUCTIVE]
        if self.node.get("flush.policy") == "replicate":
            kinds = [kind for kind in kinds if kind == "unmount_one"]
        self.faults.kinds = (*self.faults.kinds, *kinds)


def _draw_world(rng: random.Random) -> WorldConfig:
    """Network, disks and clocks."""
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
    return WorldConfig(network, disk, clock_rate_error=rng.choice((0.0, 0.001, 0.03)), wall_error_ms=1000.0)
