"""Two clerks change one price: what is in memory must be what the log says last."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from prices import Prices


async def last_in_log(bootstrap: str) -> bytes:
    partition = TopicPartition("prices", 0)
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[partition]
        consumer.seek(partition, end - 1)
        return (await consumer.getone()).value


def test_memory_agrees_with_the_log(strandline_sim: Any) -> None:
    async def main(env: Any) -> None:
        await env.create_topic("prices")
        await env.create_topic("audit", partitions=3)
        async with AIOKafkaProducer(bootstrap_servers=env.bootstrap, enable_idempotence=True) as producer:
            prices = Prices(producer)

            async def change(clerk: str, price: bytes) -> None:
                await asyncio.sleep(random.uniform(0, 2.0))
                env.note(f"{clerk} says {price.decode()}")
                await prices.set(b"apples", price)
                env.note(f"{clerk} is done")

            await asyncio.gather(change("Ann", b"3.00"), change("Bob", b"2.50"))
        assert prices.now[b"apples"] == await last_in_log(env.bootstrap)

    strandline_sim.run(main)
