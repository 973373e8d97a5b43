"""A scripted cluster with a transaction coordinator, as Kafka's tables have it: what each transaction holds is noted.

Batches go to the real logs without the mark of a transaction; markers are notes here, and no batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from strandline.log.batch import decode_records, parse_header, with_producer
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.apis import Api
from tests.client.broker import FIRST_PORT, HOST, OFFERED, Act, ScriptedCluster

NAME = "payments"


@dataclass
class Ended:
    """A transaction that has ended."""

    epoch: int
    committed: bool
    values: list[bytes]
    offsets: dict[TopicPartition, int]


@dataclass
class TransactionalCluster(ScriptedCluster):
    """One transactional.id; `protocol` is what the cluster has finalized."""

    protocol = 2
    offered: dict[Api, tuple[int, int]] = field(
        default_factory=lambda: (
            OFFERED
            | {
                Api.FIND_COORDINATOR: (0, 6),
                Api.ADD_PARTITIONS_TO_TXN: (0, 5),
                Api.ADD_OFFSETS_TO_TXN: (0, 4),
                Api.END_TXN: (0, 5),
                Api.TXN_OFFSET_COMMIT: (0, 6),
            }
        )
    )
    on_end: Callable[[bool], Act] = lambda _: Act()
    on_question: Callable[[Api], Act] = lambda _: Act()
    """What becomes of the other requests to coordinators; only whether they are carried out, and answered."""
    on_offsets: Callable[[], ErrorCode] = lambda: ErrorCode.NONE
    producer_id: int = 77
    epoch: int = -1
    bumped_from: int = -2
    """Epoch that the last InitProducerId has raised."""
    added: dict[TopicPartition, None] = field(default_factory=dict)
    values: list[bytes] = field(default_factory=list)
    """Values of the records of the open transaction."""
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)
    late: list[tuple[int, Any]] = field(default_factory=list)
    """EndTxn requests, and their versions, that came to nobody yet."""
    outside: list[bytes] = field(default_factory=list)
    """Values of records that were sent outside of transactions."""

    def __post_init__(self) -> None:
        level = {"name": "transaction.version", "max_version_level": self.protocol, "min_version_level": self.protocol}
        self.features = {"finalized_features_epoch": 1, "finalized_features": [level]}

    @property
    def committed(self) -> list[bytes]:
        """What readers of committed records see."""
        return [value for one in self.ended if one.committed for value in one.values]

    async def _answer(self, node: int, frame: bytes) -> bytes | None:
        api = Api(int.from_bytes(frame[:2], "big"))
        asked = api in (
            Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN, Api.TXN_OFFSET_COMMIT,
        )  # fmt: skip
        act = self.on_question(api) if asked else Act()
        if not act.answer and not act.apply:
            return None
        answer = await super()._answer(node, frame)
        return answer if act.answer else None

    async def _find_coordinator(self, node: int, version: int, request: Any) -> dict[str, Any]:
        found = {"node_id": 1, "host": HOST, "port": FIRST_PORT + 1, "error_code": 0, "error_message": None}
        keys = getattr(request, "coordinator_keys", ())
        return {**found, "throttle_time": 0, "coordinators": [{**found, "key": key} for key in keys]}

    async def _init_producer_id(self, node: int, version: int, request: Any) -> dict[str, Any]:
        if request.transactional_id is None:
            return await super()._init_producer_id(node, version, request)
        code = ErrorCode.NONE
        if request.producer_id >= 0 and request.producer_epoch == self.bumped_from:
            pass  # asked again: the answer is repeated
        elif request.producer_id >= 0 and request.producer_epoch != self.epoch:
            code = ErrorCode.PRODUCER_FENCED
        else:
            if self.added or self.values or self.offsets:
                self._end(committed=False)
            self.bumped_from = self.epoch
            self.epoch += 1
        return {
            "throttle_time": 0, "error_code": code, "producer_id": self.producer_id, "producer_epoch": self.epoch,
        }  # fmt: skip

    async def _add_partitions_to_txn(self, node: int, version: int, request: Any) -> dict[str, Any]:
        code = ErrorCode.NONE
        if request.v3_and_below_producer_epoch != self.epoch:
            code = ErrorCode.PRODUCER_FENCED
        topics = []
        for topic in request.v3_and_below_topics:
            parts = []
            for number in topic.partitions:
                if code is ErrorCode.NONE:
                    self.added[TopicPartition(topic.name, number)] = None
                parts.append({"partition_index": number, "partition_error_code": code})
            topics.append({"name": topic.name, "results_by_partition": parts})
        return {"throttle_time": 0, "results_by_topic_v3_and_below": topics}

    async def _add_offsets_to_txn(self, node: int, version: int, request: Any) -> dict[str, Any]:
        fenced = request.producer_epoch != self.epoch
        self.added[TopicPartition("__consumer_offsets", 0)] = None
        return {"throttle_time": 0, "error_code": ErrorCode.PRODUCER_FENCED if fenced else 0}

    async def _txn_offset_commit(self, node: int, version: int, request: Any) -> dict[str, Any]:
        code = self.on_offsets()
        if request.producer_epoch != self.epoch:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        topics = []
        names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        for topic in request.topics:
            name = names.get(topic.topic_id) if version >= 6 else topic.name
            told = ErrorCode.UNKNOWN_TOPIC_ID if code is ErrorCode.NONE and name is None else code
            for part in topic.partitions:
                if told is ErrorCode.NONE:
                    self.offsets[TopicPartition(name, part.partition_index)] = part.committed_offset
            parts = [{"partition_index": part.partition_index, "error_code": told} for part in topic.partitions]
            topics.append({"name": name, "topic_id": getattr(topic, "topic_id", None), "partitions": parts})
        return {"throttle_time": 0, "topics": topics}

    async def _end_txn(self, node: int, version: int, request: Any) -> dict[str, Any] | None:
        act = self.on_end(request.committed)
        if not act.apply:
            self.late.append((version, request))
        code = self.end(version, request) if act.apply else act.error
        answer = {"throttle_time": 0, "error_code": act.error or code}
        return {**answer, "producer_id": self.producer_id, "producer_epoch": self.epoch} if act.answer else None

    def end(self, version: int, request: Any) -> ErrorCode:
        """What the coordinator does on EndTxn, which may come late."""
        retry = version >= 5 and request.producer_epoch == self.epoch - 1
        done = self.ended and self.ended[-1].committed == request.committed
        if retry:
            return ErrorCode.NONE if done else ErrorCode.PRODUCER_FENCED
        if request.producer_epoch != self.epoch:
            return ErrorCode.PRODUCER_FENCED
        if not (self.added or self.values or self.offsets):
            if version >= 5 and not request.committed:
                self._end(committed=False)
                self.epoch += 1
                return ErrorCode.NONE
            return ErrorCode.NONE if version < 5 and done else ErrorCode.INVALID_TXN_STATE
        self._end(committed=request.committed)
        self.epoch += version >= 5
        return ErrorCode.NONE

    def _end(self, *, committed: bool) -> None:
        self.ended.append(Ended(self.epoch, committed, self.values, self.offsets))
        self.values, self.offsets = [], {}
        self.added.clear()

    def _append(self, node: int, where: TopicPartition, records: bytes) -> tuple[ErrorCode, int, int]:
        header = parse_header(records)
        values = [record.value or b"" for record in decode_records(records)]
        if not header.is_transactional:
            self.outside += values
            return super()._append(node, where, records)
        if header.producer_epoch < self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1, -1
        if self.protocol == 1 and where not in self.added:
            return ErrorCode.INVALID_TXN_STATE, -1, -1
        numbers = (header.producer_id, header.producer_epoch, header.base_sequence)
        end = self.partitions[where].log.log_end_offset if where in self.partitions else 0
        code, base, start = super()._append(node, where, bytes(with_producer(records, *numbers)))
        if code is ErrorCode.NONE and base >= end:
            self.values += values
        return code, base, start


@dataclass
class OlderCluster(TransactionalCluster):
    """A cluster of the first protocol."""

    protocol = 1
