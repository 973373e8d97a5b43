"""Transactional producers and readers of committed transactions, for a stage of brokers in the simulated world."""

from __future__ import annotations

import asyncio

from strandline.log.batch import Record, build_batch, decode_records, iter_batches
from strandline.log.transactions import Marker
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import TopicPartition
from strandline.replica.manager import ReplicaManager
from strandline.replica.partition import Append, AppendDone
from strandline.replica.states import ReadOutcome
from tests.replica.helpers import TP
from tests.replica.simulated import SimCluster


def key_of(value: bytes) -> bytes:
    """The key of a value: its last byte that is no dot."""
    return value.rstrip(b".")[-1:]


class Transactional:
    """A producer of one id; what its coordinator does is done by `end`."""

    def __init__(self, producer_id: int, epoch: int = 0) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = 0
        self.sequence = 0

    def batch(self, *values: bytes, time_ms: int = 1_700_000_000_000) -> memoryview:
        records = [Record(0, time_ms, key_of(value), value, ()) for value in values]
        first, self.sequence = self.sequence, self.sequence + len(values)
        return memoryview(
            build_batch(
                records,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=first,
                transactional=True,
            )
        )

    def write(
        self, replicas: ReplicaManager, done: AppendDone, *values: bytes, acks: int = -1, tp: TopicPartition = TP
    ) -> None:
        """Append as a leader that has asked the coordinator."""
        partition = replicas.partition(tp)
        assert partition is not None
        assert partition.log is not None
        first = self.sequence
        asked = partition.log.begin_verification(self.producer_id, self.epoch, first, begins_at_0=False)
        replicas.append(tp, self.batch(*values), acks, done, asked)

    def marker(self, *, commit: bool) -> Marker:
        return Marker(self.producer_id, self.epoch, commit, self.coordinator_epoch)


async def write(scene: SimCluster, node: int, producer: Transactional, *values: bytes, acks: int = -1) -> Append:
    """It ends as a client's append."""
    answered: asyncio.Future[Append] = scene.world.loop.create_future()
    scene.broker(node).run(lambda manager: producer.write(manager, answered.set_result, *values, acks=acks))
    async with asyncio.timeout(30):
        return await answered


def send_marker(
    scene: SimCluster, node: int, producer: Transactional, *, commit: bool, version: int = 1
) -> asyncio.Future[Append]:
    """Order a marker; it ends when it is committed, or refused."""
    answered: asyncio.Future[Append] = scene.world.loop.create_future()
    marker = producer.marker(commit=commit)
    scene.broker(node).run(lambda manager: manager.append_marker(TP, marker, version, answered.set_result) and None)
    return answered


async def end(scene: SimCluster, node: int, producer: Transactional, *, commit: bool) -> Append:
    async with asyncio.timeout(30):
        outcome = await send_marker(scene, node, producer, commit=commit)
    assert outcome.error is ErrorCode.NONE, outcome.message
    return outcome


def committed(scene: SimCluster, node: int, offset: int = 0, max_bytes: int = 1 << 20) -> ReadOutcome:
    """What a reader of committed transactions is given by a node."""
    while True:  # its bytes may be cold this time
        outcome = scene.manager(node).read(TP, offset, max_bytes, read_committed=True, any_replica=True)
        if outcome is not None:
            return outcome


def shown(outcome: ReadOutcome, offset: int = 0) -> list[bytes]:
    """The values that a client shows of an answer: what was aborted is left out up to its marker, as in Kafka's."""
    begun = sorted((one.first_offset, one.producer_id) for one in outcome.aborted)
    aborted: set[int] = set()
    values: list[bytes] = []
    for header, view in iter_batches(memoryview(outcome.data)):
        while begun and begun[0][0] <= header.last_offset:
            aborted.add(begun.pop(0)[1])
        if header.is_control:
            aborted.discard(header.producer_id)
        elif not header.is_transactional or header.producer_id not in aborted:
            values += [record.value or b"" for record in decode_records(view) if record.offset >= offset]
    return values
