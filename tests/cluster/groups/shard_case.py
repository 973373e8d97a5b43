"""A group shard driven by hand: its log is a list, its clock a number, and each write is committed, held or refused."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

from strandline.cluster.groups.classic.group import Group
from strandline.cluster.groups.commands import (
    CommitOffsets,
    FetchOffsets,
    Heartbeat,
    JoinAnswer,
    JoinGroup,
    LeaveGroup,
    Leaver,
    OffsetToCommit,
    SyncAnswer,
    SyncGroup,
    Unstable,
)
from strandline.cluster.groups.config import GroupConfig
from strandline.cluster.groups.connections import ConnectionNumbers
from strandline.cluster.groups.context import GroupCounters
from strandline.cluster.groups.loading import Latest
from strandline.cluster.groups.machine import COMMITTED, Effects, Transaction, Write, WriteOutcome
from strandline.cluster.groups.shard import GroupShard
from strandline.controller.metadata.image import MetadataImage, TopicInfo
from strandline.controller.metadata.records import PartitionRecord, TopicRecord
from strandline.log.batch import Record as LogRecord
from strandline.proto.believed import Now
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import NO_NODE, ZERO_UUID, LeaderEpoch, PartitionEpoch, TopicId
from strandline.proto.kafka.group_records import OffsetValue
from strandline.proto.kafka.keyed_record import Record

RANGE = ("range", b"\x00\x00\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff")
"""An assignor, and a subscription to topic t."""
STICKY = ("sticky", b"\x00\x00\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff")
START_MS = 1_000_000
WALL_MS = 1_700_000_000_000


_PARTITION = PartitionRecord(ZERO_UUID, 0, (), (), (), (), NO_NODE, LeaderEpoch(0), PartitionEpoch(0), False)


def topic_id_of(name: str, made: int = 0) -> TopicId:
    """The id of a topic in these tests; another one each time that it is made anew."""
    return UUID(bytes=f"{name}{made or ''}".encode().rjust(16, b"-")[:16])


class Batch(NamedTuple):
    """Records of one write, and the producer in whose transaction they are; none with `commit`: its marker."""

    records: tuple[Record, ...] = ()
    producer_id: int | None = None
    commit: bool | None = None


class Driver:
    """Attributes:
    batches: what stands in the log.
    held: writes that are in the log and not committed, while `hold` is set.
    refuse: the error with which writes are refused; nothing of them stands in the log then.
    topics: how many partitions each topic has.
    made: how often each topic was deleted and made anew.
    """

    def __init__(
        self,
        config: GroupConfig | None = None,
        log: Sequence[Record | Batch] = (),
        now_ms: float = START_MS,
        topics: dict[str, int] | None = None,
        made: Mapping[str, int] | None = None,
        **config_values: Any,
    ) -> None:
        values = {"initial_rebalance_delay_ms": 0, **config_values}
        self.config = config or GroupConfig({GroupConfig.attributes[name].name: values[name] for name in values})
        self.rng = random.Random(7)
        self.topics = {"t": 6} if topics is None else topics
        self.made: Counter[str] = Counter(made or {})
        self.numbers = ConnectionNumbers()
        self.shard = GroupShard(self.config, self.rng, GroupCounters(), self.image, self.numbers)
        self.batches = [one if isinstance(one, Batch) else Batch((one,)) for one in log]
        self.now_ms = float(now_ms)
        self.ahead_ms = 0
        self.answers: dict[int, Any] = {}
        self.asked = 0
        self.hold = False
        self.held: list[Write] = []
        self.refuse: ErrorCode | None = None
        for batch in self.batches:
            self._replay(batch)
        self._take(self.shard.loaded(self.now))

    def image(self) -> MetadataImage:
        """The topics that there are."""
        topics = {
            name: TopicInfo(TopicRecord(name, of), dict.fromkeys(range(count), replace(_PARTITION, topic_id=of)))
            for name, count in self.topics.items()
            for of in [topic_id_of(name, self.made[name])]
        }
        return MetadataImage("cluster", topics=topics, topic_by_id={one.topic_id: one for one in topics.values()})

    @property
    def now(self) -> Now:
        """The wall clock may have been set `ahead_ms` ahead, and is not believed."""
        earliest_ms = int(self.now_ms) + WALL_MS
        return Now(self.now_ms, earliest_ms + self.ahead_ms, earliest_ms)

    @property
    def log(self) -> list[Record]:
        """Records that stand in the log."""
        return [record for batch in self.batches for record in batch.records]

    def _replay(self, batch: Batch) -> None:
        """As the runtime does it, with what was appended."""
        for record in batch.records:
            if batch.producer_id is None:
                self.shard.replay(record)
            else:
                self.shard.replay_pending(record, batch.producer_id)
        if batch.producer_id is not None and batch.commit is not None:
            self.shard.replay_marker(batch.producer_id, batch.commit)

    def failover(self) -> Driver:
        """Another coordinator, which knows the log alone, and loads it as coordinators do."""
        other = Driver(self.config, (), self.now_ms, self.topics, self.made)
        other.rng.seed(99)
        other.load(self.batches)
        return other

    def load(self, batches: Sequence[Batch]) -> None:
        """Take in a log as `replay_log` does."""
        latest, offset = Latest(), 0
        for records, producer_id, commit in batches:
            logged = [LogRecord(offset + number, 0, *record) for number, record in enumerate(records)]
            offset += len(logged) + 1
            if producer_id is None:
                latest.take(logged)
            elif commit is None:
                latest.take_pending(logged, producer_id)
            else:
                latest.end(producer_id, commit=commit)
        for _ in latest.replay(self.shard):
            pass
        self.batches = list(batches)
        self._take(self.shard.loaded(self.now))

    def mark(self, producer_id: int, *, commit: bool) -> None:
        """The marker of a producer's transaction is written."""
        batch = Batch((), producer_id, commit)
        self.batches.append(batch)
        self._replay(batch)

    def ask(self, command: Any) -> int:
        """Returns the number by which `answers` has the answer, once there is one."""
        self.asked += 1
        self._take(self.shard.handle(command, self.asked, self.now))
        return self.asked

    def get(self, command: Any) -> Any:
        """The answer, which must come at once."""
        return self.answer(self.ask(command))

    def answer(self, number: int) -> Any:
        answer = self.answers[number]
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    def pass_ms(self, ms: float) -> None:
        """Time goes by, tick by tick."""
        end_ms = self.now_ms + ms
        while (deadline_ms := self.shard.next_deadline_ms) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self._take(self.shard.tick(self.now))
        self.now_ms = end_ms

    def commit_held(self, outcome: WriteOutcome = COMMITTED) -> None:
        """What was held is committed now, or lost."""
        held, self.held = self.held, []
        for write in held:
            self._take(self.shard.ended(write, outcome, self.now))

    def change_writes(self, kind: str) -> None:
        """What becomes of writes from now on, by the words of the models: hold, release, lose, refuse, accept."""
        if kind == "hold":
            self.hold = True
        elif kind in ("release", "lose"):
            self.hold = False
            self.commit_held(COMMITTED if kind == "release" else WriteOutcome(ErrorCode.REQUEST_TIMED_OUT, True))
        elif kind == "refuse":
            self.refuse = ErrorCode.NOT_ENOUGH_REPLICAS
        elif kind == "accept":
            self.refuse = None

    def _take(self, effects: Effects) -> None:
        for write in effects.writes:
            if self.refuse is not None:
                self._take(self.shard.ended(write, WriteOutcome(self.refuse, False), self.now))
                continue
            batch = Batch(write.records, None if write.transaction is None else write.transaction.producer_id)
            self.batches.append(batch)
            if write.replay:
                self._replay(batch)
            if self.hold:
                self.held.append(write)
            else:
                self._take(self.shard.ended(write, COMMITTED, self.now))
        for reply in effects.replies:
            assert reply.to not in self.answers, "answered twice"
            self.answers[reply.to] = reply.answer

    # Members

    def group(self, group_id: str = "g") -> Group:
        return self.shard.groups[group_id]

    def join(self, member_id: str = "", **values: Any) -> int:
        """A JoinGroup; a new dynamic member takes both steps of KIP-394."""
        command = JoinGroup(
            **{
                "group_id": "g",
                "member_id": member_id,
                "instance_id": None,
                "client_id": "c",
                "client_host": "/127.0.0.1",
                "session_timeout_ms": 10_000,
                "rebalance_timeout_ms": 60_000,
                "protocol_type": "consumer",
                "protocols": (RANGE,),
                **values,
            }
        )
        asked = self.ask(command)
        answer = self.answers.get(asked)
        if isinstance(answer, JoinAnswer) and answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            return self.ask(command._replace(member_id=answer.member_id))
        return asked

    def joined(self, asked: int) -> JoinAnswer:
        answer: JoinAnswer = self.answer(asked)
        assert answer.error is ErrorCode.NONE, answer
        return answer

    def sync(
        self,
        joined: JoinAnswer,
        assign: Callable[[str], bytes] | None = None,
        *,
        instance_id: str | None = None,
        group_id: str = "g",
    ) -> int:
        """A SyncGroup; the leader assigns to everybody who joined."""
        assignments = tuple((one.member_id, (assign or assigned)(one.member_id)) for one in joined.members)
        return self.ask(
            SyncGroup(
                group_id,
                joined.generation,
                joined.member_id,
                instance_id,
                joined.protocol_type,
                joined.protocol_name,
                assignments,
            )
        )

    def synced(self, asked: int) -> SyncAnswer:
        answer: SyncAnswer = self.answer(asked)
        assert answer.error is ErrorCode.NONE, answer
        return answer

    def beat(self, joined: JoinAnswer, instance_id: str | None = None, group_id: str = "g") -> ErrorCode:
        error: ErrorCode = self.get(Heartbeat(group_id, joined.generation, joined.member_id, instance_id))
        return error

    def leave(self, *members: Leaver, group_id: str = "g") -> list[ErrorCode]:
        errors: list[ErrorCode] = self.get(LeaveGroup(group_id, members))
        return errors

    def stable(self, count: int = 1, **values: Any) -> list[JoinAnswer]:
        """A stable group of `count` dynamic members, which joined one after the other; the first leads."""
        joined: list[JoinAnswer] = []
        for _ in range(count):
            new = self.join(**values)
            again = [self.join(one.member_id, **values) for one in joined]
            joined = [self.joined(one) for one in (*again, new)]
            for one in reversed(joined):
                self.sync(one)
        return joined

    # Offsets

    def commit(
        self, offset: int, joined: JoinAnswer | None = None, partition: int = 0, topic: str = "t", **values: Any
    ) -> int:
        return self.ask(
            CommitOffsets(
                **{
                    "group_id": "g",
                    "generation": -1 if joined is None else joined.generation,
                    "member_id": "" if joined is None else joined.member_id,
                    "instance_id": None,
                    "offsets": (
                        OffsetToCommit(topic, partition, offset, 1, "note", topic_id_of(topic, self.made[topic])),
                    ),
                    **values,
                }
            )
        )

    def get_commit(self, offset: int, **values: Any) -> list[ErrorCode]:
        """A commit that is answered at once. Raises KafkaError."""
        errors: list[ErrorCode] = self.answer(self.commit(offset, **values))
        return errors

    def commit_in(self, producer_id: int, offset: int, joined: JoinAnswer | None = None, **values: Any) -> int:
        """A TxnOffsetCommit."""
        return self.commit(offset, joined, transaction=Transaction(producer_id, 0), **values)

    def stable_offset(self, partition: int = 0, topic: str = "t", group_id: str = "g") -> int | Unstable | None:
        """What OffsetFetch with RequireStable tells of one partition."""
        found = self.get(FetchOffsets(group_id, ((topic, (partition,)),), stable=True))
        value = found[0][1][0][1]
        return value.offset if isinstance(value, OffsetValue) else value

    def offsets(self, group_id: str = "g") -> dict[tuple[str, int], int]:
        """What OffsetFetch tells of the whole group."""
        found = self.get(FetchOffsets(group_id, None))
        return {(topic, partition): value.offset for topic, values in found for partition, value in values}


def assigned(member_id: str) -> bytes:
    """An assignment that can be told from others."""
    return b"for " + member_id.encode()
