"""Transactions that one process writes and another one ends: the sink of Spark, whose tasks write, and whose driver
decides.

A producer prepares its transaction: all of its records are acknowledged, it stays open, and the producer is done. Who
gets its `PreparedTransaction` ends it at the coordinator, as often as it likes: the same end again changes nothing.
Until then `transaction.timeout.ms` runs on. Kafka's protocol has no word for this state (KIP-939 was withdrawn): a
producer that begins under the same transactional.id aborts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from strandline.client.config import AdminConfig
from strandline.client.coordinator import TRANSACTION, Coordinator
from strandline.client.limits import Limit
from strandline.client.session import Session
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError
from strandline.proto.kafka.apis import Api

_AT_ONCE = 16

V2_END_SINCE = 5
"""Version of EndTxn since which an end gives the next epoch (KIP-890)."""

_ENDED_OTHERWISE = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""Answers to the end of a transaction that its coordinator has aborted, or that another producer's beginning has."""


class PreparedTransaction(NamedTuple):
    """An open transaction whose records are all acknowledged, and which its producer has let go of."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    protocol: int
    """1, or 2 (KIP-890): all of a transaction is in one."""


async def end_prepared(
    session: Session, config: AdminConfig, transactions: Iterable[PreparedTransaction], *, committed: bool
) -> dict[PreparedTransaction, KafkaError | None]:
    """End each of them; one that is ended so already stays so.

    Returns:
        None for each that is ended as asked for; an error for each that was ended otherwise: open for too long,
        aborted by an operator, or by another producer under its id.

    Raises:
        KafkaError: TRANSACTIONAL_ID_AUTHORIZATION_FAILED and the like.
        ClientTimeout: a coordinator does not answer within `default.api.timeout.ms`.
    """
    results: dict[PreparedTransaction, KafkaError | None] = {}
    in_turn = asyncio.Semaphore(_AT_ONCE)

    async def one(each: PreparedTransaction) -> None:
        coordinator = Coordinator(session, each.transactional_id, TRANSACTION, config.request_timeout_ms)
        at_most = None if each.protocol == 2 else V2_END_SINCE - 1
        values: Mapping[str, Any] = {
            "transactional_id": each.transactional_id,
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
            "committed": committed,
        }

        async def end() -> None:
            answer = await coordinator.call(Api.END_TXN, values, at_most=at_most)
            coordinator.check(Api.END_TXN, answer.error_code)

        async with in_turn:
            try:
                await coordinator.retrying(end, config.default_api_timeout_ms)
            except KafkaError as error:
                if error.code not in _ENDED_OTHERWISE:
                    raise
                results[each] = error
            else:
                results[each] = None

    wanted = list(transactions)
    words = f"the transactions have not ended within default.api.timeout.ms={config.default_api_timeout_ms}"
    await Limit(config.default_api_timeout_ms, words).keep(asyncio.gather(*(one(each) for each in wanted)))
    return {each: results[each] for each in wanted}
