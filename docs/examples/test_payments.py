"""A consumer that must not handle twice: killed again and again, in a cluster that is no better off."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError
from payments import TOPIC, Ledger, handle_payments

PARTITIONS = 2
PAYMENTS = 40


async def pay(bootstrap: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
        for number in range(PAYMENTS):
            await producer.send_and_wait(TOPIC, b"100", key=b"payer %d" % number, partition=number % PARTITIONS)
            await asyncio.sleep(0.05)


async def supervised(bootstrap: str, ledger: Ledger) -> None:
    """As whoever runs it in production: started again when it could not reach the cluster."""
    while True:
        try:
            await handle_payments(bootstrap, ledger, PARTITIONS)
        except KafkaConnectionError:
            await asyncio.sleep(0.5)


def test_every_payment_is_handled_once(strandline_sim: Any) -> None:
    async def main(env: Any) -> None:
        await env.create_topic(TOPIC, PARTITIONS)
        ledger = Ledger()  # it outlives the consumer, as a database does
        paying = asyncio.create_task(pay(env.bootstrap))
        storm = asyncio.create_task(env.faults.storm(3.0, kinds=["kill", "power_cut", "partition"]))
        while not (paying.done() and storm.done()):
            consumer = env.spawn(lambda: supervised(env.bootstrap, ledger), name="consumer")
            await asyncio.sleep(env.rng.uniform(0.1, 2.0))
            consumer.kill()  # none of its code runs any more, no `finally` either
        await paying
        env.spawn(lambda: supervised(env.bootstrap, ledger), name="consumer")
        await env.wait_for(lambda: ledger.total() >= 100 * PAYMENTS, "every payment")
        await asyncio.sleep(5.0)
        assert ledger.total() == 100 * PAYMENTS

    strandline_sim.run(main)
