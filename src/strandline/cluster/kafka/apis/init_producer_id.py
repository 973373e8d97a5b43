"""InitProducerId (22): ids for idempotent producers."""

from __future__ import annotations

from typing import Any

from strandline.cluster.kafka.api import Call, message_api
from strandline.cluster.service.producer_ids import InitProducerIdRequest
from strandline.proto.error_codes import ErrorCode


async def _answer(call: Call) -> Any:
    wanted = InitProducerIdRequest(
        call.request.transactional_id,
        getattr(call.request, "producer_id", -1),  # since version 3
        getattr(call.request, "producer_epoch", -1),
    )
    identity = await call.service.init_producer_id(call.context, wanted)
    return call.make(
        "InitProducerIdResponse",
        throttle_time=0,
        error_code=ErrorCode.NONE,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
    )


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return call.make("InitProducerIdResponse", throttle_time=0, error_code=error, producer_id=-1, producer_epoch=-1)


API = message_api(
    key=22,
    name="InitProducerId",
    schema="init_producer_id",
    first=0,
    last=5,
    flexible_since=2,
    refuse=_refuse,
    answer_later=_answer,
)
