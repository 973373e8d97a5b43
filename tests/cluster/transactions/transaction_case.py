"""A shard of transactions driven by hand: its log is a list, its clock a number, its writes end as the test says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from strandline.cluster.groups.connections import ConnectionNumbers
from strandline.cluster.groups.machine import COMMITTED, Effects, Reply, Write, WriteOutcome
from strandline.cluster.transactions.commands import (
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitProducer,
    MarkerOrder,
    MarkersWritten,
    NeedsProducerId,
    Producer,
    VerifyPartitions,
)
from strandline.cluster.transactions.config import TransactionConfig
from strandline.cluster.transactions.shard import ADDITION_WAIT_MS, TransactionShard
from strandline.proto.believed import Now
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import LeaderEpoch, TopicPartition
from strandline.proto.kafka.keyed_record import Record
from strandline.proto.kafka.transaction_records import TRANSACTION, TransactionState, TransactionValue

START_MS = 1_000_000
WALL_MS = 1_700_000_000_000
ID = "app-1"
T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
LOST = WriteOutcome(ErrorCode.REQUEST_TIMED_OUT, True)
"""A write that stands in the log, and may be committed later."""


class Held(NamedTuple):
    """A write that is in the log and not committed; `told`: its outcome was an error, and it may be late."""

    write: Write
    end: int
    behind: list[Reply]
    told: bool = False


class Driver:
    """Attributes:
    log, committed: the records that stand in the log, and how many of them are committed.
    orders: that were given and are not carried out.
    hold: writes stay uncommitted until `commit_held` or `lose_held`.
    refuse: the error with which writes are refused; nothing of them stands in the log then.
    version: the cluster's level of transaction.version.
    """

    def __init__(
        self,
        log: Iterable[Record] = (),
        *,
        now_ms: float = START_MS,
        epoch: int = 0,
        version: int = 2,
        next_id: int = 1000,
        **config: Any,
    ) -> None:
        names = TransactionConfig.attributes
        self.config = TransactionConfig({names[name].name: value for name, value in config.items()})
        self._values = config
        self.version = version
        self.epoch = epoch
        self.shard = TransactionShard(self.config, 3, LeaderEpoch(epoch), lambda: self.version, ConnectionNumbers())
        self.log: list[Record] = list(log)
        self.committed = len(self.log)
        self.now_ms = float(now_ms)
        self.ahead_ms = 0
        self.next_id = next_id
        self.answers: dict[int, Any] = {}
        self.asked = 0
        self.orders: list[MarkerOrder] = []
        self.hold = False
        self.held: list[Held] = []
        self.refuse: ErrorCode | None = None
        for record in self.log:
            self.shard.replay(record)
        self._take(self.shard.loaded(self.now))

    @property
    def now(self) -> Now:
        """The wall clock may have been set `ahead_ms` ahead, and is not believed."""
        earliest_ms = int(self.now_ms) + WALL_MS
        return Now(self.now_ms, earliest_ms + self.ahead_ms, earliest_ms)

    def failover(self, kept: int | None = None) -> Driver:
        """Another coordinator, which knows the log alone: all of it, or what is committed and a little more."""
        log = self.log[: max(len(self.log) if kept is None else kept, self.committed)]
        return Driver(
            log, now_ms=self.now_ms, epoch=self.epoch + 1, version=self.version, next_id=self.next_id, **self._values
        )

    def ask(self, command: Any) -> int:
        """Returns the number by which `answers` has the answer, once there is one. A fresh producer id is brought where
        one is needed, as the coordinator does."""
        self.asked += 1
        number = self.asked
        self._take(self.shard.handle(command, number, self.now))
        if isinstance(self.answers.get(number), NeedsProducerId):
            del self.answers[number]
            self.next_id += 1
            self._take(self.shard.handle(command._replace(spare_id=self.next_id), number, self.now))
        return number

    def get(self, command: Any) -> Any:
        """The answer, which must come at once. Raises KafkaError."""
        answer = self.answers[self.ask(command)]
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    def code(self, command: Any) -> ErrorCode:
        """The error of the answer, which must come at once."""
        answer = self.answers[self.ask(command)]
        return answer.code if isinstance(answer, KafkaError) else ErrorCode.NONE

    def pass_ms(self, ms: float) -> None:
        """Time goes by, tick by tick."""
        end_ms = self.now_ms + ms
        while (deadline_ms := self.shard.next_deadline_ms) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self._take(self.shard.tick(self.now))
        self.now_ms = end_ms

    def commit_held(self) -> None:
        """What was held is committed now, also where its sender was told an error before."""
        held, self.held = self.held, []
        for one in held:
            self._committed(one)

    def lose_held(self, outcome: WriteOutcome = LOST) -> None:
        """The senders of what is held hear an error; it stands in the log all the same."""
        held, self.held = self.held, [one._replace(told=True, behind=[]) for one in self.held]
        for one in held:
            if not one.told:
                self._reply([reply._replace(answer=KafkaError(ErrorCode.NOT_COORDINATOR)) for reply in one.behind])
                self._take(self.shard.ended(one.write, outcome, self.now))

    def write_markers(self) -> None:
        """Everything that was ordered is carried out."""
        while self.orders:
            order = self.orders.pop(0)
            self._take(self.shard.handle(MarkersWritten(order), None, self.now))

    def tell(self, command: Any) -> None:
        """A command of which nobody waits for the answer."""
        self._take(self.shard.handle(command, None, self.now))

    def _take(self, effects: Effects) -> None:
        for write in effects.writes:
            if self.refuse is not None:
                self._take(self.shard.ended(write, WriteOutcome(self.refuse, False), self.now))
                continue
            self.log += write.records
            for record in write.records:
                self.shard.replay(record)
            one = Held(write, len(self.log), [])
            if self.hold or self.held:
                self.held.append(one)
            else:
                self._committed(one)
        for reply in effects.replies:
            if not (reply.after_writes and self.held):
                self._reply([reply])
            elif self.held[-1].told:
                self._reply([reply._replace(answer=KafkaError(ErrorCode.NOT_COORDINATOR))])
            else:
                self.held[-1].behind.append(reply)
        for order in effects.orders:
            self.ordered(order)

    def ordered(self, order: MarkerOrder) -> None:
        """An order was given."""
        self.orders.append(order)

    def _committed(self, one: Held) -> None:
        self.committed = max(self.committed, one.end)
        self._reply(one.behind)
        if not one.told:
            self._take(self.shard.ended(one.write, COMMITTED, self.now))
        elif one.write.late is not None:
            self._take(self.shard.ended(Write((), one.write.late), COMMITTED, self.now))

    def _reply(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            assert reply.to not in self.answers, "answered twice"
            self.answers[reply.to] = reply.answer

    # Producers

    def value(self, transactional_id: str = ID) -> TransactionValue:
        """What memory has, which is what the log has."""
        return self.shard.transactions[transactional_id]

    @property
    def state(self) -> TransactionState:
        return self.value().state

    def init(self, producer: Producer | None = None, timeout_ms: int = 60_000, transactional_id: str = ID) -> Producer:
        """Raises KafkaError."""
        given = producer or Producer(-1, -1)
        made: Producer = self.get(InitProducer(transactional_id, timeout_ms, *given))
        return made

    def init_code(self, producer: Producer | None = None) -> ErrorCode:
        return self.code(InitProducer(ID, 60_000, *(producer or (-1, -1))))

    def add(self, producer: Producer, *partitions: TopicPartition) -> ErrorCode:
        """The error of the answer, for which the time goes by in which an addition waits."""
        asked = self.ask(AddPartitions(ID, *producer, frozenset(partitions or (T0,))))
        if asked not in self.answers:
            self.pass_ms(ADDITION_WAIT_MS)
        answer = self.answers[asked]
        return answer.code if isinstance(answer, KafkaError) else ErrorCode.NONE

    def verify(self, producer: Producer, *partitions: TopicPartition) -> dict[TopicPartition, ErrorCode]:
        """Raises KafkaError."""
        errors: dict[TopicPartition, ErrorCode] = self.get(VerifyPartitions(ID, *producer, frozenset(partitions)))
        return errors

    def end(self, producer: Producer, *, commit: bool = True, version: int = 2) -> Producer:
        """Raises KafkaError."""
        following: Producer = self.get(EndTransaction(ID, *producer, commit, version))
        return following

    def end_code(self, producer: Producer, *, commit: bool = True, version: int = 2) -> ErrorCode:
        return self.code(EndTransaction(ID, *producer, commit, version))

    def described(self) -> TransactionValue:
        found: TransactionValue = self.get(DescribeTransaction(ID))
        return found


def compact(log: Iterable[Record]) -> list[Record]:
    """The last record of each key, as loading takes them."""
    last: dict[bytes, Record] = {}
    for record in log:
        last.pop(record.key, None)
        last[record.key] = record
    return list(last.values())


def values_of(log: Iterable[Record]) -> list[tuple[str, TransactionValue | None]]:
    """Every record, read."""
    return [
        (
            TRANSACTION.read_key(record.key).transactional_id,
            None if record.value is None else TRANSACTION.read(record.value),
        )
        for record in log
    ]
