"""DescribeCluster (60)."""

from __future__ import annotations

from typing import Any

from strandline.cluster.broker.api import Call, message_api, part
from strandline.proto.error_codes import ErrorCode
from strandline.proto.ids import NO_NODE
from strandline.proto.kafka.apis import Api

BROKERS = 1
CONTROLLERS = 2
OPERATIONS_NOT_ASKED = -(2**31)


def _answer(call: Call) -> Any:
    request, context, service = call.request, call.context, call.service
    kind = getattr(request, "endpoint_type", BROKERS)  # since version 1
    if kind != BROKERS:
        known = kind == CONTROLLERS
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        return _refuse(call, code, "this listener describes brokers (endpoint type 1)")
    with_fenced = getattr(request, "include_fenced_brokers", False)  # since version 2
    operations = OPERATIONS_NOT_ASKED
    if request.include_cluster_authorized_operations:
        operations = service.cluster_operations(context)
    brokers = tuple(
        part(
            broker_id=broker.node_id,
            host=broker.endpoint.host,
            port=broker.endpoint.port,
            rack=broker.rack,
            is_fenced=broker.fenced,
        )
        for broker in service.live_brokers(context, with_fenced=with_fenced)
    )
    return part(
        throttle_time=0,
        error_code=ErrorCode.NONE,
        error_message=None,
        endpoint_type=BROKERS,
        cluster_id=service.image().cluster_id,
        controller_id=service.controller_id(context),
        brokers=brokers,
        cluster_authorized_operations=operations,
    )


def _refuse(call: Call, error: ErrorCode, message: str) -> Any:
    return part(
        throttle_time=0,
        error_code=error,
        error_message=message,
        endpoint_type=BROKERS,
        cluster_id=call.service.image().cluster_id,
        controller_id=NO_NODE,
        brokers=(),
    )


API = message_api(
    Api.DESCRIBE_CLUSTER,
    first=0,
    last=2,
    refuse=_refuse,
    answer=_answer,
)
