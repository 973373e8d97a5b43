"""InitProducerId (22): ids for idempotent producers."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.cluster.broker.service.producer_ids import InitProducerIdRequest
from strandline.proto.error_codes import ErrorCode
from strandline.proto.kafka.apis import Api


async def _answer(call: Call) -> Any:
    wanted = InitProducerIdRequest(
        call.request.transactional_id,
        getattr(call.request, "producer_id", -1),  # since version 3
        getattr(call.request, "producer_epoch", -1),
    )
    identity = await call.service.init_producer_id(call.context, wanted)
    return part(
        throttle_time=0,
        error_code=ErrorCode.NONE,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
    )


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return part(throttle_time=0, error_code=error, producer_id=-1, producer_epoch=-1)


API = message_api(
    Api.INIT_PRODUCER_ID,
    first=0,
    last=5,
    refuse=_refuse,
    answer_later=_answer,
)
