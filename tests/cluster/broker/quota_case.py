"""What the tests of quotas share."""

from __future__ import annotations

from typing import Any

from kafka_node import KafkaNode
from kafka_wire import KafkaClient
from test_kafka_fetch import fetch
from test_kafka_produce import batch, produce

from strandline.controller.machine.quotas import alter_client_quotas
from strandline.controller.quota_api import AlterQuotasRequest, QuotaAlteration, QuotaChange
from strandline.proto.quotas import QuotaEntity

EVERY_USER, EVERY_CLIENT = QuotaEntity(""), QuotaEntity(None, "")


def set_quota(node: KafkaNode, entity: QuotaEntity, **values: float | None) -> None:
    """Set, or remove with None, as a committed change."""
    changes = tuple(QuotaChange(key, None if value is None else repr(float(value))) for key, value in values.items())
    request = AlterQuotasRequest((QuotaAlteration(entity.user, entity.client_id, changes, entity.ip),))
    reply = node.controller.run(alter_client_quotas(node.controller.state, request))
    assert [one.error for one in reply.outcomes] == [0], reply


async def produced(client: KafkaClient, size: int, version: int = 9) -> Any:
    """The answer to a request of a little more than `size` bytes to topic t."""
    return await client.receive(produce(client, version, "t", {0: batch(bytes(size))}))


async def fetched(client: KafkaClient, offset: int = 0, version: int = 12, **options: Any) -> Any:
    """The answer to a fetch of topic t."""
    return await client.receive(fetch(client, version, "t", {0: offset}, **options))


def waits_ms(answer: Any) -> float:
    """throttle_time_ms of an answer."""
    return float(answer.throttle_time.total_seconds() * 1000)
