"""A cluster whose faults are scripted, in a simulated world: real logs, real frames, and answers lost on purpose.

One process plays every broker, one port each. What is stored and how sequences are judged is the real `PartitionLog`;
only leadership, and when an answer is lost or an error given, is the script's. Fetch sees everything that was appended.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.world import World, WorldConfig
from strandline.log.batch import Record, decode_records, iter_batches
from strandline.log.config import LogConfig
from strandline.log.log_dir import LogDir, format_log_dir
from strandline.log.partition_log import PartitionLog
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NodeId, TopicPartition
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api

HOST = "brokers"
FIRST_PORT = 9091
CLUSTER = "scripted"

OFFERED = {
    Api.PRODUCE: (3, 13), Api.FETCH: (4, 17), Api.LIST_OFFSETS: (1, 10), Api.METADATA: (1, 13),
    Api.API_VERSIONS: (0, 5), Api.INIT_PRODUCER_ID: (0, 5), Api.OFFSET_FOR_LEADER_EPOCH: (2, 4),
}  # fmt: skip


@dataclass
class Act:
    """What the script does to one produce request."""

    apply: bool = True
    error: ErrorCode = ErrorCode.NONE
    answer: bool = True
    delay_ms: float = 0.0


@dataclass
class Partition:
    """One partition: its log, who leads, since which epoch."""

    log: PartitionLog
    leader: int
    epoch: int = 0


@dataclass
class ScriptedCluster:
    """The brokers' shared state, and the script."""

    nodes: int = 3
    partitions: dict[TopicPartition, Partition] = field(default_factory=dict)
    topic_ids: dict[str, UUID] = field(default_factory=dict)
    offered: dict[Api, tuple[int, int]] = field(default_factory=lambda: dict(OFFERED))
    on_produce: Callable[[TopicPartition], Act] = lambda _: Act()
    on_batch: Callable[[TopicPartition, bytes], Act] | None = None
    """As `on_produce`, which sees no records."""
    on_epoch_question: Callable[[TopicPartition], ErrorCode] = lambda _: ErrorCode.NONE
    features: dict[str, Any] = field(default_factory=dict)
    """Fields of the answer to ApiVersions that tell of finalized features."""
    requests: Counter[Api] = field(default_factory=Counter)
    next_producer_id: int = 1000
    appended: asyncio.Event = field(default_factory=asyncio.Event)
    advertised: dict[int, tuple[str, int]] = field(default_factory=dict)
    cluster_id: str = CLUSTER
    connections: dict[asyncio.StreamWriter, set[Api]] = field(default_factory=dict)
    """Connections of clients that are open, and what came over each."""
    send_away: set[int] = field(default_factory=set)
    """Brokers that answer Metadata with REBOOTSTRAP_REQUIRED."""
    mute: set[Api] = field(default_factory=set)
    """Requests of these kinds are never answered."""
    misrouted: int = 0
    """Connections of clients that wanted to reach another broker."""
    silent_nodes: set[int] = field(default_factory=set)
    """Brokers that take produce requests and never answer, as a paused process does."""
    deaf_nodes: dict[int, dict[TopicPartition, tuple[int, int]]] = field(default_factory=dict)
    """Brokers that have heard of no election since `deafen`, and the leaders and epochs that they tell."""
    records: dict[TopicPartition, list[Record]] = field(default_factory=dict)
    """What each log held at the end."""

    def open(self, ports: Ports, topics: dict[str, int]) -> None:
        """Make the topics' logs on the process' disk."""
        self.clock = ports.clock
        disk = ports.disk
        format_log_dir(disk, "/data", "scripted", NodeId(1), UUID(int=1))
        log_dir = LogDir.open(disk, "/data", ports.clock, LogConfig(preallocate_bytes=0))
        for number, (topic, count) in enumerate(topics.items(), 1):
            self.topic_ids[topic] = UUID(int=number)
            for partition in range(count):
                where = TopicPartition(topic, partition)
                log = log_dir.create(where, self.topic_ids[topic])
                log.assign_epoch_start(0, 0)
                self.partitions[where] = Partition(log, 1 + partition % self.nodes)

    def move(self, where: TopicPartition, leader: int) -> None:
        """Elect another leader."""
        part = self.partitions[where]
        part.leader = leader
        part.epoch += 1
        part.log.assign_epoch_start(part.epoch, part.log.log_end_offset)

    def deafen(self, node: int) -> None:
        """From now on this broker tells clients who leads now, whatever comes."""
        self.deaf_nodes[node] = {where: (part.leader, part.epoch) for where, part in self.partitions.items()}

    def become(self, cluster_id: str, *, keep: Api | None = None) -> None:
        """Be another cluster with the same topics and addresses; connections to the one before break, but those over
        which requests of this kind came."""
        self.cluster_id = cluster_id
        for writer, apis in list(self.connections.items()):
            if keep not in apis:
                writer.close()

    async def keep_records(self) -> None:
        """Read every log whole, while its disk is still there."""
        for where, part in self.partitions.items():
            found = self.records[where] = []
            offset: int = part.log.log_start_offset
            while offset < part.log.log_end_offset:
                read = await part.log.read_cold(offset, 1 << 30, part.log.log_end_offset)
                found += [item for _, batch in iter_batches(read.data) for item in decode_records(batch)]
                offset = found[-1].offset + 1

    async def serve(self) -> None:
        """Listen for every broker, for ever."""
        for node in range(1, self.nodes + 1):
            await asyncio.start_server(lambda r, w, node=node: self._serve(node, r, w), HOST, FIRST_PORT + node)
        await asyncio.get_running_loop().create_future()

    async def _serve(self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        apis = self.connections.setdefault(writer, set())
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                apis.add(Api(int.from_bytes(frame[:2])))
                answer = await self._answer(node, frame)
                if answer is None:
                    return
                if answer:
                    writer.write(struct.pack(">i", len(answer)) + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            del self.connections[writer]
            writer.close()

    async def _answer(self, node: int, frame: bytes) -> bytes | None:
        """The answer; empty for none wanted, None to close the connection."""
        key, version, correlation_id, client_id_size = struct.unpack_from(">hhih", frame)
        api = Api(key)
        body = frame[10 + max(client_id_size, 0) + (1 if api.flexible(version) else 0) :]
        self.requests[api] += 1
        if api in self.mute:
            return b""
        low, high = self.offered.get(api, (0, 0))
        header = struct.pack(">i", correlation_id) + (b"\0" if api.flexible_answer_header(version) else b"")
        if api is Api.API_VERSIONS and not low <= version <= high:
            return struct.pack(">i", correlation_id) + self._versions(0, ErrorCode.UNSUPPORTED_VERSION)
        assert low <= version <= high, f"{api.name} v{version} was not offered"
        if api is Api.API_VERSIONS:
            asked = schema.request(api, version).decode(body)
            wanted = (asked.cluster_id, asked.node_id) if version >= 5 and asked.node_id >= 0 else None
            misrouted = wanted is not None and wanted != (self.cluster_id, node)
            self.misrouted += misrouted
            return header + self._versions(version, ErrorCode.REBOOTSTRAP_REQUIRED if misrouted else ErrorCode.NONE)
        request = schema.request(api, version).decode(body)
        values = await getattr(self, f"_{api.name.lower()}")(node, version, request)
        if values is None or values == b"":
            return values
        return header + schema.response(api, version).encode(values)

    def _versions(self, version: int, error: ErrorCode) -> bytes:
        keys = [{"api_key": api, "min_version": low, "max_version": high} for api, (low, high) in self.offered.items()]
        values = {"error_code": error, "api_keys": keys, "throttle_time": 0, **self.features}
        return bytes(schema.response(Api.API_VERSIONS, version).encode(values))

    # -- the APIs ---------------------------------------------------------------------------------------------------

    async def _metadata(self, node: int, version: int, request: Any) -> dict[str, Any]:
        names = self.topic_ids if request.topics is None else [topic.name for topic in request.topics]
        brokers = []
        for number in range(1, self.nodes + 1):
            host, port = self.advertised.get(number, (HOST, FIRST_PORT + number))
            brokers.append({"node_id": number, "host": host, "port": port, "rack": None})
        return {
            "throttle_time": 0, "brokers": brokers, "cluster_id": self.cluster_id, "controller_id": 1,
            "topics": [self._topic(node, name) for name in names],
            "error_code": ErrorCode.REBOOTSTRAP_REQUIRED if node in self.send_away else ErrorCode.NONE,
        }  # fmt: skip

    def _topic(self, node: int, name: str) -> dict[str, Any]:
        known = name in self.topic_ids
        led = {where: (part.leader, part.epoch) for where, part in self.partitions.items()}
        led |= self.deaf_nodes.get(node, {})
        nodes = tuple(range(1, self.nodes + 1))
        return {
            "error_code": ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "name": name, "topic_id": self.topic_ids.get(name), "is_internal": False,
            "partitions": [
                {"error_code": 0, "partition_index": where.partition, "leader_id": leader,
                 "leader_epoch": epoch, "replica_nodes": nodes, "isr_nodes": nodes, "offline_replicas": ()}
                for where, (leader, epoch) in led.items() if where.topic == name
            ],
        }  # fmt: skip

    async def _init_producer_id(self, node: int, version: int, request: Any) -> dict[str, Any]:
        self.next_producer_id += 1
        return {"throttle_time": 0, "error_code": 0, "producer_id": self.next_producer_id, "producer_epoch": 0}

    async def _produce(self, node: int, version: int, request: Any) -> dict[str, Any] | bytes | None:
        if node in self.silent_nodes:
            await asyncio.get_running_loop().create_future()
        topics, answered = [], True
        for topic in request.topic_data:
            name = self._name(topic)
            topic_id = getattr(topic, "topic_id", None) or self.topic_ids.get(name)
            entry = {"name": name, "topic_id": topic_id, "partition_responses": []}
            topics.append(entry)
            for part in topic.partition_data:
                where = TopicPartition(name, part.index)
                act = self.on_produce(where) if self.on_batch is None else self.on_batch(where, part.records)
                if act.delay_ms:
                    await asyncio.sleep(act.delay_ms / 1000)
                answered = answered and act.answer
                code, base, start = self._append(node, where, part.records) if act.apply else (act.error, -1, -1)
                entry["partition_responses"].append(
                    {"index": part.index, "error_code": act.error or code, "base_offset": base, "log_append_time": -1,
                     "log_start_offset": start, "record_errors": (), "error_message": None}
                )  # fmt: skip
        if not answered:
            return None
        if request.acks == 0:
            failed = any(part["error_code"] for topic in topics for part in topic["partition_responses"])
            return None if failed else b""  # nobody waits for an answer: closing the connection is all that can be said
        return {"responses": topics, "throttle_time": 0}

    def _append(self, node: int, where: TopicPartition, records: bytes) -> tuple[ErrorCode, int, int]:
        part = self.partitions.get(where)
        if part is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1
        if part.leader != node:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1
        try:
            result = part.log.append_as_leader(memoryview(bytearray(records)), part.epoch, self.clock.wall_ms())
        except KafkaError as error:
            return error.code, -1, -1
        self.appended.set()
        return ErrorCode.NONE, result.base_offset, result.log_start_offset

    async def _fetch(self, node: int, version: int, request: Any) -> dict[str, Any]:
        deadline = self.clock.monotonic_ms() + request.max_wait
        while True:
            room = [request.max_bytes]
            topics = [await self._fetch_topic(node, topic, room) for topic in request.topics]
            found = any(part["records"] or part["error_code"] for topic in topics for part in topic["partitions"])
            left = deadline - self.clock.monotonic_ms()
            if found or left <= 0:
                return {"throttle_time": 0, "error_code": 0, "session_id": 0, "responses": topics}
            self.appended.clear()
            try:
                async with asyncio.timeout(left / 1000):
                    await self.appended.wait()
            except TimeoutError:
                continue

    async def _fetch_topic(self, node: int, topic: Any, room: list[int]) -> dict[str, Any]:
        name = self._name(topic)
        parts = []
        for wanted in topic.partitions:
            where = TopicPartition(name, wanted.partition)
            limited = wanted._replace(partition_max_bytes=min(wanted.partition_max_bytes, room[0]))
            code, data = await self._read(node, where, limited) if room[0] > 0 else (ErrorCode.NONE, b"")
            room[0] -= len(data)
            log = self.partitions[where].log
            parts.append(
                {"partition_index": wanted.partition, "error_code": code, "high_watermark": log.log_end_offset,
                 "last_stable_offset": log.log_end_offset, "log_start_offset": log.log_start_offset,
                 "aborted_transactions": None, "preferred_read_replica": -1, "records": data}
            )  # fmt: skip
        return {"topic": name, "topic_id": self.topic_ids.get(name), "partitions": parts}

    async def _read(self, node: int, where: TopicPartition, wanted: Any) -> tuple[ErrorCode, bytes]:
        part = self.partitions[where]
        code = self._judge(node, part, getattr(wanted, "current_leader_epoch", -1))
        if code:
            return code, b""
        try:
            bounds = (wanted.fetch_offset, wanted.partition_max_bytes, part.log.log_end_offset)
            read = part.log.read(*bounds) or await part.log.read_cold(*bounds)
        except KafkaError as error:
            return error.code, b""
        return ErrorCode.NONE, read.data

    @staticmethod
    def _judge(node: int, part: Partition, epoch: int) -> ErrorCode:
        if part.leader != node:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if 0 <= epoch < part.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH if epoch > part.epoch else ErrorCode.NONE

    async def _list_offsets(self, node: int, version: int, request: Any) -> dict[str, Any]:
        topics = []
        for topic in request.topics:
            parts = []
            for wanted in topic.partitions:
                part = self.partitions[TopicPartition(topic.name, wanted.partition_index)]
                code = self._judge(node, part, getattr(wanted, "current_leader_epoch", -1))
                log, when = part.log, wanted.timestamp
                found = {-1: (log.log_end_offset, -1), -2: (log.log_start_offset, -1)}.get(when)
                if found is None:
                    hit = log.offset_for_timestamp(when, log.log_end_offset)
                    found = (-1, -1) if hit is None else (hit[0], hit[1])
                parts.append({"partition_index": wanted.partition_index, "error_code": code,
                              "timestamp": found[1], "offset": found[0], "leader_epoch": part.epoch})  # fmt: skip
            topics.append({"name": topic.name, "partitions": parts})
        return {"throttle_time": 0, "topics": topics}

    async def _offset_for_leader_epoch(self, node: int, version: int, request: Any) -> dict[str, Any]:
        topics = []
        for topic in request.topics:
            parts = []
            for wanted in topic.partitions:
                part = self.partitions[TopicPartition(topic.topic, wanted.partition)]
                epoch, end = part.log.end_offset_for_epoch(wanted.leader_epoch)
                code = self._judge(node, part, wanted.current_leader_epoch)
                code = code or self.on_epoch_question(TopicPartition(topic.topic, wanted.partition))
                parts.append({"error_code": code, "partition": wanted.partition, "leader_epoch": epoch,
                              "end_offset": end})  # fmt: skip
            topics.append({"topic": topic.topic, "partitions": parts})
        return {"throttle_time": 0, "topics": topics}

    def _name(self, topic: Any) -> str:
        for attribute in ("name", "topic"):
            if getattr(topic, attribute, None):
                return str(getattr(topic, attribute))
        return next((name for name, topic_id in self.topic_ids.items() if topic_id == topic.topic_id), "")


BOOTSTRAP = f"{HOST}:{FIRST_PORT + 1}"

Scenario = Callable[[ScriptedCluster, Ports], Coroutine[Any, Any, None]]
C = TypeVar("C", bound=ScriptedCluster)


def play(
    scenario: Callable[[C, Ports], Coroutine[Any, Any, None]],
    topics: dict[str, int],
    *,
    seed: int = 1,
    nodes: int = 3,
    kind: type[C] = ScriptedCluster,  # type: ignore[assignment]
) -> C:
    """Run a client's `scenario` in a world with a scripted cluster; the cluster, to look at afterwards."""
    world = World(seed, WorldConfig())
    world.add_machine(HOST)
    world.add_machine("client")
    made: list[C] = []

    async def brokers(ports: Ports) -> None:
        made[0].open(ports, topics)
        await made[0].serve()

    async def main() -> None:
        made.append(kind(nodes))
        world.spawn(HOST, brokers)
        await asyncio.sleep(0.01)

        async def client(ports: Ports) -> None:
            await scenario(made[0], ports)

        process = world.spawn("client", client)
        assert process.main is not None
        await process.main
        await made[0].keep_records()

    world.run(main())
    return made[0]


def drawn(rng: random.Random, chances: dict[str, float]) -> Callable[[TopicPartition], Act]:
    """A script that draws its acts: lost before, lost after, an error after the append, a delay."""

    def act(_: TopicPartition) -> Act:
        dice = rng.random()
        for kind, chance in chances.items():
            if dice < chance:
                return {
                    "lost_before": Act(apply=False, answer=False),
                    "lost_after": Act(answer=False),
                    "error_after": Act(error=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
                    "error_before": Act(apply=False, error=ErrorCode.NOT_ENOUGH_REPLICAS),
                    "slow": Act(delay_ms=rng.uniform(1, 400)),
                }[kind]
            dice -= chance
        return Act()

    return act
