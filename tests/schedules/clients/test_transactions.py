"""Schedules 130 to 132: what a producer's transaction must not hold, or be ended by."""

from __future__ import annotations

import asyncio

import pytest

from strandline.chaos.sim.ports import Ports
from strandline.client.aio import Producer
from strandline.client.errors import ClientError, TransactionAbortable
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from tests.client.broker import Act, play
from tests.client.test_transactions import producer, send
from tests.client.transactional import OlderCluster, TransactionalCluster
from tests.schedules.helpers import schedule


@schedule(
    130,
    rule="an end that may still be under way is one of an older epoch",
    mutant="an-end-without-an-answer-ends-the-next",
)
def test_130_an_end_that_comes_late_ends_nothing() -> None:
    """KAFKA-17754. The first EndTxn stays in the network, the second one commits, and the next transaction has begun
    when the first arrives, which a coordinator of the first protocol takes for the end of that one."""

    async def scenario(cluster: TransactionalCluster, ports: Ports) -> None:
        acts = [Act(apply=False, answer=False)]
        cluster.on_end = lambda _: acts.pop(0) if acts else Act()
        async with producer(ports) as sender:
            async with sender.transaction():
                await send(sender, b"a")
            await sender.begin_transaction()
            await send(sender, b"b")
            await sender.flush()
            cluster.end(*cluster.late[0])
            await send(sender, b"c")
            await sender.flush()
            await sender.abort_transaction()
        assert cluster.committed == [b"a"]

    play(scenario, {"t": 1}, kind=OlderCluster)


@schedule(131, rule="a commit is asked for once everything is acknowledged", mutant="what-failed-is-committed")
def test_131_a_transaction_that_lost_a_record_is_not_committed() -> None:
    """Nobody looks at the futures of the records. One of them is refused; the commit says so, the transaction
    is aborted, and the next one goes on."""

    async def scenario(cluster: TransactionalCluster, ports: Ports) -> None:
        refuse = [b"b"]
        cluster.on_batch = lambda _, records: (
            Act(apply=False, error=ErrorCode.INVALID_RECORD) if refuse and refuse[0] in bytes(records) else Act()
        )
        async with producer(ports) as sender:
            await sender.begin_transaction()
            await send(sender, b"a")
            await sender.flush()
            await send(sender, b"b")
            with pytest.raises(TransactionAbortable) as told:
                await sender.commit_transaction()
            assert isinstance(told.value.__cause__, KafkaError)
            with pytest.raises(TransactionAbortable):
                await send(sender, b"c")
            with pytest.raises(TransactionAbortable):
                await sender.commit_transaction()
            await sender.abort_transaction()
            refuse.clear()
            async with sender.transaction():
                await send(sender, b"b", b"d")
        assert cluster.committed == [b"b", b"d"]

    play(scenario, {"t": 1}, kind=TransactionalCluster)


@schedule(
    132,
    rule="a transaction takes records until its commit, and none after it",
    mutant="a-record-comes-between-transactions",
)
def test_132_a_record_that_is_sent_during_a_commit_is_refused() -> None:
    """One caller commits, which takes a while; another goes on sending. A record that was taken then would be in this
    transaction or the next one, as it comes, or outside of both."""

    async def scenario(cluster: TransactionalCluster, ports: Ports) -> None:
        cluster.on_end = lambda _: Act(delay_ms=0)
        cluster.on_produce = lambda _: Act(delay_ms=50)
        refused: list[bytes] = []
        taken: list[bytes] = []

        async def others(sender: Producer) -> None:
            for number in range(100):
                value = b"%d" % number
                try:
                    await send(sender, value)
                    taken.append(value)
                except ClientError:
                    refused.append(value)
                await asyncio.sleep(0.002)

        async with producer(ports, linger_ms=1) as sender:
            await sender.begin_transaction()
            await send(sender, b"first")
            busy = asyncio.get_running_loop().create_task(others(sender))
            await asyncio.sleep(0.02)
            await sender.commit_transaction()
            await busy
        assert refused
        assert len(taken) < 20  # those before the commit; while it waits for their answers, none
        assert cluster.committed == [b"first", *taken]

    play(scenario, {"t": 1}, kind=TransactionalCluster)
