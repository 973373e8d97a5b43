"""Groups on a simulated cluster: production nodes, and members that speak Kafka's wire as its clients do."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self, TypeVar

from kio.serial import entity_reader

from strandline.chaos.cluster import CLIENT_PORT
from strandline.chaos.sim.ports import Ports
from strandline.client.types import NewTopic
from strandline.cluster.groups.partitions import OFFSETS_TOPIC, partition_of
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka import schema
from strandline.proto.kafka.apis import Api
from strandline.proto.kafka.consumer_protocol import (
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from tests.stage import READY_MS, ClusterStage

T = TypeVar("T")

SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "replica.lag.time.max.ms": "2000",
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "500",
}
SESSION_MS = 6_000
HEARTBEAT_MS = 1_000.0
ANSWER_S = 3.0
"""A request that is not answered in this time is given up, as clients do; a join may take a rebalance longer."""

VERSIONS = {
    "find_coordinator": (Api.FIND_COORDINATOR, 2),
    "join_group": (Api.JOIN_GROUP, 5),
    "heartbeat": (Api.HEARTBEAT, 3),
    "leave_group": (Api.LEAVE_GROUP, 3),
    "sync_group": (Api.SYNC_GROUP, 3),
    "offset_commit": (Api.OFFSET_COMMIT, 7),
    "offset_fetch": (Api.OFFSET_FETCH, 5),
    "offset_commit_of_epochs": (Api.OFFSET_COMMIT, 9),
    "consumer_group_heartbeat": (Api.CONSUMER_GROUP_HEARTBEAT, 1),
    "produce_11": (Api.PRODUCE, 11),
    "produce_12": (Api.PRODUCE, 12),
    "stable_offset_fetch": (Api.OFFSET_FETCH, 7),
    "init_producer_id": (Api.INIT_PRODUCER_ID, 1),
    "add_offsets_to_txn": (Api.ADD_OFFSETS_TO_TXN, 1),
    "txn_offset_commit": (Api.TXN_OFFSET_COMMIT, 2),
    "end_txn": (Api.END_TXN, 1),
}
FLEXIBLE = ("offset_commit_of_epochs", "consumer_group_heartbeat", "stable_offset_fetch", "produce_11", "produce_12")
"""The others have plain headers."""


class GaveUp(Exception):
    """No answer, or no connection."""


class Wire:
    """A connection to one broker, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0

    @classmethod
    async def to(cls, host: str, port: int = CLIENT_PORT) -> Wire:
        """Raises GaveUp."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return cls(*await asyncio.open_connection(host, port))
        except (OSError, TimeoutError) as error:
            raise GaveUp(f"{host}: {error}") from error

    def close(self) -> None:
        self._writer.close()

    async def ask(self, api: str, *, within_s: float = ANSWER_S, **values: Any) -> Any:
        """Raises GaveUp."""
        key, version = VERSIONS[api]
        self._number += 1
        head = struct.pack(">hhi", key, version, self._number) + b"\x00\x01c" + b"\x00" * (api in FLEXIBLE)
        frame = head + schema.request(key, version).encode(values)
        self._writer.write(struct.pack(">i", len(frame)) + frame)
        try:
            async with asyncio.timeout(within_s):
                size = struct.unpack(">i", await self._reader.readexactly(4))[0]
                answer = await self._reader.readexactly(size)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise GaveUp(api) from error
        kind = schema.kind_of(key, version, "response")
        return entity_reader(kind)(answer, 5 if api in FLEXIBLE else 4)[0]


def protocols(*topics: str) -> list[dict[str, Any]]:
    """One assignor, and what the member subscribes to."""
    subscription = encode_subscription(Subscription(topics))
    return [{"name": "range", "metadata": subscription}]


def commit_of(topic: str, offsets: Mapping[int, int]) -> list[dict[str, Any]]:
    """The topics of an OffsetCommit."""
    partitions = [
        {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": None,
        }
        for partition, offset in offsets.items()
    ]
    return [{"name": topic, "partitions": partitions}]


class Site(ClusterStage):
    """Three nodes; each test adds a machine for each of its clients."""

    def __init__(self, seed: int, **settings: str) -> None:
        super().__init__(seed, {**SETTINGS, **{key.replace("_", "."): value for key, value in settings.items()}})
        self._topics: dict[str, int] = {}

    def play(self, scenario: Callable[[Self], Awaitable[T]], **topics: int) -> T:
        """The scenario begins when these topics exist, with so many partitions, and the one of the groups."""
        self._topics = topics
        return super().play(scenario)

    async def begin(self) -> None:
        await super().begin()
        new = [NewTopic(topic, count, 3) for topic, count in self._topics.items()]
        await self.admin(lambda admin: admin.create_topics(new))
        await self.find("any")
        await self.cluster.wait_in_sync(READY_MS)

    async def find(self, group: str) -> str:
        """The machine of a group's coordinator."""
        return str(await self.process("client", lambda _ports: find(self.cluster.names, group)))

    def led(self, group: str) -> str:
        """The same, without a question."""
        image = self.cluster.newest_image()
        assert image is not None
        return self.leader(OFFSETS_TOPIC, partition_of(group, len(image.topics[OFFSETS_TOPIC].partitions)))

    async def lose_coordinator(self, group: str, fault: Callable[[str], None]) -> str:
        """A fault strikes the coordinator, and another one takes over; its machine."""
        victim = self.led(group)
        fault(victim)
        await self.until(lambda: self.led(group) != victim, "another coordinates", within_ms=20_000)
        return victim

    async def bring_back(self, name: str) -> None:
        """No link is cut any more, the node runs, and every replica is in sync."""
        self.world.heal()
        if not self.is_alive(name):
            self.cluster.start(name)
        await self.cluster.wait_ready(READY_MS)
        await self.cluster.wait_in_sync(READY_MS)

    def faults(self) -> tuple[Callable[[str], None], ...]:
        """What a machine can suffer."""
        return self.world.power_cut, self.world.kill, self.world.isolate

    async def offsets(self, group: str, topic: str, partitions: int) -> list[int]:
        """What a client that comes later reads as committed."""

        async def fetch(_ports: Ports) -> list[int]:
            while True:
                wire = await Wire.to(await find(self.cluster.names, group))
                try:
                    return await fetch_offsets(wire, group, topic, partitions)
                except GaveUp:
                    await asyncio.sleep(0.1)
                finally:
                    wire.close()

        found: list[int] = await self.process("client", fetch)
        return found


