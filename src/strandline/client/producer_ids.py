"""InitProducerId: a producer's id and epoch (KIP-98, KIP-360)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from strandline.client.config import ProducerConfig
from strandline.client.network import Connection
from strandline.client.rights import answered
from strandline.client.session import Session
from strandline.proto.error_codes import ErrorCode
from strandline.proto.errors import KafkaError, StrandlineError
from strandline.proto.kafka.apis import Api

_NO_TIMEOUT_MS = 0x7FFFFFFF
BUMPS_SINCE = 3
"""Version since which a producer names its current id and epoch, so that it cannot fence a newer producer."""


class ProducerId(NamedTuple):
    """Id and epoch of a producer; -1 each: it has none yet."""

    number: int = -1
    epoch: int = -1


NO_ID = ProducerId()


async def init_producer_id(connection: Connection, config: ProducerConfig, before: ProducerId = NO_ID) -> ProducerId:
    """A producer id of its own, or the next epoch of the transactional.id.

    Args:
        before: the id and epoch whose next epoch is wanted; without one, whoever had the transactional.id is fenced.

    Raises:
        KafkaError: what the broker says.
        ClientError: it did not answer.
    """
    if before.number >= 0 and connection.version(Api.INIT_PRODUCER_ID) < BUMPS_SINCE:
        words = f"{connection.endpoint} cannot give a producer its next epoch: that is InitProducerId {BUMPS_SINCE}"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, words)
    name = config.transactional_id
    values = {
        "transactional_id": name,
        "transaction_timeout": _NO_TIMEOUT_MS if name is None else config.transaction_timeout_ms,
        "producer_id": before.number,
        "producer_epoch": before.epoch,
    }
    answer = await connection.call(Api.INIT_PRODUCER_ID, values, config.request_timeout_ms)
    code = answer.error_code
    if code is not ErrorCode.NONE:
        lacks = answered(config, Api.INIT_PRODUCER_ID, code).message
        raise KafkaError(code, _refused(code, connection.endpoint, lacks, config))
    return ProducerId(answer.producer_id, answer.producer_epoch)


async def producer_id_of_its_own(
    session: Session, config: ProducerConfig, note: Callable[[StrandlineError | None], None]
) -> ProducerId:
    """A producer id for a producer without a transactional.id, asked for until a broker gives one.

    Args:
        note: told what each attempt failed with; None: it did not.

    Raises:
        KafkaError: the cluster gives none.
    """
    failures = 0
    while True:
        try:
            connection = await session.network.to_any(list(session.metadata.nodes.values()))
            given = await init_producer_id(connection, config)
            note(None)
            return given
        except KafkaError as error:
            note(error)
            if not error.retriable:
                raise
        except StrandlineError as error:
            note(error)
        failures += 1
        await asyncio.sleep(session.backoff_ms(failures) / 1000)


def _refused(code: ErrorCode, endpoint: object, lacks: str, config: ProducerConfig) -> str:
    """Words for the error; without a right, who lacks which."""
    words = f"{endpoint} gave no producer id"
    if config.transactional_id is not None:
        words += f" for transactional.id={config.transactional_id}"
    if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        words += (
            f": {lacks}; an idempotent producer needs the right to WRITE a topic, any one"
            " (or IDEMPOTENT_WRITE of the cluster); enable.idempotence=false produces without a producer id"
        )
    elif code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        words += ": this client may not use that name, or the cluster serves no transactions"
    elif code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
        ms = config.transaction_timeout_ms
        words += f": transaction.timeout.ms={ms} is more than the cluster's transaction.max.timeout.ms"
    return words
