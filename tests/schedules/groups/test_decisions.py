"""Decisions of the coordinator of transactions on real replicas: late ones, and those of a leadership that ended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from strandline.cluster.groups.connections import ConnectionNumbers
from strandline.cluster.groups.partitions import OFFSETS_TOPIC
from strandline.cluster.groups.runtime import CoordinatorRuntime
from strandline.cluster.transactions.commands import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    MarkerOrder,
    MarkersWritten,
    Producer,
)
from strandline.cluster.transactions.config import TransactionConfig
from strandline.cluster.transactions.shard import TransactionShard
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.ids import TopicPartition
from strandline.proto.kafka.transaction_records import TransactionState
from strandline.proto.system import SystemClock
from tests.schedules.groups.one_broker import ME, OTHER, OneBroker
from tests.schedules.groups.test_runtime import refusal, run

ADDED = frozenset({TopicPartition("t", 0)})
BOTH = (ME, OTHER)


class Coordinated:
    """The coordinator of one partition, whose orders are kept."""

    def __init__(self, broker: OneBroker, write_timeout_ms: int) -> None:
        self.orders: list[MarkerOrder] = []
        self.dropped: list[tuple[int, int]] = []
        self.runtime = broker.runtime = CoordinatorRuntime(  # type: ignore[assignment]
            OFFSETS_TOPIC,  # any topic: the log is what matters
            replicas=broker.replicas,
            clock=SystemClock(),
            make_shard=lambda partition, epoch: TransactionShard(
                TransactionConfig({}), partition, epoch, lambda: 2, ConnectionNumbers()
            ),
            write_timeout_ms=write_timeout_ms,
            on_order=self.orders.append,
            on_drop=lambda partition, epoch: self.dropped.append((partition, epoch)),
        )

    async def ask(self, command: Any) -> Any:
        """The answer, once the coordinator serves and nothing else is under way."""
        while True:
            try:
                return await self.runtime.ask(0, command)
            except KafkaError as error:
                if error.code not in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS):
                    raise
                await asyncio.sleep(0.001)

    async def begun(self) -> Producer:
        producer: Producer = await self.ask(InitProducer("a", 60_000, spare_id=7))
        await self.ask(AddPartitions("a", *producer, ADDED))
        return producer

    @property
    def state(self) -> TransactionState:
        return next(self.runtime.hosted()).shard.transactions["a"].state


async def until(happens: Any) -> None:
    async with asyncio.timeout(20):
        while not happens():
            await asyncio.sleep(0.001)


def test_a_decision_that_is_committed_late_is_carried_out(tmp_path: Path) -> None:
    """Rule C14: too few replicas were in sync, and the client was told to ask again. When the decision is committed the
    markers are ordered, though nobody asks."""

    async def story(broker: OneBroker) -> None:
        here = Coordinated(broker, 50)
        broker.elect(ME, 0)
        broker.publish()
        producer = await here.begun()
        broker.elect(ME, 0, change=1, isr=BOTH)
        end = EndTransaction("a", *producer, True, 2)
        assert await refusal(here.runtime.ask(0, end)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert here.state is TransactionState.PREPARE_COMMIT
        assert here.orders == [], "it is not committed"
        broker.elect(ME, 0, change=2)
        await until(lambda: here.orders)
        [order] = here.orders
        assert order.marker == (7, 1, True, 0)
        here.runtime.tell(0, MarkersWritten(order))
        await until(lambda: here.state is TransactionState.COMPLETE_COMMIT)
        assert await here.ask(end) == Producer(7, 1)

    run(tmp_path, story)


def test_an_append_of_another_leadership_changes_nothing(tmp_path: Path) -> None:
    """Rule C14: the decision is committed while somebody else leads. The coordinator that wrote it orders nothing; the
    one that loads it does, in its own epoch."""

    async def story(broker: OneBroker) -> None:
        here = Coordinated(broker, 5_000)
        broker.elect(ME, 0)
        broker.publish()
        producer = await here.begun()
        broker.elect(ME, 0, change=1, isr=BOTH)
        end = EndTransaction("a", *producer, False, 2)
        asked = asyncio.ensure_future(here.runtime.ask(0, end))
        await asyncio.sleep(0.01)
        broker.elect(OTHER, 1)
        broker.publish()
        assert await refusal(asked) is ErrorCode.NOT_COORDINATOR
        assert here.dropped == [(0, 0)]
        broker.elect(ME, 2)
        broker.publish()
        await until(lambda: here.orders)
        [order] = here.orders
        assert order.marker == (7, 1, False, 2)
        here.runtime.tell(0, MarkersWritten(order._replace(marker=order.marker._replace(coordinator_epoch=0))))
        assert here.state is TransactionState.PREPARE_ABORT
        here.runtime.tell(0, MarkersWritten(order))
        await until(lambda: here.state is TransactionState.COMPLETE_ABORT)
        assert await here.ask(end) == Producer(7, 1)

    run(tmp_path, story)