async def fetch_offsets(wire: Wire, group: str, topic: str, partitions: int) -> list[int]:
    """By partition, -1 where nothing is committed. Raises GaveUp for an error."""
    asked = [
        {"name": topic, "partition_indexes": tuple(range(partitions))},
    ]
    answer = await wire.ask("offset_fetch", group_id=group, topics=asked)
    if answer.error_code != 0:
        raise GaveUp(answer.error_code)
    return [one.committed_offset for one in answer.topics[0].partitions]


async def find(names: list[str], key: str, kind: int = 0) -> str:
    """The coordinator of a group, or (1) of a transactional id, by the word of any broker."""
    while True:
        for name in names:
            try:
                wire = await Wire.to(name)
            except GaveUp:
                continue
            try:
                answer = await wire.ask("find_coordinator", key=key, key_type=kind)
            except GaveUp:
                continue
            finally:
                wire.close()
            if answer.error_code == 0:
                return str(answer.host)
        await asyncio.sleep(0.1)


class Member:
    """A member as clients make them: joins, assigns if it leads, commits, beats, and starts over when it is told to.

    Attributes:
        acked: (virtual ms, generation, partition, offset) of each acknowledged commit.
        owned: by generation, the partitions it was assigned.
        fenced: another process has taken its instance id.
    """

    def __init__(self, site: Site, machine: str, *, group: str = "g", topic: str = "t", partitions: int = 6) -> None:
        self.site = site
        self.machine = machine
        self.group = group
        self.topic = topic
        self.partitions = partitions
        self.instance_id: str | None = None
        self.member_id = ""
        self.generation = -1
        self.acked: list[tuple[float, int, int, int]] = []
        self.owned: dict[int, tuple[int, ...]] = {}
        self.fenced = False
        self.leaving = False
        self.errors: list[int] = []
        self._wire: Wire | None = None
        self._assigned: tuple[int, ...] | None = None

    def start(self) -> None:
        """In a process of its own."""
        self.site.world.spawn(self.machine, self._main)

    async def _main(self, _ports: Ports) -> None:
        while not self.fenced:
            try:
                self._wire = await Wire.to(await find(self.site.cluster.names, self.group))
                await self._take_part(self._wire)
                if self.leaving:
                    return
            except GaveUp:
                await asyncio.sleep(0.1)
            finally:
                if self._wire is not None:
                    self._wire.close()

    async def _take_part(self, wire: Wire) -> None:
        """Until the coordinator is another one. Who finds a new one is still what it was, until it hears otherwise."""
        while not self.fenced:
            if self._assigned is None:
                self._assigned = await self.join(wire)
            if self._assigned is None:
                await asyncio.sleep(0.1)
                continue
            assigned = self._assigned
            offsets = await fetch_offsets(wire, self.group, self.topic, self.partitions)
            positions = {partition: max(offsets[partition], 0) for partition in assigned}
            while await self._beat(wire) and await self._commit(wire, positions):
                if self.leaving:
                    member = {"member_id": self.member_id, "group_instance_id": None}
                    await wire.ask("leave_group", group_id=self.group, members=[member])
                    return
                await asyncio.sleep(HEARTBEAT_MS / 1000)
            self._assigned = None

    async def join(self, wire: Wire) -> tuple[int, ...] | None:
        """What it is assigned in the next generation; None: try again. Raises GaveUp."""
        joined = await wire.ask(
            "join_group",
            within_s=2 * SESSION_MS / 1000 + ANSWER_S,
            group_id=self.group,
            session_timeout=SESSION_MS,
            rebalance_timeout=SESSION_MS,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=protocols(self.topic),
        )
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            return await self.join(wire)
        if not self._fine(joined.error_code):
            return None
        self.member_id, self.generation = joined.member_id, joined.generation_id
        assignments = []
        if joined.leader == joined.member_id:
            ids = [member.member_id for member in joined.members]
            for number, member_id in enumerate(ids):
                share = [TopicPartition(self.topic, one) for one in range(self.partitions) if one % len(ids) == number]
                assigned = encode_assignment(share)
                assignments.append({"member_id": member_id, "assignment": assigned})
        synced = await wire.ask(
            "sync_group",
            within_s=2 * SESSION_MS / 1000,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            assignments=assignments,
        )
        if not self._fine(synced.error_code):
            return None
        owned = tuple(partition for _, partition in decode_assignment(synced.assignment))
        self.owned[self.generation] = owned
        return owned

    async def beat(self, wire: Wire) -> int:
        """The error of one heartbeat."""
        answer = await wire.ask(
            "heartbeat",
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        return int(answer.error_code)

    async def _beat(self, wire: Wire) -> bool:
        return self._fine(await self.beat(wire))

    async def commit(self, wire: Wire, offsets: Mapping[int, int]) -> int:
        """The error of one commit; acknowledged ones are noted."""
        answer = await wire.ask(
            "offset_commit",
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            topics=commit_of(self.topic, offsets),
        )
        error = int(answer.topics[0].partitions[0].error_code)
        if error == 0:
            for partition, offset in offsets.items():
                self.acked.append((self.site.world.now_ms, self.generation, partition, offset))
        return error

    async def _commit(self, wire: Wire, positions: dict[int, int]) -> bool:
        if not positions:
            return True
        for partition in positions:
            positions[partition] += 1
        return self._fine(await self.commit(wire, positions))

    def _fine(self, error: int) -> bool:
        """False: join anew. Raises GaveUp when another broker is to be asked."""
        if error == 0:
            return True
        self.errors.append(error)
        if error in (
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ):
            raise GaveUp(error)
        if error == ErrorCode.FENCED_INSTANCE_ID:
            self.fenced = True
        if error == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id, self.generation = "", -1
        return False
