"""A cluster of production nodes in the simulated world, and the eyes of the checkers on it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from strandline.chaos.checkers.batches import StoredBatch
from strandline.chaos.checkers.compacted import tombstones_go
from strandline.chaos.checkers.copies import CopyChecks
from strandline.chaos.checkers.durable import CommittedIsDurable
from strandline.chaos.checkers.invariant import InvariantViolated
from strandline.chaos.checkers.markers import TransactionChecks
from strandline.chaos.checkers.metadata_logs import MetadataLogMatching
from strandline.chaos.checkers.partitions import PartitionChecks
from strandline.chaos.checkers.quorum import QuorumChecks, QuorumView
from strandline.chaos.checkers.stored import find_directory
from strandline.chaos.checkers.tiers import TierChecks
from strandline.chaos.nemesis.operator import all_vote, force_vote
from strandline.chaos.nemesis.voters import VoterOptions
from strandline.chaos.quorum_scenario import compare_metadata_logs, view
from strandline.chaos.sim.disk import SimDisk
from strandline.chaos.sim.object_store import SimStore, StoreConfig
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.process import Process
from strandline.chaos.sim.seeds import split as split_seed
from strandline.chaos.sim.world import World
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.format import format_directory
from strandline.cluster.node.node import Node
from strandline.cluster.node.run_node import FAILED_STOP_S
from strandline.controller import api, operations
from strandline.controller.controller import Controller
from strandline.controller.features_api import FeatureUpdate, UpdateFeaturesRequest, UpdateKind
from strandline.controller.metadata.features import (
    BEFORE_LEVELS,
    FIRST_LEVEL,
    KRAFT_FEATURE,
    METADATA_FEATURE,
    OWN_LEVELS,
)
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import PartitionRecord
from strandline.controller.moves_api import AlterReassignmentsRequest, PartitionMove
from strandline.controller.quorum.api import Voter
from strandline.controller.quorum.quorum import Quorum
from strandline.controller.quorum.state_file import PROMISE
from strandline.log.checkpoints import CLEAN_SHUTDOWN, META_PROPERTIES, copy_of, read_clean_shutdown
from strandline.log.disk import Disk, DiskFull
from strandline.log.incarnations import INCARNATIONS
from strandline.log.log_dir import read_meta_properties
from strandline.log.producer_state import ENDED_MAX
from strandline.log.rewriting import AWAY
from strandline.proto.errors import KafkaError
from strandline.proto.ids import Endpoint, NodeId, TopicIdPartition
from strandline.proto.marks import mark
from strandline.replica.manager import ReplicaManager
from strandline.replica.partition import Partition
from strandline.replica.states import Role

CLIENT_PORT = 9092
INTERNAL_PORT = 19092
DATA = "/data"
CLUSTER_ID = "simulated"
NEXT_ID = "simulated-again"
"""Cluster id of the cluster that takes the place of one that was lost."""
_IDS_OF_A_CLUSTER = 1_000_000
"""Directory ids."""


_EARLIER_BUILD = 0.3
"""Share of starts after a stop in good order that find a directory as a build without lives would have left it."""


@dataclass
class Live:
    """A node object and the process it runs in."""

    number: int
    process: Process
    node: Node


class SimCluster:
    """Nodes 1, 2, 3... on machines n1, n2, n3...: combined ones, or in the split layout as many controllers as brokers,
    the controllers first.

    `settings` are those of every node, by Kafka's names. A node that stops itself (its `failed` ends) is noted in
    `fallen`, and its process dies as a supervisor would see it.
    """

    def __init__(
        self,
        world: World,
        settings: Mapping[str, str],
        *,
        size: int = 3,
        split: bool = False,
        controllers: int | None = None,
        users: Sequence[str] = (),
        directories: int = 1,
        store: StoreConfig | None = None,
        older: float = 0.0,
        features: Sequence[str] = (),
        transactions: TransactionChecks | None = None,
        voters: VoterOptions | None = None,
    ) -> None:
        """`size` nodes, of which the first `controllers` (all, unless told) are voters too; `split`: `size` controllers
        and as many brokers. `users`: of SCRAM, as `strandline format --add-scram` has them; then clients log in.
        `directories`: of logs on each node, each on a disk of its own. `store`: how the object store behaves, for nodes
        whose `settings` name one. `older`: this share of all starts are those of a build from before there were levels,
        as in the middle of a rolling upgrade, and the cluster is at its level. `features`: levels that the cluster is
        formatted at. `transactions`: checks of the logs that transactions are written to. `voters`: they come and go;
        the spare controllers are the last machines."""
        self.world = world
        nodes, spares = 2 * size if split else size, 0 if voters is None else voters.spares
        self.names = [f"n{number}" for number in range(1, nodes + spares + 1)]
        self.controllers = [*self.names[: size if controllers is None else controllers], *self.names[nodes:]]
        self.brokers = self.names[size if split else 0 : nodes]
        self._voters = voters
        self.live: dict[str, Live] = {}
        self.ever: list[Live] = []
        """Every node object there was."""
        self.fallen: list[str] = []
        self.may_fall: Collection[str] = ()
        """Machines whose nodes have a reason to stop themselves."""
        self.without_vote: dict[str, None] = {}
        """Machines whose directory is to be formatted without a vote before its node starts."""
        self.forced: dict[str, None] = {}
        """Machines whose vote the operator forces before their nodes start."""
        self.self_stops = 0
        self.partition_checks = PartitionChecks()
        self._places: dict[tuple[int, str], str] = {}
        """(node, partition) -> the log directory in which its replica was seen last."""
        self._paths = [DATA, *(f"{DATA}{number}" for number in range(2, directories + 1))]
        self._orders = split_seed(world.seed, "orders of log.dirs")
        self._earlier_builds = split_seed(world.seed, "earlier builds")
        self._levels = split_seed(world.seed, "levels")
        self._older = older
        self._features = tuple(features)
        self.transactions = transactions
        self.on_views: Callable[[Sequence[QuorumView]], None] = lambda _: None
        """Gets what is seen of each quorum, whenever it is looked at."""
        self.ordered: Callable[[Sequence[str]], Sequence[str]] = self._draw_order
        """Order in which a start finds `log.dirs`."""
        self.store = SimStore(world.loop, split_seed(world.seed, "object store"), store)
        self._acks_synced = settings.get("flush.policy") != "replicate"
        self._newest: MetadataImage | None = None
        """The newest image of the nodes that were replaced by others."""
        self._looked: dict[Partition, tuple[Any, ...]] = {}
        """State of each replica that the cheap checks saw under `_looked_under`: the same again needs no second
        look."""
        self._looked_under: MetadataImage | None = None
        self._settings = dict(settings)
        self._users = tuple(users)
        self._born: dict[str, None] = {}
        """Machines that were formatted once: the users of a cluster come with its first format."""
        self._is_lost = False
        """True once the cluster is lost for good: no node starts any more."""
        self._wiped_before: dict[str, int] = {}
        """Number of times that a machine's disk was replaced up to the birth of this cluster."""
        self._begin(CLUSTER_ID)
        for name in self.names:
            world.add_machine(name, mounted=self._paths[1:])

    def _begin(self, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self.quorum_checks = QuorumChecks(lambda node: self.world.machines[f"n{node}"].disk)
        self.matching = MetadataLogMatching()
        self.copies = CopyChecks()
        self.durable = CommittedIsDurable(self.place, self._committed)
        self.tiers = TierChecks(self.store, cluster_id)
        self._looked.clear()

    def lose(self) -> None:
        """Every machine loses its power, and all its disks for good. Nothing starts before `begin_again`."""
        self._is_lost = True
        for name in self.names:
            self.world.power_cut(name)
            for disk in self.world.machines[name].disks:
                disk.wipe()
                disk.tails_lost.clear()
            self._wiped_before[name] = self.world.machines[name].disk.wipes
        self._newest = None
        for state in (self.live, self._places, self._born, self.without_vote, self.forced):
            state.clear()

    def begin_again(self) -> None:
        """Start the nodes of another cluster, with empty disks, under the same addresses. What it restores is held
        against what was known of the lost one."""
        self._is_lost = False
        self.partition_checks = PartitionChecks(lost=self.partition_checks)
        self._begin(NEXT_ID)
        for name in self.names:
            self.start(name)

    @property
    def bootstrap(self) -> str:
        """Bootstrap list for clients."""
        return ",".join(f"{name}:{CLIENT_PORT}" for name in self.brokers)

    def config(self, name: str) -> NodeConfig:
        """One node's configuration."""
        kinds = {"broker": self.brokers, "controller": self.controllers}
        protocol = "SASL_PLAINTEXT" if self._users else "PLAINTEXT"
        client = f"{protocol}://{name}:{CLIENT_PORT}," if name in self.brokers else ""
        return NodeConfig(
            {
                "node.id": name[1:],
                "process.roles": ",".join(kind for kind, names in kinds.items() if name in names),
                "listeners": f"{client}INTERNAL://{name}:{INTERNAL_PORT}",
                "log.dirs": ",".join(self._paths),
                **({} if self._voters is None else self._settings_of_voters(self._voters)),
                **self._settings,
            }
        )

    def _settings_of_voters(self, voters: VoterOptions) -> dict[str, str]:
        controllers = (f"{name}:{INTERNAL_PORT}" for name in self.controllers)
        return {
            "controller.quorum.bootstrap.servers": ",".join(controllers),
            "controller.quorum.auto.join.enable": str(voters.auto_join).lower(),
        }

    def start(self, name: str) -> None:
        """Start a node's process."""
        if self._is_lost:
            return
        self._newest = self.newest_image()
        self.live.pop(name, None)
        self.world.spawn(name, lambda ports: self._main(name, ports))

    async def _main(self, name: str, ports: Ports) -> None:
        process = self.world.process(name)
        assert process is not None
        try:
            await self._run(name, process, ports)
        except Exception as error:
            self.self_stops += 1
            if not self._may_stop_itself(name, process, error):
                self.fallen.append(f"{process} at {self.world.now_ms:.0f} ms: {type(error).__name__}: {error}")
            await self._stop_failed(process)
            self.world.loop.call_at_us(0, self.world.kill, name)

    async def _stop_failed(self, process: Process) -> None:
        """Stop a node as `run_node` does: release its resources, and end the process even if its parts still wait for
        something."""
        live = next((one for one in self.ever if one.process is process), None)
        if live is not None:
            await asyncio.wait([self.world.loop.create_task(live.node.stop())], timeout=FAILED_STOP_S)

    def _may_stop_itself(self, name: str, process: Process, error: Exception) -> bool:
        """True if a node may stop itself: over a disk that failed; and before it has come up, over one that is full."""
        if name in self.may_fall:
            return True
        came_up = any(one.process is process for one in self.ever)
        return not came_up and isinstance(error, DiskFull)

    async def _run(self, name: str, process: Process, ports: Ports) -> None:
        config = self.config(name)
        config = NodeConfig({**config.given, "log.dirs": ",".join(self.ordered(config.log_dirs))})
        if ports.disk.exists(f"{DATA}/{PROMISE}"):  # a format that was struck down had come so far
            self.without_vote.pop(name, None)
        others = [path for path in self._paths[1:] if self.world.machines[name].mounted[path].mounted]
        unformatted = any(not self._is_formatted(ports.disks[path], path) for path in others)
        if not self._is_formatted(ports.disk) or unformatted or name in self.without_vote:
            self._format(name, NodeConfig({**config.given, "log.dirs": ",".join([DATA, *others])}), ports)
        if name in self.forced:
            del self.forced[name]
            force_vote(ports.disk, DATA, read_meta_properties(ports.disk, DATA).directory_id)
        if self._earlier_builds.random() < _EARLIER_BUILD:
            _as_an_earlier_build(ports.disk)
        store = self.store.for_node(process)
        disks = {DATA: ports.disk, **ports.disks}
        node = Node(
            config,
            disk=disks[config.data_dir],
            disks=disks,
            clock=ports.clock,
            rng=ports.rng,
            rpc=ports.rpc,
            open_store=lambda _: store,
            supported=BEFORE_LEVELS if self._levels.random() < self._older else OWN_LEVELS,
        )
        live = self.live[name] = Live(int(name[1:]), process, node)
        await node.start()
        self.ever.append(live)
        await node.failed

    def _draw_order(self, paths: Sequence[str]) -> Sequence[str]:
        """Another one at every other start of a node of several directories (schedule 95)."""
        draws = len(paths) > 1 and self._orders.random() < 0.5
        return self._orders.sample(paths, len(paths)) if draws else paths

    @staticmethod
    def _is_formatted(disk: Disk, directory: str = DATA) -> bool:
        """True if the directory is formatted. A start that was cut short may have left the name away; the next one
        brings it back."""
        path = f"{directory}/{META_PROPERTIES}"
        return disk.exists(path) or disk.exists(path + AWAY)

    def _format(self, name: str, config: NodeConfig, ports: Ports) -> None:
        """Format as `strandline format` does, with the directory ids written down for every voter; a new disk gets
        an id of its own, which no voter set knows."""
        wipes = self.world.machines[name].disk.wipes - self._wiped_before.get(name, 0)
        first = 0 if self.cluster_id == CLUSTER_ID else _IDS_OF_A_CLUSTER
        named = self._named_at_format(name, wipes)
        voters = tuple(
            Voter(
                NodeId(int(voter[1:])),
                UUID(int=first + int(voter[1:]) + (1_000 * wipes if voter == name else 0)),
                Endpoint(voter, INTERNAL_PORT),
            )
            for voter in named
        )
        # A new disk is formatted every other time as the documentation says: without a vote.
        advised = name in self.without_vote
        again = self._is_formatted(ports.disk)
        without_vote = name in self.controllers and ((wipes % 2 == 1 and not again) or advised)
        new_voter = name in named and name not in self._born
        format_directory(
            ports.disk,
            config,
            cluster_id=self.cluster_id,
            initial_controllers=voters,
            rng=ports.rng,
            ignore_formatted=advised,
            without_vote=without_vote,
            add_scram=self._users if new_voter else (),
            features=self._levels_of_format if new_voter and not without_vote else (),
            disks=ports.disks,
        )
        self._born[name] = None
        self.without_vote.pop(name, None)

    def _named_at_format(self, name: str, wipes: int) -> Sequence[str]:
        """The voters that are named as a machine is formatted; none where they come and go, but to the first ones."""
        chosen = self._voters
        if chosen is None:
            return self.controllers
        spares = len(self.controllers) - chosen.spares
        first = self.controllers[: chosen.first_voters or spares]
        comes_later = bool(wipes) or name in self.without_vote
        if self.voters_come_and_go and (name not in first or comes_later):
            return ()
        return () if name in self.controllers[spares:] else first

    @property
    def voters_come_and_go(self) -> bool:
        """True if the cluster has kraft.version 1, by the newest image, or since its format."""
        image = self.newest_image()
        at_format = self._voters is not None and self._voters.first_voters > 0
        return at_format or (image is not None and image.finalized.get(KRAFT_FEATURE, 0) > 0)

    @property
    def _levels_of_format(self) -> tuple[str, ...]:
        if self._older:
            return (f"{METADATA_FEATURE}={FIRST_LEVEL}",)
        level = int(self._voters is not None and self._voters.first_voters > 0)
        return (*self._features, f"{KRAFT_FEATURE}={level}") if level else self._features

    def stop(self, name: str) -> None:
        """Ask a node for a controlled shutdown; its process ends when that is done."""
        live = self.live.get(name)
        if live is None or not live.process.alive:
            return

        async def stop() -> None:
            await live.node.stop()
            self.world.loop.call_soon(self.world.kill, name)

        live.process.context.copy().run(lambda: self.world.loop.create_task(stop()))

    # --- looking ---

    def place(self, node: int, name: str) -> tuple[SimDisk, str]:
        """Disk and directory of a node's replica of the partition called `name`, or where it would lie."""
        machine = self.world.machines[f"n{node}"]
        live = self.live.get(f"n{node}")
        if live is not None and live.process.alive:
            for partition in self.replicas(live):
                if partition.log is not None and str(partition.topic_partition) == name:
                    self._places[node, name] = partition.log.home
        paths = [self._places.get((node, name), DATA), *self._paths]
        places = [(machine.disk_of(path), f"{path}/{name}") for path in paths]
        return next((place for place in places if find_directory(*place) is not None), places[0])

    def nodes(self) -> Iterator[Live]:
        """The nodes whose processes live. One that is blocked in the middle of a callback is not to be looked at: its
        memory is ahead of what it has written, and it will never say so."""
        for live in self.live.values():
            if live.process.alive and not live.process.blocked:
                yield live

    def has_deposed_leader(self, name: str) -> bool:
        """True if a node still leads this partition in its own eyes, and a later leader was seen."""
        return any(
            str(one.topic_partition) == name and self.partition_checks.is_deposed(one)
            for live in self.nodes()
            for one in self.replicas(live)
        )

    def replicas(self, live: Live) -> list[Partition]:
        """A node's hosted partitions."""
        broker = live.node.broker
        if broker is None:
            return []
        manager: ReplicaManager = broker.replicas
        return list(manager._partitions.values())

    def leader(self, rng: random.Random) -> str | None:
        """The active controller's machine, or that of some partition's leader."""
        image = self.newest_image()
        leaders = [live.node.quorum.leader_and_epoch.leader_id for live in self.nodes()]
        if image is not None:
            leaders += [partition.leader for topic in image.topics.values() for partition in topic.partitions.values()]
        names = [f"n{leader}" for leader in leaders if leader is not None and f"n{leader}" in self.names]
        return rng.choice(names) if names else None

    def controller(self) -> str | None:
        """The machine of the leader of the quorum's newest epoch."""
        known = [live.node.quorum.leader_and_epoch for live in self.nodes()]
        leaders = [(one.epoch, int(one.leader_id)) for one in known if one.leader_id is not None]
        return f"n{max(leaders)[1]}" if leaders else None

    def newest_image(self) -> MetadataImage | None:
        """The image of the node that has applied most, dead or alive: a controller that commits a change, answers its
        broker, and dies at once, was perhaps the only one that knew of the commit."""
        images = [live.node.publisher.image for live in self.live.values()]
        if self._newest is not None:
            images.append(self._newest)
        return max(images, key=lambda image: image.offset, default=None)

    def _committed(self, key: TopicIdPartition) -> PartitionRecord | None:
        """A partition by the newest metadata."""
        image = self.newest_image()
        topic = None if image is None else image.topic_by_id.get(key.topic_id)
        return None if topic is None else topic.partitions.get(key.partition)

    def observe(self) -> None:
        """Check the cheap invariants; call often. Raises InvariantViolated."""
        image = self.newest_image()
        if image is not None and self.cluster_id == NEXT_ID:
            self.partition_checks.note_restored(image)
        views = self._views()
        self.quorum_checks.observe(views)
        self.on_views(views)
        if image is not self._looked_under:
            self._looked_under = image
            self._looked.clear()
        for live in self.nodes():
            for partition in self.replicas(live):
                core, log = partition.leader or partition.follower, partition.log
                if core is None or log is None:
                    looked: tuple[Any, ...] = (core, log)
                else:
                    ends = core.high_watermark, log.log_end_offset, log.log_start_offset
                    looked = (core, log, *ends, partition.leader and partition.leader.maximal_isr)
                if self._looked.get(partition) == looked:
                    continue  # most turns change one replica of twenty
                self._look(live, partition, image)
                self._looked[partition] = looked
        if self.fallen:
            raise InvariantViolated("NoNodeFalls", self.fallen[0])

    def _look(self, live: Live, partition: Partition, image: MetadataImage | None) -> None:
        """Check the cheap invariants of one replica. They depend on what `observe` has compared, on nothing else."""
        if partition.log is not None:  # a moved replica may lose its new disk before anybody asks where it is
            self._places[live.number, str(partition.topic_partition)] = partition.log.home
        self.partition_checks.observe(live.number, live.process.incarnation, self._disk_of(live, partition), partition)
        deleted = image is not None and partition.state.topic_id not in image.topic_by_id
        if self._acks_synced and not deleted:
            self.durable.check(live.number, partition)
        if partition.leader is not None and image is not None:
            self.partition_checks.check_isr(live.number, partition, image)
        plog = partition.log
        if self.transactions is not None and plog is not None and not deleted:
            self.transactions.check(
                live.number,
                partition.topic_partition,
                self._disk_of(live, partition),
                plog.directory,
                high_watermark=partition.high_watermark,
                stable=plog.last_stable_offset(partition.high_watermark),
                leader_epoch=None if partition.leader is None else partition.leader.leader_epoch,
                merged=len(plog.producers.ended) >= ENDED_MAX,
            )

    def _views(self) -> list[QuorumView]:
        views = (view(live.node.quorum, live.number, live.process) for live in self.nodes())
        return [seen for seen in views if seen is not None]

    def inspect(self) -> None:
        """Check the expensive invariants; call occasionally. Raises InvariantViolated."""
        self.observe()
        compare_metadata_logs(self.matching, self._views(), self.world)
        for live in self.nodes():
            for partition in self.replicas(live):
                self.partition_checks.scan(live.number, self._disk_of(live, partition), partition)
        image = self.newest_image()
        if image is not None:
            self._inspect_copies(image)
            self.tiers.inspect(image, self.partition_checks.partitions, self._places_of)

    @staticmethod
    def _disk_of(live: Live, partition: Partition) -> SimDisk:
        machine = live.process.machine
        return machine.disk if partition.log is None else machine.disk_of(partition.log.directory)

    def _inspect_copies(self, image: MetadataImage) -> None:
        """Check that every broker that may be elected has all committed records, and its disk too."""
        living = {live.number: live for live in self.nodes()}
        brokers = [int(name[1:]) for name in self.brokers]
        for key, known in self.partition_checks.partitions.items():
            topic = image.topic_by_id.get(key.topic_id)
            state = None if topic is None else topic.partitions.get(key.partition)
            if state is None:
                continue
            ends: dict[int, int] = {}
            serving: dict[int, int] = {}
            for node, live in living.items():
                for partition in self.replicas(live):
                    log = partition.log
                    if partition.state.topic_id_partition != key or log is None:
                        continue
                    ends[node] = log.log_end_offset
                    registered = image.brokers.get(NodeId(node))
                    same = registered is not None and registered.incarnation_id == live.node.incarnation_id
                    if same and log.directory not in self._disk_of(live, partition).rotten:
                        serving[node] = log.log_end_offset
            elr = state.eligible_leader_replicas
            proven = [node for node in elr if not self._has_lost_tail(node, known.name)]
            self.copies.check_candidates(known, (*state.isr, *proven), serving)
            others = {node: self.place(node, known.name) for node in brokers if node not in ends}
            self.copies.check_somewhere(known, ends, others)
            synced = not any(broker.acks_unsynced for broker in image.brokers.values())
            if synced and not state.isr:
                self.copies.check_in_doubt(known, (*elr, *state.last_known_elr), ends, others)

    def _has_lost_tail(self, node: int, partition: str) -> bool:
        """True if the node's disk once did not give back what it had synced: in no ISR the replica is compared with
        the others (rule B30: nothing proves where its log ends)."""
        disk, directory = self.place(node, partition)
        return directory in disk.tails_lost

    def _places_of(self, partition: str) -> dict[str, tuple[SimDisk, str]]:
        """Disks and directories where the brokers, dead or alive, have their replicas of a partition, or would."""
        return {name: self.place(int(name[1:]), partition) for name in self.brokers}

    def high_watermarks(self) -> dict[str, dict[str, int]]:
        """Partition -> node -> high watermark."""
        found: dict[str, dict[str, int]] = {}
        for live in self.nodes():
            for partition in self.replicas(live):
                found.setdefault(str(partition.topic_partition), {})[f"n{live.number}"] = partition.high_watermark
        return found

    def compacted(self) -> dict[str, bool]:
        """Partitions of compacted topics, and whether their tombstones may be gone."""
        logs = [one.log for live in self.nodes() for one in self.replicas(live) if one.log is not None]
        return {str(log.topic_partition): tombstones_go(log.config) for log in logs if log.config.compacted}

    def counted(self) -> dict[str, int]:
        """Number of times that the run reached each case that it is meant to test."""
        counters = [live.node.broker.replicas.counters for live in self.ever if live.node.broker is not None]
        epochs = (epoch for known in self.partition_checks.partitions.values() for epoch in known.leaders)
        return {
            "incarnations": len(self.ever),
            "quorum_epochs": max((live.node.quorum.leader_and_epoch.epoch for live in self.ever), default=0),
            "leader_epochs": max(epochs, default=0),
            "isr_shrinks": sum(one.isr_shrinks for one in counters),
            "isr_expands": sum(one.isr_expands for one in counters),
            "duplicates": sum(one.duplicates for one in counters),
            "truncations": self.partition_checks.truncations,
            "compactions": sum(
                live.node.broker.replicas.compactor.figures.passes for live in self.ever if live.node.broker is not None
            ),
            "offline_logs": sum(one.offline_logs for one in counters),
            "self_stops": self.self_stops,
            "durable_images": self.durable.looked,
            "tiered_segments": self.tiers.looked,
            "tier_reads": self.store.reads,
        }

    def leaks(self) -> list[str]:
        """Objects that the metadata do not name."""
        image = self.newest_image()
        return [] if image is None else self.tiers.leaks(image)

    def check_leaks(self) -> None:
        """Check for leaks, at the end of a run. Raises InvariantViolated (NothingLeaks)."""
        image = self.newest_image()
        if image is not None:
            self.tiers.check_at_the_end(image)

    def tiered_batches(self) -> dict[str, list[tuple[StoredBatch, bytes]]]:
        """Batches of partitions in the object store, by the names of their directories."""
        image = self.newest_image()
        return {} if image is None else self.tiers.batches(image)

    # --- waiting ---

    async def wait_ready(self, timeout_ms: float) -> None:
        """Wait until every node does its work. Raises InvariantViolated (Progress)."""
        await self.wait_for("every node is unfenced", timeout_ms, lambda: self._all(lambda live: live.node.ready))

    async def wait_in_sync(self, timeout_ms: float) -> None:
        """Wait until every replica of every partition is in its ISR. Raises InvariantViolated (Progress)."""

        await self.wait_for("every replica is in its ISR", timeout_ms, self.in_sync)

    def in_sync(self) -> bool:
        """True if every replica of every partition is in its ISR."""
        image = self.newest_image()
        return image is not None and all(
            len(partition.isr) == len(partition.replicas)
            for topic in image.topics.values()
            for partition in topic.partitions.values()
        )

    def leaderless(self, every: bool) -> frozenset[tuple[str, int]]:
        """Partitions without a leader although `every` node, or each one that runs, works normally."""
        image = self.newest_image()
        living = list(self.nodes())
        if image is None or not all(live.node.ready for live in living) or (every and len(living) < len(self.names)):
            return frozenset()
        return frozenset(
            (topic.name, partition.partition) for topic, partition in image.partitions() if not partition.has_leader
        )

    def offline(self) -> frozenset[str]:
        """Machines whose nodes have a replica that is offline."""
        return frozenset(
            f"n{live.number}"
            for live in self.nodes()
            if live.node.broker is not None
            and any(status.role is Role.OFFLINE for status in live.node.broker.replicas.hosted())
        )

    def elect_uncleanly(self, partitions: frozenset[tuple[str, int]]) -> None:
        """Elect as `strandline topic elect --unclean` does."""
        refs = tuple(api.PartitionRef(topic, number) for topic, number in sorted(partitions))
        request = api.ElectLeadersRequest(api.ElectionKind.UNCLEAN, refs)
        for live in self.nodes():
            controller = live.node.controller
            if controller is not None and controller.active:
                work = controller.carry_out(operations.ELECT_LEADERS, request)
                live.process.context.copy().run(self.world.loop.create_task, work)

    def reassign(self, wanted: Mapping[tuple[str, int], tuple[NodeId, ...] | None]) -> None:
        """Ask for moves as `kafka-reassign-partitions.sh` does; None: cancel. A refusal changes nothing."""
        moves = tuple(PartitionMove(topic, number, replicas) for (topic, number), replicas in wanted.items())

        async def ask(controller: Controller) -> None:
            with suppress(KafkaError):
                await controller.carry_out(operations.ALTER_REASSIGNMENTS, AlterReassignmentsRequest(moves))

        for live in self.nodes() if moves else ():
            controller = live.node.controller
            if controller is not None and controller.active:
                live.process.context.copy().run(self.world.loop.create_task, ask(controller))

    def roll(self) -> None:
        """Start this build alone from now on."""
        self._older = 0.0

    def is_older(self, name: str) -> bool:
        """True if the build before runs on a machine."""
        live = self.live.get(name)
        return live is not None and live.process.alive and live.node.publisher.supported is BEFORE_LEVELS

    def level(self) -> int:
        """The metadata.version, by the newest image."""
        image = self.newest_image()
        return FIRST_LEVEL if image is None else image.metadata_version

    def ask_for_level(self, level: int, feature: str = METADATA_FEATURE) -> None:
        """Ask as `strandline upgrade finalize` and `downgrade` do; a refusal says that a node is away."""
        upgrade = feature != METADATA_FEATURE or level > self.level()
        kind = UpdateKind.UPGRADE if upgrade else UpdateKind.SAFE_DOWNGRADE
        request = UpdateFeaturesRequest((FeatureUpdate(feature, level, kind),))

        async def ask(controller: Controller) -> None:
            with suppress(KafkaError):
                await controller.carry_out(operations.UPDATE_FEATURES, request)
                mark("level-changed-under-faults")

        for live in self.nodes():
            controller = live.node.controller
            if controller is not None and controller.active:
                live.process.context.copy().run(self.world.loop.create_task, ask(controller))

    def all_vote(self) -> bool:
        """True if every controller has its vote, beyond doubt."""
        return all_vote(self.quorums(), self.controllers)

    def is_dynamic(self) -> bool:
        """True if each node's voter set is one of kraft.version 1."""
        return self._all(lambda live: live.node.quorum.voters.dynamic)

    def quorums(self) -> dict[str, Quorum]:
        """Quorums by machine, of those whose processes live."""
        return {f"n{live.number}": live.node.quorum for live in self.nodes()}

    def _all(self, holds: Callable[[Live], bool]) -> bool:
        living = list(self.nodes())
        return len(living) == len(self.names) and all(holds(live) for live in living)

    async def wait_for(self, what: str, timeout_ms: float, holds: Callable[[], bool]) -> None:
        """Poll `holds` until it does. Raises InvariantViolated (Progress) with the state of all nodes."""
        deadline_ms = self.world.now_ms + timeout_ms
        while not holds():
            if self.world.now_ms > deadline_ms:
                raise InvariantViolated("Progress", f"not within {timeout_ms:.0f} ms: {what}", state=self.state())
            await self.world.sleep_ms(50)

    def state(self) -> dict[str, object]:
        """A few lines about every node, for a failed run."""
        found: dict[str, object] = {}
        for live in self.nodes():
            leader = live.node.quorum.leader_and_epoch
            found[f"n{live.number}"] = {
                "ready": live.node.ready,
                "quorum": (leader.leader_id, leader.epoch, live.node.quorum.high_watermark),
                "replicas": [
                    f"{one.topic_partition} {one.role.name} leader {one.state.leader} epoch {one.state.leader_epoch} "
                    f"isr {one.state.isr} hw {one.high_watermark} end {one.log.log_end_offset if one.log else None}"
                    for one in self.replicas(live)
                ],
            }
        return found


def _as_an_earlier_build(disk: Disk) -> None:
    """Take away what a build before lives does not leave when it stops in good order (schedule 94)."""
    mark, lives = f"{DATA}/{CLEAN_SHUTDOWN}", f"{DATA}/{INCARNATIONS}"
    if disk.exists(mark) and disk.exists(lives) and (read_clean_shutdown(disk, mark) or -1) >= 0:
        for path in (lives, copy_of(lives)):
            disk.unlink(path)
        disk.sync_dir(DATA)
